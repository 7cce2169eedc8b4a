//! [`Scenario`]: runs a program of your own in the simulator.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::caller::SimCaller;
use super::minimise::minimise;
use super::rng::Rng;
use super::run::{Failure, Report, Run, parts_of_seed};
use super::script::ScriptedFault;
use super::truth::Truth;
use super::workload::Scene;
use crate::api::{Client, Error, OpenSession, Session};
use crate::env::Entropy;
use crate::model::{KeyRange, KeyValue, Moment, NodeId, Revision};

/// Maximum number of runs for minimizing a failure.
const TRIES_MAX: u32 = 60;

/// A future of a world, which has one thread.
type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A function that starts a program on a node.
type Start<T> = Rc<dyn Fn(Host) -> LocalFuture<T>>;

/// An invariant on the rows of any revision.
pub(super) type RowsCheck = Rc<dyn Fn(&Rows<'_>) -> Result<(), String>>;

/// A program of your own with its invariants. The [module](crate::sim) has an example.
#[derive(Clone)]
pub struct Scenario {
    pub(super) nodes: Option<u64>,
    pub(super) program: Start<()>,
    pub(super) always: Vec<(&'static str, RowsCheck)>,
    pub(super) finally: Option<Start<Result<(), String>>>,
    /// Faults with their times.
    pub(super) script: Vec<(Duration, ScriptedFault)>,
    /// Whether no fault is drawn from the seed.
    pub(super) is_quiet: bool,
    /// Names, each with the minimum number of times that [`Host::count`] must have counted it, in total over all seeds.
    floors: Vec<(&'static str, u64)>,
}

impl Scenario {
    /// Creates a scenario for a program, which is started on each node whenever its process starts. The program ends
    /// with its process, at any await point. In the calm phase after the faults, the program should observe
    /// [`Host::is_closing`] and end within five seconds. Then it is dropped.
    pub fn new<F>(program: impl Fn(Host) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let program = Rc::new(move |host| Box::pin(program(host)) as LocalFuture<()>);
        Self {
            nodes: None,
            program,
            always: Vec::new(),
            finally: None,
            script: Vec::new(),
            is_quiet: false,
            floors: Vec::new(),
        }
    }

    /// Sets the number of founding nodes, 1 to 7. By default the seed decides.
    #[must_use]
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = Some(nodes.clamp(1, 7));
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
        self.script.push((at, fault));
        self
    }

    /// Switches off the faults that the seed draws, including lost, repeated and late messages and the crash after the
    /// storm. Only the faults of [`at`](Self::at) happen. The seed still decides the delays of messages and disks and
    /// the rates of the clocks.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.is_quiet = true;
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
        self.always.push((name, Rc::new(check)));
        self
    }

    /// Sets a check that must complete on every remaining node, one after the other, once everything has healed and
    /// the programs have ended. The check has one minute of simulated time.
    #[must_use]
    pub fn finally<F>(mut self, check: impl Fn(Host) -> F + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        self.finally = Some(Rc::new(move |host| Box::pin(check(host)) as LocalFuture<_>));
        self
    }

    /// Requires that [`run_all`](Self::run_all) counts `what` ([`Host::count`]) at least this many times, in total over
    /// all of its seeds. This detects runs in which too little happens.
    #[must_use]
    pub fn at_least(mut self, what: &'static str, times: u64) -> Self {
        self.floors.push((what, times));
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

    /// Runs one seed. The drawn faults whose numbers are in `without` do not happen. One process always crashes after
    /// the storm, unless the scenario is [`quiet`](Self::quiet).
    ///
    /// # Errors
    /// Returns the violation with the end of the timeline.
    pub fn run_without(&self, seed: u64, without: &[usize]) -> Result<Report, Box<Failure>> {
        Run::new(seed, without, true, Some(self)).finish()
    }

    /// Runs many seeds and returns their reports. Minimizes the first failure: repeats the run without the faults
    /// that it does not need.
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
        for (what, times) in &self.floors {
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

    fn small(&self, failure: &Failure) -> String {
        let (seed, invariant) = (failure.seed, failure.violation.invariant);
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
        let needs = match left.is_empty() {
            true => "it needs none of its drawn faults\n".to_owned(),
            false => format!("of its drawn faults it needs:\n{left}"),
        };
        format!("{words}\n{needs}run it again with run_without({seed}, &{without:?})")
    }

    /// Describes the faults that a seed draws.
    fn parts(&self, seed: u64) -> Vec<String> {
        if self.is_quiet {
            return Vec::new();
        }
        let mut parts = parts_of_seed(seed);
        parts.retain(|part| !part.starts_with("program"));
        parts
    }
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// The environment of a program: it replaces the [`Node`](crate::Node), the clock and the random numbers of a real
/// process. [What a program may do](crate::sim#what-a-program-may-do) lists the rules.
pub struct Host {
    caller: SimCaller,
    scene: Scene,
    node: NodeId,
    rng: Rng,
    session: Mutex<Option<Session>>,
}

impl Host {
    pub(super) fn new(scene: Scene, caller: SimCaller, node: NodeId, rng: Rng) -> Self {
        Self { caller, scene, node, rng, session: Mutex::new(None) }
    }

    /// Returns a client of this node.
    pub fn client(&self) -> Client {
        self.caller.client().clone()
    }

    /// Returns the id of this member.
    pub fn id(&self) -> NodeId {
        self.node
    }

    /// Returns the session of the process, like [`Node::session`](crate::Node::session).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn session(&self) -> Result<Session, Error> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| session.end().is_none()) {
            return Ok(session.clone());
        }
        let opened = OpenSession::on(self.client(), true).await?;
        *session = Some(opened.clone());
        Ok(opened)
    }

    /// Opens an additional session, like [`Node::open_session`](crate::Node::open_session).
    pub fn open_session(&self) -> OpenSession {
        OpenSession::on(self.client(), false)
    }

    /// Returns the time of this process's clock, like [`Node::now`](crate::Node::now). Compare it with
    /// [`Hold::valid_until`](crate::lock::Hold::valid_until).
    pub fn now(&self) -> Moment {
        self.caller.client().shared.now()
    }

    /// Sleeps in simulated time. Timers of tokio do not work in the simulator: they need a runtime.
    pub async fn sleep(&self, time: Duration) {
        self.scene.timers.sleep(time).await;
    }

    /// Returns a random number below `bound`, which must not be 0. The number depends only on the seed.
    pub fn random(&self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Returns whether the faults have ended and the program should end.
    pub fn is_closing(&self) -> bool {
        self.scene.closing.get()
    }

    /// Checks a condition on something that only the program observes. If it is false, the run fails under this name.
    pub fn expect(&self, so: bool, name: &'static str, detail: impl FnOnce() -> String) {
        self.scene.judge.borrow_mut().expect(so, name, detail);
    }

    /// Counts an event for [`Report::counts`] and [`Scenario::at_least`].
    pub fn count(&self, what: &'static str) {
        self.scene.judge.borrow_mut().count(what);
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("node", &self.node).finish_non_exhaustive()
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
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::api::Blocking;
    use crate::sim::FaultTarget;

    #[test]
    fn panicking_program_is_reported_with_its_timeline() {
        let scenario = Scenario::new(|host| async move {
            host.sleep(Duration::from_secs(5)).await;
            panic!("no way out");
        });
        let failure = scenario.run(1).unwrap_err();
        assert_eq!(
            (failure.violation.invariant, &failure.violation.detail[..]),
            ("PANIC", "no way out")
        );
        assert!(failure.at >= Duration::from_secs(5) && !failure.trace.is_empty(), "{failure}");
    }

    #[test]
    fn timer_of_tokio_is_explained() {
        let scenario = Scenario::new(|host| async move {
            assert!(host.now() > Moment::default());
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        let failure = scenario.run(1).unwrap_err();
        assert!(failure.violation.detail.contains("use `sleep` of the host"), "{failure}");
        assert_eq!(format!("{failure:?}"), failure.to_string());
    }

    #[test]
    fn blocking_call_is_explained() {
        let scenario = Scenario::new(|host| async move {
            drop(host.client().put("k", "v").block());
        });
        let failure = scenario.run(1).unwrap_err();
        assert_eq!(failure.violation.invariant, "PANIC");
        assert!(failure.violation.detail.contains("use `.await` instead"), "{failure}");
        // Afterwards the thread may block again.
        assert_eq!(async { 1 }.block(), 1);
    }

    #[test]
    #[should_panic(
        expected = "no way out\nit needs none of its drawn faults\nrun it again with run_without(1, "
    )]
    fn failure_that_needs_no_fault_says_so() {
        Scenario::new(|_| async { panic!("no way out") }).run_all(1..=1);
    }

    #[test]
    fn timeline_names_nodes_by_their_ids() {
        let idle = Scenario::new(|host| async move { host.sleep(ms(1)).await });
        let scenario = idle.nodes(3).quiet().finally(|_| async { Err("never".to_owned()) });
        let failure = scenario.run(1).unwrap_err();
        assert!(failure.trace.contains("everything heals around [n1, n2, n3]"), "{failure}");
        assert_eq!(failure.violation.detail, "on n1: never");
    }

    #[test]
    fn panic_in_drop_does_not_hide_the_first_panic() {
        struct InUse;
        impl Drop for InUse {
            fn drop(&mut self) {
                assert!(std::thread::panicking(), "it is in use");
            }
        }
        let scenario = Scenario::new(|host| async move {
            let _in_use = InUse;
            host.sleep(Duration::from_secs(host.id().get())).await;
            assert!(host.id().get() < 2, "no way out");
            std::future::pending().await
        });
        let failure = scenario.nodes(3).run(1).unwrap_err();
        assert_eq!(failure.violation.detail, "no way out");
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn scripted_faults_happen_at_their_times_only() {
        let (starts, failures) =
            (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
        let (seen_starts, seen_failures) = (Rc::clone(&starts), Rc::clone(&failures));
        let program = move |host: Host| {
            let (starts, failures) = (Rc::clone(&starts), Rc::clone(&failures));
            async move {
                let elapsed = || host.scene.timeline.now();
                starts.borrow_mut().push((host.id().get(), elapsed()));
                while !host.is_closing() {
                    host.sleep(ms(100)).await;
                    let begun = elapsed();
                    if host.client().get("x").deadline(ms(400)).await.is_err() {
                        failures.borrow_mut().push((host.id().get(), begun));
                    }
                }
            }
        };
        let kill = ScriptedFault::Kill { who: FaultTarget::Node(2), down: ms(4_000) };
        let power_loss = ScriptedFault::PowerLoss { who: FaultTarget::Node(1), down: ms(250) };
        let isolate = ScriptedFault::Isolate { who: FaultTarget::Node(3), time: ms(5_000) };
        let unknown = ScriptedFault::Kill { who: FaultTarget::Node(9), down: ms(1) };
        let scenario = Scenario::new(program).nodes(3).quiet();
        // The faults are added out of order. One is before the time at which drawn faults begin, and two are after the
        // usual end of the storm.
        let scenario = scenario.at(ms(20_000), isolate).at(ms(2_000), kill);
        let report = scenario.at(ms(70_000), power_loss).at(ms(71_000), unknown).run(5).unwrap();
        let starts = seen_starts.take();
        let (first, later) = starts.split_at(3);
        let mut founding: Vec<u64> = first.iter().map(|(id, _)| *id).collect();
        founding.sort_unstable();
        assert_eq!(founding, [1, 2, 3]);
        assert_eq!(later, [(2, ms(6_000)), (1, ms(70_250))]);
        let cut_off =
            |(id, at): &&(u64, Duration)| *id == 3 && (ms(8_000)..ms(69_000)).contains(at);
        let failures = seen_failures.take();
        let failed: Vec<Duration> = failures.iter().filter(cut_off).map(|(_, at)| *at).collect();
        assert!(failed.len() > 5, "{failures:?}");
        // A call may begin just before the partition, and a leader may be found shortly after it.
        let window = ms(19_600)..ms(27_000);
        assert!(failed.iter().all(|at| window.contains(at)), "{failed:?}");
        let faults = report.counts.iter().filter(|(name, _)| name.starts_with("fault: "));
        let faults: Vec<(&str, u64)> = faults.map(|(name, count)| (*name, *count)).collect();
        assert_eq!(faults, [("fault: kill", 1), ("fault: partition", 1), ("fault: power loss", 1)]);
        assert_eq!(report.crashes, 2);
    }

    #[test]
    fn scripted_runs_of_one_seed_have_the_same_trace() {
        let idle = Scenario::new(|host| async move {
            while !host.is_closing() {
                host.sleep(ms(200)).await;
                drop(host.client().put("x", "y").await);
            }
        });
        let pause = |at| {
            let fault = ScriptedFault::Pause { who: FaultTarget::Leader, time: ms(3_000) };
            idle.clone().at(ms(at), fault)
        };
        let trace = |scenario: &Scenario| scenario.run(3).unwrap().trace;
        assert_eq!(trace(&pause(9_000)), trace(&pause(9_000)));
        assert_ne!(trace(&pause(9_000)), trace(&pause(9_001)));
        assert_ne!(trace(&pause(9_000)), trace(&idle));
        let quiet = pause(9_000).quiet().nodes(3);
        assert_eq!(trace(&quiet), trace(&quiet));
        let (quiet, silent) =
            (quiet.run(3).unwrap(), idle.clone().nodes(3).quiet().run(3).unwrap());
        assert_eq!((quiet.crashes, quiet.counts["fault: pause"]), (0, 1));
        assert!(quiet.leader_changes > silent.leader_changes, "the leader was paused");
        assert!(silent.counts.keys().all(|name| !name.starts_with("fault: ")), "{silent:?}");
        assert!(silent.is_valid() && !Report { recoverable: false, ..silent }.is_valid());
    }

    #[test]
    #[should_panic(expected = "\"sold\" was counted 0 times in 1 seeds, not 1")]
    fn runs_without_enough_activity_fail() {
        let idle = Scenario::new(|host| async move { host.sleep(Duration::from_secs(1)).await });
        idle.at_least("sold", 1).run_all(1..=1);
    }
}
