//! Restores one member of a new cluster from a backup.
//!
//! ```text
//!   read and check the whole backup ──▶ lock the directory, check that it is empty
//!     ──▶ RESTORING, durable ──▶ snapshot, written and read back ──▶ log after it
//!     ──▶ rename RESTORING to RESTORED
//! ```
//!
//! Before the first durable step, the directory is empty. After that and until the last step, the
//! directory contains `RESTORING`. While the directory contains `RESTORING`, a node refuses to
//! start with it, and another restore rejects it.

use std::path::{Path, PathBuf};

use crate::api::{Config, StartMode};
use crate::env::Env;
use crate::machine::{Machine, RESEEDED_AT, REVISION_JUMP, Reseed};
use crate::model::{ClusterId, Members, NodeId, Revision};
use crate::node::{RESTORING, RestoredFrom, load_file};
use crate::snapshot::Folder;
use crate::wal;

use super::{BackupError, Progress};

/// Size of the chunks in which the state is written, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Options of a restore. All members of the new cluster must be restored with the same options.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "pass it to restore()"]
pub struct RestoreOptions {
    revision_jump: u64,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self { revision_jump: REVISION_JUMP }
    }
}

impl RestoreOptions {
    /// Sets the number that is added to the backup's revision. Default: 1,000,000,000; minimum: 1.
    /// The jump must be larger than the number of revisions that the old cluster has written since
    /// the backup was taken. Otherwise fencing tokens repeat. If other clusters were restored from
    /// this backup before, the jump must also exceed the number of revisions from the backup to the
    /// last revision of each of them.
    pub fn revision_jump(mut self, revisions: u64) -> Self {
        self.revision_jump = revisions;
        self
    }
}

/// A directory that was restored from a backup. Start a node on this directory with the same
/// configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// Path of the directory.
    pub dir: PathBuf,
    /// Id of the new cluster. All members that are restored from this backup with the same options
    /// have the same cluster id.
    pub cluster: ClusterId,
    /// Id of the member.
    pub member: NodeId,
    /// The first revision of the new cluster.
    pub revision: Revision,
    /// Number of keys.
    pub keys: u64,
    /// Number of leases that were revoked.
    pub leases_ended: usize,
    /// Number of keys that were deleted with the revoked leases.
    pub keys_deleted: u64,
}

/// Creates the directory of one member of a new cluster from a backup. Call this function once for
/// each founding member. Pass the same file and options for all members, and for each member the
/// configuration that its node will be started with. [`Config::members`] and the token must be the
/// same for all members. The cluster begins when the nodes of all members have started. The
/// [module](super) page lists what a restore preserves and what it changes.
///
/// # Errors
/// Returns a [`BackupError`]. After [`BackupError::Unwritten`], or after a crash, nodes and later
/// restores reject the directory until it is removed.
pub fn restore(
    file: impl AsRef<Path>,
    config: &Config,
    options: &RestoreOptions,
) -> Result<Restored, BackupError> {
    restore_with(file, config, options, &mut |_, _| {})
}

/// Does the same as [`restore`], and reports the progress, first in bytes read and then in bytes
/// written.
///
/// # Errors
/// Same as [`restore`].
pub fn restore_with(
    file: impl AsRef<Path>,
    config: &Config,
    options: &RestoreOptions,
    progress: Progress<'_>,
) -> Result<Restored, BackupError> {
    let checked = config.check()?;
    let (env, dir) = (config.world(), checked.dir().to_owned());
    let (cluster, backup, machine) = load_file(env, file.as_ref(), progress)?;
    let revision_jump = options.revision_jump;
    let restored_from = RestoredFrom { cluster, backup, revision_jump };
    let checked = checked.restored_from(Some(&restored_from));
    let StartMode::Found { node, cluster, members } = checked.start_mode().clone() else {
        return Err(BackupError::Joins);
    };
    let segment_bytes = checked.settings(node, cluster, members).log_segment_bytes;
    let before = machine.reader();
    let (keys, leases_ended) = (before.keys(), before.lease_count());
    let revision = machine.revision().get();
    let how = Reseed { members: Members::default(), revision_jump };
    let machine =
        machine.reseed(how).map_err(|_| BackupError::Jump { revision, jump: revision_jump })?;

    begin(env, &dir, &restored_from)?;
    write_state(env, &dir, cluster, &machine, progress)?;
    write_log(env, &dir, wal::Identity { cluster, node }, segment_bytes)?;
    RestoredFrom::end(env, &dir).map_err(BackupError::io("rename a file in", &dir))?;

    let after = machine.reader();
    Ok(Restored {
        dir,
        cluster,
        member: node,
        revision: machine.revision(),
        keys: after.keys(),
        leases_ended,
        keys_deleted: keys - after.keys(),
    })
}

/// Claims the directory if it is empty.
fn begin(env: &Env, dir: &Path, restored_from: &RestoredFrom) -> Result<(), BackupError> {
    env.disk.create_dir(dir).map_err(BackupError::io("create", dir))?;
    let names = env.disk.list(dir).map_err(BackupError::io("list", dir))?;
    if names.iter().any(|name| name == RESTORING) {
        return Err(BackupError::Interrupted { dir: dir.to_owned() });
    }
    // The entry `lost+found` belongs to the file system. A lock file may be left over from a node
    // that has stopped.
    let foreign = |name: &&String| !["lost+found", wal::LOCK].contains(&name.as_str());
    if let Some(found) = names.iter().find(foreign) {
        return Err(BackupError::NotEmpty { dir: dir.to_owned(), found: found.clone() });
    }
    let _lock = wal::lock(env, dir).map_err(|error| BackupError::written(&error))?;
    restored_from.begin(env, dir).map_err(BackupError::io("write into", dir))
}

fn write_state(
    env: &Env,
    dir: &Path,
    cluster: ClusterId,
    machine: &Machine,
    progress: Progress<'_>,
) -> Result<(), BackupError> {
    let folder = Folder::look(&env.disk, dir, cluster);
    let mut image = machine.image();
    let writer = folder.begin(image.head()).map_err(|error| BackupError::written(&error))?;
    super::recover::write(&mut image, writer, machine.reader().bytes(), PIECE_BYTES, progress)?;
    Ok(())
}

/// Writes a log that begins after the snapshot.
fn write_log(
    env: &Env,
    dir: &Path,
    identity: wal::Identity,
    segment_bytes: u64,
) -> Result<(), BackupError> {
    let options = wal::LogOptions { segment_bytes, reserve_bytes: 0, disk: None };
    let log = wal::open(env, dir, identity, options);
    let mut log = log.map_err(|error| BackupError::written(&error))?;
    let (index, term) = RESEEDED_AT;
    let group = wal::Group { base: Some(wal::Base { index, term }), ..wal::Group::default() };
    let committed = log.writer.commit(&[group]).map_err(|error| BackupError::written(&error))?;
    match committed.waiting {
        0 => Ok(()),
        _ => Err(BackupError::Unwritten(format!(
            "disk full: cannot write the log in {}",
            dir.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::KeyRange;
    use crate::sim::SimDisk;
    use crate::{Blocking, Node, testing};

    const KEYS: u64 = 5;

    /// Returns the bytes of a backup of a few keys.
    fn some_backup() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path().join("data"), "old")).block().unwrap();
        for key in 0..KEYS {
            node.client().put(format!("k{key}"), "v").block().unwrap();
        }
        node.backup(dir.path().join("backup")).block().unwrap();
        assert!(testing::shutdown(node).block().hanging.is_empty());
        std::fs::read(dir.path().join("backup")).unwrap()
    }

    /// Starts a node on the directory and returns its number of keys, or `None` if the start fails.
    fn start(config: &Config) -> Option<u64> {
        match Node::start(config.clone()).block() {
            Ok(node) => {
                let rows = node.client().range(KeyRange::all()).block().unwrap();
                assert!(testing::shutdown(node).block().hanging.is_empty());
                assert!(rows.revision.get() > REVISION_JUMP);
                Some(rows.count)
            }
            Err(error) => {
                let words = error.to_string();
                assert!(words.contains("remove the directory, and restore again"), "{words}");
                None
            }
        }
    }

    #[test]
    fn interrupted_restore_completes_fails_or_leaves_nothing() {
        let (backup, file) = (some_backup(), Path::new("/backup"));
        let (mut refused, mut nothing, mut whole) = (0, 0, 0);
        for steps in 0.. {
            let disk = Arc::new(SimDisk::new(steps));
            let env = Env { disk: Arc::clone(&disk) as _, ..Env::real() };
            disk.replace(file, &backup);
            let config = Config::new("/data", "new").log_segment_bytes(64 << 10).env(env.clone());
            disk.stop_after(steps);
            let restored = restore(file, &config, &RestoreOptions::default());
            match steps % 2 {
                0 => disk.crash(),
                _ => disk.kill(),
            }
            disk.clear_faults();
            let names = env.disk.list(Path::new("/data")).unwrap_or_default();
            let is_empty = names.iter().all(|name| name == wal::LOCK);
            if is_empty && restored.is_err() {
                nothing += 1;
                restore(file, &config, &RestoreOptions::default()).unwrap();
                assert_eq!(start(&config), Some(KEYS));
            } else if let Some(keys) = start(&config) {
                whole += 1;
                assert_eq!(keys, KEYS, "after {steps} steps");
            } else {
                refused += 1;
                assert!(restored.is_err(), "what was done is not there after {steps} steps");
                let again = restore(file, &config, &RestoreOptions::default()).unwrap_err();
                assert!(matches!(again, BackupError::Interrupted { .. }), "{again}");
            }
            if restored.is_ok() {
                break;
            }
        }
        assert!(nothing > 2 && refused > 10 && whole > 0, "{nothing}, {refused}, {whole}");
    }
}
