//! Decides which slow requests are logged.
//!
//! At most one line is logged each second, so that a slow cluster does not flood the log. The line
//! contains the number of slow requests since the last line. Requests that were made before the
//! node first knew a leader are counted but not logged, because every first request waits for the
//! leader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::Moment;

/// Minimum time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Limits the log lines about slow requests. Shared by the driver and the threads of callers.
pub(crate) struct SlowLog {
    threshold: Duration,
    /// Time of the next line, in nanoseconds of the node's clock.
    next: AtomicU64,
    suppressed: AtomicU64,
    /// Time at which this node first knew a leader, in nanoseconds of its clock. 0 before.
    led_since: AtomicU64,
}

/// The decision about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slow {
    /// The request was not slow.
    No,
    /// The request was slow, but a line was logged recently, or there was no leader yet.
    Counted,
    /// The request was slow: log a line, with the number of slow requests that were not logged.
    Line {
        /// Slow requests since the last line.
        suppressed: u64,
    },
}

impl SlowLog {
    /// Creates a limiter for which a request is slow if it takes `threshold` or longer.
    pub(crate) fn new(threshold: Duration) -> Self {
        let [next, suppressed, led_since] = [0; 3].map(AtomicU64::new);
        Self { threshold, next, suppressed, led_since }
    }

    pub(crate) fn knows_leader(&self, now: Moment) {
        let (never, now) = (0, nanos(now).max(1));
        // Record only the time of the first call.
        let _ = self.led_since.compare_exchange(never, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Decides whether to log a request that ends now after `took`.
    pub(crate) fn classify(&self, took: Duration, now: Moment) -> Slow {
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
        let later = nanos(now + LINE_INTERVAL);
        // If several threads find that a line is due, only one of them logs.
        if due
            && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            return Slow::Line { suppressed: self.suppressed.swap(0, Ordering::Relaxed) };
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
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
    fn one_line_per_second_counts_suppressed_requests() {
        let log = SlowLog::new(Duration::from_millis(300));
        let at = |ms: u64| Moment::since_boot(Duration::from_millis(ms));
        let slow = Duration::from_millis(300);
        log.knows_leader(at(1));
        assert_eq!(log.classify(Duration::from_millis(299), at(5_000)), Slow::No);
        assert_eq!(log.classify(slow, at(5_000)), Slow::Line { suppressed: 0 });
        assert_eq!(log.classify(slow, at(5_001)), Slow::Counted);
        assert_eq!(log.classify(slow, at(5_999)), Slow::Counted);
        assert_eq!(log.classify(slow, at(6_000)), Slow::Line { suppressed: 2 });
        assert_eq!(log.classify(slow, at(7_000)), Slow::Line { suppressed: 0 });
    }

    #[test]
    fn requests_before_the_first_leader_are_not_logged() {
        let log = SlowLog::new(Duration::from_millis(300));
        let at = |ms: u64| Moment::since_boot(Duration::from_millis(ms));
        let slow = Duration::from_millis(300);
        assert_eq!(log.classify(slow, at(5_000)), Slow::Counted, "nobody leads yet");
        log.knows_leader(at(6_000));
        assert_eq!(log.classify(slow, at(6_299)), Slow::Counted, "it was asked for before");
        log.knows_leader(at(9_000));
        assert_eq!(log.classify(slow, at(6_300)), Slow::Line { suppressed: 0 }, "another leader");
    }
}
