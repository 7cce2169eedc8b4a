//! Replaces a leader whose process has ended, before the election timeout.

use raft::eraftpb::{Message, MessageType};

use super::Consensus;
use crate::consensus::contacts::EarlyCampaign;
use crate::consensus::gate::Standpoint;
use crate::consensus::status::RaftRole;
use crate::model::{LogIndex, NodeId, Term};

impl Consensus {
    /// Records that the process of `peer` has ended, as far as the connections show. Returns
    /// whether the caller should call [`Consensus::campaign_early`] after a short random delay.
    pub(crate) fn process_ended(&mut self, peer: NodeId) -> bool {
        self.contacts.ended(peer);
        if self.is_leader() || self.leader() != Some(peer) {
            return false;
        }
        // Another peer may have noticed the end of the process first and campaigned. This member
        // ignored that vote request, so process it now.
        if let Some(mut message) = self.contacts.take_ignored()
            && let Some(from) = NodeId::new(message.from)
        {
            self.shorten_commit(&mut message);
            if self.admits_candidate(from, &message) {
                self.with_raft(|raw| raw.step(message)).ok();
            }
        }
        let (term, now, pause) = (self.term(), self.ticks, self.config.election_ticks as u64);
        self.raw.raft.promotable() && self.contacts.early.begin(term, peer, now, pause)
    }

    /// Records that the process of `peer` runs: a message of `peer` has arrived, or it accepts
    /// connections.
    pub(crate) fn not_ended(&mut self, peer: NodeId) {
        if mutant!(B72) {
            return;
        }
        self.contacts.not_ended(peer);
        if self.leader() == Some(peer) {
            drop(self.contacts.take_ignored());
        }
    }

    /// Starts the campaign that [`Consensus::process_ended`] has requested, if it is still due.
    /// Returns `false` if the campaign has to wait, because entries are being written to the disk.
    pub(crate) fn campaign_early(&mut self) -> bool {
        let term = self.term();
        if !self.contacts.early.is_due(term) || self.role() != RaftRole::Follower {
            return true;
        }
        if !self.may_campaign() {
            return false;
        }
        self.contacts.early = EarlyCampaign::Done { term, at: self.ticks };
        self.campaign();
        true
    }

    /// Decides whether raft processes a vote request. If this member has evidence that the process
    /// of its leader has ended, it stops following the leader, so that raft does not ignore the
    /// request.
    pub(super) fn admits_candidate(&mut self, from: NodeId, message: &Message) -> bool {
        let kind = message.get_msg_type();
        let is_pre_vote = kind == MessageType::MsgRequestPreVote;
        let is_request = is_pre_vote || kind == MessageType::MsgRequestVote;
        if !is_request || Term(message.term) <= self.term() || self.is_leader() {
            return true;
        }
        let mine = (self.term_at(self.last()), self.last());
        let theirs = (Some(Term(message.log_term)), LogIndex(message.index));
        // Members that campaign early at the same time would split the votes. The member with the
        // longest log continues, or that with the highest id if the logs are equally long. The
        // other members wait only for a moment, because that member possibly cannot reach a quorum.
        let is_recent = self.contacts.early.is_recent(self.term(), self.ticks);
        if is_pre_vote && is_recent && self.role() == RaftRole::PreCandidate {
            if theirs == mine && from < self.config.id {
                return false;
            }
            if theirs >= mine {
                self.give_up_leader();
            }
        }
        match self.leader() {
            Some(leader) if self.contacts.has_ended(leader) || mutant!(B73) => {
                self.give_up_leader();
            }
            Some(_) if is_pre_vote && self.configuration.is_voter(from) => {
                self.contacts.ignore(from, message.clone());
            }
            _ => {}
        }
        true
    }

    /// Becomes a follower without a leader in the current term. The vote in this term is kept.
    fn give_up_leader(&mut self) {
        let term = self.term().get();
        self.with_raft(|raw| raw.raft.become_follower(term, raft::INVALID_ID));
    }
}
