//! The state that only the simulation and tests look at.

use super::Consensus;
use crate::model::NodeId;

impl Consensus {
    /// Returns whether a committed entry that a turn has returned is still being written to the
    /// disk, or is being replaced on the disk.
    pub(crate) fn is_ahead_of_disk(&self) -> bool {
        self.oldest_pending().is_some_and(|first| first <= self.handed)
    }

    /// Returns the member that this one has voted for in this term.
    pub(crate) fn vote(&self) -> Option<NodeId> {
        NodeId::new(self.raw.raft.vote)
    }

    /// Drops the rounds in progress, as raft does in some situations.
    #[cfg(test)]
    pub(crate) fn forget_rounds(&mut self) {
        let rounds = &mut self.raw.raft.read_only;
        rounds.pending_read_index.clear();
        rounds.read_index_queue.clear();
    }

    /// Returns the number of ticks since the start.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks
    }
}
