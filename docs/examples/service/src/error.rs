//! How errors become HTTP responses.
//!
//! | effect and kind | status | what the client does |
//! |---|---|---|
//! | not applied, a limit of the request | 400, 413 | corrects the request |
//! | not applied, a condition of the request | 404, 412, 428 | reads again |
//! | not applied, not here | 421 | asks the leader, which the header `leader` names |
//! | not applied, not now | 503 | tries again, here or at another process |
//! | not applied, no space | 507 | waits for an operator |
//! | unknown | 504 | reads before it writes again |
//! | applied | 200 | nothing: only the answer was lost |

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bowline::lock::FenceError;
use bowline::tower::{FenceRejection, NotLeader};
use bowline::{Effect, Error, Revision};
use serde_json::json;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The store did not do what it was asked to do.
    #[error(transparent)]
    Store(#[from] Error),
    /// The request is malformed.
    #[error("{0}")]
    BadRequest(String),
    /// There is no such flag.
    #[error("there is no flag {0:?}")]
    NotFound(String),
    /// The flag has another version, or none.
    #[error("the flag has another version")]
    Changed(Option<Revision>),
    /// A later importer has sent a request meanwhile.
    #[error("a later holder of the lock has imported")]
    Overtaken,
    /// The request is for the leader.
    #[error(transparent)]
    NotLeader(NotLeader),
    /// The fencing token was not admitted.
    #[error(transparent)]
    Fence(FenceRejection),
}

impl ApiError {
    /// Returns whether the request has changed the store.
    pub fn effect(&self) -> Effect {
        match self {
            ApiError::Store(error) => error.effect(),
            // A fence changes no flag, even if it has stored the token.
            _ => Effect::NotApplied,
        }
    }

    /// Returns the status of the response.
    pub fn status(&self) -> StatusCode {
        match self {
            ApiError::Store(error) => status_of(error),
            ApiError::Fence(FenceRejection::NotAdmitted(FenceError::Store(error))) => {
                match error.effect() {
                    Effect::NotApplied => status_of(error),
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                }
            }
            ApiError::BadRequest(_) => StatusCode::BAD_REQUEST,
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::Fence(FenceRejection::NoToken) => StatusCode::PRECONDITION_REQUIRED,
            ApiError::Fence(FenceRejection::NotAdmitted(FenceError::StaleToken(_)))
            | ApiError::Changed(_)
            | ApiError::Overtaken => StatusCode::PRECONDITION_FAILED,
            ApiError::NotLeader(why) => match why.location() {
                Some(_) => StatusCode::MISDIRECTED_REQUEST,
                None => StatusCode::SERVICE_UNAVAILABLE,
            },
            ApiError::Fence(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

fn status_of(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.http_status()).expect("a valid status")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, effect) = (self.status(), self.effect());
        let effect = match effect {
            Effect::NotApplied => "not applied",
            Effect::Unknown => "unknown",
            Effect::Applied => "applied",
        };
        let body = Json(json!({ "error": self.to_string(), "effect": effect }));
        let mut response = (status, body).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        let header = match &self {
            ApiError::NotLeader(why) => why.location().map(|url| ("leader", url.to_owned())),
            ApiError::Changed(Some(revision)) => Some(("etag", format!("\"{revision}\""))),
            _ => None,
        };
        if let Some((name, value)) = header
            && let Ok(value) = HeaderValue::try_from(value)
        {
            response.headers_mut().insert(name, value);
        }
        response
    }
}
