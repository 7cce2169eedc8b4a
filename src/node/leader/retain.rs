//! Decides how much history is kept, and when the leader compacts the rest.
//!
//! The leader regularly records the newest revision as a mark. The configured window is the time
//! for which history stays readable. The oldest revision to keep is the one that was the newest
//! when the window began. A new leader does not know the marks of the previous leader, so its
//! window starts empty. After a change of the leader, history is therefore kept for longer than
//! configured, but never for less time.
//!
//! ```text
//!    marks     r=40     r=55     r=90              now, r=120
//!   ────────────┼────────┼────────┼──────────────────┼───▶ time
//!                        │◀──────── window ─────────▶│
//!              compact at 55: a read at 55 sees the store as it was when the window began
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use crate::model::{Moment, Revision};

/// The amount of history that the leader keeps before it compacts automatically. Within this
/// history, reads at past revisions and watches that start at past revisions are possible.
///
/// If several limits are set, the strictest limit applies. Configure all members alike, because the
/// configuration of the current leader applies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History {
    pub(crate) window: Option<Duration>,
    pub(crate) revisions_max: Option<u64>,
    pub(crate) quota_percent: Option<u32>,
}

impl Default for History {
    /// Keeps the last 10 minutes, but at most 100,000 revisions and at most half of the quota.
    fn default() -> Self {
        Self {
            window: Some(Duration::from_secs(600)),
            revisions_max: Some(100_000),
            quota_percent: Some(50),
        }
    }
}

impl History {
    /// Disables automatic compaction, so that only [`Client::compact`](crate::Client::compact) discards history. The
    /// state then grows with every write until it reaches its quota.
    pub fn keep_all() -> Self {
        Self { window: None, revisions_max: None, quota_percent: None }
    }

    /// Keeps the history of the last `window`, which is at least one second. The time is measured
    /// by the leader's clock. The window is extended by the drift bound, so that the history is
    /// never kept for less than `window` of true time. After a change of the leader, the window
    /// starts again.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Keeps at most about `revisions` revisions, even if the window has not passed. The limit may
    /// temporarily be exceeded by an eighth.
    #[must_use]
    pub fn revisions_max(mut self, revisions: u64) -> Self {
        self.revisions_max = Some(revisions);
        self
    }

    /// Limits the size of the history to `percent` of the quota. If the history grows beyond this
    /// limit, the older half is discarded.
    #[must_use]
    pub fn quota_percent(mut self, percent: u32) -> Self {
        self.quota_percent = Some(percent);
        self
    }
}

const MARKS_A_WINDOW: u32 = 32;

/// Time after which a compaction that had no effect is proposed again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The revisions and the size of the history in the leader's replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sight {
    /// The newest revision.
    pub(crate) revision: Revision,
    /// The oldest readable revision.
    pub(crate) compacted: Revision,
    /// Bytes of rows that are needed only for history. `None` while a compaction is still freeing rows, because the
    /// number is not meaningful then.
    pub(crate) history_bytes: Option<u64>,
}

/// The marks of a leader, and the configured limits of the history.
#[derive(Debug)]
pub(crate) struct Retention {
    rules: History,
    /// Maximum number of bytes of history.
    bytes_max: u64,
    /// The marks, oldest first: a time, and the newest revision at that time.
    marks: VecDeque<(Moment, Revision)>,
    /// The compaction that was proposed, and the time after which it counts as lost.
    proposed: Option<(Revision, Moment)>,
}

impl Retention {
    /// Creates a value without marks. `stretch` extends the window by the drift bound.
    pub(crate) fn new(
        rules: &History,
        quota_bytes: u64,
        stretch: impl Fn(Duration) -> Duration,
    ) -> Self {
        let percent = u64::from(rules.quota_percent.unwrap_or(100));
        Self {
            rules: History { window: rules.window.map(stretch), ..rules.clone() },
            bytes_max: quota_bytes / 100 * percent,
            marks: VecDeque::new(),
            proposed: None,
        }
    }

    /// Returns the compaction to propose now, if one is due. A compaction that was proposed is not
    /// returned again before [`RETRY_DELAY`] has passed.
    pub(crate) fn due(&mut self, now: Moment, sight: Sight) -> Option<Revision> {
        self.mark(now, sight.revision);
        if let Some((at, lost)) = self.proposed
            && sight.compacted < at
            && now < lost
        {
            return None;
        }
        self.proposed = None;
        let rules = [self.by_window(now), self.by_revisions(sight), self.by_bytes(sight)];
        let at = rules.into_iter().flatten().max()?.min(sight.revision);
        if at <= sight.compacted || at <= Revision::FIRST {
            return None;
        }
        self.proposed = Some((at, now + RETRY_DELAY));
        Some(at)
    }

    fn mark(&mut self, now: Moment, revision: Revision) {
        let Some(window) = self.rules.window else { return };
        let due =
            self.marks.back().is_none_or(|(last, _)| now.since(*last) >= window / MARKS_A_WINDOW);
        if due {
            self.marks.push_back((now, revision));
        }
        // Afterwards the first mark is the newest mark outside the window.
        while self.marks.get(1).is_some_and(|(at, _)| now.since(*at) >= window) {
            self.marks.pop_front();
        }
    }

    fn by_window(&self, now: Moment) -> Option<Revision> {
        let (at, revision) = *self.marks.front()?;
        (now.since(at) >= self.rules.window?).then_some(revision)
    }

    fn by_revisions(&self, sight: Sight) -> Option<Revision> {
        let most = self.rules.revisions_max?;
        let kept = sight.revision.get() - sight.compacted.get().min(sight.revision.get());
        (kept > most.saturating_add(most / 8)).then(|| Revision(sight.revision.get() - most))
    }

    fn by_bytes(&self, sight: Sight) -> Option<Revision> {
        self.rules.quota_percent?;
        let (oldest, newest) = (sight.compacted.get(), sight.revision.get());
        // Round up, so that the older one of only two revisions is compacted.
        (sight.history_bytes? > self.bytes_max)
            .then(|| Revision(newest - newest.saturating_sub(oldest) / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    fn retention(rules: History) -> Retention {
        Retention::new(&rules, 1000, |window| window)
    }

    fn sight(revision: u64, compacted: u64) -> Sight {
        let (revision, compacted) = (Revision(revision), Revision(compacted));
        Sight { revision, compacted, history_bytes: Some(0) }
    }

    #[test]
    fn newest_revision_at_the_window_start_stays_readable() {
        let mut retention = retention(History::keep_all().window(Duration::from_secs(320)));
        // There is one revision and one call each second, and one mark every ten seconds.
        for second in 0..=319 {
            assert_eq!(retention.due(at(second), sight(100 + second, 0)), None, "at {second}");
        }
        assert_eq!(retention.due(at(320), sight(420, 0)), Some(Revision(100)));
        for second in 321..2000 {
            let compacted = 100 + (second - 321) / 10 * 10;
            if let Some(revision) = retention.due(at(second), sight(100 + second, compacted)) {
                let age = 100 + second - revision.get();
                assert!((320..=331).contains(&age), "{revision} is {age} s old at {second}");
            }
        }
    }

    #[test]
    fn idle_store_is_not_compacted() {
        let mut retention = retention(History::default());
        for second in 0..10_000 {
            assert_eq!(retention.due(at(second), sight(7, 7)), None);
        }
        let mut empty = Retention::new(&History::default(), 1000, |window| window);
        for second in 0..10_000 {
            assert_eq!(empty.due(at(second), sight(1, 0)), None, "there is nothing to forget");
        }
    }

    #[test]
    fn retention_marks_are_bounded() {
        let mut retention = retention(History::keep_all().window(Duration::from_secs(100)));
        for ms in 0..1_000_000u64 {
            if ms.is_multiple_of(25) {
                let now = Moment::since_boot(Duration::from_millis(ms));
                retention.due(now, sight(ms, ms / 2));
                assert!(retention.marks.len() <= MARKS_A_WINDOW as usize + 2);
            }
        }
    }

    #[test]
    fn new_leader_restarts_its_window_with_the_drift_bound() {
        let rules = History::keep_all().window(Duration::from_secs(100));
        let mut later = Retention::new(&rules, 1000, |window| window * 11 / 10);
        assert_eq!(later.due(at(1_000_000), sight(500, 3)), None);
        assert_eq!(later.due(at(1_000_109), sight(600, 3)), None);
        assert_eq!(later.due(at(1_000_110), sight(700, 3)), Some(Revision(500)));
    }

    #[test]
    fn excess_revisions_are_compacted_in_batches() {
        let mut retention = retention(History::keep_all().revisions_max(800));
        assert_eq!(retention.due(at(0), sight(900, 0)), None, "an eighth more is allowed");
        assert_eq!(retention.due(at(1), sight(901, 0)), Some(Revision(101)));
        assert_eq!(retention.due(at(2), sight(1001, 101)), None);
        assert_eq!(retention.due(at(3), sight(1002, 101)), Some(Revision(202)));
    }

    #[test]
    fn history_beyond_its_quota_share_is_halved_step_by_step() {
        let mut retention = retention(History::keep_all().quota_percent(50));
        let look = |history_bytes, compacted| Sight { history_bytes, ..sight(1000, compacted) };
        assert_eq!(retention.due(at(0), look(Some(500), 0)), None);
        assert_eq!(retention.due(at(1), look(Some(501), 0)), Some(Revision(500)));
        assert_eq!(retention.due(at(2), look(None, 500)), None, "it is still being given back");
        assert_eq!(retention.due(at(3), look(Some(501), 500)), Some(Revision(750)));
        assert_eq!(retention.due(at(4), look(Some(501), 999)), Some(Revision(1000)));
        assert_eq!(retention.due(at(5), look(Some(501), 1000)), None, "live data is no history");
    }

    #[test]
    fn failed_compaction_is_retried_after_a_pause() {
        let mut retention = retention(History::keep_all().revisions_max(8));
        assert_eq!(retention.due(at(0), sight(100, 0)), Some(Revision(92)));
        for second in 1..5 {
            assert_eq!(retention.due(at(second), sight(200, 0)), None);
        }
        assert_eq!(retention.due(at(5), sight(200, 0)), Some(Revision(192)));
        // If a compaction was applied, the next one may follow at once.
        assert_eq!(retention.due(at(6), sight(300, 192)), Some(Revision(292)));
    }

    #[test]
    fn keep_all_retention_never_compacts() {
        let mut retention = retention(History::keep_all());
        for second in 0..100_000 {
            let sight = Sight { history_bytes: Some(u64::MAX), ..sight(second * 1000 + 1, 0) };
            assert_eq!(retention.due(at(second), sight), None);
        }
    }
}
