//! The common part of all guard types: a hold, wrapped in a type that names the kind of lock.

use super::hold::Hold;

/// The type that a lock request resolves to. This trait cannot be named outside the crate, so that
/// a guard is created only by its lock, and not from the hold of another lock.
pub trait OfHold: Sized {
    /// Wraps a hold.
    fn of(hold: Hold) -> Self;
}

/// A hold without a guard type, for use inside other guards.
impl OfHold for Hold {
    fn of(hold: Hold) -> Self {
        hold
    }
}

/// Defines a guard type around a [`Hold`](super::hold::Hold), which is released when it is dropped,
/// or by a call that waits.
macro_rules! guard {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Debug)]
        #[must_use = "a lock is released when its guard is dropped"]
        pub struct $name(pub(crate) $crate::recipes::lock::hold::Hold);

        impl $name {
            /// Releases the lock and waits until another task can acquire it. Releasing a lost lock
            /// has no effect and returns [`Released::AlreadyLost`](crate::Released::AlreadyLost).
            ///
            /// # Errors
            /// Returns [`Error::Deadline`](crate::Error::Deadline) if the release was not confirmed
            /// in time. The node keeps retrying in the background.
            #[doc(alias = "unlock")]
            pub async fn release(self) -> Result<$crate::recipes::lock::hold::Released, $crate::api::Error> {
                self.0.release().await
            }
        }

        impl std::ops::Deref for $name {
            type Target = $crate::recipes::lock::hold::Hold;

            fn deref(&self) -> &$crate::recipes::lock::hold::Hold {
                &self.0
            }
        }

        impl $crate::recipes::lock::guard::OfHold for $name {
            fn of(hold: $crate::recipes::lock::hold::Hold) -> Self {
                $name(hold)
            }
        }

        impl From<$name> for $crate::recipes::lock::hold::Hold {
            fn from(guard: $name) -> Self {
                guard.0
            }
        }
    };
}

pub(crate) use guard;

guard! {
    /// A held mutex. Dropping the guard releases the lock in the background. [`Guard::release`]
    /// also waits until the lock is released. See [`Hold`](crate::lock::Hold) for its other
    /// methods.
    ///
    /// If the lock is still held, the following example writes a result and releases the lock in
    /// one log entry. With [`GuardTxn::ack`](crate::lock::GuardTxn::ack) the same entry can
    /// acknowledge a queue item; see [`Delivery`](crate::queue::Delivery).
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

guard! {
    /// A read/write lock that is held for reading. Dropping the guard releases the lock in the
    /// background. [`ReadGuard::release`] also waits until the lock is released. See
    /// [`Hold`](crate::lock::Hold) for its methods.
    ReadGuard
}

guard! {
    /// A read/write lock that is held for writing. Dropping the guard releases the lock in the
    /// background. [`WriteGuard::release`] also waits until the lock is released. See
    /// [`Hold`](crate::lock::Hold) for its methods.
    WriteGuard
}
