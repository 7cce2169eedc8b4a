//! [`Fence`]: checks fencing tokens on the side of a protected resource outside the store.

use std::sync::{Mutex, PoisonError};

use thiserror::Error as ThisError;

use crate::recipes::lock::core::token::Token;

/// Remembers the highest token seen and rejects lower tokens. Put a fence in front of a file, a
/// device or a service that is protected by a lock. Once a later holder has used the resource, the
/// fence rejects every earlier holder, even one that was paused and still considers the lock held.
///
/// [`Fence::admit`] only checks the token; the caller must ensure that no other holder acts at the
/// same time. [`Fence::with`] admits no other holder while a closure runs. A fence keeps the token
/// in memory: a resource that restarts must store the token with its data ([`Fence::from`],
/// [`Fence::highest`]). For a database, put the condition into the statement (`UPDATE r SET v = $1,
/// fence = $2 WHERE id = $3 AND fence <= $2`, with the token as a pair of numbers).
///
/// ```
/// use bowline::{Token, lock::Fence};
/// let (old, new): (Token, Token) = ("17.0".parse()?, "23.0".parse()?);
/// let fence = Fence::default();
/// assert!(fence.admit(new).is_ok());
/// assert!(fence.admit(new).is_ok());
/// assert_eq!(fence.admit(old).unwrap_err().highest, new);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Fence(Mutex<Option<Token>>);

/// The token was rejected, because a later holder has already used the resource. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, ThisError)]
#[error("token {token} rejected: lower than the highest token seen, {highest}")]
#[non_exhaustive]
pub struct StaleToken {
    /// The rejected token.
    pub token: Token,
    /// The highest token seen.
    pub highest: Token,
}

impl Fence {
    /// Admits a token that is not lower than the highest token seen so far.
    ///
    /// # Errors
    /// Returns [`StaleToken`] for a lower token. The fence is unchanged.
    pub fn admit(&self, token: Token) -> Result<(), StaleToken> {
        self.with(token, || ())
    }

    /// Like [`Fence::admit`], and admits no other token while `act` runs.
    ///
    /// # Errors
    /// Returns [`StaleToken`] for a lower token. `act` was not run.
    pub fn with<T>(&self, token: Token, act: impl FnOnce() -> T) -> Result<T, StaleToken> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *seen {
            Some(highest) if token < highest => Err(StaleToken { token, highest }),
            _ => {
                *seen = Some(token);
                Ok(act())
            }
        }
    }

    /// Returns the highest token seen, to be stored with the data.
    pub fn highest(&self) -> Option<Token> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Option<Token>> for Fence {
    fn from(highest: Option<Token>) -> Self {
        Fence(Mutex::new(highest))
    }
}
