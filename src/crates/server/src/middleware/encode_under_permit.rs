//! Encodes large responses one at a time per core.

use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;

use crate::middleware::Middleware;
use crate::middleware::compression::is_compressed;
use crate::middleware::connection::Connection;
use crate::middleware::cpu_permits::{LargeResponse, encoded_under_permit};

/// Encodes large responses under a permit.
#[derive(Clone)]
pub(crate) struct EncodeUnderPermit;

impl Middleware for EncodeUnderPermit {
    type State = (bool, Option<Arc<Connection>>);

    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status> {
        // Compression takes long, so compressed messages count as large.
        Ok((is_compressed(request.headers()), Connection::of(request).cloned()))
    }

    fn response((is_large, connection): Self::State, response: Response<Body>) -> Response<Body> {
        let is_large = is_large || response.extensions().get::<LargeResponse>().is_some();
        response.map(|body| match connection.filter(|_| is_large) {
            Some(connection) => encoded_under_permit(body, &connection.permits),
            None => body,
        })
    }
}
