//! The errors of snapshot files.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::codec::CodecError;
use crate::model::ClusterId;

/// The reason why a snapshot file cannot be written or read.
#[derive(Debug, Error)]
pub(crate) enum SnapshotError {
    /// The disk is full. The incomplete file was removed. The operation can be retried once there
    /// is free space.
    #[error("disk full: cannot write {path}", path = path.display())]
    NoSpace { path: PathBuf },

    /// The disk returned an error.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },

    /// The file is damaged: its contents differ from the data that was written.
    #[error("{path} is damaged at byte {offset}: {why}", path = path.display())]
    Damaged { path: PathBuf, offset: u64, why: String },

    /// The file was written by a newer release of Bowline.
    #[error("cannot read {path} at byte {offset}: {why}; upgrade this node", path = path.display())]
    Newer { path: PathBuf, offset: u64, why: String },

    /// The file belongs to another cluster.
    #[error("{path} belongs to cluster {found}, not to cluster {expected}", path = path.display())]
    Foreign { path: PathBuf, found: ClusterId, expected: ClusterId },
}

impl SnapshotError {
    /// Returns a function that makes the error for a failed disk operation `what` on `path`.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Io { what, path, source },
        }
    }

    /// Returns a function that makes the error for bytes that cannot be decoded.
    pub(super) fn codec(path: &Path, offset: u64) -> impl FnOnce(CodecError) -> Self {
        let path = path.to_owned();
        move |error| match error {
            CodecError::NewerVersion { .. } | CodecError::Newer { .. } => {
                Self::Newer { path, offset, why: error.to_string() }
            }
            _ => Self::Damaged { path, offset, why: error.to_string() },
        }
    }

    /// Returns whether the operation failed because the disk is full. The operation may succeed
    /// once there is free space.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// Returns whether the file is permanently unusable, so that another copy is needed.
    #[cfg(test)]
    pub(crate) fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}
