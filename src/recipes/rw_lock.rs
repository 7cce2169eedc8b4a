//! The read/write lock: many readers, or one writer, in the order in which they came.

use std::panic::Location;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Effect, Error, Session};
use crate::model::{Command, Reply};
use crate::node::ReplyTo;

use super::error::LostReason;
use super::guard::guard;
use super::hold::confirmed;
use super::line::lock_of;
use super::lock_call::LockCall;
use super::rule::Rule;
use super::upgrade::Upgrade;
use super::view::{self, LockEntry};

/// A lock that many may hold for reading, or one for writing. Made by [`Session::rw_lock`].
///
/// Fair: granted in the order in which the wishes came to the log. No reader passes a writer that
/// waits, so writers do not starve; readers that stand together hold together. Each reader is a row:
/// a read costs two commits, as a mutex does, and pays off where the work under it is long.
///
/// Under a pause or a partition a guard's [`Hold::state`](crate::lock::Hold::state) says "lost" before anybody is granted what it
/// excludes; after a crash its part is free when the session has expired, or as soon as the program is
/// back. What it does not guarantee: that a holder looks. See [`Hold`](crate::lock::Hold).
#[derive(Clone, Debug)]
pub struct RwLock {
    session: Session,
    name: Bytes,
}

impl Session {
    /// The read/write lock of this name. Keys below `name/` are its line: nothing else should be put
    /// there.
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
    pub fn rw_lock(&self, name: impl Into<Bytes>) -> RwLock {
        RwLock { session: self.clone(), name: name.into() }
    }
}

impl RwLock {
    /// Its name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Waits until no writer holds it or waits before this. Dropping the future leaves the line.
    ///
    /// An [owner](LockCall::owner) that holds it for reading or for writing has it at once.
    #[track_caller]
    pub fn read(&self) -> LockCall<ReadGuard> {
        self.call(Rule::Read, Location::caller())
    }

    /// Takes it for reading if no writer holds or wants it. Waits for the cluster's answer, and no longer
    /// than any call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock) names who is first in line.
    #[track_caller]
    pub fn try_read(&self) -> LockCall<ReadGuard> {
        self.call(Rule::Read, Location::caller()).only_try()
    }

    /// Waits until nobody is before this. Dropping the future leaves the line.
    ///
    /// An [owner](LockCall::owner) that holds it for reading must not ask for this, which is a
    /// [`Deadlock`](crate::LockError::Deadlock), but for [`ReadGuard::upgrade`].
    #[track_caller]
    pub fn write(&self) -> LockCall<WriteGuard> {
        self.call(Rule::Write, Location::caller())
    }

    /// Takes it for writing if nobody holds or wants it. Waits for the cluster's answer, and no longer
    /// than any call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock) names who is first in line.
    #[track_caller]
    pub fn try_write(&self) -> LockCall<WriteGuard> {
        self.call(Rule::Write, Location::caller()).only_try()
    }

    /// The line, those who hold first, as this node's replica has it: perhaps not the newest.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the name cannot be a lock's.
    pub fn queue(&self) -> Result<Vec<LockEntry>, Error> {
        view::line_of(self.session.shared(), &self.name)
    }

    fn call<G>(&self, rule: Rule, caller: &'static Location<'static>) -> LockCall<G> {
        LockCall::new(&self.session, vec![self.name.clone()], rule, caller)
    }
}

guard! {
    /// A read/write lock, held for reading. Dropping it releases it, in the background;
    /// [`ReadGuard::release`] waits for that. Everything else is in [`Hold`](crate::lock::Hold).
    ReadGuard
}

guard! {
    /// A read/write lock, held for writing. Dropping it releases it, in the background;
    /// [`WriteGuard::release`] waits for that. Everything else is in [`Hold`](crate::lock::Hold).
    WriteGuard
}

/// Why a writer could not become a reader.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum DowngradeError {
    /// It is lost.
    #[error("not held any more: {0}")]
    Lost(LostReason),
    /// Its owner holds it with other guards too. Nothing was changed.
    #[error("its owner holds it with other guards too")]
    HeldAgain(WriteGuard),
    /// The guard only reads from now on, but the cluster has not confirmed it, so that others may have to
    /// wait until it is released.
    #[error("the guard only reads now, but other readers may have to wait for it: {error}")]
    Unconfirmed {
        /// What reads.
        guard: ReadGuard,
        /// Why it is not confirmed.
        error: Error,
    },
}

impl DowngradeError {
    /// Whether its row in the line says that it reads, so that others may read beside it.
    pub fn effect(&self) -> Effect {
        match self {
            DowngradeError::Lost(_) | DowngradeError::HeldAgain(_) => Effect::NotApplied,
            DowngradeError::Unconfirmed { error, .. } => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program: never. What is lost stays lost, an
    /// owner lets go of its other guards first, and who only reads already has nothing to ask again: where that could
    /// not be confirmed in time, the node goes on trying.
    pub fn is_transient(&self) -> bool {
        match self {
            DowngradeError::Lost(_)
            | DowngradeError::HeldAgain(_)
            | DowngradeError::Unconfirmed { .. } => false,
        }
    }
}

impl WriteGuard {
    /// Goes on as a reader, without letting a writer in between: readers that wait behind it come in.
    /// Its key, and so its place in the line, and its token stay. Waits until the readers may come in;
    /// dropping the future releases the lock.
    ///
    /// What this has begun as the writer, by [`Hold::txn`](crate::lock::Hold::txn) or on the conditions of
    /// [`Hold::still_held`](crate::lock::Hold::still_held), is done before the readers come in, or not at all.
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
            Some(owner) if owner.only_read(&name, &mut hold) => {}
            Some(_) => return Err(DowngradeError::HeldAgain(WriteGuard(hold))),
        }
        let (sender, receiver) = oneshot::channel();
        let command = Command::Txn(hold.downgrading());
        hold.session().shared().insist(command, ReplyTo::Waiting(sender));
        match confirmed(hold.session().shared(), receiver).await {
            Ok(Reply::Txn(reply)) if !reply.succeeded => {
                Err(DowngradeError::Lost(hold.is_lost().unwrap_or(LostReason::KeyDeleted)))
            }
            Ok(_) => Ok(ReadGuard(hold)),
            Err(error) => Err(DowngradeError::Unconfirmed { guard: ReadGuard(hold), error }),
        }
    }
}

impl ReadGuard {
    /// Becomes the writer when all other readers that hold have gone, without giving up what it reads.
    /// It passes writers that wait: they wait for this reader anyway. One reader at a time: a second
    /// gets [`UpgradeTaken`](crate::LockError::UpgradeTaken) at once, since each would wait for the
    /// other; it should release, and write.
    ///
    /// The writer has the reader's key and place in the line, and a token of its own. Costs two commits.
    #[track_caller]
    pub fn upgrade(self) -> Upgrade {
        Upgrade::new(self.0, Location::caller(), false)
    }

    /// As [`ReadGuard::upgrade`], if there is no other reader.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock), with the guard.
    #[track_caller]
    pub fn try_upgrade(self) -> Upgrade {
        Upgrade::new(self.0, Location::caller(), true)
    }
}
