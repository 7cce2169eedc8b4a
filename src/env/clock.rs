//! The clock trait and its real implementation. The clock is monotonic and counts from the boot of
//! the machine, including the time for which the machine was suspended.

use std::time::Duration;

use crate::model::Moment;

/// A clock. Only the difference between two moments has a meaning, and only if both come from the
/// same machine.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current moment, which never goes backwards.
    fn now(&self) -> Moment;

    /// Returns the id of the boot of the machine from which moments are counted, or `None` if the
    /// id cannot be determined. If two calls return equal ids, the machine has not rebooted between
    /// them.
    fn boot(&self) -> Option<BootId> {
        None
    }
}

/// An id of one boot of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub u128);

impl BootId {
    /// Parses the format of the operating system: 32 hexadecimal digits, with dashes between them.
    fn parse(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
        let fits = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        fits.then(|| u128::from_str_radix(&digits, 16).ok().map(Self)).flatten()
    }
}

/// The machine's boot-time clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        // CLOCK_BOOTTIME advances while the machine is suspended. macOS does not have this clock,
        // but its CLOCK_MONOTONIC advances during suspension too.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(id);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Moment::since_boot(Duration::new(seconds, nanos))
    }

    fn boot(&self) -> Option<BootId> {
        // This file exists only on Linux. On other systems, the result is `None`.
        BootId::parse(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
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

    #[test]
    fn boot_id_is_stable_within_one_boot() {
        assert_eq!(BootClock.boot(), BootClock.boot());
        assert_eq!(BootClock.boot().is_some(), cfg!(target_os = "linux"));
        let id = BootId::parse("0000000a-0000-4000-8000-00000000000b\n");
        assert_eq!(id, Some(BootId(0x0000_000a_0000_4000_8000_0000_0000_000b)));
        for text in ["", "unknown", "+000000a-0000-4000-8000-00000000000b", "0000000a"] {
            assert_eq!(BootId::parse(text), None, "{text}");
        }
    }
}
