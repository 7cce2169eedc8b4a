//! The writer of a snapshot file, one chunk per call.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::Chunks;
use super::{Check, SnapshotError};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, SnapshotRecord, StateHead};

/// Number of bytes after which the file is synced while it is being written. Syncing the whole file
/// at the end would delay the syncs of the log on the same disk.
pub(super) const SYNC_BYTES: u64 = 4 << 20;

/// A snapshot that is being written, under a temporary name. If the writer is dropped before the
/// file is complete, the file is removed.
pub(crate) struct Writer {
    temporary: Temporary,
    path: PathBuf,
    file: Box<dyn File>,
    chunks: Chunks,
    offset: u64,
    synced: u64,
}

impl Writer {
    /// Creates the file that will be renamed to `path` when it is complete. Until then its name is
    /// `path` with `ending` and `.writing` appended. An existing file with the temporary name is
    /// replaced.
    ///
    /// # Errors
    /// Fails if the disk returns an error or is full.
    pub(super) fn create(
        disk: &Arc<dyn Disk>,
        path: &Path,
        ending: &str,
        cluster: ClusterId,
        head: &StateHead,
    ) -> Result<Self, SnapshotError> {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        name.push(".writing");
        let temporary = Temporary::take(disk, name.into())?;
        let file = disk
            .open(&temporary.path, OpenMode::CreateNew)
            .map_err(SnapshotError::io("create", &temporary.path))?;
        let (chunks, begin) = Chunks::begin(cluster, head);
        let path = path.to_owned();
        let mut writer = Self { temporary, path, file, chunks, offset: 0, synced: 0 };
        writer.append(&begin)?;
        Ok(writer)
    }

    /// Writes the next piece.
    ///
    /// # Errors
    /// Fails if the disk returns an error or is full. The caller must then drop the writer.
    pub(crate) fn write(&mut self, record: &SnapshotRecord) -> Result<(), SnapshotError> {
        let bytes = self.chunks.record(record);
        self.append(&bytes)
    }

    /// Returns the number of bytes written.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Completes the file and makes it durable, still under its temporary name. The returned check
    /// renames the file.
    ///
    /// # Errors
    /// Fails if the disk returns an error or is full.
    pub(crate) fn seal(mut self) -> Result<Check, SnapshotError> {
        let (bytes, id) = self.chunks.end();
        self.append(&bytes)?;
        if !mutant!(M19) {
            self.sync()?;
        }
        Check::begin(self.temporary, self.path, id)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let path = &self.temporary.path;
        self.file.write_all_at(bytes, self.offset).map_err(SnapshotError::io("write", path))?;
        self.offset += bytes.len() as u64;
        if self.offset - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SnapshotError> {
        self.file.sync_data().map_err(SnapshotError::io("sync", &self.temporary.path))?;
        self.synced = self.offset;
        Ok(())
    }
}

/// A file under a temporary name. Dropping this value removes the file, unless the file was
/// renamed.
pub(super) struct Temporary {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
    /// Whether the file is removed on drop.
    pub(super) armed: bool,
}

impl Temporary {
    /// Claims the temporary name, and removes an existing file with that name.
    fn take(disk: &Arc<dyn Disk>, path: PathBuf) -> Result<Self, SnapshotError> {
        match disk.remove(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(SnapshotError::io("remove", &path)(error)),
        }
        Ok(Self { disk: Arc::clone(disk), path, armed: true })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.armed {
            // A file that cannot be removed now is removed at the next start.
            let _ = self.disk.remove(&self.path);
        }
    }
}
