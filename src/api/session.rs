//! Sessions: leases that this node keeps alive.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::model::{Command, LeaseId, Limits, Moment, Rejection, SessionInfo};
use crate::node::{
    Claim, SessionClose, SessionEndReason, SessionKeeper as _, SessionState, Shared, SharedSession,
};

use super::Client;
use super::call::{awaited, deadline_option};
use super::{Effect, Error, Node};

/// A lease that this node renews from its own thread, independent of the program's async executor.
/// Keys that are attached to [`Session::lease`] live as long as the session. A session is cheap to
/// clone.
///
/// A session considers its lease valid until [`Session::valid_until`], on this machine's boot-time
/// clock. When that time passes without a confirmed renewal, the session has ended permanently.
///
/// A session is closed in the background when its last handle is dropped. The guard of a lock
/// counts as a handle, and the node holds a handle on the session of [`Node::session`].
/// [`Session::close`] waits until the session is closed. [`Session::detach`] stops renewing the
/// lease without revoking it, so that another node can resume the session.
///
/// The end of a session has these effects:
///
/// | how the session ends | what happens to its lease and keys |
/// |---|---|
/// | closed, last handle dropped, node shut down | revoked at once |
/// | detached | expire after the TTL, unless the session is resumed |
/// | not renewed in time, node crashed or dropped | expire after the TTL plus the [lock delay](OpenSession::lock_delay) |
///
/// The node's own session is revoked as soon as the node, or its next incarnation, can reach the
/// cluster.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    claim: Arc<Claim>,
}

impl Session {
    pub(crate) fn new(shared: &Arc<Shared>, claim: Claim) -> Self {
        Self { shared: Arc::clone(shared), claim: Arc::new(claim) }
    }

    /// Returns the lease of the session. Keys can be attached to this lease.
    pub fn lease(&self) -> LeaseId {
        self.shared_session().lease
    }

    /// Returns the TTL of the session: how long it stays valid after a renewal, minus the drift
    /// bound. The lease lives for [`Session::lock_delay`] longer.
    pub fn ttl(&self) -> Duration {
        self.shared_session().ttl
    }

    /// Returns the lock delay: the minimum time that the keys survive if the session ends without
    /// being closed. Zero by default.
    pub fn lock_delay(&self) -> Duration {
        self.shared_session().delay
    }

    /// Returns the label, which other nodes see. The label is empty for a lease that was granted
    /// with [`Client::grant`] and resumed.
    pub fn label(&self) -> &str {
        &self.shared_session().label
    }

    /// Returns a client that works through the session's node.
    pub fn client(&self) -> Client {
        Client::new(Arc::clone(self.shared()))
    }

    /// Returns the time until which the lease is guaranteed to live without further renewals.
    /// Compare this time with [`Node::now`]. After the session has ended, returns a time in the
    /// distant past, [`Moment::default`].
    pub fn valid_until(&self) -> Moment {
        match self.end() {
            Some(_) => Moment::default(),
            None => self.shared_session().valid_until(),
        }
    }

    /// Returns the current state of the session. The state is computed from the clock at the time
    /// of the call, so it is correct even right after the program or the machine was suspended.
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
        self.shared_session().state_at(self.shared().now(), self.shared().settings.drift)
    }

    /// Returns why the session has ended, or `None` if it has not ended.
    pub fn end(&self) -> Option<SessionEndReason> {
        self.shared_session().end(self.shared().now())
    }

    /// Waits until the session has ended, and returns the reason.
    pub async fn ended(&self) -> SessionEndReason {
        self.until(|state| match state {
            SessionState::Ended(why) => Some(why),
            SessionState::Active(_) | SessionState::RenewalOverdue(_) => None,
        })
        .await
    }

    /// Waits until renewals are overdue or the session has ended, and returns the state. Use this
    /// method to stop work that must not continue without the session, or to step down. Returns at
    /// once if renewals are already overdue or the session has already ended.
    ///
    /// The state is computed from the clock at each poll. The node wakes the task within a quarter
    /// of a heartbeat. A session with overdue renewals may recover. This method can then be called
    /// again.
    pub async fn at_risk(&self) -> SessionState {
        self.until(|state| match state {
            SessionState::RenewalOverdue(_) | SessionState::Ended(_) => Some(state),
            SessionState::Active(_) => None,
        })
        .await
    }

    async fn until<T>(&self, mut condition: impl FnMut(SessionState) -> Option<T>) -> T {
        let mut states = self.shared_session().watch();
        let mut change = pin!(async move {
            while states.changed().await.is_ok() {}
            // The channel lives as long as the session, so it never closes and this line is never
            // reached.
            pending::<()>().await;
        });
        poll_fn(|context| {
            let _: Poll<()> = change.as_mut().poll(context);
            condition(self.state()).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Closes the session for all handles: revokes its lease and deletes its keys, even if the
    /// session has a lock delay. The session is invalid on this node from the call on. Succeeds if
    /// the session is already closed or its lease has ended.
    ///
    /// # Errors
    /// - [`Error::Deadline`]: the revocation was not confirmed in time. The node keeps trying to
    ///   revoke the lease, unless the session had already missed its renewals. In that case the
    ///   lease expires by itself.
    /// - [`Error::SessionEnded`]: the lease was not revoked, because the session was detached, or
    ///   because it has a lock delay and missed its renewals. If the session missed its renewals,
    ///   its keys stay for the lock delay.
    pub async fn close(&self) -> Result<(), Error> {
        let (state, shared) = (self.shared_session(), self.shared());
        match state.finish(SessionEndReason::Closed, shared.now()) {
            None => shared.close_session(state, SessionClose::Closed),
            Some(end @ SessionEndReason::NotRenewed) if state.delay > Duration::ZERO => {
                return Err(Error::ended(end, shared));
            }
            Some(end @ SessionEndReason::Detached) => return Err(Error::ended(end, shared)),
            // The lease id may meanwhile have been granted to a different owner, so it must not be
            // revoked.
            Some(SessionEndReason::LeaseEnded) => return Ok(()),
            Some(_) => {}
        }
        let effect = Effect::Unknown;
        match self.client().propose(Command::Revoke(state.lease), None).await {
            Ok(_) | Err(Error::Rejected(Rejection::LeaseNotFound(_))) => Ok(()),
            // The effect of this request is unknown. In addition, the node itself retries the
            // revocation, unless the session had already missed its renewals.
            Err(Error::Stopped { reason, .. }) => Err(Error::Stopped { reason, effect }),
            Err(error) if error.effect() == Effect::NotApplied => Err(Error::Deadline { effect }),
            Err(error) => Err(error),
        }
    }

    /// Detaches the session: stops renewing the lease without revoking it, so that
    /// [`Node::resume_session`] can take it over later, on this node, on another node or in the
    /// next run of the program. All handles on the session report its end, and the keys stay for
    /// one TTL after the last renewal. A lock guard of the session reports that the lock was lost,
    /// but the guard's key stays, so that the hold can be resumed.
    ///
    /// A node's own session cannot be resumed: after a detach it expires.
    pub fn detach(self) -> LeaseId {
        let (state, shared) = (self.shared_session(), self.shared());
        if state.finish(SessionEndReason::Detached, shared.now()).is_none() {
            shared.close_session(state, SessionClose::Detached);
        }
        state.lease
    }

    pub(crate) fn shared_session(&self) -> &Arc<SharedSession> {
        &self.claim.state
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
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

/// A call that opens a session; see [`Node::open_session`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct OpenSession {
    client: Client,
    ttl: Duration,
    delay: Duration,
    info: SessionInfo,
    deadline: Option<Duration>,
}

impl OpenSession {
    /// Creates the call for the node of a client.
    pub(crate) fn on(client: Client, own: bool) -> Self {
        let settings = &client.shared.settings;
        let info = SessionInfo { label: settings.label.clone(), own };
        Self { ttl: settings.session_ttl, delay: Duration::ZERO, info, deadline: None, client }
    }

    /// Sets the TTL, from [`Limits::SESSION_TTL_MIN`] (100 ms) to [`Limits::LEASE_TTL_MAX`] (285
    /// years). Outside this range the call fails with [`Error::SessionTtl`]. Default:
    /// [`Config::session_ttl`](crate::Config::session_ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the lock delay: if the session ends without being closed, its keys, which include its
    /// locks, stay for at least this long. A holder that was paused or partitioned, and does not
    /// know yet that it lost its locks, gets this time to stop its work. Set a lock delay if the
    /// protected resource cannot check a [fencing token](crate::Token).
    ///
    /// The lease is granted for the TTL plus the delay, but the session is valid only for the TTL.
    /// Closing or dropping the session, or shutting the node down, deletes its keys at once.
    /// Default zero. If the delay is longer than [`Limits::LOCK_DELAY_MAX`], the call fails with
    /// [`Error::LockDelay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets the label, which other nodes see. Default: [`Config::label`](crate::Config::label).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.info.label = label.into();
        self
    }

    deadline_option!();

    async fn run(self) -> Result<Session, Error> {
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
            // If opening took longer than the TTL, the session has ended before its first use.
            // Open another one.
            if claim.state.end(shared.now()).is_none() {
                return Ok(Session::new(&shared, claim));
            }
        }
    }
}

awaited!(OpenSession -> Result<Session, Error>);

/// A call that resumes a session; see [`Node::resume_session`].
#[derive(Clone, Debug)]
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

    /// Sets the lock delay with which the session was opened. The cluster stores only the TTL of
    /// the lease, which includes the delay. The session's own TTL is the difference. Default zero:
    /// the session then uses the whole TTL of the lease, which is safe, but leaves no lock delay.
    /// The delay must be at most [`Limits::LOCK_DELAY_MAX`] and shorter than the TTL of the lease.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    deadline_option!();

    async fn run(self) -> Result<Session, Error> {
        let Self { client, lease, delay, deadline: timeout } = self;
        check_delay(delay)?;
        let deadline = client.shared.deadline(timeout);
        let claim = client.shared.resume_session(lease, delay, deadline).await?;
        match claim.state.end(client.shared.now()) {
            None => Ok(Session::new(&client.shared, claim)),
            Some(end) => Err(Error::ended(end, &client.shared)),
        }
    }
}

awaited!(ResumeSession -> Result<Session, Error>);

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
