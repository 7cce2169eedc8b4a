//! What all guards are: a hold, with a type that says of what.

use super::hold::Hold;

/// What a wish becomes. Nobody outside can name this: a type of guard is given by its lock, and not by whoever has
/// another's hold.
pub trait OfHold: Sized {
    /// What says of this hold whose it is.
    fn of(hold: Hold) -> Self;
}

/// What is part of a guard, and is none itself.
impl OfHold for Hold {
    fn of(hold: Hold) -> Self {
        hold
    }
}

/// A guard around a [`Hold`](super::hold::Hold): released when it is dropped, or by a call that waits.
macro_rules! guard {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Debug)]
        #[must_use = "a lock is released when its guard is dropped"]
        pub struct $name($crate::recipes::hold::Hold);

        impl $name {
            /// Releases it, and waits until others may have it. Releasing what is lost does no harm and
            /// says so.
            ///
            /// # Errors
            /// [`Error::Deadline`](crate::Error::Deadline) if it could not be confirmed in time; the node
            /// goes on trying.
            #[doc(alias = "unlock")]
            pub async fn release(self) -> Result<$crate::recipes::hold::Released, $crate::api::Error> {
                self.0.release().await
            }
        }

        impl std::ops::Deref for $name {
            type Target = $crate::recipes::hold::Hold;

            fn deref(&self) -> &$crate::recipes::hold::Hold {
                &self.0
            }
        }

        impl $crate::recipes::guard::OfHold for $name {
            fn of(hold: $crate::recipes::hold::Hold) -> Self {
                $name(hold)
            }
        }

        impl From<$name> for $crate::recipes::hold::Hold {
            fn from(guard: $name) -> Self {
                guard.0
            }
        }
    };
}

pub(super) use guard;
