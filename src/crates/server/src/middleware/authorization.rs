//! Identifies the caller, and rejects calls for which the caller lacks permission.

use std::sync::Arc;

use http::Request;
use tonic::Status;
use tonic::body::Body;

use crate::identity::Identity;
use crate::member::Member;
use crate::middleware::Middleware;
use crate::middleware::connection::Connection;
use crate::permission::Permission;
use crate::protocol::Method;

/// Adds the caller's [`Identity`] to the request.
#[derive(Clone)]
pub(crate) struct Authorization(pub(crate) Arc<Member>);

impl Middleware for Authorization {
    type State = ();

    fn request(&self, request: &mut Request<Body>) -> Result<(), Status> {
        let certified = Connection::of(request);
        let certified = certified.and_then(|connection| connection.certified.as_ref());
        let who = match Method::of(request).permission {
            Permission::None => Identity::default(),
            Permission::PerWatch => Identity::unchecked(request.headers(), certified),
            needed => {
                let access = self.0.client().access();
                let who = Identity::of(request.headers(), &access, self.0.tokens(), certified)?;
                needed.check(&who, &access)?;
                who
            }
        };
        request.extensions_mut().insert(who);
        Ok(())
    }
}
