//! A point in time on this machine's clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time on the boot-time clock of this machine. Unlike the wall clock, this clock never
/// jumps. Unlike [`std::time::Instant`] and tokio's clock, it advances while the machine is
/// suspended. Only the difference between two moments has a meaning, and only if both come from the
/// same machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment at this time after the clock's start.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Returns the time between the clock's start and this moment.
    pub const fn elapsed_since_boot(self) -> Duration {
        self.0
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
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
        write!(f, "boot+{:.6}s", self.0.as_secs_f64())
    }
}
