//! The duties of a leader: proposes entries, answers reads and renewals, and expires leases.

use super::*;
use crate::metrics;
use crate::node::quota::growth;

impl Driver {
    /// Detects changes of the leader, and informs the parts that depend on the leader.
    pub(super) fn follow_leader(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        let known = (consensus.term(), consensus.leader());
        let (me, leads) = (self.shared.settings.node, consensus.is_leader());
        if known != self.known_leader || leads != self.leading.is_some() {
            if matches!(
                consensus.role(),
                consensus::RaftRole::Candidate | consensus::RaftRole::Leader
            ) {
                self.shared.meters.elections_total.add(u64::from(known.0 > self.stood_in));
                self.stood_in = known.0;
            }
            let has_another = known.1.is_some() && known.1 != self.known_leader.1;
            self.shared.meters.leader_changes_total.add(u64::from(has_another));
            self.known_leader = known;
            if known.1.is_some() {
                self.shared.slow.knows_leader(now);
                self.shared.slow_applies.knows_leader(now);
            }
            self.stop_leading();
            if leads {
                tracing::info!(node = self.my_name(), term = %known.0, "became leader");
                self.leading = Some(LeaderState {
                    since: now,
                    forwarded: Vec::new(),
                    in_log: Proposed::default(),
                    lessor: None,
                    revoked: BTreeMap::new(),
                    renewals: BTreeMap::new(),
                    flights: VecDeque::new(),
                    step: None,
                    untold: Vec::new(),
                });
            }
            self.proposals.leader_changed();
            self.reads.leader_changed();
            self.lease_calls.leader_changed();
            self.steps.leader_changed(now);
            self.hold_until = now;
            if let Some(leader) = known.1.filter(|leader| *leader != me) {
                for (_, to, reply) in std::mem::take(&mut self.transfers) {
                    let is_it = to.is_none_or(|to| to == leader);
                    reply.send(if is_it { Ok(()) } else { Err(CallError::NoTransferee) });
                }
            }
            self.publish_status();
            self.record_sample(now);
        }
        self.start_lessor(now);
    }

    pub(super) fn start_lessor(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &self.stage else { return };
        let Some(leading) = &mut self.leading else { return };
        if leading.lessor.is_none() && consensus.is_ready_to_lead() {
            let leases = self.machine.leases();
            leading.lessor = Some(Lessor::new(self.shared.settings.drift, now, leases));
        }
    }

    pub(super) fn stop_leading(&mut self) {
        let Some(leading) = self.leading.take() else { return };
        self.shared.in_company();
        if let Some(seq) = self.raising.take() {
            self.proposals.withdraw(seq);
        }
        self.unsettled = self.unsettled.take().map(|_| Unsettled::ToPropose);
        for proposal in &leading.forwarded {
            self.refuse(proposal, ProposeRejection::NotLeader(self.known_leader.1));
        }
        let now = self.shared.now();
        for asker in self.rounds.end() {
            match asker {
                ReadOrigin::Local { round } => self.reads.answered(round, None, now),
                ReadOrigin::Remote { node, incarnation, round } => {
                    self.send(node, PeerMessage::ReadAnswer { round, incarnation, index: None });
                }
                // No answer is needed: the nodes that sent these questions repeat them.
                ReadOrigin::Renewal { .. } | ReadOrigin::Leases { .. } => {}
            }
        }
    }

    pub(super) fn transfer(&mut self, to: Option<NodeId>, deadline: Moment, reply: ReplyTo<()>) {
        let DriverStage::Running(consensus) = &mut self.stage else {
            return reply.send(Err(CallError::NoTransferee));
        };
        if self.leading.is_none() || to == Some(self.shared.settings.node) {
            return reply.send(Ok(()));
        }
        if mutant!(B57) {
            return reply.send(Ok(()));
        }
        if self.transfers.len() >= TRANSFERS_MAX {
            return reply.send(Err(CallError::Busy));
        }
        match to.or_else(|| consensus.best_transferee()) {
            Some(peer) if consensus.transfer_to(peer) => {
                self.transfers.push((deadline, to, reply));
            }
            _ => reply.send(Err(CallError::NoTransferee)),
        }
    }

    pub(super) fn expire_transfers(&mut self, now: Moment) {
        let is_over = |deadline: Moment| deadline <= now && !mutant!(B45);
        for (.., reply) in self.transfers.extract_if(.., |(deadline, ..)| is_over(*deadline)) {
            reply.send(Err(CallError::Deadline { maybe_applied: false }));
        }
    }

    /// Transfers leadership if the log of this node does not respond. A leader without its log can
    /// still send heartbeats, but commits nothing.
    pub(super) fn hand_over_from_dead_disk(&mut self, now: Moment) {
        let patience = self.shared.settings.election_timeout * 2;
        let stuck = self.log_owes_since.is_some_and(|since| now.since(since) > patience);
        if let DriverStage::Running(consensus) = &mut self.stage
            && stuck
            && self.leading.is_some()
            && !consensus.is_transferring()
            && !mutant!(B43)
            && let Some(peer) = consensus.best_transferee()
        {
            tracing::warn!(%peer, "log does not respond, transferring leadership");
            consensus.transfer_to(peer);
        }
    }

    /// As the leader: packs the requests of this node and of the other nodes into entries.
    pub(super) fn propose(&mut self, now: Moment) {
        let Some(leading) = &mut self.leading else { return };
        let mut waiting: Vec<Batch> = std::mem::take(&mut leading.forwarded)
            .into_iter()
            .map(|proposal| Batch { proposal, fresh: Vec::new() })
            .collect();
        if now >= self.hold_until {
            while let Some(batch) = self.proposals.batch(now, ENTRY_BYTES) {
                waiting.push(batch);
            }
        }
        self.hold_back_growth(&mut waiting, now);
        let Some(leading) = &mut self.leading else { return };
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

    pub(super) fn propose_entry(&mut self, batches: Vec<Batch>, now: Moment) {
        let (mut items, mut fresh) = (Vec::new(), Vec::new());
        for batch in batches {
            items.push(Item::Proposal(batch.proposal));
            fresh.push(batch.fresh);
        }
        match self.propose_items(&items) {
            Ok(index) => {
                let Some(leading) = &mut self.leading else { return };
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
                        let id = RequestId { node, incarnation, seq };
                        leading.in_log.proposed(id, index, &command, more);
                        let command = match command {
                            Command::As(_, command) => *command,
                            command => command,
                        };
                        if let Command::Revoke(lease) = command {
                            leading.revoked.insert(lease, index);
                        }
                    }
                }
            }
            Err(why) => {
                for (item, fresh) in items.into_iter().zip(fresh) {
                    let Item::Proposal(proposal) = item else { continue };
                    if proposal.node == self.shared.settings.node {
                        self.not_proposed(&proposal, &fresh, why, now);
                    } else {
                        self.refuse(&proposal, why);
                    }
                }
            }
        }
    }

    pub(super) fn propose_items(&mut self, items: &[Item]) -> Result<LogIndex, ProposeRejection> {
        match self.digests.is_undecided() {
            true => Err(ProposeRejection::Diverged),
            false => self.propose_entry_of(items),
        }
    }

    /// Proposes an entry without requests, even while replicas differ. A replica that applies it knows that its
    /// proposer had applied all earlier membership changes.
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
        self.proposals.put_back(proposal.requests.iter().map(|(seq, _)| *seq), fresh);
        self.hold(now);
        match why {
            // Another leader is or will be elected, or the log is busy. These reasons are
            // temporary, so the requests are repeated, like requests of other nodes.
            ProposeRejection::NotLeader(_) | ProposeRejection::Busy => {}
            // Reject a request that no log can contain. A request that an earlier leader may have
            // logged stays open.
            ProposeRejection::Diverged
            | ProposeRejection::QuotaExceeded
            | ProposeRejection::NoSpace => {
                let refuse = |seq: &u64| self.proposals.refuse(*seq, CallError::Diverged);
                let refused = fresh.iter().filter_map(refuse).collect();
                self.tell(refused);
            }
        }
    }

    /// Tells another node that its requests were not proposed.
    pub(super) fn refuse(&mut self, proposal: &Proposal, why: ProposeRejection) {
        let seqs = proposal.requests.iter().map(|(seq, _)| *seq).collect();
        let incarnation = proposal.incarnation;
        self.shared.meters.proposals_refused_total.at(growth::reason(why)).one();
        self.send(proposal.node, PeerMessage::ProposeRejected { incarnation, seqs, why });
    }

    /// As the leader: starts a round of the consensus for the questions that wait.
    pub(super) fn start_rounds(&mut self, now: Moment) {
        let DriverStage::Running(consensus) = &mut self.stage else { return };
        while self.leading.is_some()
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
            self.shared.meters.read_round_seconds.add(now.since(began));
        }
        for asker in self.rounds.confirmed(round) {
            match asker {
                ReadOrigin::Local { round } => self.reads.answered(round, Some(index), now),
                ReadOrigin::Remote { node, incarnation, round } => {
                    let index = Some(index);
                    self.send(node, PeerMessage::ReadAnswer { round, incarnation, index });
                }
                renewal @ (ReadOrigin::Renewal { .. } | ReadOrigin::Leases { .. }) => {
                    if let Some(leading) = &mut self.leading {
                        leading.renewals.entry(index).or_default().push(renewal);
                    }
                }
            }
        }
        self.reads.applied(self.machine.applied());
        self.judge_renewals();
    }

    /// Processes the confirmed renewals whose index is applied. At this index, this replica
    /// contains every lease that the senders of the renewals know.
    pub(super) fn judge_renewals(&mut self) {
        let applied = self.machine.applied();
        let Some(leading) = &mut self.leading else { return };
        let Some(lessor) = &mut leading.lessor else { return };
        let (mut answers, mut looks) = (Vec::new(), Vec::new());
        while let Some(entry) = leading.renewals.first_entry() {
            if *entry.key() > applied {
                break;
            }
            for asker in entry.remove() {
                if let ReadOrigin::Leases { node, incarnation, question } = asker {
                    let margins = &self.shared.meters.lease_margin_seconds;
                    let message = lessor_says(lessor, incarnation, &question, margins);
                    looks.push((node, question.round, message));
                    continue;
                }
                let ReadOrigin::Renewal { node, incarnation, round, leases } = asker else {
                    continue;
                };
                let (mut renewed, mut gone) = (Vec::new(), Vec::new());
                for lease in leases {
                    match renew(lessor, lease, &self.shared.meters.lease_margin_seconds) {
                        Renewal::Renewed => renewed.push(lease),
                        Renewal::Gone => gone.push(lease),
                        Renewal::Expiring => {}
                    }
                }
                answers.push((node, incarnation, round, renewed, gone));
            }
        }
        for (node, round, message) in looks {
            match message {
                PeerMessage::LeaseAnswer { living, gone, .. }
                    if node == self.shared.settings.node =>
                {
                    self.lease_calls.answered(round, &living, &gone);
                }
                message => self.send(node, message),
            }
        }
        for (node, incarnation, round, renewed, gone) in answers {
            if node == self.shared.settings.node {
                self.renewed(round, &renewed, &gone);
            } else {
                self.send(node, PeerMessage::Renewed { round, incarnation, renewed, gone });
            }
        }
    }

    /// As the leader: proposes the expiry of leases.
    pub(super) fn end_leases(&mut self, now: Moment) {
        let (term, applied) = (self.known_leader.0, self.machine.applied());
        loop {
            let Some(LeaderState { lessor: Some(lessor), revoked, .. }) = &mut self.leading else {
                return;
            };
            lessor.advance(now);
            revoked.retain(|_, index| *index > applied);
            let room = LEASES_ENDING_MAX - lessor.expiring().min(LEASES_ENDING_MAX);
            let leases = lessor.due(room.min(LEASES_AN_ENTRY), |id| !revoked.contains_key(&id));
            if leases.is_empty() {
                return;
            }
            let count = leases.len() as u64;
            let item = Item::Expire { term, leases };
            if self.propose_items(std::slice::from_ref(&item)).is_err() {
                let Item::Expire { leases, .. } = item else { unreachable!("it was just made") };
                if let Some(lessor) = self.leading.as_mut().and_then(|l| l.lessor.as_mut())
                    && !mutant!(B41)
                {
                    lessor.not_proposed(&leases);
                }
                return;
            }
            self.shared.meters.lease_expiries_total.add(count);
        }
    }
}

/// Renews a lease, and records the time that it had left.
fn renew(lessor: &mut Lessor, lease: LeaseId, margins: &metrics::Seconds) -> Renewal {
    let (_, left) = lessor.look(lease);
    let renewal = lessor.renew(lease);
    if renewal == Renewal::Renewed {
        margins.add(left);
    }
    renewal
}

/// Returns the answer to a question about leases.
fn lessor_says(
    lessor: &mut Lessor,
    incarnation: Incarnation,
    question: &LeaseQuestion,
    margins: &metrics::Seconds,
) -> PeerMessage {
    let (mut living, mut gone) = (Vec::new(), Vec::new());
    for lease in &question.renew {
        renew(lessor, *lease, margins);
    }
    for &lease in question.renew.iter().chain(&question.look) {
        match lessor.look(lease) {
            (Renewal::Renewed, left) => {
                // Messages contain whole milliseconds, so round down.
                let left = left - Duration::from_nanos((left.as_nanos() % 1_000_000) as u64);
                living.push(LeaseLife { lease, left });
            }
            (Renewal::Gone, _) => gone.push(lease),
            (Renewal::Expiring, _) => {}
        }
    }
    PeerMessage::LeaseAnswer { round: question.round, incarnation, living, gone }
}
