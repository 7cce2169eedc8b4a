//! Inspects the data directory of a stopped member: which member it belongs to, and what it
//! contains.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::Env;
use crate::model::{
    ClusterId, DiskId, Incarnation, LogIndex, Members, NodeId, Revision, SnapshotId, Term,
};
use crate::node::{Offline, RestoredFrom, Stopped};

use super::{BackupError, Progress};

/// The contents of a member's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DirectoryInfo {
    /// Id of the cluster that the member belongs to.
    pub cluster: ClusterId,
    /// Id of the member.
    pub member: NodeId,
    /// Id of the disk.
    pub disk: DiskId,
    /// Number of times that a node has started on this directory.
    pub starts: Incarnation,
    /// Whether the member has founded the cluster together with the other founders, or has joined
    /// it.
    pub founded: bool,
    /// The backup that the cluster was restored from, if any.
    pub from_backup: Option<FromBackup>,
    /// The member's term.
    pub term: Term,
    /// The member that this member voted for in `term`.
    pub vote: Option<NodeId>,
    /// Index of the first entry in the log.
    pub first: LogIndex,
    /// Index of the last entry in the log. If the log has no entries, the index before `first`.
    pub last: LogIndex,
    /// Term of the last entry in the log.
    pub last_term: Term,
    /// Highest index that the member knows to be committed.
    pub commit: LogIndex,
    /// Bytes of the log that are in use.
    pub log_bytes: u64,
    /// Number of bytes after the log's end that an interrupted write has left behind. The next
    /// start truncates these bytes.
    pub torn_bytes: u64,
    /// The snapshots, newest first.
    pub snapshots: Vec<SnapshotFile>,
    /// The members of the cluster after applying the whole log. If the log cannot be applied, the
    /// list contains only the founders.
    pub members: Arc<Members>,
    /// The revision after applying the whole log, or `None` if the log cannot be applied.
    pub revision: Option<Revision>,
    /// Number of keys at `revision`.
    pub keys: Option<u64>,
    /// Descriptions of the problems found. Empty if there are none.
    pub problems: Vec<String>,
}

/// The backup that a cluster was restored from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FromBackup {
    /// Id of the cluster that the backup was taken from.
    pub cluster: ClusterId,
    /// Id of the backup file. Files with different contents have different ids.
    pub id: SnapshotId,
    /// Number that was added to the revision on restore.
    pub revision_jump: u64,
}

/// A file with the name of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Index of the last entry that the snapshot covers.
    pub index: LogIndex,
    /// Term of the last entry that the snapshot covers.
    pub term: Term,
    /// Length in bytes if all checksums match, or `None` if the file is damaged.
    pub sound_bytes: Option<u64>,
}

/// Reads the whole directory of a stopped member, and reports which member it belongs to and what
/// it contains. Changes nothing. No node may be running on the directory. Needs as much memory as a
/// node with this state.
///
/// # Errors
/// Returns a [`BackupError`]. If the damage still allows a report, no error is returned, and the
/// damage is listed in [`problems`](DirectoryInfo::problems).
pub fn inspect(dir: impl AsRef<Path>) -> Result<DirectoryInfo, BackupError> {
    inspect_with(dir, &mut |_, _| {})
}

/// Does the same as [`inspect`], and reports the progress, first in bytes of the snapshot and then
/// in entries of the log.
///
/// # Errors
/// Same as [`inspect`].
pub fn inspect_with(
    dir: impl AsRef<Path>,
    progress: Progress<'_>,
) -> Result<DirectoryInfo, BackupError> {
    let (env, dir) = (Env::real(), dir.as_ref());
    let restored_from = RestoredFrom::of(&env, dir)?;
    let offline = Offline::open(&env, dir)?;
    let offline = offline.ok_or_else(|| BackupError::NoMember { dir: dir.to_owned() })?;
    let mut problems = Vec::new();
    let snapshots = snapshots(&offline, &mut problems)?;
    let recovered = offline.recovered();
    let mut members =
        Arc::new(recovered.founding.as_ref().map(Members::founded).unwrap_or_default());
    let (mut revision, mut keys) = (None, None);
    if recovered.founding.is_some() {
        match offline.state(progress) {
            Ok(Stopped { machine, .. }) => {
                members = Arc::clone(machine.members());
                revision = Some(machine.revision());
                keys = Some(machine.reader().keys());
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    let log = offline.reader();
    Ok(DirectoryInfo {
        cluster: offline.identity().cluster,
        member: offline.identity().node,
        disk: recovered.disk,
        starts: recovered.incarnation,
        founded: recovered.founding.is_some(),
        from_backup: restored_from.map(|RestoredFrom { cluster, backup, revision_jump }| {
            FromBackup { cluster, id: backup, revision_jump }
        }),
        term: recovered.hard_state.term,
        vote: recovered.hard_state.vote,
        first: log.first(),
        last: recovered.last,
        last_term: log.term(recovered.last).unwrap_or_default(),
        commit: recovered.hard_state.commit,
        log_bytes: log.bytes(),
        torn_bytes: recovered.torn.as_ref().map_or(0, |torn| torn.bytes),
        snapshots,
        members,
        revision,
        keys,
        problems,
    })
}

fn snapshots(
    offline: &Offline,
    problems: &mut Vec<String>,
) -> Result<Vec<SnapshotFile>, BackupError> {
    let folder = offline.snapshots();
    let found = folder.list().map_err(|error| BackupError::Unreadable(error.to_string()))?;
    let look = |found: crate::snapshot::Found| {
        let sound = folder.read(&found).and_then(|mut reader| {
            while reader.pass()? {}
            Ok(reader.sound())
        });
        let sound_bytes = sound.map_err(|error| problems.push(error.to_string())).ok();
        SnapshotFile { path: found.path, index: found.index, term: found.term, sound_bytes }
    };
    Ok(found.into_iter().map(look).collect())
}
