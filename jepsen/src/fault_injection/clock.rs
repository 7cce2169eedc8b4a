//! A clock that runs faster or slower than the machine's, and jumps forward.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline::Moment;
use bowline::env::{BootClock, BootId, Clock};

/// See the module. As the machine's at first. It never goes back: a clock does not, for a node.
#[derive(Debug)]
pub(super) struct BentClock {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What it showed when it was last bent,
    shown: Moment,
    /// and what the machine's showed then.
    machine: Moment,
    /// How many milliseconds have passed on it since then for each second of the machine.
    rate_permille: u32,
}

impl State {
    fn at(&self, machine: Moment) -> Moment {
        let passed = machine.since(self.machine).as_nanos();
        let nanos = passed * u128::from(self.rate_permille) / 1000;
        self.shown + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn bend(&mut self) {
        let machine = BootClock.now();
        (self.shown, self.machine) = (self.at(machine), machine);
    }
}

impl Default for BentClock {
    fn default() -> Self {
        let now = BootClock.now();
        Self { state: Mutex::new(State { shown: now, machine: now, rate_permille: 1000 }) }
    }
}

impl BentClock {
    /// From now on so many milliseconds pass in a second.
    pub(super) fn rate(&self, permille: u32) {
        let mut state = self.lock();
        state.bend();
        state.rate_permille = permille;
    }

    /// Jumps forward.
    pub(super) fn jump(&self, by: Duration) {
        let mut state = self.lock();
        state.bend();
        state.shown = state.shown + by;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for BentClock {
    fn now(&self) -> Moment {
        // The machine's is read under the lock, so that two threads do not see it go back.
        let state = self.lock();
        state.at(BootClock.now())
    }

    fn boot(&self) -> Option<BootId> {
        BootClock.boot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_clock_follows_the_configured_rate() {
        let at = |millis| Moment::since_boot(Duration::from_millis(millis));
        let mut state = State { shown: at(100), machine: at(40), rate_permille: 1000 };
        assert_eq!(state.at(at(47)), at(107));
        state.rate_permille = 1100;
        assert_eq!(state.at(at(1040)), at(1200));
        state.rate_permille = 500;
        assert_eq!(state.at(at(2040)), at(1100));
        state.rate_permille = 0;
        assert_eq!(state.at(at(9000)), at(100));
    }

    #[test]
    fn skewed_clock_never_goes_backwards_and_leads_after_a_jump() {
        let clock = BentClock::default();
        let mut last = clock.now();
        for permille in [900, 1100, 0, 3000, 1000] {
            clock.rate(permille);
            for _ in 0..100 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
        }
        clock.jump(Duration::from_secs(3600));
        assert!(clock.now().since(BootClock.now()) > Duration::from_secs(3500));
    }
}
