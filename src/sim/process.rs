//! One process of a simulated node: the parts that real threads would run, and the state that the judge inspects.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::caller::SimCaller;
use super::judge::Judge;
use super::member_config::MemberConfig;
use super::net::SimNetwork;
use crate::api::Client;
use crate::consensus::member_change;
use crate::env::Env;
use crate::machine::Change;
use crate::model::{
    ClusterId, Hello, JoinAsk, KeyRange, LeaseId, LogIndex, MemberChange, Members, Moment, NodeId,
    PeerMessage, Rejection, Revision, Term,
};
use crate::node::{
    Assembled, Assembly, CallResult, Contact, Drift, History, Input, Joined, LogTurn, Look, Next,
    ReplyTo, Settings, SharedLessor, SnapshotTurn, StartError, StopReason, Wakers,
};
use crate::transport::inspect::check_hello;
use crate::transport::{Introducer, JoinReply, Receiver, Refused};
use crate::wal::{EntryKind, LogReader};

/// The cluster id in every world. Worlds are separate, so one id is enough.
const CLUSTER: ClusterId = ClusterId(0xb0_11e);

/// The clock drift bound in the configuration of the nodes. See [`super::plan::DRIFT_PPM_MAX`].
const DRIFT_PERCENT: u32 = 10;

/// Small, so that the log changes segments during faults.
const SEGMENT_BYTES: u64 = 16 << 10;

/// Small, so that snapshots are taken and the log is truncated during faults.
const SNAPSHOT_LOG_BYTES: u64 = 16 << 10;

/// Small, so that a snapshot has many parts and faults happen between them.
const SNAPSHOT_PART_BYTES: usize = 4 << 10;

/// Size of a page when reading the history.
const PAGE_BYTES: usize = 256 << 10;

/// Flags for the parts of a process that have work to do.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    driver: AtomicBool,
    log: AtomicBool,
    snapshots: AtomicBool,
}

impl Wakes {
    /// Returns and clears the flags of the driver, the log and the snapshots.
    pub(crate) fn take(&self) -> (bool, bool, bool) {
        let take =
            |bell: &AtomicBool| bell.load(Ordering::Relaxed) && bell.swap(false, Ordering::Relaxed);
        (take(&self.driver), take(&self.log), take(&self.snapshots))
    }
}

/// The arguments for starting a process.
pub(crate) struct ProcessParts {
    pub(crate) id: NodeId,
    pub(crate) config: MemberConfig,
    pub(crate) start_mode: SimBeginning,
    pub(crate) env: Env,
    pub(crate) network: SimNetwork,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) judge: Rc<RefCell<Judge>>,
}

/// The facts about its cluster that a process does not read from its disk.
pub(crate) enum SimBeginning {
    /// The node is one of `nodes` founders.
    Founder { nodes: u64 },
    /// The node was admitted, now or in an earlier incarnation.
    Newcomer { contact: Contact, members: BTreeMap<NodeId, Contact>, joined: Option<Joined> },
}

/// When the driver needs its next turn.
pub(crate) enum TurnEnd {
    /// At this moment of the node's clock, or earlier if an input arrives.
    Next(Moment),
    /// Never: the driver has stopped, for this reason.
    Stopped(Option<StopReason>),
}

/// The durable log of a process. It outlives the process: while the process is down, it does not change.
pub(crate) struct SimDurable(LogReader);

impl SimDurable {
    /// Returns whether the log has this entry, or a snapshot covers it.
    pub(crate) fn has(&self, index: LogIndex, term: Term) -> bool {
        self.0.first() > index.next() || self.0.term(index) == Some(term)
    }
}

/// A process of a simulated node.
pub(crate) struct SimProcess {
    node: Assembled,
    receiver: Arc<dyn Receiver>,
    introducer: Arc<dyn Introducer>,
    log_reader: LogReader,
    judge: Rc<RefCell<Judge>>,
    /// The newest revision that the judge has seen.
    shown: Cell<Revision>,
    leads: Cell<bool>,
    log_turns: u64,
}

impl SimProcess {
    /// Opens the directory of the node and assembles the node.
    pub(crate) fn start(parts: ProcessParts) -> Result<Self, StartError> {
        let ProcessParts { id, config, start_mode, env, network, wakes, judge } = parts;
        let (settings, joined) = match start_mode {
            SimBeginning::Founder { nodes } => (settings(id, config, nodes), None),
            SimBeginning::Newcomer { contact, members, joined } => {
                let label = contact.name.clone();
                let settings = settings(id, config, 0);
                (Settings { contact, members, label, founds: false, ..settings }, joined)
            }
        };
        let bells = {
            let (driver, log, snapshots) = (wakes.clone(), wakes.clone(), wakes);
            Wakers {
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

    /// Lets the log take the jobs that it writes in its next turn.
    pub(crate) fn begin_log_turn(&mut self) {
        self.node.log_worker.begin();
    }

    /// Runs a turn of the log. Returns whether the log needs another turn.
    pub(crate) fn log_turn(&mut self) -> bool {
        self.log_turns += 1;
        match self.node.log_worker.turn() {
            LogTurn::Wrote => true,
            LogTurn::Idle | LogTurn::Full => self.node.log_worker.is_wanted(),
            LogTurn::Ended => false,
        }
    }

    /// Runs a step of the snapshots. Returns whether there are further steps.
    pub(crate) fn snapshot_turn(&mut self) -> bool {
        matches!(self.node.snapshot_worker.turn(), SnapshotTurn::Worked)
    }

    pub(crate) fn look(&self) -> Look {
        let look = self.node.driver.look();
        self.leads.set(look.leads);
        look
    }

    /// Returns the digest of its replica.
    pub(crate) fn digest(&self) -> u64 {
        self.node.driver.digest()
    }

    /// Returns whether the node led after its last turn.
    pub(crate) fn leads(&self) -> bool {
        self.leads.get()
    }

    pub(crate) fn caller(&self) -> SimCaller {
        SimCaller::new(Client::new(self.node.shared.clone()), self.judge.clone())
    }

    /// Requests a transfer of leadership. The reply arrives within the call deadline.
    pub(crate) fn transfer_leadership(&self) -> oneshot::Receiver<CallResult<()>> {
        let (sender, answer) = oneshot::channel();
        let (reply, deadline) = (ReplyTo::Waiting(sender), self.node.shared.deadline(None));
        self.node.shared.push(Input::Transfer { to: None, deadline, reply });
        answer
    }

    /// Requests a graceful shutdown of the node.
    pub(crate) fn stop(&self) {
        self.node.shared.push(Input::Stop);
    }

    /// Returns the leases of the sessions that the node keeps.
    pub(crate) fn leases_kept(&self) -> Vec<LeaseId> {
        self.node.driver.leases_kept()
    }

    /// Returns all leases in its replica.
    pub(crate) fn leases(&self) -> BTreeSet<LeaseId> {
        self.node.shared.reader.leases().into_iter().map(|(lease, _)| lease).collect()
    }

    /// Returns a fingerprint that almost certainly changes when the leases change.
    pub(crate) fn leases_fingerprint(&self) -> [u64; 2] {
        self.node.shared.reader.leases_fingerprint()
    }

    /// Delivers the join request of a machine that is not a member.
    pub(crate) fn ask_to_join(&self, ask: JoinAsk, reply: JoinReply) {
        self.receiver.join(ask, reply);
    }

    // ---- the network -----------------------------------------------------------------------

    pub(crate) fn hello(&self, to: NodeId) -> Hello {
        self.introducer.hello(to)
    }

    pub(crate) fn judge_hello(&self, theirs: &Hello) -> Result<(), Refused> {
        Ok(check_hello(&self.hello(theirs.from), theirs, &self.introducer.known())?)
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

    pub(crate) fn process_ended(&self, peer: NodeId, ended: bool) {
        self.receiver.process_ended(peer, ended);
    }

    pub(crate) fn refused(&self, peer: NodeId, why: Refused) {
        self.receiver.refused(peer, why);
    }

    // ---- the judge -------------------------------------------------------------------------

    /// Returns the last entry that its newest snapshot covers.
    pub(crate) fn snapshot(&self) -> Option<LogIndex> {
        self.node.driver.snapshot()
    }

    /// Returns whether the node has released an entry for applying before its own log has written the entry.
    pub(crate) fn is_ahead_of_disk(&self) -> bool {
        self.node.driver.is_ahead_of_disk()
    }

    /// Returns the size of its state in bytes.
    pub(crate) fn state_bytes(&self) -> u64 {
        self.node.shared.reader.bytes()
    }

    /// Returns the number of log turns so far if the driver waits for its log, and otherwise `None`.
    pub(crate) fn log_debt(&self) -> Option<u64> {
        self.node.driver.owes_log().then_some(self.log_turns)
    }

    /// Returns whether the node is transferring leadership, or has no member to which it can transfer leadership.
    pub(crate) fn is_transferring_or_cannot(&self) -> bool {
        self.node.driver.is_transferring_or_cannot()
    }

    /// Returns whether the node has applied its whole log.
    pub(crate) fn has_applied_all(&self) -> bool {
        self.node.driver.has_applied_all()
    }

    /// Returns the lease clock of the node, which runs while the node leads.
    pub(crate) fn lessor(&self) -> &SharedLessor {
        &self.node.shared.lessor
    }

    /// Returns the newest revision that the judge has seen.
    pub(crate) fn shown(&self) -> Revision {
        self.shown.get()
    }

    /// Returns the changes that have become visible since the last call, by revision. Omits those that were compacted
    /// before.
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

    /// Returns term and hash of the entries after `from`, up to and including `to`.
    pub(crate) fn entries(&self, from: LogIndex, to: LogIndex) -> Vec<(LogIndex, Term, u64)> {
        let mut hashes = Vec::new();
        // Start after the truncated entries. They have been compared before, or a snapshot with a compared digest
        // covers them.
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

    /// Returns the members in its replica.
    pub(crate) fn members(&self) -> Arc<Members> {
        self.node.driver.members()
    }

    /// Returns the membership changes in the entries after `from`, up to and including `to`, or `None` if some of
    /// these entries are no longer in its log.
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

    /// Returns the number of membership changes in its log that are not applied.
    pub(crate) fn changes_pending(&self) -> usize {
        let applied = self.node.driver.look().applied;
        self.changes(applied, self.log_reader.last()).map_or(0, |changes| changes.len())
    }

    /// Returns the first entry in its log.
    pub(crate) fn first(&self) -> LogIndex {
        self.log_reader.first()
    }

    /// Returns the index of the last entry in the log, or of the snapshot before it if the log is empty.
    pub(crate) fn last(&self) -> LogIndex {
        self.log_reader.last()
    }

    /// Returns a handle to its durable log.
    pub(crate) fn durable(&self) -> SimDurable {
        SimDurable(self.log_reader.clone())
    }

    /// Returns whether the node's disk has this entry, or a snapshot that covers it.
    pub(crate) fn has(&self, index: LogIndex, term: Term) -> bool {
        self.durable().has(index, term)
    }

    /// Returns the term of an entry in its log.
    pub(crate) fn term_of(&self, index: LogIndex) -> Option<Term> {
        self.log_reader.term(index)
    }
}

fn settings(id: NodeId, config: MemberConfig, nodes: u64) -> Settings {
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
        session_ttl: config.session_ttl,
        call_deadline: config.call_deadline,
        lock_waiters_max: config.lock_waiters_max,
        label: format!("n{id}"),
        limits: config.limits,
        open_writes_max: config.open_writes_max,
        open_bytes_max: config.open_bytes_max,
        open_reads_max: config.open_reads_max,
        quota_bytes: config.quota_bytes,
        history: History::default(),
        snapshot_log_bytes: SNAPSHOT_LOG_BYTES,
        log_segment_bytes: SEGMENT_BYTES,
        snapshot_part_bytes: SNAPSHOT_PART_BYTES,
        warm_copy: None,
        slow_request: Duration::MAX,
        slow_apply: Duration::MAX,
    }
}
