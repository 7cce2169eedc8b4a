//! Why a lock was not taken, and why it was lost.

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Effect, Error, stopped};
use crate::node::{SessionEndReason, Shared, StopReason};

use super::rule::LockKind;
use super::view::LockEntry;

/// Why something that was held is held no more.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LostReason {
    /// The session has ended, and its node has not stopped.
    #[error("the session has ended: {0}")]
    SessionEnded(SessionEndReason),
    /// Its key was deleted by somebody else.
    #[error("its key was deleted by somebody else")]
    KeyDeleted,
    /// It was given up here.
    #[error("it was released")]
    Released,
    /// It was held for as long as it may be: [`LockCall::max_hold`](crate::lock::LockCall::max_hold).
    #[error("it was held for as long as it may be")]
    HeldTooLong,
    /// An operator broke it.
    #[error("it was broken by {by}: {reason}")]
    ForceReleased {
        /// Who: the label of its node.
        by: String,
        /// Why.
        reason: String,
    },
    /// It was handed over to another.
    #[error("it was handed over")]
    HandedOver,
    /// The node has stopped.
    #[error("the node has stopped: {0}")]
    NodeStopped(StopReason),
}

impl LostReason {
    /// The end of a session.
    pub(super) fn ended(end: SessionEndReason, shared: &Shared) -> Self {
        LostReason::SessionEnded(end).told(shared)
    }

    /// As it is told. That the node has stopped is said as always.
    pub(super) fn told(self, shared: &Shared) -> Self {
        match self {
            LostReason::SessionEnded(SessionEndReason::NodeStopped) => {
                LostReason::NodeStopped(stopped(shared))
            }
            loss => loss,
        }
    }
}

/// Why a lock was not taken. Nothing is left behind: a key that was put in the line is deleted, however
/// long that takes.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else holds it, or was there before; only from the `try_` calls.
    #[error("not taken: somebody else has it{}", holder.as_ref().map(|h| format!(": {h}")).unwrap_or_default())]
    WouldBlock {
        /// Who is first in line, as this node's replica knows it; of several locks, in the first of those that are not
        /// to be had. Whoever wants to become the writer is told of the first of the others.
        holder: Option<Box<LockEntry>>,
    },
    /// The deadline of the wait has passed; so many were still before this wish, holders and waiters.
    #[error("not taken: the deadline of the wait has passed, with {before} before it")]
    TimedOut {
        /// How many were before it.
        before: usize,
    },
    /// The deadline has passed before the wish came to the log: there may be no leader or no quorum.
    #[error("not taken: the cluster has not answered by the deadline: is there a quorum?")]
    Unavailable,
    /// The session ended before the wish came true, and its node has not stopped. With a new session it may
    /// be made again.
    #[error("not taken: the session has ended: {0}")]
    SessionEnded(SessionEndReason),
    /// Somebody else deleted the key of the wish, which stood in line.
    #[error("not taken: somebody else has deleted its key in the line")]
    Evicted,
    /// The node has stopped.
    #[error("not taken: the node has stopped: {0}")]
    NodeStopped(StopReason),
    /// To wait would be to wait for ever: the holders wait for each other.
    #[error("not taken: it would wait for itself: {}", Chain(cycle))]
    Deadlock {
        /// Who waits for which lock, from this owner around to it.
        cycle: Vec<WaitsFor>,
    },
    /// The owner holds it as often as it may.
    #[error("not taken: this owner holds it {limit} times already, which is the limit")]
    HoldLimit {
        /// The limit: [`Owner::holds_max`](crate::Owner::holds_max).
        limit: u32,
    },
    /// The owner is of another session: what it holds lives and dies apart from this.
    #[error("an owner takes locks with the session that it was made by, and with no other")]
    ForeignOwner,
    /// The name is in use for something of another kind.
    #[error("lock not acquired: the name is in use as {stored}; use another name")]
    KindMismatch {
        /// What it is in use for.
        stored: LockKind,
    },
    /// The name is in use as a semaphore of another size.
    #[error("not taken: others use this semaphore with a limit of {stored}, not {asked}")]
    LimitMismatch {
        /// The limit of the first in line.
        stored: u32,
        /// The limit of this wish.
        asked: u32,
    },
    /// More permits were asked for than there are.
    #[error("not taken: {asked} permits of {limit}")]
    TooManyPermits {
        /// How many were asked for.
        asked: u32,
        /// How many there are.
        limit: u32,
    },
    /// What was to grow is lost: the reader that wanted to become the writer.
    #[error("not taken: the read lock that it was to grow from is lost: {0}")]
    Lost(LostReason),
    /// It was granted, and lost before the waiting task has looked: it was held for as long as it may be
    /// ([`LockCall::max_hold`](crate::lock::LockCall::max_hold)), while the program's executor hung.
    #[error("not taken: it was granted, and lost before anybody looked: {0}")]
    LostBeforeDelivery(LostReason),
    /// Another reader waits to become the writer already: each would wait for the other.
    #[error(
        "not taken: another reader waits to become the writer: release the read lock and write"
    )]
    UpgradeTaken,
    /// Too many wait for it on this node: [`Config::lock_waiters_max`](crate::Config::lock_waiters_max).
    #[error("not taken: {max} wait for it on this node already")]
    QueueFull {
        /// The limit.
        max: usize,
    },
    /// A lock needs a name.
    #[error("a lock's name must not be empty")]
    EmptyName,
    /// More names than one transaction may have.
    #[error("{asked} names at once, and {max} are the limit")]
    TooManyNames {
        /// How many were asked for.
        asked: usize,
        /// The limit.
        max: usize,
    },
    /// A candidate's value that begins as what Bowline writes into other lines.
    #[error("a candidate's value must not begin with \"bowline:1 \"")]
    ReservedValue,
    /// The store could not, or would not. A key that may have been put all the same is deleted; where the effect is
    /// unknown, a [resize](crate::Semaphore::resize) may have changed some of the line.
    #[error("not taken: {0}")]
    Store(Error),
}

/// One step of a cycle: who waits for which lock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WaitsFor {
    /// The name of the owner.
    pub owner: String,
    /// The lock that it waits for.
    pub lock: Bytes,
}

struct Chain<'a>(&'a [WaitsFor]);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            let then = if at == 0 { "" } else { ", which is held by " };
            write!(f, "{then}{} waits for {}", step.owner, step.lock.escape_ascii())?;
        }
        f.write_str(", which is held by the first")
    }
}

impl LockError {
    /// As it is told. That the node has stopped is said as always.
    pub(super) fn told(self, shared: &Shared) -> Self {
        match self {
            LockError::SessionEnded(SessionEndReason::NodeStopped) => {
                LockError::NodeStopped(stopped(shared))
            }
            why => why,
        }
    }

    /// The line is of another kind than the wish.
    pub(super) fn mismatch(stored: LockKind, asked: LockKind) -> Self {
        match (stored, asked) {
            (LockKind::Semaphore(stored), LockKind::Semaphore(asked)) => {
                LockError::LimitMismatch { stored, asked }
            }
            _ => LockError::KindMismatch { stored },
        }
    }

    /// Whether anything was changed that stays: the wish itself leaves nothing behind.
    pub fn effect(&self) -> Effect {
        match self {
            LockError::Store(error) => error.effect(),
            _ => Effect::NotApplied,
        }
    }

    /// Whether the same call may succeed later without anybody changing the program: somebody was
    /// before, or the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        match self {
            LockError::Store(error) => error.is_transient(),
            LockError::WouldBlock { .. }
            | LockError::TimedOut { .. }
            | LockError::Unavailable
            | LockError::LostBeforeDelivery(LostReason::HeldTooLong)
            | LockError::QueueFull { .. } => true,
            _ => false,
        }
    }

    /// Whether who stands for as long as it lives tries again: also where somebody must do something first, who has
    /// nothing to do with it.
    pub(super) fn may_pass(&self) -> bool {
        let is_waited_for = match self {
            LockError::Store(error) => error.needs_room() || *error == Error::Diverged,
            LockError::Evicted => true,
            _ => false,
        };
        is_waited_for || self.is_transient()
    }
}
