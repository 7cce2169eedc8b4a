//! The clock: boot-time, monotonic, running through suspend.

use std::time::Duration;

use crate::model::Moment;

/// Tells the time. Only differences count, and only on one machine.
pub trait Clock: Send + Sync + 'static {
    /// The present moment. Never before an earlier answer.
    fn now(&self) -> Moment;

    /// Which start of the machine the moments are counted from: equal answers mean that the machine
    /// has not been started anew in between. `None` if that cannot be known.
    fn boot(&self) -> Option<BootId> {
        None
    }
}

/// Names one start of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub u128);

impl BootId {
    /// What the operating system writes: 32 hexadecimal digits, with dashes between them.
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

    fn boot(&self) -> Option<BootId> {
        // Linux only; elsewhere there is no such file.
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
    fn one_start_of_the_machine_has_one_name() {
        assert_eq!(BootClock.boot(), BootClock.boot());
        assert_eq!(BootClock.boot().is_some(), cfg!(target_os = "linux"));
        let id = BootId::parse("0000000a-0000-4000-8000-00000000000b\n");
        assert_eq!(id, Some(BootId(0x0000_000a_0000_4000_8000_0000_0000_000b)));
        for text in ["", "unknown", "+000000a-0000-4000-8000-00000000000b", "0000000a"] {
            assert_eq!(BootId::parse(text), None, "{text}");
        }
    }
}
