//! Compaction: the leader compacts history automatically, and every node frees what is compacted.

use super::*;
use crate::node::retain::Sight;

/// Number of versions that are freed at each tick, in addition to the versions that are freed with
/// each entry. So compacted versions are freed within seconds even without writes.
const SWEEP_ROWS: usize = 2048;

impl Driver {
    /// Called at each tick: frees compacted versions and, as the leader, compacts history.
    pub(super) fn forget_history(&mut self, now: Moment) {
        self.machine.sweep(SWEEP_ROWS);
        let DriverStage::Running(consensus) = &self.stage else { return };
        if self.leading.is_none() || !consensus.is_ready_to_lead() {
            self.retention = None;
            return;
        }
        let (shared, term) = (&self.shared, consensus.term());
        let settings = &shared.settings;
        let (_, retention) = match &mut self.retention {
            Some(counting) if counting.0 == term => counting,
            // A new leader does not know the marks of the earlier leader.
            other => other.insert((
                term,
                Retention::new(&settings.history, settings.quota_bytes, |window| {
                    settings.drift.wait_for(window)
                }),
            )),
        };
        let sight = Sight {
            revision: shared.reader.revision(),
            compacted: shared.reader.compacted(),
            history_bytes: self.machine.is_swept().then(|| shared.reader.history_bytes()),
        };
        let Some(revision) = retention.due(now, sight) else { return };
        tracing::debug!(%revision, "compacting history");
        self.shared.meters.compactions_total.one();
        let command = Command::Compact(revision);
        let trace = RequestTrace::begin(&command, now);
        // If this compaction fails, a later tick proposes it again.
        let deadline = Some(now + self.shared.settings.call_deadline);
        self.proposals.add(Write { command, deadline, bytes: 0, reply: ReplyTo::Nobody, trace });
    }
}
