//! Sessions: leases that this node keeps alive.

use std::future::{IntoFuture, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::model::{Command, LeaseId, Limits, Moment, Rejection, SessionInfo};
use crate::node::{Claim, Input, Parting, SessionEndReason, SessionState, Shared, SharedSession};

use super::Client;
use super::call::Answer;
use super::{Effect, Error, Node};

/// A lease that this node keeps alive from a thread of its own, whatever the host program's executor
/// does. Keys that are bound to [`Session::lease`] live as long as it does. Cheap to clone.
///
/// A session believes in its lease until [`Session::valid_until`], by this machine's boot-time clock.
/// When that passes without a confirmed renewal, the session has ended for good.
///
/// When its last handle is dropped, it is closed in the background; a guard of a lock counts as
/// one, and for [`Node::session`] the node holds one. [`Session::close`] waits for that, and
/// [`Session::detach`] leaves the lease to whoever resumes it.
///
/// What others see of its end:
///
/// | how it ends | its lease, with its keys |
/// |---|---|
/// | closed, last handle dropped, node shut down | revoked at once |
/// | detached | runs out after its TTL, unless it is resumed |
/// | not renewed in time (a partition, a pause), or the node has crashed or was dropped | runs out after its TTL, plus the [lock delay](OpenSession::lock_delay) |
///
/// The node's own session is revoked as soon as its node, or the next life of it, can say so.
#[derive(Clone)]
pub struct Session {
    claim: Arc<Claim>,
}

impl Session {
    pub(crate) fn new(claim: Claim) -> Self {
        Self { claim: Arc::new(claim) }
    }

    /// The lease, to bind keys to.
    pub fn lease(&self) -> LeaseId {
        self.shared_session().lease
    }

    /// How long it is believed in without renewal, before the drift bound is taken off. Its lease lives
    /// for [`Session::lock_delay`] longer.
    pub fn ttl(&self) -> Duration {
        self.shared_session().ttl
    }

    /// How long its keys outlive an end that was not orderly, at least. Zero unless asked for.
    pub fn lock_delay(&self) -> Duration {
        self.shared_session().delay
    }

    /// What others see of it; empty for a lease that was made by [`Client::grant`] and resumed.
    pub fn label(&self) -> &str {
        &self.shared_session().label
    }

    /// A client that works through the session's node.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(self.shared()))
    }

    /// Until when the lease is known to live, if nothing renews it. Compare with [`Node::now`]. Once the session has
    /// ended, for whatever reason, that is a moment long past: [`Moment::default`].
    pub fn valid_until(&self) -> Moment {
        match self.end() {
            Some(_) => Moment::default(),
            None => self.shared_session().valid_until(),
        }
    }

    /// How it stands now, by this machine's clock: right even when the program, or the machine, was
    /// suspended until this very moment.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, SessionEndReason, SessionState};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let session = node.open_session().block()?;
    /// assert_eq!(session.state(), SessionState::Active(session.valid_until()));
    /// session.close().block()?;
    /// assert_eq!(session.state(), SessionState::Ended(SessionEndReason::Closed));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn state(&self) -> SessionState {
        self.shared_session().standing(self.shared().now(), self.shared().settings.drift)
    }

    /// Why the session has ended, if it has.
    pub fn end(&self) -> Option<SessionEndReason> {
        self.shared_session().end(self.shared().now())
    }

    /// Waits until the session has ended.
    pub async fn ended(&self) -> SessionEndReason {
        self.until(|standing| match standing {
            SessionState::Ended(why) => Some(why),
            SessionState::Active(_) | SessionState::RenewalOverdue(_) => None,
        })
        .await
    }

    /// Waits until renewals are overdue, or the session has ended, and says which: time to bring to an end
    /// what must not run on without the session, or to step down. Ready at once if that is so already.
    /// Judged by the clock at each poll; the node wakes it, within a quarter of a heartbeat. A session
    /// that is overdue may recover: then this can be waited for again.
    pub async fn at_risk(&self) -> SessionState {
        self.until(|standing| match standing {
            SessionState::RenewalOverdue(_) | SessionState::Ended(_) => Some(standing),
            SessionState::Active(_) => None,
        })
        .await
    }

    async fn until<T>(&self, mut judge: impl FnMut(SessionState) -> Option<T>) -> T {
        let mut told = self.shared_session().watch();
        let mut change = pin!(async move {
            while told.changed().await.is_ok() {}
            // The channel lives as long as this session: it does not close.
            pending::<()>().await;
        });
        poll_fn(|context| {
            let _: Poll<()> = change.as_mut().poll(context);
            judge(self.state()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Ends it, for all who have a handle: its lease is revoked and all its keys are deleted, also those
    /// of a session with a lock delay. From the call on nothing here believes in it. Fine if it was
    /// closed already, or if its lease has ended.
    ///
    /// # Errors
    /// [`Error::Deadline`] if that could not be confirmed in time; the node goes on trying. If the session had not been
    /// renewed in time before this, it does not: the lease runs out by itself.
    /// [`Error::SessionEnded`], and nothing is done, if it was detached, or if it has a lock delay and was
    /// not renewed in time: then its keys stay for the delay, for which it was asked.
    pub async fn close(&self) -> Result<(), Error> {
        let (state, shared) = (self.shared_session(), self.shared());
        match state.finish(SessionEndReason::Closed, shared.now()) {
            None => shared.push(Input::PartSession(Arc::clone(state), Parting::Closed)),
            Some(end @ SessionEndReason::NotRenewed) if state.delay > Duration::ZERO => {
                return Err(Error::ended(end, shared));
            }
            Some(end @ SessionEndReason::Detached) => return Err(Error::ended(end, shared)),
            // Whoever is granted a lease of that name now is somebody else.
            Some(SessionEndReason::LeaseEnded) => return Ok(()),
            Some(_) => {}
        }
        let effect = Effect::Unknown;
        match self.client().propose(Command::Revoke(state.lease), None).await {
            Ok(_) | Err(Error::Rejected(Rejection::LeaseNotFound(_))) => Ok(()),
            // What this request has done is unknown; unless the session was not renewed in time before, the
            // node has one of its own, and goes on trying.
            Err(Error::Stopped { reason, .. }) => Err(Error::Stopped { reason, effect }),
            Err(error) if error.effect() == Effect::NotApplied => Err(Error::Deadline { effect }),
            Err(error) => Err(error),
        }
    }

    /// Stops renewing it without ending its lease, for [`Node::resume_session`] here, on another
    /// node, or in the program's next life: the session ends for all who have a handle, the keys stay
    /// for the TTL from the last renewal. A guard of a lock reports the loss; whether its key stays is
    /// its own affair.
    ///
    /// A node's own session cannot be resumed: detached, it only runs out.
    pub fn detach(self) -> LeaseId {
        let (state, shared) = (self.shared_session(), self.shared());
        if state.finish(SessionEndReason::Detached, shared.now()).is_none() {
            shared.push(Input::PartSession(Arc::clone(state), Parting::Detached));
        }
        state.lease
    }

    pub(crate) fn shared_session(&self) -> &Arc<SharedSession> {
        &self.claim.state
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.claim.shared
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("lease", &self.lease())
            .field("standing", &self.state())
            .finish_non_exhaustive()
    }
}

/// Opens a session; see [`Node::open_session`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct OpenSession {
    client: Client,
    ttl: Duration,
    delay: Duration,
    info: SessionInfo,
    deadline: Option<Duration>,
}

impl OpenSession {
    /// On the node of a client.
    pub(crate) fn on(client: Client, own: bool) -> Self {
        let settings = &client.shared.settings;
        let info = SessionInfo { label: settings.label.clone(), own };
        Self { ttl: settings.session_ttl, delay: Duration::ZERO, info, deadline: None, client }
    }

    /// How long it lives without renewal: [`Limits::SESSION_TTL_MIN`], 100 ms, to [`Limits::LEASE_TTL_MAX`], 285
    /// years, else [`Error::SessionTtl`]. Default: the configuration's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Keeps the session's keys, and so its locks, from others for at least this long after it has
    /// ended without having been closed: a holder that was paused or cut off, and does not know yet
    /// that it has lost, gets this long to stop what it does. For what can refuse no
    /// [fencing token](crate::Token). The lease is made for the TTL and the delay together; this
    /// session believes only in the TTL. Closing, also by dropping or by a shutdown of the node, ends
    /// it at once. Default: zero; at most [`Limits::LOCK_DELAY_MAX`], else [`Error::LockDelay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// What others see of it. Default: the configuration's label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.info.label = label.into();
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for OpenSession {
    type Output = Result<Session, Error>;
    type IntoFuture = Answer<Session>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, ttl, delay, info, deadline: timeout } = self;
            check_ttl(ttl)?;
            check_delay(delay)?;
            let session = Some(info.clone());
            let command = Command::Grant { id: None, ttl, session };
            let shared = client.shared;
            shared.settings.limits.check(&command)?;
            let deadline = shared.deadline(timeout);
            loop {
                let claim = shared.open_session(ttl, delay, info.clone(), deadline).await?;
                // One that took longer to open than it lives is lost before it is used.
                if claim.state.end(shared.now()).is_none() {
                    return Ok(Session::new(claim));
                }
            }
        })
    }
}

/// Goes on with a session; see [`Node::resume_session`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct ResumeSession {
    client: Client,
    lease: LeaseId,
    delay: Duration,
    deadline: Option<Duration>,
}

impl ResumeSession {
    pub(crate) fn new(node: &Node, lease: LeaseId) -> Self {
        Self { client: node.client(), lease, delay: Duration::ZERO, deadline: None }
    }

    /// The delay that the session was opened with: the cluster knows only how long the lease lives in
    /// all. Believes in the lease for the rest. Default: zero, which believes in all of it: never for
    /// too long, but with no delay left. At most [`Limits::LOCK_DELAY_MAX`], and less than the lease
    /// lives.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for ResumeSession {
    type Output = Result<Session, Error>;
    type IntoFuture = Answer<Session>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, lease, delay, deadline: timeout } = self;
            check_delay(delay)?;
            let deadline = client.shared.deadline(timeout);
            let claim = client.shared.resume_session(lease, delay, deadline).await?;
            match claim.state.end(client.shared.now()) {
                None => Ok(Session::new(claim)),
                Some(end) => Err(Error::ended(end, &client.shared)),
            }
        })
    }
}

fn check_ttl(asked: Duration) -> Result<(), Error> {
    let (min, max) = (Limits::SESSION_TTL_MIN, Limits::LEASE_TTL_MAX);
    if asked < min || asked > max {
        return Err(Error::SessionTtl { asked, min, max });
    }
    Ok(())
}

fn check_delay(asked: Duration) -> Result<(), Error> {
    let max = Limits::LOCK_DELAY_MAX;
    if asked > max { Err(Error::LockDelay { asked, max }) } else { Ok(()) }
}
