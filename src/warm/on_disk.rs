//! The store of a warm copy on disk, based on sled 0.34. No other file uses sled.
//!
//! Known properties of sled, and their consequences (see docs/decisions/warm-copy.md for
//! measurements):
//!
//! - Data after `flush` survives the death of the process but not a power cut. Therefore a store is
//!   trusted after a power cut only if the store was closed properly before. Closing a store
//!   includes that this module syncs every file.
//! - Sled panics on files that it cannot interpret. Therefore the panics of every call are caught
//!   (`super::guard`).
//! - Writing a record takes tens of microseconds, almost independent of its size. Therefore one
//!   record contains a page of many rows.
//! - The file of a sled database never shrinks. Therefore a copy that has grown too large is
//!   replaced by a new copy in another directory.
//! - Sled's own flush thread is disabled, because the worker of the warm copy calls `flush` itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::store::{CopyBatch, CopyStore, Store, StoreError, Visit};
use crate::env::{Disk, OpenMode};

/// Size limit of sled's cache in bytes. Sled uses several times more than this limit. The limit is
/// small because a cache is useless here: a copy is written once and read once.
const CACHE_BYTES: u64 = 8 << 20;

/// Stores on the disk of this machine.
pub(crate) struct DiskShelf {
    disk: Arc<dyn Disk>,
}

impl DiskShelf {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk }
    }
}

impl CopyStore for DiskShelf {
    fn open(&self, dir: &Path) -> Result<Box<dyn Store>, StoreError> {
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .mode(sled::Mode::HighThroughput)
            .flush_every_ms(None);
        let db = config.open()?;
        Ok(Box::new(DiskStore { db, disk: Arc::clone(&self.disk), dir: dir.to_owned() }))
    }

    fn holds(&self, dir: &Path) -> bool {
        self.disk.list(dir).is_ok()
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        self.disk.remove_dir(dir)
    }

    fn list(&self, parent: &Path) -> io::Result<Vec<PathBuf>> {
        match self.disk.list(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => Ok(names?.iter().map(|name| parent.join(name)).collect()),
        }
    }
}

struct DiskStore {
    db: sled::Db,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

impl Store for DiskStore {
    fn apply(&mut self, batch: CopyBatch) -> Result<(), StoreError> {
        let mut changes = sled::Batch::default();
        for (key, value) in batch.into_sorted() {
            match value {
                Some(value) => changes.insert(key, value),
                None => changes.remove(key),
            }
        }
        Ok(self.db.apply_batch(changes)?)
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.db.get(key)?.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(
        &mut self,
        first: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Visit,
    ) -> Result<(), StoreError> {
        for record in self.db.range(first..) {
            let (key, value) = record?;
            if visit(&key, &value) == Visit::Enough {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.db.flush()?;
        Ok(())
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.db.size_on_disk()?)
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        let Self { db, disk, dir } = *self;
        db.flush()?;
        drop(db);
        sync_all(&*disk, &dir)
    }
}

/// Syncs every file in `dir` and the directory. sled keeps large records in a subdirectory.
fn sync_all(disk: &dyn Disk, dir: &Path) -> Result<(), StoreError> {
    for name in disk.list(dir)? {
        let path = dir.join(name);
        if disk.list(&path).is_ok() {
            sync_all(disk, &path)?;
        } else {
            disk.open(&path, OpenMode::Write)?.sync_data()?;
        }
    }
    Ok(disk.sync_dir(dir)?)
}

impl From<sled::Error> for StoreError {
    fn from(error: sled::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
