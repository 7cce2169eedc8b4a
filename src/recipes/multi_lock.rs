//! Several locks at once: one transaction enters all lines, and whoever is first in all of them holds.

use std::panic::Location;

use bytes::Bytes;

use crate::api::Session;

use super::guard::guard;
use super::lock_call::LockCall;
use super::rule::Rule;

impl Session {
    /// Takes the locks of these names together: all or none. Each is the [mutex](Session::mutex) of its
    /// name, for whoever wants it alone. At most 30 names, in any order; one that is given twice counts
    /// once.
    ///
    /// The wish enters all lines in one entry, so that two such wishes never wait for each other: one
    /// of them was first, everywhere. While it waits it holds none of them, but those who come later
    /// wait behind it in each line. If the key in one line is deleted by hand, or the session ends, all
    /// are lost. Whoever takes locks one after the other, and some of them with this, can still wait in a
    /// circle: an [owner](LockCall::owner) is told so. An owner that holds one of the locks already must
    /// not ask for a set with it: that is a [`Deadlock`](crate::LockError::Deadlock); unless it holds the
    /// whole set by one call.
    ///
    /// What it guarantees under a pause, a partition and a crash is what a [mutex](crate::Mutex) does, for
    /// all of the locks at the same moment.
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
    pub fn lock_all<N: Into<Bytes>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockCall<MultiGuard> {
        let mut names: Vec<Bytes> = names.into_iter().map(Into::into).collect();
        names.sort_unstable();
        names.dedup();
        LockCall::new(self, names, Rule::Alone, Location::caller())
    }

    /// As [`Session::lock_all`], if nobody holds or wants any of them. Waits for the cluster's answer, and
    /// no longer than any call.
    ///
    /// # Errors
    /// [`LockError::WouldBlock`](crate::LockError::WouldBlock): none is taken.
    #[track_caller]
    pub fn try_lock_all<N: Into<Bytes>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockCall<MultiGuard> {
        self.lock_all(names).only_try()
    }
}

guard! {
    /// Several locks, held together: they are lost together, and released in one entry, by
    /// [`MultiGuard::release`] or when this is dropped. [`Hold::keys`](crate::lock::Hold::keys) has the keys, in
    /// the order of the names; everything else is in [`Hold`](crate::lock::Hold) too.
    MultiGuard
}
