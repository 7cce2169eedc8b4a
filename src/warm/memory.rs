//! An in-memory store for tests.
//!
//! Like files, the contents of the store survive a simulated process. A test can make the store
//! fail or panic, and can change its contents.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::store::{CopyBatch, CopyStore, Store, StoreError, Visit};

type Records = BTreeMap<Vec<u8>, Bytes>;

/// Stores by directory. Clones share the contents of the stores.
#[derive(Clone, Default)]
pub(crate) struct MemoryShelf {
    inner: Arc<Mutex<MemoryInner>>,
}

#[derive(Default)]
struct MemoryInner {
    stores: BTreeMap<PathBuf, Records>,
    /// Number of calls that still succeed, and the outcome of the call after them.
    fault: Option<(u64, StoreFault)>,
}

/// The way in which a call to a store fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreFault {
    Fails,
    Panics,
}

impl MemoryShelf {
    fn lock(&self) -> MutexGuard<'_, MemoryInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call to any store fail in this way, after `calls` more calls.
    pub(crate) fn fail_after(&self, calls: u64, fault: StoreFault) {
        self.lock().fault = Some((calls, fault));
    }

    /// Changes the records of the store in `dir` directly.
    pub(crate) fn modify<T>(&self, dir: &Path, with: impl FnOnce(&mut Records) -> T) -> T {
        with(self.lock().stores.entry(dir.to_owned()).or_default())
    }

    fn call(&self) -> Result<(), StoreError> {
        let fault = {
            let mut inner = self.lock();
            match &mut inner.fault {
                None => None,
                Some((0, fault)) => {
                    let fault = *fault;
                    inner.fault = None;
                    Some(fault)
                }
                Some((calls, _)) => {
                    *calls -= 1;
                    None
                }
            }
        };
        match fault {
            None => Ok(()),
            Some(StoreFault::Fails) => Err(StoreError::Failed("the test says so".to_owned())),
            Some(StoreFault::Panics) => panic!("the test says so"),
        }
    }
}

impl CopyStore for MemoryShelf {
    fn open(&self, dir: &Path) -> Result<Box<dyn Store>, StoreError> {
        self.call()?;
        self.lock().stores.entry(dir.to_owned()).or_default();
        Ok(Box::new(MemoryStore { store: self.clone(), dir: dir.to_owned() }))
    }

    fn holds(&self, dir: &Path) -> bool {
        self.lock().stores.contains_key(dir)
    }

    fn remove(&self, dir: &Path) -> io::Result<()> {
        self.lock().stores.remove(dir);
        Ok(())
    }

    fn list(&self, parent: &Path) -> io::Result<Vec<PathBuf>> {
        let inner = self.lock();
        Ok(inner.stores.keys().filter(|dir| dir.parent() == Some(parent)).cloned().collect())
    }
}

struct MemoryStore {
    store: MemoryShelf,
    dir: PathBuf,
}

impl MemoryStore {
    fn records<T>(&self, with: impl FnOnce(&mut Records) -> T) -> Result<T, StoreError> {
        self.store.call()?;
        let mut inner = self.store.lock();
        inner.stores.get_mut(&self.dir).map(with).ok_or(StoreError::Gone)
    }
}

impl Store for MemoryStore {
    fn apply(&mut self, batch: CopyBatch) -> Result<(), StoreError> {
        self.records(|records| {
            for (key, value) in batch.into_sorted() {
                match value {
                    Some(value) => records.insert(key, value.into()),
                    None => records.remove(&key),
                };
            }
        })
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.records(|records| records.get(key).cloned())
    }

    fn scan(
        &mut self,
        first: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> Visit,
    ) -> Result<(), StoreError> {
        let records = self.records(|records| records.clone())?;
        for (key, value) in records.range(first.to_vec()..) {
            if visit(key, value) == Visit::Enough {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.records(|_| ())
    }

    fn disk_bytes(&self) -> Result<u64, StoreError> {
        self.records(|records| {
            records.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
        })
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.records(|_| ())
    }
}
