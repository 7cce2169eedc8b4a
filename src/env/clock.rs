//! The clock: boot-time, monotonic, running through suspend.

use std::time::Duration;

use crate::model::Moment;

/// Tells the time. Only differences count, and only on one machine.
pub trait Clock: Send + Sync + 'static {
    /// The present moment. Never before an earlier answer.
    fn now(&self) -> Moment;
}

/// The machine's boot-time clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        // CLOCK_BOOTTIME counts suspend; where it does not exist (macOS), CLOCK_MONOTONIC is the
        // clock that does.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(id);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Moment::since_boot(Duration::new(seconds, nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let mut last = BootClock.now();
        for _ in 0..1000 {
            let now = BootClock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
