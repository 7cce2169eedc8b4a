//! Queues: what is put is taken by somebody, at least once, first in, first out.
//!
//! ```text
//!   name/item/<priority>.<random>.<n>   an item. Its value is what was put, its create revision its
//!                                       place, its version less one how often it was taken
//!   name/delay/<id>                     it is not to be taken yet; bound to a lease that nobody renews
//!   name/claim/<id>                     it is taken; bound to the taker's session
//!   name/idle/<lease>-<random>          a node whose takers wait, the longest waiting first; bound to
//!                                       the session
//!   name/dead/...                       a queue of those that were taken too often
//! ```
//!
//! Taking is putting the claim, if there is none; acknowledging is deleting item and claim, if the claim
//! is ours still. Whatever ends a taker ends its session, and with that its claims: the items are free
//! again, where they stood. No clock of any machine is compared with another's: order is the log's,
//! and a delay is a lease, which the leader counts.
//!
//! Each handle for taking has a [`board`](board::Board), which knows by a watch what is free
//! ([`index`]), and who waits on this node. It makes one proposal at a time: claims for as many of its
//! takers as there are items. So that one put does not make every node reach for it, boards with
//! takers that wait stand in a line of their own (`idle`), and the n-th free item is for the n-th of
//! them, which goes to the end of the line then. One that does not take what is meant for it is not
//! waited for long.
//!
//! ```text
//!   put ──▶ item ──apply──▶ watch ──▶ board ──one transaction──▶ claims ──apply──▶ the takers that wait
//! ```

mod board;
mod delivery;
mod index;
mod put;
mod take;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Effect, Error};
use crate::model::KeyRange;
use crate::node::{SessionEndReason, Shared};

pub use delivery::Delivery;
pub use put::{ItemState, PutItem, PutMany, Queue, QueuedItem};
pub use take::{QueueTaker, TakeCall};

/// Why a call on a queue brought nothing.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue is as long as it may be. Nothing was put.
    #[error("not applied: the queue holds {limit} items, which is its limit")]
    Full {
        /// Its limit.
        limit: u64,
    },
    /// The item is not this taker's any more: its session has ended, or somebody deleted the claim.
    /// Nothing was changed; somebody else has taken the item, or will.
    #[error("not applied: the item is not this taker's any more")]
    NotOurs,
    /// The session has ended, and its node has not stopped. Nothing was taken: go on with a taker of a new
    /// session.
    #[error("nothing was taken: the session has ended ({0}); take with a new session")]
    SessionEnded(SessionEndReason),
    /// The deadline has passed. Nothing was taken.
    #[error("nothing was taken: the deadline has passed")]
    TimedOut,
    /// A queue needs a name.
    #[error("a queue's name must not be empty")]
    EmptyName,
    /// The store could not, or would not.
    #[error(transparent)]
    Store(#[from] Error),
}

impl QueueError {
    /// Whether anything was put, taken or acknowledged.
    pub fn effect(&self) -> Effect {
        match self {
            QueueError::Full { .. }
            | QueueError::NotOurs
            | QueueError::SessionEnded(_)
            | QueueError::TimedOut
            | QueueError::EmptyName => Effect::NotApplied,
            QueueError::Store(error) => error.effect(),
        }
    }

    /// Whether the same call may succeed later without anybody changing the program: the queue was full or
    /// empty, or the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            QueueError::Store(error) => error.is_transient(),
            QueueError::Full { .. } | QueueError::TimedOut => true,
            _ => false,
        }
    }

    /// The session of a taker has ended. That its node has stopped is said as always.
    fn ended(end: SessionEndReason, shared: &Shared) -> Self {
        match Error::ended(end, shared) {
            Error::SessionEnded { end, .. } => QueueError::SessionEnded(end),
            error => QueueError::Store(error),
        }
    }
}

/// An item's name: unique in the cluster, for ever.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(Bytes);

impl ItemId {
    /// As it stands in the item's key.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl std::fmt::Display for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl std::fmt::Debug for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// What a key below a queue's name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Item,
    Delay,
    Claim,
    Idle,
}

/// The keys of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Keys {
    name: Bytes,
}

impl Keys {
    fn all(&self) -> KeyRange {
        KeyRange::prefix([&self.name[..], b"/"].concat())
    }

    fn part(&self, part: Part) -> KeyRange {
        KeyRange::prefix(self.key(part, b""))
    }

    fn key(&self, part: Part, id: &[u8]) -> Bytes {
        [&self.name[..], part.infix(), id].concat().into()
    }

    /// What a key stands for, and the rest of it.
    fn parse(&self, key: &Bytes) -> Option<(Part, Bytes)> {
        let rest = key.strip_prefix(&self.name[..])?;
        let parts = [Part::Item, Part::Delay, Part::Claim, Part::Idle];
        let part = parts.into_iter().find(|part| rest.starts_with(part.infix()))?;
        let id = key.slice(self.name.len() + part.infix().len()..);
        // What lies deeper is not ours.
        (!id.is_empty() && !id.contains(&b'/')).then_some((part, id))
    }

    /// The keys of the queue of those that were taken too often.
    fn dead(&self) -> Keys {
        Keys { name: [&self.name[..], b"/dead"].concat().into() }
    }
}

impl Part {
    fn infix(self) -> &'static [u8] {
        match self {
            Part::Item => b"/item/",
            Part::Delay => b"/delay/",
            Part::Claim => b"/claim/",
            Part::Idle => b"/idle/",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_children_of_the_parts_are_a_queues_own() {
        let keys = Keys { name: "jobs".into() };
        let cases = [
            ("jobs/item/a", Some((Part::Item, "a"))),
            ("jobs/claim/a", Some((Part::Claim, "a"))),
            ("jobs/delay/a", Some((Part::Delay, "a"))),
            ("jobs/idle/a", Some((Part::Idle, "a"))),
            ("jobs/item/", None),
            ("jobs/item/a/b", None),
            ("jobs/dead/item/a", None),
            ("jobs/eu/item/a", None),
            ("jobs2/item/a", None),
            ("jobs", None),
        ];
        for (key, expected) in cases {
            let expected = expected.map(|(part, id)| (part, Bytes::from(id)));
            assert_eq!(keys.parse(&Bytes::from(key)), expected, "{key}");
        }
    }
}
