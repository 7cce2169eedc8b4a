//! The waiter: the request of one task, its progress, and its hold once granted.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::lock_format::ReleaseRequest;
use crate::model::{Moment, Revision};

use super::error::{LockError, LostReason};
use super::token::Token;
use super::waiter_counts::{WaiterCounts, WaiterRole};

/// The lock as granted to one task.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// Keys of the entry: one key, or one for each queue of a multi-lock.
    pub(crate) keys: Arc<[Bytes]>,
    /// Create revision of the keys.
    pub(crate) since: Revision,
    pub(crate) token: Token,
    /// Value of the rows with these keys, which states the lock mode.
    pub(crate) value: Bytes,
}

/// Progress of a waiter.
#[derive(Clone, Debug, Default)]
pub(crate) enum WaiterStage {
    /// The position in the queue is not known yet.
    #[default]
    Requested,
    /// Waiting in the queue since this revision.
    Waiting(Revision),
    /// Holds the lock, or held it until its `LostReason`.
    Granted(Grant),
    /// The request has failed and will not be granted.
    Failed(LockError),
}

/// The options of a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct WaiterOptions {
    /// Whether the request fails instead of waiting.
    pub(crate) only_try: bool,
    /// Deadline of the wait, with the number of its timer.
    pub(crate) deadline: Option<(Moment, u64)>,
    /// Maximum hold time.
    pub(crate) max_hold: Option<Duration>,
    /// Whether the request belongs to an owner, whose waits are checked for deadlocks.
    pub(crate) is_owned: bool,
}

/// The request of one task, and its hold once granted.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Number among the waiters of its entry, in order of arrival.
    number: u64,
    /// Whether the request fails instead of waiting.
    pub(crate) only_try: bool,
    /// Deadline of the wait, with the number of its timer.
    pub(crate) deadline: Option<(Moment, u64)>,
    /// Maximum hold time.
    pub(crate) max_hold: Option<Duration>,
    /// Whether the task is woken once it is known that it must wait, so that its owner can look for
    /// deadlocks.
    pub(crate) is_owned: bool,
    /// Whether the entry had a holder or waiters when this waiter arrived.
    is_behind: bool,
    counts: WaiterCounts,
    /// Number of guards that share the hold.
    shares: AtomicU32,
    /// Whether the task has received its guard.
    is_delivered: AtomicBool,
    state: Mutex<WaiterState>,
    /// Notified when the hold is lost or its release is requested.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct WaiterState {
    stage: WaiterStage,
    waker: Option<Waker>,
    loss: Option<LostReason>,
    /// Time at which the lock was granted, if the request had to wait.
    handed: Option<Moment>,
    /// End of the maximum hold time, with the number of the timer.
    until: Option<(Moment, u64)>,
    request: Option<ReleaseRequest>,
}

impl WaiterState {
    /// Returns whether the waiter counts as a holder or as a waiter, or `None` if it is not
    /// counted.
    fn role(&self) -> Option<WaiterRole> {
        match &self.stage {
            WaiterStage::Requested | WaiterStage::Waiting(_) => Some(WaiterRole::Waits),
            WaiterStage::Granted(_) => self.loss.is_none().then_some(WaiterRole::Holds),
            WaiterStage::Failed(_) => None,
        }
    }
}

/// Result of an owner's attempt to acquire its hold once more.
pub(crate) enum Share {
    /// The hold was acquired once more.
    Again,
    /// The owner's limit is reached.
    TooMany,
    /// The hold has ended.
    Over,
}

impl Waiter {
    pub(crate) fn new(
        number: u64,
        options: WaiterOptions,
        is_behind: bool,
        counts: WaiterCounts,
    ) -> Self {
        let WaiterOptions { only_try, deadline, max_hold, is_owned } = options;
        let state = WaiterState::default();
        counts.moves(None, state.role());
        Self {
            number,
            only_try,
            deadline,
            max_hold,
            is_owned,
            is_behind,
            counts,
            shares: AtomicU32::new(1),
            is_delivered: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn lock(&self) -> MutexGuard<'_, WaiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stage. If it is not final, registers the waker for the next change.
    pub(crate) fn stage(&self, waker: Option<&Waker>) -> WaiterStage {
        let mut state = self.lock();
        let mut before = None;
        if let (WaiterStage::Requested | WaiterStage::Waiting(_), Some(waker)) =
            (&state.stage, waker)
            && !state.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            before = state.waker.replace(waker.clone());
        }
        let stage = state.stage.clone();
        drop(state);
        // Drop the waker after the lock is released: dropping the last waker may drop a task and
        // everything that the task holds.
        drop(before);
        stage
    }

    /// Moves to a new stage. Returns the waker of the task, which is due when no lock is held.
    #[must_use = "the task must be woken"]
    pub(crate) fn settle(&self, stage: WaiterStage) -> Option<Waker> {
        let mut state = self.lock();
        let before = state.role();
        state.stage = stage;
        self.counts.moves(before, state.role());
        state.waker.take()
    }

    /// Records that the request is queued and must wait. Returns the waker of a task that looks for
    /// deadlocks then.
    #[must_use = "the task must be woken"]
    pub(crate) fn set_waiting(&self, since: Revision) -> Option<Waker> {
        let mut state = self.lock();
        // The waiter may have been settled meanwhile.
        if !matches!(state.stage, WaiterStage::Requested | WaiterStage::Waiting(_)) {
            return None;
        }
        state.stage = WaiterStage::Waiting(since);
        if self.is_owned { state.waker.take() } else { None }
    }

    /// Records that the task has received its guard.
    pub(crate) fn delivered(&self) {
        self.is_delivered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_delivered(&self) -> bool {
        self.is_delivered.load(Ordering::Relaxed)
    }

    /// Adds a guard to the hold, up to `limit`.
    pub(crate) fn share(&self, limit: u32) -> Share {
        let more = |shares| (shares > 0 && shares < limit).then(|| shares + 1);
        match self.shares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Share::Again,
            Err(0) => Share::Over,
            Err(_) => Share::TooMany,
        }
    }

    /// Reports whether exactly one guard shares the hold.
    pub(crate) fn is_single(&self) -> bool {
        self.shares.load(Ordering::Relaxed) == 1
    }

    /// Removes a guard from the hold. Returns the number of remaining guards.
    pub(crate) fn unshare(&self) -> u32 {
        self.shares.fetch_sub(1, Ordering::Relaxed) - 1
    }

    /// Returns why the hold has ended, or `None` if the waiter has no record of an end.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.lock().loss.clone()
    }

    /// Records that the hold has ended. The first reason is kept. Tasks that wait for changes of the
    /// hold must be notified.
    pub(crate) fn lose(&self, loss: LostReason) {
        let mut state = self.lock();
        let before = state.role();
        state.loss.get_or_insert(loss);
        self.counts.moves(before, state.role());
    }

    /// Reports whether the request had to wait.
    pub(crate) fn has_waited(&self) -> bool {
        self.is_behind || matches!(self.lock().stage, WaiterStage::Waiting(_))
    }

    /// Records the time at which the waiter became the holder after another holder.
    pub(crate) fn hand(&self, at: Moment) {
        self.lock().handed = Some(at);
    }

    /// Returns the time at which the waiter became the holder after another holder.
    pub(crate) fn handed(&self) -> Option<Moment> {
        self.lock().handed
    }

    /// Returns the end of the maximum hold time.
    pub(crate) fn until(&self) -> Option<Moment> {
        self.lock().until.map(|(moment, _)| moment)
    }

    /// Sets the end of the maximum hold time. Returns the previous timer.
    pub(crate) fn set_until(&self, until: Option<(Moment, u64)>) -> Option<(Moment, u64)> {
        std::mem::replace(&mut self.lock().until, until)
    }

    /// Returns the pending release request.
    pub(crate) fn request(&self) -> Option<ReleaseRequest> {
        self.lock().request.clone()
    }

    /// Stores a release request. Tasks that wait for changes of the hold must be notified.
    pub(crate) fn set_release_request(&self, request: ReleaseRequest) {
        self.lock().request = Some(request);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let before = self.lock().role();
        self.counts.moves(before, None);
    }
}
