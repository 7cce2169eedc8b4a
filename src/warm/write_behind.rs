//! The channel between the driver and the worker of the warm copy. The driver never waits for the
//! worker, and the worker never delays the driver.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::machine::Image;
use crate::model::LogIndex;

/// The value of `wanted_after` if no image is wanted.
const NOTHING: u64 = u64::MAX;

/// The channel. See the module page.
pub(crate) struct WriteBehindQueue {
    /// An image of any state after this index is wanted.
    wanted_after: AtomicU64,
    scarce: AtomicBool,
    state: Mutex<WriteBehindState>,
    bell: Condvar,
}

#[derive(Default)]
struct WriteBehindState {
    image: Option<Image>,
    end: Option<End>,
}

/// The end of the node.
pub(super) enum End {
    /// A proper shutdown, with the last state.
    Orderly(Box<Image>),
    /// Any other end.
    Abrupt,
}

impl WriteBehindQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            wanted_after: AtomicU64::new(NOTHING),
            scarce: AtomicBool::new(false),
            state: Mutex::default(),
            bell: Condvar::new(),
        })
    }

    /// Returns whether the worker wants an image at `applied`. Costs the driver one atomic load.
    pub(crate) fn wants(&self, applied: LogIndex) -> bool {
        applied.get() > self.wanted_after.load(Ordering::Acquire)
    }

    /// Delivers an image whose rows are published. Such an image contains no rows itself, so the
    /// sweep does not wait for it.
    pub(crate) fn deliver(&self, image: Image) {
        self.wanted_after.store(NOTHING, Ordering::Release);
        self.lock().image = Some(image.without_rows());
        self.bell.notify_one();
    }

    /// Sets whether disk space is scarce, in which case the copy is removed.
    pub(crate) fn set_scarce(&self, scarce: bool) {
        self.scarce.store(scarce, Ordering::Release);
    }

    /// Reports a proper shutdown with this final state.
    pub(crate) fn stop(&self, last: Image) {
        self.end(End::Orderly(Box::new(last.without_rows())));
    }

    /// Reports an immediate stop.
    pub(crate) fn abandon(&self) {
        self.end(End::Abrupt);
    }

    fn end(&self, end: End) {
        self.lock().end.get_or_insert(end);
        self.bell.notify_one();
    }

    pub(super) fn want(&self, after: LogIndex) {
        self.wanted_after.store(after.get(), Ordering::Release);
    }

    pub(super) fn is_space_low(&self) -> bool {
        self.scarce.load(Ordering::Acquire)
    }

    pub(super) fn take_image(&self) -> Option<Image> {
        self.lock().image.take()
    }

    pub(super) fn take_end(&self) -> Option<End> {
        self.lock().end.take()
    }

    /// Waits until an image or the end of the node arrives, but at most for `at_most`.
    pub(super) fn wait(&self, at_most: Duration) {
        let state = self.lock();
        let quiet = |state: &mut WriteBehindState| state.end.is_none() && state.image.is_none();
        drop(
            self.bell
                .wait_timeout_while(state, at_most, quiet)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    fn lock(&self) -> MutexGuard<'_, WriteBehindState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
