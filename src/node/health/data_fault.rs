//! Classifies the errors that keep a node from starting on its data directory, for programs that
//! match on the kind. The error texts are defined in `assembly`, `restored_from`, `wal` and
//! `snapshot`.

use std::io;

use crate::model::Fault;
use crate::snapshot::SnapshotError;
use crate::wal::LogError;

use crate::node::assembly::StartError;
use crate::node::snapshots::restored_from::OriginError;

/// The kind of [`StartError::Data`](crate::StartError::Data): what is wrong with the data directory, and what a
/// supervisor should do. Unless stated otherwise, a retry fails with the same error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DataErrorKind {
    /// Another node uses the directory, in this process or another process. Retry when that node
    /// has ended. If that node is not an earlier run of this node, two configurations contain the
    /// same directory.
    InUse,
    /// The directory belongs to another member or cluster: its name, token, or list of founders differs from the
    /// configuration. Correct the configuration or the mount, and keep the directory.
    Foreign,
    /// Durable data was changed or lost. This member may have acknowledged the lost data. Move the
    /// directory away and replace the member ([`Config::replacing`](crate::Config::replacing)).
    /// Never restart the member with an empty directory under its old name.
    Damaged,
    /// A newer release wrote a format that this release cannot read. Start that release or a newer one.
    Newer,
    /// The log continues from a state that no snapshot contains, and no other member is known.
    /// Start the node with a member of its cluster to [join](crate::Config::join), or restore a
    /// backup.
    StateLost,
    /// A restore into the directory was interrupted. Remove the directory, and restore again.
    HalfRestored,
    /// The disk or a disk quota is full. Nothing is lost. Free some space, and start again.
    NoSpace,
    /// The operating system returned an error: the path is not a directory, a permission is
    /// missing, or the disk failed. There is no sign that the data is damaged. A retry may help.
    /// The text states which operation failed.
    Io,
    /// Another error, most likely a fault of Bowline. Keep the directory unchanged, and report the
    /// text.
    Other,
}

impl DataErrorKind {
    /// Classifies a disk error that occurred while the node looked for the data of an earlier join.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Self::Damaged,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Io,
        }
    }

    /// Classifies an error in the file that records from which backup the directory was restored.
    pub(crate) fn of_origin(error: &OriginError) -> Self {
        match error {
            OriginError::Interrupted { .. } => Self::HalfRestored,
            OriginError::Io { .. } => Self::Io,
            OriginError::Damaged { .. } => Self::Damaged,
            OriginError::Newer { .. } => Self::Newer,
        }
    }

    /// Classifies an error from assembling a node.
    pub(crate) fn of(error: &StartError) -> Self {
        match error {
            StartError::Log(error) => Self::of_log(error),
            StartError::Entry(fault) => Self::of_entry(fault),
            StartError::Snapshot(error) => Self::of_snapshot(error),
            StartError::Full => Self::NoSpace,
            StartError::StateLost { .. } => Self::StateLost,
            StartError::OtherFounders { .. } | StartError::OtherMember { .. } => Self::Foreign,
            StartError::Replay(_) => Self::Other,
        }
    }

    fn of_log(error: &LogError) -> Self {
        match error {
            LogError::NoRoom { .. } => Self::NoSpace,
            error if error.is_no_space() => Self::NoSpace,
            LogError::Io { .. } | LogError::Poisoned { .. } => Self::Io,
            LogError::Corrupt { .. } => Self::Damaged,
            LogError::Locked { .. } => Self::InUse,
            LogError::Foreign { .. } | LogError::OtherDisk { .. } => Self::Foreign,
            LogError::Newer { .. } => Self::Newer,
            LogError::Impossible { .. } | LogError::OutOfRange { .. } => Self::Other,
        }
    }

    fn of_snapshot(error: &SnapshotError) -> Self {
        match error {
            SnapshotError::NoSpace { .. } => Self::NoSpace,
            SnapshotError::Io { .. } => Self::Io,
            SnapshotError::Damaged { .. } => Self::Damaged,
            SnapshotError::Newer { .. } => Self::Newer,
            SnapshotError::Foreign { .. } => Self::Foreign,
        }
    }

    /// The entry has passed its checksum. So if this release cannot read the entry, a newer release
    /// wrote it.
    fn of_entry(fault: &Fault) -> Self {
        match fault {
            Fault::Outgrown { .. } | Fault::Unreadable { .. } => Self::Newer,
            Fault::Rotten { .. }
            | Fault::Drifted { .. }
            | Fault::Backwards { .. }
            | Fault::OutOfOrder { .. } => Self::Other,
        }
    }
}
