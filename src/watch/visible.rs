//! The visible revision: the newest revision whose changes watchers may take.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::Revision;

/// The visible revision, which is raised under the hub's lock and read without the lock.
pub(super) struct VisibleRevision(AtomicU64);

/// Proof that the visible revision was raised. Waking a watcher requires this proof. A watcher that
/// is woken earlier would find no change and wait again.
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
