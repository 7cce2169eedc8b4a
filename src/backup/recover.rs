//! A backup of what a stopped member has: all that is left, when the others are lost.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::env::{Env, OpenMode};
use crate::machine::Image;
use crate::model::{ClusterId, LogIndex, NodeId, Revision, SnapshotId, Term};
use crate::node::{Offline, RestoredFrom, Stopped};
use crate::snapshot::{Folder, Writer};

use super::{BackupError, Progress};

/// What of a state is written at a time, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// What was recovered: a backup, and what is to be known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// The file.
    pub file: PathBuf,
    /// Names the file exactly.
    pub id: SnapshotId,
    /// The cluster that the member belonged to.
    pub cluster: ClusterId,
    /// How many keys there are.
    pub keys: u64,
    /// What may be lost. Show it to whoever decides.
    pub warning: LossWarning,
}

/// What nobody can know who has one member of a cluster, and not the majority. Its words name it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LossWarning {
    /// The member.
    pub member: NodeId,
    /// Its name; empty if it never announced itself.
    pub name: String,
    /// The last entry in its log.
    pub last: LogIndex,
    /// The term of that entry. Of several members, the one with the highest term, and among those the one
    /// with the highest entry, has lost the least.
    pub term: Term,
    /// The revision that this entry leads to.
    pub revision: Revision,
    /// The last entry of which it knows that a majority had it.
    pub committed: LogIndex,
    /// The revision that this one leads to.
    pub committed_revision: Revision,
}

impl fmt::Display for LossWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, name, last, term, revision, committed, committed_revision } = self;
        writeln!(
            f,
            "this is what member {member} ({name:?}) has, and not what a majority has agreed on:"
        )?;
        writeln!(
            f,
            "- its log ends with entry {last} of term {term}, revision {revision}: what the others \
             acknowledged after that is missing, if there was anything"
        )?;
        if last > committed {
            write!(
                f,
                "- it does not know that entries {} to {last} (revisions after {committed_revision}, up to \
                 {revision}) were agreed on: they are in the backup, even if nobody was ever told that \
                 they had been written",
                committed.next()
            )
        } else {
            write!(
                f,
                "- all of it had been agreed on: nothing is in it that was never acknowledged"
            )
        }
    }
}

/// Writes a backup of everything that a stopped member has, up to the last entry of its log. The directory
/// is not changed. While a majority of the members is left, do not: replace those that are lost.
///
/// # Errors
/// [`BackupError`]; there is no file then.
pub fn recover(dir: impl AsRef<Path>, file: impl AsRef<Path>) -> Result<Recovered, BackupError> {
    recover_with(dir, file, &mut |_, _| {})
}

/// As [`recover`], telling how far it is: in bytes of the snapshot, in entries of the log, in bytes written.
///
/// # Errors
/// As [`recover`].
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

/// Writes a state to a file, and reads it back.
pub(super) fn write(
    image: &mut Image,
    mut writer: Writer,
    state_bytes: u64,
    piece_bytes: usize,
    progress: Progress<'_>,
) -> Result<SnapshotId, BackupError> {
    while let Some(piece) = image.next(piece_bytes).map_err(|error| BackupError::written(&error))? {
        writer.write(&piece).map_err(|error| BackupError::written(&error))?;
        // The file is about as long as the state is large.
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
