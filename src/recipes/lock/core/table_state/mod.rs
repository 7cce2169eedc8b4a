//! The state of the lock table: all lock queues with entries of this node, updated with every
//! change that the replica applies.
//!
//! All code of this module runs under the lock of the table, most of it on the driver's thread. The
//! code notifies no task and proposes nothing while the lock is held. It adds these actions to an
//! [`DeferredActions`] value, which is run after the lock is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::lock_format::{LockQueue, QueuePosition, entry_key, entry_number, parent, prefix_of};
use crate::model::{LeaseId, Moment, Revision};
use crate::node::{ReplyTo, Shared, SharedSession};

mod follow;
mod grant;

use follow::update_value;

use super::entry::{DeferredActions, Phase, QueueEntry, ReleasePlan, Waiter, WaiterStage};
use super::error::{LockError, LostReason};
use super::lock_table::Ask;
use super::token::Token;
use super::view;
use super::waiter_counts::{WaiterCount, WaiterCounts, WaiterRole};

/// A waiter and its queue entry.
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
        self.local.get(key).is_some_and(|entry| {
            let inner = entry.lock();
            inner.phase != Phase::Gone && inner.keys.contains(key)
        })
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
    pub(crate) fn keep_unusable(&mut self, lease: LeaseId, keys: &[Bytes], since: Revision) {
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

    /// If other tasks of the session have an entry in this queue that can be shared, adds a waiter
    /// to it.
    pub(crate) fn share(
        &mut self,
        shared: &Shared,
        ask: &Ask<'_>,
        max: usize,
    ) -> Result<Option<QueuedWaiter>, LockError> {
        let [name] = ask.names else { return Ok(None) };
        if !ask.is_shared {
            return Ok(None);
        }
        let prefix = prefix_of(name);
        let open = self.queues.get(&prefix).and_then(|queue| queue.open.get(&ask.session.lease));
        let Some(entry) = open.cloned() else { return Ok(None) };
        if !Arc::ptr_eq(&entry.session, ask.session) {
            return Ok(None);
        }
        if let Some(end) = entry.session.ended() {
            return Err(LockError::SessionEnded(end));
        }
        let mut inner = entry.lock();
        if inner.phase == Phase::Gone {
            return Ok(None);
        }
        if ask.only_try
            && (inner.holder.is_some() || inner.waiting() > 0 || inner.phase != Phase::Entering)
        {
            drop(inner);
            let all = self.queues.get(&prefix).and_then(|queue| queue.all.as_ref());
            let first = all.and_then(|all| Some((all, all.first()?.0)));
            let holder = first.and_then(|(all, first)| view::at(shared, all, first));
            return Err(LockError::WouldBlock { holder: holder.map(Box::new) });
        }
        if self.is_full(&prefix, max) {
            return Err(LockError::QueueFull { max });
        }
        let deadline = ask.deadline.map(|deadline| (deadline, self.number()));
        let waiter = inner.add_waiter(ask.only_try, deadline, ask.cap, ask.is_owned);
        drop(inner);
        self.keep_timer(deadline, &entry, &waiter);
        Ok(Some((entry, waiter)))
    }

    pub(crate) fn new_entry(
        &mut self,
        shared: &Shared,
        ask: &Ask<'_>,
        max: usize,
    ) -> Result<Arc<QueueEntry>, LockError> {
        let prefixes: Box<[Bytes]> = ask.names.iter().map(|name| prefix_of(name)).collect();
        if prefixes.iter().any(|prefix| self.is_full(prefix, max)) {
            return Err(LockError::QueueFull { max });
        }
        let keys = self.new_keys(shared, &prefixes, ask.session.lease);
        let (id, session) = (self.number(), Arc::clone(ask.session));
        let value = (ask.value)();
        let counts = self.counts(&prefixes);
        let entry = QueueEntry::new(id, prefixes, keys, session, value, ask.is_shared, counts);
        let entry = Arc::new(entry);
        self.insert(&entry);
        Ok(entry)
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
        let keys = Arc::clone(&entry.lock().keys);
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
        entry.lock().keys = Arc::clone(&keys);
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
        if entry.lock().phase == Phase::Gone {
            let lease = entry.session.lease;
            if queue.open.get(&lease).is_some_and(|open| Arc::ptr_eq(open, entry)) {
                queue.open.remove(&lease);
            }
            if let Some(kept) = self.sessions.get_mut(&lease) {
                kept.remove(&entry.id);
                if kept.is_empty() {
                    self.sessions.remove(&lease);
                }
            }
        }
        if queue.local.is_empty() {
            self.queues.remove(prefix);
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
            let all = self.queues.get(prefix).and_then(|queue| queue.all.as_ref());
            if all.is_none_or(|all| !all.contains(&QueuePosition::new(since, key.clone()))) {
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
            let holder = entry.lock().holder.clone()?;
            let is_it = matches!(holder.stage(None), WaiterStage::Granted(grant) if grant.token == token);
            is_it.then(|| (Arc::clone(entry), holder))
        })
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
            let inner = entry.lock();
            if let Some(since) = inner.since() {
                for (prefix, key) in entry.prefixes.iter().zip(inner.keys.iter()) {
                    positions
                        .entry(prefix)
                        .or_default()
                        .insert(QueuePosition::new(since, key.clone()));
                }
            }
        }
        let in_line = |(prefix, positions)| {
            let all = self.queues.get(prefix).and_then(|queue| queue.all.as_ref());
            all.map(|all| all.before_each(positions)).unwrap_or_default()
        };
        positions.into_iter().flat_map(in_line).collect()
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
        let in_line = self.before_each(late.iter().map(|(entry, _)| entry));
        for (entry, waiter) in late {
            let why = match before(&entry, &waiter, &in_line) {
                Some(before) => LockError::TimedOut { before },
                None => LockError::Unavailable,
            };
            entry.wait_no_more(&waiter, why, actions);
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
            if let Some(entries) = self.sessions.get_mut(&lease) {
                entries.remove(&entry.id);
                if entries.is_empty() {
                    self.sessions.remove(&lease);
                }
            }
            end_entry(
                &entry,
                LostReason::SessionEnded(end),
                &LockError::SessionEnded(end),
                actions,
            );
        }
    }
}

/// Returns the number of requests ahead of a waiter: in the queue (`in_line`) and within its entry.
fn before(
    entry: &QueueEntry,
    waiter: &Waiter,
    in_line: &BTreeMap<QueuePosition, usize>,
) -> Option<usize> {
    let inner = entry.lock();
    let since = inner.since()?;
    let in_line =
        inner.keys.iter().filter_map(|key| in_line.get(&QueuePosition::new(since, key.clone())));
    let holder = usize::from(inner.holder.is_some());
    Some(in_line.max().copied().unwrap_or_default() + holder + inner.before(waiter))
}

/// Returns the release plan of a lost hold: its remaining keys are deleted.
pub(crate) fn no_more(keys: &Arc<[Bytes]>, since: Revision) -> ReleasePlan {
    let (keys, bound) = (Arc::clone(keys), Vec::new());
    ReleasePlan { keys, since, bound, no_handoff: false, successor: None, reports_failure: false }
}

/// Fails all waiters of an entry.
fn fail_all(entry: &Arc<QueueEntry>, why: &LockError, actions: &mut DeferredActions) {
    let waiters: Vec<Arc<Waiter>> = entry.lock().waiters().cloned().collect();
    for waiter in waiters {
        entry.wait_no_more(&waiter, why.clone(), actions);
    }
}

/// Ends an entry because its session or its node has ended. The keys of a hold are left to the
/// lease.
pub(crate) fn end_entry(
    entry: &Arc<QueueEntry>,
    loss: LostReason,
    why: &LockError,
    actions: &mut DeferredActions,
) {
    let mut inner = entry.lock();
    inner.fail(why, actions);
    match inner.phase {
        // The hold was already released. Transactions that are still in flight will find its key
        // deleted.
        Phase::Held { since, .. } if inner.holder.is_none() => {
            let reply = inner.take_releasing().unwrap_or(ReplyTo::Nobody);
            return entry.leave(&mut inner, since, reply, actions);
        }
        Phase::Held { .. } => inner.phase = Phase::Gone,
        Phase::Waiting { .. } => entry.advance(&mut inner, ReplyTo::Nobody, actions),
        // The outcome of the enqueue decides what happens to the key.
        Phase::Entering | Phase::Gone => {}
    }
    inner.lose(loss, actions);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Change;
    use crate::model::{Event, EventKind, KeyValue};
    use crate::node::SessionEndReason;
    use crate::recipes::lock::core::entry::{Action, Bound, Load};

    const SINCE: Revision = Revision(2);

    /// Returns a lock table with one entry that holds since revision 2, and a waiter for each of
    /// `TASKS` tasks.
    fn held<const TASKS: usize>() -> (LockTableState, Arc<QueueEntry>, [Arc<Waiter>; TASKS]) {
        let (prefix, key) = (Bytes::from_static(b"lock/"), Bytes::from_static(b"lock/5"));
        let (lease, until) =
            (LeaseId::new(5).unwrap(), Moment::since_boot(std::time::Duration::from_secs(9)));
        let session = Arc::new(SharedSession::believed_until(lease, until));
        let mut state = LockTableState::default();
        let counts = state.counts(std::slice::from_ref(&prefix));
        let (prefixes, keys) = ([prefix.clone()].into(), [key.clone()].into());
        let entry =
            Arc::new(QueueEntry::new(1, prefixes, keys, session, Bytes::new(), true, counts));
        let waiters = std::array::from_fn(|_| entry.lock().add_waiter(false, None, None, false));
        let mut actions = DeferredActions::default();
        assert!(entry.lock().grant_next(SINCE, SINCE, &mut actions));
        state.insert(&entry);
        // The key is missing from the queue, as after a manual deletion or an expired lease.
        state.queues.get_mut(&prefix).unwrap().all = Some(LockQueue::default());
        (state, entry, waiters)
    }

    #[test]
    fn key_name_is_reused_only_after_its_known_deletion() {
        let (mut state, entry, [_turn]) = held();
        let lease = entry.session.lease;
        let [prefix, plain] = ["lock/", "lock/5"].map(Bytes::from);
        let stand = |state: &mut LockTableState| {
            let (id, key) = (state.number(), state.new_key(&prefix, lease, |_| false));
            let (session, counts) =
                (Arc::clone(&entry.session), state.counts(std::slice::from_ref(&prefix)));
            let (prefixes, keys) = ([prefix.clone()].into(), [key.clone()].into());
            let next = QueueEntry::new(id, prefixes, keys, session, Bytes::new(), false, counts);
            let next = Arc::new(next);
            state.insert(&next);
            (next, key)
        };
        let [one, two, three] = [(); 3].map(|()| stand(&mut state));
        assert!(one.1 != two.1 && two.1 != three.1 && three.1 != one.1);
        // The entry was given up, but its key may still exist or may meanwhile belong to another
        // session.
        two.0.lock().phase = Phase::Gone;
        state.forget(&one.0, &prefix, &one.1);
        let four = stand(&mut state);
        assert!([&one.1, &two.1, &three.1].iter().all(|name| **name != four.1));
        let mut is_deleted = |(entry, key): &(Arc<QueueEntry>, Bytes)| {
            state.forget(entry, &prefix, key);
            state.queues.get_mut(&prefix).unwrap().is_deleted(&prefix, key, lease);
        };
        is_deleted(&two);
        is_deleted(&four);
        let again = BTreeSet::from([stand(&mut state).1, stand(&mut state).1]);
        assert_eq!(again, BTreeSet::from([two.1, four.1]));
        state.forget(&entry, &prefix, &plain);
        // The key was transferred to another session and exists.
        let other = state.new_key(&prefix, lease, |name| *name == plain);
        assert_ne!(other, plain);
        assert_eq!(stand(&mut state).1, plain, "etcd's own name first");
    }

    /// Builds a change from keys with their old and new lease. Their create revision is always 2.
    fn change(rows: &[(&'static str, Option<u64>, Option<u64>)]) -> Change {
        let row = |key: &'static str, lease: u64, modified| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(b"of the successor"),
            create_revision: SINCE,
            mod_revision: modified,
            version: 2,
            lease: LeaseId::new(lease),
        };
        let event = |&(key, before, now): &(_, Option<u64>, Option<u64>)| Event {
            kind: if now.is_some() { EventKind::Put } else { EventKind::Delete },
            kv: row(key, now.unwrap_or_default(), Revision(9)),
            prev: before.map(|lease| row(key, lease, Revision(8))),
        };
        Change { revision: Revision(9), events: rows.iter().map(event).collect() }
    }

    fn follow(state: &mut LockTableState, rows: &[(&'static str, Option<u64>, Option<u64>)]) {
        let change = change(rows);
        let (mut touched, mut requests, mut actions) = Default::default();
        state.follow(&change, &mut touched, &mut requests, &mut actions);
    }

    #[test]
    fn returned_key_belongs_to_the_successor() {
        // This node has not applied the change in which the key belonged to another session.
        let (mut state, before, [_turn]) = held();
        before.lock().phase = Phase::Gone;
        let (prefix, counts) = (before.prefixes[0].clone(), state.counts(&before.prefixes));
        let key = state.new_key(&prefix, before.session.lease, |_| false);
        let (prefixes, keys, session) = ([prefix].into(), [key].into(), &before.session);
        let successor =
            QueueEntry::new(2, prefixes, keys, Arc::clone(session), Bytes::new(), false, counts);
        let successor = Arc::new(successor);
        state.insert(&successor);
        let waiter = successor.lock().add_waiter(false, None, None, false);
        successor.lock().phase = Phase::Waiting { since: SINCE };
        follow(&mut state, &[("lock/5", Some(7), Some(5)), ("lock/5.1", Some(5), None)]);
        assert!(matches!(waiter.stage(None), WaiterStage::Requested));
        assert_eq!(successor.lock().keys[..], ["lock/5"]);
        assert!(state.local(b"lock/5").is_some_and(|entry| Arc::ptr_eq(entry, &successor)));
        assert!(state.local(b"lock/5.1").is_none());
    }

    #[test]
    fn row_value_is_recorded_only_once_the_entry_owns_its_key() {
        let (mut state, entry, [_turn]) = held();
        entry.lock().phase = Phase::Entering;
        follow(&mut state, &[("lock/5", Some(7), Some(5))]);
        assert_eq!(entry.lock().value, "");
        follow(&mut state, &[("lock/5", Some(5), Some(5))]);
        assert_eq!(entry.lock().value, "of the successor");
    }

    fn evict(
        state: &mut LockTableState,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        actions: &mut DeferredActions,
    ) {
        state.key_lost(entry, keys, SINCE, Some(&keys[0]), actions);
    }

    #[test]
    fn entry_released_during_eviction_is_removed() {
        let (mut state, entry, [waiter]) = held();
        let (keys, mut actions) = (Arc::clone(&entry.lock().keys), DeferredActions::default());
        // The entry held. The task of the holder releases it on another thread before the deletion
        // of the key is processed.
        assert!(entry.release(&waiter, LostReason::Released, ReplyTo::Nobody, &mut actions));
        assert_eq!(entry.lock().phase, Phase::Gone);
        evict(&mut state, &entry, &keys, &mut actions);
        assert!(
            state.is_empty() && state.sessions.is_empty(),
            "nobody will ever say that it is gone"
        );
    }

    #[test]
    fn requeued_entry_keeps_its_waiters_during_eviction() {
        let (mut state, entry, [first, second]) = held();
        let (keys, mut actions) = (Arc::clone(&entry.lock().keys), DeferredActions::default());
        assert!(entry.prevent_handoff(&first));
        assert!(entry.release(&first, LostReason::Released, ReplyTo::Nobody, &mut actions));
        assert_eq!(entry.lock().phase, Phase::Entering);
        evict(&mut state, &entry, &keys, &mut actions);
        assert_eq!(entry.lock().phase, Phase::Entering);
        assert!(
            matches!(second.stage(None), WaiterStage::Requested),
            "its new key would stay forever"
        );
    }

    #[test]
    fn waiters_behind_an_evicted_hold_requeue_once() {
        let (mut state, entry, [first, second]) = held();
        let (keys, mut actions) = (Arc::clone(&entry.lock().keys), DeferredActions::default());
        evict(&mut state, &entry, &keys, &mut actions);
        assert_eq!(first.loss(), Some(LostReason::KeyDeleted));
        assert_eq!(entry.lock().phase, Phase::Entering);
        evict(&mut state, &entry, &keys, &mut actions);
        assert!(matches!(second.stage(None), WaiterStage::Requested));
        let again = |action: &&Action| matches!(action, Action::Requeue { .. });
        assert_eq!(actions.0.iter().filter(again).count(), 1);
    }

    #[test]
    fn keys_bound_late_are_left_to_the_lost_sessions_lease() {
        let (_, entry, [waiter]) = held();
        let mut actions = DeferredActions::default();
        let bound = vec![Bound::of_key(Bytes::from_static(b"bound"))];
        let binds = Load::of(&bound);
        assert_eq!(entry.begin_txn(&waiter, binds), Ok(true));
        entry.session.end(Moment::since_boot(std::time::Duration::from_secs(9)));
        let end = SessionEndReason::NotRenewed;
        end_entry(
            &entry,
            LostReason::SessionEnded(end),
            &LockError::SessionEnded(end),
            &mut actions,
        );
        entry.end_txn(binds, true, bound, &mut actions);
        let tidies =
            |action: &Action| matches!(action, Action::DeleteBound { .. } | Action::Release { .. });
        assert!(
            !actions.0.iter().any(tidies),
            "it goes with the lock's own key, after the lock delay"
        );
    }
}
