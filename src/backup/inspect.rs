//! Whose directory is this, and what is in it?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::Env;
use crate::model::{
    ClusterId, DiskId, Incarnation, LogIndex, Members, NodeId, Revision, SnapshotId, Term,
};
use crate::node::{Offline, RestoredFrom, Stopped};

use super::{BackupError, Progress};

/// What is in a member's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DirectoryInfo {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member.
    pub member: NodeId,
    /// The disk's id.
    pub disk: DiskId,
    /// How often a node was started on it.
    pub starts: Incarnation,
    /// Whether it has met the other founders, or joined.
    pub founded: bool,
    /// What the cluster began with, if that was a backup.
    pub from_backup: Option<FromBackup>,
    /// The member's term.
    pub term: Term,
    /// Whom it voted for in that term.
    pub vote: Option<NodeId>,
    /// The first entry that is in the log.
    pub first: LogIndex,
    /// The last one; the one before the first if there is none.
    pub last: LogIndex,
    /// The term of the last one.
    pub last_term: Term,
    /// Up to where it knows that a majority has the entries.
    pub commit: LogIndex,
    /// What of the log is in use, in bytes.
    pub log_bytes: u64,
    /// How many bytes of a write that a crash interrupted stand behind the log's end. They are cut off at
    /// the next start.
    pub torn_bytes: u64,
    /// The snapshots, newest first.
    pub snapshots: Vec<SnapshotFile>,
    /// Who belongs to the cluster, with the whole log applied; the founders only, if that cannot be done.
    pub members: Arc<Members>,
    /// The revision, with the whole log applied; `None` if that cannot be done.
    pub revision: Option<Revision>,
    /// How many keys there are then.
    pub keys: Option<u64>,
    /// What is wrong, in words. Empty if nothing is.
    pub troubles: Vec<String>,
}

/// The backup that a cluster began with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FromBackup {
    /// The cluster that it was taken of.
    pub cluster: ClusterId,
    /// Names the file exactly.
    pub id: SnapshotId,
    /// By how much revisions rose.
    pub revision_jump: u64,
}

/// A file with the name of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SnapshotFile {
    /// Where it is.
    pub path: PathBuf,
    /// The last entry that it covers.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
    /// Its length in bytes, if every byte of it is as it was written.
    pub sound_bytes: Option<u64>,
}

/// Says whose directory this is and what is in it, reading all of it and changing nothing. No node may run
/// on it. Needs the memory that a node with this state needs.
///
/// # Errors
/// [`BackupError`]. What can be told in spite of damage is told, with
/// [`troubles`](DirectoryInfo::troubles).
pub fn inspect(dir: impl AsRef<Path>) -> Result<DirectoryInfo, BackupError> {
    inspect_with(dir, &mut |_, _| {})
}

/// As [`inspect`], telling how far it is: in bytes of the snapshot, in entries of the log.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_with(
    dir: impl AsRef<Path>,
    progress: Progress<'_>,
) -> Result<DirectoryInfo, BackupError> {
    let (env, dir) = (Env::real(), dir.as_ref());
    let restored_from = RestoredFrom::of(&env, dir)?;
    let offline = Offline::open(&env, dir)?;
    let offline = offline.ok_or_else(|| BackupError::NoMember { dir: dir.to_owned() })?;
    let mut troubles = Vec::new();
    let snapshots = snapshots(&offline, &mut troubles)?;
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
            Err(error) => troubles.push(error.to_string()),
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
        troubles,
    })
}

fn snapshots(
    offline: &Offline,
    troubles: &mut Vec<String>,
) -> Result<Vec<SnapshotFile>, BackupError> {
    let folder = offline.snapshots();
    let found = folder.list().map_err(|error| BackupError::Unreadable(error.to_string()))?;
    let look = |found: crate::snapshot::Found| {
        let sound = folder.read(&found).and_then(|mut reader| {
            while reader.pass()? {}
            Ok(reader.sound())
        });
        let sound_bytes = sound.map_err(|error| troubles.push(error.to_string())).ok();
        SnapshotFile { path: found.path, index: found.index, term: found.term, sound_bytes }
    };
    Ok(found.into_iter().map(look).collect())
}
