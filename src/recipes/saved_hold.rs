//! What a program saves of a hold, to find it again in its next life.
//!
//! ```text
//!   3/694d7f2@17:cron/leader/694d7f2      the node, the lease, since which revision, and the key
//! ```

use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::model::{LeaseId, NodeId, Revision};

use super::digits::number_in;

/// Names one hold of a lock, or one leadership, for good: a later hold of the same lock has another one.
/// Made by [`Guard::saved_hold`](crate::Guard::saved_hold) or
/// [`Leadership::saved_hold`](crate::Leadership::saved_hold) and written as text; a program saves it before it does
/// what must be gone on with after a crash, and takes the hold up again with
/// [`Mutex::resume`](crate::Mutex::resume) or [`Election::resume`](crate::Election::resume).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SavedHold {
    pub(super) node: NodeId,
    pub(super) lease: LeaseId,
    pub(super) since: Revision,
    pub(super) key: Bytes,
}

/// A text is not that of a [`SavedHold`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, ThisError)]
#[error("not a ticket: it should read NODE/LEASE@REVISION:KEY")]
pub struct ParseSavedHoldError;

impl SavedHold {
    /// The node that it was held on, and the only one that can take it up again.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The lease of the session that held it. When that ends, so does the hold.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// The revision that made the key.
    pub fn since(&self) -> Revision {
        self.since
    }

    /// The key in the line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
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
