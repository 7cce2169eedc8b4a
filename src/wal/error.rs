//! What can go wrong with the log. Every one of them stops this node, and none of them the host.

use std::io;
use std::path::{Path, PathBuf};

use super::Identity;
use crate::model::{DiskId, LogIndex};

/// Why the log cannot be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The disk refused. What was written and not yet confirmed may or may not be there.
    #[error("the disk failed to {what} {path}: {source}", path = path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    /// Bytes that had been durable are not what they were.
    #[error(
        "the log is damaged at byte {offset} of {segment}: {why}. Nothing was changed. This member \
         may have acknowledged what is lost, so it must not go on with this directory: move the \
         directory away and replace the member; the other members have the data",
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

    /// The log is another disk's than the caller believes.
    #[error("{dir} has the disk id {found}, not {own}", dir = dir.display())]
    OtherDisk { dir: PathBuf, found: DiskId, own: DiskId },

    /// The log was written by a later release.
    #[error(
        "{segment} has log format {found}, this program knows formats up to {known}: upgrade me",
        segment = segment.display()
    )]
    Newer { segment: PathBuf, found: u32, known: u32 },

    /// The log cannot even note that the member was started.
    #[error(
        "the disk is full: the log in {dir} needs {bytes} bytes more to start. Make room and start \
         the node again; nothing is lost",
        dir = dir.display()
    )]
    NoRoom { dir: PathBuf, bytes: u64 },

    /// An earlier write or sync failed. Nothing may be concluded about it and nothing is tried again.
    #[error("the log takes nothing more since it failed: {first}")]
    Poisoned { first: String },

    /// The caller asked for what consensus never asks for; nothing was written.
    #[error("the log was asked for the impossible: {why}")]
    Impossible { why: String },

    /// Entries were asked for that the log does not hold.
    #[error("entries {from} to {to} (excluded) were asked for, the log holds {first} to {last}")]
    OutOfRange { from: LogIndex, to: LogIndex, first: LogIndex, last: LogIndex },
}

impl LogError {
    /// Whether the disk (or what this user may use of it) is full.
    pub(crate) fn is_no_space(&self) -> bool {
        let kind = match self {
            Self::Io { source, .. } => source.kind(),
            _ => return false,
        };
        matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Makes the error of a disk that refused to do `what` with `path`.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}
