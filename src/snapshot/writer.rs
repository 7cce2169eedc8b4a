//! Writing a snapshot to a file, one chunk a call.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::Chunks;
use super::{Check, SnapshotError};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, SnapshotRecord, StateHead};
use crate::mutant::{self, Mutant};

/// After so many bytes the file is synced on the way: a sync of everything at its end would make the
/// syncs of the log wait, as they share a disk.
pub(super) const SYNC_BYTES: u64 = 4 << 20;

/// A snapshot that is being written, under a name of its own. Dropped before it is whole, it is
/// removed.
pub(crate) struct Writer {
    temporary: Temporary,
    path: PathBuf,
    file: Box<dyn File>,
    chunks: Chunks,
    offset: u64,
    synced: u64,
}

impl Writer {
    /// Begins the file that will be called `path`. Until it is whole it is called the same with `ending`
    /// and `.writing` behind it; what has that name is replaced.
    ///
    /// # Errors
    /// The disk refuses, or is full.
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
    /// The disk refuses, or is full: drop the writer.
    pub(crate) fn write(&mut self, record: &SnapshotRecord) -> Result<(), SnapshotError> {
        let bytes = self.chunks.record(record);
        self.append(&bytes)
    }

    /// How many bytes are written.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Ends the file and makes it durable, still under its temporary name. It has its own once the
    /// check is done.
    ///
    /// # Errors
    /// The disk refuses, or is full.
    pub(crate) fn seal(mut self) -> Result<Check, SnapshotError> {
        let (bytes, id) = self.chunks.end();
        self.append(&bytes)?;
        if !mutant::is(Mutant::M19) {
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

/// A file under a name that it will not keep. Removed when dropped, unless it was renamed.
pub(super) struct Temporary {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
    /// Whether it is to be removed.
    pub(super) armed: bool,
}

impl Temporary {
    /// Takes the name, and removes what has it.
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
            // What stays is removed at the next start.
            let _ = self.disk.remove(&self.path);
        }
    }
}
