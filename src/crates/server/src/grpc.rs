//! Handles gRPC requests: the list of the layers through which every call passes on its way to a service.

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::Arc;

use bowline::Error;
use http::{Request, Response};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;
use tower::util::BoxCloneSyncService;
use tower::{Service as _, ServiceBuilder};

use crate::alarms::Alarms;
use crate::member::Member;
use crate::middleware::anonymous_limit::AnonymousLimit;
use crate::middleware::authorization::Authorization;
use crate::middleware::availability::Availability;
use crate::middleware::call_metrics::CallMetrics;
use crate::middleware::compression::Compression;
use crate::middleware::connection::Connection;
use crate::middleware::deadline::Deadlines;
use crate::middleware::encode_under_permit::EncodeUnderPermit;
use crate::middleware::reauth::Reauthorization;
use crate::middleware::response_budget::{KeepReservations, ResponseBudget};
use crate::middleware::{Around, Middleware as _};
use crate::protocol::Method;
use crate::services::{Answer, Routes, Services};

/// The gRPC side of a server, for one connection.
#[derive(Clone)]
pub(crate) struct Grpc {
    layers: BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>,
    services: Arc<Services>,
    member: Arc<Member>,
    calls: Arc<CallMetrics>,
    pub(crate) connection: Arc<Connection>,
}

impl Grpc {
    /// Creates the services of a member and the layers before them, the outermost first.
    pub(crate) fn new(
        member: &Arc<Member>,
        alarms: &Arc<Alarms>,
        calls: &Arc<CallMetrics>,
        connection: Arc<Connection>,
    ) -> Self {
        let of_watches = ResponseBudget::of_watches();
        let services = Arc::new(Services::new(member, alarms, of_watches.clone()));
        let alarms = Arc::clone(alarms);
        let layers = ServiceBuilder::new()
            // Counts the call and its bytes. Opens its tracing span.
            .layer(Around(Arc::clone(calls)))
            // Cancels the call at the deadline that the client has set.
            .layer(Around(Deadlines))
            // Rejects calls that need a leader when there is none, and calls that learners do not serve.
            .layer(Around(Availability(Arc::clone(member))))
            // Identifies the caller. Rejects the call if the caller lacks permission.
            .layer(Around(Authorization(Arc::clone(member))))
            // Limits the calls of unauthenticated callers.
            .layer(Around(AnonymousLimit(Arc::clone(member))))
            // Identifies the caller again if the message arrives late. Limits the time until the message arrives.
            .layer(Around(Reauthorization(Arc::clone(member))))
            // Keeps a part of the response budget until the response is sent.
            .layer(Around(KeepReservations(of_watches)))
            // Encodes large responses one at a time per core.
            .layer(Around(EncodeUnderPermit))
            // Raises the alarm about lack of space.
            .map_response(move |response| {
                if is_for_space(&response) {
                    alarms.raise_no_space();
                }
                response
            })
            // Compresses like the request. Translates errors about the size of messages.
            .layer(Around(Compression))
            // Limits the size of messages, and calls the service.
            .service(Routes(Arc::clone(&services)));
        let layers = BoxCloneSyncService::new(layers);
        let (member, calls) = (Arc::clone(member), Arc::clone(calls));
        Self { layers, services, member, calls, connection }
    }

    /// Returns an instance for another connection.
    pub(crate) fn with(&self, connection: Connection) -> Self {
        Self { connection: Arc::new(connection), ..self.clone() }
    }

    /// Handles a request from any source.
    pub(crate) fn call(&self, mut request: Request<Body>) -> Answer {
        self.identify(&mut request);
        self.layers.clone().call(request)
    }

    /// Checks by its headers whether a request may be read at all, so that the server buffers nothing for callers
    /// without permission. The request is checked again after reading. Until then the returned permit is held.
    pub(crate) fn may_be_read(
        &self,
        request: &mut Request<Body>,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        self.identify(request);
        let admitted = Availability(Arc::clone(&self.member))
            .request(request)
            .and_then(|()| Authorization(Arc::clone(&self.member)).request(request))
            .and_then(|()| AnonymousLimit(Arc::clone(&self.member)).request(request));
        admitted.inspect_err(|status| self.calls.refused(Method::of(request), status))
    }

    /// Adds the method and the connection, which the layers need.
    fn identify(&self, request: &mut Request<Body>) {
        Method::set(request);
        request.extensions_mut().insert(Arc::clone(&self.connection));
    }

    /// Returns the maximum size of a message.
    pub(crate) fn bytes_max_of(&self, method: &Method) -> usize {
        self.services.bytes_max_of(method)
    }
}

/// Returns whether a request was rejected for lack of space at this member. Returns false for a rejection because of an
/// alarm, which has the same text.
fn is_for_space(response: &Response<Body>) -> bool {
    let why = response.extensions().get::<Status>().and_then(|status| status.source());
    let why = why.and_then(|why| why.downcast_ref());
    matches!(why, Some(Error::QuotaExceeded { .. } | Error::NoSpace))
}
