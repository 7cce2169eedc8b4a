//! [`LeaderTask`]: work that runs only while this candidate is the leader.
//!
//! ```text
//!   campaign ──▶ leader ──▶ work starts ──▶ work ends ──▶ resign ──▶ result of the work
//!      ▲                       │
//!      └──── work is dropped ──┴ leadership lost
//! ```
//!
//! It campaigns with a session of the program as long as that lives, or with the node's own session
//! and its successors.
//!
//! This module does not decide who leads. It adds an order of events that is easy to get wrong: the
//! work ends before the leadership is given up, and the work is dropped before anything else
//! happens after a loss. If the work never started, its end is not reported.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Effect, Error, Node, OwnSession};
use crate::mutant::{self, Mutant};
use crate::node::Shared as NodeShared;

use super::call::pause;
use super::election::{Election, Leadership};
use super::error::{LockError, LostReason};
use super::hold::LockState;
use super::order::ReleaseRequest;

/// Error of a [`LeaderTask`] that ended without a result. The work does not run any more, and the
/// candidacy has ended.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LeadError {
    /// It cannot be elected any more, whether or not it has led before. Usually
    /// [`LockError::NodeStopped`]. For [`Election::leader_task`] also [`LockError::SessionEnded`];
    /// it may then be restarted with a new session.
    #[error("{}", why_no_more(.0))]
    NotElected(LockError),
    /// The leadership was lost before the work ended. Returned only after [`LeaderTask::once`].
    #[error("leadership lost: {0}")]
    Lost(LostReason),
}

impl LeadError {
    /// Returns whether the campaign has left anything behind. This does not cover the effects of
    /// the work itself, which are never undone.
    pub fn effect(&self) -> Effect {
        match self {
            LeadError::NotElected(why) => why.effect(),
            LeadError::Lost(_) => Effect::NotApplied,
        }
    }

    /// Reports whether a clone that is run later may become the leader without intervention: the
    /// leadership was lost, but not the session. Only the program knows whether the work may be
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
fn why_no_more(why: &LockError) -> String {
    match why {
        LockError::SessionEnded(end) => {
            format!("cannot be elected any more: the session has ended: {end}")
        }
        LockError::NodeStopped(reason) => {
            format!("cannot be elected any more: the node has stopped: {reason}")
        }
        why => why.to_string(),
    }
}

/// Work for a leader. Created by [`Node::leader_task`] and [`Election::leader_task`]. Each clone is
/// a separate candidate.
///
/// Guarantees:
///
/// - The work is polled only while this is the leader, checked at every poll by this machine's
///   clock. Provided that leadership changes by release or expiry and that clocks stay within the
///   drift bound, the work of at most one leader in the whole cluster is polled at any time. After
///   a loss, the work is dropped before anything else happens.
/// - Another candidate leads only after the work has ended or was dropped. This also holds if this
///   future is dropped or the work panics. Shares of the leadership that the work has passed on
///   become lost.
/// - The end of leadership is reported only to work that has started.
///
/// Limits: work that does not reach an await point cannot be stopped. After a pause it may run on
/// with outdated leadership, so it should write with [`Hold::txn`](crate::lock::Hold::txn), or pass on
/// its [`Hold::token`](crate::lock::Hold::token). [`Hold::at_risk`](crate::lock::Hold::at_risk) warns it in
/// advance. Tasks that the work has spawned are not dropped with it.
///
/// The work is a closure that is called once per term, so it cannot give away what it owns. `async
/// move |leadership| ..` does not compile in a spawned task ("not general enough"). Clone the data
/// that the work uses once per term:
///
/// ```
/// # use std::sync::Arc;
/// # use bowline::{Leadership, Node};
/// # fn program(node: &Node, jobs: Arc<Vec<String>>) -> impl Future<Output = ()> + Send + 'static {
/// let leading = node.leader_task("scheduler", "host-1");
/// async move {
///     let work = move |leadership: Arc<Leadership>| {
///         let jobs = Arc::clone(&jobs);
///         async move { println!("{} jobs, {:?}", jobs.len(), leadership.token()) }
///     };
///     leading.run(work).await.ok();
/// }
/// # }
/// ```
///
/// There are no durations to tune, unlike Kubernetes' lease duration, renew deadline and retry
/// period. The session's TTL is the lease duration, and the cluster counts it in full. A holder
/// considers itself leader for the TTL minus the drift bound, counted from the time at which it
/// sent the last confirmed renewal. This is its renew deadline, and it always passes first.
/// Renewals are sent by the node's own thread with its other messages. Candidates do not poll; they
/// are woken.
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
    /// This election's session, as long as it lives.
    With(Election),
    /// The node's own session, in the election with this name. After its end, the next one.
    ByNode(Arc<OwnSession>, Bytes),
}

impl Node {
    /// Creates a leader task for the election `name` that lasts as long as this node runs: it
    /// campaigns, runs the work while it is the leader, and campaigns again after every loss. It
    /// uses the node's [own session](Node::session). If that ends (because the cluster had no
    /// quorum for longer than the TTL, the program was paused, or the lease was revoked), it opens
    /// the next one, retrying until that succeeds. The candidates use the keys below `name/`, with
    /// `value` as their value, as in [`Session::election`](crate::Session::election).
    ///
    /// The task ends with the result of the work when the work ends. Work that fails should return
    /// its error; run a clone to try again, which then is the last candidate. The task also ends
    /// when it is asked to ([`LeaderTask::run_until`]), with the node, and when it is dropped.
    /// [`LeadError`] lists the other cases.
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
    pub fn leader_task(&self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> LeaderTask {
        LeaderTask::by_node(Arc::clone(self.own_session()), name.into(), value.into())
    }
}

impl Election {
    /// Campaigns, runs `work` while it is the leader, resigns when the work has ended, and returns
    /// its result.
    ///
    /// If the leadership is lost before that, `work` is dropped at its next await point, and the
    /// campaign starts again, as long as the session lives. A partition or a pause longer than the
    /// TTL therefore ends it. For work that should continue as long as the program runs, use
    /// [`Node::leader_task`]. [`LeaderTask`] documents the guarantees.
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
    /// Returns [`LeadError::NotElected`] as soon as it cannot be elected any more: the session has
    /// ended, the node has stopped, or the value is not allowed.
    pub async fn run_while_leader<F: Future>(
        &self,
        value: impl Into<Bytes>,
        work: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<F::Output, LeadError> {
        self.leader_task(value).run(work).await
    }

    /// Creates a leader task like [`Election::run_while_leader`] with more options: a stop signal
    /// ([`LeaderTask::run_until`], for an orderly shutdown), a single term, and the reaction to a
    /// loss. It ends with its session. Use it for a session with a lock delay or its own TTL,
    /// otherwise use [`Node::leader_task`].
    pub fn leader_task(&self, value: impl Into<Bytes>) -> LeaderTask {
        let (stands, value) = (Stands::With(self.clone()), value.into());
        LeaderTask { stands, value, is_once: false, may_finish: false }
    }
}

impl LeaderTask {
    /// Creates a task that uses the node's own session and its successors.
    pub(crate) fn by_node(own: Arc<OwnSession>, name: Bytes, value: Bytes) -> Self {
        Self { stands: Stands::ByNode(own, name), value, is_once: false, may_finish: false }
    }

    /// Leads for at most one term: a loss ends the task with [`LeadError::Lost`].
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Does not drop the work after a loss. The work must notice the loss itself
    /// ([`Hold::lost`](crate::lock::Hold::lost)) and may run while another candidate leads. Use it for
    /// work that needs an orderly cleanup. The campaign starts again when the work has ended. The
    /// result of work that has outlived its leadership is dropped.
    pub fn finish_after_loss(mut self) -> Self {
        self.may_finish = true;
        self
    }

    /// Runs `work` while it is the leader, resigns when the work has ended, and returns its result.
    ///
    /// # Errors
    /// See [`LeadError`].
    pub async fn run<F: Future>(
        self,
        work: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<F::Output, LeadError> {
        let result = self.drive(pending::<()>(), Duration::ZERO, work).await?;
        Ok(result.expect("the stop future never completes"))
    }

    /// Runs `work` while it is the leader, until the future `stop` completes. Then the work is
    /// asked to end ([`Hold::asked_to_release`](crate::lock::Hold::asked_to_release), with the reason
    /// "the program is stopping") and is dropped after `grace`. Afterwards the task resigns and waits
    /// until that is durable. Returns `None` if the work did not end by itself or was not running.
    ///
    /// # Errors
    /// See [`LeadError`].
    pub async fn run_until<F: Future>(
        self,
        stop: impl Future,
        grace: Duration,
        work: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<Option<F::Output>, LeadError> {
        self.drive(stop, grace, work).await
    }

    async fn drive<F: Future>(
        self,
        stop: impl Future,
        grace: Duration,
        mut work: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<Option<F::Output>, LeadError> {
        let mut stop = pin!(stop);
        loop {
            let campaigning = self.stands.elected(&self.value);
            // Declared before the work, and therefore dropped after it.
            let leadership = tokio::select! {
                biased;
                _ = &mut stop => return Ok(None),
                elected = campaigning => SharedLeadership(Arc::new(elected?)),
            };
            let working = work(Arc::clone(&leadership.0));
            match self.term(&leadership.0, stop.as_mut(), grace, working).await {
                TermEnd::Lost(loss) if self.is_once => return Err(LeadError::Lost(loss)),
                // A stopped node has ended its sessions. A new campaign would leave a session
                // behind.
                TermEnd::Lost(LostReason::NodeStopped(reason)) => {
                    return Err(LeadError::NotElected(LockError::NodeStopped(reason)));
                }
                TermEnd::Lost(_) => {}
                TermEnd::Done(result) => {
                    // If it is not confirmed in time, the node keeps trying.
                    drop(leadership.0.end().await);
                    return Ok(result);
                }
            }
        }
    }

    /// Runs one term. When it returns, the work has ended or was dropped.
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
            match self.may_finish || mutant::is(Mutant::B61) {
                true => pending().await,
                false => leadership.lost().await,
            }
        };
        // Check for the loss first at every poll, so that outdated work is not polled again.
        let result = tokio::select! {
            biased;
            _ = lost => None,
            () = stopping => None,
            result = working => Some(result),
        };
        match leadership.state() {
            LockState::Lost(loss) if !is_stopping => TermEnd::Lost(loss),
            LockState::Lost(_) => TermEnd::Done(None),
            LockState::Held(_) | LockState::Unconfirmed(_) => TermEnd::Done(result),
        }
    }
}

impl Stands {
    /// Campaigns until it is the leader. Retries after temporary errors.
    async fn elected(&self, value: &Bytes) -> Result<Leadership, LockError> {
        loop {
            let why = match self.campaign(value).await {
                Ok(leadership) => return Ok(leadership),
                Err(why) => why,
            };
            if !why.may_pass() && !self.outlives(&why) {
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

    /// Reports whether there will be another session after the end of this one.
    fn outlives(&self, why: &LockError) -> bool {
        matches!((self, why), (Stands::ByNode(..), LockError::SessionEnded(_)))
            && !mutant::is(Mutant::B64)
    }

    fn shared(&self) -> &NodeShared {
        match self {
            Stands::With(election) => election.session().shared(),
            Stands::ByNode(own, _) => own.shared(),
        }
    }
}

/// A leadership that ends when this value is dropped, even if others share it.
pub(super) struct SharedLeadership(pub(super) Arc<Leadership>);

impl Drop for SharedLeadership {
    fn drop(&mut self) {
        self.0.end_now();
    }
}

/// How a term ended.
enum TermEnd<T> {
    /// The work has ended as leader, or was asked to stop.
    Done(Option<T>),
    /// The leadership was lost.
    Lost(LostReason),
}
