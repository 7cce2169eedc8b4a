//! The inputs of the consensus: ticks, messages, proposals, read rounds, and reports of completed
//! work.

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::{Consensus, Outbound, ROUNDS_MAX};
use crate::consensus::config::ENTRY_BYTES_MAX;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::{self, GateRejection, Standpoint};
use crate::consensus::round::{RoundContext, RoundId};
use crate::consensus::snapshot::Stepped;
use crate::consensus::wire;
use crate::model::{LogIndex, NodeId, ProposeRejection, Term};
use crate::wal;

impl Consensus {
    /// Advances the clock by one tick.
    ///
    /// A member starts a campaign only while no entry is being written to its disk. When a member
    /// becomes leader, the raft crate treats such entries as durable. While entries are being
    /// written, the election timer does not expire. A leader's heartbeats do not wait for the disk.
    /// A member that is the only voter campaigns without waiting for the timer.
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
        self.check_snapshot_transfers();
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

    /// Starts a campaign at once, under the same conditions as an expired election timer. Otherwise
    /// does nothing.
    pub(crate) fn campaign(&mut self) {
        if self.is_leader() || !self.raw.raft.promotable() || !self.may_campaign() {
            return;
        }
        if let Err(error) = self.with_raft(|raw| raw.campaign()) {
            tracing::debug!(%error, "raft rejected a campaign");
        }
        self.draw_again();
    }

    /// Processes a message from `from`, whose identity its connection has verified.
    ///
    /// # Errors
    /// Returns an error if no correct member sends this message. Such a message is not processed.
    /// If the error [is fatal](GateRejection::is_fatal), this member must stop, and the next turn
    /// returns the same error.
    pub(crate) fn step(&mut self, from: NodeId, bytes: Bytes) -> Result<Stepped, GateRejection> {
        let mut message = wire::decode(&bytes)?;
        if let Err(rejection) = gate::check(&message, from, self) {
            if let GateRejection::LogLost { promised, last } = rejection {
                self.fault.get_or_insert(ConsensusFault::LogLost { promised, last });
            }
            return Err(rejection);
        }
        self.contacts.received.insert(from, self.ticks);
        self.not_ended(from);
        self.record_commit(&message);
        match message.get_msg_type() {
            // This request to campaign can be ignored: the leader repeats it, or gives up the
            // transfer after an election timeout.
            MessageType::MsgTimeoutNow if !self.may_campaign() => return Ok(Stepped::Done),
            MessageType::MsgTimeoutNow => {
                self.with_raft(|raw| raw.step(message)).ok();
                self.draw_again();
                return Ok(Stepped::Done);
            }
            // The disk is too slow. The message is dropped, as any message may be, and the leader
            // sends it again.
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
                mutant!(M31, message.log_term = message.term);
                if !self.admits_candidate(from, &message) {
                    return Ok(Stepped::Done);
                }
            }
            _ => {}
        }
        let is_bare =
            message.get_msg_type() == MessageType::MsgAppend && message.entries.is_empty();
        let commit = self.commit();
        if let Err(error) = self.with_raft(|raw| raw.step(message)) {
            tracing::debug!(%from, %error, "raft rejected a message");
        }
        if is_bare && self.commit() > commit {
            self.drop_commit_reply();
        }
        Ok(Stepped::Done)
    }

    /// Drops the reply to a message that contains only a commit index. The leader does not need
    /// this reply, because this member acknowledges entries when they arrive. If such an
    /// acknowledgement was lost, the next heartbeat repeats it.
    fn drop_commit_reply(&mut self) {
        let messages = &mut self.raw.raft.msgs;
        let is_acceptance = |answer: &mut Message| {
            answer.get_msg_type() == MessageType::MsgAppendResponse && !answer.reject
        };
        drop(messages.pop_if(is_acceptance));
    }

    /// Limits the commit index in a vote message. Vote messages carry a commit index because a
    /// cluster could be stuck without this index. Suppose that the leader of two members is
    /// removed. The other member, whose log is shorter, then does not know that it is the only
    /// voter.
    ///
    /// A candidate that receives such a message would read all entries up to that index at once.
    /// Therefore the index is reduced to the entries that one read covers.
    pub(super) fn shorten_commit(&mut self, message: &mut Message) {
        let (claimed, next) = (LogIndex(message.commit), self.commit().next());
        if claimed < next || self.term_at(claimed) != Some(Term(message.commit_term)) {
            (message.commit, message.commit_term) = (0, 0);
            return;
        }
        match self.raw.mut_store().fetch(next, claimed.next()) {
            // Both logs contain this entry, so they agree on everything before it.
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

    /// Appends `data` to the log if this member is the leader. `data` must not be empty, and at
    /// most [`ENTRY_BYTES_MAX`] long.
    ///
    /// Returns the term and index. If the entry that is applied at this index has this term, it is
    /// the proposed entry. If that entry has another term, the proposed entry will never be
    /// applied.
    ///
    /// # Errors
    /// Returns an error if the entry was not proposed. Such an entry will never be applied.
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
                tracing::debug!(%error, "raft rejected a proposal");
                Err(ProposeRejection::Busy)
            }
        }
    }

    /// Starts a read round, in which a quorum confirms that this member is still the leader. When
    /// the round is confirmed, a [`Turn`] contains the round with the index that was committed when
    /// the round began.
    ///
    /// Returns `false` if this member is not the leader, has not committed an entry of its term, or
    /// has too many waiting rounds because no quorum replies. The caller retries later.
    ///
    /// A round may never complete, because all rounds are dropped without notice when this member
    /// loses the leadership. Therefore the caller should set a deadline of a few heartbeats for
    /// each round, and then start another round with a new id. Heartbeats repeat a round, so a
    /// single lost message delays the round by only one heartbeat interval.
    pub(crate) fn read_round(&mut self, id: RoundId) -> bool {
        let raft = &self.raw.raft;
        let can_ask = self.is_leader()
            && raft.commit_to_current_term()
            && raft.pending_read_count() < ROUNDS_MAX;
        if can_ask {
            self.rounds += 1;
            let mut serial = self.rounds;
            mutant!(M07, serial = 0);
            let context = RoundContext { serial, id };
            self.with_raft(|raw| raw.read_index(context.to_bytes()));
        }
        can_ask
    }

    /// Transfers the leadership to another voter if this member is the leader. Until the transfer
    /// completes, or an election timeout has passed, proposals are rejected as busy. Returns
    /// whether the transfer has started.
    pub(crate) fn transfer_to(&mut self, peer: NodeId) -> bool {
        let can =
            self.is_leader() && peer != self.config.id && self.configuration.voters.contains(&peer);
        if can {
            self.with_raft(|raw| raw.transfer_leader(peer.get()));
        }
        can
    }

    /// Reports that there is no connection with `peer`.
    pub(crate) fn unreachable(&mut self, peer: NodeId) {
        self.contacts.unreachable(peer);
        self.not_sent(peer);
    }

    /// Reports that a message to `peer` could not be sent, for example because its queue is full.
    pub(crate) fn not_sent(&mut self, peer: NodeId) {
        self.with_raft(|raw| raw.report_unreachable(peer.get()));
    }

    /// Records that a group and all earlier groups are durable. Returns the messages that depend on
    /// these groups and may be sent now.
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
        // Raft checks whether its log still contains the last entry of the group. If that entry was
        // replaced and later received again, the log in memory contains the entry. But a queued
        // group removes the entry from the disk before a later group writes it again. Therefore
        // only the later group is reported to raft.
        let is_replaced = |last| self.oldest_pending().is_some_and(|first| first <= last);
        if last.is_some_and(is_replaced) && !mutant!(M46) {
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

    /// Records that the state machine has applied all entries up to `index`. Turns must have
    /// returned these entries before. [`Consensus::applied_membership`] must have been called for
    /// each membership change among these entries.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        assert!(index <= self.handed, "entry {index} applied, {} handed out", self.handed);
        if index > self.applied_index() {
            let last = self.last();
            self.with_raft(|raw| raw.advance_apply_to(index.get()));
            if self.last() > last {
                // Raft has proposed an entry to leave the joint configuration, but has not sent the
                // entry, so send it now.
                self.with_raft(|raw| raw.raft.bcast_append());
            }
            self.evict();
        }
    }
}
