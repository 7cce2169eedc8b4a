//! A snapshot that comes in parts from another member.
//!
//! Parts are appended in order, each at the offset where the last one ended. Within one life of the
//! process nothing is fetched twice. After a crash nobody knows which of the written bytes are there:
//! then the file goes on behind its last whole chunk, which the chain of checksums tells.

use std::path::PathBuf;
use std::sync::Arc;

use super::SnapshotError;
use super::reader::{Check, Reader};
use super::writer::{SYNC_BYTES, Temporary};
use crate::env::{Disk, File, OpenMode};
use crate::model::{ClusterId, SnapshotId};

/// See the module. It outlives a restart; it is removed when it turns out to be damaged, or when
/// another snapshot is received or kept instead.
pub(crate) struct Partial {
    temporary: Temporary,
    path: PathBuf,
    file: Box<dyn File>,
    cluster: ClusterId,
    id: SnapshotId,
    length: u64,
    synced: u64,
}

/// What became of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Appended {
    /// It is written.
    Written,
    /// It does not begin where the file ends, or goes beyond the snapshot's end: ask for what comes
    /// at [`Partial::length`].
    Elsewhere,
    /// The disk is full. It does not count; the same may be tried again when there is room.
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

    /// Removes what is here of it.
    pub(crate) fn discard(mut self) {
        self.temporary.armed = true;
    }

    /// How many bytes are here: where the next part begins.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Whether everything is here.
    pub(crate) fn is_complete(&self) -> bool {
        self.length == self.id.bytes
    }

    /// Appends a part.
    ///
    /// # Errors
    /// The disk refuses: drop the file, and receive it anew.
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
                // Where it cannot be written, another file may find a better place.
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

    /// Makes the complete file durable, to be checked and renamed. If it is damaged it is removed,
    /// and to be received anew.
    ///
    /// # Errors
    /// The disk refuses, the file is not complete, damaged, or another cluster's.
    pub(crate) fn seal(mut self) -> Result<Check, SnapshotError> {
        if !self.is_complete() {
            let (path, offset) = (self.temporary.path.clone(), self.length);
            let why = format!("{} bytes of {} are here", self.length, self.id.bytes);
            return Err(SnapshotError::Damaged { path, offset, why });
        }
        self.sync()?;
        // From here on it is whole, or of no use.
        self.temporary.armed = true;
        let check = Check::begin(self.temporary, self.path, self.id)?;
        check.expect_cluster(self.cluster)?;
        Ok(check)
    }

    fn sync(&mut self) -> Result<(), SnapshotError> {
        self.file.sync_data().map_err(|error| {
            // Nobody knows what is in it now.
            self.temporary.armed = true;
            SnapshotError::io("sync", &self.temporary.path)(error)
        })?;
        self.synced = self.length;
        Ok(())
    }
}

/// Up to where a file that was left behind is what it should be. What cannot be read is received anew.
fn sound(disk: &Arc<dyn Disk>, path: &std::path::Path, cluster: ClusterId, id: SnapshotId) -> u64 {
    let Ok(mut reader) = Reader::open(disk, path) else { return 0 };
    let head = reader.head();
    if reader.cluster() != cluster || (head.index, head.term) != (id.index, id.term) {
        return 0;
    }
    while let Ok(true) = reader.pass() {}
    // Another file could be longer; its end would not be this one's.
    if reader.sound() > id.bytes { 0 } else { reader.sound() }
}
