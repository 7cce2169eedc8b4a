//! Work that is done while leading, and at no other time.
//!
//! ```text
//!   campaign ──▶ leads ──▶ work begins ──▶ work has ended ──▶ resigns ──▶ its result
//!      ▲                       │
//!      └────── work is dropped ┴ lost
//! ```
//!
//! It stands with a session of the program's, as long as that lives, or with the node's own, and then with the
//! next one when a session has ended.
//!
//! Nothing here decides who leads. What it adds is an order that programs get wrong: the work is over
//! before leadership is given up, and before anything else happens after a loss; and only work that
//! has begun can end.

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

/// Why [`LeaderTask`] has ended without the result of its work. The work does not run any more, and nobody
/// stands for it.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LeadError {
    /// It can be elected no more, whether it has led before or not: above all [`LockError::NodeStopped`]; and,
    /// for [`Election::leader_task`] alone, [`LockError::SessionEnded`]: with a new session it may be begun again.
    #[error("{}", why_no_more(.0))]
    NotElected(LockError),
    /// It led, and lost that before the work had ended; only after [`LeaderTask::once`].
    #[error("leads no more: {0}")]
    Lost(LostReason),
}

impl LeadError {
    /// Whether standing for election has left anything behind. What the work has done, in this term and in those before
    /// it, the work knows: nothing of that is taken back.
    pub fn effect(&self) -> Effect {
        match self {
            LeadError::NotElected(why) => why.effect(),
            LeadError::Lost(_) => Effect::NotApplied,
        }
    }

    /// Whether a clone that is run later may lead without anybody changing the program: it was lost alone, and not its
    /// session with it. Whether the work may be begun again only the program knows.
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

/// Of what may come to one who has led, too, it is not said that something was not taken.
fn why_no_more(why: &LockError) -> String {
    match why {
        LockError::SessionEnded(end) => {
            format!("can be elected no more: the session has ended: {end}")
        }
        LockError::NodeStopped(reason) => {
            format!("can be elected no more: the node has stopped: {reason}")
        }
        why => why.to_string(),
    }
}

/// Work for a leader; made by [`Node::leader_task`], and by [`Election::leader_task`]. Clones are candidates of
/// their own.
///
/// What it guarantees:
/// - The work runs only while this leads, judged at every poll by this machine's clock: as long as
///   ownership passes by release or expiry and clocks keep within the drift bound, at most one
///   leader's work is polled at a time in the whole cluster. At the loss the first thing that
///   happens is that the work is dropped.
/// - Another leads only after the work has ended or was dropped: leadership is not given up before,
///   also where this future is dropped, or the work panics. Shares of it that the work has passed on
///   are lost then.
/// - The end of leading is told only to work that has begun.
///
/// What it does not: work that does not come to an await point cannot be stopped. It is out of
/// date when it goes on after a pause, so let it write through [`Hold::txn`](crate::lock::Hold::txn), or
/// hand on its [`Hold::token`](crate::lock::Hold::token). [`Hold::at_risk`](crate::lock::Hold::at_risk) tells it
/// in advance. What it has spawned is not dropped with it.
///
/// The work is a closure that is called once a term, so it cannot give away what it owns. `async move |leadership| ..` does
/// not compile in a spawned task ("not general enough"). Clone what the work uses, once a term:
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
/// There are no durations to choose, as Kubernetes' lease duration, renew deadline and retry period
/// with their inequality. The session's TTL is the lease duration: the cluster counts it in full. A
/// holder believes in it for the TTL less the drift bound, counted from the sending of the last
/// renewal that was confirmed, which is the renew deadline, and always the shorter one. Renewals
/// are sent by the node's own thread on the traffic that flows anyway, and candidates do not retry:
/// they are woken.
#[derive(Clone, Debug)]
#[must_use = "it does not stand for election until it is run"]
pub struct LeaderTask {
    stands: Stands,
    value: Bytes,
    is_once: bool,
    may_finish: bool,
}

/// With which sessions it stands.
#[derive(Clone, Debug)]
enum Stands {
    /// With this one, as long as it lives.
    With(Election),
    /// With the node's own, in the election of this name: when it has ended, with the next one.
    ByNode(Arc<OwnSession>, Bytes),
}

impl Node {
    /// Work for whoever leads in the election `name`, for as long as this node runs: stands for election, runs
    /// the work while it leads, and stands again after every loss, whatever becomes of sessions. It stands with
    /// the [node's own](Node::session); when that has ended (the cluster had no quorum for longer than the TTL,
    /// the program stood still, somebody revoked the lease), it opens the next one, which it tries for as long as
    /// that takes. Keys below `name/` are the candidates, each known by its `value`, as in
    /// [`Session::election`](crate::Session::election).
    ///
    /// It ends when the work has, and gives its result: let work that fails return its error, and run a clone
    /// again, which stands behind the others then. It ends when it is told to ([`LeaderTask::run_until`]), with
    /// the node, and where it is dropped; [`LeadError`] says what else can end it.
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
    /// Stands for election, runs `work` while it leads, resigns when that has ended, and gives its
    /// result. Where leadership is lost before, `work` is dropped at the next await point, and it stands
    /// for election again, to run `work` anew, as long as its session lives, and no longer: a partition or a
    /// pause beyond the TTL ends it. What is to go on for as long as the program does: [`Node::leader_task`].
    /// [`LeaderTask`] has the guarantees.
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
    /// [`LeadError::NotElected`] as soon as it can be elected no more: the session has ended, the node
    /// has stopped, or the election does not take the value.
    pub async fn run_while_leader<F: Future>(
        &self,
        value: impl Into<Bytes>,
        work: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<F::Output, LeadError> {
        self.leader_task(value).run(work).await
    }

    /// Work for a leader, as [`Election::run_while_leader`], with more to choose from: until when
    /// ([`LeaderTask::run_until`]: a program that ends hands over in order), for how many terms, how a loss is met.
    /// It ends with its session: for a lock delay, or a TTL of its own. Otherwise [`Node::leader_task`].
    pub fn leader_task(&self, value: impl Into<Bytes>) -> LeaderTask {
        let (stands, value) = (Stands::With(self.clone()), value.into());
        LeaderTask { stands, value, is_once: false, may_finish: false }
    }
}

impl LeaderTask {
    /// With the node's own session, and the next one when that has ended.
    pub(crate) fn by_node(own: Arc<OwnSession>, name: Bytes, value: Bytes) -> Self {
        Self { stands: Stands::ByNode(own, name), value, is_once: false, may_finish: false }
    }

    /// Leads for one term at the most: a loss ends it with [`LeadError::Lost`].
    pub fn once(mut self) -> Self {
        self.is_once = true;
        self
    }

    /// Does not drop the work at a loss: it has to notice by itself
    /// ([`Hold::lost`](crate::lock::Hold::lost)), and may run on while another leads. For what must be
    /// cleaned up in order. It stands again only when the work has ended; what work that has outlived
    /// its leadership comes to is dropped.
    pub fn finish_after_loss(mut self) -> Self {
        self.may_finish = true;
        self
    }

    /// Runs `work` while it leads, resigns when that has ended, and gives its result.
    ///
    /// # Errors
    /// See [`LeadError`].
    pub async fn run<F: Future>(
        self,
        work: impl FnMut(Arc<Leadership>) -> F,
    ) -> Result<F::Output, LeadError> {
        let result = self.drive(pending::<()>(), Duration::ZERO, work).await?;
        Ok(result.expect("nobody tells it to stop"))
    }

    /// Runs `work` while it leads, until `stop` comes true. Then the work is asked to end
    /// ([`Hold::asked_to_release`](crate::lock::Hold::asked_to_release), by its own session, because "its program
    /// stops") and gets so long for it before it is dropped; after that it resigns, and waits until that is durable. `None` if the work did not end
    /// by itself, or was not running.
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
            // Declared before the work, and so dropped behind it.
            let leadership = tokio::select! {
                biased;
                _ = &mut stop => return Ok(None),
                elected = campaigning => Shared(Arc::new(elected?)),
            };
            let working = work(Arc::clone(&leadership.0));
            match self.term(&leadership.0, stop.as_mut(), grace, working).await {
                TermEnd::Lost(loss) if self.is_once => return Err(LeadError::Lost(loss)),
                // It has ended its sessions, and another would be left behind.
                TermEnd::Lost(LostReason::NodeStopped(reason)) => {
                    return Err(LeadError::NotElected(LockError::NodeStopped(reason)));
                }
                TermEnd::Lost(_) => {}
                TermEnd::Done(result) => {
                    // Where it cannot be confirmed the node goes on trying.
                    drop(leadership.0.end().await);
                    return Ok(result);
                }
            }
        }
    }

    /// One term. The work has ended, or was dropped, when this has.
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
            leadership.ask(ReleaseRequest { by, reason: "its program stops".to_owned() });
            let shared = session.shared();
            shared.sleep_until(shared.now() + grace).await;
        };
        let lost = async {
            match self.may_finish || mutant::is(Mutant::B61) {
                true => pending().await,
                false => leadership.lost().await,
            }
        };
        // The loss is looked at first, at every poll: what is out of date is not polled once more.
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
    /// Stands until it leads; where it cannot now, but may later, again.
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

    /// Whether there is another session when this one has ended.
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

/// A leadership that ends with this value, whoever else has a share of it.
pub(super) struct Shared(pub(super) Arc<Leadership>);

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.end_now();
    }
}

/// How a term came to its end.
enum TermEnd<T> {
    /// The work has ended while this led, or it was told to stop.
    Done(Option<T>),
    /// It was lost.
    Lost(LostReason),
}
