//! Rejects calls that this member does not serve at the moment.

use std::sync::Arc;

use http::Request;
use tonic::Status;
use tonic::body::Body;

use crate::leader::asks_for_leader;
use crate::member::Member;
use crate::middleware::Middleware;
use crate::protocol::Method;
use crate::wire::Reason;

/// Rejects calls that need a leader when there is none, and calls that learners do not serve.
#[derive(Clone)]
pub(crate) struct Availability(pub(crate) Arc<Member>);

impl Middleware for Availability {
    type State = ();

    fn request(&self, request: &mut Request<Body>) -> Result<(), Status> {
        if asks_for_leader(request.headers()) && !self.0.has_leader() {
            return Err(Reason::NoLeader.into());
        }
        if Method::of(request).is_for_learners { Ok(()) } else { self.0.not_for_learners() }
    }
}
