//! Runs one test: a cluster, a load, faults at intervals, recovery, final reads, and a verdict.
//!
//! ```text
//!   start │ begin │ ═══════════════ load ═══════════════ │ heal │ clients end │ final reads │ check
//!                    warm  [window] rest [window] rest ...
//! ```
//!
//! This module records the history with a single clock. An operation starts when the harness sends the order, and ends
//! when the harness reads the reply. The recorded duration is therefore never shorter than the real one. If a process
//! dies, the outcomes of its open operations are unknown.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::dice::Dice;
use crate::fleet::{self, Compaction, Fleet, Program, Setup};
use crate::ledger::{Entry, Ledger};
use crate::nemesis::{self, Nemesis, Pace};
use crate::over::Over;
use crate::process::{HarnessError, LIMIT};
use crate::progress::{self, Window};
use crate::verdict::{judge, without_end};
use crate::wire::{Answer, Order};
use crate::workload::{self, Client, Control, Exhibit, Span, Workload};

pub use crate::verdict::Verdict;

/// The parameters of a run.
#[derive(Clone)]
pub struct Plan {
    /// The workload.
    pub workload: &'static workload::Kind,
    /// The nemesis.
    pub nemesis: &'static nemesis::Kind,
    /// Number of members.
    pub members: usize,
    /// How clients reach the members.
    pub over: Over,
    /// Length of the load.
    pub load: Duration,
    /// The seed for the targets of faults and the choices of clients.
    pub seed: u64,
    /// The length of faults and rests.
    pub pace: Pace,
    /// Maximum number of client steps per second in total.
    pub rate: u64,
}

impl Plan {
    /// Returns the name of the run, which is also used for files.
    pub fn name(&self) -> String {
        let Plan { workload, nemesis, members, over, seed, .. } = self;
        let over = match over {
            Over::Embedded => "",
            Over::Server => "-server",
        };
        format!("{}-{}-{members}{over}-{seed}", workload.name, nemesis.name)
    }

    /// Returns the command that repeats the run. Only the faults and their times are the same in the repetition,
    /// because processes are not deterministic.
    pub fn command(&self) -> String {
        let Plan { workload, nemesis, members, over, load, seed, pace, rate } = self;
        let over = match over {
            Over::Embedded => "",
            Over::Server => " --over server",
        };
        format!(
            "cargo run --release -p bowline-jepsen -- run --workload {} --nemesis {} --nodes {members}{over} \
             --seconds {} --seed {seed} --window {} --rest {} --rate {rate}",
            workload.name,
            nemesis.name,
            load.as_secs(),
            pace.window.as_secs_f32(),
            pace.rest.as_secs_f32(),
        )
    }
}

/// The result of a run.
pub struct Ran {
    /// The plan.
    pub plan: Plan,
    /// The verdict.
    pub verdict: Verdict,
    /// Every operation.
    pub entries: Vec<Entry>,
    /// Every fault.
    pub windows: Vec<Window>,
    /// Number of leader changes that the harness observed. If a member is elected again in a later term, this counts as
    /// a leader change.
    pub leader_changes: u64,
    /// Start and end of the load, in microseconds of the clock of the run.
    pub load: (u64, u64),
    /// Length of the whole run.
    pub took: Duration,
    /// The histories of the run, if the run was not ok.
    pub evidence: Vec<Evidence>,
}

/// A history that a run leaves. If a checker found a violation, its page is included.
pub struct Evidence {
    /// Name of the history, used in the file name.
    pub name: String,
    /// Arguments with which `bowline check` checks the history again, or `None` if it does not support the history.
    pub check: Option<&'static str>,
    /// The history as JSON lines.
    pub lines: String,
    /// The HTML page of the checker.
    pub page: Option<String>,
}

impl Evidence {
    fn of(exhibit: &Exhibit, page: Option<String>) -> Self {
        let name = exhibit.name.replace(' ', "-");
        Self { name, check: exhibit.check, lines: exhibit.lines(), page }
    }
}

/// Time before the first fault.
const WARM: Duration = Duration::from_millis(1500);
/// How long a client waits after a failure.
const AFTER_A_MISS: Duration = Duration::from_millis(20);
/// Maximum time that a client may lag behind its schedule before steps are dropped.
const BEHIND_MAX: Duration = Duration::from_millis(200);
/// Interval between two queries of the leader.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time until a cluster answers requests again after all faults have ended.
pub const BACK_WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of attempts to read the rows of all members at the same revision.
const COMPARISONS_MAX: usize = 50;

/// The state that all threads of a run share.
struct Stage<'a> {
    fleet: &'a Fleet,
    ledger: &'a Ledger,
    /// Whether clients must take no more steps.
    ending: AtomicBool,
    /// Whether all faults have ended, or could not be ended, so that clients may end.
    healed: AtomicBool,
    /// Whether faults could not be ended.
    broken: AtomicBool,
    /// Leader changes. Each is the time from the last query that returned the old leader to the first that returned
    /// the new one.
    leader_changes: Mutex<Vec<Span>>,
}

/// Returns the result of a plan that was not run, or of a run that produced only a verdict.
pub fn without(plan: &Plan, verdict: Verdict) -> Ran {
    Ran {
        plan: plan.clone(),
        verdict,
        entries: Vec::new(),
        windows: Vec::new(),
        leader_changes: 0,
        load: (0, 0),
        took: Duration::ZERO,
        evidence: Vec::new(),
    }
}

/// Runs a plan. Each member is a process that runs `program`.
pub fn run(plan: &Plan, program: &Program) -> Ran {
    if let Some(why) = plan.over.refuses(plan.workload, plan.nemesis) {
        return without(plan, Verdict::Skipped(why));
    }
    let begun = Instant::now();
    let ledger = Ledger::default();
    let workload = (plan.workload.make)();
    let mut windows = Vec::new();
    let mut load = (0, 0);
    let (mut changes, mut pages) = (Vec::new(), Vec::new());
    let control = plan.workload.control;
    let verdict = match (plan.nemesis.possible)() {
        Err(why) => Verdict::Skipped(why),
        Ok(()) if plan.members < plan.nemesis.wants.members_min => {
            let least = plan.nemesis.wants.members_min;
            Verdict::Skipped(format!("{} needs {least} members", plan.nemesis.name))
        }
        Ok(()) => {
            match act(plan, program, &*workload, &ledger, &mut windows, &mut load, &mut changes) {
                Ok(End::Whole) => judge(&workload.exhibits(), control, &mut pages),
                Ok(End::Early(verdict)) => {
                    without_end(verdict, &workload.exhibits(), control, &mut pages)
                }
                Err(trouble) => {
                    let verdict = Verdict::from(&trouble);
                    without_end(verdict, &workload.exhibits(), control, &mut pages)
                }
            }
        }
    };
    let entries = ledger.entries();
    let verdict = match (verdict, plan.workload.control) {
        (violation @ Verdict::Violation(_), Some(Control { may_stop: true, .. })) => {
            violation.of_control()
        }
        // The minimum number of operations does not apply to a control, a run that must show a violation. The verdict
        // on a control is ok if the violation was found.
        (Verdict::Ok(well), None) => {
            let (least, wants) = (plan.workload.least, plan.nemesis.wants);
            let seconds = plan.load.as_secs();
            let election = fleet::ELECTION;
            let lacks =
                progress::lacks(&entries, &windows, &changes, least, wants, seconds, election);
            match lacks.is_empty() {
                true => Verdict::Ok(well),
                false => Verdict::Invalid(lacks.join("; ")),
            }
        }
        (verdict, _) => verdict,
    };
    let evidence = match &verdict {
        Verdict::Ok(_) | Verdict::Skipped(_) => Vec::new(),
        _ => {
            let mut evidence = Vec::new();
            for exhibit in workload.exhibits() {
                let page = pages.iter().position(|(of, _)| *of == exhibit.name);
                evidence.push(Evidence::of(&exhibit, page.map(|at| pages.swap_remove(at).1)));
            }
            evidence
        }
    };
    Ran {
        plan: plan.clone(),
        verdict,
        entries,
        windows,
        leader_changes: changes.len() as u64,
        load,
        took: begun.elapsed(),
        evidence,
    }
}

/// How a run ended.
enum End {
    /// The run is complete, including the final reads.
    Whole,
    /// The run ended before the final reads with this verdict.
    Early(Verdict),
}

/// Runs everything up to the final reads.
fn act(
    plan: &Plan,
    program: &Program,
    workload: &dyn Workload,
    ledger: &Ledger,
    windows: &mut Vec<Window>,
    load: &mut (u64, u64),
    changes: &mut Vec<u64>,
) -> Result<End, HarnessError> {
    let mut setup = Setup { over: plan.over, ..Setup::of(plan.members) };
    let mut nemesis = (plan.nemesis.make)();
    workload.prepare(&mut setup);
    nemesis.prepare(&mut setup);
    let fleet = &Fleet::new(program.clone(), setup)?;
    fleet.start()?;
    let mut first = Caller::new(fleet, ledger, u64::MAX, 0, plan.seed);
    if let Err(miss) = wait_limited(&mut first, |caller| workload.begin(caller)) {
        return Ok(End::Early(Verdict::Invalid(format!("the workload could not begin: {miss:?}"))));
    }
    let stage = &Stage {
        fleet,
        ledger,
        ending: AtomicBool::new(false),
        healed: AtomicBool::new(false),
        broken: AtomicBool::new(false),
        leader_changes: Mutex::default(),
    };
    load.0 = ledger.now();
    let healed = thread::scope(|scope| {
        scope.spawn(|| follow_the_leader(stage));
        let all = plan.workload.clients * plan.members as u64;
        for number in 0..all {
            let member = usize::try_from(number / plan.workload.clients).unwrap_or(0);
            let client = workload.client(number);
            let caller = Caller::new(fleet, ledger, number, member, plan.seed);
            let pause = Duration::from_secs(1) * u32::try_from(all).unwrap_or(1)
                / u32::try_from(plan.rate.max(1)).unwrap_or(u32::MAX);
            scope.spawn(move || steps(stage, client, caller, pause));
        }
        let faults = break_it(plan, &mut *nemesis, stage, windows);
        stage.ending.store(true, Ordering::Relaxed);
        load.1 = ledger.now();
        let back = || fleet.heal().and_then(|()| fleet.await_leader(LIMIT));
        // From now on no fault is active, so a member that does not serve requests again is a violation.
        let healed = faults.and_then(|()| back().map_err(HarnessError::when_healed));
        stage.broken.store(healed.is_err(), Ordering::Relaxed);
        stage.healed.store(true, Ordering::Release);
        healed
    });
    let leaders = stage.leader_changes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    changes.extend(leaders.iter().map(|(_, until)| *until));
    workload.was_disturbed(match healed {
        Ok(_) => disturbances(plan, windows, leaders, load.1),
        // After an error the times of the disturbances are unknown, so the whole run counts as disturbed.
        Err(_) => vec![(0, u64::MAX)],
    });
    let at = |of: Compaction| Compaction { called: ledger.of(of.called), ..of };
    workload.hears_of(fleet.compactions().into_iter().map(at).collect());
    // A recorded violation counts even if the run failed for another reason.
    if let Some(why) = fleet.wrongs().into_iter().next() {
        return Ok(End::Early(Verdict::Violation(why)));
    }
    healed?;
    if let Some((member, why)) = fleet.stopped().into_iter().next() {
        let why = format!("m{member} has stopped by itself: {why}");
        return Ok(End::Early(Verdict::Violation(why)));
    }
    let mut last = Caller::new(fleet, ledger, u64::MAX, 0, plan.seed);
    if let Err(miss) = wait_limited(&mut last, |caller| workload.conclude(caller)) {
        let why = format!("final read failed after all faults ended: {miss:?}");
        return Ok(End::Early(Verdict::Violation(why)));
    }
    if let Err(why) = members_agree(fleet) {
        return Ok(End::Early(Verdict::Violation(why)));
    }
    Ok(End::Whole)
}

/// Returns the periods that count as disturbed: faults, leader changes, and everything after the load, when the leader
/// is not queried.
fn disturbances(plan: &Plan, windows: &[Window], leaders: Vec<Span>, load_end: u64) -> Vec<Span> {
    let faults = windows.iter().filter(|_| plan.nemesis.disturbs());
    let mut spans: Vec<Span> = faults.map(|window| (window.begin, window.end)).collect();
    spans.extend(leaders);
    spans.push((load_end, u64::MAX));
    spans
}

/// Repeats a call on one member after the other until it succeeds.
pub(crate) fn wait_limited(
    caller: &mut Caller<'_>,
    mut what: impl FnMut(&mut Caller<'_>) -> Result<(), Miss>,
) -> Result<(), Miss> {
    let begun = Instant::now();
    loop {
        match what(caller) {
            Err(miss) if begun.elapsed() > BACK_WITHIN => return Err(miss),
            Err(_) => {
                caller.move_on();
                thread::sleep(CHECK_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Runs the steps of one client.
fn steps(
    stage: &Stage<'_>,
    mut client: Box<dyn Client + '_>,
    mut caller: Caller<'_>,
    pause: Duration,
) {
    let home = caller.member;
    let mut due = Instant::now();
    while !stage.ending.load(Ordering::Relaxed) {
        caller.member = home;
        if !caller.has_somebody() {
            thread::sleep(AFTER_A_MISS);
            continue;
        }
        client.step(&mut caller);
        let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX / 2);
        // The pause is random between 0 and twice the mean. A client catches up after slow steps, but only to a
        // limit.
        due += Duration::from_micros(caller.dice.below(2 * micros + 1));
        due = due.max(Instant::now().checked_sub(BEHIND_MAX).unwrap_or(due));
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    while !stage.healed.load(Ordering::Acquire) {
        thread::sleep(AFTER_A_MISS);
    }
    caller.member = home;
    if !stage.broken.load(Ordering::Relaxed) {
        client.end(&mut caller);
    }
}

/// Counts leader changes.
fn follow_the_leader(stage: &Stage<'_>) {
    let mut last: Option<(u64, u64)> = None;
    while !stage.ending.load(Ordering::Relaxed) {
        let looked = stage.ledger.now();
        if let Some((_, term)) = stage.fleet.leader() {
            if let Some((_, seen)) = last.filter(|(before, _)| *before < term) {
                let span = (seen, stage.ledger.now());
                stage.leader_changes.lock().unwrap_or_else(PoisonError::into_inner).push(span);
            }
            last = last.max(Some((term, looked)));
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Runs windows and rests in turn for the length of the load.
fn break_it(
    plan: &Plan,
    nemesis: &mut dyn Nemesis,
    stage: &Stage<'_>,
    windows: &mut Vec<Window>,
) -> Result<(), HarnessError> {
    let (begun, mut dice) = (Instant::now(), Dice::new(plan.seed));
    thread::sleep(WARM);
    while begun.elapsed() + plan.pace.window <= plan.load {
        let (begin, before) = (stage.ledger.now(), nemesis.struck());
        let what = nemesis.begin(stage.fleet, &mut dice)?;
        let struck = stage.ledger.now();
        nemesis::pass(nemesis, stage.fleet, &mut dice, plan.pace.window)?;
        let end = stage.ledger.now();
        windows.push(Window { begin, struck, end, what, hits: 0 });
        nemesis.end(stage.fleet, &mut dice)?;
        // Some nemeses know the number of affected targets only after the window has ended.
        windows.iter_mut().last().expect("it was just pushed").hits = nemesis.struck() - before;
        let left = plan.load.saturating_sub(begun.elapsed());
        thread::sleep(plan.pace.rest.min(left));
    }
    thread::sleep(plan.load.saturating_sub(begun.elapsed()));
    Ok(())
}

/// Returns the indices of all members: the founders and those that have joined.
fn members(fleet: &Fleet) -> Option<Vec<usize>> {
    let Reply::Members { voters, learners, .. } = fleet.call(0, Call::Members, LIMIT)? else {
        return None;
    };
    let is_in = |place: &usize| {
        let name = format!("m{place}");
        *place < fleet.members() || voters.contains(&name) || learners.contains(&name)
    };
    Some((0..fleet.places()).filter(is_in).collect())
}

/// Checks that all members read the same rows at one revision.
fn members_agree(fleet: &Fleet) -> Result<(), String> {
    for _ in 0..COMPARISONS_MAX {
        let (members, mut all) = (members(fleet).unwrap_or_default(), Vec::new());
        for member in &members {
            match fleet.ask(*member, &Order::Rows, LIMIT) {
                Some(Answer::Rows(rows)) => all.push(rows),
                _ => break,
            }
        }
        let same = all.windows(2).all(|pair| pair[0].revision == pair[1].revision);
        if !members.is_empty() && all.len() == members.len() && same {
            return match all.windows(2).all(|pair| pair[0] == pair[1]) {
                true => Ok(()),
                false => Err(format!("members differ at revision {}", all[0].revision)),
            };
        }
        thread::sleep(CHECK_INTERVAL);
    }
    Err("the members did not reach the same revision".to_owned())
}
