//! Runs one seed to its verdict. First, a storm of faults affects a working cluster. A calm phase without faults
//! follows. In the calm phase, a subset of the nodes (the core) must converge. Then every node of the core must
//! complete a write, a read, and one pass of each program in the seed's plan.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use super::caller::SimCaller;
use super::clock::TooManySteps;
use super::host::Host;
use super::judge::JudgeTally;
use super::net::NetConditions;
use super::plan::{CALM_START, Plan, PlanFault, one_in};
use super::rng::Rng;
use super::scenario::{Rows, ScenarioRun};
use super::script::ScriptedFault;
use super::violation::Violation;
use super::workload::{self, Scene};
use super::world::{Counts, Started, World, WorldOptions};
use crate::api::simulate;
use crate::env::Entropy;
use crate::model::NodeId;

/// Default duration of the storm.
pub(super) const STORM: Duration = Duration::from_secs(55);

/// Duration of the calm phase, after which the core must have converged.
const CALM: Duration = Duration::from_secs(30);

/// Maximum time until all leases have expired after all programs have ended: the longest TTL of the world (5.5 s) by
/// the slowest allowed clock, plus the margin that leaders add, counted from an election.
const LEASES_END_WITHIN: Duration = Duration::from_secs(9);

/// Minimum number of acknowledged operations. With fewer, the run of a seed does not count.
const ACKNOWLEDGED_MIN: u64 = 650;

/// Minimum number of grants of each lock in the plan. With fewer, the run of a seed does not count.
const GRANTS_MIN: u64 = 5;

/// Events that must have happened for a seed to count.
const REQUIRED_EVENTS: [&str; 2] = ["lease end", "log cut behind a snapshot"];

/// The result of a seed. `acknowledged` and `grants_min` describe the simulator's own programs, which do not run in a
/// [`Scenario`](super::Scenario). Use [`Host::count`] and [`Scenario::at_least`](super::Scenario::at_least) there.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Simulated time.
    pub simulated: Duration,
    /// The hash of all events.
    pub trace: u64,
    /// Number of acknowledged operations of the simulator's own programs. Always 0 in a [`Scenario`](super::Scenario).
    pub acknowledged: u64,
    /// Number of leader changes.
    pub leader_changes: u64,
    /// Number of crashes of processes and machines.
    pub crashes: u64,
    /// Whether the remaining machines had a quorum at the end. If false, more machines were lost than the cluster
    /// tolerates, and the last round was skipped.
    pub recoverable: bool,
    /// Number of grants of the lock that the simulator's own programs were granted least. Without such locks, and in a
    /// [`Scenario`](super::Scenario), always 5.
    pub grants_min: u64,
    /// Counts of operations and events, by name.
    pub counts: BTreeMap<&'static str, u64>,
    /// Counts of the simulator's internal events, for debugging. The format may change.
    pub story: String,
    pub(super) is_scenario: bool,
}

impl Report {
    /// Returns whether enough happened for the seed to count. In a [`Scenario`](super::Scenario), returns whether the
    /// run was [`recoverable`](Self::recoverable). Only [`Scenario::at_least`](super::Scenario::at_least) can tell
    /// whether your program did enough.
    pub fn is_valid(&self) -> bool {
        if self.is_scenario {
            return self.recoverable;
        }
        self.acknowledged >= ACKNOWLEDGED_MIN
            && self.grants_min >= GRANTS_MIN
            && self.leader_changes >= 1
            && self.crashes >= 1
            && self.recoverable
            && REQUIRED_EVENTS.iter().all(|what| self.counts.contains_key(what))
    }
}

/// A run in which an invariant was broken. `Debug` writes the same text as `Display`, so that
/// `scenario.run(seed).unwrap()` shows one event per line.
#[derive(Clone)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Simulated time of the violation.
    pub at: Duration,
    /// The violation.
    pub violation: Violation,
    /// The end of the trace. Empty for [`run_seed`] without `verbose`.
    pub trace: String,
    /// The hash of all events.
    pub(super) trace_hash: u64,
}

impl Failure {
    /// Returns whether another run has failed in the same way after the same events.
    pub(super) fn is_repeated_by(&self, other: &Failure) -> bool {
        let events = |failure: &Failure| (failure.at, failure.trace_hash);
        events(self) == events(other) && self.violation.invariant == other.violation.invariant
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        write!(f, "{}seed {} at {at:.6} s: {}", self.trace, self.seed, self.violation)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}

/// Runs one seed.
///
/// # Errors
/// Returns the broken invariant.
pub fn run_seed(seed: u64, verbose: bool) -> Result<Report, Box<Failure>> {
    run_seed_without(seed, &[], verbose)
}

/// Runs one seed of the simulator's own programs without the parts of its plan with these numbers; see
/// [`parts_of_seed`]. For a program of your own, use [`Scenario::run_without`](super::Scenario::run_without).
///
/// # Errors
/// Returns the broken invariant.
pub fn run_seed_without(
    seed: u64,
    without: &[usize],
    verbose: bool,
) -> Result<Report, Box<Failure>> {
    Run::new(seed, without, verbose, None).finish()
}

/// Runs three nodes for this long, with about a hundred operations a second and a fault about every twenty seconds.
/// Used to measure the speed of the simulator.
///
/// # Errors
/// Returns the broken invariant.
pub fn run_steady(seed: u64, storm: Duration) -> Result<Report, Box<Failure>> {
    let rng = Rng::new(seed);
    let plan = Plan::steady(&rng, storm);
    Run::of(seed, rng, plan, false, None).finish()
}

/// Describes the parts of a seed's plan that [`run_seed_without`] can leave out, in the order of their numbers: the
/// faults, and then those of the simulator's own programs that the seed draws. These programs do not run in a
/// [`Scenario`](super::Scenario), which lists its parts with [`Scenario::parts`](super::Scenario::parts).
pub fn parts_of_seed(seed: u64) -> Vec<String> {
    Plan::draw(&Rng::new(seed), STORM).parts()
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("something fell without a word").to_owned()
}

/// Adds what to do about a panic of tokio, whose tasks, timers and sockets do not exist in the simulator.
fn explained(text: String) -> String {
    match text.contains("there is no reactor running") {
        true => {
            format!(
                "{text} (in the simulator, use `sleep` of the host instead of timers of tokio, and `spawn` of the host \
                 instead of `tokio::spawn`)"
            )
        }
        false => text,
    }
}

/// Returns a description of what a watch, an observer or a follower on one of these nodes has not received.
fn owed(world: &World, core: &[usize]) -> Option<String> {
    let judge = world.judge().borrow();
    let owed = judge.missing_watch_events(core).or_else(|| judge.observer_owes(core));
    owed.or_else(|| judge.missing_follower_members(core))
}

enum StormFault {
    Drawn(PlanFault),
    Scripted(ScriptedFault),
}

/// A run of one seed.
pub(super) struct Run {
    seed: u64,
    plan: Plan,
    rng: Rng,
    world: World,
    scene: Scene,
    /// Whether the nodes whose machines still exist can form a quorum once everything has healed.
    recoverable: bool,
    /// The user's scenario that replaces our own programs.
    foreign: Option<ScenarioRun>,
}

impl Run {
    pub(super) fn new(
        seed: u64,
        without: &[usize],
        verbose: bool,
        mut foreign: Option<ScenarioRun>,
    ) -> Self {
        let rng = Rng::new(seed);
        let mut plan = Plan::draw(&rng, STORM);
        if let Some(scenario) = &mut foreign {
            plan.nodes = scenario.nodes.unwrap_or(plan.nodes);
            plan.programs.clear();
            if scenario.is_quiet {
                plan.faults.clear();
                plan.net = NetConditions::default();
                plan.members_change = false;
            }
            scenario.leave_out(plan.faults.len(), without);
        }
        plan.leave_out(without);
        Self::of(seed, rng, plan, verbose, foreign)
    }

    pub(super) fn of(
        seed: u64,
        rng: Rng,
        plan: Plan,
        verbose: bool,
        foreign: Option<ScenarioRun>,
    ) -> Self {
        let config = foreign.as_ref().map(|scenario| scenario.config.clone());
        let options = WorldOptions {
            nodes: plan.nodes,
            net: plan.net.clone(),
            sync_min: plan.sync_min,
            sync_max: plan.sync_max,
            config: config.unwrap_or_default(),
            verbose,
        };
        let mut world = World::new(rng.next_u64(), options);
        let scene = Scene::new(
            world.judge().clone(),
            world.timers().clone(),
            world.timeline().clone(),
            world.spawner(),
            plan.think_max,
            plan.session_ttl,
        );
        let (of_starts, work) = (Rng::new(rng.next_u64()), scene.clone());
        let (clients, programs) = (plan.clients, plan.programs.clone());
        if let Some(scenario) = &foreign {
            world.judge().borrow_mut().judge_rows(scenario.always.clone());
        }
        let (theirs, lines) = (foreign.clone(), world.trace().lines());
        world.on_start(Rc::new(move |started| {
            let Started { place, id, process } = *started;
            if let Some(scenario) = &theirs {
                let rng = Rng::new(of_starts.next_u64());
                let host = Host::new(work.clone(), lines.clone(), process.caller(), id, rng);
                return work.spawner.spawn(Some(place), (scenario.program)(host));
            }
            workload::start(&work, &process.caller(), id, place, clients, &programs, &of_starts);
        }));
        Self { seed, plan, rng, world, scene, recoverable: true, foreign }
    }

    /// Runs the seed to its end. A panic counts as a violation.
    pub(super) fn finish(mut self) -> Result<Report, Box<Failure>> {
        let gone = catch_unwind(AssertUnwindSafe(|| simulate(|| self.go())));
        let (violation, has_panicked) = match gone {
            Ok(Ok(())) => return Ok(self.report()),
            Ok(Err(violation)) => (violation, false),
            Err(panic) if panic.is::<TooManySteps>() => (self.world.endless_loop(), true),
            Err(panic) => (Violation::new("PANIC", explained(panic_message(panic.as_ref()))), true),
        };
        let failure = self.failure(violation);
        // After a violation, dropping the world may panic and hide the cause. After a panic, a second panic would abort
        // the process.
        match has_panicked {
            true => std::mem::forget(self),
            false => drop(catch_unwind(AssertUnwindSafe(|| drop(self)))),
        }
        Err(Box::new(failure))
    }

    fn go(&mut self) -> Result<(), Violation> {
        self.world.start_all()?;
        self.storm()?;
        self.calm()
    }

    /// Runs the world with faults until the storm is over.
    fn storm(&mut self) -> Result<(), Violation> {
        let script = self.foreign.as_ref().map(|scenario| scenario.script.clone());
        let script_end = self.foreign.as_ref().map(|scenario| scenario.script_end);
        let script = script.unwrap_or_default();
        let drawn = std::mem::take(&mut self.plan.faults).into_iter();
        let mut faults: Vec<(Duration, StormFault)> =
            drawn.map(|(at, fault)| (at, StormFault::Drawn(fault))).collect();
        faults.extend(script.into_iter().map(|(at, fault)| (at, StormFault::Scripted(fault))));
        faults.sort_by_key(|(at, _)| *at);
        for (at, fault) in faults {
            self.world.run_until(at)?;
            match fault {
                StormFault::Drawn(fault) => self.world.inject(fault),
                StormFault::Scripted(fault) => self.world.strike_scripted(fault),
            }
        }
        // A run without drawn faults lasts as long as a run with them.
        let least = if self.is_quiet() { STORM } else { CALM_START };
        let least = least.max(self.plan.storm_end);
        self.world.run_until(script_end.unwrap_or_default().max(least))
    }

    /// Reports whether no fault is drawn.
    fn is_quiet(&self) -> bool {
        self.foreign.as_ref().is_some_and(|scenario| scenario.is_quiet)
    }

    /// Runs the calm phase: a core of at least a quorum must converge. In a minimal core, the other nodes never run
    /// again. If the members change, the core is all current members.
    fn calm(&mut self) -> Result<(), Violation> {
        if !self.world.is_recoverable() {
            self.recoverable = false;
            self.nobody_to_ask("too many machines are lost for the others to decide")?;
            return self.check_end();
        }
        let mut core = self.world.members();
        let is_founding = !self.plan.members_change && self.world.is_as_founded();
        if is_founding && !self.is_quiet() && one_in(&self.rng, 3) {
            let quorum = core.len() / 2 + 1;
            while core.len() > quorum {
                core.remove(super::plan::index(&self.rng, core.len()));
            }
            self.world.destroy_others(&core);
        }
        // Nodes that a pending change may still need run as well.
        self.world.heal(&[&core[..], &self.world.leaving()].concat())?;
        let end = self.world.timeline().now() + CALM;
        self.world.run_until(end - CALM * 4 / 5)?;
        self.world.judge().borrow_mut().calm();
        self.world.judge().borrow_mut().quiet(true);
        // One more fault: a holder of a lock crashes and soon restarts. The other programs wait for the lock at most
        // until the holder's lease expires.
        self.world.run_until(end - CALM * 7 / 10)?;
        let down = Duration::from_millis(self.rng.below(1_000));
        self.world.judge().borrow_mut().quiet(false);
        if self.foreign.as_ref().is_none_or(|scenario| scenario.has_last_crash) {
            self.world.crash_after_storm(down);
        }
        self.world.run_until(end - CALM * 17 / 30)?;
        self.world.judge().borrow_mut().quiet(true);
        self.world.run_until(end - CALM / 2)?;
        // The clients end, and their locks become free.
        self.scene.closing.set(true);
        if self.foreign.is_some() {
            self.world.run_until(end - CALM / 3)?;
            self.world.end_programs();
        }
        let churns = self.plan.members_change;
        let of = |world: &World| if churns { world.members() } else { core.clone() };
        let putting = self.scene.putting.clone();
        let unsettled = |world: &mut World| {
            !world.is_settled(&of(world)) || !world.members_are_quiet() || !putting.is_nobody()
        };
        if !self.world.run_while(end, unsettled)? {
            let (state, core) = (self.world.describe(), self.world.ids(&of(&self.world)));
            return Violation::found(
                "L-CONVERGE",
                format!("{core:?} did not come together: {state}"),
            );
        }
        let core = of(&self.world);
        self.last_round(&core)
    }

    /// Runs on every node of the core: a write, a read that sees everything, and every lock.
    fn last_round(&mut self, core: &[usize]) -> Result<(), Violation> {
        let callers: Vec<_> = self.world.callers(core).collect();
        if let Some(scenario) = self.foreign.clone() {
            return self.last_words(&scenario, &callers);
        }
        let done = workload::last_round(&self.scene, &callers, &self.plan.programs);
        let end = self.world.timeline().now() + CALM;
        let serving = |_: &mut World| done.get() < core.len();
        if !self.world.run_while(end, serving)? {
            let (state, core) = (self.world.describe(), self.world.ids(core));
            let served = done.get();
            return Violation::found("L-SERVE", format!("{served} of {core:?} served: {state}"));
        }
        let owing = |world: &mut World| !world.is_settled(core) || owed(world, core).is_some();
        if !self.world.run_while(end + CALM, owing)? {
            let owed = owed(&self.world, core);
            let state = self.world.describe();
            return Violation::found("W-RELIABLE", format!("owed in the end: {owed:?}: {state}"));
        }
        // Entries of dead clients in lock queues and item queues end with their leases.
        let end = self.world.timeline().now() + CALM;
        let names = || self.plan.programs.iter().flat_map(|program| program.names());
        let left = |world: &World| names().find_map(|lock| world.judge().borrow().line_left(lock));
        if !self.world.run_while(end, |world| left(world).is_some())? {
            let left = left(&self.world);
            return Violation::found("K-LEAK", format!("left in the end: {left:?}"));
        }
        // Since everything has healed, each lease has had time for its TTL and for the restart of its clock on a new
        // leader.
        let end = self.world.timeline().now() + LEASES_END_WITHIN;
        if !self.world.run_while(end, |world| world.unkept_lease().is_some())? {
            let left = self.world.unkept_lease();
            return Violation::found("L-LATE", format!("nobody keeps it in the end: {left:?}"));
        }
        self.world.check_disks(core)?;
        self.world.compare_rest()
    }

    /// Runs the final check of the user's scenario on one node after the other.
    fn last_words(
        &mut self,
        scenario: &ScenarioRun,
        callers: &[(usize, NodeId, SimCaller)],
    ) -> Result<(), Violation> {
        if callers.is_empty() {
            self.nobody_to_ask("no node of the core runs")?;
        }
        for (at, node, caller) in callers {
            let Some(finally) = &scenario.finally else { break };
            let (lines, rng) = (self.world.trace().lines(), Rng::new(node.get()));
            let host = Host::new(self.scene.clone(), lines, caller.clone(), *node, rng);
            let check = finally(host);
            let answer: Rc<RefCell<Option<Result<(), String>>>> = Rc::default();
            let told = answer.clone();
            self.scene.spawner.spawn(Some(*at), async move {
                let came = check.await;
                *told.borrow_mut() = Some(came);
            });
            let end = self.world.timeline().now() + CALM * 2;
            self.world.run_while(end, |_| answer.borrow().is_none())?;
            let came = answer.take().unwrap_or_else(|| Err("it does not end".to_owned()));
            if let Err(why) = came {
                return Violation::found("FINALLY", format!("on {node:?}: {why}"));
            }
        }
        self.world.compare_rest()?;
        self.check_end()
    }

    /// Ends the programs of the user's scenario, and runs its checks of the whole run.
    fn check_end(&mut self) -> Result<(), Violation> {
        let Some(scenario) = &self.foreign else { return Ok(()) };
        self.world.end_programs();
        let judge = self.world.judge().borrow();
        for (name, check) in &scenario.at_end {
            if let Err(why) = check(&Rows::newest(judge.truth())) {
                return Violation::found(name, why);
            }
        }
        Ok(())
    }

    /// Reports a violation if the scenario has a final check, because the check cannot run and the run would prove
    /// nothing.
    fn nobody_to_ask(&self, why: &str) -> Result<(), Violation> {
        let wants = self.foreign.as_ref().is_some_and(|scenario| scenario.finally.is_some());
        let text =
            format!("nobody could be asked what came true in the end: {why}; take another seed");
        if wants { Violation::found("FINALLY", text) } else { Ok(()) }
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
            recoverable: self.recoverable,
            grants_min: grants.min().unwrap_or(GRANTS_MIN),
            counts: judge.tally.counts(),
            story: self.story(&judge.tally),
            is_scenario: self.foreign.is_some(),
        }
    }

    fn story(&self, tally: &JudgeTally) -> String {
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
        let trace = self.world.trace();
        let (trace, trace_hash) = (trace.to_string(), trace.hash());
        Failure { seed: self.seed, at, violation, trace, trace_hash }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Scenario;

    #[test]
    fn unreachable_nodes_fail_only_runs_with_a_final_check() {
        let asks_nothing = Scenario::new(|_| async {}).nodes(3);
        let asks = asks_nothing.clone().finally(|_| async { Ok(()) });
        let run = |scenario: &Scenario| Run::new(1, &[], false, Some(scenario.begin()));
        assert_eq!(run(&asks_nothing).nobody_to_ask("all are gone"), Ok(()));
        let said = run(&asks).nobody_to_ask("all are gone").unwrap_err();
        assert_eq!(said.invariant, "FINALLY");
        assert!(
            said.detail.contains("nobody could be asked") && said.detail.contains("all are gone")
        );
        let said = run(&asks).last_words(&asks.begin(), &[]).unwrap_err();
        assert!(said.detail.contains("no node of the core runs"), "{said}");
    }
}
