//! The reasons why this member's consensus must stop.

use thiserror::Error;

use crate::model::{LogIndex, Term};

/// A fault after which this member must stop: its state contradicts its earlier messages, or its
/// log cannot be read. The process that embeds the member keeps running. Whether pending requests
/// will be applied is unknown.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum ConsensusFault {
    /// The configuration is invalid.
    #[error("invalid consensus configuration: {0}")]
    Config(String),
    /// The log ends before an entry that this member has acknowledged or known to be committed.
    #[error(
        "the log ends at entry {last} but must contain entry {promised}: synced entries are lost"
    )]
    LogLost {
        /// The index that must exist.
        promised: LogIndex,
        /// The last index that exists.
        last: LogIndex,
    },
    /// The last entry has a later term than the recorded one.
    #[error(
        "the last log entry {last} has term {found}, but the recorded term is {term}: a synced term is lost"
    )]
    TermLost {
        /// Index of the last entry.
        last: LogIndex,
        /// Term of the last entry.
        found: Term,
        /// The recorded term.
        term: Term,
    },
    /// An entry that must exist could not be read.
    #[error("cannot read log entry {index}: {why}")]
    Unreadable {
        /// Index of the entry.
        index: LogIndex,
        /// The error of the log.
        why: String,
    },
    /// The log returned other entries than requested.
    #[error("the log returned entry {found:?} instead of entry {asked}")]
    OutOfOrder {
        /// The requested index.
        asked: LogIndex,
        /// The returned index, if any.
        found: Option<LogIndex>,
    },
    /// The log was truncated beyond this member's state, so entries between the state and the log
    /// are missing.
    #[error(
        "the log begins at entry {first}, but the state ends at entry {applied}: a snapshot is lost"
    )]
    StateLost {
        /// The first index of the log.
        first: LogIndex,
        /// The applied index.
        applied: LogIndex,
    },
    /// A membership change, or its effect on the state, is invalid.
    #[error("invalid membership change at entry {index}: {why}")]
    Membership {
        /// Index of the entry.
        index: LogIndex,
        /// The reason.
        why: String,
    },
}
