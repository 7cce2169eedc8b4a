//! Simulated time: one true timeline, and for each node a clock with an arbitrary start that runs slightly too fast
//! or too slow. This module reads no real clock.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::env::Clock;
use crate::model::Moment;

/// Maximum number of steps at one point of time. A step is a reading of a clock, as in each call, or a use of a host. A
/// program that exceeds the limit loops without sleeping: time would never advance.
const STEPS_MAX: u64 = 500_000;

/// The payload of the panic that ends a run in which a task has taken too many steps at one point of time.
pub(crate) struct TooManySteps;

/// The true time of a world, which no node can read.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    nanos: AtomicU64,
    /// Number of steps since time has last advanced.
    steps: AtomicU64,
}

impl Timeline {
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    pub(crate) fn advance_to(&self, to: Duration) {
        let to = nanos(to);
        let before = self.nanos.load(Ordering::Relaxed);
        self.nanos.store(to, Ordering::Relaxed);
        assert!(before <= to, "true time went back from {before} to {to} ns");
        if before < to {
            self.steps.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a step of a task. Panics with [`TooManySteps`] if there are too many at this time.
    pub(crate) fn step(&self) {
        let steps = self.steps.load(Ordering::Relaxed) + 1;
        self.steps.store(steps, Ordering::Relaxed);
        // Destructors of a task that has panicked may read the clock as well.
        if steps > STEPS_MAX && !thread::panicking() {
            resume_unwind(Box::new(TooManySteps));
        }
    }
}

/// The amount by which a clock is faster than true time, in parts per million. Negative is slower.
pub(crate) type DriftPpm = i64;

/// The clock of one machine. It is read several times in each turn. It needs no mutex because a world has one thread.
#[derive(Debug)]
pub(crate) struct SimClock {
    timeline: Arc<Timeline>,
    from: AtomicU64,
    shown: AtomicU64,
    drift: AtomicI64,
}

/// A linear clock: its reading `shown` at the true time `from`, both in nanoseconds, and its rate from there on.
#[derive(Clone, Copy, Debug)]
struct ClockLine {
    from: u64,
    shown: u64,
    drift: DriftPpm,
}

impl ClockLine {
    fn at(&self, now: u64) -> u64 {
        self.shown + scale(now.saturating_sub(self.from), self.drift)
    }
}

impl SimClock {
    /// Returns a clock that shows `shown` now.
    pub(crate) fn new(timeline: Arc<Timeline>, shown: Duration, drift: DriftPpm) -> Self {
        let from = AtomicU64::new(timeline.nanos());
        Self { timeline, from, shown: AtomicU64::new(nanos(shown)), drift: AtomicI64::new(drift) }
    }

    /// Changes the rate of the clock from now on. Its reading does not jump.
    pub(crate) fn set_drift(&self, drift: DriftPpm) {
        let now = self.timeline.nanos();
        self.shown.store(self.line().at(now), Ordering::Relaxed);
        self.from.store(now, Ordering::Relaxed);
        self.drift.store(drift, Ordering::Relaxed);
    }

    /// Returns the true time at which this clock will show `moment` if its rate does not change, or the current true
    /// time if `moment` has already passed. The result is never early.
    pub(crate) fn true_time_of(&self, moment: Moment) -> Duration {
        let now = self.timeline.nanos();
        let line = self.line();
        let missing = nanos(moment.elapsed_since_boot()).saturating_sub(line.at(now));
        if missing == 0 {
            return Duration::from_nanos(now);
        }
        // Divide by the rate, round up, and add a nanosecond because `at` rounds down.
        let wait = match missing.checked_mul(PARTS) {
            Some(parts) => parts.div_ceil(rate(line.drift)) + 1,
            None => u64::MAX / 4,
        };
        Duration::from_nanos(now + wait)
    }

    fn line(&self) -> ClockLine {
        ClockLine {
            from: self.from.load(Ordering::Relaxed),
            shown: self.shown.load(Ordering::Relaxed),
            drift: self.drift.load(Ordering::Relaxed),
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Moment {
        self.timeline.step();
        Moment::since_boot(Duration::from_nanos(self.line().at(self.timeline.nanos())))
    }
}

/// Number of parts in the unit of a drift.
const PARTS: u64 = 1_000_000;

/// Returns by how many millionths a clock with this drift advances for each millionth of true time.
fn rate(drift: DriftPpm) -> u64 {
    PARTS.checked_add_signed(drift).filter(|rate| *rate > 0).expect("a clock runs forwards")
}

/// Converts true time to time on a clock with this drift, both in nanoseconds.
fn scale(true_nanos: u64, drift: DriftPpm) -> u64 {
    // The same as `true_nanos * rate / PARTS`, without overflow of 64 bits.
    true_nanos / PARTS * rate(drift) + true_nanos % PARTS * rate(drift) / PARTS
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a world ends long before 584 years")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_drifts_and_never_jumps() {
        let timeline = Arc::new(Timeline::default());
        let clock = SimClock::new(timeline.clone(), Duration::from_secs(7), 50_000);
        timeline.advance_to(Duration::from_secs(10));
        assert_eq!(clock.now(), Moment::since_boot(Duration::from_millis(17_500)));
        clock.set_drift(-50_000);
        assert_eq!(clock.now(), Moment::since_boot(Duration::from_millis(17_500)));
        timeline.advance_to(Duration::from_secs(20));
        assert_eq!(clock.now(), Moment::since_boot(Duration::from_millis(27_000)));
    }

    #[test]
    fn timer_never_fires_early_by_its_own_clock() {
        let timeline = Arc::new(Timeline::default());
        for drift in [-99_000, -49_999, -1, 0, 1, 33_333, 99_000] {
            let clock = SimClock::new(timeline.clone(), Duration::from_nanos(3), drift);
            for wait in [1, 10, 999, 1_000_003, 123_456_789_123] {
                let moment = clock.now() + Duration::from_nanos(wait);
                let due = clock.true_time_of(moment);
                timeline.advance_to(due);
                assert!(clock.now() >= moment, "{drift} {wait}");
            }
        }
    }
}
