//! Why bytes could not be read.

use thiserror::Error;

/// Why bytes could not be read. Says which part was looked at; nothing of it was used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum CodecError {
    /// Written by a version of Bowline that is newer than this one.
    #[error(
        "{what} in format {found}: a newer version of Bowline wrote it, this one reads {known}"
    )]
    NewerVersion {
        /// What was being read.
        what: &'static str,
        /// The format found.
        found: u8,
        /// The newest that this build reads.
        known: u8,
    },
    /// Of a kind, or with a flag, that only a newer version of Bowline knows.
    #[error("{what} of unknown kind {found:#x}: a newer version of Bowline wrote it")]
    Newer {
        /// What was being read.
        what: &'static str,
        /// The kind or the flags found.
        found: u64,
    },
    /// The bytes end too early, or a length or a count in them is too large.
    #[error("{what} cut short: needs at least {needed} bytes, {left} are left")]
    CutShort {
        /// What was being read.
        what: &'static str,
        /// The least number of bytes that it would take.
        needed: u64,
        /// How many there were.
        left: usize,
    },
    /// Not a way in which this value is ever written.
    #[error("{what} is malformed: {why}")]
    Malformed {
        /// What was being read.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Transactions nested deeper than any member accepts.
    #[error("transactions nested deeper than {max}")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// Bytes after the end.
    #[error("{bytes} bytes too many after {what}")]
    Trailing {
        /// What was being read.
        what: &'static str,
        /// How many.
        bytes: usize,
    },
}
