//! The fencing token, which orders the holds of a lock.

use std::str::FromStr;

use thiserror::Error;

use crate::model::Revision;

use crate::recipes::decimal::number_in;

/// A fencing token. The token increases with every grant of a lock, across restarts, snapshots and
/// leader changes. Pass it to the resource that the lock protects, and let the resource reject
/// tokens lower than the highest it has seen ([`Fence`](crate::lock::Fence)). A holder that was
/// paused for too long then cannot overwrite the work of a later holder.
///
/// The text form is `revision.handoff`, and only this form can be parsed. The first number is the
/// revision that the holder's replica had reached when its node acquired the lock. The second
/// number counts the handoffs of the lock from task to task inside that node since the acquisition.
/// Tokens are ordered by the first number, then by the second.
///
/// ```
/// use bowline::{Revision, Token};
/// let token = Token::new(Revision(17), 2);
/// assert_eq!((token.to_string(), "17.2".parse()), ("17.2".to_owned(), Ok(token)));
/// assert!(token > Token::new(Revision(9), 30));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub(crate) revision: Revision,
    pub(crate) handoff: u64,
}

/// The text is not a valid [`Token`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("not a token: expected REVISION.HANDOFF, two decimal numbers without leading zeros")]
pub struct ParseTokenError;

impl Token {
    /// Creates a token from its numbers, for example as read from a database.
    pub const fn new(revision: Revision, handoff: u64) -> Self {
        Self { revision, handoff }
    }

    /// Returns the revision that the holder's replica had reached when its node acquired the lock.
    pub fn revision(self) -> Revision {
        self.revision
    }

    /// Returns how often the lock was handed from task to task inside the node before this hold.
    pub fn handoff(self) -> u64 {
        self.handoff
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.revision, self.handoff)
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let (revision, handoff) = text.split_once('.').ok_or(ParseTokenError)?;
        let number = |text: &str| number_in(text.as_bytes()).ok_or(ParseTokenError);
        Ok(Token { revision: Revision(number(revision)?), handoff: number(handoff)? })
    }
}

#[cfg(feature = "serde")]
crate::model::serialize::serialize_as_text!(Token);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_round_trips_and_other_text_is_rejected() {
        for token in [(0, 0), (17, 2), (u64::MAX, u64::MAX)] {
            let token = Token::new(Revision(token.0), token.1);
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        let others = ["", "17", "17.", ".2", "+17.2", "17.+2", "017.2", "17.02", "00.0", "17.2.1"];
        for text in others.into_iter().chain(["-1.0", " 17.2", "18446744073709551616.0"]) {
            assert_eq!(text.parse::<Token>(), Err(ParseTokenError), "{text:?}");
        }
    }
}
