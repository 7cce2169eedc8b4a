//! Tokens, which a user receives at login and presents in place of the password.
//!
//! ```text
//!   signed   signed with a key that the cluster stores; expires when unused for a while
//!   jwt      signed with a key from a file (see `keys`), so that other programs can issue and verify tokens;
//!            expires at a fixed time and with every change of users and roles
//! ```
//!
//! Tokens are not stored. A login writes nothing to the log, and every member can verify every token.

mod jwt;
mod keys;
mod settings;
mod signed;

use std::time::Duration;

use bowline::auth::Access;
use tonic::Status;

use crate::wire::Reason;
use jwt::Jwt;
pub use keys::TokenError;
pub use settings::{Algorithm, JwtSettings};
use signed::Signed;

/// Issues and verifies tokens.
pub struct Tokens(Kind);

enum Kind {
    Signed(Signed),
    Jwt(Box<Jwt>),
}

impl Tokens {
    /// Returns tokens that are signed with a key of the cluster, and expire when unused for `ttl`.
    pub fn simple(ttl: Duration) -> Self {
        Self(Kind::Signed(Signed::new(ttl)))
    }

    /// Returns JWTs, with keys from files.
    ///
    /// # Errors
    /// Fails if a key cannot be used.
    pub fn jwt(settings: &JwtSettings) -> Result<Self, TokenError> {
        Ok(Self(Kind::Jwt(Box::new(Jwt::load(settings)?))))
    }

    /// Issues a token to a user, based on the table that the password was checked against.
    ///
    /// # Errors
    /// Fails if the user does not exist or this member issues no tokens.
    pub(crate) fn make(&self, user: &str, access: &Access) -> Result<String, Status> {
        if !access.users().contains_key(user) {
            return Err(Reason::AuthFailed.into());
        }
        match &self.0 {
            Kind::Signed(tokens) => {
                tokens.make(user, access).ok_or_else(|| Reason::AuthFailed.into())
            }
            Kind::Jwt(tokens) => tokens.make(user, access),
        }
    }

    /// Returns the user of a token.
    ///
    /// # Errors
    /// Fails if the token is invalid or expired.
    pub(crate) fn user(&self, token: &str, access: &Access) -> Result<String, Reason> {
        match &self.0 {
            Kind::Signed(tokens) => tokens.user(token, access).ok_or(Reason::InvalidToken),
            Kind::Jwt(tokens) => tokens.user(token, access),
        }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Kind::Signed(_) => "Tokens::simple",
            Kind::Jwt(_) => "Tokens::jwt",
        })
    }
}
