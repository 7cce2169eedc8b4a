//! [`Slot`]: a value that calls borrow while they run, and that one call finally consumes.
//!
//! A guard is released by a call that consumes it, while other calls wait for its loss. The release
//! wakes these calls and waits until they have returned the guard.

use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline::LostReason;
use tokio::sync::Notify;

use crate::errors::Failure;

/// A value that is used by several calls and consumed by one.
pub(crate) struct Slot<T> {
    state: Mutex<SlotState<T>>,
    consumed: Notify,
    returned: Notify,
}

enum SlotState<T> {
    Kept(Arc<T>),
    /// The value was consumed, for this reason.
    Consumed(LostReason),
}

/// A borrowed value.
pub(crate) struct Borrowed<T> {
    value: Option<Arc<T>>,
    slot: Arc<Slot<T>>,
}

impl<T> Slot<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        let state = Mutex::new(SlotState::Kept(Arc::new(value)));
        Arc::new(Self { state, consumed: Notify::new(), returned: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, SlotState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Borrows the value, or returns why it was consumed.
    pub(crate) fn borrow(self: &Arc<Self>) -> Result<Borrowed<T>, LostReason> {
        match &*self.state() {
            SlotState::Kept(value) => {
                Ok(Borrowed { value: Some(Arc::clone(value)), slot: Arc::clone(self) })
            }
            SlotState::Consumed(reason) => Err(reason.clone()),
        }
    }

    /// Waits for `wait`, or until the value is consumed.
    pub(crate) async fn until_lost(
        self: Arc<Self>,
        wait: impl AsyncFnOnce(&T) -> LostReason,
    ) -> LostReason {
        let mut consumed = pin!(self.consumed.notified());
        // Register before the value is borrowed, so that a consumption after the borrow wakes this task.
        consumed.as_mut().enable();
        let borrowed = match self.borrow() {
            Ok(borrowed) => borrowed,
            Err(reason) => return reason,
        };
        tokio::select! {
            biased;
            reason = wait(&borrowed) => reason,
            () = consumed => LostReason::Released,
        }
    }

    /// Consumes the value, once all calls have returned it.
    ///
    /// # Errors
    /// Returns `LostError` if it was consumed before.
    pub(crate) async fn take(&self) -> Result<T, Failure> {
        let mut value = {
            let mut state = self.state();
            match &*state {
                SlotState::Kept(value) => {
                    let value = Arc::clone(value);
                    *state = SlotState::Consumed(LostReason::Released);
                    value
                }
                SlotState::Consumed(reason) => return Err(Failure::lost(reason.clone())),
            }
        };
        self.consumed.notify_waiters();
        loop {
            let mut returned = pin!(self.returned.notified());
            returned.as_mut().enable();
            match Arc::try_unwrap(value) {
                Ok(value) => return Ok(value),
                Err(shared) => value = shared,
            }
            returned.await;
        }
    }
}

impl<T> Deref for Borrowed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a borrowed value is returned by its drop")
    }
}

impl<T> Drop for Borrowed<T> {
    fn drop(&mut self) {
        drop(self.value.take());
        self.slot.returned.notify_waiters();
    }
}
