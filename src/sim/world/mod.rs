//! A world: nodes, their machines, the network between them, and time, all driven by one seed.
//!
//! Events are ordered by true time and then by the order of scheduling. Time advances only by running the first event.
//! The time of a driver's next turn is stored with its node, because every input can change it. Sleeping tasks are
//! stored in the executor, and run after events that have the same time. All other events are in the agenda. A node
//! consists of three parts that take turns, as its threads do on a real machine: its driver, its log, and the tasks of
//! the embedding program. After every turn of a driver the judge inspects the node.
//!
//! ```text
//!   first ──> turn of a driver ──> messages ──> network ──┐
//!     ^  ├──> turn of a log    ──> proofs   ──> inbox     │ arrivals, timers,
//!     │  ├──> arrival of a message ───────────> inbox     │ faults, restarts
//!     │  └──> fault, restart, handshake ...               │
//!     └───────────────────────────────────────────────────┘
//! ```

mod agenda;
mod faults;
mod links;
mod lives;
mod members;
mod newcomers;
mod resets;
mod returning_leader;
mod turns;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::caller::SimCaller;
use super::clock::{DriftPpm, SimClock, Timeline};
use super::disk::SimDisk;
use super::executor::{Executor, Owner, Spawner, Timers};
use super::judge::{CallId, Judge};
use super::member_config::MemberConfig;
use super::net::{Flight, NetConditions, SimNet};
use super::plan::{DRIFT_PPM_MAX, Split, between};
use super::point::SimPoints;
use super::process::{SimDurable, SimProcess, Wakes};
use super::rng::Rng;
use super::rot::Rot;
use super::trace::Trace;
use super::violation::Violation;
use crate::env::Entropy;
use crate::model::{JoinAnswer, Joined, Lane, LeaseId, NodeId, Term};
use crate::node::{CallResult, Contact, Look};
use crate::transport::ProcessEvidence;

use agenda::{Agenda, When};
use newcomers::{Newcomer, NewcomerId};
use returning_leader::ReturningLeader;

/// Average interval between two attempts of the nodes to connect.
const DIAL_INTERVAL: Duration = Duration::from_millis(40);

/// Maximum time until a connection without traffic is closed.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Maximum number of polls at one point of time. A task that wakes itself forever would stop the world.
const POLLS_MAX: u64 = 100_000;

/// Maximum time between a wake-up and the turn, on a machine with other work.
const SCHEDULING_MAX: Duration = Duration::from_micros(300);

/// The data directory of every node.
pub(super) const DIR: &str = "/data";

/// Maximum time of a graceful shutdown: the promised time, by a clock that may be slow.
const STOPS_WITHIN: Duration = Duration::from_millis(1_200);

/// Maximum disk usage as a multiple of the state, and the allowance for small states: log segments kept for reuse,
/// and four times the log size at which a snapshot is due.
const DISK_FACTOR_MAX: u64 = 8;
const DISK_BYTES_MIN: u64 = 512 << 10;

/// The parameters of a world.
#[derive(Clone, Debug)]
pub(crate) struct WorldOptions {
    pub(crate) nodes: u64,
    pub(crate) net: NetConditions,
    pub(crate) sync_min: Duration,
    pub(crate) sync_max: Duration,
    /// The settings of the members.
    pub(crate) config: MemberConfig,
    /// Whether lines for the report of a failure are kept.
    pub(crate) verbose: bool,
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The process is killed.
    Killed,
    /// The machine loses power.
    PowerLost,
}

/// A future event other than the turn of a driver.
enum Happening {
    LogTurn { node: usize, life: u64 },
    SnapshotTurn { node: usize, life: u64 },
    Arrive(Flight),
    Dial,
    Redial { a: usize, b: usize },
    LaneOpens { a: usize, b: usize, connection: u64, lane: Lane },
    Start { node: usize, life: u64 },
    Resume { node: usize, life: u64 },
    Heal { partition: u64 },
    ReturningLeader { partition: u64 },
    CutOff { node: usize, life: u64, time: Duration },
    DiskRecovers { node: usize, outage: u64 },
    Stop { node: usize, down: Duration, storm: u64 },
    Ask { newcomer: NewcomerId },
    Admit { newcomer: NewcomerId, joined: Box<Joined> },
    ArmedTooLong { node: usize, life: u64 },
}

/// A machine with the process on it.
struct SimNode {
    id: NodeId,
    clock: Arc<SimClock>,
    entropy: Arc<Rng>,
    disk: Arc<SimDisk>,
    points: Arc<SimPoints>,
    wakes: Arc<Wakes>,
    process: Option<SimProcess>,
    /// The durable log of its last process when that ended.
    left: Option<SimDurable>,
    /// Number of processes that have ended. Events that were scheduled for an earlier process are ignored.
    life: u64,
    paused: bool,
    /// When the next turn of the driver is due. It is stored here because every input can change it.
    driver_due: Option<When>,
    log_due: Option<Duration>,
    snapshots_due: Option<Duration>,
    /// The current additional time of a sync.
    slow_disk: Duration,
    /// The current additional time of a step of writing a snapshot.
    slow_snapshots: Duration,
    outage: u64,
    /// How long the machine stays down after a crash at an armed point.
    armed_down: Duration,
    /// Whether the node may stop by itself, because a fault was injected that it must not survive.
    may_stop: bool,
    /// Number of disk changes and syncs after which its next start loses power, if it gets that far.
    start_fails_after: Option<u64>,
    /// Since when the program has waited for the shutdown of its node, not counting pauses.
    stopping: Option<Duration>,
    /// Whether the node has stopped. The program continues and gets errors until its process ends.
    stopped: bool,
    /// How it became a member.
    restored_from: WorldRestoredFrom,
    /// Whether the machine and its disk are lost permanently: it was destroyed, or its node was removed from the
    /// cluster.
    gone: bool,
    /// The damage to its disk.
    rotten: Option<(Rot, PathBuf)>,
    /// Whether its disk is full or will soon be.
    full: bool,
    /// Number of restarts after it was removed from the cluster.
    revivals: u64,
}

/// How a node became a member.
#[derive(Clone)]
enum WorldRestoredFrom {
    /// The node is one of the founders.
    Founder,
    /// The node asked to join, under this name and address.
    Newcomer(Contact),
    /// Its id was assigned, but the machine that it is for has not started yet.
    Nobody,
}

/// A function that starts the tasks of the program when the process of a node has started.
pub(crate) type OnStart = Rc<dyn Fn(&Started<'_>)>;

/// A process that has just started.
pub(crate) struct Started<'a> {
    pub(crate) place: usize,
    pub(crate) id: NodeId,
    pub(crate) process: &'a SimProcess,
}

/// Counts of events on the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) crashes: u64,
    pub(crate) starts: u64,
    pub(crate) pauses: u64,
    pub(crate) partitions: u64,
    pub(crate) turns: u64,
}

/// The state of the connections between nodes, outside their processes.
#[derive(Default)]
struct Connections {
    /// Start of the silence of connected pairs without a network between them.
    silent_since: BTreeMap<(usize, usize), Duration>,
    /// The evidence of each node about the process of each other node.
    evidence: BTreeMap<(usize, usize), ProcessEvidence>,
    /// Nodes whose process was killed. Their machines run, and refuse connections.
    killed: BTreeSet<usize>,
}

/// A simulated world.
pub(crate) struct World {
    timeline: Arc<Timeline>,
    rng: Rng,
    options: WorldOptions,
    net: SimNet,
    nodes: Vec<SimNode>,
    executor: Executor,
    timers: Timers,
    agenda: Agenda<Happening>,
    partition: u64,
    /// Number of times that everything has healed. Delayed parts of earlier faults are ignored.
    storm: u64,
    connections: Connections,
    newcomers: BTreeMap<NewcomerId, Newcomer>,
    next_newcomer: NewcomerId,
    /// Replies to newcomers, from the tasks that waited for them.
    admitted: Admitted,
    /// Open requests to transfer leadership.
    transfers: Vec<Transfer>,
    /// How long the next node that resumes a session is paused, and then isolated.
    resumer_pause: Option<(Duration, Duration)>,
    returning_leader: Option<ReturningLeader>,
    judge: Rc<RefCell<Judge>>,
    trace: Trace,
    on_start: Option<OnStart>,
    counts: Counts,
}

/// Replies to newcomers that the world has not handled yet.
type Admitted = Rc<RefCell<Vec<(NewcomerId, JoinAnswer)>>>;

impl World {
    /// Creates a world in which no node runs yet.
    pub(crate) fn new(seed: u64, options: WorldOptions) -> Self {
        let rng = Rng::new(seed);
        let timeline = Arc::new(Timeline::default());
        let net = SimNet::new(timeline.clone(), options.net.clone(), Rng::new(rng.next_u64()));
        let timers = Timers::new(timeline.clone());
        let founder = |id| new_node(id, WorldRestoredFrom::Founder, &timeline, &rng);
        let nodes = (1..=options.nodes).map(founder).collect();
        let judge = Rc::new(RefCell::new(Judge::new(timeline.clone(), options.nodes)));
        let trace = Trace::new(options.verbose);
        let mut world = Self {
            timeline,
            rng,
            options,
            net,
            nodes,
            executor: Executor::default(),
            timers,
            agenda: Agenda::new(),
            partition: 0,
            storm: 0,
            connections: Connections::default(),
            newcomers: BTreeMap::new(),
            next_newcomer: NewcomerId(1),
            admitted: Admitted::default(),
            transfers: Vec::new(),
            resumer_pause: None,
            returning_leader: None,
            judge,
            trace,
            on_start: None,
            counts: Counts::default(),
        };
        world.schedule_in(Duration::ZERO, Happening::Dial);
        world
    }

    /// Sets the function to call when a process has started.
    pub(crate) fn on_start(&mut self, on_start: OnStart) {
        self.on_start = Some(on_start);
    }

    pub(crate) fn judge(&self) -> &Rc<RefCell<Judge>> {
        &self.judge
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.timers
    }

    pub(crate) fn timeline(&self) -> &Arc<Timeline> {
        &self.timeline
    }

    pub(crate) fn spawner(&self) -> Spawner {
        self.executor.spawner()
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn net(&self) -> &SimNet {
        &self.net
    }

    /// Returns how often each named point was reached on all nodes together.
    pub(crate) fn points_reached(&self) -> BTreeMap<crate::env::Point, u64> {
        let mut all = BTreeMap::new();
        for (point, count) in self.nodes.iter().flat_map(|node| node.points.reached()) {
            *all.entry(point).or_default() += count;
        }
        all
    }

    /// Returns the running processes with the indices of their nodes.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (usize, &SimProcess)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| node.running().map(|process| (at, process)))
    }

    /// Returns a caller for each of these nodes.
    pub(crate) fn callers<'a>(
        &'a self,
        places: &'a [usize],
    ) -> impl Iterator<Item = (usize, NodeId, SimCaller)> + 'a {
        places.iter().filter_map(|&at| {
            let process = self.nodes[at].running()?;
            Some((at, self.nodes[at].id, process.caller()))
        })
    }

    /// Returns whether these nodes run, follow one leader, have applied the same log, and have no open calls.
    pub(crate) fn is_settled(&self, core: &[usize]) -> bool {
        let looks: Vec<Option<Look>> =
            core.iter().map(|&at| self.nodes[at].running().map(SimProcess::look)).collect();
        let Some(Some(first)) = looks.first() else { return false };
        let together = looks.iter().flatten().all(|look| {
            (look.term, look.commit, look.applied) == (first.term, first.commit, first.commit)
        });
        let leaders = self.processes().filter(|(_, process)| process.look().leads).count();
        let all_run = looks.iter().all(Option::is_some);
        all_run && together && leaders == 1 && !self.judge.borrow().calls_open(core)
    }

    /// Returns a lease that exists and that no node keeps.
    pub(crate) fn unkept_lease(&self) -> Option<LeaseId> {
        let kept = self.processes().flat_map(|(_, process)| process.leases_kept()).collect();
        self.judge.borrow().unkept_lease(&kept)
    }

    /// Runs the comparisons that the judge has deferred.
    ///
    /// # Errors
    /// Returns the violation.
    pub(crate) fn compare_rest(&self) -> Result<(), Violation> {
        let mut judge = self.judge.borrow_mut();
        for (at, process) in self.processes() {
            judge.compare_rest(self.nodes[at].id, process);
        }
        judge.verdict()
    }

    /// Checks the disk usage of these nodes, which must be idle.
    ///
    /// # Errors
    /// Returns the violation.
    pub(crate) fn check_disks(&self, places: &[usize]) -> Result<(), Violation> {
        for &at in places {
            let Some(process) = self.nodes[at].running() else { continue };
            let (used, state) = (self.nodes[at].disk.used() as u64, process.state_bytes());
            if used > state * DISK_FACTOR_MAX + DISK_BYTES_MIN {
                let id = self.nodes[at].id;
                let words = format!("{id:?} has {used} bytes on its disk, of a state of {state}");
                return Violation::found("S-SIZE", words);
            }
        }
        Ok(())
    }

    /// Returns the ids of the nodes with these indices.
    pub(crate) fn ids(&self, nodes: &[usize]) -> Vec<NodeId> {
        nodes.iter().map(|at| self.nodes[*at].id).collect()
    }

    /// Describes the state of every node for the report of a failure.
    pub(crate) fn describe(&self) -> String {
        let one = |node: &SimNode| match node.running() {
            Some(process) => format!("{:?}: {:?}", node.id, process.look()),
            None => format!("{:?}: down", node.id),
        };
        self.nodes.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// Runs the world until `end`, or until an invariant breaks.
    ///
    /// # Errors
    /// Returns the violation.
    pub(crate) fn run_until(&mut self, end: Duration) -> Result<(), Violation> {
        while self.step(end)? {}
        Ok(())
    }

    /// Runs the world until `done` returns true, which is checked after every event. Returns false if `end` came
    /// first.
    ///
    /// # Errors
    /// Returns the violation.
    pub(crate) fn run_while(
        &mut self,
        end: Duration,
        mut go_on: impl FnMut(&mut World) -> bool,
    ) -> Result<bool, Violation> {
        while go_on(self) {
            if !self.step(end)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs the next event if it is before `end`. Otherwise advances time to `end` and returns false.
    fn step(&mut self, end: Duration) -> Result<bool, Violation> {
        let queued = self.agenda.next();
        let driver = self.next_driver();
        let sleeper = self.timers.next();
        let first = queued.into_iter().chain(driver.map(|(due, _)| due)).min();
        let ats = first.map(|(at, _)| at).into_iter().chain(sleeper);
        let Some(at) = ats.min().filter(|at| *at < end) else {
            self.timeline.advance_to(end.max(self.timeline.now()));
            return Ok(false);
        };
        self.timeline.advance_to(at.max(self.timeline.now()));
        match first.filter(|(due, _)| *due == at) {
            None => self.timers.wake_due(),
            Some(first) => match driver.filter(|(due, _)| *due == first) {
                Some((_, node)) => self.driver_turn(node)?,
                None => {
                    let next = self.agenda.pop().expect("it was there a line ago");
                    self.happen(next)?;
                }
            },
        }
        self.settle()?;
        Ok(true)
    }

    /// Returns the driver whose turn is due first.
    fn next_driver(&self) -> Option<(When, usize)> {
        let due = |(at, node): (usize, &SimNode)| Some((node.driver_due?, at));
        self.nodes.iter().enumerate().filter_map(due).min()
    }

    /// Runs the tasks that were woken, and schedules the events that they and the last event requested.
    fn settle(&mut self) -> Result<(), Violation> {
        for polls in 0.. {
            if polls == POLLS_MAX {
                return Err(self.endless_loop());
            }
            self.collect();
            let nodes = &self.nodes;
            let may_run = |owner: Owner| owner.is_none_or(|at| !nodes[at].paused);
            if !self.executor.run_one(&self.rng, may_run) {
                break;
            }
        }
        self.judge.borrow_mut().verdict()
    }

    /// Returns the violation of the task that was polled last, if that task loops while no time passes.
    pub(crate) fn endless_loop(&self) -> Violation {
        let who = match self.executor.last_polled() {
            Some(at) => format!("a program on {:?}", self.nodes[at].id),
            None => "a task".to_owned(),
        };
        let detail = format!(
            "{who} loops, and no simulated time passes: sleep between attempts with `sleep` of the host, because calls on a \
             stopped node and local reads return at once"
        );
        Violation::new("C-SPIN", detail)
    }

    /// Collects sent messages, replies to newcomers, and wake-ups.
    fn collect(&mut self) {
        self.handle_newcomer_replies();
        for flight in self.net.take_outgoing() {
            self.schedule_at(flight.at, Happening::Arrive(flight));
        }
        for at in 0..self.nodes.len() {
            let (driver, log, snapshots) = self.nodes[at].wakes.take();
            if driver {
                let due = self.timeline.now() + self.scheduling();
                self.driver_by(at, due);
            }
            if log {
                self.log_soon(at);
            }
            if snapshots {
                self.snapshots_soon(at);
            }
        }
    }

    fn happen(&mut self, what: Happening) -> Result<(), Violation> {
        match what {
            Happening::LogTurn { node, life } => self.log_turn(node, life),
            Happening::SnapshotTurn { node, life } => self.snapshot_turn(node, life),
            Happening::Arrive(flight) => {
                self.arrive(flight);
                Ok(())
            }
            Happening::Dial => {
                self.dial();
                Ok(())
            }
            Happening::Redial { a, b } => {
                if self.net.connected(self.nodes[a].id, self.nodes[b].id).is_none() {
                    self.dial_pair(a, b);
                }
                Ok(())
            }
            Happening::LaneOpens { a, b, connection, lane } => {
                self.open_lane(a, b, connection, lane);
                Ok(())
            }
            Happening::Stop { node, down, storm } if self.storm == storm => {
                self.stop(node, down);
                Ok(())
            }
            Happening::Ask { newcomer } => {
                self.ask(newcomer);
                Ok(())
            }
            Happening::Admit { newcomer, joined } => self.admit(newcomer, *joined),
            Happening::Start { node, life } if self.nodes[node].life == life => self.start(node),
            Happening::Resume { node, life } if self.nodes[node].life == life => {
                self.resume(node);
                Ok(())
            }
            Happening::Heal { partition } if self.partition == partition => {
                self.note(20, &[partition], || "the network is whole again".to_owned());
                self.net.heal();
                Ok(())
            }
            Happening::ReturningLeader { partition } if self.partition == partition => {
                self.isolate_leader();
                Ok(())
            }
            Happening::CutOff { node, life, time } if self.nodes[node].life == life => {
                if self.nodes[node].paused {
                    self.part(Split::Alone(node), time);
                }
                Ok(())
            }
            Happening::DiskRecovers { node, outage } if self.nodes[node].outage == outage => {
                self.disk_recovers(node);
                Ok(())
            }
            Happening::ArmedTooLong { node, life } if self.nodes[node].life == life => {
                self.nodes[node].points.disarm();
                Ok(())
            }
            // The event belongs to a process, partition, storm or slow spell that has ended.
            _ => Ok(()),
        }
    }

    fn schedule_in(&mut self, wait: Duration, what: Happening) {
        self.schedule_at(self.timeline.now() + wait, what);
    }

    fn schedule_at(&mut self, at: Duration, what: Happening) {
        self.agenda.push(at, what);
    }

    fn scheduling(&self) -> Duration {
        scheduling(&self.rng)
    }

    fn note(&mut self, kind: u8, numbers: &[u64], line: impl FnOnce() -> String) {
        let now = self.timeline.now();
        self.trace.event(now, kind, numbers, &[]);
        self.trace.line(now, line);
    }
}

fn new_node(
    id: u64,
    restored_from: WorldRestoredFrom,
    timeline: &Arc<Timeline>,
    rng: &Rng,
) -> SimNode {
    SimNode {
        id: NodeId::new(id).expect("ids start at 1"),
        clock: Arc::new(SimClock::new(timeline.clone(), Duration::ZERO, 0)),
        entropy: Arc::new(Rng::new(rng.next_u64())),
        disk: Arc::new(SimDisk::new(rng.next_u64())),
        points: Arc::default(),
        wakes: Arc::default(),
        process: None,
        left: None,
        life: 0,
        paused: false,
        driver_due: None,
        log_due: None,
        snapshots_due: None,
        slow_disk: Duration::ZERO,
        slow_snapshots: Duration::ZERO,
        outage: 0,
        armed_down: Duration::from_millis(500),
        may_stop: false,
        start_fails_after: None,
        stopping: None,
        stopped: false,
        restored_from,
        gone: false,
        rotten: None,
        full: false,
        revivals: 0,
    }
}

impl SimNode {
    /// Returns the process, if it exists and its node has not stopped.
    fn running(&self) -> Option<&SimProcess> {
        self.process.as_ref().filter(|_| !self.stopped)
    }

    /// Returns whether the damaged file still exists.
    fn is_rotten(&self) -> bool {
        self.rotten.as_ref().is_some_and(|(_, path)| self.disk.read(path).is_some())
    }

    fn has_rotten_log(&self) -> bool {
        self.rotten.as_ref().is_some_and(|(what, _)| what.is_of_log())
    }
}

/// A request for a transfer of leadership that waits for its reply.
struct Transfer {
    call: CallId,
    at: usize,
    /// The term in which it led when the request was made.
    led: Option<Term>,
    answer: oneshot::Receiver<CallResult<()>>,
}

/// Returns the index of a node.
pub(crate) fn place(id: NodeId) -> usize {
    usize::try_from(id.get() - 1).expect("ids of a world are small")
}

/// Returns a short time until a woken thread runs.
fn scheduling(rng: &Rng) -> Duration {
    between(rng, Duration::from_micros(2), SCHEDULING_MAX)
}

/// Returns the rate error of a clock: in half of the cases the maximum in either direction.
fn drift(rng: &Rng) -> DriftPpm {
    match rng.below(4) {
        0 => return DRIFT_PPM_MAX,
        1 => return -DRIFT_PPM_MAX,
        _ => {}
    }
    let span = u64::try_from(2 * DRIFT_PPM_MAX + 1).expect("positive");
    let drawn = i64::try_from(rng.below(span)).expect("small");
    drawn - DRIFT_PPM_MAX
}
