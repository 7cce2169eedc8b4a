//! Compaction: the leader compacts history automatically, and every node frees what is compacted.

use super::{Driver, DriverStage};
use crate::model::{Command, Moment};
use crate::node::leader::retain::{Retention, Sight};

/// Number of versions that are freed at each tick, in addition to the versions that are freed with
/// each entry. So compacted versions are freed within seconds even without writes.
const SWEEP_ROWS: usize = 2048;

impl Driver {
    /// Called at each tick: frees compacted versions and, as the leader, compacts history.
    pub(super) fn forget_history(&mut self, now: Moment) {
        self.machine.sweep(SWEEP_ROWS);
        let DriverStage::Running(consensus) = &self.stage else { return };
        let Some(leading) = self.leader.as_mut().filter(|_| consensus.is_ready_to_lead()) else {
            return;
        };
        let (shared, settings) = (&self.shared, &self.shared.settings);
        // A new leader does not know the marks of the earlier leader.
        let retention = leading.retention.get_or_insert_with(|| {
            let stretch = |window| settings.drift.wait_for(window);
            Retention::new(&settings.history, settings.quota_bytes, stretch)
        });
        let sight = Sight {
            revision: shared.reader.revision(),
            compacted: shared.reader.compacted(),
            history_bytes: self.machine.is_swept().then(|| shared.reader.history_bytes()),
        };
        let Some(revision) = retention.due(now, sight) else { return };
        tracing::debug!(%revision, "compacting history");
        self.shared.meters.compactions_total.one();
        // If this compaction fails, a later tick proposes it again.
        let deadline = Some(now + self.shared.settings.call_deadline);
        self.to_leader.propose(Command::Compact(revision), deadline, now);
    }
}
