//! [`Host`]: the environment of a program in the simulator.

use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::caller::SimCaller;
use super::rng::Rng;
use super::trace::TraceLines;
use super::workload::Scene;
use super::world::place;
use crate::api::{Client, Error, OpenSession, OwnSession, Session};
use crate::env::Entropy;
use crate::model::{IntoBytes, Moment, NodeId};
use crate::recipes::{ElectionView, LeaderTask, QueueWorker};

/// The environment of a program: it replaces the [`Node`](crate::Node), the clock and the random numbers of a real
/// process. [What a program may do](crate::sim#what-a-program-may-do) lists the rules. All clones are the same host.
#[derive(Clone)]
pub struct Host {
    pub(super) scene: Scene,
    lines: TraceLines,
    caller: SimCaller,
    node: NodeId,
    rng: Rc<Rng>,
    session: Arc<OwnSession>,
}

impl Host {
    pub(super) fn new(
        scene: Scene,
        lines: TraceLines,
        caller: SimCaller,
        node: NodeId,
        rng: Rng,
    ) -> Self {
        let session = OwnSession::of(caller.client().clone());
        Self { scene, lines, caller, node, rng: Rc::new(rng), session }
    }

    /// Returns a client of this node.
    pub fn client(&self) -> Client {
        self.scene.timeline.step();
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
        self.session.get().await
    }

    /// Opens an additional session, like [`Node::open_session`](crate::Node::open_session).
    pub fn open_session(&self) -> OpenSession {
        OpenSession::on(self.client(), false)
    }

    /// Creates a leader task, like [`Node::leader_task`](crate::Node::leader_task).
    pub fn leader_task(&self, name: impl IntoBytes, value: impl IntoBytes) -> LeaderTask {
        LeaderTask::by_node(Arc::clone(&self.session), name.into_bytes(), value.into_bytes())
    }

    /// Returns a view of an election, like [`Node::election_view`](crate::Node::election_view).
    pub fn election_view(&self, name: impl IntoBytes) -> ElectionView {
        ElectionView::on(self.client(), name.into_bytes())
    }

    /// Creates a worker for a queue, like [`Node::queue_worker`](crate::Node::queue_worker). A panic of its handler
    /// fails the item, and not the run.
    pub fn queue_worker(&self, name: impl IntoBytes) -> QueueWorker {
        QueueWorker::on(self.client(), name.into_bytes())
    }

    /// Runs a task next to the program, in place of `tokio::spawn`. Like the program, the task ends with the process,
    /// at any await point, and is dropped five seconds after [`Host::is_closing`] has become true.
    ///
    /// ```
    /// use bowline::sim::{Host, Scenario};
    /// use std::time::Duration;
    ///
    /// async fn beat(host: Host) {
    ///     while !host.is_closing() {
    ///         host.sleep(Duration::from_secs(1)).await;
    ///         if host.client().put("beat", host.id().to_string()).await.is_ok() {
    ///             host.count("beat");
    ///         }
    ///     }
    /// }
    ///
    /// let scenario = Scenario::new(|host| async move {
    ///     host.spawn(beat(host.clone()));
    ///     // ... other work
    /// });
    /// scenario.nodes(3).at_least("beat", 20).run_all(1..=1);
    /// ```
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.scene.spawner.spawn(Some(place(self.node)), task);
    }

    /// Returns the time of this process's clock, like [`Node::now`](crate::Node::now). Compare it with
    /// [`Hold::valid_until`](crate::lock::Hold::valid_until).
    pub fn now(&self) -> Moment {
        self.caller.client().shared.now()
    }

    /// Sleeps in simulated time. Timers of tokio do not work in the simulator: they need a runtime.
    pub async fn sleep(&self, time: Duration) {
        self.scene.timeline.step();
        self.scene.timers.sleep(time).await;
    }

    /// Returns a random number below `bound`, which must not be 0. The number depends only on the seed.
    pub fn random(&self, bound: u64) -> u64 {
        self.scene.timeline.step();
        self.rng.below(bound)
    }

    /// Returns whether the faults have ended and the program should end.
    pub fn is_closing(&self) -> bool {
        self.scene.timeline.step();
        self.scene.closing.get()
    }

    /// Checks a condition on something that only the program observes. If it is false, the run fails under this name.
    pub fn expect(&self, so: bool, name: &'static str, detail: impl FnOnce() -> String) {
        self.scene.judge.borrow_mut().expect(so, name, detail);
    }

    /// Counts an event for [`Report::counts`](super::Report::counts) and
    /// [`Scenario::at_least`](super::Scenario::at_least).
    pub fn count(&self, what: &'static str) {
        self.scene.judge.borrow_mut().count(what);
    }

    /// Writes a line into the timeline that a failure contains, with the simulated time and the id of this member. The
    /// timeline has at most the last 400 lines, including those of faults.
    ///
    /// ```
    /// use bowline::sim::Scenario;
    ///
    /// let scenario = Scenario::new(|host| async move {
    ///     host.note("opening the shop");
    ///     host.expect(false, "OPEN", || "there is nothing to sell".to_owned());
    /// });
    /// let failure = scenario.nodes(1).run(1).unwrap_err();
    /// assert!(failure.trace.contains("n1: opening the shop"));
    /// ```
    pub fn note(&self, text: impl fmt::Display) {
        self.lines.add(self.scene.timeline.now(), || format!("{:?}: {text}", self.node));
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("node", &self.node).finish_non_exhaustive()
    }
}
