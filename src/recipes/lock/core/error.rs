//! Errors of lock requests, and reasons for the loss of a hold.

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::api::{Effect, Error, stopped};
use crate::lock_format::LockKind;
use crate::node::{SessionEndReason, Shared, StopReason};

use super::view::LockEntry;

/// Why a lock, leadership or item is no longer held.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LostReason {
    /// The session has ended while its node keeps running.
    #[error("the session has ended: {0}")]
    SessionEnded(SessionEndReason),
    /// The key was deleted by another client.
    #[error("the key was deleted by another client")]
    KeyDeleted,
    /// This program released it.
    #[error("released by the holder")]
    Released,
    /// The maximum hold time has passed: [`LockCall::max_hold`](crate::lock::LockCall::max_hold).
    #[error("the maximum hold time has passed")]
    HeldTooLong,
    /// An operator force-released the hold.
    #[error("force-released by {by}: {reason}")]
    ForceReleased {
        /// The operator: the label of its node.
        by: String,
        /// The reason given by the operator.
        reason: String,
    },
    /// The hold was transferred to another waiter.
    #[error("transferred to another waiter")]
    HandedOver,
    /// The node has stopped.
    #[error("the node has stopped: {0}")]
    NodeStopped(StopReason),
}

impl LostReason {
    /// Returns the reason for an ended session.
    pub(crate) fn ended(end: SessionEndReason, shared: &Shared) -> Self {
        LostReason::SessionEnded(end).into_public(shared)
    }

    /// Converts an internal reason to the public reason: if the session ended because its node
    /// stopped, the public reason is the stopped node.
    pub(crate) fn into_public(self, shared: &Shared) -> Self {
        match self {
            LostReason::SessionEnded(SessionEndReason::NodeStopped) => {
                LostReason::NodeStopped(stopped(shared))
            }
            loss => loss,
        }
    }
}

/// The error of a failed lock request. The request leaves nothing behind: its key in the queue is
/// deleted, and the deletion is retried until it succeeds.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum LockError {
    /// Another request holds the lock or is ahead. Returned only by the `try_` methods.
    #[error(
        "lock not acquired: another request holds it or is ahead{}",
        holder.as_ref().map(|h| format!(": {h}")).unwrap_or_default()
    )]
    WouldBlock {
        /// The first entry of the queue, as known to the local replica. For a request of several
        /// locks, the first entry in the queue of the first lock that is not available. For an
        /// upgrade, the first entry other than the caller's own.
        holder: Option<Box<LockEntry>>,
    },
    /// The deadline of the wait has passed.
    #[error("lock not acquired: deadline exceeded ({before} requests ahead)")]
    TimedOut {
        /// Number of holders and waiters that were still ahead of the request.
        before: usize,
    },
    /// The deadline has passed before the request was logged. The cluster may have no leader or no
    /// quorum.
    #[error(
        "lock not acquired: no reply from the cluster before the deadline; check that there is a \
         quorum"
    )]
    Unavailable,
    /// The session ended before the lock was acquired, while its node keeps running. The request
    /// may be repeated with a new session.
    #[error("lock not acquired: the session has ended: {0}")]
    SessionEnded(SessionEndReason),
    /// The key of the waiting request was deleted by another client.
    #[error("lock not acquired: the key of the request was deleted by another client")]
    Evicted,
    /// The node has stopped.
    #[error("lock not acquired: the node has stopped: {0}")]
    NodeStopped(StopReason),
    /// The wait would never end, because it would complete a cycle of owners that wait for each
    /// other.
    #[error("deadlock: {}", Chain(cycle))]
    Deadlock {
        /// The cycle, starting with this owner: each owner waits for a lock that the next one
        /// holds.
        cycle: Vec<WaitsFor>,
    },
    /// The owner has reached its limit of holds of one lock.
    #[error("lock not acquired: this owner already holds it {limit} times, which is the limit")]
    HoldLimit {
        /// The limit: [`Owner::holds_max`](crate::Owner::holds_max).
        limit: u32,
    },
    /// The owner belongs to another session. A lock request must use an owner of its own session,
    /// because the owner's holds end with that session.
    #[error("lock not acquired: the owner belongs to another session")]
    ForeignOwner,
    /// The name is in use by a lock of another kind.
    #[error("lock not acquired: the name is in use as {stored}; use another name")]
    KindMismatch {
        /// The kind of lock that uses the name.
        stored: LockKind,
    },
    /// The name is in use as a semaphore with another limit.
    #[error("lock not acquired: the semaphore is in use with a limit of {stored}, not {asked}")]
    LimitMismatch {
        /// Limit of the first entry in the queue.
        stored: u32,
        /// Limit of this request.
        asked: u32,
    },
    /// The request asks for more permits than the semaphore has.
    #[error("lock not acquired: {asked} permits requested, but the limit is {limit}")]
    TooManyPermits {
        /// Number of requested permits.
        asked: u32,
        /// Number of permits of the semaphore.
        limit: u32,
    },
    /// The read lock was lost before it could be upgraded.
    #[error("lock not upgraded: the read lock is lost: {0}")]
    Lost(LostReason),
    /// The lock was acquired and lost before the waiting task was polled: the maximum hold time
    /// ([`LockCall::max_hold`](crate::lock::LockCall::max_hold)) has passed while the program's executor
    /// was blocked.
    #[error("lock acquired and lost before the waiting task ran: {0}")]
    LostBeforeDelivery(LostReason),
    /// Another reader is already waiting for an upgrade. Both would wait for each other.
    #[error(
        "lock not upgraded: another reader is already waiting for an upgrade; release the read \
         lock and request the write lock"
    )]
    UpgradeTaken,
    /// This node has too many waiters for the lock:
    /// [`Config::lock_waiters_max`](crate::Config::lock_waiters_max).
    #[error("lock not acquired: this node already has {max} waiters for it, which is the limit")]
    QueueFull {
        /// The limit.
        max: usize,
    },
    /// The name of the lock is empty.
    #[error("lock not acquired: the name is empty")]
    EmptyName,
    /// The request has more names than one transaction allows.
    #[error("lock not acquired: {asked} names at once, but the limit is {max}")]
    TooManyNames {
        /// Number of names.
        asked: usize,
        /// The limit.
        max: usize,
    },
    /// A candidate's value begins with the prefix that is reserved for Bowline's own entries.
    #[error("candidate not enqueued: the value must not begin with \"bowline:1 \"")]
    ReservedValue,
    /// Error of the store. If the request's key may have been created, it is deleted. If the effect
    /// of a [resize](crate::Semaphore::resize) is unknown, the resize may have changed some of the
    /// entries.
    #[error("lock not acquired: {0}")]
    Store(Error),
}

/// One step of a deadlock cycle.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WaitsFor {
    /// Name of the owner.
    pub owner: String,
    /// Name of the lock that the owner waits for.
    pub lock: Bytes,
}

struct Chain<'a>(&'a [WaitsFor]);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            let then = if at == 0 { "" } else { "; " };
            write!(f, "{then}{} waits for {}", step.owner, step.lock.escape_ascii())?;
        }
        f.write_str("; each lock is held by the next owner, and the last one by the first")
    }
}

impl LockError {
    /// Converts an internal error to the public error: if the session ended because its node
    /// stopped, the public error is the stopped node.
    pub(crate) fn into_public(self, shared: &Shared) -> Self {
        match self {
            LockError::SessionEnded(SessionEndReason::NodeStopped) => {
                LockError::NodeStopped(stopped(shared))
            }
            why => why,
        }
    }

    /// Returns the error for a queue of another kind than requested.
    pub(crate) fn mismatch(stored: LockKind, asked: LockKind) -> Self {
        match (stored, asked) {
            (LockKind::Semaphore(stored), LockKind::Semaphore(asked)) => {
                LockError::LimitMismatch { stored, asked }
            }
            _ => LockError::KindMismatch { stored },
        }
    }

    /// Returns whether anything was changed permanently. The request itself leaves nothing behind.
    pub fn effect(&self) -> Effect {
        match self {
            LockError::Store(error) => error.effect(),
            _ => Effect::NotApplied,
        }
    }

    /// Reports whether the same call may succeed later without intervention, for example because
    /// another request was ahead or the cluster had no quorum.
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

    /// Reports whether a candidacy retries after this error. A candidacy also retries after errors
    /// that an operator has to resolve, such as a full disk.
    pub(crate) fn is_retryable(&self) -> bool {
        let is_waited_for = match self {
            LockError::Store(error) => error.needs_room() || *error == Error::Diverged,
            LockError::Evicted => true,
            _ => false,
        };
        is_waited_for || self.is_transient()
    }
}
