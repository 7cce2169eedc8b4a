//! A few members, the messages between them, and what must hold whatever happens.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::disk::Disk;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::wire;
use crate::consensus::{Consensus, ConsensusConfig, Outbound, Role, RoundId, Stepped};
use crate::env::Entropy;
use crate::model::{
    DiskId, Incarnation, LogIndex, MemberChange, Members, NodeId, PeerMessage, Term,
};
use crate::wal;

/// Ticks between heartbeats, and T.
pub(super) const HEARTBEAT: usize = 2;
pub(super) const ELECTION: usize = 10;

pub(super) fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

/// A number that looks random and follows from `state`.
pub(super) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Voters from 1 on, and learners after them.
pub(super) fn members_of(voters: &[u64], learners: &[u64]) -> Members {
    let founders = voters.iter().map(|id| (node(*id), DiskId(u128::from(*id)))).collect();
    let mut members = Members::founded(&founders);
    for id in learners {
        members.apply(LogIndex(1), &add(*id));
    }
    members
}

/// A new member.
pub(super) fn add(id: u64) -> MemberChange {
    let (disk, name) = (DiskId(u128::from(id)), format!("m{id}"));
    MemberChange::Add { id: node(id), disk, name, address: String::new(), replaces: None }
}

struct Fixed(u64);

impl Entropy for Fixed {
    fn next_u64(&self) -> u64 {
        self.0
    }
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct Flying {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) bytes: Bytes,
}

impl Flying {
    pub(super) fn message(&self) -> Message {
        wire::decode(&self.bytes).unwrap()
    }

    pub(super) fn kind(&self) -> MessageType {
        self.message().get_msg_type()
    }
}

pub(super) struct Member {
    pub(super) disk: Disk,
    pub(super) consensus: Option<Consensus>,
    pub(super) applied: LogIndex,
    lives: u64,
    highest: (Term, LogIndex),
}

/// See the module.
pub(super) struct World {
    pub(super) members: BTreeMap<NodeId, Member>,
    pub(super) voters: Vec<NodeId>,
    learners: Vec<NodeId>,
    seed: u64,
    pub(super) flying: Vec<Flying>,
    /// Who led which term.
    leaders: BTreeMap<Term, NodeId>,
    /// What was handed out as committed: once and for all.
    pub(super) history: BTreeMap<LogIndex, wal::Entry>,
    /// The newest committed index when each round began.
    rounds: BTreeMap<RoundId, LogIndex>,
    pub(super) rounds_confirmed: usize,
    round: u64,
    /// Stands for everything that was sent, in order.
    pub(super) trace: u64,
    /// Changes each member's configuration.
    pub(super) tune: fn(&mut ConsensusConfig),
}

impl World {
    pub(super) fn new(voters: u64, learners: u64, seed: u64) -> Self {
        let mut world = Self::dark(voters, learners, seed);
        for id in world.members.keys().copied().collect::<Vec<_>>() {
            world.start(id);
        }
        world
    }

    /// Nobody runs yet.
    pub(super) fn dark(voters: u64, learners: u64, seed: u64) -> Self {
        let member = |id| {
            let highest = (Term(1), LogIndex(1));
            let (disk, applied) = (Disk::new(), LogIndex(1));
            (node(id), Member { disk, consensus: None, applied, lives: 0, highest })
        };
        Self {
            members: (1..=voters + learners).map(member).collect(),
            voters: (1..=voters).map(node).collect(),
            learners: (voters + 1..=voters + learners).map(node).collect(),
            seed,
            flying: Vec::new(),
            leaders: BTreeMap::new(),
            history: BTreeMap::new(),
            rounds: BTreeMap::new(),
            rounds_confirmed: 0,
            round: 0,
            trace: seed,
            tune: |_| (),
        }
    }

    // ---- what happens to members ------------------------------------------------------------------

    pub(super) fn start(&mut self, id: NodeId) {
        let numbers = |ids: &[NodeId]| ids.iter().map(|id| id.get()).collect::<Vec<_>>();
        let members = members_of(&numbers(&self.voters), &numbers(&self.learners));
        let member = self.members.get_mut(&id).unwrap();
        member.lives += 1;
        let entropy = Arc::new(Fixed(self.seed ^ member.lives));
        let mut config = ConsensusConfig::new(id, members, HEARTBEAT, ELECTION, entropy);
        (self.tune)(&mut config);
        member.applied = LogIndex(1);
        let hard_state = member.disk.look().hard_state.clone();
        member.highest = (hard_state.term, hard_state.commit);
        let started = Consensus::new(config, member.disk.clone(), hard_state, LogIndex(1));
        member.consensus = Some(started.unwrap());
    }

    /// The member dies. Of the groups on their way to its disk, the first `synced` have arrived.
    pub(super) fn crash(&mut self, id: NodeId, synced: usize) {
        let member = self.members.get_mut(&id).unwrap();
        member.consensus = None;
        let mut disk = member.disk.look();
        for _ in 0..synced {
            disk.sync();
        }
        disk.queued.clear();
    }

    pub(super) fn is_up(&self, id: NodeId) -> bool {
        self.members[&id].consensus.is_some()
    }

    pub(super) fn at(&mut self, id: u64) -> &mut Consensus {
        self.consensus(node(id)).expect("it runs")
    }

    pub(super) fn consensus(&mut self, id: NodeId) -> Option<&mut Consensus> {
        self.members.get_mut(&id).unwrap().consensus.as_mut()
    }

    pub(super) fn disk(&self, id: u64) -> Disk {
        self.members[&node(id)].disk.clone()
    }

    /// Does everything that a member's consensus asks for, but for its disk.
    pub(super) fn turn(&mut self, id: NodeId) -> Result<(), ConsensusFault> {
        while let Some(consensus) = self.consensus(id)
            && let Some(turn) = consensus.turn()?
        {
            let disk = self.members[&id].disk.clone();
            self.send(id, turn.send);
            disk.look().queued.extend(turn.persist);
            for entry in &turn.commit {
                self.commit(id, entry);
            }
            if let Some(last) = turn.commit.last().map(|entry| entry.index) {
                self.consensus(id).unwrap().applied(last);
            }
            for (round, index) in turn.rounds {
                assert!(index >= self.rounds[&round], "a stale read: {round:?} at {index}");
                self.rounds_confirmed += 1;
            }
        }
        self.look_at(id);
        Ok(())
    }

    fn run(&mut self, id: NodeId) {
        self.turn(id).unwrap();
    }

    pub(super) fn tick(&mut self, id: NodeId) {
        if let Some(consensus) = self.consensus(id) {
            consensus.tick();
            self.run(id);
        }
    }

    /// Syncs one group, with or without the member hearing of it.
    pub(super) fn sync(&mut self, id: NodeId) -> bool {
        let Some(number) = self.members[&id].disk.look().sync() else { return false };
        if let Some(consensus) = self.consensus(id) {
            let opened = consensus.persisted(wal::Durable::for_test(number));
            self.send(id, opened);
            self.run(id);
        }
        true
    }

    pub(super) fn sync_all(&mut self, id: u64) {
        while self.sync(node(id)) {}
    }

    /// Delivers a message.
    pub(super) fn deliver(&mut self, flying: Flying) {
        if let Some(consensus) = self.consensus(flying.to) {
            let stepped = consensus.step(flying.from, flying.bytes.clone());
            let stepped = stepped.unwrap_or_else(|refusal| {
                panic!("{}: {refusal}: {:?}", flying.to, flying.message());
            });
            assert_eq!(stepped, Stepped::Done);
            self.run(flying.to);
        }
    }

    pub(super) fn propose(&mut self, id: NodeId, data: &[u8]) -> Option<(Term, LogIndex)> {
        let place = self.consensus(id)?.propose(data.to_vec()).ok();
        self.run(id);
        place
    }

    pub(super) fn read(&mut self, id: NodeId) -> bool {
        self.round += 1;
        let incarnation = Incarnation(self.members[&id].lives);
        let round = RoundId { node: id, incarnation, counter: self.round };
        let newest = self.history.keys().last().copied().unwrap_or(LogIndex(1));
        self.rounds.insert(round, newest);
        let began = self.consensus(id).is_some_and(|consensus| consensus.read_round(round));
        if began {
            self.run(id);
        }
        began
    }

    // ---- a world without trouble ------------------------------------------------------------------

    /// Delivers, and syncs, until nothing is left to do. Messages that `lost` names get lost.
    pub(super) fn settle_without(&mut self, lost: impl Fn(&Flying) -> bool) {
        for _ in 0..10_000 {
            let flying = std::mem::take(&mut self.flying);
            let mut quiet = flying.is_empty();
            for flying in flying {
                if !lost(&flying) {
                    self.deliver(flying);
                }
            }
            for id in self.members.keys().copied().collect::<Vec<_>>() {
                while self.sync(id) {
                    quiet = false;
                }
            }
            if quiet {
                return;
            }
        }
        panic!("the world does not settle");
    }

    pub(super) fn settle(&mut self) {
        self.settle_without(|_| false);
    }

    /// Makes a member leader.
    pub(super) fn elect(&mut self, id: u64) {
        self.at(id).campaign();
        self.run(node(id));
        self.settle();
        assert_eq!(self.at(id).role(), Role::Leader);
    }

    pub(super) fn leader(&self) -> Option<NodeId> {
        let leads = |member: &Member| member.consensus.as_ref().is_some_and(Consensus::is_leader);
        let newest = |member: &Member| member.consensus.as_ref().map(Consensus::term);
        let leaders = self.members.iter().filter(|(_, member)| leads(member));
        leaders.max_by_key(|(_, member)| newest(member)).map(|(id, _)| *id)
    }

    // ---- what must hold ---------------------------------------------------------------------------

    pub(super) fn send(&mut self, from: NodeId, messages: Vec<Outbound>) {
        for Outbound { to, message, .. } in messages {
            let PeerMessage::Raft(bytes) = message else { panic!("a message of raft's") };
            for byte in &bytes[..] {
                self.trace = (self.trace ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
            let flying = Flying { from, to, bytes };
            self.audit(&flying);
            self.flying.push(flying);
        }
    }

    /// R-PERSIST: what a message says is on its sender's disk when it leaves.
    fn audit(&self, flying: &Flying) {
        let message = flying.message();
        let disk = self.members[&flying.from].disk.look();
        let (durable, term) = (&disk.hard_state, Term(message.term));
        let kind = message.get_msg_type();
        let in_term = durable.term == term;
        let holds = match kind {
            MessageType::MsgRequestVote => {
                let last = (disk.last(), disk.term(disk.last()));
                let claimed = (LogIndex(message.index), Some(Term(message.log_term)));
                (in_term && durable.vote == Some(flying.from) && last == claimed)
                    || durable.term > term
            }
            MessageType::MsgRequestPreVote => {
                let claimed = (LogIndex(message.index), Some(Term(message.log_term)));
                durable.term.next() > term || (disk.last(), disk.term(disk.last())) == claimed
            }
            MessageType::MsgRequestVoteResponse if !message.reject => {
                (in_term && durable.vote == Some(flying.to)) || durable.term > term
            }
            // A promise of nothing: it speaks of a term that has not begun.
            MessageType::MsgRequestPreVoteResponse if !message.reject => true,
            MessageType::MsgAppendResponse if !message.reject => {
                (in_term && disk.last() >= LogIndex(message.index)) || durable.term > term
            }
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgTimeoutNow => {
                (in_term && durable.vote == Some(flying.from)) || durable.term > term
            }
            MessageType::MsgAppendResponse
            | MessageType::MsgHeartbeatResponse
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVoteResponse => durable.term >= term,
            kind => panic!("{kind:?} left"),
        };
        assert!(holds, "R-PERSIST: {} has {durable:?}, and sends {message:?}", flying.from);
    }

    fn commit(&mut self, id: NodeId, entry: &wal::Entry) {
        let member = self.members.get_mut(&id).unwrap();
        assert_eq!(entry.index, member.applied.next(), "R-APPLIED");
        member.applied = entry.index;
        let told = self.history.entry(entry.index).or_insert_with(|| entry.clone());
        assert_eq!(told, entry, "R-SM: {id}");
        let holds =
            |id: &&NodeId| self.members[id].disk.look().term(entry.index) == Some(entry.term);
        let copies = self.voters.iter().filter(holds).count();
        assert!(copies * 2 > self.voters.len(), "R-QUORUM: {entry:?} is on {copies} disks");
        assert!(self.members[&id].disk.look().term(entry.index) == Some(entry.term), "on its own");
    }

    fn look_at(&mut self, id: NodeId) {
        let member = self.members.get_mut(&id).unwrap();
        let Some(consensus) = &member.consensus else { return };
        let status = consensus.status();
        assert!(status.applied <= status.commit && status.commit <= status.last, "R-ORDER");
        let (term, commit) = member.highest;
        assert!(status.term >= term && status.commit >= commit, "R-TERM, R-COMMIT: {status:?}");
        member.highest = (status.term, status.commit);
        if status.role == Role::Leader {
            let leader = *self.leaders.entry(status.term).or_insert(id);
            assert_eq!(leader, id, "R-ELECT: two leaders of term {}", status.term);
            assert!(self.voters.contains(&id), "R-LEARNER");
            for entry in self.history.values() {
                use crate::consensus::gate::Standpoint;
                let term = consensus.term_at(entry.index);
                assert_eq!(term, Some(entry.term), "R-COMPLETE: {id} lacks {entry:?}");
            }
        }
    }

    /// R-MATCH, and that everything committed is where it was.
    pub(super) fn check_logs(&self) {
        let logs: Vec<_> =
            self.members.values().map(|member| member.disk.look().entries.clone()).collect();
        for (i, a) in logs.iter().enumerate() {
            for b in &logs[i + 1..] {
                let same = a.iter().zip(b).rposition(|(a, b)| a.term == b.term);
                let same = same.map_or(0, |place| place + 1);
                assert_eq!(a[..same], b[..same], "R-MATCH");
            }
        }
    }
}
