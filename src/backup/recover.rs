//! Makes a backup from the data directory of a stopped member, for the case that a majority of the
//! members is lost.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::env::{Env, OpenMode};
use crate::machine::Image;
use crate::model::{ClusterId, LogIndex, NodeId, Revision, SnapshotId, Term};
use crate::node::{Offline, RestoredFrom, Stopped};
use crate::snapshot::{Folder, Writer};

use super::{BackupError, Progress};

/// Size of the chunks in which the state is written, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// The result of a recovery: a backup, and a warning about writes that the backup may lack.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// Path of the backup.
    pub file: PathBuf,
    /// Id of the backup file. Files with different contents have different ids.
    pub id: SnapshotId,
    /// Id of the cluster that the member belonged to.
    pub cluster: ClusterId,
    /// Number of keys.
    pub keys: u64,
    /// A description of the possible losses. Show this description to the operator who decides
    /// whether to use the backup.
    pub warning: LossWarning,
}

/// A warning that the backup may lack committed writes, or contain writes that were never
/// committed. The data of one member alone does not show which writes the cluster committed. The
/// `Display` text of the warning explains the risk.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LossWarning {
    /// Id of the member.
    pub member: NodeId,
    /// Name of the member. Empty if the member never announced its name.
    pub name: String,
    /// Index of the last entry in the member's log.
    pub last: LogIndex,
    /// Term of the last entry in the member's log. If several members are available, use the member
    /// with the highest term and, among those, the highest index, because it has lost the least.
    pub term: Term,
    /// The revision after the last entry was applied.
    pub revision: Revision,
    /// Highest index that the member knows to be committed.
    pub committed: LogIndex,
    /// The revision after the entry at `committed` was applied.
    pub committed_revision: Revision,
}

impl fmt::Display for LossWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, name, last, term, revision, committed, committed_revision } = self;
        writeln!(
            f,
            "this backup contains the data of member {member} ({name:?}), which may differ from what a \
             majority has committed:"
        )?;
        writeln!(
            f,
            "- its log ends with entry {last} of term {term}, revision {revision}: any later write that the \
             other members acknowledged is missing"
        )?;
        if last > committed {
            write!(
                f,
                "- it does not know whether entries {} to {last} (revisions after {committed_revision}, up to \
                 {revision}) were committed: they are in the backup, although their clients may have received \
                 no reply or an error",
                committed.next()
            )
        } else {
            write!(
                f,
                "- all entries in its log were committed: the backup contains no uncommitted write"
            )
        }
    }
}

/// Writes a backup of the state of a stopped member, including all entries of its log. The
/// directory is not changed. Do not use this if a majority of the members is left; replace the lost
/// members instead.
///
/// # Errors
/// Returns a [`BackupError`]. In case of an error, no file remains.
pub fn recover(dir: impl AsRef<Path>, file: impl AsRef<Path>) -> Result<Recovered, BackupError> {
    recover_with(dir, file, &mut |_, _| {})
}

/// Does the same as [`recover`], and reports the progress: first in bytes of the snapshot, then in
/// entries of the log, and then in written bytes.
///
/// # Errors
/// Same as [`recover`].
pub fn recover_with(
    dir: impl AsRef<Path>,
    file: impl AsRef<Path>,
    progress: Progress<'_>,
) -> Result<Recovered, BackupError> {
    let (env, dir, file) = (Env::real(), dir.as_ref(), file.as_ref());
    match env.disk.open(file, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return Err(BackupError::Exists { file: file.to_owned() }),
    }
    RestoredFrom::of(&env, dir)?;
    let offline = Offline::open(&env, dir)?;
    let offline = offline.ok_or_else(|| BackupError::NoMember { dir: dir.to_owned() })?;
    let Stopped { machine, committed: committed_revision } = offline.state(progress)?;
    let cluster = offline.identity().cluster;
    let mut image = machine.image();
    let folder = Folder::look(&env.disk, dir, cluster);
    let writer = folder.begin_at(file, offline.recovered().disk, image.head());
    let writer = writer.map_err(|error| BackupError::written(&error))?;
    let id = write(&mut image, writer, machine.reader().bytes(), PIECE_BYTES, progress)?;

    let member = offline.identity().node;
    let row = machine.members().get(member);
    let (last, term) = (machine.applied(), machine.term());
    let warning = LossWarning {
        member,
        name: row.map(|row| row.name.clone()).unwrap_or_default(),
        last,
        term,
        revision: machine.revision(),
        committed: offline.recovered().hard_state.commit.min(last),
        committed_revision,
    };
    let keys = machine.reader().keys();
    Ok(Recovered { file: file.to_owned(), id, cluster, keys, warning })
}

/// Writes a state to a file and reads it back to verify it.
pub(super) fn write(
    image: &mut Image,
    mut writer: Writer,
    state_bytes: u64,
    piece_bytes: usize,
    progress: Progress<'_>,
) -> Result<SnapshotId, BackupError> {
    while let Some(piece) = image.next(piece_bytes).map_err(|error| BackupError::written(&error))? {
        writer.write(&piece).map_err(|error| BackupError::written(&error))?;
        // The total is an estimate: the file is about as large as the state in memory.
        progress(writer.bytes().min(state_bytes), state_bytes);
    }
    progress(state_bytes, state_bytes);
    let mut check = writer.seal().map_err(|error| BackupError::written(&error))?;
    loop {
        if let Some(id) = check.step().map_err(|error| BackupError::written(&error))? {
            return Ok(id);
        }
    }
}
