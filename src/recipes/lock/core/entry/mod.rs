//! A queue entry, and the waiters that share it.
//!
//! An entry is a key in a lock queue. The entry of a multi-lock has a key in each of its queues. A
//! waiter is the request of one task. Tasks of one session that request the same mutex without
//! options share one entry. While such an entry holds the lock, the lock is handed from waiter to
//! waiter inside the process, without contacting the cluster. All other requests have their own
//! entry with one waiter.
//!
//! The mutex of the entry protects its [state]. A transition may cause proposals and notifications.
//! Each of them is an [`Action`], which the lock table runs when no mutex is held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::lock_format::{EntryMetadata, LockKind, LockMode, QueuePosition, ReleaseRequest};
use crate::model::{Op, Rejection, Reply, Revision};
use crate::node::{ReplyTo, SharedSession};

use super::bound::{Load, delete_bound};
use super::error::{LockError, LostReason};
use super::waiter::{Waiter, WaiterOptions};

mod state;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "sim"))]
pub(crate) use state::HANDOFFS_MAX;
pub(crate) use state::{Action, AdminRow, Enqueued, EntryData, EntryEvent, Phase};

use state::{EntryState, Facts};

pub(crate) struct QueueEntry {
    pub(crate) id: u64,
    /// Prefixes of the queues that contain the entry.
    pub(crate) prefixes: Box<[Bytes]>,
    /// Session of the entry.
    pub(crate) session: Arc<SharedSession>,
    /// Whether other tasks of the session may share the entry.
    pub(crate) is_shared: bool,
    /// Kind of lock at the time of the request. Since then a resize may have changed the limit in
    /// the row.
    pub(crate) requested: LockKind,
    /// Whether other nodes have entries after this one.
    is_contended: AtomicBool,
    inner: Mutex<EntryInner>,
}

struct EntryInner {
    state: EntryState,
    data: EntryData,
}

/// The states before and after an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transition {
    pub(crate) from: Phase,
    pub(crate) to: Phase,
}

/// Proposals and notifications that are due when no lock is held.
#[derive(Default)]
#[must_use = "deferred actions must be run"]
pub(crate) struct DeferredActions(Vec<(Arc<QueueEntry>, Action)>);

impl DeferredActions {
    pub(crate) fn push(&mut self, entry: &Arc<QueueEntry>, action: Action) {
        self.0.push((Arc::clone(entry), action));
    }
}

impl IntoIterator for DeferredActions {
    type Item = (Arc<QueueEntry>, Action);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The result of joining an entry.
pub(crate) enum Joined {
    Waiter(Arc<Waiter>),
    /// The entry is gone.
    Gone,
    /// The request must not wait, and the entry is in use.
    Busy,
    /// This node has too many waiters for the lock.
    Full,
}

impl QueueEntry {
    pub(crate) fn new(
        id: u64,
        prefixes: Box<[Bytes]>,
        session: Arc<SharedSession>,
        is_shared: bool,
        data: EntryData,
    ) -> Arc<Self> {
        let requested = EntryMetadata::mode_of(&data.keys[0], &data.value).kind();
        let state = EntryState::Entering { left: Revision(0) };
        let (is_contended, inner) =
            (AtomicBool::new(false), Mutex::new(EntryInner { state, data }));
        Arc::new(Self { id, prefixes, session, is_shared, requested, is_contended, inner })
    }

    fn lock(&self) -> MutexGuard<'_, EntryInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn facts(&self) -> Facts {
        Facts {
            ended: self.session.ended(),
            has_lock_delay: !self.session.delay.is_zero(),
            is_contended: self.is_contended.load(Ordering::Relaxed),
        }
    }

    /// Applies an event. The actions are added to `actions`.
    pub(crate) fn apply(
        self: &Arc<Self>,
        event: EntryEvent,
        actions: &mut DeferredActions,
    ) -> Transition {
        self.step(&mut self.lock(), event, actions)
    }

    fn step(
        self: &Arc<Self>,
        inner: &mut EntryInner,
        event: EntryEvent,
        actions: &mut DeferredActions,
    ) -> Transition {
        let from = inner.state.phase();
        let state = std::mem::replace(&mut inner.state, EntryState::Gone);
        let (next, due) = state.apply(event, &mut inner.data, self.facts());
        inner.state = next;
        actions.0.extend(due.into_iter().map(|action| (Arc::clone(self), action)));
        Transition { from, to: inner.state.phase() }
    }

    /// Ends the hold of this waiter. Returns `false` if it has already ended. `reply` is sent once
    /// the lock is free or has another holder.
    pub(crate) fn release(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        why: LostReason,
        reply: ReplyTo<Reply>,
        actions: &mut DeferredActions,
    ) -> bool {
        let mut inner = self.lock();
        let is_due = inner.state.is_held_by(waiter) && !self.facts().is_left_to_its_lease();
        if is_due {
            let waiter = Arc::clone(waiter);
            self.step(&mut inner, EntryEvent::Released { waiter, why, reply }, actions);
        }
        is_due
    }

    /// Like [`QueueEntry::release`], but transfers the hold to another entry if that entry is still
    /// waiting.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        successor: QueuePosition,
        reply: ReplyTo<Reply>,
        actions: &mut DeferredActions,
    ) -> bool {
        let mut inner = self.lock();
        let is_due = inner.state.is_held_by(waiter) && !self.facts().is_left_to_its_lease();
        if is_due {
            let waiter = Arc::clone(waiter);
            self.step(&mut inner, EntryEvent::Transferred { waiter, successor, reply }, actions);
        }
        is_due
    }

    /// Hands a hold to the next waiter of the entry. Returns `false` if there is none, or if the
    /// release needs a log entry.
    pub(crate) fn hand_off(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        actions: &mut DeferredActions,
    ) -> bool {
        let mut inner = self.lock();
        if !inner.state.is_held_by(waiter) {
            return false;
        }
        self.step(&mut inner, EntryEvent::HandedOff { waiter: Arc::clone(waiter) }, actions);
        !inner.state.is_held_by(waiter)
    }

    /// Delivers a release request to a holder.
    pub(crate) fn request_release(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        request: ReleaseRequest,
        actions: &mut DeferredActions,
    ) {
        waiter.set_release_request(request);
        actions.push(self, Action::Notify(Arc::clone(waiter)));
    }

    /// Records that a waiter is queued and must wait.
    pub(crate) fn set_waiting(
        self: &Arc<Self>,
        waiter: &Waiter,
        since: Revision,
        actions: &mut DeferredActions,
    ) {
        if let Some(waker) = waiter.set_waiting(since) {
            actions.push(self, Action::Wake(waker));
        }
    }

    pub(crate) fn fail_waiter(
        self: &Arc<Self>,
        waiter: &Waiter,
        why: LockError,
        actions: &mut DeferredActions,
    ) {
        self.apply(EntryEvent::WaiterFailed { number: waiter.number(), why }, actions);
    }

    /// Adds the first waiter of a new entry.
    pub(crate) fn add_waiter(&self, options: WaiterOptions) -> Arc<Waiter> {
        let mut inner = self.lock();
        let has_holder = inner.state.holder().is_some();
        inner.data.waiters.add(options, has_holder)
    }

    /// Adds a waiter of another task. `options` is called only if the task may join.
    pub(crate) fn join(
        &self,
        only_try: bool,
        is_full: bool,
        options: impl FnOnce() -> WaiterOptions,
    ) -> Joined {
        let mut inner = self.lock();
        let has_holder = inner.state.holder().is_some();
        let is_entering = |state: &EntryState| matches!(state, EntryState::Entering { .. });
        match &inner.state {
            EntryState::Gone => Joined::Gone,
            state if only_try && !(is_entering(state) && inner.data.waiters.is_empty()) => {
                Joined::Busy
            }
            _ if is_full => Joined::Full,
            _ => Joined::Waiter(inner.data.waiters.add(options(), has_holder)),
        }
    }

    /// Registers a transaction under the hold of this waiter. The transaction attaches `binds` to
    /// the hold. Returns `false` if the hold has ended.
    ///
    /// # Errors
    /// Fails if more keys would be attached than a hold may have.
    pub(crate) fn begin_txn(&self, waiter: &Arc<Waiter>, binds: Load) -> Result<bool, Rejection> {
        let mut inner = self.lock();
        let is_holder = inner.state.is_held_by(waiter);
        if is_holder {
            inner.data.begin_txn(binds)?;
        }
        Ok(is_holder)
    }

    /// Prevents further handoffs of the hold, because the conditions of the hold are used by a
    /// transaction whose end this node does not learn. When the hold is released, its key is
    /// deleted. Returns `false` if the hold has ended.
    pub(crate) fn prevent_handoff(&self, waiter: &Arc<Waiter>) -> bool {
        let mut inner = self.lock();
        let is_holder = inner.state.is_held_by(waiter);
        inner.data.txns.may_come_late |= is_holder;
        is_holder
    }

    /// Returns the operations that delete the keys attached to the current hold. Each key is
    /// deleted only if it is still attached.
    pub(crate) fn delete_bound(&self) -> Vec<Op> {
        delete_bound(self.session.lease, &self.lock().data.bound)
    }

    /// Records whether other nodes have entries after this one.
    pub(crate) fn set_contended(&self, is_contended: bool) {
        self.is_contended.store(is_contended, Ordering::Relaxed);
    }

    /// Assigns new keys to an entry that is enqueued again.
    pub(crate) fn rename(&self, keys: Arc<[Bytes]>) {
        self.lock().data.keys = keys;
    }

    /// Stores a new value of the entry's row. The entry itself may have written it.
    pub(crate) fn update_value(
        self: &Arc<Self>,
        key: &Bytes,
        value: &Bytes,
        actions: &mut DeferredActions,
    ) {
        self.lock().data.value = value.clone();
        if let LockMode::Permits { limit, wants: asked } = EntryMetadata::mode_of(key, value)
            && asked > limit
        {
            // The new value does not affect an entry that already holds the lock.
            let why = LockError::TooManyPermits { asked, limit };
            self.apply(EntryEvent::WaitersFailed(why), actions);
        }
    }

    pub(crate) fn keys(&self) -> Arc<[Bytes]> {
        Arc::clone(&self.lock().data.keys)
    }

    pub(crate) fn value(&self) -> Bytes {
        self.lock().data.value.clone()
    }

    pub(crate) fn phase(&self) -> Phase {
        self.lock().state.phase()
    }

    /// Returns the create revision of the entry's keys, if the keys are in their queues.
    pub(crate) fn since(&self) -> Option<Revision> {
        self.lock().state.since()
    }

    pub(crate) fn holder(&self) -> Option<Arc<Waiter>> {
        self.lock().state.holder().cloned()
    }

    pub(crate) fn waiters(&self) -> Vec<Arc<Waiter>> {
        self.lock().data.waiters.iter().cloned().collect()
    }

    pub(crate) fn has_waiters(&self) -> bool {
        !self.lock().data.waiters.is_empty()
    }

    pub(crate) fn is_held_by(&self, waiter: &Arc<Waiter>) -> bool {
        self.lock().state.is_held_by(waiter)
    }

    /// Reports whether the key of this revision has no holder and no waiters, and will never have
    /// any.
    pub(crate) fn is_given_up(&self, since: Revision) -> bool {
        let inner = self.lock();
        inner.state.is_given_up(since, &inner.data)
    }

    /// Reports whether the entry has this key, or will have it when its enqueue is applied.
    pub(crate) fn owns(&self, key: &Bytes) -> bool {
        let inner = self.lock();
        !matches!(inner.state, EntryState::Gone) && inner.data.keys.contains(key)
    }

    /// Returns the queue positions of the entry, one for each key.
    pub(crate) fn positions(&self) -> Vec<QueuePosition> {
        let inner = self.lock();
        let Some(since) = inner.state.since() else { return Vec::new() };
        inner.data.keys.iter().map(|key| QueuePosition::new(since, key.clone())).collect()
    }

    /// Returns the number of requests ahead of a waiter within the entry.
    pub(crate) fn ahead_of(&self, waiter: &Waiter) -> usize {
        let inner = self.lock();
        usize::from(inner.state.holder().is_some()) + inner.data.waiters.ahead_of(waiter)
    }
}
