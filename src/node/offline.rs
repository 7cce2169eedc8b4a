//! What is in files while no node runs on them: the state in a snapshot or a backup, and all that a
//! stopped member has.
//!
//! Invariant: changes nothing.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::env::Env;
use crate::machine::{Machine, MachineOptions, Restore};
use crate::model::{ClusterId, Incarnation, LogIndex, Members, Revision, SnapshotId};
use crate::snapshot::{Folder, Reader, SnapshotError};
use crate::wal::{self, LogError};

use super::driver::apply_entry;

/// How many bytes of the log are read at a time.
const REPLAY_BYTES: usize = 4 << 20;

/// Why there is nothing to be had.
#[derive(Debug, Error)]
pub(crate) enum OfflineError {
    /// A snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Every byte is as it was written, and they are no state.
    #[error("{path}: {why}", path = path.display())]
    NoState { path: PathBuf, why: String },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log begins behind a snapshot that is not there.
    #[error(
        "the log begins behind entry {base}, and no snapshot that covers it can be read{damaged}"
    )]
    StateLost { base: LogIndex, damaged: String },
    /// An entry cannot be applied.
    #[error("{0}")]
    Entry(String),
    /// It has joined, and nothing has come.
    #[error(
        "the member has joined its cluster and stopped before it had the cluster's state: there is nothing in it"
    )]
    NoStateYet,
    /// There is no member that ever took part.
    #[error("the member has not founded or joined a cluster: there is nothing in it")]
    NotFounded,
}

/// How far a long piece of work is: so many of so many bytes or entries.
pub(crate) type Observer<'a> = &'a mut dyn FnMut(u64, u64);

/// The state in a snapshot file, whose file it is, and what names it. Every byte is checked.
///
/// # Errors
/// [`OfflineError`].
pub(crate) fn load_file(
    env: &Env,
    path: &Path,
    observe: Observer<'_>,
) -> Result<(ClusterId, SnapshotId, Machine), OfflineError> {
    let reader = Reader::open_received(&env.disk, path)?;
    let cluster = reader.cluster();
    let (id, machine) = load(reader, path, observe)?;
    Ok((cluster, id, machine))
}

fn load(
    mut reader: Reader,
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

/// A member on which no node runs: as long as this is there, none can.
pub(crate) struct Offline {
    env: Env,
    dir: PathBuf,
    log: wal::Examined,
}

/// All that a stopped member has.
pub(crate) struct Stopped {
    /// Its state with every entry of its log applied.
    pub(crate) machine: Machine,
    /// Its revision before the entries of which it does not know that they are committed.
    pub(crate) committed: Revision,
}

impl Offline {
    /// Takes a directory; `None` if there is no member in it.
    ///
    /// # Errors
    /// [`OfflineError::Log`]: a node runs on it, or it is damaged.
    pub(crate) fn open(env: &Env, dir: &Path) -> Result<Option<Self>, OfflineError> {
        let log = wal::examine(env, dir)?;
        Ok(log.map(|log| Self { env: env.clone(), dir: dir.to_owned(), log }))
    }

    /// Which member of which cluster it is.
    pub(crate) fn identity(&self) -> wal::Identity {
        self.log.identity
    }

    /// What its log knows.
    pub(crate) fn recovered(&self) -> &wal::Recovered {
        &self.log.recovered
    }

    /// Its log.
    pub(crate) fn reader(&self) -> &wal::LogReader {
        &self.log.reader
    }

    /// Where its snapshots are.
    pub(crate) fn snapshots(&self) -> Folder {
        Folder::look(&self.env.disk, &self.dir, self.log.identity.cluster)
    }

    /// All that it has: its newest sound snapshot, and its whole log.
    ///
    /// # Errors
    /// [`OfflineError`].
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
        // A snapshot that came from the leader may lie beyond a log that has gone another way.
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
        // No life has this number: nobody is answered.
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
