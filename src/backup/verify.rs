//! Is this file whole, and what is in it?

use std::path::Path;
use std::sync::Arc;

use crate::env::Env;
use crate::model::{ClusterId, ClusterVersion, Members, Revision, SnapshotId};
use crate::node::load_file;

use super::{BackupError, Progress};

/// What is in a backup of which every byte is as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BackupInfo {
    /// Names the file exactly, with the log entry that it goes up to and its length.
    pub id: SnapshotId,
    /// The cluster that it was taken of.
    pub cluster: ClusterId,
    /// The version that this cluster had been raised to.
    pub version: ClusterVersion,
    /// The newest revision in it.
    pub revision: Revision,
    /// The oldest revision in it.
    pub compacted: Revision,
    /// Who belonged to the cluster.
    pub members: Arc<Members>,
    /// How many keys there are.
    pub keys: u64,
    /// How many leases had not ended.
    pub leases: usize,
    /// What the state takes in memory, in bytes.
    pub state_bytes: u64,
}

/// Reads a backup from its first byte to its last, compares every checksum, makes the state that it holds
/// and compares the digest that it was written with. Needs the memory that a node with this state needs.
///
/// # Errors
/// [`BackupError::Unreadable`].
pub fn verify(file: impl AsRef<Path>) -> Result<BackupInfo, BackupError> {
    verify_with(file, &mut |_, _| {})
}

/// As [`verify`], telling how far it is, in bytes.
///
/// # Errors
/// As [`verify`].
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
