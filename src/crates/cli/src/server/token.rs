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
mod signed;

use bowline::auth::Access;
use tonic::Status;

use super::flags::TokenKind;
use super::wire::Reason;
use jwt::Jwt;
pub(super) use keys::TokenError;
use signed::Signed;

/// Issues and verifies tokens.
pub(super) enum Tokens {
    Signed(Signed),
    Jwt(Box<Jwt>),
}

impl Tokens {
    /// Loads the keys, if they are in files.
    ///
    /// # Errors
    /// Fails if a key cannot be used.
    pub(super) fn load(kind: &TokenKind) -> Result<Self, TokenError> {
        Ok(match kind {
            TokenKind::Simple { ttl } => Self::Signed(Signed::new(*ttl)),
            TokenKind::Jwt(options) => Self::Jwt(Box::new(Jwt::load(options)?)),
        })
    }

    /// Issues a token to a user, based on the table that the password was checked against.
    ///
    /// # Errors
    /// Fails if the user does not exist or this member issues no tokens.
    pub(super) fn make(&self, user: &str, access: &Access) -> Result<String, Status> {
        if !access.users().contains_key(user) {
            return Err(Reason::AuthFailed.into());
        }
        match self {
            Self::Signed(tokens) => {
                tokens.make(user, access).ok_or_else(|| Reason::AuthFailed.into())
            }
            Self::Jwt(tokens) => tokens.make(user, access),
        }
    }

    /// Returns the user of a token.
    ///
    /// # Errors
    /// Fails if the token is invalid or expired.
    pub(super) fn user(&self, token: &str, access: &Access) -> Result<String, Reason> {
        match self {
            Self::Signed(tokens) => tokens.user(token, access).ok_or(Reason::InvalidToken),
            Self::Jwt(tokens) => tokens.user(token, access),
        }
    }
}
