//! Limits the concurrent calls of unauthenticated callers on a connection.

use std::sync::Arc;

use http::{Request, Response};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;

use crate::identity::Identity;
use crate::member::Member;
use crate::middleware::Middleware;
use crate::middleware::connection::{Connection, holding};
use crate::permission::Permission;
use crate::protocol::Method;

/// Marks the request of an unauthenticated caller while authentication is on.
#[derive(Clone, Copy)]
pub(crate) struct Anonymous;

/// Rejects calls beyond the limit. A call counts until the end of its response.
#[derive(Clone)]
pub(crate) struct AnonymousLimit(pub(crate) Arc<Member>);

impl AnonymousLimit {
    /// Returns whether an admitted call is unauthenticated while authentication is on.
    fn is_anonymous(&self, request: &Request<Body>) -> bool {
        let is_known = || {
            let who = request.extensions().get::<Identity>();
            who.is_some_and(|who| self.0.again(who).is_ok_and(|who| who.user().is_some()))
        };
        matches!(Method::of(request).permission, Permission::None | Permission::PerWatch)
            && self.0.client().access().is_enabled()
            && !is_known()
    }
}

impl Middleware for AnonymousLimit {
    type State = Option<OwnedSemaphorePermit>;

    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status> {
        if !self.is_anonymous(request) {
            return Ok(None);
        }
        request.extensions_mut().insert(Anonymous);
        Connection::of(request).map(|connection| connection.anonymous_permit()).transpose()
    }

    fn response(permit: Self::State, response: Response<Body>) -> Response<Body> {
        response.map(|body| holding(body, permit))
    }
}
