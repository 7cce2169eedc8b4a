//! What a judge of a simulated world sees of a node after each of its turns.

use std::sync::Arc;

use super::{Driver, Lessor, Stage};
use crate::model::{LeaseId, LogIndex, Members, NodeId, Revision, Term};

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// Its term; 0 before its cluster is founded.
    pub(crate) term: Term,
    /// For whom it has voted in that term.
    pub(crate) vote: Option<NodeId>,
    /// Whether it acts as the leader.
    pub(crate) leads: bool,
    /// The last index that it knows to be committed.
    pub(crate) commit: LogIndex,
    /// The last index that it has applied.
    pub(crate) applied: LogIndex,
    /// The revision that its readers see.
    pub(crate) revision: Revision,
    /// Whether the last change of the members that it has applied is known to a quorum, whatever stops.
    pub(crate) settled: bool,
    /// How many ticks it has counted, in this life.
    pub(crate) ticks: u64,
}

impl Driver {
    /// What it is now.
    pub(crate) fn look(&self) -> Look {
        let applied = self.machine.applied();
        let (term, vote, commit, ticks) = match &self.stage {
            Stage::Running(consensus) => {
                (consensus.term(), consensus.vote(), consensus.commit(), consensus.ticks())
            }
            Stage::Founding(_) | Stage::Restoring { .. } | Stage::Recording(_) => {
                (Term(0), None, applied, 0)
            }
        };
        Look {
            term,
            vote,
            leads: self.leading.is_some(),
            commit,
            applied,
            revision: self.shared.reader.revision(),
            settled: self.unsettled.is_none(),
            ticks,
        }
    }

    /// The last entry that the newest snapshot of this node covers.
    pub(crate) fn snapshot(&self) -> Option<LogIndex> {
        self.snapshots.newest().map(|(id, _)| id.index)
    }

    /// Whether it has handed out an entry to be applied that its log is still to write, or to write again.
    pub(crate) fn is_ahead_of_disk(&self) -> bool {
        matches!(&self.stage, Stage::Running(consensus) if consensus.is_ahead_of_disk())
    }

    /// Whether its log owes it an answer.
    pub(crate) fn owes_log(&self) -> bool {
        matches!(&self.stage, Stage::Running(consensus) if consensus.owes_log())
    }

    /// Whether, as the leader, it is handing leadership over, or there is nobody whom it could hand it to.
    pub(crate) fn gives_way(&self) -> bool {
        let Stage::Running(consensus) = &self.stage else { return true };
        consensus.is_transferring() || consensus.best_transferee().is_none()
    }

    /// Whether it has applied its whole log.
    pub(crate) fn has_applied_all(&self) -> bool {
        matches!(&self.stage, Stage::Running(it) if it.last_index() == self.machine.applied())
    }

    /// While it counts the time of leases: what it counts.
    pub(crate) fn lessor(&self) -> Option<&Lessor> {
        self.leading.as_ref()?.lessor.as_ref()
    }

    /// The digest of its replica.
    pub(crate) fn digest(&self) -> u64 {
        self.machine.digest()
    }

    /// The leases of the sessions that this node keeps alive.
    pub(crate) fn leases_kept(&self) -> Vec<LeaseId> {
        self.sessions.leases()
    }

    /// Who belongs to the cluster, as its replica has it.
    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(self.machine.members())
    }
}
