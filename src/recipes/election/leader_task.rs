//! [`LeaderTask`]: work that runs only while this candidate is the leader.
//!
//! ```text
//!   campaign ──▶ leader ──▶ work starts ──▶ work ends ──▶ resign ──▶ result of the work
//!      ▲                       │
//!      └──── work is dropped ──┴ leadership lost
//! ```
//!
//! The task campaigns with a given session as long as that session lives, or with the node's own
//! session, which is replaced when it ends.
//!
//! The election decides who leads. This module only ensures the order of events: the work ends
//! before the leadership is released, and after a loss the work is dropped before anything else
//! happens. If the work never started, its end is not reported.

use std::future::{Future, pending, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Effect, Error, Node, OwnSession};
use crate::lock_format::ReleaseRequest;
use crate::model::IntoBytes;
use crate::node::Shared as NodeShared;

use crate::recipes::call::pause;
use crate::recipes::election::{Election, Leadership};
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::hold::LockState;

/// Time that a stopped task has for its resignation if its grace period is shorter.
const RESIGNATION_WAIT_MIN: Duration = Duration::from_secs(1);

/// The error of a [`LeaderTask`] that ended without a result. The work does not run any more, and
/// the candidacy has ended.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LeadError {
    /// The candidate cannot be elected any more. The candidate may have led before. The reason is
    /// usually [`LockError::NodeStopped`]. For [`Election::leader_task`] it may also be
    /// [`LockError::SessionEnded`]; the task may then be started again with a new session.
    #[error("cannot be elected any more: {}", loss_text(.0))]
    NotElected(LockError),
    /// The leadership was lost before the work ended. Returned only after [`LeaderTask::once`].
    #[error("leadership lost: {0}")]
    Lost(LostReason),
}

impl LeadError {
    /// Returns whether the campaign has left anything behind in the store. Effects of the work
    /// itself are not considered.
    pub fn effect(&self) -> Effect {
        match self {
            LeadError::NotElected(why) => why.effect(),
            LeadError::Lost(_) => Effect::NotApplied,
        }
    }

    /// Reports whether a later run of a clone may succeed without intervention. This is the case if
    /// the leadership was lost, but not the session. Only the program knows whether the work may be
    /// repeated.
    pub fn is_transient(&self) -> bool {
        match self {
            LeadError::NotElected(why) => why.is_transient(),
            LeadError::Lost(LostReason::SessionEnded(_) | LostReason::NodeStopped(_)) => false,
            LeadError::Lost(_) => true,
        }
    }
}

impl From<LockError> for LeadError {
    fn from(why: LockError) -> Self {
        LeadError::NotElected(why)
    }
}

/// Describes the error for a candidate that may have led before, so the text must not say that the
/// lock was never acquired.
fn loss_text(why: &LockError) -> String {
    match why {
        LockError::SessionEnded(end) => {
            format!("the session has ended: {end}")
        }
        LockError::NodeStopped(reason) => {
            format!("the node has stopped: {reason}")
        }
        why => why.to_string(),
    }
}

/// Work that runs only while this candidate is the leader. Created by [`Node::leader_task`] and
/// [`Election::leader_task`]. Each clone is a separate candidate.
///
/// Guarantees:
///
/// - The work is polled only while this candidate is the leader, which is checked at every poll
///   with this machine's clock. Provided that leadership changes by release or expiry and that
///   clocks stay within the drift bound, the work of at most one leader in the whole cluster is
///   polled at any time. After a loss, the work is dropped before anything else happens.
/// - Another candidate leads only after the work has ended or was dropped. This also holds if the
///   future of the task is dropped or the work panics. [`Leadership`] values that the work has
///   passed to other tasks become lost.
/// - If the leadership ends before the work has started, the work is not started.
///
/// After a loss the task logs a warning and campaigns again. When the work ends by itself, also with
/// an error, the task ends and returns the result of the work. So work that should go on retries
/// its errors itself.
///
/// Limits: work that does not reach an await point cannot be stopped. After a pause such work may
/// continue although the leadership is lost. So it should write with
/// [`Hold::txn`](crate::lock::Hold::txn), or pass its [`Hold::token`](crate::lock::Hold::token) to
/// the resource. [`Hold::at_risk`](crate::lock::Hold::at_risk) warns the work in advance. Tasks
/// that the work has spawned are not dropped with it.
///
/// The work is an async closure that takes the leadership, or a closure that returns a future. Each
/// term runs a clone of it, so what it captures must implement [`Clone`]: references, [`Arc`]s,
/// [`Client`](crate::Client)s and the like. A change that the work makes to a captured variable is
/// not seen by the next term. Put such state behind an [`Arc`].
///
/// ```
/// # use std::sync::Arc;
/// # use bowline::{Blocking, Config, Node};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).await?;
/// let jobs = Arc::new(vec!["a", "b"]);
/// let work = node.leader_task("scheduler", "host-1").run(async move |leadership| {
///     for job in &*jobs {
///         println!("{job}, {}", leadership.token());
///     }
/// });
/// tokio::spawn(work).await??;
/// # Ok(())
/// # }
/// ```
///
/// A leader task needs no settings like Kubernetes' lease duration, renew deadline and retry
/// period. The session's TTL is the lease duration. A holder considers itself the leader for the
/// TTL minus the drift bound, counted from the time at which it sent the last confirmed renewal.
/// This time corresponds to the renew deadline. This renew deadline always passes before the
/// cluster expires the lease. Renewals are sent by the node's own thread. Candidates do not poll:
/// the node wakes them.
#[derive(Clone, Debug)]
#[must_use = "the task does nothing until it is run"]
pub struct LeaderTask {
    stands: Stands,
    value: Bytes,
    is_once: bool,
    may_finish: bool,
}

/// The session with which the task campaigns.
#[derive(Clone, Debug)]
enum Stands {
    /// The session of this election, as long as the session lives.
    With(Election),
    /// The node's own session, in the election with this name. When the session ends, its
    /// replacement is used.
    ByNode(Arc<OwnSession>, Bytes),
}

impl Node {
    /// Creates a leader task for the election `name` that lasts as long as this node runs: it
    /// campaigns, runs the work while it is the leader, and campaigns again after every loss. The
    /// task uses the node's [own session](Node::session). The session ends if the cluster had no
    /// quorum for longer than the TTL, the program was paused, or the lease was revoked. The task
    /// then opens a new session, and retries until this succeeds. The candidates use the keys below
    /// `name/`, with `value` as their value, as in [`Session::election`](crate::Session::election).
    ///
    /// When the work ends, the task ends and returns the result of the work: a `?` in the work ends
    /// the candidacy. So retry transient errors ([`Error::is_transient`]) inside the work, or
    /// return the error and run a clone, which joins the end of the queue. The task also ends when
    /// its stop signal completes ([`LeaderTask::run_until`]), when the node stops, and when the
    /// future is dropped. [`LeadError`] lists the other cases.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let leading = node.leader_task("reports/leader", "10.0.0.7");
    /// let done = leading
    ///     .run(async |leadership| {
    ///         leadership.txn().then(Op::put("reports/last", "monday")).commit().await
    ///     })
    ///     .block()?;
    /// assert!(done?.succeeded);
    /// assert_eq!(node.session().block()?.election("reports/leader").leader().block()?, None);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leader_task(&self, name: impl IntoBytes, value: impl IntoBytes) -> LeaderTask {
        LeaderTask::by_node(Arc::clone(self.own_session()), name.into_bytes(), value.into_bytes())
    }
}

impl Election {
    /// Campaigns, runs `work` while it is the leader, resigns when the work has ended, and returns
    /// its result.
    ///
    /// If the leadership is lost while `work` runs, `work` is dropped at its next await point, and
    /// the campaign starts again, as long as the session lives. A partition or a pause longer than
    /// the TTL ends the session, and therefore the call. For work that should continue as long as
    /// the program runs, use [`Node::leader_task`]. [`LeaderTask`] documents the guarantees.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let election = node.session().block()?.election("reports/leader");
    /// let done = election
    ///     .run_while_leader("10.0.0.7", async |leadership| {
    ///         leadership.txn().then(Op::put("reports/last", "monday")).commit().await
    ///     })
    ///     .block()?;
    /// assert!(done?.succeeded);
    /// assert_eq!(election.leader().block()?, None);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`LeadError::NotElected`] as soon as this candidate cannot be elected any more: the
    /// session has ended, the node has stopped, or the value is not allowed.
    pub async fn run_while_leader<T>(
        &self,
        value: impl IntoBytes,
        work: impl AsyncFnOnce(Arc<Leadership>) -> T + Clone,
    ) -> Result<T, LeadError> {
        self.leader_task(value).run(work).await
    }

    /// Creates a leader task like [`Election::run_while_leader`] with more options: a stop signal
    /// ([`LeaderTask::run_until`], for an orderly shutdown), a single term, and the reaction to a
    /// loss. The task ends with its session. Use this method if you need a session with a lock
    /// delay or its own TTL, otherwise use [`Node::leader_task`].
    pub fn leader_task(&self, value: impl IntoBytes) -> LeaderTask {
        let (stands, value) = (Stands::With(self.clone()), value.into_bytes());
        LeaderTask { stands, value, is_once: false, may_finish: false }
    }
}

impl LeaderTask {
    /// Creates a task that uses the node's own session, and its replacement after it has ended.
    pub(crate) fn by_node(own: Arc<OwnSession>, name: Bytes, value: Bytes) -> Self {
        Self { stands: Stands::ByNode(own, name), value, is_once: false, may_finish: false }
    }

    /// Leads for at most one term: a loss ends the task with [`LeadError::Lost`].
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Does not drop the work after a loss. The work must notice the loss itself
    /// ([`Hold::lost`](crate::lock::Hold::lost)) and may run while another candidate leads. Use
    /// this option for work that needs an orderly cleanup. The campaign starts again when the work
    /// has ended. If the work ends after its leadership was lost, its result is dropped.
    pub fn finish_after_loss(mut self) -> Self {
        self.may_finish = true;
        self
    }

    /// Runs `work` while it is the leader, resigns when the work has ended, and returns its result.
    /// Each term runs a clone of `work`; see [`LeaderTask`].
    ///
    /// # Errors
    /// See [`LeadError`].
    pub async fn run<T>(
        self,
        work: impl AsyncFnOnce(Arc<Leadership>) -> T + Clone,
    ) -> Result<T, LeadError> {
        let result = self.run_until(pending::<()>(), Duration::ZERO, work).await?;
        Ok(result.expect("the stop future never completes"))
    }

    /// Runs `work` while it is the leader, until the future `stop` completes. When `stop`
    /// completes, the work receives a request to release the leadership
    /// ([`Hold::asked_to_release`](crate::lock::Hold::asked_to_release), with the reason "the
    /// program is stopping"), and is dropped after `grace`. Afterwards the task resigns and waits
    /// until the resignation is durable, at most for another `grace` or a second, whichever is
    /// longer: without a quorum it cannot become durable, and the node keeps trying until it stops.
    /// Returns `None` if the work did not end by itself or was not running.
    ///
    /// # Errors
    /// See [`LeadError`].
    pub async fn run_until<T>(
        self,
        stop: impl Future,
        grace: Duration,
        work: impl AsyncFnOnce(Arc<Leadership>) -> T + Clone,
    ) -> Result<Option<T>, LeadError> {
        let mut stop = pin!(stop);
        loop {
            let campaigning = self.stands.elected(&self.value);
            // Declare the leadership before the work, so that it is dropped after the work.
            let leadership = tokio::select! {
                biased;
                _ = &mut stop => return Ok(None),
                elected = campaigning => SharedLeadership(Arc::new(elected?)),
            };
            let working = work.clone()(Arc::clone(&leadership.0));
            let ended = self.term(&leadership.0, stop.as_mut(), grace, working).await;
            if let TermEnd::Lost(loss) = &ended {
                let node = leadership.0.session().shared().state.status.borrow().name.clone();
                let election = self.stands.election().escape_ascii();
                tracing::warn!(node, %election, "leadership lost: {loss}");
            }
            match ended {
                TermEnd::Lost(loss) if self.is_once => return Err(LeadError::Lost(loss)),
                // A stopped node has ended its sessions. A new campaign would leave a session
                // behind.
                TermEnd::Lost(LostReason::NodeStopped(reason)) => {
                    return Err(LeadError::NotElected(LockError::NodeStopped(reason)));
                }
                TermEnd::Lost(_) => {}
                TermEnd::Done(result) => {
                    resign(&leadership.0, stop, grace).await;
                    return Ok(Some(result));
                }
                TermEnd::Stopped(result) => {
                    resign(&leadership.0, ready(()), grace).await;
                    return Ok(result);
                }
            }
        }
    }

    /// Runs one term. When this function returns, the work has ended or was dropped.
    async fn term<F: Future>(
        &self,
        leadership: &Leadership,
        stop: Pin<&mut impl Future>,
        grace: Duration,
        working: F,
    ) -> TermEnd<F::Output> {
        let mut is_stopping = false;
        let stopping = async {
            stop.await;
            is_stopping = true;
            let session = leadership.session();
            let by = session.label().to_owned();
            leadership.ask(ReleaseRequest { by, reason: "the program is stopping".to_owned() });
            let shared = session.shared();
            shared.sleep_until(shared.now() + grace).await;
        };
        let lost = async {
            if self.may_finish || mutant!(B61) { pending().await } else { leadership.lost().await }
        };
        // Check for the loss first at every poll, so that outdated work is not polled again.
        let result = tokio::select! {
            biased;
            _ = lost => None,
            () = stopping => None,
            result = working => Some(result),
        };
        match leadership.state() {
            LockState::Lost(_) if is_stopping => TermEnd::Stopped(None),
            LockState::Lost(loss) => TermEnd::Lost(loss),
            LockState::Held(_) | LockState::Unconfirmed(_) => match result {
                Some(result) if !is_stopping => TermEnd::Done(result),
                result => TermEnd::Stopped(result),
            },
        }
    }
}

impl Stands {
    /// Campaigns until this candidate is the leader. Retries after temporary errors.
    async fn elected(&self, value: &Bytes) -> Result<Leadership, LockError> {
        loop {
            let why = match self.campaign(value).await {
                Ok(leadership) => return Ok(leadership),
                Err(why) => why,
            };
            if !why.is_retryable() && !self.survives(&why) {
                return Err(why);
            }
            pause(self.shared()).await;
        }
    }

    async fn campaign(&self, value: &Bytes) -> Result<Leadership, LockError> {
        let election = match self {
            Stands::With(election) => election.clone(),
            Stands::ByNode(own, name) => match own.get().await {
                Ok(session) => session.election(name.clone()),
                Err(Error::Stopped { reason, .. }) => return Err(LockError::NodeStopped(reason)),
                Err(error) => return Err(LockError::Store(error)),
            },
        };
        election.campaign(value.clone()).await
    }

    /// Reports whether the task continues with a new session after this error.
    fn survives(&self, why: &LockError) -> bool {
        matches!((self, why), (Stands::ByNode(..), LockError::SessionEnded(_))) && !mutant!(B64)
    }

    /// Returns the name of the election.
    fn election(&self) -> &Bytes {
        match self {
            Stands::With(election) => election.name(),
            Stands::ByNode(_, name) => name,
        }
    }

    fn shared(&self) -> &NodeShared {
        match self {
            Stands::With(election) => election.session().shared(),
            Stands::ByNode(own, _) => own.shared(),
        }
    }
}

/// Resigns, and waits until the resignation is durable. Once the stop signal has completed, waits only
/// for a limited time. If the resignation is not confirmed in time, the node keeps trying.
async fn resign(leadership: &Leadership, stop: impl Future, grace: Duration) {
    let shared = leadership.session().shared();
    let limit = async {
        stop.await;
        shared.sleep_until(shared.now() + grace.max(RESIGNATION_WAIT_MIN)).await;
    };
    tokio::select! {
        biased;
        ended = leadership.end() => drop(ended),
        () = limit => {}
    }
}

/// A leadership that ends when this value is dropped, even if others share it.
pub(crate) struct SharedLeadership(pub(super) Arc<Leadership>);

impl Drop for SharedLeadership {
    fn drop(&mut self) {
        self.0.release_in_background();
    }
}

/// How a term ended.
enum TermEnd<T> {
    /// The work has ended while its leadership lasted.
    Done(T),
    /// The stop signal has completed. Contains the result of the work if the work ended in time and
    /// its leadership lasted.
    Stopped(Option<T>),
    /// The leadership was lost.
    Lost(LostReason),
}
