//! Sessions: leases that this node keeps alive.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Command, LeaseId, Moment, Refusal, SessionInfo};
use crate::node::{Input, SessionEnd, SessionState, Shared};

use super::Client;
use super::call::Answer;
use super::{Error, Node};

/// A lease that this node keeps alive from a thread of its own, whatever the host program's executor
/// does. Keys that are bound to [`Session::lease`] live as long as it does. Cheap to clone.
///
/// A session believes in its lease until [`Session::valid_until`], by this machine's boot-time clock.
/// When that passes without a confirmed renewal, the session has ended for good.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    state: Arc<SessionState>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, state: Arc<SessionState>) -> Self {
        Self { shared, state }
    }

    /// The lease, to bind keys to.
    pub fn lease(&self) -> LeaseId {
        self.state.lease
    }

    /// How long it lives without renewal.
    pub fn ttl(&self) -> Duration {
        self.state.ttl
    }

    /// Until when the lease is known to live, if nothing renews it. Compare with [`Node::now`].
    pub fn valid_until(&self) -> Moment {
        self.state.valid_until()
    }

    /// Why the session has ended, if it has.
    pub fn end(&self) -> Option<SessionEnd> {
        self.state.end(self.shared.now())
    }

    /// Waits until the session has ended.
    pub async fn ended(&self) -> SessionEnd {
        let mut end = self.state.watch_end();
        loop {
            if let Some(why) = self.end() {
                return why;
            }
            if end.changed().await.is_err() {
                return SessionEnd::NodeStopped;
            }
        }
    }

    /// Ends it: its lease is revoked and all its keys are deleted.
    ///
    /// # Errors
    /// [`Error::Deadline`] if that could not be confirmed in time; the node goes on trying.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.push(Input::CloseSession(self.state.lease));
        let client = Client::new(Arc::clone(&self.shared));
        match client.propose(Command::Revoke(self.state.lease), None).await {
            Err(Error::Refused(Refusal::LeaseNotFound(_))) => Ok(()),
            result => result.map(drop),
        }
    }

    pub(crate) fn state(&self) -> &Arc<SessionState> {
        &self.state
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("lease", &self.state.lease).finish_non_exhaustive()
    }
}

/// Opens a session; see [`Node::open_session`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct OpenSession {
    client: Client,
    ttl: Duration,
    info: SessionInfo,
    timeout: Option<Duration>,
}

impl OpenSession {
    pub(crate) fn new(node: &Node, own: bool) -> Self {
        let client = node.client();
        let settings = &client.shared.settings;
        let info = SessionInfo { label: settings.label.clone(), own };
        Self { ttl: settings.session_ttl, info, timeout: None, client }
    }

    /// How long it lives without renewal. Default: the configuration's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What others see of it. Default: the configuration's label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.info.label = label.into();
        self
    }

    /// How long the call may take.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl IntoFuture for OpenSession {
    type Output = Result<Session, Error>;
    type IntoFuture = Answer<Session>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, ttl, info, timeout } = self;
            let session = Some(info.clone());
            let command = Command::Grant { id: None, ttl, session };
            let shared = client.shared;
            shared.settings.limits.check(&command)?;
            let deadline = shared.deadline(timeout);
            loop {
                let state = shared.open_session(ttl, info.clone(), deadline).await?;
                // One that took longer to open than it lives is lost before it is used.
                if state.end(shared.now()).is_none() {
                    return Ok(Session::new(shared, state));
                }
            }
        })
    }
}
