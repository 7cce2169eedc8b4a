//! The timers of the driver, and the measured durations of log writes.

use std::time::Duration;

use crate::metrics::Histogram;
use crate::model::Moment;
use crate::node::health::RecentSyncs;
use crate::node::health::log_times::LogTimes;

/// The timers of the driver and the times of its log.
pub(super) struct Timing {
    pub(super) log_times: LogTimes,
    /// Time since which a request to the log has been unanswered.
    pub(super) log_owes_since: Option<Moment>,
    syncs: RecentSyncs,
    next_tick: Moment,
    next_hello: Moment,
}

impl Timing {
    /// Returns timers that are due at once.
    pub(super) fn new(syncs: Histogram, now: Moment) -> Self {
        Self {
            log_times: LogTimes::default(),
            log_owes_since: None,
            syncs: RecentSyncs::new(syncs, now),
            next_tick: now,
            next_hello: now,
        }
    }

    pub(super) fn next_tick(&self) -> Moment {
        self.next_tick
    }

    /// Returns whether a tick is due, and sets the time of the next one. At most one tick is due in each turn. After
    /// a stall, missed ticks are skipped.
    pub(super) fn is_tick_due(&mut self, now: Moment, every: Duration) -> bool {
        if now < self.next_tick {
            return false;
        }
        let has_stood_still = now.since(self.next_tick) > every && !mutant!(B44);
        self.next_tick = if has_stood_still { now + every } else { self.next_tick + every };
        true
    }

    /// Returns whether an introduction is due, and sets the time of the next one.
    pub(super) fn is_hello_due(&mut self, now: Moment, every: Duration) -> bool {
        let is_due = now >= self.next_hello;
        if is_due {
            self.next_hello = now + every;
        }
        is_due
    }

    /// Returns whether a request to the log has been unanswered for longer than `patience`.
    pub(super) fn is_log_stuck(&self, now: Moment, patience: Duration) -> bool {
        self.log_owes_since.is_some_and(|since| now.since(since) > patience)
    }

    /// Returns the duration of the slowest recent sync.
    pub(super) fn slowest_sync(&mut self, syncs: Histogram, now: Moment) -> Duration {
        self.syncs.slowest(syncs, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_ticks_are_skipped_after_a_stall() {
        let at = |ms| Moment::since_boot(Duration::from_millis(ms));
        let every = Duration::from_millis(50);
        let syncs = crate::metrics::Meters::default().log_sync_seconds.histogram();
        let mut timing = Timing::new(syncs, at(0));
        let mut ticks = |ms| timing.is_tick_due(at(ms), every);
        assert!(ticks(0));
        assert!(!ticks(49));
        assert!(ticks(70), "20 ms late");
        assert!(ticks(100), "and the next in time");
        assert!(ticks(1_000));
        assert!(!ticks(1_049), "the missed ticks are not made up for");
        assert!(ticks(1_050));
    }
}
