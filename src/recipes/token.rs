//! The fencing token: which hold is the later one.

use std::str::FromStr;

use crate::model::Revision;

/// A fencing token: rises with every grant of a lock, over restarts, snapshots and leader changes too.
/// Hand it to whatever the lock protects outside the store, and let that refuse tokens lower than the
/// highest it has seen ([`Fence`](crate::Fence)): then a holder that was paused for too long does no
/// harm.
///
/// It is written `revision.hop` and can be parsed again: the revision that the holder's replica had
/// reached when the lock came to this node, and how often the lock has passed from task to task inside
/// the node since. Ordered by the one, then the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    pub(super) revision: Revision,
    pub(super) hop: u64,
}

impl Token {
    /// The revision that the holder's replica had reached when the lock came to this node.
    pub fn revision(self) -> Revision {
        self.revision
    }

    /// How often the lock had passed from task to task inside the node by then.
    pub fn hop(self) -> u64 {
        self.hop
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.revision, self.hop)
    }
}

impl FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (revision, hop) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Token { revision: Revision(revision.parse()?), hop: hop.parse()? })
    }
}
