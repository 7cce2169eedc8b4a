//! Who asks: found out for each request, before it gets to its service, and handed to it with the request. What is asked
//! for long after that, on a stream or by a message that took its time, is asked for by whoever it is then.

use std::sync::Arc;

use bowline::auth::{Access, Caller};
use http::{HeaderMap, HeaderValue};
use tonic::{Request, Status};

use super::token::Tokens;
use super::wire::Reason;

/// What etcd's gateway marks requests with.
const THROUGH_A_GATEWAY: &str = "grpcgateway-accept";

/// The user for whom something is asked; nobody where users are not asked for, or nobody has said.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity {
    user: Option<String>,
    /// What it was found out by.
    shown: Shown,
    /// The revision of the table of users at which it was.
    revision: u64,
}

/// What a request shows of who asks.
#[derive(Clone, Debug, Default)]
enum Shown {
    #[default]
    Nothing,
    Token(HeaderValue),
    /// The name in the certificate of its connection, which is looked at again by itself.
    Certificate(Arc<str>),
}

impl Shown {
    /// The token that is shown, or where there is none, the connection's certificate.
    fn of(headers: &HeaderMap, certified: Option<&Arc<str>>) -> Self {
        // The one is etcd's clients', the other the gateway's.
        if let Some(token) = headers.get("token").or_else(|| headers.get("authorization")) {
            return Self::Token(token.clone());
        }
        // A gateway shows its own certificate, and speaks for others.
        let certified = certified.filter(|_| !headers.contains_key(THROUGH_A_GATEWAY));
        certified.map_or(Self::Nothing, |user| Self::Certificate(Arc::clone(user)))
    }

    /// Whom it shows, as things are now.
    fn user(&self, access: &Access, tokens: &Tokens) -> Result<Option<String>, Status> {
        match self {
            Self::Nothing => Ok(None),
            Self::Certificate(user) => Ok(Some(user.to_string())),
            Self::Token(token) => {
                let token = token.to_str().map_err(|_| Reason::InvalidToken)?;
                // Who writes it as one of OAuth's means the same, as in etcd from 3.6.13 on.
                let token = token.strip_prefix("Bearer ").unwrap_or(token);
                Ok(Some(tokens.user(token, access)?))
            }
        }
    }
}

impl Identity {
    /// Finds out who asks: whoever the token says, or where there is none, whoever the connection's certificate
    /// names. While users and roles are off nobody is asked.
    ///
    /// # Errors
    /// A token that is none, or not any more.
    pub(super) fn of(
        headers: &HeaderMap,
        access: &Access,
        tokens: &Tokens,
        certified: Option<&Arc<str>>,
    ) -> Result<Self, Status> {
        Self::by(Shown::of(headers, certified), access, tokens)
    }

    /// Nobody as yet, with what is shown: found out when something is [asked for](Self::again).
    pub(super) fn unjudged(headers: &HeaderMap, certified: Option<&Arc<str>>) -> Self {
        Self { shown: Shown::of(headers, certified), ..Self::default() }
    }

    fn by(shown: Shown, access: &Access, tokens: &Tokens) -> Result<Self, Status> {
        let user = if access.is_enabled() { shown.user(access, tokens)? } else { None };
        Ok(Self { user, shown, revision: access.revision() })
    }

    /// Finds it out again, by what was shown then and as things are now.
    ///
    /// # Errors
    /// The token has ended meanwhile, or has never been one, and nobody asked.
    pub(super) fn again(&self, access: &Access, tokens: &Tokens) -> Result<Self, Status> {
        Self::by(self.shown.clone(), access, tokens)
    }

    /// Who asks by this request. Without what the dispatch has found out it is nobody.
    pub(super) fn in_request<T>(request: &Request<T>) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// The revision of the table of users at which it was found out.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether it would be found out by this table as it was.
    pub(super) fn holds(&self, access: &Access) -> bool {
        // That users are switched on is no new revision of theirs.
        self.revision == access.revision() && (self.user.is_some() || !access.is_enabled())
    }

    /// The user's name.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The same, as the library is told: by the table that it was found out by, and by no other.
    pub(super) fn caller(&self) -> Caller {
        Caller { user: self.user.clone(), revision: self.revision }
    }

    /// The same, by a table at which nothing was looked at but the user's name: what was shown may have ended since.
    pub(super) fn known_still(&self, access: &Access) -> Caller {
        Caller { user: self.user.clone(), revision: access.revision() }
    }
}
