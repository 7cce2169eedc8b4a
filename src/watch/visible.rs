//! The newest revision that watchers may take.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Revision;

/// Raised under the hub's lock, read without it.
pub(super) struct VisibleRevision(AtomicU64);

/// Proof that the visible revision was raised. Waking a watcher requires it: a watcher that is
/// woken earlier finds nothing, waits again, and misses the change.
pub(super) struct Raised(());

impl VisibleRevision {
    pub(super) fn new(revision: Revision) -> Self {
        Self(AtomicU64::new(revision.0))
    }

    pub(super) fn get(&self) -> Revision {
        Revision(self.0.load(Ordering::Acquire))
    }

    pub(super) fn raise(&self, to: Revision) -> Raised {
        self.0.store(to.0, Ordering::Release);
        Raised(())
    }
}
