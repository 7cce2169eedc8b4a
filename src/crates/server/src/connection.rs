//! State of one client connection that its calls share.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use super::aside::Turns;
use super::endpoint::ListenerScope;
use super::wire::Reason;

/// Maximum number of concurrent unauthenticated calls on a connection while authentication is on. More logins would
/// time out in the queue for password checks.
const ANONYMOUS_MAX: usize = 128;

/// A client connection.
#[derive(Clone)]
pub(super) struct Connection {
    /// User named in the client's certificate.
    pub(super) certified: Option<Arc<str>>,
    /// Services offered at the port.
    pub(super) scope: ListenerScope,
    /// Permits for CPU-heavy work.
    pub(super) turns: Turns,
    /// Permits for unauthenticated calls.
    anonymous: Arc<Semaphore>,
}

impl Connection {
    /// Creates the state of a connection. `user` is the user named in its certificate.
    pub(super) fn new(scope: ListenerScope, turns: &Turns, user: Option<Arc<str>>) -> Self {
        let anonymous = Arc::new(Semaphore::new(ANONYMOUS_MAX));
        Self { certified: user, scope, turns: turns.of_another(), anonymous }
    }

    /// Returns a permit for an unauthenticated call.
    pub(super) fn anonymous_permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let held = Arc::clone(&self.anonymous).try_acquire_owned();
        held.map_err(|_| Reason::TooManyRequests.into())
    }
}

/// Wraps a body so that it holds a permit until its end.
pub(super) fn holding(body: Body, held: Option<OwnedSemaphorePermit>) -> Body {
    match held {
        None => body,
        Some(held) => Body::new(body.map_frame(move |frame| {
            let _held = &held;
            frame
        })),
    }
}
