//! The mutex: the first entry of the queue holds the lock.

use std::future::Future;
use std::panic::Location;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Error, Session};
use crate::lock_format::LockMode;
use crate::model::IntoBytes;
use crate::node::ReplyTo;

use super::admin::LockAdminError;
use super::guard::Guard;
use super::hold::{self, Released};
use super::lock_call::LockCall;
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::core::lock_table::LockTable;
use crate::recipes::lock::core::token::Token;
use crate::recipes::lock::core::view::{self, LockEntry};

/// A lock with at most one holder in the whole cluster. Created by [`Session::mutex`].
///
/// The mutex is fair: it is granted in the order in which the requests were logged. Tasks of this
/// process that share the session wait inside the process, and the lock is handed from one task to
/// the next without contacting the cluster. At most 16 hand-offs in a row happen while other nodes
/// wait; otherwise their number is not limited. A request with options ([`LockCall::reason`],
/// [`LockCall::owner`], [`LockCall::max_hold`]) has its own entry in the cluster's queue, which is
/// visible to all nodes.
///
/// After a pause or a partition, the holder's [`Hold::state`](crate::lock::Hold::state) reports the loss
/// before another holder gets the lock. After a crash the lock is free when the session has
/// expired, or as soon as the program has restarted. The lock cannot guarantee that the holder
/// checks the state. See [`Hold`](crate::lock::Hold).
#[derive(Clone, Debug)]
pub struct Mutex {
    session: Session,
    name: Bytes,
}

impl Session {
    /// Returns the lock with this name. The lock queue uses the keys below `name/`. Do not put
    /// other keys there.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let session = node.session().block()?;
    /// let guard = session.mutex("locks/orders/42").lock().block()?;
    /// guard.txn().then(Op::put("orders/42/state", "paid")).commit().block()?;
    /// guard.release().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mutex(&self, name: impl IntoBytes) -> Mutex {
        Mutex { session: self.clone(), name: name.into_bytes() }
    }
}

impl Mutex {
    /// Returns the name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Waits until the lock is acquired. Dropping the future removes the request from the queue.
    #[track_caller]
    pub fn lock(&self) -> LockCall {
        self.call(Location::caller())
    }

    /// Acquires the lock if there are no holders and no waiters. Waits for the reply of the
    /// cluster, at most for the deadline of a call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] contains the first entry of the queue.
    #[track_caller]
    pub fn try_lock(&self) -> LockCall {
        self.call(Location::caller()).only_try()
    }

    fn call(&self, caller: &'static Location<'static>) -> LockCall {
        LockCall::new(&self.session, vec![self.name.clone()], LockMode::Mutex, caller)
    }

    /// Acquires the lock, runs `work`, releases the lock, and waits until another task can acquire
    /// it. If the future is dropped, `work` is dropped first and the lock is released afterwards.
    ///
    /// The lock may be lost while `work` runs. `work` gets the guard, so that it can detect the
    /// loss and write under the lock.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let reply = std::pin::pin!(session.mutex("orders/42").with(async |guard| {
    ///     guard.txn().then(Op::put("orders/42/state", "paid")).commit().await
    /// }))
    /// .block()?;
    /// assert!(reply?.succeeded);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Mutex::lock`]. After an error, `work` was not started. A failed
    /// release is not reported, because the node retries it.
    #[track_caller]
    pub fn with<T>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> impl Future<Output = Result<T, LockError>> {
        let call = self.lock();
        async move {
            let guard = call.await?;
            let result = work(&guard).await;
            // If the release is not confirmed in time, the node keeps trying.
            let _: Result<Released, Error> = guard.release().await;
            Ok(result)
        }
    }

    /// Returns the queue, the holder first, as known to the local replica, which may lag behind the
    /// leader.
    ///
    /// # Errors
    /// Returns [`Error::Rejected`] if the name is not valid for a lock.
    pub fn queue(&self) -> Result<Vec<LockEntry>, Error> {
        view::list(self.session.shared(), &self.name)
    }

    /// Releases the hold with this token, without its guard. The holder loses the lock. This works
    /// only for a hold of this session on this node. To release other holds, use
    /// [`Locks::force_release`](crate::lock::Locks::force_release).
    ///
    /// # Errors
    /// See [`Error`]. If there is no such hold, returns [`Released::AlreadyLost`].
    pub async fn release(&self, token: Token) -> Result<Released, Error> {
        let shared = self.session.shared();
        let table = LockTable::of(shared);
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        if !table.release_by_token(&self.name, self.session.shared_session(), token, reply) {
            let end = self.session.shared_session().end(shared.now());
            let loss = end.map_or(LostReason::Released, |end| LostReason::ended(end, shared));
            return Ok(Released::AlreadyLost(loss));
        }
        Ok(Released::of(&hold::confirmed(shared, receiver).await?))
    }
}

impl Guard {
    /// Transfers the lock to a waiter ([`Mutex::queue`]), even if other waiters are ahead of it.
    /// The successor gets a new token, and this guard is invalid from this call on. If the
    /// successor has left the queue, the next waiter gets the lock. The transfer is rejected while
    /// the queue contains an entry of a client that is not Bowline, because such a client would not
    /// notice the transfer.
    ///
    /// # Errors
    /// See [`LockAdminError`]. After an error the lock is released, and the next waiter gets it.
    pub async fn transfer(self, successor: &LockEntry) -> Result<(), LockAdminError> {
        self.0.transfer(successor).await
    }
}
