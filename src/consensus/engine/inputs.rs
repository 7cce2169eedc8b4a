//! What comes in: ticks, messages, proposals, questions, and word of what was done.

use super::*;

impl Consensus {
    /// One tick of the clock has passed.
    ///
    /// Only a member whose log is quiet campaigns: raft takes what was handed to the disk for granted
    /// when it becomes leader. Until then its patience does not run out; a leader's heartbeats do not
    /// wait for the disk. A member that votes alone has nobody to be patient with.
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
        self.look_after_fetching();
        let follows = !self.is_leader();
        let raft = &self.raw.raft;
        if follows && raft.promotable() && raft.prs().is_singleton() {
            return self.campaign();
        }
        let runs_out = raft.election_elapsed + 1 >= raft.randomized_election_timeout();
        if follows && runs_out && !self.may_campaign() {
            return;
        }
        let has_campaigned = self.with_raft(|raw| raw.tick()) && follows;
        if has_campaigned {
            self.draw_again();
        }
    }

    /// Asks the others for their votes at once. Does nothing where a tick would not.
    pub(crate) fn campaign(&mut self) {
        if self.is_leader() || !self.raw.raft.promotable() || !self.may_campaign() {
            return;
        }
        if let Err(error) = self.with_raft(|raw| raw.campaign()) {
            tracing::debug!(%error, "did not campaign");
        }
        self.draw_again();
    }

    /// A message of `from`, whose identity its connection has proven.
    ///
    /// # Errors
    /// The message is none that a correct member sends. It was not processed. If the rejection
    /// [is fatal](GateRejection::is_fatal), this member must stop, and the next turn says so again.
    pub(crate) fn step(&mut self, from: NodeId, bytes: Bytes) -> Result<Stepped, GateRejection> {
        let mut message = wire::decode(&bytes)?;
        if let Err(rejection) = gate::judge(&message, from, self) {
            if let GateRejection::LogLost { promised, last } = rejection {
                self.fault.get_or_insert(ConsensusFault::LogLost { promised, last });
            }
            return Err(rejection);
        }
        self.heard.insert(from, self.ticks);
        self.hear_commit(&message);
        match message.get_msg_type() {
            // The leader gives up after an election timeout, or asks again.
            MessageType::MsgTimeoutNow if !self.may_campaign() => return Ok(Stepped::Done),
            MessageType::MsgTimeoutNow => {
                self.with_raft(|raw| raw.step(message)).ok();
                self.draw_again();
                return Ok(Stepped::Done);
            }
            // The disk does not keep up. Lost, as any message may be; the leader sends it again.
            MessageType::MsgAppend
                if !message.entries.is_empty()
                    && self.unpersisted_bytes() > self.config.unpersisted_bytes_max =>
            {
                return Ok(Stepped::Done);
            }
            MessageType::MsgSnapshot if self.needs_install(&message) => {
                return Ok(self.offer_of(from, message));
            }
            MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse => {
                self.shorten_commit(&mut message);
                if mutant::is(Mutant::M31) {
                    message.log_term = message.term;
                }
            }
            _ => {}
        }
        let is_bare =
            message.get_msg_type() == MessageType::MsgAppend && message.entries.is_empty();
        let commit = self.commit();
        if let Err(error) = self.with_raft(|raw| raw.step(message)) {
            tracing::debug!(%from, %error, "raft did not take a message");
        }
        if is_bare && self.commit() > commit {
            self.withhold_answer();
        }
        Ok(Stepped::Done)
    }

    /// A leader that says what is committed, and sends nothing, learns nothing from the answer: what this member has it was
    /// told when it had sent that, or, where that was lost, asks for with its next heartbeat.
    fn withhold_answer(&mut self) {
        let messages = &mut self.raw.raft.msgs;
        let says_so = |answer: &mut Message| {
            answer.get_msg_type() == MessageType::MsgAppendResponse && !answer.reject
        };
        drop(messages.pop_if(says_so));
    }

    /// Votes pass a commit index on. Without it a cluster can be stuck: the leader of two members is
    /// removed, and the other one, whose log is shorter, does not know that it votes alone.
    ///
    /// A candidate reads everything up to that index at once; so it takes it in pieces of one read.
    fn shorten_commit(&mut self, message: &mut Message) {
        let (claimed, next) = (LogIndex(message.commit), self.commit().next());
        if claimed < next || self.term_at(claimed) != Some(Term(message.commit_term)) {
            (message.commit, message.commit_term) = (0, 0);
            return;
        }
        match self.raw.mut_store().fetch(next, claimed.next()) {
            // What comes before an entry that both have is the same for both.
            Ok(reached) => {
                let term = self.term_at(reached).expect("it was read");
                (message.commit, message.commit_term) = (reached.get(), term.get());
            }
            Err(fault) => {
                self.fault.get_or_insert(fault);
                (message.commit, message.commit_term) = (0, 0);
            }
        }
    }

    /// Puts `data`, which is not empty and at most [`ENTRY_BYTES_MAX`], into the log, if this member
    /// leads.
    ///
    /// Returns where: if the entry applied at that index is of that term, it is this one; if it is of
    /// another term, this one is lost for good.
    ///
    /// # Errors
    /// It was not proposed, and nothing will come of it.
    pub(crate) fn propose(&mut self, data: Vec<u8>) -> Result<(Term, LogIndex), ProposeRejection> {
        assert!(!data.is_empty(), "an entry without data means nothing");
        assert!(data.len() <= ENTRY_BYTES_MAX, "an entry of {} bytes", data.len());
        if !self.is_leader() {
            return Err(ProposeRejection::NotLeader(self.leader()));
        }
        if self.is_transferring() || self.fault.is_some() {
            return Err(ProposeRejection::Busy);
        }
        match self.with_raft(|raw| raw.propose(Vec::new(), data)) {
            Ok(()) => Ok((self.term(), self.last())),
            Err(error) => {
                tracing::debug!(%error, "a proposal was not taken");
                Err(ProposeRejection::Busy)
            }
        }
    }

    /// Begins a round that asks a quorum whether this member still leads. A [`Turn`] brings the
    /// answer, with the index that was committed when the round began.
    ///
    /// `false`: not now, because this member does not lead, or has not yet committed an entry of its
    /// term, or no quorum answers and too many rounds wait; ask again later.
    ///
    /// An answer may never come: rounds end with the leadership, silently. So give each a deadline of
    /// some heartbeats, and then begin another one, under a new id. Heartbeats repeat a round, so a
    /// lost message alone costs one heartbeat's time.
    pub(crate) fn read_round(&mut self, id: RoundId) -> bool {
        let raft = &self.raw.raft;
        let can_ask = self.is_leader()
            && raft.commit_to_current_term()
            && raft.pending_read_count() < ROUNDS_MAX;
        if can_ask {
            self.rounds += 1;
            let serial = if mutant::is(Mutant::M07) { 0 } else { self.rounds };
            let context = RoundContext { serial, id };
            self.with_raft(|raw| raw.read_index(context.to_bytes()));
        }
        can_ask
    }

    /// Hands the leadership to another voter, if this member leads. Proposals are refused as busy
    /// until that has happened, or an election timeout has passed. Whether that has begun.
    pub(crate) fn transfer_to(&mut self, peer: NodeId) -> bool {
        let can =
            self.is_leader() && peer != self.config.id && self.configuration.voters.contains(&peer);
        if can {
            self.with_raft(|raw| raw.transfer_leader(peer.get()));
        }
        can
    }

    /// There is no connection with `peer`.
    pub(crate) fn unreachable(&mut self, peer: NodeId) {
        self.heard.remove(&peer);
        self.not_sent(peer);
    }

    /// A message to `peer` could not be sent, which may be because it gets so many.
    pub(crate) fn not_sent(&mut self, peer: NodeId) {
        self.with_raft(|raw| raw.report_unreachable(peer.get()));
    }

    /// A group, and all before it, are durable. Returns the messages that waited for that.
    pub(crate) fn persisted(&mut self, proof: wal::Durable) -> Vec<Outbound> {
        let number = proof.number();
        assert!(number <= self.group, "group {number} of {} is durable", self.group);
        let (mut ready, mut last) = (None, None);
        while let Some(pending) = self.pending.front()
            && pending.group <= number
        {
            ready = Some(pending.ready);
            last = pending.entries.map(|(_, last)| last).or(last);
            self.pending.pop_front();
        }
        // Raft looks whether its log still has the last entry of the group. It does, if that entry was
        // replaced and then came again; but then the disk is about to lose it for a while. The group
        // that replaces it will report for this one as well.
        let is_replaced = |last| self.oldest_pending().is_some_and(|first| first <= last);
        if last.is_some_and(is_replaced) && !mutant::is(Mutant::M46) {
            ready = None;
        }
        if self.proof.as_ref().is_none_or(|proof| proof.number() < number) {
            self.proof = Some(proof);
        }
        if let Some(ready) = ready {
            self.with_raft(|raw| raw.on_persist_ready(ready));
            self.evict();
        }
        self.prove_install(number);
        self.unseal()
    }

    /// The machine has applied everything up to `index`, all of which a turn has handed out; of each
    /// change of the members, [`Consensus::applied_membership`] has been told.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        assert!(index <= self.handed, "entry {index} applied, {} handed out", self.handed);
        if index > self.applied_index() {
            let last = self.last();
            self.with_raft(|raw| raw.advance_apply_to(index.get()));
            if self.last() > last {
                // Raft has proposed to leave the joint configuration, and told nobody.
                self.with_raft(|raw| raw.raft.bcast_append());
            }
            self.evict();
        }
    }
}
