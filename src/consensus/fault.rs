//! Why the consensus of this member cannot go on.

use thiserror::Error;

use crate::model::{LogIndex, Term};

/// This member must stop: what it holds and what it has promised do not fit together, or its log
/// cannot be read. The host process lives. Nothing that waited for it is known to be applied or not.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub(crate) enum ConsensusFault {
    /// The configuration makes no sense.
    #[error("consensus configuration: {0}")]
    Config(String),
    /// The log ends before an entry that this member has acknowledged, or known to be committed.
    #[error(
        "the log ends at {last}, but holds for sure what is up to {promised}: synced entries are lost"
    )]
    LogLost {
        /// What must be there.
        promised: LogIndex,
        /// What is there.
        last: LogIndex,
    },
    /// The newest entry is of a later term than the newest that this member has stored.
    #[error(
        "the log's last entry {last} is of term {found}, but the term on record is {term}: a synced term is lost"
    )]
    TermLost {
        /// The last entry.
        last: LogIndex,
        /// Its term.
        found: Term,
        /// The term on record.
        term: Term,
    },
    /// An entry that should be there could not be read.
    #[error("entry {index} of the log cannot be read: {why}")]
    Unreadable {
        /// Which entry.
        index: LogIndex,
        /// What the log says.
        why: String,
    },
    /// The log answered with other entries than it was asked for.
    #[error("asked for entry {asked}, the log gave {found:?}")]
    OutOfOrder {
        /// What was asked for.
        asked: LogIndex,
        /// What came, if anything.
        found: Option<LogIndex>,
    },
    /// The log has been cut beyond the state that this member has.
    #[error("the log begins at {first}, but the state ends at {applied}: a snapshot is lost")]
    StateLost {
        /// The oldest entry of the log.
        first: LogIndex,
        /// What is applied.
        applied: LogIndex,
    },
    /// An entry that changes the members, or what the state made of it, makes no sense.
    #[error("the change of the members at {index}: {why}")]
    Membership {
        /// Which entry.
        index: LogIndex,
        /// What is wrong.
        why: String,
    },
}
