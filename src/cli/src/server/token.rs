//! Tokens: what a user who has shown a password shows instead, for a while.
//!
//! ```text
//!   signed   with a key that the cluster keeps among its users; ends when it was not used for a while
//!   jwt      with a key in files, so that others can make and check them too; ends at its time, and with
//!            every change of users and roles. keys is what it is signed and checked with
//! ```
//!
//! Neither is written down anywhere: a login costs the log nothing, and every member knows every token.

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

/// Makes tokens, and tells whose they are.
pub(super) enum Tokens {
    Signed(Signed),
    Jwt(Box<Jwt>),
}

impl Tokens {
    /// Reads the keys, if they are in files.
    ///
    /// # Errors
    /// Which of them cannot be used, and why.
    pub(super) fn load(kind: &TokenKind) -> Result<Self, TokenError> {
        Ok(match kind {
            TokenKind::Simple { ttl } => Self::Signed(Signed::new(*ttl)),
            TokenKind::Jwt(options) => Self::Jwt(Box::new(Jwt::load(options)?)),
        })
    }

    /// A token for a user, by the table in which its password was found.
    ///
    /// # Errors
    /// There is no such user, or none are made here.
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

    /// Whose token it is.
    ///
    /// # Errors
    /// It is none, or not any more.
    pub(super) fn user(&self, token: &str, access: &Access) -> Result<String, Reason> {
        match self {
            Self::Signed(tokens) => tokens.user(token, access).ok_or(Reason::InvalidToken),
            Self::Jwt(tokens) => tokens.user(token, access),
        }
    }
}
