//! Errors of gRPC in the form of the JSON gateway.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tonic::{Code, Status};

/// Returns the error in headers or trailers, if any.
pub(super) fn failed(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)
}

/// Returns the error at the end of a stream, with the field names of older and of newer servers.
pub(super) fn last_words(status: &Status) -> Value {
    let (grpc, http) = (status.code() as i32, http_code(status.code()));
    json!({"error": {
        "code": grpc,
        "message": status.message(),
        "details": [],
        "grpc_code": grpc,
        "http_code": http.as_u16(),
        "http_status": http.canonical_reason().unwrap_or_default(),
    }})
}

pub(super) fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
            StatusCode::BAD_REQUEST
        }
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        // A client that has cancelled does not receive the response anyway.
        Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
