//! The decoding error.

use thiserror::Error;

/// The reason why bytes could not be decoded, with the part that was being read. No part of the
/// input has taken effect.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum CodecError {
    /// The input has a format version that only a newer release of Bowline knows.
    #[error("format version {found} of the {what} is newer than this build supports ({known})")]
    NewerVersion {
        /// The part being read.
        what: &'static str,
        /// The format version found.
        found: u8,
        /// The newest format version that this build reads.
        known: u8,
    },
    /// The input has a kind or a flag that only a newer release of Bowline knows.
    #[error("unknown {what} {found:#x}: written by a newer release of Bowline")]
    Newer {
        /// The part being read.
        what: &'static str,
        /// The kind or the flags found.
        found: u64,
    },
    /// The input ends too early, or a length or count in it is too large.
    #[error("truncated {what}: needs at least {needed} bytes, {left} are left")]
    CutShort {
        /// The part being read.
        what: &'static str,
        /// Minimum number of bytes needed.
        needed: u64,
        /// Number of bytes left.
        left: usize,
    },
    /// The input is not a valid encoding of this value.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The part being read.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// Transactions are nested deeper than any member accepts.
    #[error("transactions nested deeper than {max}")]
    TooDeep {
        /// Maximum nesting depth.
        max: usize,
    },
    /// Unexpected bytes follow the value.
    #[error("{bytes} unexpected bytes after the {what}")]
    Trailing {
        /// The part being read.
        what: &'static str,
        /// Number of unexpected bytes.
        bytes: usize,
    },
}
