//! Reads files while no node uses them: the state in a snapshot or a backup, and everything that a stopped member
//! has.
//!
//! Invariant: changes nothing.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::env::Env;
use crate::machine::{Machine, MachineOptions, Restore};
use crate::model::{ClusterId, Incarnation, LogIndex, Members, Revision, SnapshotId};
use crate::snapshot::{Folder, SnapshotError, SnapshotReader};
use crate::wal::{self, LogError};

use crate::node::driver::apply_entry;

/// Number of bytes that replay reads from the log at a time.
const REPLAY_BYTES: usize = 4 << 20;

/// The reasons for which the files contain no usable state.
#[derive(Debug, Error)]
pub(crate) enum OfflineError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// All checksums of the file are right, but its content is not a valid state.
    #[error("{path} contains no valid state: {why}", path = path.display())]
    NoState { path: PathBuf, why: String },
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log begins after a snapshot that does not exist.
    #[error(
        "state lost: the log begins after entry {base}, and no readable snapshot covers it{damaged}"
    )]
    StateLost { base: LogIndex, damaged: String },
    #[error("cannot rebuild the state from the log: {0}")]
    Entry(String),
    /// The member has joined, and stopped before it received the state.
    #[error("no state: the member joined its cluster, but stopped before it received the state")]
    NoStateYet,
    /// The member never took part in a cluster.
    #[error("no state: the member has not founded or joined a cluster")]
    NotFounded,
}

/// Reports progress: the number of bytes or entries that are done, and the total.
pub(crate) type Observer<'a> = &'a mut dyn FnMut(u64, u64);

/// Loads a snapshot file, and checks every byte of it. Returns its cluster, its id, and the state.
///
/// # Errors
/// See [`OfflineError`].
pub(crate) fn load_file(
    env: &Env,
    path: &Path,
    observe: Observer<'_>,
) -> Result<(ClusterId, SnapshotId, Machine), OfflineError> {
    let reader = SnapshotReader::open_received(&env.disk, path)?;
    let cluster = reader.cluster();
    let (id, machine) = load(reader, path, observe)?;
    Ok((cluster, id, machine))
}

fn load(
    mut reader: SnapshotReader,
    path: &Path,
    observe: Observer<'_>,
) -> Result<(SnapshotId, Machine), OfflineError> {
    let none = |error: crate::machine::RestoreError| OfflineError::NoState {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let mut restore =
        Restore::new(MachineOptions::default(), reader.head().clone()).map_err(none)?;
    while let Some(piece) = reader.next()? {
        restore.add(piece).map_err(none)?;
        observe(reader.sound(), reader.bytes());
    }
    observe(reader.bytes(), reader.bytes());
    let id = reader.id().expect("it was read to its end");
    Ok((id, restore.finish().map_err(none)?))
}

/// A member that does not run. While this value exists, no node can start on its directory.
pub(crate) struct Offline {
    env: Env,
    dir: PathBuf,
    log: wal::Examined,
}

/// The data of a stopped member.
pub(crate) struct Stopped {
    /// The member's state, with every entry of its log applied.
    pub(crate) machine: Machine,
    /// The revision up to which the member's entries are known to be committed.
    pub(crate) committed: Revision,
}

impl Offline {
    /// Opens a directory. Returns `None` if the directory does not contain a member.
    ///
    /// # Errors
    /// [`OfflineError::Log`]: a node runs on the directory, or the log is damaged.
    pub(crate) fn open(env: &Env, dir: &Path) -> Result<Option<Self>, OfflineError> {
        let log = wal::examine(env, dir)?;
        Ok(log.map(|log| Self { env: env.clone(), dir: dir.to_owned(), log }))
    }

    pub(crate) fn identity(&self) -> wal::Identity {
        self.log.identity
    }

    pub(crate) fn recovered(&self) -> &wal::Recovered {
        &self.log.recovered
    }

    pub(crate) fn reader(&self) -> &wal::LogReader {
        &self.log.reader
    }

    pub(crate) fn snapshots(&self) -> Folder {
        Folder::look(&self.env.disk, &self.dir, self.log.identity.cluster)
    }

    /// Loads its newest sound snapshot and applies its whole log.
    ///
    /// # Errors
    /// See [`OfflineError`].
    pub(crate) fn state(&self, observe: Observer<'_>) -> Result<Stopped, OfflineError> {
        let wal::Recovered { base, last, hard_state, founding, .. } = self.recovered();
        let founders = founding.as_ref().ok_or(OfflineError::NotFounded)?;
        let mut machine = self.newest(base.index, observe)?;
        if machine.members().rows().is_empty() {
            machine.found(Members::founded(founders));
        }
        let begin = machine.applied();
        let commit = hard_state.commit.max(begin);
        self.apply(&mut machine, commit, (begin, *last), observe)?;
        machine.publish();
        let committed = machine.revision();
        // A snapshot from the leader may be newer than the log. The entries in the log may then
        // conflict with the snapshot and are ignored.
        if self.log.reader.term(begin) == Some(machine.term()) || machine.applied() > begin {
            self.apply(&mut machine, *last, (begin, *last), observe)?;
            machine.publish();
        }
        if !machine.members().has_minted(self.identity().node) {
            return Err(OfflineError::NoStateYet);
        }
        Ok(Stopped { machine, committed })
    }

    fn newest(&self, base: LogIndex, observe: Observer<'_>) -> Result<Machine, OfflineError> {
        let (folder, mut damaged) = (self.snapshots(), String::new());
        for found in folder.list()?.into_iter().filter(|found| found.index >= base) {
            let read = folder.read(&found).map_err(OfflineError::from);
            match read.and_then(|reader| load(reader, &found.path, observe)) {
                Ok((_, machine)) => return Ok(machine),
                Err(error) => damaged = format!("{damaged}; {error}"),
            }
        }
        match base {
            LogIndex(1) => Ok(Machine::new(MachineOptions::default())),
            base => Err(OfflineError::StateLost { base, damaged }),
        }
    }

    fn apply(
        &self,
        machine: &mut Machine,
        up_to: LogIndex,
        (begin, last): (LogIndex, LogIndex),
        observe: Observer<'_>,
    ) -> Result<(), OfflineError> {
        let mut next = machine.applied().next();
        // No incarnation has this number, so no replies to requests are kept.
        machine.answer_only(self.identity().node, Incarnation(0));
        while next <= up_to.min(last) {
            for entry in self.log.reader.entries(next, up_to.min(last).next(), REPLAY_BYTES)? {
                next = entry.index.next();
                apply_entry(machine, entry)
                    .map_err(|fault| OfflineError::Entry(fault.to_string()))?;
            }
            machine.publish();
            let done = next.get().saturating_sub(begin.next().get());
            observe(done, last.get().saturating_sub(begin.get()));
        }
        Ok(())
    }
}
