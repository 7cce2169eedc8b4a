//! The file that records the backup from which a directory was restored.
//!
//! ```text
//!   restore begins      RESTORING    a node does not start
//!   restore is done     RESTORED     stays, and is part of the identity of the cluster
//! ```
//!
//! A restored cluster must not be confused with the original cluster or with another restore.
//! Therefore the cluster id of the restored cluster is derived from the identity of the backup.
//! This file stores that identity, because the cluster id is compared with the configuration at
//! each start.

use std::io;
use std::path::{Path, PathBuf};

use crate::env::{Env, OpenMode};
use crate::model::{ClusterId, LogIndex, SnapshotId, Term};

/// Name of the file during a restore.
pub(crate) const RESTORING: &str = "RESTORING";

/// Name of the file after the restore.
const RESTORED: &str = "RESTORED";

const MAGIC: [u8; 8] = *b"bowlseed";
const FORMAT: u32 = 1;
const BYTES: usize = 72;

/// The backup from which a cluster was restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RestoredFrom {
    /// The cluster from which the backup was taken.
    pub(crate) cluster: ClusterId,
    pub(crate) backup: SnapshotId,
    /// Number by which revisions were raised.
    pub(crate) revision_jump: u64,
}

/// The reasons for which the file that records the restored backup cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginError {
    #[error(
        "a restore into {dir} was interrupted: remove the directory, and restore again",
        dir = dir.display()
    )]
    Interrupted { dir: PathBuf },
    #[error("cannot read {path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} is damaged: if the cluster has never run, remove the directory and restore this member from \
         the same backup; otherwise replace the member",
        path = path.display()
    )]
    Damaged { path: PathBuf },
    #[error(
        "{path}: format version {found} is newer than this build supports ({max}); upgrade this node",
        path = path.display(),
        max = FORMAT
    )]
    Newer { path: PathBuf, found: u32 },
}

impl RestoredFrom {
    /// Reads from which backup a directory was restored. Returns `None` if the directory was not
    /// restored from a backup.
    ///
    /// # Errors
    /// See [`OriginError`].
    pub(crate) fn of(env: &Env, dir: &Path) -> Result<Option<Self>, OriginError> {
        let there = |name: &str| match env.disk.open(&dir.join(name), OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        };
        let io = |name: &str| {
            let path = dir.join(name);
            move |source| OriginError::Io { path, source }
        };
        if there(RESTORING).map_err(io(RESTORING))?.is_some() {
            return Err(OriginError::Interrupted { dir: dir.to_owned() });
        }
        let Some(file) = there(RESTORED).map_err(io(RESTORED))? else { return Ok(None) };
        let path = dir.join(RESTORED);
        let mut bytes = [0; BYTES];
        if file.len().map_err(io(RESTORED))? != BYTES as u64 {
            return Err(OriginError::Damaged { path });
        }
        file.read_exact_at(&mut bytes, 0).map_err(io(RESTORED))?;
        Self::decode(&bytes, path).map(Some)
    }

    /// Records that a restore into the directory has begun. On return the record is durable.
    pub(crate) fn begin(&self, env: &Env, dir: &Path) -> io::Result<()> {
        let file = env.disk.open(&dir.join(RESTORING), OpenMode::CreateNew)?;
        file.write_all_at(&self.encode(), 0)?;
        file.sync_data()?;
        env.disk.sync_dir(dir)
    }

    /// Records that the restore is complete. On return the record is durable.
    pub(crate) fn end(env: &Env, dir: &Path) -> io::Result<()> {
        env.disk.rename(&dir.join(RESTORING), &dir.join(RESTORED))?;
        env.disk.sync_dir(dir)
    }

    /// Returns a text that identifies the backup, to be hashed into the cluster id.
    pub(crate) fn words(&self) -> String {
        let Self { cluster, backup: SnapshotId { index, term, bytes, checksum }, .. } = self;
        let cluster = cluster.0;
        format!("{cluster:032x} {index} {term} {bytes} {checksum:016x} {}", self.revision_jump)
    }

    fn encode(&self) -> [u8; BYTES] {
        let SnapshotId { index, term, bytes: length, checksum } = self.backup;
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&self.cluster.0.to_le_bytes());
        for number in [index.get(), term.get(), length, checksum, self.revision_jump] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        bytes.try_into().expect("8, 4, 16, 40 and 4 bytes")
    }

    fn decode(bytes: &[u8; BYTES], path: PathBuf) -> Result<Self, OriginError> {
        let number = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of 72"))
        };
        let small =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes of 72"));
        match small(8) {
            _ if bytes[..8] != MAGIC => return Err(OriginError::Damaged { path }),
            found if found > FORMAT => return Err(OriginError::Newer { path, found }),
            FORMAT if small(BYTES - 4) == crc32fast::hash(&bytes[..BYTES - 4]) => {}
            _ => return Err(OriginError::Damaged { path }),
        }
        let cluster = ClusterId(u128::from(number(12)) | u128::from(number(20)) << 64);
        let (index, term) = (LogIndex(number(28)), Term(number(36)));
        let backup = SnapshotId { index, term, bytes: number(44), checksum: number(52) };
        Ok(Self { cluster, backup, revision_jump: number(60) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sim::SimDisk;

    fn restored_from() -> RestoredFrom {
        let backup = SnapshotId {
            index: LogIndex(7),
            term: Term(3),
            bytes: 1 << 33,
            checksum: u64::MAX - 5,
        };
        RestoredFrom { cluster: ClusterId(u128::MAX / 3), backup, revision_jump: 1_000_000_000 }
    }

    #[test]
    fn restore_record_round_trips_and_detects_flipped_bits() {
        let disk = Arc::new(SimDisk::new(1));
        let env = Env { disk: Arc::clone(&disk) as _, ..Env::real() };
        let dir = Path::new("/d");
        env.disk.create_dir(dir).unwrap();
        assert_eq!(RestoredFrom::of(&env, dir).unwrap(), None);
        restored_from().begin(&env, dir).unwrap();
        let error = RestoredFrom::of(&env, dir).unwrap_err().to_string();
        assert!(error.contains("remove the directory, and restore again"), "{error}");
        RestoredFrom::end(&env, dir).unwrap();
        disk.crash();
        assert_eq!(RestoredFrom::of(&env, dir).unwrap(), Some(restored_from()));
        for bit in 0..BYTES * 8 {
            disk.flip_bit(&dir.join(RESTORED), bit);
            assert!(RestoredFrom::of(&env, dir).is_err(), "bit {bit}");
            disk.flip_bit(&dir.join(RESTORED), bit);
        }
    }
}
