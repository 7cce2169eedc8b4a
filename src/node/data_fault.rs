//! Of what kind it is that keeps a node from starting on its data directory: for programs, which match on it. What
//! people read are the words of the error that it is made of, in `assembly`, `origin`, `wal` and `snapshot`.

use std::io;

use crate::model::Fault;
use crate::snapshot::SnapshotError;
use crate::wal::LogError;

use super::assembly::StartError;
use super::restored_from::OriginError;

/// What is wrong with a data directory: the kind of [`StartError::Data`](crate::StartError::Data), and what a
/// supervisor does about it. The same start, tried again, ends as before, but where it says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DataErrorKind {
    /// Another node runs on it, in this process or another one. Start again when that one has ended; if that is not an
    /// earlier life of this very node, two configurations name one directory.
    InUse,
    /// It is another member's, or another cluster's: of another name, token, or list of founders than the configuration
    /// says. Mend the configuration, or the mount; the directory is somebody's.
    Foreign,
    /// What had been durable is not what was written. This member may have acknowledged what is lost: move the
    /// directory away and replace the member ([`Config::replacing`](crate::Config::replacing)); never start it again
    /// with an empty one under its old name.
    Damaged,
    /// A newer release has written what this one cannot read. Start that release, or a newer one.
    Newer,
    /// The log goes on from a state that no snapshot has, and nobody is known who could be asked. Start it with a member
    /// of its cluster to [join](crate::Config::join), or restore a backup.
    StateLost,
    /// A restore of a backup into it has not come to its end. Remove it, and restore again.
    HalfRestored,
    /// The disk is full, or what this user may have of it. Nothing is lost: make room, and start again.
    NoSpace,
    /// The operating system refuses: a path that is no directory, no right to it, a disk that fails. What is in it is
    /// not known to be damaged. Starting again may help; the words say what was refused.
    Io,
    /// Nothing of these: most likely a fault of Bowline. Keep the directory as it is, and report the words.
    Other,
}

impl DataErrorKind {
    /// What the disk says while a node looks for what it joined with.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Self::Damaged,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Io,
        }
    }

    /// What is wrong with the note of the backup that a directory was made from.
    pub(crate) fn of_origin(error: &OriginError) -> Self {
        match error {
            OriginError::Interrupted { .. } => Self::HalfRestored,
            OriginError::Io { .. } => Self::Io,
            OriginError::Damaged { .. } => Self::Damaged,
            OriginError::Newer { .. } => Self::Newer,
        }
    }

    /// Why a node could not be put together.
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

    /// An entry has come through its checksum: who cannot read it is too old for it.
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
