//! Queries for the state of the consensus: role, leader, term, indexes and peers, as this member
//! knows them.

use raft::StateRole;

use super::Consensus;
use crate::consensus::gate::Standpoint;
#[cfg(test)]
use crate::consensus::status::Status;
use crate::consensus::status::{PeerState, PeerStatus, RaftRole};
use crate::model::{LogIndex, MemberRole, NodeId, Term};

impl Consensus {
    pub(crate) fn role(&self) -> RaftRole {
        self.raw.raft.state.into()
    }

    /// Returns whether this member believes that it is the leader.
    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Returns whether this member is the leader and has applied an entry of its own term. This
    /// implies that all entries committed in earlier terms are applied as well.
    pub(crate) fn is_ready_to_lead(&self) -> bool {
        self.is_leader() && self.raw.raft.apply_to_current_term()
    }

    /// Returns whether this member is transferring the leadership to another member.
    pub(crate) fn is_transferring(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// Returns whether the log has groups that are not proven durable.
    pub(crate) fn owes_log(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// Returns the leader of the term, if known.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        NodeId::new(self.raw.raft.leader_id)
    }

    /// Returns the highest index known to be committed.
    pub(crate) fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// Returns the best member to transfer the leadership to: the voter with the longest log that
    /// was heard from within an election timeout. The member must still be a voter after a
    /// replacement in progress. Returns `None` if there is none, or if this member is not the
    /// leader.
    pub(crate) fn best_transferee(&self) -> Option<NodeId> {
        let peers = self.peers();
        let fits = |peer: &&PeerStatus| {
            peer.active
                && peer.state != PeerState::Snapshot
                && self.configuration.voters.contains(&peer.id)
        };
        let fit = peers.iter().filter(fits);
        // If several voters have equally long logs, the one with the lowest id is chosen.
        fit.max_by_key(|peer| (peer.matched, std::cmp::Reverse(peer.id))).map(|peer| peer.id)
    }

    /// Returns the complete status.
    #[cfg(test)]
    pub(in crate::consensus) fn status(&self) -> Status {
        Status {
            id: self.config.id,
            role: self.role(),
            term: self.term(),
            leader: self.leader(),
            commit: self.commit(),
            applied: self.applied_index(),
            last: self.last(),
            persisted: LogIndex(self.raw.raft.raft_log.persisted),
            ready_to_lead: self.is_ready_to_lead(),
            transferring: self.raw.raft.lead_transferee.and_then(NodeId::new),
            peers: self.peers(),
        }
    }

    /// As the leader, returns the progress of the other members in the order of their ids.
    pub(crate) fn peers(&self) -> Vec<PeerStatus> {
        if !self.is_leader() {
            return Vec::new();
        }
        let status = |id: NodeId| {
            let progress = self.raw.raft.prs().get(id.get())?;
            let role = match self.configuration.is_voter(id) {
                true => MemberRole::Voter,
                false => MemberRole::Learner,
            };
            let (matched, state) = (LogIndex(progress.matched), progress.state.into());
            Some(PeerStatus { id, role, matched, active: self.is_active(id), state })
        };
        let others = self.configuration.ids().into_iter().filter(|id| *id != self.config.id);
        others.filter_map(status).collect()
    }

    /// Returns whether a member was heard from within an election timeout.
    pub(super) fn is_active(&self, id: NodeId) -> bool {
        let since = self.contacts.received.get(&id).map(|received| self.ticks - received);
        since.is_some_and(|since| since < self.config.election_ticks as u64)
    }

    pub(super) fn applied_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.applied)
    }

    /// Returns the memory of the cached entries in bytes.
    #[cfg(test)]
    pub(in crate::consensus) fn cached_bytes(&self) -> usize {
        self.raw.store().cached_bytes()
    }
}

impl Standpoint for Consensus {
    fn id(&self) -> NodeId {
        self.config.id
    }

    fn is_removed(&self, node: NodeId) -> bool {
        self.members.is_removed(node)
    }

    fn role(&self) -> RaftRole {
        self.role()
    }

    fn term(&self) -> Term {
        self.term()
    }

    fn leader(&self) -> Option<NodeId> {
        self.leader()
    }

    fn commit(&self) -> LogIndex {
        self.commit()
    }

    fn last(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.last_index())
    }

    fn term_at(&self, index: LogIndex) -> Option<Term> {
        let term = self.raw.raft.raft_log.term(index.get()).ok()?;
        // Raft returns term 0 if its log does not contain the index.
        (term != 0).then_some(Term(term))
    }
}
