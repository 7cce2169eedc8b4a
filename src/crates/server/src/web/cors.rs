//! Tells browsers which web pages may read the responses.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Response};

use crate::settings::Origins;

/// Methods and headers that web pages may use, as in etcd.
const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static("accept, content-type, authorization");

/// The permission for one request.
pub(crate) enum Cors {
    /// The web pages that may read the response, as the header names them.
    Allowed(HeaderValue),
    /// The page that sent the request may not read the response.
    Denied,
    /// The request names no web page, so no browser enforces the permission.
    NoPage,
}

impl Cors {
    /// Returns the permission for a request with these headers.
    pub(crate) fn of(headers: &HeaderMap, origins: &Origins) -> Self {
        match (origins, headers.get(ORIGIN)) {
            (Origins::Any, _) => Self::Allowed(HeaderValue::from_static("*")),
            (Origins::Only(_), None) => Self::NoPage,
            (Origins::Only(origins), Some(origin)) => match origin.to_str() {
                Ok(name) if origins.contains(name) => Self::Allowed(origin.clone()),
                _ => Self::Denied,
            },
        }
    }

    /// Adds the permission to a response.
    pub(crate) fn add_to<B>(self, mut response: Response<B>) -> Response<B> {
        let headers = response.headers_mut();
        if let Self::Allowed(origin) = self {
            // Caches must not give the response for one page to another.
            if origin != "*" {
                headers.append(VARY, HeaderValue::from_static("Origin"));
            }
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
        }
        response
    }
}
