//! The log of slow requests: which ones deserve a line, and how many lines there may be.
//!
//! One line a second at most: a cluster that is slow altogether says so in one line, with the number of
//! those that it passed over, and not in a hundred thousand. What was asked for before a node knew of a
//! leader for the first time has waited for that, as every first request does: it is counted, and no line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::Moment;

/// How far apart two lines are at least.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// See the module. Shared by the driver and the threads of callers.
pub(crate) struct SlowLog {
    threshold: Duration,
    /// In nanoseconds of the node's clock: no line before.
    next: AtomicU64,
    passed_over: AtomicU64,
    /// When this node first knew of a leader, in nanoseconds of its clock; 0 before.
    led_since: AtomicU64,
}

/// What to do about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slow {
    /// It was quick.
    No,
    /// It was slow, and another line has just been written, or there was no leader yet.
    Counted,
    /// It was slow: write a line, which also says how many were passed over.
    Line {
        /// How many there were since the last line.
        passed_over: u64,
    },
}

impl SlowLog {
    /// A request that takes `threshold` is slow.
    pub(crate) fn new(threshold: Duration) -> Self {
        let [next, passed_over, led_since] = [0; 3].map(AtomicU64::new);
        Self { threshold, next, passed_over, led_since }
    }

    /// This node knows of a leader.
    pub(crate) fn knows_leader(&self, now: Moment) {
        let (never, now) = (0, nanos(now).max(1));
        // Only the first one counts.
        let _ = self.led_since.compare_exchange(never, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Judges a request that took so long and ends now.
    pub(crate) fn judge(&self, took: Duration, now: Moment) -> Slow {
        if took < self.threshold {
            return Slow::No;
        }
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let led_since = self.led_since.load(Ordering::Relaxed);
        if led_since == 0 || nanos(now).saturating_sub(took) < led_since {
            return Slow::Counted;
        }
        let next = self.next.load(Ordering::Relaxed);
        let due = nanos(now) >= next;
        let later = nanos(now + LINE_EVERY);
        // Of several threads that see it due, one writes.
        if due
            && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            return Slow::Line { passed_over: self.passed_over.swap(0, Ordering::Relaxed) };
        }
        self.passed_over.fetch_add(1, Ordering::Relaxed);
        Slow::Counted
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.elapsed_since_boot().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many_it_stands_for() {
        let log = SlowLog::new(Duration::from_millis(300));
        let at = |ms: u64| Moment::since_boot(Duration::from_millis(ms));
        let slow = Duration::from_millis(300);
        log.knows_leader(at(1));
        assert_eq!(log.judge(Duration::from_millis(299), at(5_000)), Slow::No);
        assert_eq!(log.judge(slow, at(5_000)), Slow::Line { passed_over: 0 });
        assert_eq!(log.judge(slow, at(5_001)), Slow::Counted);
        assert_eq!(log.judge(slow, at(5_999)), Slow::Counted);
        assert_eq!(log.judge(slow, at(6_000)), Slow::Line { passed_over: 2 });
        assert_eq!(log.judge(slow, at(7_000)), Slow::Line { passed_over: 0 });
    }

    #[test]
    fn what_waited_for_the_first_leader_of_a_nodes_life_gets_no_line() {
        let log = SlowLog::new(Duration::from_millis(300));
        let at = |ms: u64| Moment::since_boot(Duration::from_millis(ms));
        let slow = Duration::from_millis(300);
        assert_eq!(log.judge(slow, at(5_000)), Slow::Counted, "nobody leads yet");
        log.knows_leader(at(6_000));
        assert_eq!(log.judge(slow, at(6_299)), Slow::Counted, "it was asked for before");
        log.knows_leader(at(9_000));
        assert_eq!(log.judge(slow, at(6_300)), Slow::Line { passed_over: 0 }, "another leader");
    }
}
