//! Sends this node's requests and questions to the leader, and processes the answers.

use super::{Driver, ENTRY_BYTES};
use crate::env::SendOutcome;
use crate::model::{Command, Lane, Moment, NodeId, PeerMessage};
use crate::node::leader_queries::rounds::{Answer, LeaderQuery, QueryOrigin, Question};
use crate::node::requests::proposals::Batch;

impl Driver {
    /// Adds an internal request of the node without a deadline. Returns the number of the request.
    pub(super) fn propose_until_applied(&mut self, command: Command) -> u64 {
        self.to_leader.propose(command, None, self.shared.now())
    }

    /// If another node is the leader, sends this node's requests to it.
    pub(super) fn forward_requests(&mut self, now: Moment) {
        let Some(leader) = self.contact.leader() else { return };
        if leader == self.shared.settings.node || self.to_leader.is_held(now) {
            return;
        }
        while let Some(Batch { proposal, fresh }) = self.to_leader.proposals.batch(now, ENTRY_BYTES)
        {
            let seqs: Vec<u64> = proposal.requests.iter().map(|(seq, _)| *seq).collect();
            let message = PeerMessage::Propose(proposal);
            if self.post(leader, Lane::Bulk, message) != SendOutcome::Queued {
                self.to_leader.proposals.put_back(seqs, &fresh);
                self.to_leader.hold(now);
                return;
            }
        }
    }

    /// Sends this node's questions to the leader: for reads, and for leases.
    pub(super) fn ask(&mut self, now: Moment) {
        let Some(leader) = self.contact.leader() else { return };
        if self.to_leader.is_held(now) {
            return;
        }
        while let Some(round) = self.to_leader.reads.ask(now) {
            self.put_question(leader, round, Question::Read);
        }
        while let Some((round, question)) = self.to_leader.lease_calls.ask(now) {
            self.put_question(leader, round, Question::Leases(question));
        }
        while let Some((round, leases)) = self.sessions.due(now) {
            self.put_question(leader, round, Question::Renew(leases));
        }
    }

    fn put_question(&mut self, leader: NodeId, round: u64, question: Question) {
        let (node, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        let query = LeaderQuery { origin: QueryOrigin { node, incarnation, round }, question };
        if leader != node {
            return self.send(leader, query.into_message());
        }
        match self.renew_at_once(&query.question) {
            Some(answer) => self.take_answer(round, answer),
            None => self.rounds.join(query),
        }
    }

    /// Processes the leader's answer to a question of this node.
    pub(super) fn take_answer(&mut self, round: u64, answer: Answer) {
        match answer {
            Answer::Read(index) => {
                self.to_leader.reads.answered(round, index, self.shared.now());
                self.to_leader.reads.applied(self.machine.applied());
            }
            Answer::Renewed { renewed, gone } => self.renewed(round, &renewed, &gone),
            Answer::Leases { living, gone } => {
                self.to_leader.lease_calls.answered(round, &living, &gone);
            }
        }
    }
}
