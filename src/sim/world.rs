//! A world: nodes, their machines, the network between them, and time, all driven by one seed.
//!
//! One queue holds everything that will happen, ordered by true time, then by the order of queuing.
//! Taking the next thing from it is the only way for time to go on. A node is three things that take
//! turns, exactly as its threads do on a real machine: its driver, its log, and the tasks of the
//! program that it is embedded in. After every turn of a driver the judge looks at the node.
//!
//! ```text
//!   queue ──> turn of a driver ──> messages ──> network ──┐
//!     ^  ├──> turn of a log    ──> proofs   ──> inbox     │ arrivals, timers,
//!     │  ├──> arrival of a message ───────────> inbox     │ faults, restarts
//!     │  └──> fault, restart, handshake ...               │
//!     └───────────────────────────────────────────────────┘
//! ```

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::caller::Caller;
use super::clock::{DriftPpm, SimClock, Timeline};
use super::disk::SimDisk;
use super::executor::{Executor, Owner, Spawner, Timers};
use super::judge::Judge;
use super::net::{Flight, NetConditions, SimNet};
use super::plan::{DRIFT_PPM_MAX, Fault, Split, Who, between, index, one_in};
use super::point::{CutOff, SimPoints};
use super::process::{Process, ProcessParts, TurnEnd, Wakes};
use super::rng::Rng;
use super::trace::Trace;
use super::violation::Violation;
use crate::env::{Entropy, Env};
use crate::model::{LogIndex, NodeId};
use crate::node::Look;

/// How often the nodes look whether they can reach each other, about.
const DIAL_EVERY: Duration = Duration::from_millis(40);

/// How long a connection that carries nothing lives, at most.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The most polls of tasks at one point of time: a task that wakes itself for ever stops the world.
const POLLS_MAX: u64 = 100_000;

/// The longest time between the bell and a turn, on a machine that has something else to do.
const SCHEDULING_MAX: Duration = Duration::from_micros(300);

/// What a world is made of.
#[derive(Clone, Debug)]
pub(crate) struct WorldOptions {
    pub(crate) nodes: u64,
    pub(crate) net: NetConditions,
    pub(crate) sync_min: Duration,
    pub(crate) sync_max: Duration,
    /// Whether lines for people are kept.
    pub(crate) verbose: bool,
}

/// How a node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Its process dies.
    Killed,
    /// Its machine loses power.
    PowerLost,
}

/// One thing that will happen.
enum Happening {
    DriverTurn { node: usize, life: u64 },
    LogTurn { node: usize, life: u64 },
    SnapshotTurn { node: usize, life: u64 },
    Arrive(Flight),
    Dial,
    Start { node: usize, life: u64 },
    Resume { node: usize, life: u64 },
    Heal { partition: u64 },
    DiskRecovers { node: usize, spell: u64 },
    ArmedTooLong { node: usize, life: u64 },
}

struct Scheduled {
    at: Duration,
    number: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A machine with the process on it.
struct SimNode {
    id: NodeId,
    clock: Arc<SimClock>,
    entropy: Arc<Rng>,
    disk: Arc<SimDisk>,
    points: Arc<SimPoints>,
    wakes: Arc<Wakes>,
    process: Option<Process>,
    /// Counts the ends of processes: what was scheduled for an earlier one is void.
    life: u64,
    paused: bool,
    /// When the next turn of the driver is due.
    driver_due: Option<Duration>,
    log_due: Option<Duration>,
    snapshots_due: Option<Duration>,
    /// How much longer a sync takes now, and the number of the spell.
    slow_disk: Duration,
    spell: u64,
    /// How long to stay down after a crash at an armed point.
    armed_down: Duration,
    /// Whether the node may stop by itself: a fault was injected that it must not survive.
    may_stop: bool,
    /// Whether it has. Its program goes on, and gets errors, until the process ends.
    stopped: bool,
}

/// Called when a node's process has started, to start the program's tasks on it.
pub(crate) type OnStart = Rc<dyn Fn(&Started<'_>)>;

/// A process that has just started.
pub(crate) struct Started<'a> {
    pub(crate) place: usize,
    pub(crate) id: NodeId,
    pub(crate) process: &'a Process,
}

/// What has happened to the nodes, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) crashes: u64,
    pub(crate) starts: u64,
    pub(crate) pauses: u64,
    pub(crate) partitions: u64,
    pub(crate) turns: u64,
}

/// See the module.
pub(crate) struct World {
    timeline: Arc<Timeline>,
    rng: Rng,
    options: WorldOptions,
    net: SimNet,
    nodes: Vec<SimNode>,
    executor: Executor,
    timers: Timers,
    queue: BinaryHeap<Reverse<Scheduled>>,
    next_number: u64,
    partition: u64,
    silent_since: BTreeMap<(usize, usize), Duration>,
    judge: Rc<RefCell<Judge>>,
    trace: Trace,
    on_start: Option<OnStart>,
    counts: Counts,
}

impl World {
    /// A world in which no node runs yet.
    pub(crate) fn new(seed: u64, options: WorldOptions) -> Self {
        let rng = Rng::new(seed);
        let timeline = Arc::new(Timeline::default());
        let net = SimNet::new(timeline.clone(), options.net.clone(), Rng::new(rng.next_u64()));
        let timers = Timers::new(timeline.clone());
        let nodes = (1..=options.nodes).map(|id| new_node(id, &timeline, &rng)).collect();
        let judge = Rc::new(RefCell::new(Judge::new(timeline.clone(), options.nodes)));
        let trace = Trace::new(options.verbose);
        let mut world = Self {
            timeline,
            rng,
            options,
            net,
            nodes,
            executor: Executor::new(),
            timers,
            queue: BinaryHeap::new(),
            next_number: 0,
            partition: 0,
            silent_since: BTreeMap::new(),
            judge,
            trace,
            on_start: None,
            counts: Counts::default(),
        };
        world.schedule_in(Duration::ZERO, Happening::Dial);
        world
    }

    /// Says what to do when a process has started.
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

    /// How often each named point was reached, on all nodes together.
    pub(crate) fn points_reached(&self) -> BTreeMap<crate::env::Point, u64> {
        let mut all = BTreeMap::new();
        for (point, count) in self.nodes.iter().flat_map(|node| node.points.reached()) {
            *all.entry(point).or_default() += count;
        }
        all
    }

    /// The processes that run, by the place of their node.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (usize, &Process)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(at, node)| node.running().map(|process| (at, process)))
    }

    /// A way to call each of these nodes.
    pub(crate) fn callers<'a>(
        &'a self,
        places: &'a [usize],
    ) -> impl Iterator<Item = (usize, NodeId, Caller)> + 'a {
        places.iter().filter_map(|&at| {
            let process = self.nodes[at].running()?;
            Some((at, self.nodes[at].id, process.caller()))
        })
    }

    /// Whether these nodes run, follow one leader, and have applied the same, with nobody waiting.
    pub(crate) fn is_settled(&self, core: &[usize]) -> bool {
        let looks: Vec<Option<Look>> =
            core.iter().map(|&at| self.nodes[at].running().map(Process::look)).collect();
        let Some(Some(first)) = looks.first() else { return false };
        let together = looks.iter().flatten().all(|look| {
            (look.term, look.commit, look.applied) == (first.term, first.commit, first.commit)
        });
        let leaders = self.processes().filter(|(_, process)| process.look().leads).count();
        let all_run = looks.iter().all(Option::is_some);
        all_run && together && leaders == 1 && !self.judge.borrow().calls_open(core)
    }

    /// Looks at what the judge has put off until the end.
    ///
    /// # Errors
    /// The violation.
    pub(crate) fn compare_rest(&self) -> Result<(), Violation> {
        let mut judge = self.judge.borrow_mut();
        for (at, process) in self.processes() {
            judge.compare_rest(self.nodes[at].id, process);
        }
        judge.verdict()
    }

    /// The state of every node, for the report of a failure.
    pub(crate) fn describe(&self) -> String {
        let one = |node: &SimNode| match node.running() {
            Some(process) => format!("{:?}: {:?}", node.id, process.look()),
            None => format!("{:?}: down", node.id),
        };
        self.nodes.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// Lets the world go on until `end`, or until an invariant breaks.
    ///
    /// # Errors
    /// The violation.
    pub(crate) fn run_until(&mut self, end: Duration) -> Result<(), Violation> {
        while self.step(end)? {}
        Ok(())
    }

    /// Lets the world go on until `done` says so, looking after everything that happens.
    ///
    /// # Errors
    /// The violation; `Ok(false)` if `end` came first.
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

    /// The next thing, if it is before `end`; else time goes on to `end`.
    fn step(&mut self, end: Duration) -> Result<bool, Violation> {
        let queued = self.queue.peek().map(|Reverse(next)| next.at);
        let sleeper = self.timers.next();
        let Some(at) = queued.into_iter().chain(sleeper).min().filter(|at| *at < end) else {
            self.timeline.advance_to(end.max(self.timeline.now()));
            return Ok(false);
        };
        self.timeline.advance_to(at.max(self.timeline.now()));
        if queued == Some(at) {
            let Reverse(next) = self.queue.pop().expect("peeked a line ago");
            self.happen(next.what)?;
        } else {
            self.timers.wake_due();
        }
        self.settle()?;
        Ok(true)
    }

    /// Runs the tasks that were woken, and schedules what they and the last happening asked for.
    fn settle(&mut self) -> Result<(), Violation> {
        for polls in 0.. {
            if polls == POLLS_MAX {
                return Violation::found(
                    "C-SPIN",
                    format!("{polls} polls, and no time has passed"),
                );
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

    /// Takes what was sent and who was woken.
    fn collect(&mut self) {
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
            Happening::DriverTurn { node, life } => self.driver_turn(node, life),
            Happening::LogTurn { node, life } => self.log_turn(node, life),
            Happening::SnapshotTurn { node, life } => self.snapshot_turn(node, life),
            Happening::Arrive(flight) => {
                self.arrive(&flight);
                Ok(())
            }
            Happening::Dial => {
                self.dial();
                Ok(())
            }
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
            Happening::DiskRecovers { node, spell } if self.nodes[node].spell == spell => {
                self.nodes[node].slow_disk = Duration::ZERO;
                Ok(())
            }
            Happening::ArmedTooLong { node, life } if self.nodes[node].life == life => {
                self.nodes[node].points.disarm();
                Ok(())
            }
            // Of a life, a partition or a spell that is over.
            _ => Ok(()),
        }
    }

    // ---- processes -------------------------------------------------------------------------

    /// Starts the process of every node.
    pub(crate) fn start_all(&mut self) -> Result<(), Violation> {
        (0..self.nodes.len()).try_for_each(|at| self.start(at))
    }

    /// Starts a process, if none runs there.
    pub(crate) fn start(&mut self, at: usize) -> Result<(), Violation> {
        if self.nodes[at].running().is_some() {
            return Ok(());
        }
        if self.nodes[at].stopped {
            self.crash(at, Ending::PowerLost);
        }
        self.counts.starts += 1;
        // The boot-time clock of a machine that was switched on starts anywhere.
        let shown = between(&self.rng, Duration::ZERO, Duration::from_secs(1_000_000));
        let drift = drift(&self.rng);
        let node = &mut self.nodes[at];
        node.clock = Arc::new(SimClock::new(self.timeline.clone(), shown, drift));
        node.wakes = Arc::default();
        node.may_stop = false;
        node.stopped = false;
        let parts = ProcessParts {
            id: node.id,
            nodes: self.options.nodes,
            env: Env {
                clock: node.clock.clone(),
                entropy: node.entropy.clone(),
                disk: node.disk.clone(),
                points: node.points.clone(),
            },
            network: self.net.network_of(node.id),
            wakes: node.wakes.clone(),
        };
        let started = catch_unwind(AssertUnwindSafe(|| Process::start(parts)));
        let id = self.nodes[at].id;
        let process = match started {
            Ok(Ok(process)) => process,
            Ok(Err(why)) => {
                return Violation::found("S-REOPEN", format!("{id:?} does not start: {why}"));
            }
            Err(panic) => {
                self.cut_off(at, panic)?;
                return Ok(());
            }
        };
        self.note(1, &[id.get(), self.nodes[at].life], || format!("{id:?} starts"));
        let now = self.timeline.now();
        self.judge.borrow_mut().started(id);
        if let Some(on_start) = self.on_start.clone() {
            on_start(&Started { place: at, id, process: &process });
        }
        self.nodes[at].process = Some(process);
        self.driver_by(at, now);
        Ok(())
    }

    /// Ends a process.
    pub(crate) fn crash(&mut self, at: usize, ending: Ending) {
        let node = &mut self.nodes[at];
        let Some(process) = node.process.take() else { return };
        let id = node.id;
        node.life += 1;
        node.paused = false;
        node.driver_due = None;
        node.log_due = None;
        node.snapshots_due = None;
        node.points.disarm();
        self.counts.crashes += 1;
        // The files first: nothing that a dying process still does may reach them.
        match ending {
            Ending::Killed => node.disk.kill(),
            Ending::PowerLost => node.disk.crash(),
        }
        self.judge.borrow_mut().ended(id);
        // Whatever its destructors do, nobody sees it.
        drop(catch_unwind(AssertUnwindSafe(|| {
            self.executor.drop_tasks_of(at);
            drop(process);
        })));
        self.nodes[at].wakes.take();
        drop(self.net.take_outgoing());
        // A dead process's peers are told by the operating system; a dead machine's are not.
        for other in 0..self.nodes.len() {
            if other != at && (ending == Ending::Killed || one_in(&self.rng, 2)) {
                self.disconnect(at, other);
            }
        }
        self.note(2, &[id.get(), ending as u64], || format!("{id:?} ends: {ending:?}"));
    }

    fn start_in(&mut self, at: usize, wait: Duration) {
        let life = self.nodes[at].life;
        self.schedule_in(wait, Happening::Start { node: at, life });
    }

    fn pause(&mut self, at: usize, time: Duration) {
        if self.nodes[at].process.is_none() || self.nodes[at].paused {
            return;
        }
        let (id, life) = (self.nodes[at].id, self.nodes[at].life);
        self.nodes[at].paused = true;
        self.counts.pauses += 1;
        self.judge.borrow_mut().paused(id);
        self.note(3, &[id.get()], || format!("{id:?} stands still for {time:?}"));
        self.schedule_in(time, Happening::Resume { node: at, life });
    }

    fn resume(&mut self, at: usize) {
        if !self.nodes[at].paused {
            return;
        }
        let id = self.nodes[at].id;
        self.nodes[at].paused = false;
        self.judge.borrow_mut().resumed(id);
        self.note(4, &[id.get()], || format!("{id:?} goes on"));
        let now = self.timeline.now();
        self.driver_by(at, now);
        self.log_soon(at);
        self.snapshots_soon(at);
    }

    // ---- turns -----------------------------------------------------------------------------

    fn driver_by(&mut self, at: usize, due: Duration) {
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.driver_due.is_some_and(|before| before <= due) {
            return;
        }
        node.driver_due = Some(due);
        let life = node.life;
        self.schedule_at(due, Happening::DriverTurn { node: at, life });
    }

    fn log_soon(&mut self, at: usize) {
        let latency = between(&self.rng, self.options.sync_min, self.options.sync_max)
            + self.nodes[at].slow_disk;
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.log_due.is_some() {
            return;
        }
        let (due, life) = (self.timeline.now() + latency, node.life);
        node.log_due = Some(due);
        self.schedule_at(due, Happening::LogTurn { node: at, life });
    }

    fn snapshots_soon(&mut self, at: usize) {
        let latency = between(&self.rng, self.options.sync_min, self.options.sync_max)
            + self.nodes[at].slow_disk;
        let node = &mut self.nodes[at];
        if node.process.is_none() || node.snapshots_due.is_some() {
            return;
        }
        let (due, life) = (self.timeline.now() + latency, node.life);
        node.snapshots_due = Some(due);
        self.schedule_at(due, Happening::SnapshotTurn { node: at, life });
    }

    fn snapshot_turn(&mut self, at: usize, life: u64) -> Result<(), Violation> {
        let node = &mut self.nodes[at];
        if node.life != life {
            return Ok(());
        }
        node.snapshots_due = None;
        if node.paused {
            return Ok(());
        }
        let Some(process) = &mut node.process else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(|| process.snapshot_turn())) {
            Ok(more) => {
                let id = node.id;
                self.trace.event(self.timeline.now(), 7, &[id.get(), u64::from(more)], &[]);
                if more {
                    self.snapshots_soon(at);
                }
                Ok(())
            }
            Err(panic) => self.cut_off(at, panic),
        }
    }

    fn driver_turn(&mut self, at: usize, life: u64) -> Result<(), Violation> {
        let now = self.timeline.now();
        let node = &mut self.nodes[at];
        if node.life != life || node.driver_due != Some(now) {
            return Ok(());
        }
        node.driver_due = None;
        if node.paused || node.stopped {
            return Ok(());
        }
        let Some(process) = &mut node.process else { return Ok(()) };
        self.counts.turns += 1;
        let turn = catch_unwind(AssertUnwindSafe(|| process.turn()));
        match turn {
            Ok(TurnEnd::Next(moment)) => {
                let due = node.clock.true_time_of(moment) + scheduling(&self.rng);
                let id = node.id;
                let look = process.look();
                self.trace.event(now, 5, &[id.get(), look.applied.get(), look.term.get()], &[]);
                self.judge.borrow_mut().look(id, process, &look);
                if look.leads {
                    self.check_quorum(at, look.commit);
                }
                self.driver_by(at, due);
                Ok(())
            }
            Ok(TurnEnd::Stopped(why)) => self.stopped(at, &why),
            Err(panic) => self.cut_off(at, panic),
        }
    }

    fn log_turn(&mut self, at: usize, life: u64) -> Result<(), Violation> {
        let node = &mut self.nodes[at];
        if node.life != life {
            return Ok(());
        }
        node.log_due = None;
        if node.paused {
            return Ok(());
        }
        let Some(process) = &mut node.process else { return Ok(()) };
        match catch_unwind(AssertUnwindSafe(|| process.log_turn())) {
            Ok(more) => {
                let id = node.id;
                self.trace.event(self.timeline.now(), 6, &[id.get(), u64::from(more)], &[]);
                if more {
                    self.log_soon(at);
                }
                Ok(())
            }
            Err(panic) => self.cut_off(at, panic),
        }
    }

    /// A turn did not end: either a crash was planned at a point that it came to, or the code has
    /// panicked, which is never planned.
    fn cut_off(
        &mut self,
        at: usize,
        panic: Box<dyn std::any::Any + Send>,
    ) -> Result<(), Violation> {
        if !panic.is::<CutOff>() {
            resume_unwind(panic);
        }
        let down = self.nodes[at].armed_down;
        let id = self.nodes[at].id;
        self.note(7, &[id.get()], || format!("{id:?} comes to its point"));
        if self.nodes[at].process.is_some() {
            self.crash(at, Ending::PowerLost);
        } else {
            self.nodes[at].disk.crash();
        }
        self.start_in(at, down);
        Ok(())
    }

    /// A node has stopped by itself.
    fn stopped(&mut self, at: usize, why: &str) -> Result<(), Violation> {
        let id = self.nodes[at].id;
        if !self.nodes[at].may_stop {
            return Violation::found("C-STOP", format!("{id:?} has stopped by itself: {why}"));
        }
        self.note(8, &[id.get()], || format!("{id:?} has stopped: {why}"));
        self.nodes[at].stopped = true;
        if let Some(process) = &self.nodes[at].process {
            self.judge.borrow_mut().hear(process);
        }
        let down = self.nodes[at].armed_down;
        self.start_in(at, down);
        Ok(())
    }

    /// What a leader says is committed, a quorum has in its logs.
    fn check_quorum(&self, leader: usize, commit: LogIndex) {
        let mut leaders = self.processes().filter(|(at, _)| *at == leader);
        let term = leaders.next().and_then(|(_, process)| process.term_of(commit));
        let Some(term) = term else { return };
        let with_it = self.processes().filter(|(_, process)| process.has(commit, term)).count();
        let stopped = self.nodes.len() - self.processes().count();
        self.judge.borrow_mut().check_quorum(commit, with_it, stopped);
    }

    // ---- the network -----------------------------------------------------------------------

    fn arrive(&mut self, flight: &Flight) {
        let now = self.timeline.now();
        let numbers = [flight.from.get(), flight.to.get()];
        self.trace.event(now, 9, &numbers, &flight.frame);
        let at = place(flight.to);
        let Some(process) = &self.nodes[at].process else { return };
        if let Some(message) = self.net.arrive(flight) {
            process.deliver(flight.from, message);
        }
    }

    fn dial(&mut self) {
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                self.dial_pair(a, b);
            }
        }
        let wait = between(&self.rng, DIAL_EVERY / 2, DIAL_EVERY * 3 / 2);
        self.schedule_in(wait, Happening::Dial);
    }

    fn dial_pair(&mut self, a: usize, b: usize) {
        let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
        let now = self.timeline.now();
        if !self.net.wanted(id_a, id_b) {
            self.disconnect(a, b);
            return;
        }
        if self.net.connected(id_a, id_b).is_some() {
            let dead = self.nodes[a].running().is_none() || self.nodes[b].running().is_none();
            if !dead && !self.net.silent(id_a, id_b) {
                self.silent_since.remove(&(a, b));
                if !self.judge_pair(a, b) {
                    self.disconnect(a, b);
                }
                return;
            }
            let since = *self.silent_since.entry((a, b)).or_insert(now);
            // Keep-alives differ: some sides notice soon.
            if now - since > SILENCE_MAX || one_in(&self.rng, 40) {
                self.disconnect(a, b);
            }
            return;
        }
        let (Some(process_a), Some(process_b)) = (self.nodes[a].running(), self.nodes[b].running())
        else {
            return;
        };
        if self.nodes[a].paused || self.nodes[b].paused || !self.net.passable(id_a, id_b) {
            return;
        }
        if self.judge_pair(a, b) {
            self.net.connect(id_a, id_b);
            process_a.connected(id_b, process_b.hello(id_a));
            process_b.connected(id_a, process_a.hello(id_b));
        }
        self.note(10, &[id_a.get(), id_b.get()], || format!("{id_a:?} and {id_b:?} meet"));
    }

    /// Whether two processes accept each other. If not, they are told.
    fn judge_pair(&self, a: usize, b: usize) -> bool {
        let mut accepted = true;
        for (mine, theirs) in [(a, b), (b, a)] {
            let (id_mine, id_theirs) = (self.nodes[mine].id, self.nodes[theirs].id);
            let (Some(process), Some(other)) =
                (self.nodes[mine].running(), self.nodes[theirs].running())
            else {
                return accepted;
            };
            if let Err(why) = process.judge_hello(&other.hello(id_mine)) {
                if why.removed.is_some() {
                    other.refused(id_mine, why.clone());
                }
                process.refused(id_theirs, why);
                accepted = false;
            }
        }
        accepted
    }

    fn disconnect(&mut self, a: usize, b: usize) {
        self.silent_since.remove(&(a.min(b), a.max(b)));
        if !self.net.disconnect(self.nodes[a].id, self.nodes[b].id) {
            return;
        }
        for (side, other) in [(a, b), (b, a)] {
            if let Some(process) = &self.nodes[side].process {
                process.disconnected(self.nodes[other].id);
            }
        }
    }

    // ---- faults ----------------------------------------------------------------------------

    /// Lets something go wrong.
    pub(crate) fn strike(&mut self, fault: Fault) {
        self.note(11, &[], || format!("fault: {fault:?}"));
        match fault {
            Fault::Kill { who, down } => self.down(who, Ending::Killed, down),
            Fault::PowerLoss { who, down } => self.down(who, Ending::PowerLost, down),
            Fault::Blackout { down } => {
                for at in 0..self.nodes.len() {
                    self.crash(at, Ending::PowerLost);
                    let wait = between(&self.rng, Duration::ZERO, down);
                    self.start_in(at, wait);
                }
            }
            Fault::PointCrash { who, point, down } => {
                let Some(at) = self.find(who) else { return };
                self.nodes[at].armed_down = down;
                self.nodes[at].points.arm(point);
                let life = self.nodes[at].life;
                let patience = Duration::from_secs(10);
                self.schedule_in(patience, Happening::ArmedTooLong { node: at, life });
            }
            Fault::Pause { who, time } => {
                if let Some(at) = self.find(who) {
                    self.pause(at, time);
                }
            }
            Fault::PauseAll { time } => {
                for at in 0..self.nodes.len() {
                    let time = between(&self.rng, time / 2, time);
                    self.pause(at, time);
                }
            }
            Fault::Partition { split, time } => self.part(split, time),
            Fault::Clog { time } => {
                let (from, to) = (self.any_id(), self.any_id());
                let until = self.timeline.now() + time;
                self.net.clog(from, to, until);
            }
            Fault::SlowDisk { who, extra, time } => {
                let Some(at) = self.find(who) else { return };
                self.nodes[at].slow_disk = extra;
                self.nodes[at].spell += 1;
                let spell = self.nodes[at].spell;
                self.schedule_in(time, Happening::DiskRecovers { node: at, spell });
            }
            Fault::DiskError { who, down } => {
                let Some(at) = self.find(who) else { return };
                self.nodes[at].armed_down = down;
                self.nodes[at].may_stop = true;
                self.nodes[at].disk.fail_next_sync();
            }
            Fault::Drift => {
                for node in &self.nodes {
                    node.clock.set_drift(drift(&self.rng));
                }
            }
            Fault::Transfer => {
                if let Some(process) =
                    self.find(Who::Leader).and_then(|at| self.nodes[at].process.as_ref())
                {
                    process.transfer_leadership();
                }
            }
        }
    }

    fn down(&mut self, who: Who, ending: Ending, down: Duration) {
        if let Some(at) = self.find(who) {
            self.crash(at, ending);
            self.start_in(at, down);
        }
    }

    fn part(&mut self, split: Split, time: Duration) {
        let count = self.nodes.len();
        self.net.heal();
        self.partition += 1;
        self.counts.partitions += 1;
        let (cut_out, cut_in): (Vec<usize>, Vec<usize>) = match split {
            Split::Halves => {
                let sides: Vec<bool> = (0..count).map(|_| one_in(&self.rng, 2)).collect();
                self.cut_where(|a, b| sides[a] != sides[b]);
                (Vec::new(), Vec::new())
            }
            Split::Isolate(who) => {
                let at: Vec<usize> = self.find(who).into_iter().collect();
                (at.clone(), at)
            }
            Split::Mute(who) => (self.find(who).into_iter().collect(), Vec::new()),
            Split::Deaf(who) => (Vec::new(), self.find(who).into_iter().collect()),
            Split::Bridge => {
                let bridge = index(&self.rng, count);
                let sides: Vec<bool> = (0..count).map(|_| one_in(&self.rng, 2)).collect();
                self.cut_where(|a, b| a != bridge && b != bridge && sides[a] != sides[b]);
                (Vec::new(), Vec::new())
            }
            Split::Random => {
                let cuts: Vec<bool> = (0..count * count).map(|_| one_in(&self.rng, 3)).collect();
                self.cut_where(|a, b| cuts[a * count + b]);
                (Vec::new(), Vec::new())
            }
        };
        self.cut_where(|a, b| cut_out.contains(&a) || cut_in.contains(&b));
        let partition = self.partition;
        self.schedule_in(time, Happening::Heal { partition });
    }

    fn cut_where(&self, cut: impl Fn(usize, usize) -> bool) {
        for a in 0..self.nodes.len() {
            for b in (0..self.nodes.len()).filter(|b| *b != a && cut(a, *b)) {
                self.net.cut(self.nodes[a].id, self.nodes[b].id);
            }
        }
    }

    /// Ends all faults: the network is whole and quick, disks are quick, what stood still goes on.
    /// The nodes of `core` run; the others are as they are.
    pub(crate) fn heal(&mut self, core: &[usize]) -> Result<(), Violation> {
        self.note(12, &[], || format!("everything heals around {core:?}"));
        self.partition += 1;
        self.net.heal();
        self.net.set_conditions(NetConditions::default());
        for at in 0..self.nodes.len() {
            self.nodes[at].slow_disk = Duration::ZERO;
            self.nodes[at].points.disarm();
            self.nodes[at].disk.clear_faults();
            self.resume(at);
        }
        for &at in core {
            self.start(at)?;
        }
        Ok(())
    }

    /// The place of the node that is struck; `None` if nothing runs.
    fn find(&self, who: Who) -> Option<usize> {
        let running: Vec<usize> = self.processes().map(|(at, _)| at).collect();
        if running.is_empty() {
            return None;
        }
        let leader =
            self.processes().filter(|(_, process)| process.leads()).map(|(at, _)| at).last();
        let holder = self.judge.borrow().some_holder().map(place);
        match who {
            Who::Leader if leader.is_some() => leader,
            Who::Holder if holder.is_some_and(|at| running.contains(&at)) => holder,
            Who::Leader | Who::Holder | Who::Any => Some(running[index(&self.rng, running.len())]),
        }
    }

    fn any_id(&self) -> NodeId {
        self.nodes[index(&self.rng, self.nodes.len())].id
    }

    // ---- the queue -------------------------------------------------------------------------

    fn schedule_in(&mut self, wait: Duration, what: Happening) {
        self.schedule_at(self.timeline.now() + wait, what);
    }

    fn schedule_at(&mut self, at: Duration, what: Happening) {
        let number = self.next_number;
        self.next_number += 1;
        self.queue.push(Reverse(Scheduled { at, number, what }));
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

fn new_node(id: u64, timeline: &Arc<Timeline>, rng: &Rng) -> SimNode {
    SimNode {
        id: NodeId::new(id).expect("ids start at 1"),
        clock: Arc::new(SimClock::new(timeline.clone(), Duration::ZERO, 0)),
        entropy: Arc::new(Rng::new(rng.next_u64())),
        disk: Arc::new(SimDisk::new(rng.next_u64())),
        points: Arc::default(),
        wakes: Arc::default(),
        process: None,
        life: 0,
        paused: false,
        driver_due: None,
        log_due: None,
        snapshots_due: None,
        slow_disk: Duration::ZERO,
        spell: 0,
        armed_down: Duration::from_millis(500),
        may_stop: false,
        stopped: false,
    }
}

impl SimNode {
    /// The process, if there is one and its node has not stopped.
    fn running(&self) -> Option<&Process> {
        self.process.as_ref().filter(|_| !self.stopped)
    }
}

/// The place of a node among the nodes.
pub(crate) fn place(id: NodeId) -> usize {
    usize::try_from(id.get() - 1).expect("ids of a world are small")
}

/// A little time until a thread that was woken runs.
fn scheduling(rng: &Rng) -> Duration {
    between(rng, Duration::from_micros(2), SCHEDULING_MAX)
}

fn drift(rng: &Rng) -> DriftPpm {
    let span = u64::try_from(2 * DRIFT_PPM_MAX + 1).expect("positive");
    let drawn = i64::try_from(rng.below(span)).expect("small");
    drawn - DRIFT_PPM_MAX
}
