//! The result of a call, and the channel over which it reaches the caller.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::oneshot;

use crate::model::{MembershipError, ProposeRejection, Rejection, Revision};
use crate::watch::waking;

use crate::node::sessions::resume_error::ResumeSessionError;

pub(crate) type CallResult<T> = Result<T, CallError>;

/// The reasons for which a call returns no reply.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum CallError {
    /// The state machine rejected the command, in the same way on every replica. Nothing was applied.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A queue is full. Nothing was applied.
    #[error("too many open requests")]
    Busy,
    /// The replicas differ, and no majority of them agrees. Nothing was applied.
    #[error("replicas differ and no majority of them agrees: writes are rejected")]
    Diverged,
    /// The state has reached its quota. Nothing was applied.
    #[error("state quota exceeded: {bytes} of {quota} bytes are in use")]
    QuotaExceeded {
        /// Bytes that the state occupies on this node.
        bytes: u64,
        quota: u64,
    },
    /// The disk of this node is full, or the disks of too many voters are full. Nothing was
    /// applied.
    #[error("no space left on the disk")]
    NoSpace,
    #[error("deadline exceeded")]
    Deadline {
        /// Whether the change was, or may still be, applied.
        maybe_applied: bool,
    },
    /// The deadline has passed and the cluster has not been founded. Nothing was applied.
    #[error("deadline exceeded: the cluster is not founded yet")]
    NotFounded {
        /// The founding members that the node waits for, by name and address.
        waiting_for: Vec<String>,
    },
    #[error("the node has stopped: {reason}")]
    Stopped {
        reason: StopReason,
        /// Whether the change was, or may still be, applied.
        maybe_applied: bool,
    },
    /// The command was applied, but its reply was too large to be kept until this node received it.
    #[error("applied at revision {revision}, but the reply is no longer available")]
    AnswerLost {
        /// The revision of the store right after the command.
        revision: Revision,
    },
    /// The membership change was rejected, and the members are unchanged.
    #[error(transparent)]
    Members(MembershipError),
    /// The renewals of a lease cannot be resumed. Nothing was changed.
    #[error(transparent)]
    NotResumed(ResumeSessionError),
    /// The backup could not be written.
    #[error("backup failed: {0}")]
    Backup(Arc<str>),
    /// Leadership could not be transferred to the requested member.
    #[error("leadership transfer failed: the target must be a connected, up-to-date voter")]
    NoTransferee,
}

impl CallError {
    /// Returns the error for a request that was rejected because it would make the state grow beyond `quota`. `bytes`
    /// is the size of the state.
    pub(crate) fn of_growth(why: ProposeRejection, bytes: u64, quota: u64) -> Self {
        match why {
            ProposeRejection::NoSpace => CallError::NoSpace,
            _ => CallError::QuotaExceeded { bytes, quota },
        }
    }
}

/// The reason for which a node has stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StopReason {
    /// The program called `shutdown`.
    Shutdown,
    /// A test killed the node with `testing::Cluster::kill`, as if the node had crashed.
    Killed,
    /// The member was removed from the cluster. The member's data directory cannot be used any
    /// more.
    Removed,
    /// An internal failure, described by the text. The host process keeps running.
    Failed(Arc<str>),
}

impl StopReason {
    /// Returns [`StopReason::Failed`] with the given text.
    pub(crate) fn failed(why: impl fmt::Display) -> Self {
        StopReason::Failed(why.to_string().into())
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Shutdown => f.write_str("shutdown was requested"),
            StopReason::Killed => f.write_str("killed by a test"),
            StopReason::Removed => {
                f.write_str("removed from the cluster; to rejoin, start with a new directory")
            }
            StopReason::Failed(why) => f.write_str(why),
        }
    }
}

/// The destination of the result of a call.
pub(crate) enum ReplyTo<T> {
    Waiting(oneshot::Sender<CallResult<T>>),
    /// A closure that the driver calls with the result. The closure must return quickly and must
    /// not block. If the closure panics, the node stops. So a closure that wakes other tasks does
    /// so inside [`waking`].
    Call(Box<dyn FnOnce(CallResult<T>) + Send>),
    /// The result is discarded.
    Discard,
}

impl<T> ReplyTo<T> {
    pub(crate) fn send(self, result: CallResult<T>) {
        match self {
            // If the receiver was dropped, the caller no longer waits.
            ReplyTo::Waiting(sender) => _ = waking(|| drop(sender.send(result))),
            ReplyTo::Call(call) => call(result),
            ReplyTo::Discard => {}
        }
    }

    /// Returns whether the caller has stopped waiting for the result.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, ReplyTo::Waiting(sender) if sender.is_closed())
    }
}
