//! A summary of the state of a node, which the simulator checks after each turn.

use std::sync::Arc;

use super::{Driver, DriverStage};
use crate::model::{LeaseId, LogIndex, Members, NodeId, Revision, Term};

/// A summary of the state of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// Current term; 0 before the cluster is founded.
    pub(crate) term: Term,
    /// The candidate for which the node has voted in that term.
    pub(crate) vote: Option<NodeId>,
    /// Whether the node acts as the leader.
    pub(crate) leads: bool,
    /// Index of the last entry that the node knows to be committed.
    pub(crate) commit: LogIndex,
    /// Index of the last applied entry.
    pub(crate) applied: LogIndex,
    /// The revision that is visible to readers of the node.
    pub(crate) revision: Revision,
    /// Whether a quorum has durably recorded that the last applied membership change is committed.
    pub(crate) settled: bool,
    /// Number of ticks in this incarnation.
    pub(crate) ticks: u64,
}

impl Driver {
    pub(crate) fn look(&self) -> Look {
        let applied = self.machine.applied();
        let (term, vote, commit, ticks) = match &self.stage {
            DriverStage::Running(consensus) => {
                (consensus.term(), consensus.vote(), consensus.commit(), consensus.ticks())
            }
            DriverStage::Founding(_)
            | DriverStage::Restoring { .. }
            | DriverStage::Recording(_) => (Term(0), None, applied, 0),
        };
        Look {
            term,
            vote,
            leads: self.leader.is_some(),
            commit,
            applied,
            revision: self.shared.reader.revision(),
            settled: self.membership.is_settled(),
            ticks,
        }
    }

    /// Returns the last entry that the newest snapshot covers.
    pub(crate) fn snapshot(&self) -> Option<LogIndex> {
        self.snapshots.own.newest().map(|(id, _)| id.index)
    }

    /// Returns whether the node has released an entry for applying before its own log has written
    /// the entry.
    pub(crate) fn is_ahead_of_disk(&self) -> bool {
        matches!(&self.stage, DriverStage::Running(consensus) if consensus.is_ahead_of_disk())
    }

    /// Returns whether a request to the node's log is unanswered.
    pub(crate) fn owes_log(&self) -> bool {
        matches!(&self.stage, DriverStage::Running(consensus) if consensus.owes_log())
    }

    /// Returns whether the node is transferring leadership, or has no possible successor.
    pub(crate) fn is_transferring_or_cannot(&self) -> bool {
        let DriverStage::Running(consensus) = &self.stage else { return true };
        consensus.is_transferring() || consensus.best_transferee().is_none()
    }

    /// Returns whether the node has applied its whole log.
    pub(crate) fn has_applied_all(&self) -> bool {
        matches!(&self.stage, DriverStage::Running(it) if it.last_index() == self.machine.applied())
    }

    pub(crate) fn digest(&self) -> u64 {
        self.machine.digest()
    }

    /// Returns the leases of the sessions that this node keeps alive.
    pub(crate) fn leases_kept(&self) -> Vec<LeaseId> {
        self.sessions.leases()
    }

    /// Returns the members, as of the entries that the node has applied.
    pub(crate) fn members(&self) -> Arc<Members> {
        Arc::clone(self.machine.members())
    }
}
