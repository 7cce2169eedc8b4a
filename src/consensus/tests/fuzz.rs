//! The fuzz target for the consensus: one member whose peers send arbitrary messages. The member
//! must not panic, and must never contradict its own messages.
//!
//! The input is a sequence of events: messages, ticks, proposals, read rounds, disk syncs, applied
//! entries, and crashes. Messages contain raw bytes or values close to interesting ones. Honest
//! replies to the member's messages let it become leader. The peers may lie in any way, so they can
//! also make arbitrary entries committed. The checks therefore cover only this member: it must not
//! contradict its own messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::disk::Disk;
use super::machine::Machine;
use crate::consensus::gate::Standpoint;
use crate::consensus::membership::{self, Configuration};
use crate::consensus::round::RoundContext;
use crate::consensus::{
    Consensus, ConsensusConfig, Offer, Outbound, RaftRole, RoundId, Stepped, Taken, snapshot, wire,
};
use crate::fuzz::{Came, Feed};
use crate::model::{
    DiskId, Incarnation, LogIndex, MemberChange, Members, NodeId, PeerMessage, SnapshotId, Term,
};
use crate::sim::Rng;
use crate::wal;

const HEARTBEAT: usize = 2;
const ELECTION: usize = 10;

/// Number of the member's messages that are kept for replies.
const SENT_MAX: usize = 16;

fn node(id: u64) -> NodeId {
    NodeId::new(id).expect("not 0")
}

fn add(id: u64, replaces: Option<u64>) -> MemberChange {
    let (disk, name) = (DiskId(u128::from(id)), format!("m{id}"));
    let replaces = replaces.map(node);
    MemberChange::Add { id: node(id), disk, name, address: String::new(), replaces }
}

fn members_of(voters: u64, learners: u64) -> Members {
    let founders = (1..=voters).map(|id| (node(id), DiskId(u128::from(id)))).collect();
    let mut members = Members::founded(&founders);
    for id in voters + 1..=voters + learners {
        members.apply(LogIndex(1), &add(id, None));
    }
    members
}

/// The member under test.
struct Subject {
    me: NodeId,
    founded: Members,
    disk: Disk,
    consensus: Consensus,
    machine: Machine,
    lives: u64,
    offer: Option<Offer>,
    /// A snapshot that is being installed, and the number of its group until that group is proven
    /// durable.
    installing: Option<(SnapshotId, u64)>,
    /// The messages that the member has sent, newest last.
    sent: Vec<Message>,
    /// The entries that the consensus has returned as committed.
    history: BTreeMap<LogIndex, wal::Entry>,
    highest: (Term, LogIndex),
    votes: BTreeMap<Term, NodeId>,
    rounds: u64,
}

impl Subject {
    fn new(me: u64, founded: Members) -> Self {
        let (disk, me) = (Disk::new(), node(me));
        let machine = Machine::new(founded.clone());
        let consensus = start(me, &founded, &disk, &machine, 1);
        Self {
            me,
            founded,
            disk,
            consensus,
            machine,
            lives: 1,
            offer: None,
            installing: None,
            sent: Vec::new(),
            history: BTreeMap::new(),
            highest: (Term(1), LogIndex(1)),
            votes: BTreeMap::new(),
            rounds: 0,
        }
    }

    /// Crashes the member, which loses everything that is not synced, and restarts it.
    fn die(&mut self) {
        self.disk.look().queued.clear();
        (self.offer, self.installing) = (None, None);
        self.sent.clear();
        self.lives += 1;
        let commit = {
            let disk = self.disk.look();
            let fits = |(id, _): &(&SnapshotId, &Machine)| disk.term(id.index) == Some(id.term);
            let newest = disk.files.iter().rev().find(fits).map(|(_, machine)| machine.clone());
            self.machine = newest.unwrap_or_else(|| Machine::new(self.founded.clone()));
            disk.hard_state.commit.max(self.machine.index())
        };
        // After a restart, the member starts from the durable commit index.
        self.history.retain(|index, _| *index <= commit);
        self.consensus = start(self.me, &self.founded, &self.disk, &self.machine, self.lives);
        let disk = self.disk.look();
        self.highest = (disk.hard_state.term, commit);
    }

    /// Returns the observable state of the member.
    fn seen(&self) -> (RaftRole, Term, Option<NodeId>, Option<NodeId>, LogIndex, LogIndex) {
        let it = &self.consensus;
        (it.role(), it.term(), it.vote(), it.leader(), it.commit(), it.last_index())
    }

    fn step(&mut self, from: NodeId, bytes: Bytes) -> bool {
        if let Ok(message) = wire::decode(&bytes) {
            assert_eq!(wire::encode(&message), bytes, "one message has two encodings");
        }
        let before = self.seen();
        match self.consensus.step(from, bytes) {
            Ok(Stepped::Done) => true,
            Ok(Stepped::Offer(offer)) => {
                self.offer = Some(offer);
                true
            }
            Err(rejection) => {
                assert_eq!(self.seen(), before, "R-GATE: refused, and it did something");
                if rejection.is_fatal() {
                    assert!(self.consensus.turn().is_err(), "fatal, and it goes on");
                    self.die();
                }
                false
            }
        }
    }

    /// Does the work that the consensus requests, except for its disk. Returns false if the member
    /// must stop.
    fn turn(&mut self) -> bool {
        loop {
            let turn = match self.consensus.turn() {
                Ok(Some(turn)) => turn,
                Ok(None) => break,
                Err(_) => return false,
            };
            self.send(turn.send);
            if let Some(snapshot) = turn.install {
                let group = turn.persist.as_ref().expect("the log receives a group");
                self.installing = Some((snapshot, group.number));
            }
            self.disk.look().queued.extend(turn.persist);
            for entry in &turn.commit {
                let recorded = self.history.entry(entry.index).or_insert_with(|| entry.clone());
                assert_eq!(recorded, entry, "R-SM: another entry at {}", entry.index);
                assert!(
                    self.disk.look().holds(entry.index, entry.term),
                    "applied, and not on disk"
                );
                if self.machine.apply(entry).is_err() {
                    return false;
                }
                if entry.kind == wal::EntryKind::Membership
                    && self.consensus.applied_membership(entry, &self.machine.members).is_err()
                {
                    return false;
                }
            }
            if let Some(last) = turn.commit.last() {
                self.consensus.applied(last.index);
            }
        }
        let it = &self.consensus;
        let (term, commit) = self.highest;
        assert!(it.term() >= term && it.commit() >= commit, "R-TERM, R-COMMIT");
        assert!(it.commit() <= it.last_index(), "R-ORDER");
        self.highest = (it.term(), it.commit());
        true
    }

    /// Checks R-PERSIST and R-VOTE: the state that a message depends on is on disk when it is sent.
    fn send(&mut self, messages: Vec<Outbound>) {
        for Outbound { to, message, .. } in messages {
            let PeerMessage::Raft(bytes) = message else { panic!("a message of raft's") };
            let message = wire::decode(&bytes).expect("its own message");
            assert_eq!(message.to, to.get());
            let (kind, term) = (message.get_msg_type(), Term(message.term));
            let disk = self.disk.look();
            let durable = &disk.hard_state;
            let later = durable.term > term;
            let ahead = kind == MessageType::MsgRequestPreVote
                || kind == MessageType::MsgRequestPreVoteResponse;
            assert!(ahead || durable.term >= term, "R-PERSIST: {durable:?}, {message:?}");
            match kind {
                MessageType::MsgRequestVoteResponse if !message.reject => {
                    assert!(later || durable.vote == Some(to), "R-PERSIST: {message:?}");
                    let voted = *self.votes.entry(term).or_insert(to);
                    assert_eq!(voted, to, "R-VOTE: twice in term {term}");
                }
                MessageType::MsgRequestVote => {
                    let voted = *self.votes.entry(term).or_insert(self.me);
                    assert_eq!(voted, self.me, "R-VOTE: twice in term {term}");
                }
                MessageType::MsgAppendResponse if !message.reject => {
                    let index = LogIndex(message.index);
                    assert!(later || disk.last() >= index, "R-PERSIST: {message:?}");
                }
                _ => {}
            }
            drop(disk);
            if self.sent.len() == SENT_MAX {
                self.sent.remove(0);
            }
            self.sent.push(message);
        }
    }

    /// Syncs the oldest group and reports it.
    fn sync(&mut self) {
        let number = self.disk.look().sync();
        let Some(number) = number else { return };
        let opened = self.consensus.persisted(wal::Durable::for_test(number));
        self.send(opened);
        if let Some((_, group)) = &mut self.installing
            && *group <= number
        {
            *group = 0;
        }
    }

    /// Installs the machine of a proven group. Returns false if the member must stop.
    fn finish_install(&mut self) -> bool {
        let Some((snapshot, 0)) = self.installing else { return true };
        self.installing = None;
        self.machine = self.disk.look().files[&snapshot].clone();
        self.consensus.installed(&self.machine.members).is_ok()
    }

    /// Writes a snapshot of its machine, and truncates the log if `cuts` is set.
    fn snapshot(&mut self, cuts: bool) {
        let machine = self.machine.clone();
        if machine.index() <= LogIndex(1) || self.installing.is_some() {
            return;
        }
        self.consensus.offer_snapshot(Some((machine.id(), &machine.members)));
        let (id, index) = (machine.id(), machine.index());
        self.disk.look().files.insert(id, machine);
        if cuts {
            self.disk.look().cut(index);
            // If this fails, the next turn returns the fault, so the result is ignored here.
            let _ = self.consensus.log_cut();
        }
    }
}

fn start(me: NodeId, founded: &Members, disk: &Disk, machine: &Machine, lives: u64) -> Consensus {
    let entropy = Arc::new(Rng::new(lives));
    let members = if machine.index() > LogIndex(1) { &machine.members } else { founded };
    let config = ConsensusConfig::new(me, members.clone(), HEARTBEAT, ELECTION, entropy);
    let hard_state = disk.look().hard_state.clone();
    let consensus = Consensus::new(config, disk.clone(), hard_state, machine.index());
    let mut consensus = consensus.expect("what it has written down itself");
    if machine.index() > LogIndex(1) {
        consensus.offer_snapshot(Some((machine.id(), &machine.members)));
    }
    consensus
}

/// Runs the target. See the module page.
pub(crate) fn gate(data: &[u8]) -> Came {
    let mut feed = Feed::new(data);
    let (me, founded) = match feed.byte() % 6 {
        0 | 1 => (2, members_of(3, 0)),
        2 => (2, members_of(3, 1)),
        3 => (4, members_of(3, 1)),
        4 => (1, members_of(1, 1)),
        _ => (1, members_of(2, 0)),
    };
    let mut it = Subject::new(me, founded);
    let mut came = Came::Refused;
    while !feed.is_empty() {
        let peer = |feed: &mut Feed<'_>| node(1 + feed.below(5));
        match feed.byte() % 32 {
            0..10 => {
                let message = message(&mut feed, &it);
                let from = if feed.once_in(32) { peer(&mut feed) } else { sender(&message) };
                if it.step(from, wire::encode(&message)) {
                    came = Came::Through;
                }
            }
            10 => {
                let from = peer(&mut feed);
                let bytes = Bytes::copy_from_slice(feed.bytes(100));
                if it.step(from, bytes) {
                    came = Came::Through;
                }
            }
            11..17 => {
                if let Some(answer) = answer(&mut feed, &it) {
                    let (from, bytes) = (sender(&answer), wire::encode(&answer));
                    if it.step(from, bytes) {
                        came = Came::Through;
                    }
                }
            }
            17 | 18 => {
                for _ in 0..=feed.below(2 * ELECTION as u64) {
                    it.consensus.tick();
                }
            }
            19 => {
                let _ = it.consensus.propose(vec![feed.byte(); 1 + usize::from(feed.byte())]);
            }
            20 => {
                it.rounds += 1;
                let incarnation = Incarnation(it.lives);
                let round = RoundId { node: it.me, incarnation, counter: it.rounds };
                it.consensus.read_round(round);
            }
            21 => {
                let change = change(&mut feed);
                if it.machine.members.validate(&change).is_ok()
                    && change != MemberChange::LeaveJoint
                {
                    let _ = it.consensus.propose_membership(&change);
                }
            }
            22 => _ = it.consensus.transfer_to(peer(&mut feed)),
            23 => match feed.byte() % 4 {
                0 => it.consensus.unreachable(peer(&mut feed)),
                1 => it.consensus.snapshot_progress(peer(&mut feed)),
                ok => it.consensus.report_snapshot(peer(&mut feed), ok == 2),
            },
            24 => it.consensus.campaign(),
            25 => it.snapshot(feed.once_in(2)),
            26 => fetch(&mut feed, &mut it),
            27 => {
                if feed.once_in(4) {
                    it.die();
                }
            }
            _ => it.sync(),
        }
        // In most cases, sync and apply everything now. A slow state machine or disk is covered by
        // other events.
        if !feed.once_in(8) {
            while !it.disk.look().queued.is_empty() && !feed.once_in(3) {
                it.sync();
            }
            if !it.turn() || !it.finish_install() {
                it.die();
            }
        }
    }
    came
}

fn sender(message: &Message) -> NodeId {
    NodeId::new(message.from).unwrap_or(node(9))
}

/// Delivers the snapshot file of an offer. The sender of the offer may have lied.
fn fetch(feed: &mut Feed<'_>, it: &mut Subject) {
    let Some(offer) = it.offer.take() else { return };
    let base = wal::Base { index: offer.id.index, term: offer.id.term };
    let members = match feed.byte() % 4 {
        0 => members_of(3, 1),
        _ => it.machine.members.clone(),
    };
    it.disk.look().files.insert(offer.id, Machine::made_up(base, members));
    if it.consensus.take_snapshot(&offer) == Taken::Later {
        it.offer = Some(offer);
    }
}

fn change(feed: &mut Feed<'_>) -> MemberChange {
    let id = |feed: &mut Feed<'_>| node(1 + feed.below(6));
    match feed.byte() % 6 {
        0 | 1 => {
            let replaces = feed.once_in(2).then(|| 1 + feed.below(3));
            add(4 + feed.below(3), replaces)
        }
        2 => MemberChange::Promote(id(feed)),
        3 => MemberChange::Remove(id(feed)),
        4 => MemberChange::Replace { old: id(feed), new: id(feed) },
        _ => MemberChange::LeaveJoint,
    }
}

const KINDS: [MessageType; 19] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgHup,
    MessageType::MsgBeat,
    MessageType::MsgPropose,
    MessageType::MsgUnreachable,
    MessageType::MsgSnapStatus,
    MessageType::MsgCheckQuorum,
    MessageType::MsgTransferLeader,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
];

/// Returns a message with numbers close to the member's own, with the fields of its kind and
/// possibly others.
fn message(feed: &mut Feed<'_>, it: &Subject) -> Message {
    use MessageType as M;
    let kind = match feed.byte() {
        honest @ 0..240 => KINDS[usize::from(honest) % 10],
        other => KINDS[usize::from(other) % KINDS.len()],
    };
    let mut message = Message { to: it.me.get(), ..Message::default() };
    message.set_msg_type(kind);
    let others = [1, 2, 3, 4, 5].into_iter().filter(|id| *id != it.me.get());
    message.from = others.cycle().nth(usize::from(feed.byte() % 4)).expect("never at its end");
    let (term, last, commit) =
        (it.consensus.term().get(), it.consensus.last_index().get(), it.consensus.commit().get());
    // The message mostly has the current term. A vote request, or a reply to a pre-candidate,
    // mostly has the next term.
    let asks = matches!(kind, M::MsgRequestVote | M::MsgRequestPreVote);
    let of_now = term + u64::from(asks || it.consensus.role() == RaftRole::PreCandidate);
    message.term = if feed.once_in(4) { feed.near(of_now) } else { of_now };
    let places = matches!(kind, M::MsgAppend | M::MsgAppendResponse) || asks;
    if places || feed.once_in(32) {
        message.index = feed.near(last);
        let there = it.consensus.term_at(LogIndex(message.index)).map(Term::get);
        message.log_term = match there {
            Some(there) if !feed.once_in(4) => there,
            _ => feed.near(term),
        };
    }
    if matches!(kind, M::MsgAppend | M::MsgHeartbeat) || feed.once_in(32) {
        message.commit = feed.near(commit);
    } else if asks && feed.once_in(2) {
        message.commit = feed.near(commit).min(message.index);
        message.commit_term = feed.near(message.log_term);
    }
    if matches!(kind, M::MsgAppendResponse) && feed.once_in(3) || feed.once_in(32) {
        message.reject = true;
        message.reject_hint = feed.near(last);
    }
    if matches!(kind, M::MsgRequestVoteResponse | M::MsgRequestPreVoteResponse) {
        message.reject = feed.once_in(3);
    }
    if kind == M::MsgAppend || feed.once_in(64) {
        let mut place = (message.index, message.log_term);
        let entries: Vec<Entry> =
            (0..feed.below(4)).map(|_| entry(feed, &mut place, message.term)).collect();
        message.set_entries(entries.into());
    }
    if kind == M::MsgSnapshot || feed.once_in(64) {
        let (index, term) = (LogIndex(feed.near(last + 1)), Term(feed.near(term)));
        let id = SnapshotId { index, term, bytes: 1, checksum: u64::from(feed.byte()) };
        let members = if feed.once_in(2) { it.machine.members.clone() } else { members_of(3, 1) };
        message.set_snapshot(snapshot::to_raft(id, &Configuration::of(&members)));
        if feed.once_in(8) {
            let state = message.mut_snapshot().mut_metadata().mut_conf_state();
            let id = feed.near(2);
            match feed.byte() % 5 {
                0 => state.voters.push(id),
                1 => state.learners.push(id),
                2 => state.voters_outgoing.push(id),
                3 => state.learners_next.push(id),
                _ => state.auto_leave = true,
            }
        }
    }
    message.context = match feed.byte() {
        0..8 => feed.bytes(40).to_vec().into(),
        8..16 => "CampaignTransfer".into(),
        16..32 => {
            let counter = feed.near(it.rounds);
            let id = RoundId { node: it.me, incarnation: Incarnation(it.lives), counter };
            RoundContext { serial: feed.near(it.rounds), id }.to_bytes().into()
        }
        32 => {
            message.request_snapshot = feed.near(last);
            Bytes::new()
        }
        33 => {
            message.priority = feed.near(1) as i64;
            Bytes::new()
        }
        _ => Bytes::new(),
    };
    message
}

/// Returns an entry whose index and term follow `place` in most cases.
fn entry(feed: &mut Feed<'_>, place: &mut (u64, u64), newest: u64) -> Entry {
    let index = if feed.once_in(16) { feed.near(place.0) } else { place.0.wrapping_add(1) };
    let term = match feed.byte() {
        0..128 => newest,
        128..240 => place.1,
        _ => feed.near(place.1),
    };
    *place = (index, term);
    let mut entry = Entry { index, term, ..Entry::default() };
    match feed.byte() % 8 {
        0 | 1 => {
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.data = membership::write_change(&change(feed)).into();
        }
        2 => {
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.data = feed.bytes(30).to_vec().into();
        }
        3 => entry.set_entry_type(EntryType::EntryConfChange),
        4 => {}
        _ => entry.data = feed.bytes(20).to_vec().into(),
    }
    entry
}

/// Returns the reply of an honest peer to a message of the member.
fn answer(feed: &mut Feed<'_>, it: &Subject) -> Option<Message> {
    use MessageType as M;
    let newest = it.sent.len().checked_sub(1)?;
    let original = &it.sent[newest.saturating_sub(usize::from(feed.byte() % 4))];
    let mut answer =
        Message { from: original.to, to: original.from, term: original.term, ..Message::default() };
    let kind = match original.get_msg_type() {
        M::MsgRequestVote => M::MsgRequestVoteResponse,
        M::MsgRequestPreVote => M::MsgRequestPreVoteResponse,
        M::MsgHeartbeat => M::MsgHeartbeatResponse,
        M::MsgAppend | M::MsgSnapshot => M::MsgAppendResponse,
        _ => return None,
    };
    answer.set_msg_type(kind);
    match kind {
        M::MsgAppendResponse if feed.once_in(4) => {
            answer.reject = true;
            answer.index = original.index;
            answer.reject_hint = feed.below(original.index.min(255) + 1);
            answer.log_term = original.log_term;
        }
        M::MsgAppendResponse => {
            let metadata = original.get_snapshot().get_metadata();
            answer.index = original.entries.last().map_or(original.index, |last| last.index);
            answer.index = answer.index.max(metadata.index);
            answer.commit = original.commit.min(answer.index);
        }
        M::MsgHeartbeatResponse => {
            answer.commit = original.commit;
            answer.context = original.context.clone();
        }
        _ => {}
    }
    Some(answer)
}

/// Returns random inputs, and some that reach deep states.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    use crate::env::Entropy as _;
    let rng = Rng::new(8);
    let mut seeds: Vec<Vec<u8>> =
        (0..50).map(|_| (0..40 + rng.below(200)).map(|_| rng.next_u64() as u8).collect()).collect();
    // In each configuration, the member campaigns, is elected by honest replies, proposes an entry,
    // and commits it.
    for configuration in 0..6 {
        let mut orders = vec![configuration];
        let order = |orders: &mut Vec<u8>, order: &[u8]| {
            orders.extend(order);
            // Sync everything, and run a turn.
            orders.extend([0, 0, 0, 0]);
        };
        order(&mut orders, &[24]);
        for _ in 0..2 {
            for back in 0..3 {
                order(&mut orders, &[11, back]);
            }
        }
        for _ in 0..3 {
            order(&mut orders, &[19, 7, 3]);
            order(&mut orders, &[11, 0, 0]);
            order(&mut orders, &[11, 1, 0]);
            order(&mut orders, &[20]);
            order(&mut orders, &[17, 3]);
            order(&mut orders, &[11, 0, 0]);
        }
        order(&mut orders, &[25, 1]);
        order(&mut orders, &[21, 0, 0, 0]);
        order(&mut orders, &[11, 0, 0]);
        order(&mut orders, &[27, 3]);
        seeds.push(orders);
    }
    seeds
}
