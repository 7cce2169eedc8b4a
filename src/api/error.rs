//! The errors of the public API, and whether a failed call was applied.
//!
//! Rule for all public errors of the crate: the `Display` text of an error is complete and contains
//! its cause, so the cause is not its `source` as well. An error that only forwards another error
//! is `transparent`.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;

use crate::model::{DecodeError, MembershipError, Rejection, Revision};
use crate::node::{
    CallError, DataErrorKind, ResumeSessionError, SessionEndReason, Shared, StopReason,
};
use crate::transport::{JoinError, TransportError};

use super::ConfigError;

/// Whether a call that returned an error has changed anything.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum Effect {
    /// The call changed nothing, and will not change anything later.
    NotApplied,
    /// The change may have been applied, or may still be applied, at most once. The change is no
    /// longer applied after the cluster has learnt that this node abandoned the request. To find
    /// out whether the change was applied, read the store.
    Unknown,
    /// The change was applied once.
    Applied,
}

/// The error of a failed call. [`Error::effect`] states whether the call changed anything, and
/// [`Error::is_transient`] whether the same call may succeed later.
/// [`Error::http_status`] suggests a status code to HTTP services.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The state machine rejected the command. Nothing was changed.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Too many calls of this node are in flight. Nothing was changed. Slow down and retry.
    #[error("not applied: too many calls of this node are in flight; retry later")]
    Busy,
    /// Replicas have diverged and no majority of them agrees. Nothing was changed.
    #[error(
        "not applied: the replicas have diverged and no majority agrees; check the logs of the \
         members"
    )]
    Diverged,
    /// The state has reached its quota. Nothing was changed. Reads, deletions, compaction and lease
    /// expiry still work. Compaction frees space within seconds.
    #[error(
        "not applied: quota exceeded: the state has {bytes} bytes, the quota is {quota} bytes; \
         delete data and compact, or raise Config::quota_bytes on all members"
    )]
    QuotaExceeded {
        /// Size of the state on this node, in bytes.
        bytes: u64,
        /// The quota, in bytes.
        quota: u64,
    },
    /// The disk of this node is full, or the disks of too many voters are full. Nothing was
    /// changed. Reads, deletions, compaction and lease expiry still work. Writes work again when
    /// there is free space.
    #[error(
        "not applied: the disk is full on this member or on too many voters; free disk space, a \
         restart is not needed"
    )]
    NoSpace,
    /// The deadline was exceeded. Possible causes: no leader, no quorum, or overload.
    #[error(
        "{}: deadline exceeded; see Node::health for leader and quorum",
        words(*effect)
    )]
    Deadline {
        /// Whether anything was changed.
        effect: Effect,
    },
    /// The deadline was exceeded because the cluster is not founded yet: this node waits for other
    /// founding members. A cluster is founded once all its founding members have been started.
    /// Nothing was changed.
    #[error(
        "not applied: deadline exceeded; the cluster is not founded yet: waiting for {}",
        waiting_for.join(", ")
    )]
    NotFounded {
        /// The members that the node waits for, each as `NAME (ADDRESS)`.
        waiting_for: Vec<String>,
    },
    /// The node has stopped.
    #[error("{}: the node has stopped: {reason}", words(*effect))]
    Stopped {
        /// Why the node has stopped.
        reason: StopReason,
        /// Whether anything was changed.
        effect: Effect,
    },
    /// The session has ended while its node keeps running.
    #[error("{}: the session has ended: {end}; open a new session", words(*effect))]
    SessionEnded {
        /// Why the session has ended.
        end: SessionEndReason,
        /// Whether this call has changed anything.
        effect: Effect,
    },
    /// A call that consists of several steps failed after its first step. The effects of the
    /// completed steps remain, unless the documentation of the call says that they are undone.
    #[error("may be partially applied: {0}")]
    Halfway(Box<Error>),
    /// The lock delay is longer than [`Limits::LOCK_DELAY_MAX`](crate::Limits::LOCK_DELAY_MAX).
    /// Nothing was changed.
    #[error("not applied: the lock delay {asked:?} is longer than {max:?}")]
    LockDelay {
        /// The requested delay.
        asked: Duration,
        /// The maximum delay.
        max: Duration,
    },
    /// The session TTL is shorter than [`Limits::SESSION_TTL_MIN`](crate::Limits::SESSION_TTL_MIN)
    /// or longer than [`Limits::LEASE_TTL_MAX`](crate::Limits::LEASE_TTL_MAX). Nothing was changed.
    #[error("not applied: the session TTL {asked:?} is out of range: {min:?} to {max:?}")]
    SessionTtl {
        /// The requested TTL.
        asked: Duration,
        /// The minimum TTL.
        min: Duration,
        /// The maximum TTL.
        max: Duration,
    },
    /// The session could not be resumed. Nothing was changed.
    #[error("session not resumed: {0}")]
    NotResumed(ResumeSessionError),
    /// The change was applied, but its reply is no longer available: the reply was large and was
    /// discarded while this node was disconnected. Read the affected keys instead.
    #[error("applied at revision {revision}, but the reply is no longer available")]
    AnswerLost {
        /// Revision of the store right after the change.
        revision: Revision,
    },
    /// The membership change was rejected. Nothing was changed.
    #[error("not applied: {0}")]
    Members(MembershipError),
    /// The backup could not be made, for the given reason. Nothing was changed.
    #[error("backup failed: {0}")]
    Backup(String),
    /// A row was read, but is not what the caller expects. The error holds the row.
    #[error(transparent)]
    Decode(Box<DecodeError>),
    /// A value could not be encoded by its [codec](crate::typed::Codec). Nothing was changed.
    #[error("not applied: cannot encode the value for \"{}\": {why}", key.escape_ascii())]
    Encode {
        /// The key in the store, with the prefixes of the folder and of its client. For an item of a
        /// queue, the name of the queue.
        key: Bytes,
        /// Why the value cannot be encoded.
        why: String,
    },
    /// Leadership could not be transferred to the requested member.
    #[error(
        "leadership transfer failed: the target must be a connected, up-to-date voter, or \
         another leader was elected; see Node::status"
    )]
    NoTransferee,
}

impl Error {
    /// Returns whether anything was changed.
    pub fn effect(&self) -> Effect {
        match self {
            Error::Deadline { effect }
            | Error::Stopped { effect, .. }
            | Error::SessionEnded { effect, .. } => *effect,
            Error::Halfway(_) => Effect::Unknown,
            Error::AnswerLost { .. } => Effect::Applied,
            Error::Rejected(_)
            | Error::Busy
            | Error::Diverged
            | Error::NotFounded { .. }
            | Error::QuotaExceeded { .. }
            | Error::NoSpace
            | Error::LockDelay { .. }
            | Error::SessionTtl { .. }
            | Error::NotResumed(_)
            | Error::Members(_)
            | Error::Backup(_)
            | Error::Decode(_)
            | Error::Encode { .. }
            | Error::NoTransferee => Effect::NotApplied,
        }
    }

    /// Returns the status code with which an HTTP service may respond:
    ///
    /// | error | status |
    /// |---|---|
    /// | [`Effect::Applied`]: only the reply was lost, so the service reads the store | 200 |
    /// | [`Effect::Unknown`] | 504 |
    /// | [`Error::Rejected`] because of a size or a number of operations | 413 |
    /// | [`Rejection::Alarm`], [`Error::QuotaExceeded`], [`Error::NoSpace`] | 507 |
    /// | [`Error::Rejected`] for another reason | 400 |
    /// | [`Error::Decode`], [`Error::Encode`] | 500 |
    /// | others: no leader or quorum, too many calls, or the node is stopping | 503 |
    pub fn http_status(&self) -> u16 {
        match (self.effect(), self) {
            (Effect::Applied, _) => 200,
            (Effect::Unknown, _) => 504,
            (Effect::NotApplied, Error::Rejected(rejection)) => match rejection {
                Rejection::KeyTooLarge { .. }
                | Rejection::ValueTooLarge { .. }
                | Rejection::RequestTooLarge { .. }
                | Rejection::TooManyOps { .. } => 413,
                Rejection::Alarm(_) => 507,
                _ => 400,
            },
            (Effect::NotApplied, Error::QuotaExceeded { .. } | Error::NoSpace) => 507,
            (Effect::NotApplied, Error::Decode(_) | Error::Encode { .. }) => 500,
            (Effect::NotApplied, _) => 503,
        }
    }

    /// Returns the error for a session that ended before anything was changed. If the node has
    /// stopped, returns [`Error::Stopped`].
    pub(crate) fn ended(end: SessionEndReason, shared: &Shared) -> Self {
        match end {
            SessionEndReason::NodeStopped => {
                Error::Stopped { reason: stopped(shared), effect: Effect::NotApplied }
            }
            end => Error::SessionEnded { end, effect: Effect::NotApplied },
        }
    }

    /// Converts the error for a call that may already have changed something: an effect of
    /// [`Effect::NotApplied`] would then be wrong.
    pub(crate) fn after_partial_change(self) -> Self {
        let effect = Effect::Unknown;
        match self {
            error if error.effect() != Effect::NotApplied => error,
            Error::Deadline { .. } => Error::Deadline { effect },
            Error::Stopped { reason, .. } => Error::Stopped { reason, effect },
            Error::SessionEnded { end, .. } => Error::SessionEnded { end, effect },
            error => Error::Halfway(Box::new(error)),
        }
    }

    /// Reports whether the same call may succeed later without intervention. If the effect of the
    /// failed call is unknown, a retry may apply the change a second time. A transaction can
    /// prevent this with a compare.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Busy | Error::Deadline { .. } | Error::NotFounded { .. } => true,
            Error::Halfway(why) => why.is_transient(),
            _ => false,
        }
    }

    /// Reports whether the call was rejected because it adds data. In this situation, a call that
    /// only deletes is accepted.
    pub(crate) fn needs_room(&self) -> bool {
        matches!(
            self,
            Error::NoSpace | Error::QuotaExceeded { .. } | Error::Rejected(Rejection::Alarm(_))
        )
    }
}

/// Returns why the node of an ended session has stopped.
pub(crate) fn stopped(shared: &Shared) -> StopReason {
    // Sessions end at the start of a shutdown, before the node has a stop reason.
    shared.stop_reason().unwrap_or(StopReason::Shutdown)
}

fn words(effect: Effect) -> &'static str {
    match effect {
        Effect::NotApplied => "not applied",
        Effect::Unknown => "possibly applied",
        Effect::Applied => "applied",
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Error::Decode(Box::new(error))
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        let effect = |maybe| if maybe { Effect::Unknown } else { Effect::NotApplied };
        match error {
            CallError::Rejected(rejection) => Error::Rejected(rejection),
            CallError::Busy => Error::Busy,
            CallError::Diverged => Error::Diverged,
            CallError::QuotaExceeded { bytes, quota } => Error::QuotaExceeded { bytes, quota },
            CallError::NoSpace => Error::NoSpace,
            CallError::Deadline { maybe_applied } => {
                Error::Deadline { effect: effect(maybe_applied) }
            }
            CallError::Stopped { reason, maybe_applied } => {
                Error::Stopped { reason, effect: effect(maybe_applied) }
            }
            CallError::NotFounded { waiting_for } => Error::NotFounded { waiting_for },
            CallError::NoTransferee => Error::NoTransferee,
            CallError::AnswerLost { revision } => Error::AnswerLost { revision },
            CallError::Members(rejection) => Error::Members(rejection),
            CallError::NotResumed(why) => Error::NotResumed(why),
            CallError::Backup(why) => Error::Backup(why.to_string()),
        }
    }
}

/// Error of a node start. The stored data was not changed, and a later start is possible. A failed
/// start leaves behind the directory, the incremented incarnation and, for a joining node, the id
/// of its join request. The next start reuses them.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error("invalid configuration: {0}")]
    Config(ConfigError),
    /// The data directory cannot be used.
    #[error("cannot use the data directory: {why}")]
    Data {
        /// Machine-readable kind of the error.
        kind: DataErrorKind,
        /// Description of the error in words, including what to do.
        why: String,
    },
    /// The network cannot be used.
    #[error("cannot start the network: {0}")]
    Network(TransportError),
    /// The cluster did not add the node, or no member answered. The node does not run. The kind
    /// states whether the node may have been added as a member.
    #[error("cannot join the cluster: {why}")]
    Join {
        /// Machine-readable kind of the error.
        kind: JoinErrorKind,
        /// Description of the error in words.
        why: String,
    },
    /// The operating system could not create a thread.
    #[error("cannot create a thread: {0}")]
    Thread(io::Error),
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        StartError::Config(error)
    }
}

impl From<TransportError> for StartError {
    fn from(error: TransportError) -> Self {
        StartError::Network(error)
    }
}

/// Kind of [`StartError::Join`], for a supervisor that decides what to do next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum JoinErrorKind {
    /// A member rejected the request, for example because of another cluster token, a certificate
    /// for another name, too many members, or no voter to replace. Another start fails as well
    /// until the cause is fixed. The error text names the cause.
    Refused,
    /// No member accepted or rejected the request within
    /// [`Config::join_deadline`](crate::Config::join_deadline). The node may have been added as a
    /// learner that does not run. Start it again on the same directory, so that it becomes one
    /// member and not two. If the node will not be started again, look for the learner in
    /// [`Node::members`](crate::Node::members) and remove it.
    TimedOut,
}

impl From<JoinError> for StartError {
    fn from(error: JoinError) -> Self {
        let kind = match error {
            JoinError::Transport(error) => return StartError::Network(error),
            JoinError::Refused(_) => JoinErrorKind::Refused,
            // A cancelled start has no caller left that could see this kind.
            JoinError::TooLate(_) | JoinError::GivenUp => JoinErrorKind::TimedOut,
        };
        StartError::Join { kind, why: error.to_string() }
    }
}

impl From<crate::node::StartError> for StartError {
    fn from(error: crate::node::StartError) -> Self {
        StartError::Data { kind: DataErrorKind::of(&error), why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AlarmKind;

    #[test]
    fn http_status_depends_first_on_the_effect() {
        let deadline = |effect| Error::Deadline { effect };
        let rejected = Error::Rejected;
        for (error, expected) in [
            (Error::AnswerLost { revision: Revision(2) }, 200),
            (deadline(Effect::Applied), 200),
            (deadline(Effect::Unknown), 504),
            (deadline(Effect::NotApplied), 503),
            (Error::Busy, 503),
            (rejected(Rejection::EmptyKey), 400),
            (rejected(Rejection::ValueTooLarge { bytes: 2, max: 1 }), 413),
            (rejected(Rejection::TooManyOps { count: 2, max: 1 }), 413),
            (rejected(Rejection::Alarm(AlarmKind::NoSpace)), 507),
            (Error::NoSpace, 507),
        ] {
            assert_eq!(error.http_status(), expected, "{error:?}");
        }
    }
}
