//! One process of a simulated node: the parts that real threads would run, and what the judge wants
//! to see of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::caller::Caller;
use super::judge::Judge;
use super::net::SimNetwork;
use crate::api::Client;
use crate::consensus::member_change;
use crate::env::Env;
use crate::machine::Change;
use crate::model::{
    ClusterId, Hello, JoinAsk, KeyRange, LeaseId, Limits, LogIndex, MemberChange, Members, Moment,
    NodeId, PeerMessage, Rejection, Revision, Term,
};
use crate::node::{
    Assembled, Assembly, Bells, CallResult, Contact, Drift, History, Input, Joined, Lessor,
    LogTurn, Look, Next, ReplyTo, Settings, SnapshotTurn, StartError, StopReason,
};
use crate::transport::{Introducer, JoinReply, Receiver, Refused, judge};
use crate::wal::{EntryKind, LogReader};

/// Every cluster of every world has this id: worlds never meet.
const CLUSTER: ClusterId = ClusterId(0xb0_11e);

/// How far clocks may be off, as the nodes are told. See [`super::plan::DRIFT_PPM_MAX`].
const DRIFT_PERCENT: u32 = 10;

/// Small, so that the log changes segments while faults go on.
const SEGMENT_BYTES: u64 = 16 << 10;

/// Small, so that snapshots are taken, and the log is cut, while faults go on.
const SNAPSHOT_LOG_BYTES: u64 = 16 << 10;

/// Small, so that a snapshot has many parts, and something goes wrong between them.
const SNAPSHOT_PART_BYTES: usize = 4 << 10;

/// How much of the history is read at once.
const PAGE_BYTES: usize = 256 << 10;

/// Which parts of a process have something to do.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    driver: AtomicBool,
    log: AtomicBool,
    snapshots: AtomicBool,
}

impl Wakes {
    /// Whether the driver, the log and the snapshots were rung for since the last look.
    pub(crate) fn take(&self) -> (bool, bool, bool) {
        let take =
            |bell: &AtomicBool| bell.load(Ordering::Relaxed) && bell.swap(false, Ordering::Relaxed);
        (take(&self.driver), take(&self.log), take(&self.snapshots))
    }
}

/// What a process is started with.
pub(crate) struct ProcessParts {
    pub(crate) id: NodeId,
    pub(crate) beginning: Beginning,
    pub(crate) env: Env,
    pub(crate) network: SimNetwork,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) judge: Rc<RefCell<Judge>>,
}

/// What a process knows of its cluster from elsewhere than its disk.
pub(crate) enum Beginning {
    /// It is one of so many that found it.
    Founder { nodes: u64 },
    /// It was let in: now, or in an earlier life.
    Newcomer { contact: Contact, members: BTreeMap<NodeId, Contact>, joined: Option<Joined> },
}

/// When a driver wants its next turn.
pub(crate) enum TurnEnd {
    /// At this moment of its clock, if nothing comes before.
    Next(Moment),
    /// Never; why it has stopped.
    Stopped(Option<StopReason>),
}

/// What a process has in its log, durably. It outlives the process: who is down has what it had, and gains nothing.
pub(crate) struct Durable(LogReader);

impl Durable {
    /// Whether it has this entry, or a snapshot that covers it.
    pub(crate) fn has(&self, index: LogIndex, term: Term) -> bool {
        self.0.first() > index.next() || self.0.term(index) == Some(term)
    }
}

/// See the module.
pub(crate) struct Process {
    node: Assembled,
    receiver: Arc<dyn Receiver>,
    introducer: Arc<dyn Introducer>,
    log_reader: LogReader,
    judge: Rc<RefCell<Judge>>,
    /// The newest revision that the judge was shown.
    shown: Cell<Revision>,
    leads: Cell<bool>,
    /// How often its log has worked.
    log_turns: u64,
}

impl Process {
    /// Opens the node's directory and puts the node together.
    pub(crate) fn start(parts: ProcessParts) -> Result<Self, StartError> {
        let ProcessParts { id, beginning, env, network, wakes, judge } = parts;
        let (settings, joined) = match beginning {
            Beginning::Founder { nodes } => (settings(id, nodes), None),
            Beginning::Newcomer { contact, members, joined } => {
                let label = contact.name.clone();
                let settings = settings(id, 0);
                (Settings { contact, members, label, founds: false, ..settings }, joined)
            }
        };
        let bells = {
            let (driver, log, snapshots) = (wakes.clone(), wakes.clone(), wakes);
            Bells {
                driver: Box::new(move || driver.driver.store(true, Ordering::Relaxed)),
                log: Box::new(move || log.log.store(true, Ordering::Relaxed)),
                snapshots: Box::new(move || snapshots.snapshots.store(true, Ordering::Relaxed)),
            }
        };
        let assembly = Assembly::open(settings, env, bells, joined)?;
        let (receiver, introducer) = (assembly.receiver(), assembly.introducer());
        let log_reader = assembly.log_reader();
        let node = assembly.finish(Box::new(network))?;
        let (shown, leads) = (Cell::new(Revision::FIRST), Cell::new(false));
        Ok(Self { node, receiver, introducer, log_reader, judge, shown, leads, log_turns: 0 })
    }

    pub(crate) fn turn(&mut self) -> TurnEnd {
        match self.node.driver.turn() {
            Next::At(moment) => TurnEnd::Next(moment),
            Next::Stopped => TurnEnd::Stopped(self.node.shared.stop_reason()),
        }
    }

    /// The log takes what it writes in its next turn.
    pub(crate) fn begin_log_turn(&mut self) {
        self.node.log_worker.begin();
    }

    /// A turn of the log. Whether it should have another one.
    pub(crate) fn log_turn(&mut self) -> bool {
        self.log_turns += 1;
        match self.node.log_worker.turn() {
            LogTurn::Wrote => true,
            LogTurn::Idle | LogTurn::Full => self.node.log_worker.is_wanted(),
            LogTurn::Ended => false,
        }
    }

    /// A step of the snapshots. Whether it should have another one.
    pub(crate) fn snapshot_turn(&mut self) -> bool {
        matches!(self.node.snapshot_worker.turn(), SnapshotTurn::Worked)
    }

    pub(crate) fn look(&self) -> Look {
        let look = self.node.driver.look();
        self.leads.set(look.leads);
        look
    }

    /// The digest of its replica.
    pub(crate) fn digest(&self) -> u64 {
        self.node.driver.digest()
    }

    /// Whether it led after its last turn.
    pub(crate) fn leads(&self) -> bool {
        self.leads.get()
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::new(Client::new(self.node.shared.clone()), self.judge.clone())
    }

    /// Asks for another leader. The answer comes within a call's deadline.
    pub(crate) fn transfer_leadership(&self) -> oneshot::Receiver<CallResult<()>> {
        let (sender, answer) = oneshot::channel();
        let (reply, deadline) = (ReplyTo::Waiting(sender), self.node.shared.deadline(None));
        self.node.shared.push(Input::Transfer { to: None, deadline, reply });
        answer
    }

    /// Asks the node to stop in good order.
    pub(crate) fn stop(&self) {
        self.node.shared.push(Input::Stop);
    }

    /// The leases of the sessions that the node keeps.
    pub(crate) fn leases_kept(&self) -> Vec<LeaseId> {
        self.node.driver.leases_kept()
    }

    /// The leases that there are, as its replica has them.
    pub(crate) fn leases(&self) -> BTreeSet<LeaseId> {
        self.node.shared.reader.leases().into_iter().map(|(lease, _)| lease).collect()
    }

    /// What says, nearly always, whether these are others than before.
    pub(crate) fn leases_fingerprint(&self) -> [u64; 2] {
        self.node.shared.reader.leases_fingerprint()
    }

    /// Somebody who is no member asks to become one.
    pub(crate) fn ask_to_join(&self, ask: JoinAsk, reply: JoinReply) {
        self.receiver.join(ask, reply);
    }

    // ---- the network -----------------------------------------------------------------------

    pub(crate) fn hello(&self, to: NodeId) -> Hello {
        self.introducer.hello(to)
    }

    pub(crate) fn judge_hello(&self, theirs: &Hello) -> Result<(), Refused> {
        Ok(judge(&self.hello(theirs.from), theirs, &self.introducer.known())?)
    }

    pub(crate) fn deliver(&self, from: NodeId, message: PeerMessage) {
        self.receiver.deliver(from, message);
    }

    pub(crate) fn connected(&self, peer: NodeId, hello: Hello) {
        self.receiver.connected(peer, hello);
    }

    pub(crate) fn disconnected(&self, peer: NodeId) {
        self.receiver.disconnected(peer);
    }

    pub(crate) fn refused(&self, peer: NodeId, why: Refused) {
        self.receiver.refused(peer, why);
    }

    // ---- the judge -------------------------------------------------------------------------

    /// The last entry that its newest snapshot covers.
    pub(crate) fn snapshot(&self) -> Option<LogIndex> {
        self.node.driver.snapshot()
    }

    /// Whether it has handed out an entry to be applied that is not on its disk for good.
    pub(crate) fn is_ahead_of_disk(&self) -> bool {
        self.node.driver.is_ahead_of_disk()
    }

    /// How many bytes its state takes.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.node.shared.reader.bytes()
    }

    /// Whether its log owes it an answer, and how often it has worked.
    pub(crate) fn log_debt(&self) -> Option<u64> {
        self.node.driver.owes_log().then_some(self.log_turns)
    }

    /// Whether it hands leadership over, or cannot.
    pub(crate) fn gives_way(&self) -> bool {
        self.node.driver.gives_way()
    }

    /// Whether it has applied its whole log.
    pub(crate) fn has_applied_all(&self) -> bool {
        self.node.driver.has_applied_all()
    }

    /// While it leads, and counts the time of leases: what it counts.
    pub(crate) fn lessor(&self) -> Option<&Lessor> {
        self.node.driver.lessor()
    }

    /// The newest revision that the judge was shown.
    pub(crate) fn shown(&self) -> Revision {
        self.shown.get()
    }

    /// What has become visible since the last call, revision by revision. What was compacted before
    /// anybody looked is left out.
    pub(crate) fn take_changes(&self) -> Vec<Change> {
        let reader = &self.node.shared.reader;
        let newest = reader.revision();
        let mut changes = Vec::new();
        while self.shown.get() < newest {
            match reader.events(&KeyRange::all(), self.shown.get().next(), PAGE_BYTES) {
                Ok(page) => {
                    changes.extend(page.changes);
                    self.shown.set(Revision(page.next.get() - 1));
                }
                Err(Rejection::Compacted { compacted, .. }) => {
                    self.shown.set(Revision(compacted.get() - 1));
                }
                Err(why) => unreachable!("the history refuses only what was compacted: {why}"),
            }
        }
        changes
    }

    /// Term and hash of the entries after `from`, up to and with `to`.
    pub(crate) fn entries(&self, from: LogIndex, to: LogIndex) -> Vec<(LogIndex, Term, u64)> {
        let mut hashes = Vec::new();
        // What is cut was compared before, or is in a snapshot whose digest is.
        let mut next = LogIndex(from.get().max(1)).next().max(self.log_reader.first());
        while next <= to {
            let entries = self.log_reader.entries(next, to.next(), PAGE_BYTES);
            let Ok(entries) = entries else { break };
            for entry in entries {
                next = entry.index.next();
                hashes.push((entry.index, entry.term, u64::from(crc32fast::hash(&entry.data))));
            }
        }
        hashes
    }

    /// Who belongs to the cluster, as its replica has it.
    pub(crate) fn members(&self) -> Arc<Members> {
        self.node.driver.members()
    }

    /// The changes of the members in the entries after `from`, up to and with `to`; `None` if some of
    /// these are not in its log any more.
    pub(crate) fn changes(
        &self,
        from: LogIndex,
        to: LogIndex,
    ) -> Option<Vec<(LogIndex, MemberChange)>> {
        let mut changes = Vec::new();
        let mut next = LogIndex(from.get().max(1)).next();
        while next <= to {
            let entries = self.log_reader.entries(next, to.next(), PAGE_BYTES).ok()?;
            for entry in entries {
                next = entry.index.next();
                if entry.kind == EntryKind::Membership {
                    changes.push((entry.index, member_change(&entry).ok()?));
                }
            }
        }
        Some(changes)
    }

    /// How many changes of the members are in its log and not applied.
    pub(crate) fn changes_pending(&self) -> usize {
        let applied = self.node.driver.look().applied;
        self.changes(applied, self.log_reader.last()).map_or(0, |changes| changes.len())
    }

    /// The first entry in its log.
    pub(crate) fn first(&self) -> LogIndex {
        self.log_reader.first()
    }

    /// The last entry in its log, or that of the snapshot before it.
    pub(crate) fn last(&self) -> LogIndex {
        self.log_reader.last()
    }

    /// What it has in its log, now and whenever that is asked.
    pub(crate) fn durable(&self) -> Durable {
        Durable(self.log_reader.clone())
    }

    /// Whether it has this entry, or a snapshot that covers it.
    pub(crate) fn has(&self, index: LogIndex, term: Term) -> bool {
        self.durable().has(index, term)
    }

    /// The term of an entry in its log.
    pub(crate) fn term_of(&self, index: LogIndex) -> Option<Term> {
        self.log_reader.term(index)
    }
}

fn settings(id: NodeId, nodes: u64) -> Settings {
    let member = |id: u64| Contact { name: format!("n{id}"), address: format!("n{id}:1") };
    let members = (1..=nodes).filter_map(|id| Some((NodeId::new(id)?, member(id)))).collect();
    Settings {
        node: id,
        contact: member(id.get()),
        endpoints: (0..id.get() % 3).map(|at| format!("http://n{id}:{at}")).collect(),
        cluster: CLUSTER,
        members,
        founds: true,
        listed: Vec::new(),
        has_other_token: false,
        supported_version: crate::model::ClusterVersion::NEWEST,
        dir: PathBuf::from(super::world::DIR),
        heartbeat: Duration::from_millis(100),
        election_timeout: Duration::from_millis(500),
        drift: Drift::percent(DRIFT_PERCENT),
        session_ttl: Duration::from_secs(5),
        call_deadline: Duration::from_secs(5),
        lock_waiters_max: 1000,
        label: format!("n{id}"),
        limits: Limits::default(),
        open_writes_max: 4096,
        open_bytes_max: 64 << 20,
        open_reads_max: 4096,
        quota_bytes: 2 << 30,
        history: History::default(),
        snapshot_log_bytes: SNAPSHOT_LOG_BYTES,
        log_segment_bytes: SEGMENT_BYTES,
        snapshot_part_bytes: SNAPSHOT_PART_BYTES,
        warm_copy: None,
        slow_request: Duration::MAX,
        slow_apply: Duration::MAX,
    }
}
