//! The mutex: whoever stands first in line holds.

use std::future::Future;
use std::panic::Location;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::api::{Error, Session};
use crate::node::ReplyTo;

use super::error::{LockError, LostReason};
use super::guard::guard;
use super::hold::{self, Released};
use super::line::Lines;
use super::lock_call::LockCall;
use super::operate::LockAdminError;
use super::rule::Rule;
use super::token::Token;
use super::view::{self, LockEntry};

/// A lock: at most one holder in the whole cluster. Made by [`Session::mutex`].
///
/// Fair: granted in the order in which the wishes came to the log. Tasks of this process that share
/// the session wait in the process, and the lock passes from one to the next without a word to the
/// cluster, up to 16 times while others in the cluster wait, and as often as it likes while nobody
/// does. A wish with something to say ([`LockCall::reason`], [`LockCall::owner`], [`LockCall::max_hold`])
/// stands in the cluster's own line, for all to see.
///
/// Under a pause or a partition the holder's [`Hold::state`](crate::lock::Hold::state) says "lost" before anybody else is granted
/// the lock; after a crash the lock is free when the session has expired, or as soon as the program is
/// back. What it does not guarantee: that a holder looks. See [`Hold`](crate::lock::Hold).
#[derive(Clone, Debug)]
pub struct Mutex {
    session: Session,
    name: Bytes,
}

impl Session {
    /// The lock of this name. Keys below `name/` are its line: nothing else should be put there.
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
    pub fn mutex(&self, name: impl Into<Bytes>) -> Mutex {
        Mutex { session: self.clone(), name: name.into() }
    }
}

impl Mutex {
    /// Its name.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Waits until this is the holder. Dropping the future leaves the line.
    #[track_caller]
    pub fn lock(&self) -> LockCall {
        self.call(Location::caller())
    }

    /// Takes the lock if nobody holds or wants it. Waits for the cluster's answer, and no longer than any
    /// call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`] names who is first in line.
    #[track_caller]
    pub fn try_lock(&self) -> LockCall {
        self.call(Location::caller()).only_try()
    }

    fn call(&self, caller: &'static Location<'static>) -> LockCall {
        LockCall::new(&self.session, vec![self.name.clone()], Rule::Alone, caller)
    }

    /// Locks, runs `work`, and releases, waiting until another may have the lock. If the future is
    /// dropped, `work` is dropped first and the lock is released behind it.
    ///
    /// The lock may be lost while `work` runs: it has the guard to look, or to write through.
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
    /// Those of [`Mutex::lock`]: then `work` has not begun. What the release comes to is not an error
    /// here: a lock that was lost meanwhile is gone anyway.
    #[track_caller]
    pub fn with<T>(
        &self,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> impl Future<Output = Result<T, LockError>> {
        let call = self.lock();
        async move {
            let guard = call.await?;
            let result = work(&guard).await;
            // Where it cannot be confirmed the node goes on trying.
            let _: Result<Released, Error> = guard.release().await;
            Ok(result)
        }
    }

    /// The line, the holder first, as this node's replica has it: perhaps not the newest.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the name cannot be a lock's.
    pub fn queue(&self) -> Result<Vec<LockEntry>, Error> {
        view::line_of(self.session.shared(), &self.name)
    }

    /// Releases the hold of this token, whose guard is not at hand: its holder loses it. Only a hold of this
    /// very session, on this node; never by the name alone: what another holds is left alone. For the holds
    /// of others there is [`Locks::force_release`](crate::lock::Locks::force_release).
    ///
    /// # Errors
    /// See [`Error`]. If there is no such hold, that is [`Released::AlreadyLost`].
    pub async fn release(&self, token: Token) -> Result<Released, Error> {
        let shared = self.session.shared();
        let lines = Lines::of(shared);
        let (sender, receiver) = oneshot::channel();
        let reply = ReplyTo::Waiting(sender);
        if !lines.release_by_token(&self.name, self.session.shared_session(), token, reply) {
            let end = self.session.shared_session().end(shared.now());
            let loss = end.map_or(LostReason::Released, |end| LostReason::ended(end, shared));
            return Ok(Released::AlreadyLost(loss));
        }
        Ok(Released::of(&hold::confirmed(shared, receiver).await?))
    }
}

guard! {
    /// A held lock. Dropping it releases it, in the background; [`Guard::release`] waits for that.
    /// Everything else is in [`Hold`](crate::lock::Hold).
    ///
    /// Done, and released, in one entry, if it is still held (with
    /// [`GuardTxn::ack`](crate::lock::GuardTxn::ack) an item of a queue is acknowledged in it, too: see
    /// [`Delivery`](crate::queue::Delivery)):
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let guard = node.session().block()?.mutex("locks/orders/42").lock().block()?;
    /// let write = guard.txn().then(Op::put("orders/42/state", "paid"));
    /// write.commit_and_release(guard).block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Guard
}

impl Guard {
    /// Gives it to one who waits for it ([`Mutex::queue`]), past those before that one, which gets a token
    /// of its own. This belief ends first. If the successor has gone by then, the next in line gets it. Refused
    /// while a client that is not Bowline's stands in the line: it would not know.
    ///
    /// # Errors
    /// See [`LockAdminError`]: the lock is released then, and the next in line gets it.
    pub async fn transfer(self, successor: &LockEntry) -> Result<(), LockAdminError> {
        self.0.transfer(successor).await
    }
}
