//! What can go wrong, and what that means for what was asked.
//!
//! One rule for all public errors of the crate: printed by itself, an error says all, the reason too, and so that is
//! not its `source` once more. One that only passes another on is that one (`transparent`).

use std::io;
use std::time::Duration;

use thiserror::Error as ThisError;

use crate::model::{MembershipError, Rejection, Revision};
use crate::node::{
    CallError, DataErrorKind, ResumeSessionError, SessionEndReason, Shared, StopReason,
};
use crate::transport::{JoinError, TransportError};

use super::ConfigError;

/// Whether a call that brought an error has changed anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing was changed, and nothing will be.
    NotApplied,
    /// It may have been applied, or may still be: at most once, and not after the cluster has learnt
    /// that this node gave it up. Read to find out.
    Unknown,
    /// It was applied, once.
    Applied,
}

/// Why a call brought no answer. [`Error::effect`] says whether anything was changed.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The store says no. Nothing was changed.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Too many calls of this node are without an answer. Nothing was changed: slow down and try
    /// again.
    #[error("too busy, not applied: too many calls on this node have no answer yet; try again")]
    Busy,
    /// Replicas differ and no majority says which one is right. Nothing was changed.
    #[error(
        "not applied: the replicas of this cluster differ and no majority says which is right; an \
         operator must look at the members' logs"
    )]
    Diverged,
    /// The state has reached its quota. Nothing was changed. Reads, deletions, compaction and the end
    /// of leases go on, and make room: what is compacted is given back within seconds.
    #[error(
        "not applied: the state takes {bytes} bytes, and its quota is {quota}: delete what is not needed \
         and compact, or raise Config::quota_bytes on all members"
    )]
    QuotaExceeded {
        /// What it takes on this node.
        bytes: u64,
        /// The quota.
        quota: u64,
    },
    /// The disk of this node is full, or the disks of so many voters that nothing more could be stored.
    /// Nothing was changed. Reads, deletions, compaction and the end of leases go on; everything does
    /// when there is room again.
    #[error(
        "not applied: the disk is full, on this member or on too many voters: make room on it; nothing \
         has to be restarted"
    )]
    NoSpace,
    /// The time is up. There may be no leader, no quorum, or too much to do.
    #[error(
        "{}: the deadline has passed; Node::health says whether there is a leader and a quorum",
        words(*effect)
    )]
    Deadline {
        /// Whether anything was changed.
        effect: Effect,
    },
    /// The deadline has passed, and the cluster is not founded: this node waits for founding members, which must all
    /// be started once. Nothing was changed.
    #[error(
        "not applied: deadline exceeded; the cluster is not founded yet: waiting for {}",
        waiting_for.join(", ")
    )]
    NotFounded {
        /// The members that it waits for, each as `NAME (ADDRESS)`.
        waiting_for: Vec<String>,
    },
    /// The node has stopped.
    #[error("{}: the node has stopped: {reason}", words(*effect))]
    Stopped {
        /// Why.
        reason: StopReason,
        /// Whether anything was changed.
        effect: Effect,
    },
    /// The session has ended, and its node has not stopped.
    #[error("{}: the session has ended: {end}; open another one", words(*effect))]
    SessionEnded {
        /// Why.
        end: SessionEndReason,
        /// Whether this call has changed anything.
        effect: Effect,
    },
    /// A call of several steps has failed behind the first of them: what those have done, or may have done, stands,
    /// unless the call says that it takes it back.
    #[error("may have been applied in part, before this: {0}")]
    Halfway(Box<Error>),
    /// A lock delay is longer than [`Limits::LOCK_DELAY_MAX`](crate::Limits::LOCK_DELAY_MAX). Nothing
    /// was changed.
    #[error("not applied: a lock delay of {asked:?}: the longest is {max:?}")]
    LockDelay {
        /// The delay that was asked for.
        asked: Duration,
        /// The longest.
        max: Duration,
    },
    /// A session that would live for less than [`Limits::SESSION_TTL_MIN`](crate::Limits::SESSION_TTL_MIN), or for
    /// more than [`Limits::LEASE_TTL_MAX`](crate::Limits::LEASE_TTL_MAX). Nothing was changed.
    #[error("not applied: a session's TTL of {asked:?}: {min:?} to {max:?}")]
    SessionTtl {
        /// The TTL that was asked for.
        asked: Duration,
        /// The shortest.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// A lease is not kept alive as was asked for. Nothing was changed.
    #[error("not resumed: {0}")]
    NotResumed(ResumeSessionError),
    /// The change was applied. What it answered was large, and was gone when this node, which had been
    /// cut off meanwhile, could hear of it: read what you need.
    #[error("applied, at revision {revision}; its answer came too late to be kept")]
    AnswerLost {
        /// The store's revision right after it.
        revision: Revision,
    },
    /// The members of the cluster stay as they are.
    #[error("not applied: {0}")]
    Members(MembershipError),
    /// A backup could not be made, in words that say why. Nothing was changed.
    #[error("no backup was made: {0}")]
    Backup(String),
    /// Leadership was not moved to whom it should go.
    #[error(
        "leadership was not moved there: it takes a voter that is connected and has caught up, or another one came to lead; see Node::status"
    )]
    NoTransferee,
}

impl Error {
    /// Whether anything was changed.
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
            | Error::NoTransferee => Effect::NotApplied,
        }
    }

    /// A session has ended before anything was changed. That its node has stopped is said as always.
    pub(crate) fn ended(end: SessionEndReason, shared: &Shared) -> Self {
        match end {
            SessionEndReason::NodeStopped => {
                Error::Stopped { reason: stopped(shared), effect: Effect::NotApplied }
            }
            end => Error::SessionEnded { end, effect: Effect::NotApplied },
        }
    }

    /// As it is told where this call has changed something before, or may have: that nothing was changed is not true
    /// then.
    pub(crate) fn halfway(self) -> Self {
        let effect = Effect::Unknown;
        match self {
            error if error.effect() != Effect::NotApplied => error,
            Error::Deadline { .. } => Error::Deadline { effect },
            Error::Stopped { reason, .. } => Error::Stopped { reason, effect },
            Error::SessionEnded { end, .. } => Error::SessionEnded { end, effect },
            error => Error::Halfway(Box::new(error)),
        }
    }

    /// Whether the same call may succeed later without anybody doing anything. One whose effect is
    /// unknown may then be applied twice, unless it is a transaction that guards against that.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Busy | Error::Deadline { .. } | Error::NotFounded { .. } => true,
            Error::Halfway(why) => why.is_transient(),
            _ => false,
        }
    }

    /// Whether it was refused for what it puts: what only deletes would not have been.
    pub(crate) fn needs_room(&self) -> bool {
        matches!(
            self,
            Error::NoSpace | Error::QuotaExceeded { .. } | Error::Rejected(Rejection::Alarm(_))
        )
    }
}

/// Why a node has stopped whose sessions have ended by that.
pub(crate) fn stopped(shared: &Shared) -> StopReason {
    // Sessions end at the beginning of a shutdown.
    shared.stop_reason().unwrap_or(StopReason::Shutdown)
}

fn words(effect: Effect) -> &'static str {
    match effect {
        Effect::NotApplied => "not applied",
        Effect::Unknown => "may have been applied or not",
        Effect::Applied => "applied",
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

/// Why a node did not start. Nothing of what it stores was changed, and nothing is in the way of another start: what
/// one leaves behind (the directory; that it was started once more; of a node that joins, the id with which it asks) the
/// next one takes up.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration makes no sense.
    #[error("configuration: {0}")]
    Config(ConfigError),
    /// The data directory cannot be used.
    #[error("data directory: {why}")]
    Data {
        /// Of what kind it is, for programs.
        kind: DataErrorKind,
        /// In words that say what to do, for people.
        why: String,
    },
    /// The network cannot be used.
    #[error("network: {0}")]
    Network(TransportError),
    /// The cluster has not let it in, or nobody has answered: the node does not run. Whether it may be a member all
    /// the same, the kind says.
    #[error("joining: {why}")]
    Join {
        /// Of what kind it is, for programs.
        kind: JoinErrorKind,
        /// In words, for people.
        why: String,
    },
    /// The operating system gives no thread.
    #[error("thread: {0}")]
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

/// Why a node has not joined a cluster: the kind of [`StartError::Join`], and what a supervisor does about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum JoinErrorKind {
    /// Who was asked says no: another token, a certificate of another name, no room, nobody to replace. Starting again
    /// ends the same until somebody has mended what the words name.
    Refused,
    /// Nobody has said yes or no within [`Config::join_deadline`](crate::Config::join_deadline). It may have been added
    /// all the same, as a learner that does not run. Start again, on the same directory: with that, it becomes one
    /// member and not two. If it is not to be started again, look for it in
    /// [`Node::members`](crate::Node::members) and remove it.
    TimedOut,
}

impl From<JoinError> for StartError {
    fn from(error: JoinError) -> Self {
        let kind = match error {
            JoinError::Transport(error) => return StartError::Network(error),
            JoinError::Refused(_) => JoinErrorKind::Refused,
            // Who gave it up does not hear of it.
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
