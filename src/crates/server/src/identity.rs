//! Identifies the caller of each request before the request reaches its service. Some messages arrive long after the
//! request's headers, on a stream or in a slow body. For such messages the caller is identified again.

use std::sync::Arc;

use bowline::auth::{Access, Caller};
use http::{HeaderMap, HeaderValue};
use tonic::{Request, Status};

use crate::token::Tokens;
use crate::wire::Reason;

/// Header that etcd's gateway adds to requests.
const THROUGH_A_GATEWAY: &str = "grpcgateway-accept";

/// The user that a request acts for; none if authentication is off or the request has no credentials.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    user: Option<String>,
    /// Credentials by which the user was identified.
    shown: Shown,
    /// Auth revision at which the user was identified.
    revision: u64,
}

/// Credentials of a request.
#[derive(Clone, Debug, Default)]
enum Shown {
    #[default]
    Nothing,
    Token(HeaderValue),
    /// User named in the connection's certificate, which is re-checked separately.
    Certificate(Arc<str>),
}

impl Shown {
    /// Returns the token or, without one, the connection's certificate.
    fn of(headers: &HeaderMap, certified: Option<&Arc<str>>) -> Self {
        // etcd's clients send `token`, the gateway's clients `authorization`.
        if let Some(token) = headers.get("token").or_else(|| headers.get("authorization")) {
            return Self::Token(token.clone());
        }
        // A gateway presents its own certificate, but acts for others.
        let certified = certified.filter(|_| !headers.contains_key(THROUGH_A_GATEWAY));
        certified.map_or(Self::Nothing, |user| Self::Certificate(Arc::clone(user)))
    }

    /// Returns the user that the credentials identify now.
    fn user(&self, access: &Access, tokens: &Tokens) -> Result<Option<String>, Status> {
        match self {
            Self::Nothing => Ok(None),
            Self::Certificate(user) => Ok(Some(user.to_string())),
            Self::Token(token) => {
                let token = token.to_str().map_err(|_| Reason::InvalidToken)?;
                // As in etcd since 3.6.13, the OAuth form is accepted too.
                let token = token.strip_prefix("Bearer ").unwrap_or(token);
                Ok(Some(tokens.user(token, access)?))
            }
        }
    }
}

impl Identity {
    /// Identifies the caller by the token or, without one, by the connection's certificate. While authentication is off
    /// there is no user.
    ///
    /// # Errors
    /// Fails if the token is invalid or expired.
    pub(crate) fn of(
        headers: &HeaderMap,
        access: &Access,
        tokens: &Tokens,
        certified: Option<&Arc<str>>,
    ) -> Result<Self, Status> {
        Self::by(Shown::of(headers, certified), access, tokens)
    }

    /// Returns an identity with credentials but without a user, which is identified when a message [needs
    /// it](Self::again).
    pub(crate) fn unchecked(headers: &HeaderMap, certified: Option<&Arc<str>>) -> Self {
        Self { shown: Shown::of(headers, certified), ..Self::default() }
    }

    fn by(shown: Shown, access: &Access, tokens: &Tokens) -> Result<Self, Status> {
        let user = if access.is_enabled() { shown.user(access, tokens)? } else { None };
        Ok(Self { user, shown, revision: access.revision() })
    }

    /// Identifies the user again by the same credentials.
    ///
    /// # Errors
    /// Fails if the token has expired since or was never valid.
    pub(crate) fn again(&self, access: &Access, tokens: &Tokens) -> Result<Self, Status> {
        Self::by(self.shown.clone(), access, tokens)
    }

    /// Returns the caller of a request. Without an identity from the dispatcher there is no user.
    pub(crate) fn in_request<T>(request: &Request<T>) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// Returns the auth revision at which the user was identified.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns whether the identity is still valid with this table.
    pub(crate) fn holds(&self, access: &Access) -> bool {
        // Enabling authentication does not change its revision.
        self.revision == access.revision() && (self.user.is_some() || !access.is_enabled())
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the caller in the library's form, with the auth revision at which the caller was identified.
    pub(crate) fn caller(&self) -> Caller {
        Caller { user: self.user.clone(), revision: self.revision }
    }

    /// Returns the caller with the current auth revision, without checking the credentials again. The credentials may
    /// have expired.
    pub(crate) fn with_current_revision(&self, access: &Access) -> Caller {
        Caller { user: self.user.clone(), revision: access.revision() }
    }
}
