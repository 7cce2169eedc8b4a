//! Sends the requests of this node to the leader: writes, reads, renewals.

use super::*;

impl Driver {
    pub(super) fn hold(&mut self, now: Moment) {
        self.hold_until = self.hold_until.max(now + self.shared.settings.heartbeat / 4);
    }

    /// Adds an internal request of the node without a deadline. Returns the number of the request.
    pub(super) fn insist(&mut self, command: Command) -> u64 {
        let trace = RequestTrace::begin(&command, self.shared.now());
        let (deadline, reply) = (None, ReplyTo::Nobody);
        self.proposals.add(Write { command, deadline, bytes: 0, reply, trace })
    }

    /// If another node is the leader, sends this node's requests to it.
    pub(super) fn forward_requests(&mut self, now: Moment) {
        let Some(leader) = self.known_leader.1 else { return };
        if leader == self.shared.settings.node || now < self.hold_until {
            return;
        }
        while let Some(Batch { proposal, fresh }) = self.proposals.batch(now, ENTRY_BYTES) {
            let seqs: Vec<u64> = proposal.requests.iter().map(|(seq, _)| *seq).collect();
            let message = PeerMessage::Propose(proposal);
            if self.post(leader, Lane::Bulk, message) != SendOutcome::Queued {
                self.proposals.put_back(seqs, &fresh);
                self.hold(now);
                return;
            }
        }
    }

    /// Sends this node's questions to the leader: for reads, and for the renewal of leases.
    pub(super) fn ask(&mut self, now: Moment) {
        let Some(leader) = self.known_leader.1 else { return };
        if now < self.hold_until {
            return;
        }
        let (me, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        while let Some(round) = self.reads.ask(now) {
            if leader == me {
                self.rounds.join(ReadOrigin::Local { round });
            } else {
                self.send(leader, PeerMessage::ReadAsk { round, incarnation });
            }
        }
        while let Some(question) = self.lease_calls.ask(now) {
            if leader == me {
                self.rounds.join(ReadOrigin::Leases { node: me, incarnation, question });
            } else {
                let LeaseQuestion { round, renew, look } = question;
                self.send(leader, PeerMessage::LeaseAsk { round, incarnation, renew, look });
            }
        }
        while let Some((round, leases)) = self.sessions.due(now) {
            if leader == me {
                self.rounds.join(ReadOrigin::Renewal { node: me, incarnation, round, leases });
            } else {
                self.send(leader, PeerMessage::Renew { round, incarnation, leases });
            }
        }
    }
}
