//! The JSON gateway: requests as JSON over plain HTTP, for clients without gRPC.
//!
//! ```text
//!   JSON ──▶ protobuf ──▶ Grpc, as for gRPC ──▶ protobuf ──▶ JSON
//! ```
//!
//! The gateway has no code for individual messages. The gateway converts all messages by the protocol's descriptors.
//! As in etcd, bytes are base64, 64-bit numbers are strings, fields have the protocol's names, zero values are
//! omitted, and a stream is one `{"result": ...}` per line. Every request passes through [`Grpc`] like a gRPC
//! request, so that all checks are in one place.

mod errors;
mod fields;
mod json;
mod routes;
mod stream;
pub(crate) mod websocket;

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use prost_reflect::MethodDescriptor;
use serde_json::json;
use tonic::Status;
use tonic::body::Body;

use crate::grpc::Grpc;
use crate::middleware::cpu_permits::{CpuPermits, LARGE_JSON_BYTES};
use crate::middleware::deadline::{self, deadline_of};
use crate::middleware::reauth::{MESSAGE_TIME_MAX, too_slow};
use crate::middleware::response_budget::Reservation;
use crate::protocol;
use errors::{failed, http_code, last_words};
use stream::{Lines, Requests};

/// Prefix of headers that are passed on to the service.
const METADATA_PREFIX: &str = "grpc-metadata-";

/// Maximum number of bytes read from a rejected request's body, and the maximum time for that.
const FORGOTTEN_BYTES_MAX: usize = 64 << 10;
const CLEANUP_TIME_MAX: Duration = Duration::from_secs(1);

/// Returns whether a path belongs to the gateway.
pub(crate) fn is_for(path: &str) -> bool {
    routes::below(path).is_some()
}

/// Handles a request to the gateway.
pub(crate) async fn answer<B>(grpc: &Grpc, request: Request<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes, Error: Error + Send + Sync> + Unpin + Send + 'static,
{
    let (head, body) = request.into_parts();
    let Some(method) = routes::method(head.uri.path()) else {
        forget(body).await;
        return rejection_as(StatusCode::NOT_FOUND, &Status::not_found("Not Found"));
    };
    if head.method != Method::POST {
        forget(body).await;
        return rejection(&Status::unimplemented("Method Not Allowed"));
    }
    let metadata = metadata(&head.headers);
    let path = grpc_path(&method);
    let streams = method.is_server_streaming();
    if let Err(status) = deadline_of(&metadata) {
        forget(body).await;
        // In a gRPC request, an invalid header is an error of the protocol. In a JSON request, an invalid header is an
        // error of the client.
        return rejection(&Status::invalid_argument(status.message()));
    }
    let mut call = Request::new(Body::empty());
    *call.method_mut() = Method::POST;
    match path.parse() {
        Ok(uri) => *call.uri_mut() = uri,
        Err(_) => return rejection(&Status::internal("bowline: invalid method path")),
    }
    *call.headers_mut() = metadata;
    let held = match grpc.may_be_read(&mut call) {
        Ok(held) => held,
        Err(status) => {
            forget(body).await;
            return rejection_of(streams, &status);
        }
    };
    let body = if method.is_client_streaming() {
        Body::new(Requests::new(body, method.input()))
    } else {
        let json_bytes_max = json_bytes_max(grpc, &path);
        let text = match tokio::time::timeout(MESSAGE_TIME_MAX, text(body, json_bytes_max)).await {
            Ok(Ok(text)) => text,
            Ok(Err(status)) => return rejection(&status),
            Err(_) => return rejection(&too_slow()),
        };
        let message = async { message(&method, &text) };
        match grpc.connection.permits.run(text.len() >= LARGE_JSON_BYTES, message).await {
            Ok(message) => Body::new(Full::new(message)),
            Err(status) => return rejection(&status),
        }
    };
    *call.body_mut() = body;
    drop(held);
    // The pattern is complete, because the error type is `Infallible`.
    let Ok(response) = grpc.call(call).await;
    if let Some(status) = failed(response.headers()) {
        return rejection_of(streams, &status);
    }
    let reservation = response.extensions().get::<Reservation>().cloned();
    let body = response.into_body();
    if streams {
        return answer_with(StatusCode::OK, Body::new(Lines::new(body, method.output())));
    }
    match single(&method, body, &grpc.connection.permits).await {
        Ok(json) => {
            let json = match reservation {
                Some(reservation) => reservation.by(json.into()),
                None => json.into(),
            };
            answer_with(StatusCode::OK, Body::new(Full::new(json)))
        }
        Err(status) => rejection(&status),
    }
}

/// Discards the body of a request, and returns the response.
pub(crate) async fn refused_unread(
    request: Request<Incoming>,
    response: Response<Body>,
) -> Response<Body> {
    forget(request.into_body()).await;
    response
}

/// Reads and discards a small body of a rejected request. Some clients, such as curl, report a connection failure if
/// the response arrives while they are still sending.
async fn forget(body: impl HttpBody<Data = Bytes, Error: Error + Send + Sync + 'static> + Unpin) {
    let mut body = Limited::new(body, FORGOTTEN_BYTES_MAX);
    let all = async { while let Some(Ok(_)) = body.frame().await {} };
    drop(tokio::time::timeout(CLEANUP_TIME_MAX, all).await);
}

fn grpc_path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// Returns the maximum size of the JSON of a unary request. It is twice that of the protobuf encoding, because base64
/// makes bytes longer by a third and JSON contains the field names.
fn json_bytes_max(grpc: &Grpc, path: &str) -> usize {
    grpc.bytes_max_of(protocol::Method::at(path)) * 2
}

/// Reads the JSON of a unary request.
async fn text(
    body: impl HttpBody<Data = Bytes, Error: Error + Send + Sync + 'static>,
    json_bytes_max: usize,
) -> Result<Bytes, Status> {
    let body = Limited::new(body, json_bytes_max).collect().await.map_err(|error| {
        Status::resource_exhausted(format!(
            "bowline: cannot read the request, of at most {json_bytes_max} bytes: {error}"
        ))
    })?;
    Ok(body.to_bytes())
}

/// Parses the message of a unary request and frames it. An empty text is an empty message, and text after the first
/// value is ignored.
fn message(method: &MethodDescriptor, text: &[u8]) -> Result<Bytes, Status> {
    match json::first(&method.input(), text) {
        Ok(Some((value, _))) => json::framed(&method.input(), value),
        Ok(None) => json::framed(&method.input(), json!({})),
        Err(error) => Err(Status::invalid_argument(error.to_string())),
    }
}

/// Returns the headers to pass on to the service.
fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    for (name, value) in headers {
        let name = match name.as_str().strip_prefix(METADATA_PREFIX) {
            _ if name == AUTHORIZATION || name == deadline::HEADER => Ok(name.clone()),
            // Clients must not set headers of the protocol itself.
            Some(rest) if !rest.starts_with("grpc-") => HeaderName::try_from(rest),
            _ => continue,
        };
        if let Ok(name) = name {
            metadata.append(name, value.clone());
        }
    }
    metadata.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    metadata
}

/// Converts the message of a unary response to JSON.
async fn single(
    method: &MethodDescriptor,
    body: Body,
    permits: &CpuPermits,
) -> Result<Vec<u8>, Status> {
    let collected = body.collect().await?;
    if let Some(status) = collected.trailers().and_then(failed) {
        return Err(status);
    }
    let message = json::only(&collected.to_bytes());
    let is_large = message.len() >= LARGE_JSON_BYTES;
    permits.run(is_large, async { json::written(&method.output(), message) }).await
}

fn answer_with(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("grpc-metadata-content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn rejection(status: &Status) -> Response<Body> {
    rejection_as(http_code(status.code()), status)
}

/// Returns an error response. For a streaming method it has the form of a failed stream.
fn rejection_of(streams: bool, status: &Status) -> Response<Body> {
    if !streams {
        return rejection(status);
    }
    let body = last_words(status).to_string();
    answer_with(http_code(status.code()), Body::new(Full::new(body.into())))
}

/// `error` repeats `message`: older servers used that name, and clients read either.
fn rejection_as(code: StatusCode, status: &Status) -> Response<Body> {
    let (grpc, words) = (status.code() as i32, status.message());
    let body = json!({"error": words, "code": grpc, "message": words, "details": []});
    answer_with(code, Body::new(Full::new(body.to_string().into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_forwards_only_the_token_and_grpc_metadata() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "token.1"),
            ("grpc-metadata-hasleader", "true"),
            ("grpc-metadata-grpc-timeout", "1S"),
            ("grpc-timeout", "5S"),
            ("grpc-metadata-content-type", "text/plain"),
            ("content-type", "application/json"),
            ("content-length", "7"),
            ("hasleader", "false"),
            ("grpc-encoding", "gzip"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let passed = metadata(&headers);
        let mut passed: Vec<_> =
            passed.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        passed.sort_unstable();
        let expected = [
            ("authorization", "token.1"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", "5S"),
            ("hasleader", "true"),
        ];
        assert_eq!(passed, expected);
    }
}
