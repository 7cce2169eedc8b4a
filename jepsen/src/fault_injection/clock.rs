//! A clock for tests that runs faster or slower than the clock of the machine, and that can jump forward.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline::Moment;
use bowline::env::{BootClock, BootId, Clock};

/// A faulty clock. At first the faulty clock shows the same time as the clock of the machine. The faulty clock never
/// goes back, because a boot-time clock never does.
#[derive(Debug)]
pub(super) struct BentClock {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Time that this clock showed at the last change of its rate.
    shown: Moment,
    /// Time that the clock of the machine showed at that change.
    machine: Moment,
    /// Rate since that change: milliseconds of this clock per second of the machine's clock.
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
    /// Changes the rate from now on.
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
        // The clock of the machine is read under the mutex, so that no two threads see this clock go back.
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
