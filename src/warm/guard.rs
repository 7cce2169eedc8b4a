//! A wrapper that contains failures and panics of a store.
//!
//! After its first error or panic, the store is never used again. A store that panicked is not even
//! dropped, because its locks may be held and its threads may be in an undefined state. A store
//! that is not dropped leaks memory, but the number of stores is limited, because a node builds
//! only a limited number of new copies ([`super::worker`]).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::store::{CopyStore, Store, StoreError};

/// A store that returns errors instead of panicking.
pub(super) struct Guarded {
    store: Option<Box<dyn Store>>,
}

impl Guarded {
    pub(super) fn open(store: &dyn CopyStore, dir: &Path) -> Result<Self, StoreError> {
        Ok(Self { store: Some(caught(|| store.open(dir))?) })
    }

    /// Writes and syncs everything.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        let store = self.store.take().ok_or(StoreError::Gone)?;
        caught(|| store.close())
    }

    /// Uses the store, and gives it up if `work` fails or panics.
    pub(super) fn with<T>(
        &mut self,
        work: impl FnOnce(&mut dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut store = self.store.take().ok_or(StoreError::Gone)?;
        match caught(|| work(&mut *store)) {
            Ok(result) => {
                self.store = Some(store);
                Ok(result)
            }
            Err(error @ StoreError::Fell(_)) => {
                std::mem::forget(store);
                Err(error)
            }
            Err(error) => {
                drop_caught(store);
                Err(error)
            }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(store) = self.store.take() {
            drop_caught(store);
        }
    }
}

fn drop_caught(store: Box<dyn Store>) {
    if let Err(error) = caught(|| {
        drop(store);
        Ok(())
    }) {
        tracing::warn!(
            %error,
            "cannot close the copy on disk (warm copy), which does not affect the node"
        );
    }
}

fn caught<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(StoreError::Fell(panic_message(&*panic))))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
