//! Forgetting: the leader compacts history by itself, and every node gives back what is compacted.

use super::*;
use crate::node::retain::Sight;

/// Versions whose memory is given back at each tick, beside what each entry does: what is compacted goes
/// within seconds, also where nobody writes.
const SWEEP_ROWS: usize = 2048;

impl Driver {
    /// Once a tick.
    pub(super) fn forget_history(&mut self, now: Moment) {
        self.machine.sweep(SWEEP_ROWS);
        let Stage::Running(consensus) = &self.stage else { return };
        if self.leading.is_none() || !consensus.is_ready_to_lead() {
            self.retention = None;
            return;
        }
        let (shared, term) = (&self.shared, consensus.term());
        let settings = &shared.settings;
        let (_, retention) = match &mut self.retention {
            Some(counting) if counting.0 == term => counting,
            // A new leader knows nothing of the time before.
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
        tracing::debug!(%revision, "history is compacted");
        self.shared.meters.compactions_total.one();
        let command = Command::Compact(revision);
        let trace = RequestTrace::begin(&command, now);
        // It is proposed anew if nothing came of it.
        let deadline = Some(now + self.shared.settings.call_deadline);
        self.proposals.add(Write { command, deadline, bytes: 0, reply: ReplyTo::Nobody, trace });
    }
}
