//! How it stands, as far as it knows itself.

use super::*;

impl Consensus {
    /// Its part.
    pub(crate) fn role(&self) -> Role {
        self.raw.raft.state.into()
    }

    /// Whether it leads, as far as it knows.
    pub(crate) fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    /// Whether it leads and has applied an entry of its own term: everything that was committed
    /// before is applied as well.
    pub(crate) fn is_ready_to_lead(&self) -> bool {
        self.is_leader() && self.raw.raft.apply_to_current_term()
    }

    /// Whether it is handing leadership to another member.
    pub(crate) fn is_transferring(&self) -> bool {
        self.raw.raft.lead_transferee.is_some()
    }

    /// Whether the log has groups that it has not proven durable.
    pub(crate) fn owes_log(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether an entry was handed out to be applied that is on its way to the disk, or is replaced on its way there.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_ahead_of_disk(&self) -> bool {
        self.oldest_pending().is_some_and(|first| first <= self.handed)
    }

    /// The term.
    pub(crate) fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// For whom it has voted in this term.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn vote(&self) -> Option<NodeId> {
        NodeId::new(self.raw.raft.vote)
    }

    /// Forgets the rounds that are under way, as raft does with some.
    #[cfg(test)]
    pub(crate) fn forget_rounds(&mut self) {
        let rounds = &mut self.raw.raft.read_only;
        rounds.pending_read_index.clear();
        rounds.read_index_queue.clear();
    }

    /// How many ticks of the clock have passed since the start.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Who leads the term, if known.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        NodeId::new(self.raw.raft.leader_id)
    }

    /// The newest entry known to be committed.
    pub(crate) fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// Who should lead in this member's place: the voter, also after a replacement that is under way,
    /// heard of within an election timeout, whose log is the longest. `None`: there is nobody, or this member does not lead.
    pub(crate) fn best_transferee(&self) -> Option<NodeId> {
        let peers = self.peers();
        let fits = |peer: &&PeerStatus| {
            peer.active
                && peer.state != PeerState::Snapshot
                && self.configuration.voters.contains(&peer.id)
        };
        let fit = peers.iter().filter(fits);
        // Among equals the lowest id.
        fit.max_by_key(|peer| (peer.matched, std::cmp::Reverse(peer.id))).map(|peer| peer.id)
    }

    /// All of it.
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

    /// As a leader: how far the others are, in the order of their ids.
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

    /// Whether a member was heard of within an election timeout.
    pub(super) fn is_active(&self, id: NodeId) -> bool {
        let since = self.heard.get(&id).map(|heard| self.ticks - heard);
        since.is_some_and(|since| since < self.config.election_ticks as u64)
    }

    pub(super) fn applied_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.applied)
    }

    /// The bytes of entries in memory.
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

    fn role(&self) -> Role {
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
        // Raft's answer for an index that it does not have.
        (term != 0).then_some(Term(term))
    }
}
