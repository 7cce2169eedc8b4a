//! Who asks: found out once for each request, before it gets to its service, and handed to it with the request.

use bowline::{Access, Caller};
use http::HeaderMap;
use tonic::{Request, Status};

use super::token::Tokens;
use super::wire::Reason;

/// What etcd's gateway marks requests with.
const THROUGH_A_GATEWAY: &str = "grpcgateway-accept";

/// The user for whom something is asked; nobody where users are not asked for, or nobody has said.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Identity(Option<String>);

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
        certified: Option<&str>,
    ) -> Result<Self, Status> {
        if !access.is_enabled() {
            return Ok(Self(None));
        }
        // The one is etcd's clients', the other the gateway's.
        let Some(token) = headers.get("token").or_else(|| headers.get("authorization")) else {
            // A gateway shows its own certificate, and speaks for others.
            let certified = certified.filter(|_| !headers.contains_key(THROUGH_A_GATEWAY));
            return Ok(Self(certified.map(str::to_owned)));
        };
        let user = token.to_str().ok().and_then(|token| tokens.user(token, access));
        user.map(|user| Self(Some(user))).ok_or_else(|| Reason::InvalidToken.into())
    }

    /// Who asks by this request. Without what the dispatch has found out it is nobody.
    pub(super) fn in_request<T>(request: &Request<T>) -> Self {
        request.extensions().get::<Self>().cloned().unwrap_or_default()
    }

    /// The user's name.
    pub(super) fn user(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The same, as the library is told, by a table of users.
    pub(super) fn caller(&self, access: &Access) -> Caller {
        Caller { user: self.0.clone(), revision: access.revision() }
    }
}
