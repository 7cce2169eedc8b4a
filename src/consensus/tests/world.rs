//! A small simulated cluster: its members, the messages between them, and checks of the invariants.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

use super::disk::Disk;
use super::machine::Machine;
use crate::consensus::fault::ConsensusFault;
use crate::consensus::gate::GateRejection;
use crate::consensus::{
    Consensus, ConsensusConfig, Offer, RaftRole, RoundId, Stepped, Taken, wire,
};
use crate::env::Entropy;
pub(super) use crate::model::samples::node;
use crate::model::{
    DiskId, Incarnation, LogIndex, MemberChange, Members, NodeId, SnapshotId, Term,
};
use crate::wal;

/// Ticks between heartbeats, and the election timeout T.
pub(super) const HEARTBEAT: usize = 2;
pub(super) const ELECTION: usize = 10;

pub(super) fn members_of(voters: &[u64], learners: &[u64]) -> Members {
    let founders = voters.iter().map(|id| (node(*id), DiskId(u128::from(*id)))).collect();
    let mut members = Members::founded(&founders);
    for id in learners {
        members.apply(LogIndex(1), &add(*id));
    }
    members
}

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

/// A message in flight.
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
    pub(super) machine: Machine,
    pub(super) applied: LogIndex,
    /// A snapshot that was offered to this member and that it does not have yet.
    pub(super) offer: Option<Offer>,
    /// A snapshot to install once its group is proven durable.
    pub(super) installing: Option<(SnapshotId, u64)>,
    lives: u64,
    pub(super) highest: (Term, LogIndex),
}

/// The cluster. See the module page.
pub(super) struct World {
    pub(super) members: BTreeMap<NodeId, Member>,
    /// The members at the beginning.
    founded: Members,
    seed: u64,
    pub(super) flying: Vec<Flying>,
    pub(super) leaders: BTreeMap<Term, NodeId>,
    /// The entries that were returned as committed, which never change.
    pub(super) history: BTreeMap<LogIndex, wal::Entry>,
    /// The state of the machine after each entry.
    pub(super) states: BTreeMap<LogIndex, Machine>,
    /// For each read round, the highest committed index when the round began.
    rounds: BTreeMap<RoundId, LogIndex>,
    pub(super) rounds_confirmed: usize,
    pub(super) installs: usize,
    /// Number of leaders that have applied their own removal.
    pub(super) removed_leaders: usize,
    round: u64,
    /// Whether a snapshot with a proven group is installed only by [`World::finish_install`].
    pub(super) holds_installs: bool,
    /// A member that is not started when it is added.
    pub(super) stays_dark: Option<NodeId>,
    /// A hash of all sent messages in order.
    pub(super) trace: u64,
    /// Changes the configuration of each member.
    pub(super) tune: fn(&mut ConsensusConfig),
}

impl World {
    pub(super) fn new(voters: u64, learners: u64, seed: u64) -> Self {
        let mut world = Self::dark(voters, learners, seed);
        for id in world.ids() {
            world.start(id);
        }
        world
    }

    /// Creates a cluster in which no member runs yet.
    pub(super) fn dark(voters: u64, learners: u64, seed: u64) -> Self {
        let ids = |range: std::ops::RangeInclusive<u64>| range.collect::<Vec<_>>();
        let founded = members_of(&ids(1..=voters), &ids(voters + 1..=voters + learners));
        let mut world = Self {
            members: BTreeMap::new(),
            founded,
            seed,
            flying: Vec::new(),
            leaders: BTreeMap::new(),
            history: BTreeMap::new(),
            states: BTreeMap::new(),
            rounds: BTreeMap::new(),
            rounds_confirmed: 0,
            installs: 0,
            removed_leaders: 0,
            round: 0,
            holds_installs: false,
            stays_dark: None,
            trace: seed,
            tune: |_| (),
        };
        (1..=voters + learners).for_each(|id| world.create(node(id)));
        world
    }

    /// Creates a member with an empty disk that does not run yet.
    pub(super) fn create(&mut self, id: NodeId) {
        let machine = Machine::new(self.founded.clone());
        let member = Member {
            disk: Disk::new(),
            consensus: None,
            machine,
            applied: LogIndex(1),
            offer: None,
            installing: None,
            lives: 0,
            highest: (Term(1), LogIndex(1)),
        };
        self.members.insert(id, member);
    }

    pub(super) fn founded(&self) -> &Members {
        &self.founded
    }

    pub(super) fn ids(&self) -> Vec<NodeId> {
        self.members.keys().copied().collect()
    }

    /// Returns the members as of the newest entry that any member has applied.
    pub(super) fn newest(&self) -> &Members {
        self.states.last_key_value().map_or(&self.founded, |(_, machine)| &machine.members)
    }

    // ---- events of members
    // -----------------------------------------------------------------------

    /// Starts a member from its disk: from the newest snapshot that its log refers to, and the log.
    pub(super) fn start(&mut self, id: NodeId) {
        let founded = self.founded.clone();
        let member = self.members.get_mut(&id).unwrap();
        member.lives += 1;
        let disk = member.disk.clone();
        let (machine, hard_state) = {
            let disk = disk.look();
            let fits = |(id, _): &(&SnapshotId, &Machine)| disk.term(id.index) == Some(id.term);
            let newest = disk.files.iter().rev().find(fits).map(|(_, machine)| machine.clone());
            (newest.unwrap_or_else(|| Machine::new(founded)), disk.hard_state.clone())
        };
        let entropy = Arc::new(Fixed(self.seed ^ member.lives));
        let members = machine.members.clone();
        let mut config = ConsensusConfig::new(id, members, HEARTBEAT, ELECTION, entropy);
        (self.tune)(&mut config);
        member.highest = (hard_state.term, hard_state.commit);
        member.applied = machine.index();
        let started = Consensus::new(config, disk, hard_state, machine.index());
        let consensus = member.consensus.insert(started.unwrap());
        if machine.index() > LogIndex(1) {
            consensus.offer_snapshot(Some((machine.id(), &machine.members)));
        }
        member.machine = machine;
    }

    /// Crashes the member. Of the groups being written to its disk, the first `synced` are durable.
    pub(super) fn crash(&mut self, id: NodeId, synced: usize) {
        let member = self.members.get_mut(&id).unwrap();
        (member.consensus, member.offer, member.installing) = (None, None, None);
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

    /// Does all work that a member's consensus requests, except for its disk.
    pub(super) fn turn(&mut self, id: NodeId) -> Result<(), ConsensusFault> {
        while let Some(consensus) = self.consensus(id)
            && let Some(turn) = consensus.turn()?
        {
            let disk = self.members[&id].disk.clone();
            self.send(id, turn.send);
            if let Some(snapshot) = turn.install {
                assert!(turn.commit.is_empty(), "a snapshot comes alone");
                let group = turn.persist.as_ref().expect("the log receives a group");
                assert_eq!(group.base.map(|base| base.index), Some(snapshot.index));
                self.members.get_mut(&id).unwrap().installing = Some((snapshot, group.number));
            }
            disk.look().queued.extend(turn.persist);
            for entry in &turn.commit {
                self.commit(id, entry)?;
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

    /// Syncs one group, and reports it if the member runs.
    pub(super) fn sync(&mut self, id: NodeId) -> bool {
        let Some(number) = self.members[&id].disk.look().sync() else { return false };
        if let Some(consensus) = self.consensus(id) {
            let opened = consensus.persisted(wal::Durable::for_test(number));
            self.send(id, opened);
            self.run(id);
        }
        if self.members[&id].installing.is_some_and(|(_, group)| group <= number) {
            // The group with the snapshot is proven durable.
            self.members.get_mut(&id).unwrap().installing.as_mut().unwrap().1 = 0;
        }
        if !self.holds_installs {
            self.finish_install(id);
        }
        true
    }

    pub(super) fn sync_all(&mut self, id: u64) {
        while self.sync(node(id)) {}
    }

    pub(super) fn deliver(&mut self, flying: Flying) {
        let is_removed = self.newest().is_removed(flying.from);
        let Some(consensus) = self.consensus(flying.to) else { return };
        match consensus.step(flying.from, flying.bytes.clone()) {
            Ok(Stepped::Done) => {}
            Ok(Stepped::Offer(offer)) => {
                self.members.get_mut(&flying.to).unwrap().offer = Some(offer);
            }
            Err(GateRejection::Removed) if is_removed => {}
            Err(rejection) => panic!("{}: {rejection}: {:?}", flying.to, flying.message()),
        }
        self.run(flying.to);
    }

    // ---- members and snapshots
    // --------------------------------------------------------------------

    pub(super) fn change(&mut self, id: NodeId, change: &MemberChange) -> Option<LogIndex> {
        let place = self.consensus(id)?.propose_membership(change).ok();
        self.run(id);
        place.map(|(_, index)| index)
    }

    /// Makes the member write a snapshot of its state to its disk and offer it.
    pub(super) fn snapshot(&mut self, id: NodeId) {
        let member = self.members.get_mut(&id).unwrap();
        let Some(consensus) = &mut member.consensus else { return };
        if member.machine.index() > LogIndex(1) && member.installing.is_none() {
            let machine = member.machine.clone();
            consensus.offer_snapshot(Some((machine.id(), &machine.members)));
            member.disk.look().files.insert(machine.id(), machine);
        }
    }

    /// Makes the member remove all snapshots before the one of its applied state. Newer ones are
    /// being installed.
    pub(super) fn prune(&mut self, id: NodeId) {
        let member = &self.members[&id];
        let applied = member.applied;
        if member.consensus.is_some() && member.installing.is_none() {
            let mut disk = member.disk.look();
            let newest = disk.files.keys().rev().find(|id| id.index <= applied).copied();
            disk.files.retain(|id, _| newest.is_none_or(|newest| id.index >= newest.index));
        }
    }

    /// Makes the member truncate the front of its log, up to its newest snapshot or `keep` entries
    /// before it.
    pub(super) fn cut(&mut self, id: NodeId, keep: u64) {
        let member = &self.members[&id];
        if member.consensus.is_none() || member.installing.is_some() {
            return;
        }
        let applied = member.applied;
        let mut disk = member.disk.look();
        let newest = disk.files.keys().rev().find(|id| id.index <= applied).copied();
        if let Some(newest) = newest {
            disk.cut(LogIndex(newest.index.get().saturating_sub(keep)));
        }
    }

    /// Makes progress with the snapshot that the member was offered. Returns false if there is
    /// nothing to do.
    pub(super) fn fetch(&mut self, id: NodeId) -> bool {
        let member = &self.members[&id];
        let (Some(_), Some(offer)) = (&member.consensus, member.offer.clone()) else {
            return false;
        };
        let disk = member.disk.clone();
        let is_here = disk.look().files.contains_key(&offer.id);
        if !is_here {
            let found = self.members[&offer.from].disk.look().files.get(&offer.id).cloned();
            let Some(sender) = self.consensus(offer.from) else { return false };
            let Some(machine) = found else {
                sender.report_snapshot(id, false);
                self.run(offer.from);
                self.members.get_mut(&id).unwrap().offer = None;
                return true;
            };
            sender.snapshot_progress(id);
            disk.look().files.insert(offer.id, machine);
        }
        let taken = self.consensus(id).unwrap().take_snapshot(&offer);
        if taken == Taken::Later {
            return false;
        }
        self.members.get_mut(&id).unwrap().offer = None;
        self.run(id);
        true
    }

    /// Installs a snapshot whose group is proven.
    pub(super) fn finish_install(&mut self, id: NodeId) -> bool {
        let member = self.members.get_mut(&id).unwrap();
        let Some((snapshot, 0)) = member.installing else { return false };
        member.installing = None;
        let machine = member.disk.look().files[&snapshot].clone();
        assert_eq!(self.states[&snapshot.index], machine, "R-SM: {id} installs {snapshot:?}");
        member.applied = machine.index();
        member.machine = machine;
        let consensus = member.consensus.as_mut().expect("it runs");
        consensus.installed(&member.machine.members).unwrap();
        consensus.offer_snapshot(Some((snapshot, &member.machine.members)));
        self.installs += 1;
        self.run(id);
        true
    }

    /// Makes a leader take a snapshot if its followers need another one.
    pub(super) fn serve(&mut self, id: NodeId) -> bool {
        let is_wanted = self.consensus(id).is_some_and(|consensus| consensus.wants_snapshot());
        if is_wanted {
            self.snapshot(id);
        }
        is_wanted
    }

    // ---- proposals and reads
    // ----------------------------------------------------------------------

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

    // ---- a cluster without faults
    // -----------------------------------------------------------------

    /// Delivers messages and syncs until there is nothing left to do. Messages for which `lost`
    /// returns true are dropped.
    pub(super) fn settle_without(&mut self, lost: impl Fn(&Flying) -> bool) {
        for _ in 0..10_000 {
            let flying = std::mem::take(&mut self.flying);
            let mut quiet = flying.is_empty();
            for flying in flying {
                if !lost(&flying) {
                    self.deliver(flying);
                }
            }
            for id in self.ids() {
                while self.sync(id) {
                    quiet = false;
                }
                quiet &= !(self.finish_install(id) | self.fetch(id));
                self.serve(id);
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
        assert_eq!(self.at(id).role(), RaftRole::Leader);
    }

    pub(super) fn leader(&self) -> Option<NodeId> {
        let leads = |member: &Member| member.consensus.as_ref().is_some_and(Consensus::is_leader);
        let newest = |member: &Member| member.consensus.as_ref().map(Consensus::term);
        let leaders = self.members.iter().filter(|(_, member)| leads(member));
        leaders.max_by_key(|(_, member)| newest(member)).map(|(id, _)| *id)
    }
}
