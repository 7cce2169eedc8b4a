//! Several locks at once: one transaction joins all queues, and the lock is held when it is first
//! in all of them.

use std::panic::Location;

use bytes::Bytes;

use crate::api::Session;
use crate::lock_format::LockMode;
use crate::model::IntoBytes;

use super::guard::guard;
use super::lock_call::LockCall;

impl Session {
    /// Acquires several locks together: all or none. Each lock is the same as the
    /// [mutex](Session::mutex) with that name. The call accepts at most 30 names, in any order.
    /// Duplicate names count once.
    ///
    /// The request joins all queues in one log entry, so two such requests never wait for each
    /// other: one of them is first in every queue. A waiting request holds none of the locks, but
    /// later requests in each queue wait for it. If the key in one queue is deleted, or the session
    /// ends, all locks are lost.
    ///
    /// A program that acquires locks one after the other, and some of them with this call, can
    /// still deadlock. Such a deadlock is detected if the requests have an
    /// [owner](LockCall::owner). An owner that already holds one of the locks must not request a
    /// set that contains it: this fails with [`Deadlock`](crate::LockError::Deadlock), unless it
    /// holds the whole set through one call.
    ///
    /// After a pause, a partition or a crash the hold has the same guarantees as that of a
    /// [mutex](crate::Mutex), for all locks at the same time.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let both = session.lock_all(["accounts/7", "accounts/3"]).block()?;
    /// both.txn().then(Op::put("balance/3", "10")).then(Op::put("balance/7", "0")).commit().block()?;
    /// assert!(session.mutex("accounts/3").try_lock().block().is_err());
    /// both.release().block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn lock_all<N: IntoBytes>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockCall<MultiGuard> {
        let mut names: Vec<Bytes> = names.into_iter().map(IntoBytes::into_bytes).collect();
        names.sort_unstable();
        names.dedup();
        LockCall::new(self, names, LockMode::Mutex, Location::caller())
    }

    /// Like [`Session::lock_all`], if none of the locks has a holder or a waiter. Waits for the
    /// reply of the cluster, at most for the deadline of a call.
    ///
    /// # Errors
    /// If any of the locks has a holder or a waiter, returns
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock) and acquires no lock.
    #[track_caller]
    pub fn try_lock_all<N: IntoBytes>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockCall<MultiGuard> {
        self.lock_all(names).only_try()
    }
}

guard! {
    /// Several locks that are held together. The locks are lost together and released in one log
    /// entry, by [`MultiGuard::release`] or when the guard is dropped.
    /// [`Hold::keys`](crate::lock::Hold::keys) returns the keys in the order of the names. See
    /// [`Hold`](crate::lock::Hold) for its other methods.
    MultiGuard
}
