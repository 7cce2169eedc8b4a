//! Verifies a backup file.

use std::path::Path;
use std::sync::Arc;

use crate::env::Env;
use crate::model::{ClusterId, ClusterVersion, Members, Revision, SnapshotId};
use crate::node::load_file;

use super::{BackupError, Progress};

/// The contents of a backup whose checksums all match.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Id of the backup file. The id consists of the index and term of the last log entry, the
    /// length, and a checksum of the file. Therefore files with different contents have different
    /// ids.
    pub id: SnapshotId,
    /// Id of the cluster that the backup was taken from.
    pub cluster: ClusterId,
    /// The cluster version when the backup was taken.
    pub version: ClusterVersion,
    /// The newest revision in the backup.
    pub revision: Revision,
    /// The oldest revision in the backup that can be read.
    pub compacted: Revision,
    /// The members of the cluster.
    pub members: Arc<Members>,
    /// Number of keys.
    pub keys: u64,
    /// Number of active leases.
    pub leases: usize,
    /// Size of the state in memory, in bytes.
    pub state_bytes: u64,
}

/// Reads the whole backup, verifies every checksum, rebuilds the state, and compares the state's
/// digest with the recorded one. Needs as much memory as a node with this state.
///
/// # Errors
/// Returns [`BackupError::Unreadable`].
pub fn verify(file: impl AsRef<Path>) -> Result<BackupInfo, BackupError> {
    verify_with(file, &mut |_, _| {})
}

/// Does the same as [`verify`], and reports the progress in bytes.
///
/// # Errors
/// Same as [`verify`].
pub fn verify_with(
    file: impl AsRef<Path>,
    progress: Progress<'_>,
) -> Result<BackupInfo, BackupError> {
    let (cluster, id, machine) = load_file(&Env::real(), file.as_ref(), progress)?;
    let reader = machine.reader();
    Ok(BackupInfo {
        id,
        cluster,
        version: machine.version(),
        revision: reader.revision(),
        compacted: reader.compacted(),
        members: reader.members(),
        keys: reader.keys(),
        leases: reader.lease_count(),
        state_bytes: reader.bytes(),
    })
}
