//! One seed, from the beginning to the verdict: a storm of faults over a working cluster, then calm,
//! in which a core of the nodes must come together and do everything again.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use super::caller::Caller;
use super::judge::Tally;
use super::plan::{Fault, PEACE, Plan, Who, one_in};
use super::rng::Rng;
use super::scenario::{Host, Scenario};
use super::violation::Violation;
use super::workload::{self, Scene};
use super::world::{Counts, Started, World, WorldOptions};
use crate::env::Entropy;
use crate::model::NodeId;

/// How long faults go on, if nobody says otherwise.
const STORM: Duration = Duration::from_secs(55);

/// How long the calm lasts before the core must have come together.
const CALM: Duration = Duration::from_secs(30);

/// How long leases live on at most that nobody keeps any more, when all programs have come to their end: as
/// long as the longest of the world (5.5 s) by the slowest clock inside the bound, with the part that is waited
/// beyond it, from an election on.
const LEASES_END_WITHIN: Duration = Duration::from_secs(9);

/// A seed counts only if at least so much has happened.
const ACKNOWLEDGED_MIN: u64 = 650;

/// And only if each lock that it is about was granted so often.
const GRANTS_MIN: u64 = 5;

/// And only if these have happened.
const SURELY: [&str; 2] = ["lease end", "log cut behind a snapshot"];

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
    /// Whether the machines that were left could decide in the end: more were lost than there may be if
    /// not, and nothing was asked of them.
    pub recoverable: bool,
    /// How often that of its locks was granted that was granted least.
    pub grants_min: u64,
    /// What was done and what happened, by name.
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
            && self.recoverable
            && SURELY.iter().all(|what| self.counts.contains_key(what))
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
    run_seed_without(seed, &[], verbose)
}

/// Runs one seed, but for the parts of its plan with these numbers; see [`parts_of_seed`].
///
/// # Errors
/// The invariant that broke.
pub fn run_seed_without(
    seed: u64,
    without: &[usize],
    verbose: bool,
) -> Result<Report, Box<Failure>> {
    Run::new(seed, without, verbose, None).finish()
}

/// Runs three nodes with about a hundred operations a second, and a fault in twenty seconds, for so long:
/// what the speed of the simulated world is measured by.
///
/// # Errors
/// The invariant that broke.
pub fn run_steady(seed: u64, storm: Duration) -> Result<Report, Box<Failure>> {
    let rng = Rng::new(seed);
    let plan = Plan::steady(&rng, storm);
    Run::of(seed, rng, plan, false, None).finish()
}

/// What a seed draws that can be left out, in words and in order: faults, then programs.
pub fn parts_of_seed(seed: u64) -> Vec<String> {
    Plan::draw(&Rng::new(seed), STORM).parts()
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("something fell without a word").to_owned()
}

/// What a watch, an observer or a follower on one of these nodes has not been told.
fn owed(world: &World, core: &[usize]) -> Option<String> {
    let judge = world.judge().borrow();
    let owed = judge.watch_owes(core).or_else(|| judge.observer_owes(core));
    owed.or_else(|| judge.follower_owes(core))
}

/// One run of one seed.
pub(super) struct Run {
    seed: u64,
    plan: Plan,
    rng: Rng,
    world: World,
    scene: Scene,
    /// Whether those whose machines are there can decide, once everything has healed.
    recoverable: bool,
    /// Somebody else's program, in the place of ours.
    foreign: Option<Scenario>,
}

impl Run {
    pub(super) fn new(
        seed: u64,
        without: &[usize],
        verbose: bool,
        foreign: Option<&Scenario>,
    ) -> Self {
        let rng = Rng::new(seed);
        let mut plan = Plan::draw(&rng, STORM);
        plan.leave_out(without);
        if let Some(scenario) = foreign {
            plan.nodes = scenario.nodes.unwrap_or(plan.nodes);
            plan.programs.clear();
        }
        Self::of(seed, rng, plan, verbose, foreign)
    }

    pub(super) fn of(
        seed: u64,
        rng: Rng,
        plan: Plan,
        verbose: bool,
        foreign: Option<&Scenario>,
    ) -> Self {
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
            plan.session_ttl,
        );
        let (of_starts, work) = (Rng::new(rng.next_u64()), scene.clone());
        let (clients, programs) = (plan.clients, plan.programs.clone());
        let foreign = foreign.cloned();
        if let Some(scenario) = &foreign {
            world.judge().borrow_mut().judge_rows(scenario.always.clone());
        }
        let theirs = foreign.clone();
        world.on_start(Rc::new(move |started| {
            let Started { place, id, process } = *started;
            if let Some(scenario) = &theirs {
                let rng = Rng::new(of_starts.next_u64());
                let host = Host::new(work.clone(), process.caller(), id, rng);
                return work.spawner.spawn(Some(place), (scenario.program)(host));
            }
            workload::start(&work, &process.caller(), id, place, clients, &programs, &of_starts);
        }));
        Self { seed, plan, rng, world, scene, recoverable: true, foreign }
    }

    /// Runs it to its end. Whoever panics breaks a promise too.
    pub(super) fn finish(mut self) -> Result<Report, Box<Failure>> {
        let gone = catch_unwind(AssertUnwindSafe(|| self.go()));
        let (violation, has_panicked) = match gone {
            Ok(Ok(())) => return Ok(self.report()),
            Ok(Err(violation)) => (violation, false),
            Err(panic) => (Violation::new("PANIC", words(panic.as_ref())), true),
        };
        let failure = self.failure(violation);
        // What is broken may panic when it is dropped, and hide what happened; after a panic, in more
        // places than one, which ends the process.
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

    /// Faults, until the storm is over.
    fn storm(&mut self) -> Result<(), Violation> {
        self.world.run_until(PEACE)?;
        for (at, fault) in std::mem::take(&mut self.plan.faults) {
            self.world.run_until(at)?;
            self.world.strike(fault);
        }
        Ok(())
    }

    /// A core of the nodes, at least a quorum, must come together. Where it is no more than that, the others are dead
    /// for good. Where the members change, all that are members by then are the core.
    fn calm(&mut self) -> Result<(), Violation> {
        if !self.world.is_recoverable() {
            self.recoverable = false;
            return self.nobody_to_ask("too many machines are lost for the others to decide");
        }
        let mut core = self.world.members();
        if !self.plan.members_change && self.world.is_as_founded() && one_in(&self.rng, 3) {
            let quorum = core.len() / 2 + 1;
            while core.len() > quorum {
                core.remove(super::plan::index(&self.rng, core.len()));
            }
            self.world.leave_alone(&core);
        }
        // Whoever may be needed still is there, too.
        self.world.heal(&[&core[..], &self.world.leaving()].concat())?;
        let end = self.world.timeline().now() + CALM;
        self.world.run_until(end - CALM * 4 / 5)?;
        self.world.judge().borrow_mut().calm();
        self.world.judge().borrow_mut().quiet(true);
        // Somebody still dies while it holds, and is there again soon: it is waited for no longer than
        // its lease lives.
        self.world.run_until(end - CALM * 7 / 10)?;
        let down = Duration::from_millis(self.rng.below(1_000));
        self.world.judge().borrow_mut().quiet(false);
        self.world.strike(Fault::Kill { who: Who::Holder, down });
        self.world.run_until(end - CALM * 17 / 30)?;
        self.world.judge().borrow_mut().quiet(true);
        self.world.run_until(end - CALM / 2)?;
        // The clients end, and what they hold goes free.
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
            let (state, core) = (self.world.describe(), of(&self.world));
            return Violation::found(
                "L-CONVERGE",
                format!("{core:?} did not come together: {state}"),
            );
        }
        let core = of(&self.world);
        self.last_round(&core)
    }

    /// On every node of the core: a write, a read that sees everything, every lock.
    fn last_round(&mut self, core: &[usize]) -> Result<(), Violation> {
        let callers: Vec<_> = self.world.callers(core).collect();
        if let Some(scenario) = self.foreign.clone() {
            return self.last_words(&scenario, &callers);
        }
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
        // Since everything healed each lease has had its time, and that of a new leader's counting.
        let end = self.world.timeline().now() + LEASES_END_WITHIN;
        if !self.world.run_while(end, |world| world.lease_time_to_live().is_some())? {
            let left = self.world.lease_time_to_live();
            return Violation::found("L-LATE", format!("nobody keeps it in the end: {left:?}"));
        }
        self.world.check_disks(core)?;
        self.world.compare_rest()
    }

    /// What somebody else's program wants to come true, on one node after the other.
    fn last_words(
        &mut self,
        scenario: &Scenario,
        callers: &[(usize, NodeId, Caller)],
    ) -> Result<(), Violation> {
        if callers.is_empty() {
            self.nobody_to_ask("no node of the core runs")?;
        }
        for (at, node, caller) in callers {
            let Some(finally) = &scenario.finally else { break };
            let host = Host::new(self.scene.clone(), caller.clone(), *node, Rng::new(node.get()));
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
        self.world.compare_rest()
    }

    /// What must come true in the end cannot be looked at: a run that wants that proves nothing.
    fn nobody_to_ask(&self, why: &str) -> Result<(), Violation> {
        let wants = self.foreign.as_ref().is_some_and(|scenario| scenario.finally.is_some());
        let words =
            format!("nobody could be asked what came true in the end: {why}; take another seed");
        if wants { Violation::found("FINALLY", words) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_nodes_fail_only_runs_with_a_final_check() {
        let asks_nothing = Scenario::new(|_| async {}).nodes(3);
        let asks = asks_nothing.clone().finally(|_| async { Ok(()) });
        let run = |scenario: &Scenario| Run::new(1, &[], false, Some(scenario));
        assert_eq!(run(&asks_nothing).nobody_to_ask("all are gone"), Ok(()));
        let said = run(&asks).nobody_to_ask("all are gone").unwrap_err();
        assert_eq!(said.invariant, "FINALLY");
        assert!(
            said.detail.contains("nobody could be asked") && said.detail.contains("all are gone")
        );
        let said = run(&asks).last_words(&asks, &[]).unwrap_err();
        assert!(said.detail.contains("no node of the core runs"), "{said}");
    }
}
