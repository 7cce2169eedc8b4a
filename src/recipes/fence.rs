//! The other side of a fencing token: a resource outside the store that refuses who comes too late.

use std::sync::{Mutex, PoisonError};

use thiserror::Error as ThisError;

use super::token::Token;

/// Remembers the highest token that it has seen, and refuses lower ones: what stands before a file, a
/// device or a service that a lock protects. A holder that was paused for too long finds that a later
/// one has been here, whatever it believes.
///
/// It protects what is done while the answer of [`Fence::admit`] is acted upon, if nobody else acts
/// meanwhile: [`Fence::with`] holds the door for the duration of a closure. It is no safer than the place
/// where it is kept: a resource that restarts must keep the token with its data ([`Fence::from`],
/// [`Fence::highest`]); where that is a database, the condition belongs into the statement
/// (`UPDATE r SET v = $1, fence = $2 WHERE id = $3 AND fence <= $2`, with the token as a pair of numbers).
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

/// A later holder has been here. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
#[error("refused: token {token} is older than {highest}, which was seen already")]
#[non_exhaustive]
pub struct StaleToken {
    /// The token that was refused.
    pub token: Token,
    /// The highest that was seen.
    pub highest: Token,
}

impl Fence {
    /// Lets in whoever comes with a token that is not lower than the highest so far.
    ///
    /// # Errors
    /// [`StaleToken`]; the fence is as it was.
    pub fn admit(&self, token: Token) -> Result<(), StaleToken> {
        self.with(token, || ())
    }

    /// As [`Fence::admit`], and lets nobody else in while `act` runs.
    ///
    /// # Errors
    /// [`StaleToken`]: `act` was not run.
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

    /// The highest token so far, to be kept with the data.
    pub fn highest(&self) -> Option<Token> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Option<Token>> for Fence {
    fn from(highest: Option<Token>) -> Self {
        Fence(Mutex::new(highest))
    }
}
