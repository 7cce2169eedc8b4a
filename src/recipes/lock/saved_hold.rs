//! [`SavedHold`]: the data with which a program resumes its hold after a restart.
//!
//! ```text
//!   3/694d7f2@17:cron/leader/694d7f2      node / lease @ create revision : key
//! ```

use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::model::{LeaseId, NodeId, Revision};

use crate::recipes::decimal::number_in;

/// Identifies one hold of a lock, or one term of leadership. Each hold of a lock has a different
/// value of this type.
///
/// Returned by [`Guard::saved_hold`](crate::Guard::saved_hold) and
/// [`Leadership::saved_hold`](crate::Leadership::saved_hold), and stored as text. A program stores
/// it before work that must be continued after a crash, and resumes the hold with
/// [`Mutex::resume`](crate::Mutex::resume) or [`Election::resume`](crate::Election::resume).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SavedHold {
    pub(crate) node: NodeId,
    pub(crate) lease: LeaseId,
    pub(crate) since: Revision,
    pub(crate) key: Bytes,
}

/// The text is not a valid [`SavedHold`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
#[error("not a saved hold: expected NODE/LEASE@REVISION:KEY")]
pub struct ParseSavedHoldError;

impl SavedHold {
    /// Returns the node on which the lock was held. Only this node can resume the hold.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the lease of the session that held the lock. The hold ends when the lease ends.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Returns the create revision of the key: when the request joined the queue, not when it
    /// acquired the lock.
    pub fn since(&self) -> Revision {
        self.since
    }

    /// Returns the key of the hold's queue entry.
    pub fn key(&self) -> &Bytes {
        &self.key
    }
}

impl std::fmt::Display for SavedHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}:", self.node, self.lease, self.since)?;
        for byte in &self.key {
            match byte {
                b'!'..=b'~' if *byte != b'%' => write!(f, "{}", char::from(*byte))?,
                other => write!(f, "%{other:02x}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for SavedHold {
    type Err = ParseSavedHoldError;

    fn from_str(text: &str) -> Result<Self, ParseSavedHoldError> {
        let (node, rest) = text.split_once('/').ok_or(ParseSavedHoldError)?;
        let (lease, rest) = rest.split_once('@').ok_or(ParseSavedHoldError)?;
        let (since, key) = rest.split_once(':').ok_or(ParseSavedHoldError)?;
        let node = number_in(node.as_bytes()).and_then(NodeId::new).ok_or(ParseSavedHoldError)?;
        let lease: Option<LeaseId> = lease.parse().ok();
        let since = number_in(since.as_bytes()).map(Revision).ok_or(ParseSavedHoldError)?;
        let key = unescape(key).ok_or(ParseSavedHoldError)?;
        Ok(SavedHold { node, lease: lease.ok_or(ParseSavedHoldError)?, since, key })
    }
}

fn unescape(text: &str) -> Option<Bytes> {
    let mut bytes = text.bytes();
    let mut key = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'!'..=b'~' => byte,
            _ => return None,
        };
        key.push(byte);
    }
    (!key.is_empty()).then(|| key.into())
}

#[cfg(feature = "serde")]
crate::model::serialize::serialize_as_text!(SavedHold);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_hold_round_trips() {
        for key in ["cron/leader/694d7f2", "a b/100%/1.2", "\u{e9}:@\n/\0"] {
            let lease = LeaseId::new(0x0694_d7f2).unwrap();
            let (node, since) = (NodeId::new(3).unwrap(), Revision(17));
            let ticket = SavedHold { node, lease, since, key: Bytes::from(key) };
            let text = ticket.to_string();
            assert!(text.starts_with("3/694d7f2@17:"), "{text}");
            assert!(text.bytes().all(|b| b.is_ascii_graphic()));
            assert_eq!(text.parse(), Ok(ticket));
        }
        for rest in ["", "1@2", "0@2:k", "1@2:", "x@2:k", "1@x:k", "1@2:%", "1@2:%4", "1@2:k k"] {
            let text = format!("3/{rest}");
            assert_eq!(text.parse::<SavedHold>(), Err(ParseSavedHoldError), "{text:?}");
        }
        for text in ["1@2:k", "0/1@2:k", "x/1@2:k", "+3/1@2:k", "3/+1@2:k", "3/1@+2:k", "3/1@02:k"]
        {
            assert_eq!(text.parse::<SavedHold>(), Err(ParseSavedHoldError), "{text:?}");
        }
    }
}
