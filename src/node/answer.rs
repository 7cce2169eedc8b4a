//! How a caller learns what became of its call.

use std::fmt;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::oneshot;

use crate::model::{MembershipError, Rejection, Revision};
use crate::watch::waking;

use super::session::ResumeSessionError;

/// What became of a call.
pub(crate) type CallResult<T> = Result<T, CallError>;

/// Why a call brought no reply.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum CallError {
    /// The store says no; the same on every replica. Nothing was applied.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Too much is waiting. Nothing was applied.
    #[error("too busy")]
    Busy,
    /// Replicas differ and no majority says which is right. Nothing was applied.
    #[error("replicas differ and no majority says which is right: writes are refused")]
    Diverged,
    /// The state has reached its quota. Nothing was applied.
    #[error("the state takes {bytes} bytes, and may take {quota}")]
    QuotaExceeded {
        /// What it takes on this node.
        bytes: u64,
        /// What it may take.
        quota: u64,
    },
    /// This node's disk is full, or the disks of too many voters are. Nothing was applied.
    #[error("there is no space left on the disk")]
    NoSpace,
    /// The time is up.
    #[error("the deadline has passed")]
    Deadline {
        /// Whether the change may have been applied, or may still be.
        maybe_applied: bool,
    },
    /// The time is up, and the cluster is not founded. Nothing was applied.
    #[error("the deadline has passed, and the cluster is not founded")]
    NotFounded {
        /// The founding members that the node waits for, by name and address.
        waiting_for: Vec<String>,
    },
    /// The node has stopped.
    #[error("the node has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: StopReason,
        /// Whether the change may have been applied, or may still be.
        maybe_applied: bool,
    },
    /// It was applied; its answer was too large to be kept until this node could hear of it.
    #[error("it was applied at revision {revision}, and its answer is lost")]
    AnswerLost {
        /// The store's revision right after it.
        revision: Revision,
    },
    /// The members stay as they are.
    #[error(transparent)]
    Members(MembershipError),
    /// A lease is not kept alive as was asked for. Nothing was changed.
    #[error(transparent)]
    NotResumed(ResumeSessionError),
    /// A backup could not be made.
    #[error("{0}")]
    Backup(Arc<str>),
    /// Leadership was not moved to whom it should go.
    #[error("leadership was not moved there")]
    NoTransferee,
}

/// Why a node has stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StopReason {
    /// It was asked to.
    Shutdown,
    /// A test has ended it as a crash would: `testing::Cluster::kill`.
    Killed,
    /// It was removed from the cluster. Its data is of no use any more.
    Removed,
    /// Something inside it failed; what, in words. The host process lives on.
    Failed(Arc<str>),
}

impl StopReason {
    /// A failure, in words.
    pub(crate) fn failed(why: impl fmt::Display) -> Self {
        StopReason::Failed(why.to_string().into())
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Shutdown => f.write_str("it was shut down"),
            StopReason::Killed => f.write_str("a test has ended it as a crash would"),
            StopReason::Removed => f.write_str(
                "it was removed from the cluster; to come back it joins again, with a new directory",
            ),
            StopReason::Failed(why) => f.write_str(why),
        }
    }
}

/// Where the result of a call goes.
pub(crate) enum ReplyTo<T> {
    /// To a future that waits for it.
    Waiting(oneshot::Sender<CallResult<T>>),
    /// To a closure, called by the driver: it must be quick and must not wait, and if it panics the node stops: what
    /// it wakes is [woken](waking) with care.
    Call(Box<dyn FnOnce(CallResult<T>) + Send>),
    /// Nobody cares.
    Nobody,
}

impl<T> ReplyTo<T> {
    /// Delivers the result.
    pub(crate) fn send(self, result: CallResult<T>) {
        match self {
            // A receiver that was dropped is a caller that went away: nobody to tell.
            ReplyTo::Waiting(sender) => _ = waking(|| drop(sender.send(result))),
            ReplyTo::Call(call) => call(result),
            ReplyTo::Nobody => {}
        }
    }

    /// Whether nobody will look at the result any more.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, ReplyTo::Waiting(sender) if sender.is_closed())
    }
}
