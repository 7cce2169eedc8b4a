//! What can go wrong with a snapshot file.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::codec::CodecError;
use crate::model::ClusterId;

/// What is wrong with a snapshot file, and where.
#[derive(Debug, Error)]
pub(crate) enum SnapshotError {
    /// The disk is full. What was written of the file is removed; to be tried again when there is
    /// room.
    #[error("no space left on the disk for {path}", path = path.display())]
    NoSpace { path: PathBuf },

    /// The disk refused.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },

    /// The file is not what was written.
    #[error("{path} is damaged at byte {offset}: {why}", path = path.display())]
    Damaged { path: PathBuf, offset: u64, why: String },

    /// The file is of a newer version of Bowline.
    #[error("{path}, byte {offset}: {why}: upgrade me", path = path.display())]
    Newer { path: PathBuf, offset: u64, why: String },

    /// The file is another cluster's.
    #[error("{path} is of cluster {found}, this is cluster {expected}", path = path.display())]
    Foreign { path: PathBuf, found: ClusterId, expected: ClusterId },
}

impl SnapshotError {
    /// Makes the error of a disk that refused to do `what` with `path`.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Io { what, path, source },
        }
    }

    /// Makes the error of bytes that cannot be read.
    pub(super) fn codec(path: &Path, offset: u64) -> impl FnOnce(CodecError) -> Self {
        let path = path.to_owned();
        move |error| match error {
            CodecError::NewerVersion { .. } | CodecError::Newer { .. } => {
                Self::Newer { path, offset, why: error.to_string() }
            }
            _ => Self::Damaged { path, offset, why: error.to_string() },
        }
    }

    /// Whether the same may succeed later, once there is room on the disk.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// Whether the file is of no use, whatever happens: another copy is needed.
    #[cfg(test)]
    pub(crate) fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}
