//! State of one client connection that its calls share.

use std::sync::Arc;

use http::Request;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use crate::endpoint::ListenerScope;
use crate::middleware::cpu_permits::CpuPermits;
use crate::wire::Reason;

/// Maximum number of concurrent unauthenticated calls on a connection while authentication is on. More logins would
/// time out in the queue for password checks.
const ANONYMOUS_MAX: usize = 128;

/// A client connection, attached to each of its requests.
#[derive(Clone)]
pub(crate) struct Connection {
    /// User named in the client's certificate.
    pub(crate) certified: Option<Arc<str>>,
    /// Services offered at the port.
    pub(crate) scope: ListenerScope,
    /// Permits for CPU-heavy work.
    pub(crate) permits: CpuPermits,
    /// Permits for unauthenticated calls.
    pub(crate) anonymous: Arc<Semaphore>,
}

impl Connection {
    /// Creates the state of a connection. `user` is the user named in its certificate.
    pub(crate) fn new(scope: ListenerScope, permits: &CpuPermits, user: Option<Arc<str>>) -> Self {
        let anonymous = Arc::new(Semaphore::new(ANONYMOUS_MAX));
        Self { certified: user, scope, permits: permits.for_connection(), anonymous }
    }

    /// Returns the connection on which a request arrived.
    pub(crate) fn of<T>(request: &Request<T>) -> Option<&Arc<Self>> {
        request.extensions().get()
    }

    /// Returns the permits for CPU-heavy work of the connection on which a call arrived.
    pub(crate) fn permits_of<T>(call: &tonic::Request<T>) -> CpuPermits {
        let connection = call.extensions().get::<Arc<Self>>();
        connection.map_or_else(CpuPermits::new, |connection| connection.permits.clone())
    }

    /// Returns a permit for an unauthenticated call.
    pub(crate) fn anonymous_permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let held = Arc::clone(&self.anonymous).try_acquire_owned();
        held.map_err(|_| Reason::TooManyRequests.into())
    }
}

/// Wraps a body so that it holds a permit until its end.
pub(crate) fn holding(body: Body, held: Option<OwnedSemaphorePermit>) -> Body {
    match held {
        None => body,
        Some(held) => Body::new(body.map_frame(move |frame| {
            let _held = &held;
            frame
        })),
    }
}
