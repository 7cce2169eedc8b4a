//! The storage interface of a copy: a key-value store with atomic batches.
//!
//! A [`CopyStore`] creates and removes stores, each in a directory of its own. No store interprets
//! its records. The requirements on a store are low: it may lose data at any time, fail, or panic,
//! because every record that it returns is verified.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use thiserror::Error;

/// A key-value store with the records of one copy.
pub(crate) trait Store: Send {
    /// Applies all changes of the batch or none of them.
    fn apply(&mut self, batch: CopyBatch) -> Result<(), StoreError>;

    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Passes every record from `first` on to `visit`, in key order, until `visit` stops the scan.
    fn scan(
        &mut self,
        first: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Visit,
    ) -> Result<(), StoreError>;

    /// Passes all writes to the operating system, so that they survive the end of the process. The
    /// writes need not survive a reboot.
    fn flush(&mut self) -> Result<(), StoreError>;

    /// Returns the space that the store takes on disk, in bytes.
    fn disk_bytes(&self) -> Result<u64, StoreError>;

    /// Writes and syncs all data, so that it also survives a reboot.
    fn close(self: Box<Self>) -> Result<(), StoreError>;
}

/// Whether a scan continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    On,
    Enough,
}

/// Creates and removes stores.
pub(crate) trait CopyStore: Send + Sync {
    /// Opens the store in `dir`. If there is no store, creates an empty one.
    fn open(&self, dir: &Path) -> Result<Box<dyn Store>, StoreError>;

    /// Returns whether there is a store in `dir`.
    fn holds(&self, dir: &Path) -> bool;

    /// Removes the store in `dir` with all its contents. Succeeds if there is none.
    fn remove(&self, dir: &Path) -> io::Result<()>;

    /// Returns the directories of the stores in `parent`.
    fn list(&self, parent: &Path) -> io::Result<Vec<PathBuf>>;
}

/// Changes that are applied together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct CopyBatch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl CopyBatch {
    pub(crate) fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.push((key, Some(value)));
    }

    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Returns the changes sorted by key, which is the cheapest order for a tree.
    ///
    /// # Panics
    /// Panics if a key occurs twice.
    #[cfg(any(test, feature = "warm"))]
    pub(crate) fn into_sorted(mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        self.changes.sort_by(|a, b| a.0.cmp(&b.0));
        assert!(self.changes.windows(2).all(|pair| pair[0].0 < pair[1].0), "one change a record");
        self.changes
    }
}

/// The reason why a store is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum StoreError {
    /// The store or the disk returned an error.
    #[error("the store of the copy on disk (warm copy) failed: {0}")]
    Failed(String),
    /// The store panicked.
    #[error("the store of the copy on disk (warm copy) panicked: {0}")]
    Fell(String),
    /// The store failed earlier and was not called again.
    #[error("the store of the copy on disk (warm copy) failed earlier")]
    Gone,
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
