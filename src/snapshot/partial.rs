//! A snapshot that is received in parts from another member.
//!
//! Each part is appended where the previous part ended. Until a restart of this node, no part is
//! fetched twice. After a crash, it is unknown which of the written bytes are on disk. The transfer
//! then continues after the last complete chunk of the file, which the chain of checksums
//! identifies.

use std::path::PathBuf;
use std::sync::Arc;

use super::SnapshotError;
use super::reader::{Check, SnapshotReader};
use super::writer::{SYNC_BYTES, Temporary};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, SnapshotId};

/// A partially received snapshot. See the module page. The file of the partial snapshot survives a
/// restart. The file is removed if it is found to be damaged, or when the node receives or keeps
/// another snapshot instead.
pub(crate) struct Partial {
    temporary: Temporary,
    path: PathBuf,
    file: Box<dyn File>,
    cluster: ClusterId,
    id: SnapshotId,
    length: u64,
    synced: u64,
}

/// The result of appending a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Appended {
    /// The part was written.
    Written,
    /// The part does not start at the end of the file, or exceeds the length of the snapshot. The
    /// caller must request the part at [`Partial::length`].
    Elsewhere,
    /// The disk is full. The part was not appended. The call may be retried once there is free
    /// space.
    NoRoom,
}

impl Partial {
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        temporary: PathBuf,
        path: PathBuf,
        cluster: ClusterId,
        id: SnapshotId,
    ) -> Result<Self, SnapshotError> {
        let (file, length) = match disk.open(&temporary, OpenMode::Write) {
            Ok(file) => (file, sound(disk, &temporary, cluster, id)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let file = disk
                    .open(&temporary, OpenMode::CreateNew)
                    .map_err(SnapshotError::io("create", &temporary))?;
                (file, 0)
            }
            Err(error) => return Err(SnapshotError::io("open", &temporary)(error)),
        };
        let temporary = Temporary { disk: Arc::clone(disk), path: temporary, armed: false };
        Ok(Self { temporary, path, file, cluster, id, length, synced: length })
    }

    pub(crate) fn discard(mut self) {
        self.temporary.armed = true;
    }

    /// Returns the number of bytes received, which is the offset of the next part.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns whether all bytes are received.
    pub(crate) fn is_complete(&self) -> bool {
        self.length == self.id.bytes
    }

    /// Appends a part.
    ///
    /// # Errors
    /// Returns an error of the disk. The caller must drop the file and receive it again.
    pub(crate) fn append(&mut self, offset: u64, data: &[u8]) -> Result<Appended, SnapshotError> {
        let end = offset.checked_add(data.len() as u64);
        let fits = end.is_some_and(|end| end <= self.id.bytes);
        if offset != self.length || !fits {
            return Ok(Appended::Elsewhere);
        }
        let path = &self.temporary.path;
        let written = self.file.write_all_at(data, offset);
        match written.map_err(SnapshotError::io("write", path)) {
            Ok(()) => {}
            Err(SnapshotError::NoSpace { .. }) => return Ok(Appended::NoRoom),
            Err(error) => {
                // If writing fails, remove the file. The next attempt creates a new file, which may
                // be stored in an intact area of the disk.
                self.temporary.armed = true;
                return Err(error);
            }
        }
        self.length += data.len() as u64;
        if self.length - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(Appended::Written)
    }

    /// Makes the complete file durable, to be checked and renamed. A damaged file is removed and
    /// must be received again.
    ///
    /// # Errors
    /// Fails if the disk returns an error, or if the file is incomplete, damaged or belongs to
    /// another cluster.
    pub(crate) fn seal(mut self) -> Result<Check, SnapshotError> {
        if !self.is_complete() {
            let (path, offset) = (self.temporary.path.clone(), self.length);
            let why = format!("only {} of {} bytes were received", self.length, self.id.bytes);
            return Err(SnapshotError::Damaged { path, offset, why });
        }
        self.sync()?;
        // From here on, the file is removed unless it proves to be complete and valid.
        self.temporary.armed = true;
        let check = Check::begin(self.temporary, self.path, self.id)?;
        check.expect_cluster(self.cluster)?;
        Ok(check)
    }

    fn sync(&mut self) -> Result<(), SnapshotError> {
        self.file.sync_data().map_err(|error| {
            // After a failed sync, the contents of the file are unknown, so the file must be
            // removed.
            self.temporary.armed = true;
            SnapshotError::io("sync", &self.temporary.path)(error)
        })?;
        self.synced = self.length;
        Ok(())
    }
}

/// Returns the length of the valid prefix of a file that was left behind. An unreadable file is
/// received again from the start.
fn sound(disk: &Arc<dyn Disk>, path: &std::path::Path, cluster: ClusterId, id: SnapshotId) -> u64 {
    let Ok(mut reader) = SnapshotReader::open(disk, path) else { return 0 };
    let head = reader.head();
    if reader.cluster() != cluster || (head.index, head.term) != (id.index, id.term) {
        return 0;
    }
    while let Ok(true) = reader.pass() {}
    // If the file is longer than the snapshot, it belongs to another snapshot, so its prefix is not
    // used.
    if reader.sound() > id.bytes { 0 } else { reader.sound() }
}
