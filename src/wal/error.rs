//! The errors of the log. Each of these errors stops the node, but not the process that embeds it.

use std::io;
use std::path::{Path, PathBuf};

use super::Identity;
use crate::model::{DiskId, LogIndex};

/// The reason why the log cannot be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The disk returned an error. Unconfirmed writes may or may not be durable.
    #[error("disk error: cannot {what} {path}: {source}", path = path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// Bytes that were durable have changed.
    #[error(
        "log damaged at byte {offset} of {segment}: {why}; nothing was changed. This member may have \
         acknowledged data that is lost, so it must not continue with this directory: move the directory away \
         and replace the member; the other members have the data",
        segment = segment.display()
    )]
    Corrupt { segment: PathBuf, offset: u64, why: String },

    /// Another node uses the directory, in this process or in another one.
    #[error(
        "{dir} is in use by another node: give each node its own directory; to start a node again in the same \
         process, await `Node::shutdown` first, because a dropped node stops in the background",
        dir = dir.display()
    )]
    Locked { dir: PathBuf },

    /// The directory holds the log of another member or cluster.
    #[error(
        "{dir} belongs to member {found_node} of cluster {found_cluster}, not to member \
         {own_node} of cluster {own_cluster}",
        dir = dir.display(),
        found_node = found.node,
        found_cluster = found.cluster,
        own_node = own.node,
        own_cluster = own.cluster
    )]
    Foreign { dir: PathBuf, found: Identity, own: Identity },

    /// The log has a different disk id than the caller expects.
    #[error("the log in {dir} has the disk id {found}, expected {own}", dir = dir.display())]
    OtherDisk { dir: PathBuf, found: DiskId, own: DiskId },

    /// The log was written by a later release.
    #[error(
        "log format {found} of {segment} is newer than this build supports ({known}); upgrade this node",
        segment = segment.display()
    )]
    Newer { segment: PathBuf, found: u32, known: u32 },

    /// The disk has no space even for the record of the member's start.
    #[error(
        "disk full: the log in {dir} needs {bytes} more bytes to start; no data is lost: free space and start \
         the node again",
        dir = dir.display()
    )]
    NoRoom { dir: PathBuf, bytes: u64 },

    /// An earlier write or sync failed. Its effect on the disk is unknown, and the log does not
    /// retry.
    #[error("the log rejects all calls after an earlier failure: {first}")]
    Poisoned { first: String },

    /// The caller passed a group that contradicts the log, which the consensus never does. Nothing
    /// was written.
    #[error("invalid call to the log: {why}")]
    Impossible { why: String },

    /// The caller requested entries that the log does not contain.
    #[error(
        "entries {from} to {to} (exclusive) are out of range: the log contains {first} to {last}"
    )]
    OutOfRange { from: LogIndex, to: LogIndex, first: LogIndex, last: LogIndex },
}

impl LogError {
    /// Returns whether the disk, or this user's share of it, is full.
    pub(crate) fn is_no_space(&self) -> bool {
        let kind = match self {
            Self::Io { source, .. } => source.kind(),
            _ => return false,
        };
        matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Returns a function that makes the error for a failed disk operation `what` on `path`.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
