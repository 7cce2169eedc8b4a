//! The state of the lock table: all lock queues with entries of this node, updated with every
//! change that the replica applies.
//!
//! All code of this module runs under the lock of the table, most of it on the driver's thread. The
//! code notifies no task and proposes nothing while the lock is held. It adds these actions to a
//! [`DeferredActions`] value, which is run after the lock is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::lock_format::{LockQueue, QueuePosition, entry_key, entry_number, parent, prefix_of};
use crate::model::{LeaseId, Moment, Revision};
use crate::node::{Shared, SharedSession};

mod follow;
mod grant;
#[cfg(test)]
mod tests;

use super::entry::{DeferredActions, EntryData, EntryEvent, Joined, Phase, QueueEntry};
use super::error::{LockError, LostReason};
use super::request::LockRequest;
use super::token::Token;
use super::view;
use super::waiter::{Waiter, WaiterOptions, WaiterStage};
use super::waiter_counts::{WaiterCount, WaiterCounts, WaiterRole};

pub(crate) type QueuedWaiter = (Arc<QueueEntry>, Arc<Waiter>);

/// The state of the lock table; see the module.
#[derive(Default)]
pub(crate) struct LockTableState {
    /// Lock queues by key prefix.
    queues: BTreeMap<Bytes, LocalQueue>,
    /// The entries of each lease, by number. A resumed lease may have entries of two sessions.
    sessions: BTreeMap<LeaseId, BTreeMap<u64, Arc<QueueEntry>>>,
    timers: BTreeMap<(Moment, u64), QueuedWaiter>,
    /// Keys that a session has transferred away while transactions under the old hold may still be
    /// applied, by lease, key and create revision. The session must not hold a lock with these keys
    /// again.
    unusable: BTreeSet<(LeaseId, Bytes, Revision)>,
    /// Source of numbers for entries, timers and keys.
    counter: u64,
    waiter_count: Arc<WaiterCount>,
}

#[derive(Default)]
struct LocalQueue {
    /// Entries of all nodes. `None` until the outcome of the first local enqueue is known.
    all: Option<LockQueue>,
    /// This node's entries by key. An entry stays until its key is known to be deleted.
    local: BTreeMap<Bytes, Arc<QueueEntry>>,
    /// This node's waiting entries in queue order. Some of them may have left the queue.
    waiting: BTreeMap<QueuePosition, Arc<QueueEntry>>,
    /// The entries that other tasks of the same session may share.
    open: BTreeMap<LeaseId, Arc<QueueEntry>>,
    /// The waiting entries that are upgrades. An upgrade may overtake other entries.
    upgrades: BTreeSet<QueuePosition>,
    /// Numbers of key names that can be reused, by lease: this node has seen the deletion of their
    /// keys.
    free: BTreeMap<LeaseId, BTreeSet<u64>>,
    /// Counts of this node's holders and waiters of this lock.
    waiter_count: Arc<WaiterCount>,
}

/// Maximum number of leases per queue for which reusable key names are remembered. Names of further
/// leases are not reused.
const LEASES_WITH_FREE_NAMES_MAX: usize = 64;

impl LocalQueue {
    /// Reports whether one of this node's entries has this key, or will have it when its enqueue is
    /// applied. The key of an entry that has ended or was re-enqueued may meanwhile belong to
    /// another entry.
    fn has(&self, key: &Bytes) -> bool {
        self.local.get(key).is_some_and(|entry| entry.owns(key))
    }

    /// Records that the key of an entry of this lease was deleted, so that its name can be reused.
    /// Reusing names saves space and time: each name that was ever used takes space until the next
    /// compaction, and every scan of the queue visits it.
    ///
    /// A name may be reused only after the deletion of its key. A key that merely does not belong
    /// to this node may have been transferred to another session, which may transfer it back.
    /// Operations of the old entry that are still in flight compare the create revision too, so
    /// they do not affect a reused name.
    fn is_deleted(&mut self, prefix: &[u8], key: &[u8], lease: LeaseId) {
        let Some(number) = entry_number(prefix, lease, key) else { return };
        if self.free.len() >= LEASES_WITH_FREE_NAMES_MAX && !self.free.contains_key(&lease) {
            self.free.clear();
        }
        self.free.entry(lease).or_default().insert(number);
    }
}

impl LockTableState {
    pub(crate) fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Records keys that were transferred away while transactions under the old hold may still be
    /// applied.
    pub(crate) fn record_transferred(&mut self, lease: LeaseId, keys: &[Bytes], since: Revision) {
        self.unusable.extend(keys.iter().map(|key| (lease, key.clone(), since)));
    }

    /// Returns the counts of this node's holders and waiters.
    pub(crate) fn waiter_count(&self) -> &Arc<WaiterCount> {
        &self.waiter_count
    }

    pub(crate) fn keep_timer(
        &mut self,
        timer: Option<(Moment, u64)>,
        entry: &Arc<QueueEntry>,
        waiter: &Arc<Waiter>,
    ) {
        if let Some(timer) = timer {
            self.timers.insert(timer, (Arc::clone(entry), Arc::clone(waiter)));
        }
    }

    pub(crate) fn options(&mut self, request: &LockRequest) -> WaiterOptions {
        WaiterOptions {
            only_try: request.only_try,
            deadline: request.deadline().map(|deadline| (deadline, self.number())),
            max_hold: request.max_hold,
            is_owned: request.owner.is_some(),
        }
    }

    /// If other tasks of the session have an entry in this queue that can be shared, adds a waiter
    /// to it.
    pub(crate) fn share(
        &mut self,
        shared: &Shared,
        request: &LockRequest,
        max: usize,
    ) -> Result<Option<QueuedWaiter>, LockError> {
        let [name] = &request.names[..] else { return Ok(None) };
        if !request.is_shared() {
            return Ok(None);
        }
        let (prefix, session) = (prefix_of(name), request.session.shared_session());
        let open = self.queues.get(&prefix).and_then(|queue| queue.open.get(&session.lease));
        let Some(entry) = open.cloned() else { return Ok(None) };
        if !Arc::ptr_eq(&entry.session, session) {
            return Ok(None);
        }
        if let Some(end) = entry.session.ended() {
            return Err(LockError::SessionEnded(end));
        }
        let is_full = self.is_full(&prefix, max);
        match entry.join(request.only_try, is_full, || self.options(request)) {
            Joined::Gone => Ok(None),
            Joined::Busy => {
                let all = self.all(&prefix);
                let first = all.and_then(|all| Some((all, all.first()?.0)));
                let holder = first.and_then(|(all, first)| view::at(shared, all, first));
                Err(LockError::WouldBlock { holder: holder.map(Box::new) })
            }
            Joined::Full => Err(queue_full(shared, max)),
            Joined::Waiter(waiter) => {
                self.keep_timer(waiter.deadline, &entry, &waiter);
                Ok(Some((entry, waiter)))
            }
        }
    }

    pub(crate) fn new_entry(
        &mut self,
        shared: &Shared,
        request: &LockRequest,
        max: usize,
    ) -> Result<Arc<QueueEntry>, LockError> {
        let prefixes: Box<[Bytes]> = request.names.iter().map(|name| prefix_of(name)).collect();
        if prefixes.iter().any(|prefix| self.is_full(prefix, max)) {
            return Err(queue_full(shared, max));
        }
        let session = Arc::clone(request.session.shared_session());
        let keys = self.new_keys(shared, &prefixes, session.lease);
        let id = self.number();
        let data = EntryData::new(keys, request.to_value(), self.counts(&prefixes));
        let entry = QueueEntry::new(id, prefixes, session, request.is_shared(), data);
        self.insert(&entry);
        Ok(entry)
    }

    /// Returns all entries of a queue, if the table has read them.
    fn all(&self, prefix: &Bytes) -> Option<&LockQueue> {
        self.queues.get(prefix)?.all.as_ref()
    }

    /// Reports whether this node already has the maximum number of waiters for a lock.
    fn is_full(&self, prefix: &Bytes, max: usize) -> bool {
        let waiting =
            self.queues.get(prefix).map_or(0, |queue| queue.waiter_count.count(WaiterRole::Waits));
        waiting >= max as u64
    }

    /// Returns the counters for an entry in these queues.
    pub(crate) fn counts(&mut self, prefixes: &[Bytes]) -> WaiterCounts {
        let queues = prefixes
            .iter()
            .map(|prefix| Arc::clone(&self.queues.entry(prefix.clone()).or_default().waiter_count));
        [Arc::clone(&self.waiter_count)].into_iter().chain(queues).collect()
    }

    /// Adds an entry to the table.
    pub(crate) fn insert(&mut self, entry: &Arc<QueueEntry>) {
        self.keep(entry);
        let kept = self.sessions.entry(entry.session.lease).or_default();
        kept.insert(entry.id, Arc::clone(entry));
    }

    /// Returns this node's entry with this key.
    pub(crate) fn local(&self, key: &[u8]) -> Option<&Arc<QueueEntry>> {
        self.queues.get(parent(key)?)?.local.get(key)
    }

    /// Returns new keys in these queues for an entry of this lease.
    fn new_keys(&mut self, shared: &Shared, prefixes: &[Bytes], lease: LeaseId) -> Arc<[Bytes]> {
        let stands = |key: &Bytes| shared.reader.get(key).0.is_some();
        prefixes.iter().map(|prefix| self.new_key(prefix, lease, stands)).collect()
    }

    /// Returns a key that no entry of this node uses and that does not exist in the queue. This is
    /// the name that etcd uses if that name is free, otherwise the name with a number. A name
    /// becomes free only when its key is known to be deleted.
    ///
    /// A key that exists without a local entry was transferred to another session. That session may
    /// transfer the key back while the new request is in flight. Two entries of this node would
    /// then claim the same key.
    fn new_key(
        &mut self,
        prefix: &Bytes,
        lease: LeaseId,
        stands: impl Fn(&Bytes) -> bool,
    ) -> Bytes {
        let mut name = entry_key(prefix, lease, None);
        while self.local(&name).is_some() || stands(&name) {
            let queue = self.queues.get_mut(prefix);
            let free = queue.and_then(|queue| queue.free.get_mut(&lease)?.pop_first());
            let number = free.unwrap_or_else(|| self.number());
            name = entry_key(prefix, lease, Some(number));
        }
        name
    }

    /// Registers the entry under its keys in their queues.
    fn keep(&mut self, entry: &Arc<QueueEntry>) {
        let keys = entry.keys();
        for (prefix, key) in entry.prefixes.iter().zip(keys.iter()) {
            let queue = self.queues.entry(prefix.clone()).or_default();
            queue.local.insert(key.clone(), Arc::clone(entry));
            if entry.is_shared {
                queue.open.insert(entry.session.lease, Arc::clone(entry));
            }
        }
    }

    /// Assigns new keys to an entry that will be re-enqueued.
    pub(crate) fn rename(&mut self, shared: &Shared, entry: &Arc<QueueEntry>) -> Arc<[Bytes]> {
        let keys = self.new_keys(shared, &entry.prefixes, entry.session.lease);
        entry.rename(Arc::clone(&keys));
        self.keep(entry);
        keys
    }

    /// Removes a key that is known to be deleted.
    fn forget(&mut self, entry: &Arc<QueueEntry>, prefix: &Bytes, key: &Bytes) {
        let Some(queue) = self.queues.get_mut(prefix) else { return };
        // The name may already belong to another entry.
        if queue.local.get(key).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            queue.local.remove(key);
        }
        let (is_gone, lease) = (entry.phase() == Phase::Gone, entry.session.lease);
        if is_gone && queue.open.get(&lease).is_some_and(|open| Arc::ptr_eq(open, entry)) {
            queue.open.remove(&lease);
        }
        if queue.local.is_empty() {
            self.queues.remove(prefix);
        }
        if is_gone {
            self.leave_session(entry);
        }
    }

    /// Removes an entry from the entries of its session.
    fn leave_session(&mut self, entry: &QueueEntry) {
        let lease = entry.session.lease;
        if let Some(kept) = self.sessions.get_mut(&lease) {
            kept.remove(&entry.id);
            if kept.is_empty() {
                self.sessions.remove(&lease);
            }
        }
    }

    /// Removes the old keys of a re-enqueued entry that no longer exist.
    pub(crate) fn forget_absent(
        &mut self,
        entry: &Arc<QueueEntry>,
        keys: &[Bytes],
        since: Revision,
    ) {
        for (prefix, key) in entry.prefixes.iter().zip(keys) {
            let position = QueuePosition::new(since, key.clone());
            if self.all(prefix).is_none_or(|all| !all.contains(&position)) {
                self.forget(entry, prefix, key);
            }
        }
    }

    /// Reports whether the table has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Clears the table and returns all entries.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = Arc<QueueEntry>> + use<> {
        let queues = std::mem::take(self).queues;
        queues.into_values().flat_map(|queue| queue.local.into_values())
    }

    /// Returns the entry and the waiter of this session that hold the lock with this token.
    pub(crate) fn holder_of(
        &self,
        prefix: &Bytes,
        session: &Arc<SharedSession>,
        token: Token,
    ) -> Option<QueuedWaiter> {
        let queue = self.queues.get(prefix)?;
        queue.local.values().filter(|entry| Arc::ptr_eq(&entry.session, session)).find_map(|entry| {
            let holder = entry.holder()?;
            let is_it = matches!(holder.stage(None), WaiterStage::Granted(grant) if grant.token == token);
            is_it.then(|| (Arc::clone(entry), holder))
        })
    }

    /// Returns this node's entry that holds the lock with this prefix, and its waiter, if the task
    /// has received its guard. Considers only a lock that the first entry of its queue holds alone.
    pub(crate) fn holder_here(&self, prefix: &Bytes) -> Option<QueuedWaiter> {
        let queue = self.queues.get(prefix)?;
        let (first, _) = queue.all.as_ref()?.first()?;
        let entry = queue.local.get(&first.key)?;
        let holder = entry.holder().filter(|waiter| waiter.is_delivered())?;
        (entry.phase() == Phase::Held(first.since)).then(|| (Arc::clone(entry), holder))
    }

    pub(crate) fn forget_timer(&mut self, timer: (Moment, u64)) {
        self.timers.remove(&timer);
    }

    pub(crate) fn before(&self, entry: &Arc<QueueEntry>, waiter: &Waiter) -> Option<usize> {
        before(entry, waiter, &self.before_each([entry]))
    }

    /// Returns the number of entries ahead of each of these entries, by queue position.
    fn before_each<'a>(
        &self,
        entries: impl IntoIterator<Item = &'a Arc<QueueEntry>>,
    ) -> BTreeMap<QueuePosition, usize> {
        let mut positions: BTreeMap<&Bytes, BTreeSet<QueuePosition>> = BTreeMap::new();
        for entry in entries {
            for (prefix, position) in entry.prefixes.iter().zip(entry.positions()) {
                positions.entry(prefix).or_default().insert(position);
            }
        }
        let in_queue = |(prefix, positions)| {
            self.all(prefix).map(|all| all.before_each(positions)).unwrap_or_default()
        };
        positions.into_iter().flat_map(in_queue).collect()
    }

    /// Fires the timers that are due. Fails waiters whose deadline has passed, and returns the
    /// holds whose time limit has passed, so that the caller releases them.
    pub(crate) fn fire_timers(
        &mut self,
        now: Moment,
        actions: &mut DeferredActions,
    ) -> Vec<QueuedWaiter> {
        let (mut held_too_long, mut late) = (Vec::new(), Vec::new());
        while let Some(timer) = self.timers.first_entry() {
            if timer.key().0 > now {
                break;
            }
            let (entry, waiter) = timer.remove();
            match waiter.stage(None) {
                WaiterStage::Granted(_) => {
                    if waiter.until().is_some_and(|until| until <= now) {
                        held_too_long.push((entry, waiter));
                    }
                }
                WaiterStage::Failed(_) => {}
                WaiterStage::Requested | WaiterStage::Waiting(_) => late.push((entry, waiter)),
            }
        }
        // If many deadlines pass at once, scan each queue only once.
        let in_queue = self.before_each(late.iter().map(|(entry, _)| entry));
        for (entry, waiter) in late {
            let why = match before(&entry, &waiter, &in_queue) {
                Some(before) => LockError::TimedOut { before },
                None => LockError::Unavailable,
            };
            entry.fail_waiter(&waiter, why, actions);
        }
        held_too_long
    }

    /// Ends the entries of sessions that have ended. The end of the lease deletes the keys of
    /// holds. This method deletes the keys of waiters, because the lease may live on.
    pub(crate) fn end_sessions(&mut self, now: Moment, actions: &mut DeferredActions) {
        let mut ended = Vec::new();
        for entries in self.sessions.values() {
            let mut last = None;
            for entry in entries.values() {
                // Usually all entries belong to one session, so check that session only once.
                if !last.is_some_and(|(session, _)| Arc::ptr_eq(session, &entry.session)) {
                    last = Some((&entry.session, entry.session.end(now)));
                }
                if let Some((_, Some(end))) = last {
                    ended.push((Arc::clone(entry), end));
                }
            }
        }
        for (entry, end) in ended {
            let lease = entry.session.lease;
            self.unusable.retain(|(unusable, ..)| *unusable != lease);
            self.leave_session(&entry);
            let (loss, why) = (LostReason::SessionEnded(end), LockError::SessionEnded(end));
            entry.apply(EntryEvent::Ended { loss, why }, actions);
        }
    }
}

/// Returns the number of requests ahead of a waiter: in the queue (`in_queue`) and within its entry.
fn before(
    entry: &QueueEntry,
    waiter: &Waiter,
    in_queue: &BTreeMap<QueuePosition, usize>,
) -> Option<usize> {
    entry.since()?;
    let positions = entry.positions();
    let in_queue = positions.iter().filter_map(|position| in_queue.get(position));
    Some(in_queue.max().copied().unwrap_or_default() + entry.ahead_of(waiter))
}

/// Counts a request that this node rejects because it has `max` waiters for the lock, and returns
/// the error.
fn queue_full(shared: &Shared, max: usize) -> LockError {
    shared.meters.lock_queue_full_total.one();
    LockError::QueueFull { max }
}
