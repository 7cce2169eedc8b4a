//! The read/write lock: many readers or one writer, in the order of the requests.

use std::panic::Location;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::lock_format::{LockMode, lock_of};
use crate::model::{Command, IntoBytes, Reply};
use crate::node::ReplyTo;

use super::guard::{ReadGuard, WriteGuard};
use super::hold::confirmed;
use super::lock_call::LockCall;
use crate::recipes::lock::core::error::LostReason;
use crate::recipes::lock::core::view::{self, LockEntry};

/// A lock that many readers or one writer can hold. Created by [`Session::rw_lock`].
///
/// The lock is fair: it is granted in the order in which the requests were logged. Readers do not
/// overtake a waiting writer, so writers do not starve. Adjacent readers hold the lock together.
/// Each reader has its own queue entry, so acquiring and releasing a read lock costs two commits,
/// as for a mutex. Reading in parallel therefore pays off if the work under the lock is long.
///
/// After a pause or a partition, [`Hold::state`](crate::lock::Hold::state) of a guard reports the loss
/// before a conflicting holder gets the lock. After a crash the lock is free when the session has
/// expired, or as soon as the program has restarted. The lock cannot guarantee that the holder
/// checks the state. See [`Hold`](crate::lock::Hold).
#[derive(Clone, Debug)]
pub struct RwLock {
    session: Session,
    name: Bytes,
}

impl Session {
    /// Returns the read/write lock with this name. The lock queue uses the keys below `name/`. Do
    /// not put other keys there.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let lock = session.rw_lock("locks/catalogue");
    /// let (one, two) = (lock.read().block()?, lock.read().block()?);
    /// assert!(lock.try_write().block().is_err());
    /// drop((one, two));
    /// let writer = lock.write().block()?;
    /// let reader = writer.downgrade().block()?;
    /// let writer = reader.upgrade().block()?;
    /// writer.release().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rw_lock(&self, name: impl IntoBytes) -> RwLock {
        RwLock { session: self.clone(), name: name.into_bytes() }
    }
}

impl RwLock {
    /// Returns the name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Waits until no writer holds the lock or is ahead of this request. Dropping the future leaves
    /// the queue.
    ///
    /// An [owner](LockCall::owner) that already holds the lock, for reading or for writing,
    /// acquires it again at once.
    #[track_caller]
    pub fn read(&self) -> LockCall<ReadGuard> {
        self.call(LockMode::Read, Location::caller())
    }

    /// Acquires the lock for reading if no writer holds it or waits for it. Waits for the reply of
    /// the cluster, at most for the deadline of a call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock) contains the first entry of the
    /// queue.
    #[track_caller]
    pub fn try_read(&self) -> LockCall<ReadGuard> {
        self.call(LockMode::Read, Location::caller()).only_try()
    }

    /// Acquires the lock for writing, once all earlier requests have been released or have left the
    /// queue. Dropping the future removes the request from the queue.
    ///
    /// An [owner](LockCall::owner) that holds the lock for reading must use [`ReadGuard::upgrade`]
    /// instead. For such an owner, this call fails with [`Deadlock`](crate::LockError::Deadlock).
    #[track_caller]
    pub fn write(&self) -> LockCall<WriteGuard> {
        self.call(LockMode::Write, Location::caller())
    }

    /// Acquires the lock for writing if there are no holders and no waiters. Waits for the reply of
    /// the cluster, at most for the deadline of a call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock) contains the first entry of the
    /// queue.
    #[track_caller]
    pub fn try_write(&self) -> LockCall<WriteGuard> {
        self.call(LockMode::Write, Location::caller()).only_try()
    }

    /// Returns the queue, holders first, as known to the local replica, which may lag behind the
    /// leader.
    ///
    /// # Errors
    /// Returns [`Error::Rejected`] if the name is not valid for a lock.
    pub fn queue(&self) -> Result<Vec<LockEntry>, Error> {
        view::list(self.session.shared(), &self.name)
    }

    fn call<G>(&self, mode: LockMode, caller: &'static Location<'static>) -> LockCall<G> {
        LockCall::new(&self.session, vec![self.name.clone()], mode, caller)
    }
}

/// Error of a downgrade from writer to reader.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum DowngradeError {
    /// The lock is lost.
    #[error("not downgraded: the lock is lost: {0}")]
    Lost(LostReason),
    /// The owner holds the lock with other guards as well. Nothing was changed.
    #[error("not downgraded: the owner holds the lock with other guards")]
    HeldAgain(WriteGuard),
    /// The guard is a reader now, but the cluster has not confirmed the change. Other readers may
    /// have to wait until the guard is released.
    #[error(
        "lock downgraded, but other readers may have to wait until it is released: the change was not confirmed: {error}"
    )]
    Unconfirmed {
        /// The guard, now for reading.
        guard: ReadGuard,
        /// Why the change is not confirmed.
        error: Error,
    },
}

impl DowngradeError {
    /// Returns whether the downgrade was applied in the store, so that other readers can hold the
    /// lock at the same time.
    pub fn effect(&self) -> Effect {
        match self {
            DowngradeError::Lost(_) | DowngradeError::HeldAgain(_) => Effect::NotApplied,
            DowngradeError::Unconfirmed { error, .. } => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention. This method always
    /// returns false: a lost lock stays lost, an owner must first release its other guards, and a
    /// guard that is already a reader has nothing to retry. If the change was not confirmed in
    /// time, the node keeps trying.
    pub fn is_transient(&self) -> bool {
        match self {
            DowngradeError::Lost(_)
            | DowngradeError::HeldAgain(_)
            | DowngradeError::Unconfirmed { .. } => false,
        }
    }
}

impl WriteGuard {
    /// Downgrades to a reader without letting another writer in between. Readers that wait directly
    /// after this entry can then acquire the lock. The key, the queue position and the token stay
    /// the same. Waits until the change is confirmed. Dropping the future releases the lock.
    ///
    /// Writes that were started as the writer with [`Hold::txn`](crate::lock::Hold::txn), or with the
    /// conditions of [`Hold::still_held`](crate::lock::Hold::still_held), are applied before the readers
    /// get the lock, or not at all.
    ///
    /// # Errors
    /// See [`DowngradeError`].
    pub async fn downgrade(self) -> Result<ReadGuard, DowngradeError> {
        let WriteGuard(mut hold) = self;
        if let Some(loss) = hold.is_lost() {
            return Err(DowngradeError::Lost(loss));
        }
        let name = lock_of(hold.key());
        match hold.owner().cloned() {
            None => hold.only_reads(),
            Some(owner) if hold.only_reads_for(&owner, &name) => {}
            Some(_) => return Err(DowngradeError::HeldAgain(WriteGuard(hold))),
        }
        let (sender, receiver) = oneshot::channel();
        let command = Command::Txn(hold.downgrading());
        hold.session().shared().propose_until_applied(command, ReplyTo::Waiting(sender));
        match confirmed(hold.session().shared(), receiver).await {
            Ok(Reply::Txn(reply)) if !reply.succeeded => {
                Err(DowngradeError::Lost(hold.is_lost().unwrap_or(LostReason::KeyDeleted)))
            }
            Ok(_) => Ok(ReadGuard(hold)),
            Err(error) => Err(DowngradeError::Unconfirmed { guard: ReadGuard(hold), error }),
        }
    }
}
