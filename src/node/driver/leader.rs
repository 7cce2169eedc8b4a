//! Handles changes of the leader. On the leader, proposes entries and confirms its leadership.

use super::leader_state::LeaderState;
use super::{Driver, DriverStage, ENTRY_BYTES, quota};
use crate::consensus::RoundId;
use crate::model::{
    Command, Item, LogIndex, Moment, NodeId, PeerMessage, Proposal, ProposeRejection, RequestId,
    Term,
};
use crate::node::leader::lessor::{Lessor, ends_leases, lease_grace};
use crate::node::leader_queries::rounds::{Answer, LeaderQuery, QueryOrigin, Question};
use crate::node::requests::answer::CallError;
use crate::node::requests::proposals::Batch;
use crate::node::requests::quota::growth;
use crate::{codec, consensus};

impl Driver {
    /// Detects changes of the leader, and informs the parts that depend on the leader.
    pub(super) fn follow_leader(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        let known = (consensus.term(), consensus.leader());
        let leads = consensus.is_leader();
        if !self.contact.is_known(known) || leads != self.leader.is_some() {
            let stands = matches!(
                consensus.role(),
                consensus::RaftRole::Candidate | consensus::RaftRole::Leader
            );
            self.leader_changed(known, stands, leads, now);
        }
        self.start_lessor();
    }

    fn leader_changed(
        &mut self,
        known: (Term, Option<NodeId>),
        stands: bool,
        leads: bool,
        now: Moment,
    ) {
        let change = self.contact.observe(known, stands);
        let meters = &self.shared.meters;
        meters.elections_total.add(u64::from(change.is_new_candidacy));
        meters.leader_changes_total.add(u64::from(change.has_another_leader));
        if known.1.is_some() {
            self.shared.slow.knows_leader(now);
            self.shared.slow_applies.knows_leader(now);
        }
        self.stop_leading();
        if leads {
            tracing::info!(node = self.my_name(), term = %known.0, "became leader");
            // The election may have happened after the turn began, so read the clock again.
            self.leader = Some(LeaderState::new(self.shared.now()));
        } else if let Some(leader) = known.1.filter(|_| change.has_another_leader) {
            let leader = self.membership.roster.name_of(leader);
            tracing::info!(node = self.my_name(), leader, term = %known.0, "following leader");
        }
        self.to_leader.leader_changed(now);
        if let Some(leader) = known.1.filter(|leader| *leader != self.shared.settings.node) {
            self.to_leader.transferred(leader);
        }
        self.publish_status();
        self.record_sample(now);
    }

    pub(super) fn start_lessor(&mut self) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        if self.leader.is_none() || self.shared.lessor.is_counting() {
            return;
        }
        if consensus.is_ready_to_lead() {
            let (drift, now) = (self.shared.settings.drift, self.shared.now());
            self.shared.lessor.start(Lessor::new(drift, now, self.machine.leases()));
        }
    }

    pub(super) fn stop_leading(&mut self) {
        self.shared.lessor.stop();
        let Some(leading) = self.leader.take() else { return };
        self.shared.replica.stop_local_linearizable_reads();
        if let Some(seq) = leading.raising {
            self.to_leader.proposals.withdraw(seq);
        }
        self.membership.stopped_leading();
        // The requests of this node are sent to the new leader.
        let me = self.shared.settings.node;
        let waiting = leading.forwarded.iter().chain(leading.held_back.values());
        for proposal in waiting.filter(|proposal| proposal.node != me) {
            self.reject_forwarded(proposal, ProposeRejection::NotLeader(self.contact.leader()));
        }
        for LeaderQuery { origin, question } in self.rounds.end() {
            match question {
                Question::Read => self.reply(origin, Answer::Read(None)),
                // No answer is needed: the nodes that sent these questions repeat them.
                Question::Renew(_) | Question::Leases(_) => {}
            }
        }
    }

    /// As the leader: packs the requests of this node and of the other nodes into entries.
    pub(super) fn propose(&mut self, now: Moment) {
        let Some(leading) = &mut self.leader else { return };
        let mut waiting: Vec<Batch> = std::mem::take(&mut leading.forwarded)
            .into_iter()
            .map(|proposal| Batch { proposal, fresh: Vec::new() })
            .collect();
        if !self.to_leader.is_held(now) {
            while let Some(batch) = self.to_leader.proposals.batch(now, ENTRY_BYTES) {
                waiting.push(batch);
            }
        }
        self.hold_back_lease_ends(&mut waiting, now);
        self.hold_back_growth(&mut waiting, now);
        let Some(leading) = &mut self.leader else { return };
        let (mut entries, mut bytes) = (vec![Vec::new()], 0);
        for mut batch in waiting {
            let Proposal { node, incarnation, .. } = batch.proposal;
            batch.proposal.requests.retain(|(seq, _)| {
                !leading.in_log.contains(&RequestId { node, incarnation, seq: *seq })
            });
            if batch.proposal.requests.is_empty() {
                continue;
            }
            if bytes >= ENTRY_BYTES {
                bytes = 0;
                entries.push(Vec::new());
            }
            bytes += codec::proposal_len(&batch.proposal);
            entries.last_mut().expect("there is one").push(batch);
        }
        for entry in entries.into_iter().filter(|entry| !entry.is_empty()) {
            self.propose_entry(entry, now);
        }
    }

    /// As a new leader: holds back the requests that may end leases of earlier terms. The requests
    /// wait until leases are counted and the leader lease of a former leader has ended.
    fn hold_back_lease_ends(&mut self, waiting: &mut Vec<Batch>, now: Moment) {
        let Some(leading) = &mut self.leader else { return };
        let held_back = std::mem::take(&mut leading.held_back).into_values();
        waiting.extend(held_back.map(|proposal| Batch { proposal, fresh: Vec::new() }));
        let is_new = now.since(leading.since) <= lease_grace(self.shared.settings.drift);
        if !is_new && self.shared.lessor.is_counting() {
            return;
        }
        for Batch { proposal, fresh } in waiting {
            let (node, incarnation) = (proposal.node, proposal.incarnation);
            let waits = |(_, command): &mut (u64, Command)| {
                let ends = self.shared.lessor.with(|lessor| lessor.may_end_inherited(command));
                ends.unwrap_or_else(|| ends_leases(command))
            };
            for request in proposal.requests.extract_if(.., waits) {
                // Remove the request from `fresh`: a failed proposal of the other requests must not
                // reject it.
                let seq = request.0;
                fresh.retain(|of| *of != seq);
                let (window, requests) = (proposal.window.clone(), vec![request]);
                let held_back = Proposal { node, incarnation, window, requests };
                leading.held_back.entry(RequestId { node, incarnation, seq }).or_insert(held_back);
            }
        }
    }

    pub(super) fn propose_entry(&mut self, batches: Vec<Batch>, now: Moment) {
        let (mut items, mut fresh) = (Vec::new(), Vec::new());
        for batch in batches {
            items.push(Item::Proposal(batch.proposal));
            fresh.push(batch.fresh);
        }
        match self.propose_items(&items) {
            Ok(index) => {
                let Some(leading) = &mut self.leader else { return };
                for item in items {
                    let Item::Proposal(Proposal { node, incarnation, requests, .. }) = item else {
                        continue;
                    };
                    for (seq, command) in requests {
                        tracing::trace!(
                            %node, request = seq, %index,
                            "request appended to an entry"
                        );
                        let len_of = |key: &[u8]| {
                            let coming = leading.in_log.values().len_of(key);
                            coming.max(self.shared.reader.value_len(key))
                        };
                        let more = growth(&command, &len_of).unwrap_or(0);
                        self.shared.lessor.with(|lessor| lessor.proposed(&command, index));
                        let id = RequestId { node, incarnation, seq };
                        leading.proposed(id, index, &command, more);
                    }
                }
            }
            Err(why) => {
                for (item, fresh) in items.into_iter().zip(fresh) {
                    let Item::Proposal(proposal) = item else { continue };
                    if proposal.node == self.shared.settings.node {
                        self.not_proposed(&proposal, &fresh, why, now);
                    } else {
                        self.reject_forwarded(&proposal, why);
                    }
                }
            }
        }
    }

    pub(super) fn propose_items(&mut self, items: &[Item]) -> Result<LogIndex, ProposeRejection> {
        match self.peers.digests.is_undecided() {
            true => Err(ProposeRejection::Diverged),
            false => self.propose_entry_of(items),
        }
    }

    /// Proposes an entry without requests, even while replicas differ. When a replica applies such
    /// an entry, the proposer of the entry had applied all earlier membership changes.
    pub(super) fn propose_nothing(&mut self) -> Result<LogIndex, ProposeRejection> {
        match &self.stage {
            DriverStage::Running(consensus) if consensus.is_changing() => {
                Err(ProposeRejection::Busy)
            }
            _ => self.propose_entry_of(&[]),
        }
    }

    fn propose_entry_of(&mut self, items: &[Item]) -> Result<LogIndex, ProposeRejection> {
        let DriverStage::Running(consensus) = &mut self.stage else {
            return Err(ProposeRejection::NotLeader(None));
        };
        let (term, index) = consensus.propose(codec::encode_items(items))?;
        self.proposed(term, index);
        Ok(index)
    }

    /// Returns this node's own requests that could not be proposed.
    pub(super) fn not_proposed(
        &mut self,
        proposal: &Proposal,
        fresh: &[u64],
        why: ProposeRejection,
        now: Moment,
    ) {
        self.to_leader.proposals.put_back(proposal.requests.iter().map(|(seq, _)| *seq), fresh);
        self.to_leader.hold(now);
        match why {
            // Another leader is or will be elected, or the log is busy. These reasons are
            // temporary, so the requests are repeated, like requests of other nodes.
            ProposeRejection::NotLeader(_) | ProposeRejection::Busy => {}
            // Reject a request that no log can contain. A request that an earlier leader may have
            // logged stays open.
            ProposeRejection::Diverged
            | ProposeRejection::QuotaExceeded
            | ProposeRejection::NoSpace => {
                let refuse = |seq: &u64| {
                    self.to_leader.proposals.reject_unproposed(*seq, CallError::Diverged)
                };
                let refused = fresh.iter().filter_map(refuse).collect();
                self.answer_callers(refused);
            }
        }
    }

    /// Reports to another node that its requests were not proposed.
    pub(super) fn reject_forwarded(&mut self, proposal: &Proposal, why: ProposeRejection) {
        let seqs = proposal.requests.iter().map(|(seq, _)| *seq).collect();
        let incarnation = proposal.incarnation;
        self.shared.meters.proposals_refused_total.at(quota::reason(why)).one();
        self.send(proposal.node, PeerMessage::ProposeRejected { incarnation, seqs, why });
    }

    /// As the leader: answers a question of another node from the leader lease, or adds it to the
    /// next round. A node that is not the leader replies only to reads: the origins of other
    /// questions repeat them until a leader answers.
    pub(super) fn take_question(&mut self, origin: QueryOrigin, question: Question) {
        let query = LeaderQuery { origin, question };
        let Some(leading) = &mut self.leader else {
            if query.question == Question::Read {
                self.reply(origin, Answer::Read(None));
            }
            return;
        };
        mutant!(
            B22,
            if matches!(query.question, Question::Renew(_)) {
                leading.renewals.entry(LogIndex(0)).or_default().push(query);
                return self.evaluate_renewals();
            }
        );
        match self.renew_at_once(&query.question) {
            Some(answer) => self.reply(origin, answer),
            None => self.rounds.join(query),
        }
    }

    /// Answers a question of any node, which may be this one.
    pub(super) fn reply(&mut self, origin: QueryOrigin, answer: Answer) {
        if origin.node == self.shared.settings.node {
            self.take_answer(origin.round, answer);
        } else {
            self.send(origin.node, origin.message(answer));
        }
    }

    /// As the leader: starts a round of the consensus for the waiting questions.
    pub(super) fn start_rounds(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        while self.leader.is_some()
            && let Some(round) = self.rounds.start(now)
        {
            self.shared.meters.read_rounds_total.one();
            if !consensus.read_round(round) {
                self.rounds.not_started(round);
                return;
            }
        }
    }

    /// Answers the questions of a round in which a quorum has confirmed that this node leads.
    pub(super) fn confirmed(&mut self, round: RoundId, index: LogIndex) {
        let now = self.shared.now();
        if let Some(began) = self.rounds.began(round) {
            let from = if mutant!(B78) { now } else { began };
            self.shared.lessor.with(|lessor| lessor.confirmed(from));
            self.shared.meters.read_round_seconds.add(now.since(began));
        }
        for query in self.rounds.confirmed(round) {
            match query.question {
                Question::Read => self.reply(query.origin, Answer::Read(Some(index))),
                Question::Renew(_) | Question::Leases(_) => {
                    if let Some(leading) = &mut self.leader {
                        leading.renewals.entry(index).or_default().push(query);
                    }
                }
            }
        }
        self.evaluate_renewals();
    }
}
