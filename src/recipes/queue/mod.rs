//! Queues: first in, first out, with at-least-once delivery.
//!
//! ```text
//!   name/item/<priority>.<random>.<n>   an item. Value: as put. Create revision: its position. Version
//!                                       minus 1: how often it was taken
//!   name/delay/<id>                     the item is delayed; attached to a lease that is not renewed
//!   name/claim/<id>                     the item is taken; attached to the taker's session
//!   name/idle/<lease>-<random>          a node with waiting takers, ordered by how long they wait;
//!                                       attached to the session
//!   name/dead/...                       the dead-letter queue: items that were taken too often or rejected
//!   name/dead/reason/<id>               why an item is there
//! ```
//!
//! To take an item, a node creates a claim for the item if no claim exists. To acknowledge the
//! item, the node deletes item and claim, if the claim is still its own. If a taker fails, its
//! session ends, and its claims are deleted with the session: the items become available again at
//! their old position. No wall clocks are compared. The log defines the order. A delay is a lease,
//! whose TTL the leader counts.
//!
//! Each taker handle has a [`board`](board::Board). The board learns from a watch which items are
//! available ([`index`]), and records which takers wait on this node. The board makes one proposal
//! at a time, with claims for as many of its takers as there are items. Without coordination, every
//! node would try to claim each new item. So boards with waiting takers form a queue of their own
//! (`idle`). The n-th available item is meant for the n-th board, which then moves to the end of
//! that queue. If a board does not claim its item within a short time, another board does.
//!
//! ```text
//!   put ──▶ item ──apply──▶ watch ──▶ board ──one transaction──▶ claims ──apply──▶ waiting takers
//! ```

mod board;
mod dead_letter;
mod delivery;
mod fail;
mod index;
mod item_id;
mod put;
mod requeue;
mod slots;
mod take;
mod work_item;
mod worker;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Effect, Error};
use crate::model::{DecodeError, KeyRange};
use crate::node::{SessionEndReason, Shared};

pub use dead_letter::DeadLetter;
pub use delivery::Delivery;
pub use fail::{FailCall, FailOutcome};
pub use item_id::{ItemId, ParseItemIdError};
pub use put::{ItemState, PutItem, PutMany, Queue, QueuedItem};
pub use take::{QueueTaker, TakeCall};
pub use work_item::{WorkFailure, WorkItem};
pub use worker::QueueWorker;

/// Error of a queue call.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue has reached its limit. Nothing was put.
    #[error("not applied: the queue is full: its limit is {limit} items")]
    Full {
        /// The limit.
        limit: u64,
    },
    /// The call puts more items than one transaction can put. Nothing was put. Split the items into
    /// several calls, or raise [`Limits::txn_ops_max`](crate::Limits::txn_ops_max) on all members.
    #[error(
        "not applied: too many {} in one put: {items}, at most {max}; split them into several \
         calls, or raise Limits::txn_ops_max on all members",
        if *is_delayed { "items with a delay" } else { "items" }
    )]
    TooManyItems {
        /// Number of items in the call.
        items: usize,
        /// Maximum number of items in one call: `txn_ops_max`, or half of it with a delay.
        max: usize,
        /// Whether the items have a delay. Each of them then takes two operations.
        is_delayed: bool,
    },
    /// The item does not belong to this taker any more: its session has ended, or the claim was
    /// deleted. Nothing was changed. Another taker has the item, or will get it.
    #[error("not applied: the item no longer belongs to this taker")]
    ClaimLost,
    /// The session has ended while its node keeps running. No item was taken. Continue with a taker
    /// of a new session.
    #[error("no item taken: the session has ended: {0}; use a new session")]
    SessionEnded(SessionEndReason),
    /// The deadline was exceeded. No item was taken.
    #[error("no item taken: deadline exceeded ({before} takers ahead)")]
    TimedOut {
        /// Number of takers of this handle that were still ahead. If there were none, no item was
        /// available.
        before: usize,
    },
    /// The name of the queue is empty.
    #[error("not applied: the name of the queue is empty")]
    EmptyName,
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<DecodeError> for QueueError {
    fn from(error: DecodeError) -> Self {
        QueueError::Store(error.into())
    }
}

impl QueueError {
    /// Returns whether the failed call has put, taken or acknowledged an item.
    pub fn effect(&self) -> Effect {
        match self {
            QueueError::Full { .. }
            | QueueError::TooManyItems { .. }
            | QueueError::ClaimLost
            | QueueError::SessionEnded(_)
            | QueueError::TimedOut { .. }
            | QueueError::EmptyName => Effect::NotApplied,
            QueueError::Store(error) => error.effect(),
        }
    }

    /// Reports whether the same call may succeed later without intervention: the queue was full or
    /// empty, or the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            QueueError::Store(error) => error.is_transient(),
            QueueError::Full { .. } | QueueError::TimedOut { .. } => true,
            _ => false,
        }
    }

    /// Reports whether a worker retries after this error. The worker also retries after errors that
    /// an operator has to resolve, such as a full disk.
    fn is_retryable(&self) -> bool {
        let is_waited_for = match self {
            QueueError::Store(error) => error.needs_room() || *error == Error::Diverged,
            QueueError::SessionEnded(_) => true,
            _ => false,
        };
        is_waited_for || self.is_transient()
    }

    /// Returns the error for a taker whose session has ended. If the node has stopped, returns
    /// [`Error::Stopped`].
    fn ended(end: SessionEndReason, shared: &Shared) -> Self {
        match Error::ended(end, shared) {
            Error::SessionEnded { end, .. } => QueueError::SessionEnded(end),
            error => QueueError::Store(error),
        }
    }
}

/// Kind of a key below a queue's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyPart {
    Item,
    Delay,
    Claim,
    Idle,
    /// Why an item of a dead-letter queue is there.
    Reason,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct QueueKeys {
    name: Bytes,
}

impl QueueKeys {
    fn all(&self) -> KeyRange {
        KeyRange::prefix([&self.name[..], b"/"].concat())
    }

    fn part(&self, part: KeyPart) -> KeyRange {
        KeyRange::prefix(self.key(part, b""))
    }

    fn key(&self, part: KeyPart, id: &[u8]) -> Bytes {
        [&self.name[..], part.infix(), id].concat().into()
    }

    /// Returns the kind of a key, and the id that it contains.
    fn parse(&self, key: &Bytes) -> Option<(KeyPart, Bytes)> {
        let rest = key.strip_prefix(&self.name[..])?;
        let parts = [KeyPart::Item, KeyPart::Delay, KeyPart::Claim, KeyPart::Idle, KeyPart::Reason];
        let part = parts.into_iter().find(|part| rest.starts_with(part.infix()))?;
        let id = key.slice(self.name.len() + part.infix().len()..);
        ItemId::is_valid(&id).then_some((part, id))
    }

    /// If the name is that of a dead-letter queue, returns the name of its queue.
    fn parent(&self) -> Option<Bytes> {
        let name = self.name.strip_suffix(b"/dead")?;
        Some(self.name.slice_ref(name))
    }

    /// Returns the keys of the dead-letter queue.
    fn dead(&self) -> QueueKeys {
        QueueKeys { name: [&self.name[..], b"/dead"].concat().into() }
    }
}

impl KeyPart {
    fn infix(self) -> &'static [u8] {
        match self {
            KeyPart::Item => b"/item/",
            KeyPart::Delay => b"/delay/",
            KeyPart::Claim => b"/claim/",
            KeyPart::Idle => b"/idle/",
            KeyPart::Reason => b"/reason/",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_children_belong_to_a_queue() {
        let keys = QueueKeys { name: "jobs".into() };
        let cases = [
            ("jobs/item/a", Some((KeyPart::Item, "a"))),
            ("jobs/claim/a", Some((KeyPart::Claim, "a"))),
            ("jobs/delay/a", Some((KeyPart::Delay, "a"))),
            ("jobs/idle/a", Some((KeyPart::Idle, "a"))),
            ("jobs/reason/a", Some((KeyPart::Reason, "a"))),
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
