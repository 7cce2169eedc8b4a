//! One seed, from the beginning to the verdict: a storm of faults over a working cluster, then calm,
//! in which a core of the nodes must come together and do everything again.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use super::judge::Tally;
use super::plan::{Fault, Plan, Who, between, one_in};
use super::rng::Rng;
use super::violation::Violation;
use super::workload::{self, Scene};
use super::world::{Counts, World, WorldOptions};
use crate::env::Entropy;

/// How long faults go on, if nobody says otherwise.
const STORM: Duration = Duration::from_secs(55);

/// How long the calm lasts before the core must have come together.
const CALM: Duration = Duration::from_secs(30);

/// A seed counts only if at least so much has happened.
const ACKNOWLEDGED_MIN: u64 = 200;

/// And only if each lock that it is about was granted so often.
const GRANTS_MIN: u64 = 5;

/// What a seed came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many nodes there were.
    pub nodes: u64,
    /// Simulated time.
    pub simulated: Duration,
    /// The hash of everything that happened.
    pub trace: u64,
    /// Answered operations.
    pub acknowledged: u64,
    /// How often leadership changed.
    pub leader_changes: u64,
    /// How many processes and machines died.
    pub crashes: u64,
    /// How often that of its locks was granted that was granted least.
    pub grants_min: u64,
    /// What else happened, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// In words.
    pub story: String,
}

impl Report {
    /// Whether enough happened for the seed to count.
    pub fn is_valid(&self) -> bool {
        self.acknowledged >= ACKNOWLEDGED_MIN
            && self.grants_min >= GRANTS_MIN
            && self.leader_changes >= 1
            && self.crashes >= 1
    }
}

/// An invariant broke.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// When, in simulated time.
    pub at: Duration,
    /// What.
    pub violation: Violation,
    /// The end of the trace, if the run was verbose.
    pub trace: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        write!(f, "{}seed {} at {at:.6} s: {}", self.trace, self.seed, self.violation)
    }
}

impl std::error::Error for Failure {}

/// Runs one seed.
///
/// # Errors
/// The invariant that broke.
pub fn run_seed(seed: u64, verbose: bool) -> Result<Report, Box<Failure>> {
    let mut run = Run::new(seed, verbose);
    match run.go() {
        Ok(()) => Ok(run.report()),
        Err(violation) => Err(Box::new(run.failure(violation))),
    }
}

/// What a watch, an observer or a follower on one of these nodes has not been told.
fn owed(world: &World, core: &[usize]) -> Option<String> {
    let judge = world.judge().borrow();
    let owed = judge.watch_owes(core).or_else(|| judge.observer_owes(core));
    owed.or_else(|| judge.follower_owes(core))
}

struct Run {
    seed: u64,
    plan: Plan,
    rng: Rng,
    world: World,
    scene: Scene,
}

impl Run {
    fn new(seed: u64, verbose: bool) -> Self {
        let rng = Rng::new(seed);
        let plan = Plan::draw(&rng, STORM);
        let options = WorldOptions {
            nodes: plan.nodes,
            net: plan.net.clone(),
            sync_min: plan.sync_min,
            sync_max: plan.sync_max,
            verbose,
        };
        let mut world = World::new(rng.next_u64(), options);
        let scene = Scene::new(
            world.judge().clone(),
            world.timers().clone(),
            world.timeline().clone(),
            world.spawner(),
            plan.think_max,
        );
        let (of_starts, work) = (Rng::new(rng.next_u64()), scene.clone());
        let (clients, programs) = (plan.clients, plan.programs.clone());
        world.on_start(Rc::new(move |started| {
            workload::start(
                &work,
                &started.process.caller(),
                started.id,
                started.place,
                clients,
                &programs,
                &of_starts,
            );
        }));
        Self { seed, plan, rng, world, scene }
    }

    fn go(&mut self) -> Result<(), Violation> {
        self.world.start_all()?;
        self.storm()?;
        self.calm()
    }

    /// Faults, until the storm is over.
    fn storm(&mut self) -> Result<(), Violation> {
        // The cluster forms in peace: a world in which no node ever met another proves nothing.
        let mut now = Duration::from_secs(3);
        self.world.run_until(now)?;
        // Whatever else the seed does: the leader dies once, and the cluster lives on.
        let death = between(&self.rng, self.plan.storm / 4, self.plan.storm * 3 / 4);
        let mut dead = false;
        while now < self.plan.storm {
            now += self.plan.next_fault_in(&self.rng);
            if now >= death && !dead {
                dead = true;
                self.world.run_until(death)?;
                let down = Duration::from_millis(800 + self.rng.below(2_000));
                let who = Who::Leader;
                self.world.strike(if one_in(&self.rng, 2) {
                    Fault::Kill { who, down }
                } else {
                    Fault::PowerLoss { who, down }
                });
            }
            self.world.run_until(now)?;
            self.world.strike(self.plan.next_fault(&self.rng));
        }
        Ok(())
    }

    /// A core of the nodes, at least a quorum, must come together. The others stay as they are, some
    /// of them dead for good.
    fn calm(&mut self) -> Result<(), Violation> {
        let nodes = usize::try_from(self.plan.nodes).expect("few");
        let core: Vec<usize> = if one_in(&self.rng, 3) {
            let mut all: Vec<usize> = (0..nodes).collect();
            while all.len() > nodes / 2 + 1 {
                all.remove(super::plan::index(&self.rng, all.len()));
            }
            all
        } else {
            (0..nodes).collect()
        };
        self.world.heal(&core)?;
        let end = self.world.timeline().now() + CALM;
        self.world.run_until(end - CALM * 4 / 5)?;
        self.world.judge().borrow_mut().calm();
        // Somebody still dies while it holds, and is there again soon: it is waited for no longer than
        // its lease lives.
        self.world.run_until(end - CALM * 7 / 10)?;
        let down = Duration::from_millis(self.rng.below(1_000));
        self.world.strike(Fault::Kill { who: Who::Holder, down });
        self.world.run_until(end - CALM / 2)?;
        // The clients end, and what they hold goes free.
        self.scene.closing.set(true);
        let settled = self.world.run_while(end, |world| !world.is_settled(&core))?;
        if !settled {
            let state = self.world.describe();
            return Violation::found(
                "L-CONVERGE",
                format!("{core:?} did not come together: {state}"),
            );
        }
        self.last_round(&core)
    }

    /// On every node of the core: a write, a read that sees everything, every lock.
    fn last_round(&mut self, core: &[usize]) -> Result<(), Violation> {
        let callers: Vec<_> = self.world.callers(core).collect();
        let done = workload::last_round(&self.scene, &callers, &self.plan.programs);
        let end = self.world.timeline().now() + CALM;
        let serving = |_: &mut World| done.get() < core.len();
        if !self.world.run_while(end, serving)? {
            let state = self.world.describe();
            let served = done.get();
            return Violation::found("L-SERVE", format!("{served} of {core:?} served: {state}"));
        }
        let owing = |world: &mut World| !world.is_settled(core) || owed(world, core).is_some();
        if !self.world.run_while(end + CALM, owing)? {
            let owed = owed(&self.world, core);
            let state = self.world.describe();
            return Violation::found("W-RELIABLE", format!("owed in the end: {owed:?}: {state}"));
        }
        // What the dead still had in lines and queues ends with their leases.
        let end = self.world.timeline().now() + CALM;
        let names = || self.plan.programs.iter().flat_map(|program| program.names());
        let left = |world: &World| names().find_map(|lock| world.judge().borrow().line_left(lock));
        if !self.world.run_while(end, |world| left(world).is_some())? {
            let left = left(&self.world);
            return Violation::found("K-LEAK", format!("left in the end: {left:?}"));
        }
        self.world.compare_rest()
    }

    fn report(&self) -> Report {
        let judge = self.world.judge().borrow();
        let Counts { crashes, .. } = self.world.counts();
        let locks = self.plan.programs.iter().flat_map(|program| program.locks());
        let grants = locks.map(|lock| judge.tally.grants.get(lock).copied().unwrap_or_default());
        Report {
            seed: self.seed,
            nodes: self.plan.nodes,
            simulated: self.world.timeline().now(),
            trace: self.world.trace().hash(),
            acknowledged: judge.tally.acknowledged(),
            leader_changes: judge.leader_changes(),
            crashes,
            grants_min: grants.min().unwrap_or(GRANTS_MIN),
            counts: judge.tally.others.clone(),
            story: self.story(&judge.tally),
        }
    }

    fn story(&self, tally: &Tally) -> String {
        format!(
            "{:?}, {} messages, {} events; points reached {:?}; {tally:?}",
            self.world.counts(),
            self.world.net().sent(),
            self.world.trace().events(),
            self.world.points_reached(),
        )
    }

    fn failure(&self, violation: Violation) -> Failure {
        let at = self.world.timeline().now();
        Failure { seed: self.seed, at, violation, trace: self.world.trace().to_string() }
    }
}
