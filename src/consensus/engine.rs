//! The driver of one raft group: the raft crate's contract, kept in one place.
//!
//! Inputs (messages, ticks, proposals, reads) change raft's state in memory. [`Consensus::turn`] then
//! says what has to be done about it, and [`Consensus::persisted`] and [`Consensus::applied`] report
//! that it was done. Nothing here waits, reads a clock, or touches a disk except to serve a follower
//! that is far behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{self, Message, MessageType};
use raft::{RawNode, StateRole};

use crate::model::{Lane, LogIndex, NodeId, PeerMessage, ProposeRefusal, Term};
use crate::wal;

use super::cache::entry_bytes;
use super::config::{ConsensusConfig, ENTRY_BYTES_MAX};
use super::drain;
use super::fault::ConsensusFault;
use super::gate::{self, GateRefusal, Standpoint};
use super::round::{RoundContext, RoundId};
use super::seal::Sealed;
#[cfg(test)]
use super::status::Status;
use super::status::{PeerStatus, Role};
use super::store::{OlderEntries, RaftStore, to_wal};
use super::timeout::ElectionTimeouts;
use super::wire;

/// How many read rounds may be under way. One serves all questions that wait, so this many mean that
/// no quorum answers.
const ROUNDS_MAX: usize = 1024;

/// How many messages may wait for the disk; the oldest is dropped, as any message may be.
const SEALED_MAX: usize = 4096;

/// A message to a peer, free to leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outbound {
    /// To whom.
    pub(crate) to: NodeId,
    /// How: entries travel in bulk, everything else is urgent.
    pub(crate) lane: Lane,
    /// What.
    pub(crate) message: PeerMessage,
}

/// What has to be done now. The parts can be done in any order and at any later time; groups go to
/// the log in the order in which they come, and entries to the machine as well.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Messages to send. What they speak of is durable already.
    pub(crate) send: Vec<Outbound>,
    /// A group for the log. [`Consensus::persisted`] takes the proof.
    pub(crate) persist: Option<wal::Group>,
    /// Entries to apply: committed, and on this member's disk. [`Consensus::applied`] is told. An
    /// entry without data does nothing but count.
    pub(crate) commit: Vec<wal::Entry>,
    /// Rounds that a quorum has confirmed: when the index is applied, what was asked before the round
    /// began can be answered.
    pub(crate) rounds: Vec<(RoundId, LogIndex)>,
}

/// A group that was handed to the log and is not known to be durable.
#[derive(Debug)]
struct Pending {
    group: u64,
    /// The newest of raft's batches that this group completes: the one that made it, and those after
    /// it that had nothing for the log.
    ready: u64,
    /// The first and the last of its entries.
    entries: Option<(LogIndex, LogIndex)>,
    bytes: usize,
}

/// One member's part in the consensus.
pub(crate) struct Consensus {
    config: ConsensusConfig,
    raw: RawNode<RaftStore>,
    members: Members,
    timeouts: ElectionTimeouts,
    /// Ticks since the start.
    ticks: u64,
    /// When each peer was last heard of, in ticks since the start.
    heard: BTreeMap<NodeId, u64>,
    /// The newest committed entry that was handed out.
    handed: LogIndex,
    /// What the log has, or will have when it has written its groups.
    written: eraftpb::HardState,
    pending: VecDeque<Pending>,
    /// The newest group handed to the log; 0 at the start.
    group: u64,
    /// The group that carries the current term and vote.
    term_group: u64,
    /// The newest proof.
    proof: Option<wal::Durable>,
    sealed: VecDeque<Sealed<Message>>,
    /// Read rounds begun.
    rounds: u64,
    fault: Option<ConsensusFault>,
}

struct Members {
    voters: BTreeSet<NodeId>,
    learners: BTreeSet<NodeId>,
}

impl Consensus {
    /// Takes up what `older` and `hard_state` say was durable, and `applied` of it applied. The log's
    /// groups count from 1 from here on.
    ///
    /// Every member starts from a synthetic entry at index 1, of term 1, that nobody stores.
    ///
    /// # Errors
    /// The configuration makes no sense, or the parts do not fit together.
    pub(crate) fn new(
        config: ConsensusConfig,
        older: impl OlderEntries + 'static,
        hard_state: wal::HardState,
        applied: LogIndex,
    ) -> Result<Self, ConsensusFault> {
        let raft_config = config.to_raft(applied.get())?;
        let last = older.last();
        // Only committed entries are applied, and the commit index reaches the disk with the next
        // group only: it may be the older one.
        let commit = hard_state.commit.max(applied);
        if commit > last {
            return Err(ConsensusFault::LogLost { promised: commit, last });
        }
        match older.term(last) {
            Some(found) if found > hard_state.term => {
                return Err(ConsensusFault::TermLost { last, found, term: hard_state.term });
            }
            Some(_) => {}
            None => return Err(ConsensusFault::OutOfOrder { asked: last, found: None }),
        }
        let written = eraftpb::HardState {
            term: hard_state.term.get(),
            vote: hard_state.vote.map_or(raft::INVALID_ID, NodeId::get),
            commit: commit.get(),
            ..eraftpb::HardState::default()
        };
        let numbers = |nodes: &[NodeId]| -> Vec<u64> { nodes.iter().map(|id| id.get()).collect() };
        // The place of membership changes: what the newest applied one says will be read from the
        // snapshot and the log, not from the configuration.
        let members = eraftpb::ConfState {
            voters: numbers(&config.voters),
            learners: numbers(&config.learners),
            ..eraftpb::ConfState::default()
        };
        let store =
            RaftStore::new(Box::new(older), written.clone(), members, config.commit_bytes_max);
        let raw = RawNode::new(&raft_config, store, &drain::logger())
            .map_err(|error| ConsensusFault::Config(error.to_string()))?;
        let seed = config.entropy.next_u64();
        let mut consensus = Self {
            timeouts: ElectionTimeouts::new(seed, config.id, config.election_ticks),
            members: Members {
                voters: config.voters.iter().copied().collect(),
                learners: config.learners.iter().copied().collect(),
            },
            config,
            raw,
            ticks: 0,
            heard: BTreeMap::new(),
            handed: applied,
            written,
            pending: VecDeque::new(),
            group: 0,
            term_group: 0,
            proof: None,
            sealed: VecDeque::new(),
            rounds: 0,
            fault: None,
        };
        consensus.with_raft(|_| ());
        Ok(consensus)
    }

    // ---- what comes in ----------------------------------------------------------------------------

    /// One tick of the clock has passed.
    ///
    /// Only a member whose log is quiet campaigns: raft takes what was handed to the disk for granted
    /// when it becomes leader. Until then its patience does not run out; a leader's heartbeats do not
    /// wait for the disk. A member that votes alone has nobody to be patient with.
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
        let follows = !self.is_leader();
        if follows && self.members.voters.len() == 1 {
            return self.campaign();
        }
        let raft = &self.raw.raft;
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
    /// The message is none that a correct member sends. It was not processed. If the refusal
    /// [is fatal](GateRefusal::is_fatal), this member must stop, and the next turn says so again.
    pub(crate) fn step(&mut self, from: NodeId, bytes: Bytes) -> Result<(), GateRefusal> {
        let mut message = wire::decode(&bytes)?;
        if let Err(refusal) = gate::judge(&message, from, self) {
            if let GateRefusal::LogLost { promised, last } = refusal {
                self.fault.get_or_insert(ConsensusFault::LogLost { promised, last });
            }
            return Err(refusal);
        }
        self.heard.insert(from, self.ticks);
        match message.get_msg_type() {
            // The leader gives up after an election timeout, or asks again.
            MessageType::MsgTimeoutNow if !self.may_campaign() => return Ok(()),
            MessageType::MsgTimeoutNow => {
                self.with_raft(|raw| raw.step(message)).ok();
                self.draw_again();
                return Ok(());
            }
            // The disk does not keep up. Lost, as any message may be; the leader sends it again.
            MessageType::MsgAppend
                if !message.entries.is_empty()
                    && self.unpersisted_bytes() > self.config.unpersisted_bytes_max =>
            {
                return Ok(());
            }
            // A candidate's commit index, passed on, lets raft read everything up to it at once. It
            // is a courtesy; only where the entries are in memory is it taken.
            MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
                if !self.raw.store().is_cached(self.commit().next()) =>
            {
                (message.commit, message.commit_term) = (0, 0);
            }
            _ => {}
        }
        if let Err(error) = self.with_raft(|raw| raw.step(message)) {
            tracing::debug!(%from, %error, "raft did not take a message");
        }
        Ok(())
    }

    /// Puts `data`, which is not empty and at most [`ENTRY_BYTES_MAX`], into the log, if this member
    /// leads.
    ///
    /// Returns where: if the entry applied at that index is of that term, it is this one; if it is of
    /// another term, this one is lost for good.
    ///
    /// # Errors
    /// It was not proposed, and nothing will come of it.
    pub(crate) fn propose(&mut self, data: Vec<u8>) -> Result<(Term, LogIndex), ProposeRefusal> {
        assert!(!data.is_empty(), "an entry without data means nothing");
        assert!(data.len() <= ENTRY_BYTES_MAX, "an entry of {} bytes", data.len());
        if !self.is_leader() {
            return Err(ProposeRefusal::NotLeader(self.leader()));
        }
        if self.is_transferring() || self.fault.is_some() {
            return Err(ProposeRefusal::Busy);
        }
        match self.with_raft(|raw| raw.propose(Vec::new(), data)) {
            Ok(()) => Ok((self.term(), self.last())),
            Err(error) => {
                tracing::debug!(%error, "a proposal was not taken");
                Err(ProposeRefusal::Busy)
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
            let context = RoundContext { serial: self.rounds, id };
            self.with_raft(|raw| raw.read_index(context.to_bytes()));
        }
        can_ask
    }

    /// Hands the leadership to another voter, if this member leads. Proposals are refused as busy
    /// until that has happened, or an election timeout has passed.
    pub(crate) fn transfer_to(&mut self, peer: NodeId) {
        if self.is_leader() && peer != self.config.id && self.members.voters.contains(&peer) {
            self.with_raft(|raw| raw.transfer_leader(peer.get()));
        }
    }

    /// A message to `peer` could not be sent.
    pub(crate) fn unreachable(&mut self, peer: NodeId) {
        self.heard.remove(&peer);
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
        if last.is_some_and(|last| self.oldest_pending().is_some_and(|first| first <= last)) {
            ready = None;
        }
        if self.proof.as_ref().is_none_or(|proof| proof.number() < number) {
            self.proof = Some(proof);
        }
        if let Some(ready) = ready {
            self.with_raft(|raw| raw.on_persist_ready(ready));
            self.evict();
        }
        self.unseal()
    }

    /// The machine has applied everything up to `index`, all of which a turn has handed out.
    pub(crate) fn applied(&mut self, index: LogIndex) {
        assert!(index <= self.handed, "entry {index} applied, {} handed out", self.handed);
        if index > self.applied_index() {
            self.with_raft(|raw| raw.advance_apply_to(index.get()));
            self.evict();
        }
    }

    // ---- what goes out ----------------------------------------------------------------------------

    /// What has to be done, or `None`: nothing until something comes in. Call it until then.
    ///
    /// # Errors
    /// This member must stop.
    pub(crate) fn turn(&mut self) -> Result<Option<Turn>, ConsensusFault> {
        self.check_fault()?;
        if !self.raw.has_ready() {
            return Ok(None);
        }
        if let Err(fault) = self.prefetch() {
            return Err(self.fault.insert(fault).clone());
        }
        let mut turn = Turn::default();
        let mut ready = self.with_raft(|raw| raw.ready());
        assert!(ready.snapshot().is_empty(), "the gate lets no snapshot in");
        let leads = self.is_leader();
        let mut messages = ready.take_messages();
        messages.append(&mut ready.take_persisted_messages());
        for state in ready.take_read_states() {
            let context = RoundContext::from_bytes(&state.request_ctx);
            let context = context.expect("only rounds of our own come back");
            turn.rounds.push((context.id, LogIndex(state.index)));
        }
        turn.commit = ready.take_committed_entries().into_iter().map(to_wal).collect();
        if let Some(entry) = turn.commit.last() {
            self.handed = entry.index;
        }
        turn.persist = self.group_of(&ready);
        self.raw.mut_store().append(ready.entries());
        let number = ready.number();
        self.with_raft(|raw| raw.advance_append_async(ready));
        if turn.persist.is_none() {
            match self.pending.back_mut() {
                Some(pending) => pending.ready = number,
                None => self.with_raft(|raw| raw.on_persist_ready(number)),
            }
        }
        for message in messages {
            self.seal(message, leads);
        }
        turn.send = self.unseal();
        self.check_fault()?;
        Ok(Some(turn))
    }

    /// The group that carries what of this batch must be durable, if anything must.
    ///
    /// A commit index alone need not be: it rides with the next group.
    fn group_of(&mut self, ready: &raft::Ready) -> Option<wal::Group> {
        let now = self.raw.raft.hard_state();
        let has_vowed = (now.term, now.vote) != (self.written.term, self.written.vote);
        let must_sync = has_vowed || !ready.entries().is_empty();
        assert_eq!(must_sync, ready.must_sync(), "raft and its driver disagree on what is new");
        if !must_sync {
            return None;
        }
        self.group = ready.number();
        if has_vowed {
            self.term_group = self.group;
        }
        let hard_state = (now != self.written).then(|| wal::HardState {
            term: Term(now.term),
            vote: NodeId::new(now.vote),
            commit: LogIndex(now.commit),
        });
        self.written = now;
        self.pending.push_back(Pending {
            group: self.group,
            ready: ready.number(),
            entries: ready
                .entries()
                .first()
                .zip(ready.entries().last())
                .map(|(first, last)| (LogIndex(first.index), LogIndex(last.index))),
            bytes: ready.entries().iter().map(entry_bytes).sum(),
        });
        Some(wal::Group {
            number: self.group,
            hard_state,
            entries: ready.entries().iter().cloned().map(to_wal).collect(),
            founding: None,
        })
    }

    /// Puts a message under seal, with the group that carries the state it speaks of.
    ///
    /// A leader speaks of its term and its entries, and promises to have none of those: it writes
    /// them while they travel. Its term must be durable, and where it is the only voter, raft makes
    /// it leader before that. An answer to a heartbeat speaks of the term alone. Anything else (votes,
    /// and their requests; what entries have arrived) speaks of all there is.
    fn seal(&mut self, mut message: Message, leads: bool) {
        let kind = message.get_msg_type();
        let of_the_term = leads || kind == MessageType::MsgHeartbeatResponse;
        let group = if of_the_term { self.term_group } else { self.group };
        if kind == MessageType::MsgAppend && !self.mend(&mut message) {
            return;
        }
        for part in wire::split(message) {
            self.sealed.push_back(Sealed::new(group, part));
        }
        while self.sealed.len() > SEALED_MAX {
            drop(self.sealed.pop_front());
        }
    }

    /// With `batch_append`, raft adds entries to a message that still waits, and does not look whether
    /// they follow on it if it was empty, or was of an earlier term. `false`: nothing sensible can be
    /// made of it.
    fn mend(&self, message: &mut Message) -> bool {
        let Some(first) = message.entries.first() else { return true };
        let (prev, terms_fit) =
            (first.index - 1, message.entries.iter().all(|entry| entry.term <= message.term));
        if message.index == prev {
            return terms_fit;
        }
        if !terms_fit || !self.is_leader() || message.term != self.raw.raft.term {
            return false;
        }
        match self.term_at(LogIndex(prev)) {
            Some(term) => {
                (message.index, message.log_term) = (prev, term.get());
                true
            }
            None => false,
        }
    }

    /// The messages whose state is durable.
    fn unseal(&mut self) -> Vec<Outbound> {
        let mut open = Vec::new();
        for sealed in std::mem::take(&mut self.sealed) {
            match sealed.open(self.proof.as_ref()) {
                Ok(message) => open.extend(outbound(&message)),
                Err(sealed) => self.sealed.push_back(sealed),
            }
        }
        open
    }

    // ---- what raft needs --------------------------------------------------------------------------

    /// Calls raft, and sets its election timeout again, which the call may have drawn from a source
    /// that no seed replays.
    fn with_raft<R>(&mut self, call: impl FnOnce(&mut RawNode<RaftStore>) -> R) -> R {
        let result = call(&mut self.raw);
        let ticks = self.timeouts.ticks(self.term());
        self.raw.raft.set_randomized_election_timeout(ticks);
        result
    }

    fn draw_again(&mut self) {
        self.timeouts.attempted();
        self.with_raft(|_| ());
    }

    /// Whether nothing stands against becoming leader: all entries are on disk, and what is committed
    /// and not applied is in memory, where raft will look it through.
    fn may_campaign(&self) -> bool {
        let raft = &self.raw.raft;
        let is_on_disk =
            raft.raft_log.unstable_entries().is_empty() && self.oldest_pending().is_none();
        let next = self.applied_index().next();
        is_on_disk && (next > self.commit() || self.raw.store().is_cached(next))
    }

    /// Reads the committed entries that raft will hand out next, if they are not in memory: after a
    /// restart.
    fn prefetch(&mut self) -> Result<(), ConsensusFault> {
        let log = &self.raw.raft.raft_log;
        let end = LogIndex(log.committed.min(log.persisted)).next();
        let next = self.handed.next();
        self.raw.mut_store().prefetch(next, end)
    }

    fn evict(&mut self) {
        let on_disk = self.oldest_pending().map_or(self.last(), |first| LogIndex(first.get() - 1));
        let up_to = on_disk.min(self.applied_index());
        let bytes_max = self.config.cache_bytes_max;
        self.raw.mut_store().evict(up_to, bytes_max);
    }

    /// The lowest index that is on its way to the disk.
    fn oldest_pending(&self) -> Option<LogIndex> {
        self.pending.iter().filter_map(|pending| pending.entries).map(|(first, _)| first).min()
    }

    fn unpersisted_bytes(&self) -> usize {
        let pending: usize = self.pending.iter().map(|pending| pending.bytes).sum();
        pending + self.raw.raft.raft_log.unstable.entries_size
    }

    fn check_fault(&mut self) -> Result<(), ConsensusFault> {
        if self.fault.is_none() {
            self.fault = self.raw.mut_store().take_fault();
        }
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    // ---- how it stands ----------------------------------------------------------------------------

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

    /// The term.
    pub(crate) fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// Who leads the term, if known.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        NodeId::new(self.raw.raft.leader_id)
    }

    /// The newest entry known to be committed.
    pub(crate) fn commit(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.committed)
    }

    /// Who should lead in this member's place: the voter heard of within an election timeout whose
    /// log is the longest. `None`: there is nobody, or this member does not lead.
    pub(crate) fn best_transferee(&self) -> Option<NodeId> {
        let peers = self.peers();
        let fit = peers.iter().filter(|peer| peer.active && self.members.voters.contains(&peer.id));
        // Among equals the lowest id.
        fit.max_by_key(|peer| (peer.matched, std::cmp::Reverse(peer.id))).map(|peer| peer.id)
    }

    /// All of it.
    #[cfg(test)]
    pub(super) fn status(&self) -> Status {
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
    fn peers(&self) -> Vec<PeerStatus> {
        if !self.is_leader() {
            return Vec::new();
        }
        let is_active = |id| {
            let since = self.heard.get(id).map(|heard| self.ticks - heard);
            since.is_some_and(|since| since < self.config.election_ticks as u64)
        };
        let peers = self.members.voters.iter().chain(&self.members.learners);
        let mut peers: Vec<_> = peers
            .filter(|id| **id != self.config.id)
            .filter_map(|id| {
                let matched = LogIndex(self.raw.raft.prs().get(id.get())?.matched);
                Some(PeerStatus { id: *id, matched, active: is_active(id) })
            })
            .collect();
        peers.sort_by_key(|peer| peer.id);
        peers
    }

    fn applied_index(&self) -> LogIndex {
        LogIndex(self.raw.raft.raft_log.applied)
    }

    /// The bytes of entries in memory.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> usize {
        self.raw.store().cached_bytes()
    }
}

impl Standpoint for Consensus {
    fn id(&self) -> NodeId {
        self.config.id
    }

    fn is_voter(&self, node: NodeId) -> bool {
        self.members.voters.contains(&node)
    }

    fn is_member(&self, node: NodeId) -> bool {
        self.members.voters.contains(&node) || self.members.learners.contains(&node)
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

/// A message on its way, if it is one that crosses the wire.
fn outbound(message: &Message) -> Option<Outbound> {
    let to = NodeId::new(message.to)?;
    let kind = message.get_msg_type();
    let lane = match kind {
        MessageType::MsgAppend if !message.entries.is_empty() => Lane::Bulk,
        MessageType::MsgAppend
        | MessageType::MsgAppendResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgTimeoutNow
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse => Lane::Control,
        // Raft would forward proposals and reads in these; nothing here makes it.
        _ => return None,
    };
    Some(Outbound { to, lane, message: PeerMessage::Raft(wire::encode(message)) })
}
