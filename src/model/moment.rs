//! A point on this machine's clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the boot-time clock of this machine: it never jumps with the wall clock, and it goes
/// on through suspend, which [`std::time::Instant`] and tokio's clock do not. Only differences have a
/// meaning, and only on one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The moment this long after the clock's start.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// How long after the clock's start this is.
    pub const fn elapsed_since_boot(self) -> Duration {
        self.0
    }

    /// How long this moment is after `earlier`; zero if it is not.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(by))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:.6}s", self.0.as_secs_f64())
    }
}
