//! A program of your own in the simulated world: it runs on every node of a cluster, in every life of its
//! process, while everything goes wrong that a seed draws, and what you say must hold is looked at whenever
//! the store has changed.
//!
//! ```
//! use bowline::sim::Scenario;
//! use std::time::Duration;
//!
//! // Each process counts up, by what it has read.
//! let scenario = Scenario::new(|host| async move {
//!     while !host.is_closing() {
//!         // First of all: where a node has stopped every call fails at once.
//!         host.sleep(Duration::from_millis(200)).await;
//!         let Ok(row) = host.client().get("count").await else { continue };
//!         let (count, version) = match &row {
//!             None => (0, 0),
//!             Some(row) => (std::str::from_utf8(&row.value).unwrap().parse().unwrap(), row.version),
//!         };
//!         let txn = host.client().txn().when(bowline::Compare::version("count").eq(version));
//!         let txn = txn.then(bowline::Op::put("count", (count + 1u64).to_string()));
//!         if txn.commit().await.is_ok_and(|reply| reply.succeeded) {
//!             host.count("counted up");
//!         }
//!     }
//! })
//! .always("every step is a step by one", |rows| {
//!     let Some(row) = rows.get("count") else { return Ok(()) };
//!     let count: u64 = std::str::from_utf8(&row.value).unwrap().parse().unwrap();
//!     if count == row.version { Ok(()) } else { Err(format!("{count} after {} puts", row.version)) }
//! });
//! scenario.run(7).unwrap();
//! ```
//!
//! What is told apart: a promise of Bowline's that is broken, by its name; one of yours, by the name that
//! you gave it; and `PANIC`, where your program, or the library, has panicked.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::caller::Caller;
use super::minimise::minimise;
use super::rng::Rng;
use super::run::{Failure, Report, Run, parts_of_seed};
use super::truth::Truth;
use super::workload::Scene;
use crate::api::{Client, Error, OpenSession, Session};
use crate::env::Entropy;
use crate::model::{KeyRange, KeyValue, NodeId, Revision};

/// How many runs are spent on making a failure small.
const TRIES_MAX: u32 = 60;

/// A future of a world, which has one thread.
type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// What starts a program on a node.
type Start<T> = Rc<dyn Fn(Host) -> LocalFuture<T>>;

/// What must hold of the rows of any revision.
pub(super) type RowsCheck = Rc<dyn Fn(&Rows<'_>) -> Result<(), String>>;

/// A program of your own, and what must hold of it; see the [module](crate::sim) for the world.
#[derive(Clone)]
pub struct Scenario {
    pub(super) nodes: Option<u64>,
    pub(super) program: Start<()>,
    pub(super) always: Vec<(&'static str, RowsCheck)>,
    pub(super) finally: Option<Start<Result<(), String>>>,
    /// What must have been counted so often, by many seeds together.
    floors: Vec<(&'static str, u64)>,
}

impl Scenario {
    /// A program, started on each node whenever its process starts. It ends where the process does, at any
    /// await point; in the calm after the storm it should see [`Host::is_closing`] and end by itself within
    /// five seconds, then it is dropped.
    pub fn new<F>(program: impl Fn(Host) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        let program = Rc::new(move |host| Box::pin(program(host)) as LocalFuture<()>);
        Self { nodes: None, program, always: Vec::new(), finally: None, floors: Vec::new() }
    }

    /// So many nodes found the cluster, 1 to 7. Otherwise the seed decides.
    #[must_use]
    pub fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = Some(nodes.clamp(1, 7));
        self
    }

    /// What must hold of the store after every change, by name. It is shown what was really applied,
    /// whatever any node knows of it by then.
    #[must_use]
    pub fn always(
        mut self,
        name: &'static str,
        check: impl Fn(&Rows<'_>) -> Result<(), String> + 'static,
    ) -> Self {
        self.always.push((name, Rc::new(check)));
        self
    }

    /// What must come true once everything has healed and the programs have ended, on every node that is
    /// left, one after the other. It has a minute.
    #[must_use]
    pub fn finally<F>(mut self, check: impl Fn(Host) -> F + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        self.finally = Some(Rc::new(move |host| Box::pin(check(host)) as LocalFuture<_>));
        self
    }

    /// What [`run_all`](Self::run_all) must have counted ([`Host::count`]) so many times in all of its seeds
    /// together: runs in which too little happens prove nothing.
    #[must_use]
    pub fn at_least(mut self, what: &'static str, times: u64) -> Self {
        self.floors.push((what, times));
        self
    }

    /// Runs one seed. The same seed does the same, if the program has no time and no randomness but the
    /// host's.
    ///
    /// # Errors
    /// What broke, with the end of the timeline.
    pub fn run(&self, seed: u64) -> Result<Report, Box<Failure>> {
        self.run_without(seed, &[])
    }

    /// The same, but for the faults with these numbers.
    ///
    /// # Errors
    /// What broke, with the end of the timeline.
    pub fn run_without(&self, seed: u64, without: &[usize]) -> Result<Report, Box<Failure>> {
        Run::new(seed, without, true, Some(self)).finish()
    }

    /// Runs many seeds, and says what they came to. The first that fails is made small: it is run again
    /// without what it does not need to fail.
    ///
    /// # Panics
    /// A seed has failed: with its timeline, the faults that it needs, and how to run it again. Or too little
    /// has happened ([`at_least`](Self::at_least)).
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
        format!(
            "{words}\nof its faults it needs:\n{left}run it again with run_without({seed}, &{without:?})"
        )
    }

    /// The faults of a seed, in words.
    fn parts(&self, seed: u64) -> Vec<String> {
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

/// What a program has of the process that it runs in: in place of its [`Node`](crate::Node), of a clock and
/// of chance.
pub struct Host {
    caller: Caller,
    scene: Scene,
    node: NodeId,
    rng: Rng,
    session: Mutex<Option<Session>>,
}

impl Host {
    pub(super) fn new(scene: Scene, caller: Caller, node: NodeId, rng: Rng) -> Self {
        Self { caller, scene, node, rng, session: Mutex::new(None) }
    }

    /// A client that works through this node.
    pub fn client(&self) -> Client {
        self.caller.client().clone()
    }

    /// Which member it is.
    pub fn id(&self) -> NodeId {
        self.node
    }

    /// The process's own session, as [`Node::session`](crate::Node::session).
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

    /// Opens a session beside it, as [`Node::open_session`](crate::Node::open_session).
    pub fn open_session(&self) -> OpenSession {
        OpenSession::on(self.client(), false)
    }

    /// Sleeps in simulated time.
    pub async fn sleep(&self, time: Duration) {
        self.scene.timers.sleep(time).await;
    }

    /// A number below `bound`, which is not 0, drawn by the seed.
    pub fn random(&self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Whether the storm is over and the program should end.
    pub fn is_closing(&self) -> bool {
        self.scene.closing.get()
    }

    /// Says that something is so; if not, the run fails under this name. For what the store does not show,
    /// but the program sees.
    pub fn expect(&self, so: bool, name: &'static str, detail: impl FnOnce() -> String) {
        self.scene.judge.borrow_mut().expect(so, name, detail);
    }

    /// Counts that something has happened: [`Report::counts`], [`Scenario::at_least`].
    pub fn count(&self, what: &'static str) {
        self.scene.judge.borrow_mut().count(what);
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The rows of the store at a revision, as they really were.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    truth: &'a Truth,
    revision: Revision,
}

impl<'a> Rows<'a> {
    pub(super) fn newest(truth: &'a Truth) -> Self {
        Self { truth, revision: truth.newest() }
    }

    /// At which revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The row of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&'a KeyValue> {
        self.truth.row_at(key.as_ref(), self.revision)
    }

    /// The row of a key as it was before the last change of the store.
    pub fn before(&self, key: impl AsRef<[u8]>) -> Option<&'a KeyValue> {
        self.truth.row_at(key.as_ref(), Revision(self.revision.get() - 1))
    }

    /// The rows whose keys begin with a prefix, by key.
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
    use super::*;

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

    #[test]
    #[should_panic(expected = "\"sold\" was counted 0 times in 1 seeds, not 1")]
    fn runs_without_enough_activity_fail() {
        let idle = Scenario::new(|host| async move { host.sleep(Duration::from_secs(1)).await });
        idle.at_least("sold", 1).run_all(1..=1);
    }
}
