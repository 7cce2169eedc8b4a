//! What a copy is kept in: records by key, changed by atomic batches.
//!
//! A [`CopyStore`] makes stores and takes them away, each in a directory of its own. Neither knows what the
//! records mean. Nothing here is ever the truth: a store may lose everything at any time, or fail, or
//! panic, as long as what it hands out later can be judged by whoever wrote it.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use thiserror::Error;

/// Records by key.
pub(crate) trait Store: Send {
    /// Makes all changes of the batch or none of them.
    fn apply(&mut self, batch: Batch) -> Result<(), StoreError>;

    /// The record with this key.
    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Shows every record from `first` on, in key order, until `visit` says that it has seen enough.
    fn scan(
        &mut self,
        first: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Visit,
    ) -> Result<(), StoreError>;

    /// Hands what was written to the operating system, so that it outlives the process. It need not
    /// outlive the machine.
    fn flush(&mut self) -> Result<(), StoreError>;

    /// How much room it takes on the disk, in bytes.
    fn disk_bytes(&self) -> Result<u64, StoreError>;

    /// Writes and syncs everything, so that it outlives the machine too.
    fn close(self: Box<Self>) -> Result<(), StoreError>;
}

/// Whether a scan goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    On,
    Enough,
}

/// Makes stores.
pub(crate) trait CopyStore: Send + Sync {
    /// Opens the store in `dir`; an empty one, if there is none.
    fn open(&self, dir: &Path) -> Result<Box<dyn Store>, StoreError>;

    /// Whether there is a store in `dir`.
    fn holds(&self, dir: &Path) -> bool;

    /// Removes the store in `dir` with everything in it. Fine if there is none.
    fn remove(&self, dir: &Path) -> io::Result<()>;

    /// The stores beside each other in `parent`.
    fn list(&self, parent: &Path) -> io::Result<Vec<PathBuf>>;
}

/// Changes that are made together, in key order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Batch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Sets a record.
    pub(crate) fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.push((key, Some(value)));
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// What is to be done, sorted by key: a tree takes neighbours together most cheaply.
    ///
    /// # Panics
    /// If a key is in it twice.
    pub(crate) fn into_sorted(mut self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        self.changes.sort_by(|a, b| a.0.cmp(&b.0));
        assert!(self.changes.windows(2).all(|pair| pair[0].0 < pair[1].0), "one change a record");
        self.changes
    }
}

/// Why a store is of no use any more.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum StoreError {
    /// It says so itself, or the disk does.
    #[error("{0}")]
    Failed(String),
    /// It panicked.
    #[error("it panicked: {0}")]
    Fell(String),
    /// It has failed before and was not asked again.
    #[error("it failed before")]
    Gone,
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
