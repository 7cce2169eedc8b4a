//! [`Scenario`]: runs a program of your own in the simulator.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::host::Host;
use super::member_config::MemberConfig;
use super::minimise::minimise;
use super::plan::Plan;
use super::rng::Rng;
use super::run::{Failure, Report, Run, STORM};
use super::script::ScriptedFault;
use super::truth::Truth;
use crate::api::Config;
use crate::model::{KeyRange, KeyValue, Revision};

/// Maximum number of runs for minimizing a failure.
const TRIES_MAX: u32 = 60;

/// A future of a world, which has one thread.
type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A function that starts a program on a node.
type Start<T> = Rc<dyn Fn(Host) -> LocalFuture<T>>;

/// A function that starts a program with the state of its run.
type StartWith<S> = Rc<dyn Fn(Host, Rc<S>) -> LocalFuture<()>>;

/// An invariant on the rows of any revision.
pub(super) type RowsCheck = Rc<dyn Fn(&Rows<'_>) -> Result<(), String>>;

/// A check of the state and the last rows of a run.
type EndCheck<S> = Rc<dyn Fn(&S, &Rows<'_>) -> Result<(), String>>;

/// A program of your own with its invariants. The [module](crate::sim) has an example.
///
/// A run has these phases:
///
/// 1. The nodes start. After 3 s the faults begin: those that the seed draws, for about 55 s, and those of
///    [`Scenario::at`].
/// 2. All faults end. In a third of the seeds in which the members do not change, the machines beyond a quorum are lost
///    for good at this time.
/// 3. 9 s later, one more process is killed, and starts again about a second later. The timeline calls this the "crash after
///    the storm". It shows whether your program recovers while everything else works.
/// 4. 6 s later, [`Host::is_closing`] becomes true. After another 5 s, the programs are dropped.
/// 5. The check of [`Scenario::finally`] runs on each node, and those of [`Scenario::at_end`] run once.
///
/// [`Scenario::quiet`] switches off everything except the faults of [`Scenario::at`].
///
/// Calls retry until their deadline, which is 5 s by default. So a partition, a pause or a change of the leader that ends
/// before the deadline only delays calls: it causes no error and no unknown outcome. To test how your program handles
/// both, set a shorter deadline with [`Scenario::configure`], or use longer faults.
///
/// A mistake in the use of a lock shows only if a session ends during the work under the lock. So let the work take
/// seconds, and set a short [`Config::session_ttl`], such as 2 s.
///
/// The type parameter is the state of a run; see [`Scenario::with_state`].
pub struct Scenario<S = ()> {
    /// Creates the state of a run.
    state: Rc<dyn Fn() -> S>,
    program: StartWith<S>,
    at_end: Vec<(&'static str, EndCheck<S>)>,
    options: ScenarioOptions,
}

/// The parts of a scenario that do not depend on its state.
#[derive(Clone, Default)]
struct ScenarioOptions {
    nodes: Option<u64>,
    config: MemberConfig,
    always: Vec<(&'static str, RowsCheck)>,
    finally: Option<Start<Result<(), String>>>,
    /// Faults with their times.
    script: Vec<(Duration, ScriptedFault)>,
    /// Whether no fault is drawn from the seed.
    is_quiet: bool,
    /// Names, each with the minimum number of times that [`Host::count`] must have counted it, in total over all seeds.
    floors: Vec<(&'static str, u64)>,
}

/// A scenario with the state of one run.
#[derive(Clone)]
pub(super) struct ScenarioRun {
    pub(super) nodes: Option<u64>,
    pub(super) config: MemberConfig,
    pub(super) program: Start<()>,
    pub(super) always: Vec<(&'static str, RowsCheck)>,
    pub(super) finally: Option<Start<Result<(), String>>>,
    pub(super) at_end: Vec<(&'static str, RowsCheck)>,
    pub(super) script: Vec<(Duration, ScriptedFault)>,
    /// Time at which the last scripted fault has ended, including those that are left out.
    pub(super) script_end: Duration,
    pub(super) is_quiet: bool,
    /// Whether a process crashes after the storm.
    pub(super) has_last_crash: bool,
}

impl ScenarioRun {
    /// Leaves out the scripted faults and the crash after the storm if their numbers are listed. The first one has
    /// the number `first`.
    pub(super) fn leave_out(&mut self, first: usize, without: &[usize]) {
        let mut number = first..;
        let mut stays = || !without.contains(&number.next().expect("there is no last number"));
        self.script.retain(|_| stays());
        self.has_last_crash &= stays();
    }
}

impl Scenario {
    /// Creates a scenario for a program, which is started on each node whenever its process starts. The program ends
    /// with its process, at any await point. In the calm phase after the faults, the program should observe
    /// [`Host::is_closing`] and end within five seconds. Then it is dropped.
    ///
    /// Values that the closure captures are shared by all runs, also by those with which
    /// [`run_all`](Self::run_all) minimizes a failure. For a value that belongs to one run, such as the
    /// record of all calls, use [`Scenario::with_state`].
    pub fn new<F>(program: impl Fn(Host) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        Self::with_state(|| (), move |host, _| program(host))
    }
}

impl<S: 'static> Scenario<S> {
    /// Creates a scenario whose runs have a state: `state` is called once at the start of each run, and the program
    /// gets its value on every node, whenever the process starts. [`at_end`](Self::at_end) checks the state. Otherwise
    /// the scenario is like that of [`Scenario::new`].
    ///
    /// The state is memory outside the cluster: crashes do not erase it, and using it takes no time. It is meant for
    /// recording what the program observes. Keep the data of the program itself in the cluster: otherwise the run does
    /// not test that a crash loses none of it.
    ///
    /// This example records all calls, and checks with the crate `bowline-check` that they are linearizable:
    ///
    /// ```
    /// use bowline::Effect;
    /// use bowline::sim::{Host, Scenario};
    /// use bowline_check::{Budget, Recorder, Register, RegisterCall, RegisterReply, linear};
    /// use std::rc::Rc;
    /// use std::time::Duration;
    ///
    /// type Log = Recorder<RegisterCall, RegisterReply>;
    ///
    /// async fn write_and_read(host: Host, log: Rc<Log>) {
    ///     let kv = host.client();
    ///     while !host.is_closing() {
    ///         host.sleep(Duration::from_millis(host.random(400))).await;
    ///         let value = host.random(1 << 40) as i64;
    ///         let write = log.begin(host.id().get(), "x", RegisterCall::Write(Some(value.into())));
    ///         match kv.put("x", value.to_string()).await {
    ///             Ok(_) => log.ok(write, RegisterReply::Written),
    ///             Err(error) if error.effect() == Effect::NotApplied => log.failed(write),
    ///             Err(_) => log.unknown(write),
    ///         }
    ///         let read = log.begin(host.id().get(), "x", RegisterCall::Read);
    ///         match kv.get("x").await {
    ///             Ok(row) => {
    ///                 let value = row.map(|row| row.parse::<i64>().unwrap().into());
    ///                 log.ok(read, RegisterReply::Read(value));
    ///             }
    ///             Err(_) => log.failed(read),
    ///         }
    ///     }
    /// }
    ///
    /// Scenario::with_state(Log::new, write_and_read)
    ///     .nodes(3)
    ///     .configure(|config| config.call_deadline(Duration::from_millis(500)))
    ///     .at_end("LINEARIZABLE", |log, _| {
    ///         let verdict = linear::check(&Register::default(), &log.history(), Budget::default());
    ///         if verdict.is_ok() { Ok(()) } else { Err(verdict.to_string()) }
    ///     })
    ///     .run_all(1..=2);
    /// ```
    ///
    /// If the process of a node ends during a call, the program is dropped, and the recorder keeps the call with an
    /// unknown outcome.
    pub fn with_state<F>(
        state: impl Fn() -> S + 'static,
        program: impl Fn(Host, Rc<S>) -> F + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let program = Rc::new(move |host, state| Box::pin(program(host, state)) as LocalFuture<()>);
        let options = ScenarioOptions::default();
        Self { state: Rc::new(state), program, at_end: Vec::new(), options }
    }

    /// Sets the number of founding nodes, 1 to 7. By default the seed decides.
    #[must_use]
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.options.nodes = Some(nodes.clamp(1, 7));
        self
    }

    /// Changes the configuration of all members, like `testing::ClusterOptions::configure`. These settings can be
    /// changed: [`call_deadline`](Config::call_deadline), [`session_ttl`](Config::session_ttl),
    /// [`limits`](Config::limits), [`lock_waiters_max`](Config::lock_waiters_max),
    /// [`open_writes_max`](Config::open_writes_max), [`open_reads_max`](Config::open_reads_max) and
    /// [`quota_bytes`](Config::quota_bytes). The simulator determines all others.
    ///
    /// # Panics
    /// Panics if a value is out of range, or if another setting is changed.
    ///
    /// ```
    /// use bowline::sim::{FaultTarget, Scenario, ScriptedFault};
    /// use std::time::Duration;
    ///
    /// let scenario = Scenario::new(|host| async move {
    ///     while !host.is_closing() {
    ///         host.sleep(Duration::from_millis(100)).await;
    ///         let put = host.client().put("k", "v").await;
    ///         host.count(if put.is_ok() { "put" } else { "no reply in time" });
    ///     }
    /// });
    /// let cut = ScriptedFault::Isolate { who: FaultTarget::Leader, time: Duration::from_secs(3) };
    /// let scenario = scenario.nodes(3).quiet().at(Duration::from_secs(10), cut);
    /// let report = scenario.run(1).unwrap();
    /// assert!(!report.counts.contains_key("no reply in time"));
    ///
    /// let scenario = scenario.configure(|config| config.call_deadline(Duration::from_millis(500)));
    /// let report = scenario.run(1).unwrap();
    /// assert!(report.counts["no reply in time"] > 0);
    /// ```
    #[must_use]
    pub fn configure(mut self, with: impl FnOnce(Config) -> Config) -> Self {
        self.options.config = self.options.config.changed(with);
        self
    }

    /// Adds a fault at a time, counted in simulated time from the start of the run. The faults that the seed draws
    /// still happen, unless the scenario is [`quiet`](Self::quiet). They begin after 3 s, so that the cluster can form.
    /// The calm phase begins when the last fault has ended.
    ///
    /// ```
    /// use bowline::sim::{FaultTarget, Scenario, ScriptedFault};
    /// use std::time::Duration;
    ///
    /// let scenario = Scenario::new(|host| async move {
    ///     while !host.is_closing() {
    ///         host.sleep(Duration::from_millis(500)).await;
    ///         if host.client().put("k", "v").await.is_ok() {
    ///             host.count("put");
    ///         }
    ///     }
    /// });
    /// let kill = ScriptedFault::Kill { who: FaultTarget::Leader, down: Duration::from_secs(4) };
    /// let cut = ScriptedFault::Isolate { who: FaultTarget::Node(2), time: Duration::from_secs(5) };
    /// let scenario = scenario.nodes(3).quiet();
    /// let scenario = scenario.at(Duration::from_secs(10), kill).at(Duration::from_secs(20), cut);
    /// let report = scenario.run(1).unwrap();
    /// assert_eq!((report.crashes, report.counts["fault: partition"]), (1, 1));
    /// ```
    #[must_use]
    pub fn at(mut self, at: Duration, fault: ScriptedFault) -> Self {
        self.options.script.push((at, fault));
        self
    }

    /// Switches off the faults that the seed draws, including lost, repeated and late messages, lost machines and the
    /// crash after the storm. Only the faults of [`at`](Self::at) happen. The seed still decides the delays of messages
    /// and disks and the rates of the clocks.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.options.is_quiet = true;
        self
    }

    /// Adds a named invariant on the store, which is checked after every change. The invariant sees the real history,
    /// regardless of what any node knows at that time.
    #[must_use]
    pub fn always(
        mut self,
        name: &'static str,
        check: impl Fn(&Rows<'_>) -> Result<(), String> + 'static,
    ) -> Self {
        self.options.always.push((name, Rc::new(check)));
        self
    }

    /// Sets a check that must complete on every remaining node, one after the other, once everything has healed and
    /// the programs have ended. The check has one minute of simulated time. It can make calls. For a check that runs
    /// only once in a run, use [`at_end`](Self::at_end).
    #[must_use]
    pub fn finally<F>(mut self, check: impl Fn(Host) -> F + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        self.options.finally = Some(Rc::new(move |host| Box::pin(check(host)) as LocalFuture<_>));
        self
    }

    /// Adds a named check that runs once at the end of each run, after [`finally`](Self::finally): on the state of the
    /// run ([`with_state`](Self::with_state)) and the last rows of the store. The programs have ended. The check also
    /// runs if the cluster has lost so many machines that it cannot recover, so it should not require that something
    /// has happened.
    ///
    /// An invariant on the store belongs in [`always`](Self::always), which also sees states that later writes repair.
    /// In a test, the same bug was found in 6 seeds of 50 by `always`, and in 1 by `at_end`.
    #[must_use]
    pub fn at_end(
        mut self,
        name: &'static str,
        check: impl Fn(&S, &Rows<'_>) -> Result<(), String> + 'static,
    ) -> Self {
        self.at_end.push((name, Rc::new(check)));
        self
    }

    /// Requires that [`run_all`](Self::run_all) counts `what` ([`Host::count`]) at least this many times, in total over
    /// all of its seeds. This detects runs in which too little happens. [`run`](Self::run) does not check it.
    #[must_use]
    pub fn at_least(mut self, what: &'static str, times: u64) -> Self {
        self.options.floors.push((what, times));
        self
    }

    /// Runs one seed. The run is deterministic if the program uses only the time and randomness of the host
    /// ([`Host::sleep`], [`Host::now`], [`Host::random`]): two runs of one seed then have the same [`Report::trace`].
    ///
    /// # Errors
    /// Returns the violation with the end of the timeline.
    pub fn run(&self, seed: u64) -> Result<Report, Box<Failure>> {
        self.run_without(seed, &[])
    }

    /// Runs one seed. The faults whose numbers are in `without` do not happen. [`parts`](Self::parts) lists the faults
    /// in the order of their numbers, and [`run_all`](Self::run_all) prints the numbers that it has left out. To
    /// minimize a failure yourself, call this function from [`minimise`].
    ///
    /// The calm phase ends all faults. Its start does not depend on `without`. Lost and late messages are no parts: some
    /// seeds have them throughout the storm.
    ///
    /// # Errors
    /// Returns the violation with the end of the timeline.
    pub fn run_without(&self, seed: u64, without: &[usize]) -> Result<Report, Box<Failure>> {
        Run::new(seed, without, true, Some(self.begin())).finish()
    }

    /// Runs many seeds and returns their reports. Minimizes the first failure: repeats the run without the faults
    /// that it does not need, with at most 60 runs. These may be faults that the seed draws, faults of [`at`](Self::at), and the crash after
    /// the storm. If a second run of the seed differs from the first, the message says so instead: the program is
    /// not deterministic.
    ///
    /// # Panics
    /// Panics if a seed fails. The message contains the timeline of the failure, the faults that it needs, and the
    /// command that repeats it. Also panics if a count is too low ([`at_least`](Self::at_least)).
    pub fn run_all(&self, seeds: impl IntoIterator<Item = u64>) -> Vec<Report> {
        let mut reports = Vec::new();
        for seed in seeds {
            match self.run(seed) {
                Ok(report) => reports.push(report),
                Err(failure) => panic!("{}", self.small(&failure)),
            }
        }
        for (what, times) in &self.options.floors {
            let counts = reports.iter().filter_map(|report| report.counts.get(what));
            let counted: u64 = counts.sum();
            let seeds = reports.len();
            assert!(
                counted >= *times,
                "{what:?} was counted {counted} times in {seeds} seeds, not {times}"
            );
        }
        reports
    }

    /// Describes the faults of a seed that [`run_without`](Self::run_without) can leave out. The index of a fault is
    /// its number there: first the faults that the seed draws, then those of [`at`](Self::at), in the order in which
    /// they were added, and last the crash after the storm. A [`quiet`](Self::quiet) scenario has only those of `at`.
    pub fn parts(&self, seed: u64) -> Vec<String> {
        let ScenarioOptions { script, is_quiet, .. } = &self.options;
        let mut parts = Vec::new();
        if !is_quiet {
            parts.extend(Plan::draw(&Rng::new(seed), STORM).fault_parts());
        }
        let scripted = script.iter();
        parts.extend(
            scripted.map(|(at, fault)| format!("{:>6.2} s scripted {fault:?}", at.as_secs_f64())),
        );
        if !is_quiet {
            parts.push("crash after the storm".to_owned());
        }
        parts
    }

    /// Creates the state of a run.
    pub(super) fn begin(&self) -> ScenarioRun {
        let state = Rc::new((self.state)());
        let (start, of_program) = (Rc::clone(&self.program), Rc::clone(&state));
        let at_end = self.at_end.iter().map(|(name, check)| {
            let (check, state) = (Rc::clone(check), Rc::clone(&state));
            let check = move |rows: &Rows<'_>| check(&state, rows);
            (*name, Rc::new(check) as RowsCheck)
        });
        let ScenarioOptions { nodes, config, always, finally, script, is_quiet, .. } =
            self.options.clone();
        let ends = script.iter().map(|(at, fault)| *at + fault.duration());
        ScenarioRun {
            nodes,
            config,
            program: Rc::new(move |host| start(host, Rc::clone(&of_program))),
            always,
            finally,
            at_end: at_end.collect(),
            script_end: ends.max().unwrap_or_default(),
            script,
            is_quiet,
            has_last_crash: !is_quiet,
        }
    }

    fn small(&self, failure: &Failure) -> String {
        let (seed, invariant) = (failure.seed, failure.violation.invariant);
        let second = match self.run(seed) {
            Err(second) if failure.is_repeated_by(&second) => None,
            Err(second) => {
                Some(format!("at {:.6} s: {}", second.at.as_secs_f64(), second.violation))
            }
            Ok(_) => Some("no failure".to_owned()),
        };
        if let Some(second) = second {
            return format!(
                "{failure}\nseed {seed} does not repeat: the program uses time or randomness that is not the host's, or \
                 values that earlier runs have changed; the failure was not minimized\nresult of the second run: {second}"
            );
        }
        let parts = self.parts(seed);
        let mut tries = 0;
        let without = minimise(parts.len(), |without| {
            tries += 1;
            let again = || self.run_without(seed, without).err();
            let fails = || again().is_some_and(|other| other.violation.invariant == invariant);
            (tries <= TRIES_MAX).then(fails)
        });
        let again = self.run_without(seed, &without).err();
        let words = again.map_or_else(|| failure.to_string(), |failure| failure.to_string());
        let left = parts.iter().enumerate().filter(|(part, _)| !without.contains(part));
        let left: String = left.map(|(part, words)| format!("  {part:>3}  {words}\n")).collect();
        let needs = match (left.is_empty(), tries > TRIES_MAX) {
            (true, _) => "it needs none of its faults\n".to_owned(),
            (false, false) => format!("of its faults it needs:\n{left}"),
            (false, true) => format!(
                "of its faults it needs at most these (minimizing has stopped after {TRIES_MAX} runs):\n{left}"
            ),
        };
        format!("{words}\n{needs}run it again with run_without({seed}, &{without:?})")
    }
}

impl<S> Clone for Scenario<S> {
    fn clone(&self) -> Self {
        Self {
            state: Rc::clone(&self.state),
            program: Rc::clone(&self.program),
            at_end: self.at_end.clone(),
            options: self.options.clone(),
        }
    }
}

impl<S> std::fmt::Debug for Scenario<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario").field("nodes", &self.options.nodes).finish_non_exhaustive()
    }
}

/// The rows of the store at a revision, from the real history.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    truth: &'a Truth,
    revision: Revision,
}

impl<'a> Rows<'a> {
    pub(super) fn newest(truth: &'a Truth) -> Self {
        Self { truth, revision: truth.newest() }
    }

    /// Returns the revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the row of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&'a KeyValue> {
        self.truth.row_at(key.as_ref(), self.revision)
    }

    /// Returns the row of a key before the last change of the store.
    pub fn before(&self, key: impl AsRef<[u8]>) -> Option<&'a KeyValue> {
        self.truth.row_at(key.as_ref(), Revision(self.revision.get() - 1))
    }

    /// Returns the rows whose keys have a prefix, sorted by key.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Vec<&'a KeyValue> {
        self.truth.rows_at(&KeyRange::prefix(prefix.as_ref().to_vec()), self.revision)
    }
}

impl std::fmt::Debug for Rows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("revision", &self.revision).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
