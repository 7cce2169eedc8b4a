//! Determines the queue positions of this node's entries, and grants the lock to those that may
//! hold it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{LockTableState, fail_all, no_more, update_value};
use crate::lock_format::{LockKind, LockMode, LockQueue, QueueMismatch, QueuePosition};
use crate::model::{KeyValue, Revision};
use crate::node::{ReplyTo, Shared};
use crate::recipes::lock::core::entry::{
    Action, DeferredActions, EntryInner, Phase, QueueEntry, Waiter,
};
use crate::recipes::lock::core::error::LockError;
use crate::recipes::lock::core::view::{self, LockEntry};

impl LockTableState {
    /// Handles the successful enqueue of an entry: determines its position, then runs the admin
    /// requests that arrived earlier.
    pub(crate) fn enqueued(
        &mut self,
        shared: &Shared,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        actions: &mut DeferredActions,
    ) {
        self.find_position(shared, entry, keys, since, actions);
        entry.apply_pending_requests(actions);
    }

    /// Checks whether the entry is allowed in its queues, and grants the lock if the entry may hold
    /// it.
    pub(crate) fn find_position(
        &mut self,
        shared: &Shared,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        actions: &mut DeferredActions,
    ) {
        if !Arc::ptr_eq(&entry.lock().keys, keys) {
            // The entry received a transferred hold in the same iteration of the driver.
            return;
        }
        for (prefix, key) in entry.prefixes.iter().zip(keys.iter()) {
            let Some(queue) = self.queues.get_mut(prefix) else { return };
            if queue.all.is_none() {
                let rows = view::rows(shared, prefix);
                // The table has not processed rewrites of the row between the enqueue and this
                // read.
                let mine = |row: &&KeyValue| row.key == *key && row.create_revision == since;
                if let Some(row) = rows.iter().find(mine) {
                    update_value(entry, key, &row.value, actions);
                }
                queue.all = Some(LockQueue::of(&rows));
            }
            let position = QueuePosition::new(since, key.clone());
            if !queue.all.as_ref().is_some_and(|all| all.contains(&position)) {
                // Another client deleted the key in the same iteration of the driver.
                {
                    let mut inner = entry.lock();
                    if inner.phase == Phase::Entering && Arc::ptr_eq(&inner.keys, keys) {
                        inner.phase = Phase::Waiting { since };
                    }
                }
                if !self.find_transfer(shared, entry, actions) {
                    self.key_lost(entry, keys, since, Some(key), actions);
                }
                return;
            }
        }
        let mut inner = entry.lock();
        if inner.phase != Phase::Entering || !Arc::ptr_eq(&inner.keys, keys) {
            return;
        }
        inner.phase = Phase::Waiting { since };
        if let Err(why) = self.validate(entry, keys, since) {
            inner.fail(&why, actions);
        }
        if inner.waiting() == 0 {
            return entry.advance(&mut inner, ReplyTo::Nobody, actions);
        }
        // If nothing is ahead, go from Entering to Held in one step, so that a try call does not
        // see its own entry waiting.
        let end = entry.session.end(shared.now());
        if self.may_hold(entry, keys, since) && end.is_none() {
            return self.grant(shared, entry, &mut inner, since, actions);
        }
        for (prefix, key) in entry.prefixes.iter().zip(keys.iter()) {
            let queue = self.queues.get_mut(prefix).expect("the all was read above");
            queue.waiting.insert(QueuePosition::new(since, key.clone()), Arc::clone(entry));
            let all = queue.all.as_ref().expect("the all was read above");
            let position = QueuePosition::new(since, key.clone());
            if all.mode(&position).is_some_and(LockMode::is_upgrade) {
                queue.upgrades.insert(position);
            }
        }
        let waiters: Vec<Arc<Waiter>> = inner.waiters().cloned().collect();
        drop(inner);
        for waiter in waiters {
            if waiter.only_try {
                // If the session has ended, the entry does not hold the lock even if nothing is
                // ahead of the entry.
                let why = match end {
                    Some(end) => LockError::SessionEnded(end),
                    None => {
                        let holder = self.in_the_way(shared, entry, keys, since).map(Box::new);
                        LockError::WouldBlock { holder }
                    }
                };
                entry.wait_no_more(&waiter, why, actions);
            } else {
                waiter.stands(since, actions);
            }
        }
    }

    /// If this entry must wait in one of its queues, returns the first other entry of that queue.
    fn in_the_way(
        &self,
        shared: &Shared,
        entry: &QueueEntry,
        keys: &[Bytes],
        since: Revision,
    ) -> Option<LockEntry> {
        entry.prefixes.iter().zip(keys).find_map(|(prefix, key)| {
            let all = self.queues.get(prefix)?.all.as_ref()?;
            let position = QueuePosition::new(since, key.clone());
            let own = all.mode(&position).filter(|_| !all.may_hold(&position))?;
            // A reader that upgrades is not blocked by its own read entry.
            let is_own =
                |other: &QueuePosition| matches!(own, LockMode::Upgrade(of) if *of == other.key);
            let mut before =
                all.iter().map(|(other, _)| other).take_while(|other| **other < position);
            view::at(shared, all, before.find(|other| !is_own(other))?)
        })
    }

    pub(crate) fn validate(
        &self,
        entry: &QueueEntry,
        keys: &[Bytes],
        since: Revision,
    ) -> Result<(), LockError> {
        for (prefix, key) in entry.prefixes.iter().zip(keys) {
            let position = QueuePosition::new(since, key.clone());
            let Some(all) = self.queues.get(prefix).and_then(|queue| queue.all.as_ref()) else {
                continue;
            };
            all.validate(&position, entry.asked).map_err(|misfit| match misfit {
                QueueMismatch::SecondUpgrade => LockError::UpgradeTaken,
                QueueMismatch::NoRead => LockError::Evicted,
                QueueMismatch::Kind { stored, asked } => LockError::mismatch(stored, asked),
            })?;
        }
        Ok(())
    }

    pub(crate) fn may_hold(&self, entry: &QueueEntry, keys: &[Bytes], since: Revision) -> bool {
        let locks = if mutant!(B06) { 1 } else { keys.len() };
        entry.prefixes.iter().zip(keys).take(locks).all(|(prefix, key)| {
            let all = self.queues.get(prefix).and_then(|queue| queue.all.as_ref());
            all.is_some_and(|all| all.may_hold(&QueuePosition::new(since, key.clone())))
        })
    }

    pub(crate) fn grant(
        &mut self,
        shared: &Shared,
        entry: &Arc<QueueEntry>,
        inner: &mut EntryInner,
        since: Revision,
        actions: &mut DeferredActions,
    ) {
        let granted = match mutant!(M25) {
            false => shared.reader.revision(),
            true => Revision(entry.session.lease.get()),
        };
        let is_contended = entry.prefixes.iter().any(|prefix| {
            let all = self.queues.get(prefix).and_then(|queue| queue.all.as_ref());
            all.is_some_and(|all| all.len() > 1)
        });
        entry.is_contended.store(is_contended, Ordering::Relaxed);
        if !inner.grant_next(since, granted, actions) {
            return entry.advance(inner, ReplyTo::Nobody, actions);
        }
        let waiter = Arc::clone(inner.holder.as_ref().expect("the grant has set a holder"));
        if let Some(cap) = waiter.cap {
            let until = (shared.now() + cap, self.number());
            waiter.set_until(Some(until));
            self.keep_timer(Some(until), entry, &waiter);
        }
    }

    /// Handles a failed enqueue: the entry has no keys.
    pub(crate) fn enqueue_failed(
        &mut self,
        entry: &Arc<QueueEntry>,
        keys: &[Bytes],
        why: &LockError,
        actions: &mut DeferredActions,
    ) {
        {
            let mut inner = entry.lock();
            inner.phase = Phase::Gone;
            inner.fail(why, actions);
        }
        for (prefix, key) in entry.prefixes.iter().zip(keys) {
            self.forget(entry, prefix, key);
        }
    }

    /// Handles the loss of an entry's key to another client. A hold is lost, and waiters lose their
    /// queue position. Waiters that share the entry with a holder are enqueued again. Changes that
    /// other threads have made to the entry since it was read are preserved.
    pub(crate) fn key_lost(
        &mut self,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        gone: Option<&Bytes>,
        actions: &mut DeferredActions,
    ) {
        {
            let mut inner = entry.lock();
            let was_held = matches!(inner.phase, Phase::Held { .. });
            let is_over = match inner.phase {
                Phase::Waiting { since: now } | Phase::Held { since: now, .. } if now == since => {
                    false
                }
                // The entry was given up meanwhile. No other notification will report that its key
                // is gone.
                Phase::Gone => true,
                // The entry was re-enqueued. The handler of that enqueue's outcome handles the old
                // keys.
                _ => return,
            };
            if is_over {
            } else if was_held && inner.waiting() > 0 {
                inner.lose_all(entry.session.lease, actions);
                inner.reset_for_requeue();
                // Only an entry with a single key has waiters in addition to a holder, so no other
                // key remains, and the name of this key can be reused.
                actions.0.push(Action::Requeue { entry: Arc::clone(entry), plan: None });
            } else {
                // The keys are deleted with the lease of the session.
                let session = entry.session.ended().map(LockError::SessionEnded);
                inner.end(&session.unwrap_or(LockError::Evicted), entry.session.lease, actions);
                if keys.len() > 1 {
                    let (entry, plan) = (Arc::clone(entry), no_more(keys, since));
                    actions.0.push(Action::Release { entry, plan, reply: ReplyTo::Nobody });
                }
            }
        }
        // The keys that still exist are removed from the table when they are deleted.
        self.forget_absent(entry, keys, since);
        let prefix = entry.prefixes.iter().zip(keys.iter()).find(|(_, key)| Some(*key) == gone);
        if let (Some((prefix, _)), Some(key)) = (prefix, gone) {
            self.forget(entry, prefix, key);
        }
    }

    /// Grants the lock to this node's waiting entries in a queue, as far as they may hold it.
    pub(crate) fn grant_waiting(
        &mut self,
        shared: &Shared,
        prefix: &Bytes,
        actions: &mut DeferredActions,
    ) {
        let (mut due, mut bereft, mut behind_foreign) = (Vec::new(), Vec::new(), Vec::new());
        {
            let Some(queue) = self.queues.get(prefix) else { return };
            let Some(all) = &queue.all else { return };
            if let Some((QueuePosition { key, .. }, _)) = all.first()
                && let Some(entry) = queue.local.get(key)
            {
                entry.is_contended.store(all.len() > 1, Ordering::Relaxed);
            }
            if let Some(foreign) = all.first_foreign() {
                let behind = queue.waiting.range((Bound::Excluded(foreign), Bound::Unbounded));
                behind_foreign.extend(behind.map(|(_, entry)| Arc::clone(entry)));
            }
            for (position, entry) in &queue.waiting {
                if queue.upgrades.contains(position)
                    && all.validate(position, entry.asked) == Err(QueueMismatch::NoRead)
                {
                    bereft.push(Arc::clone(entry));
                } else if all.may_hold(position) {
                    due.push((position.clone(), Arc::clone(entry)));
                } else if all.contains(position) && queue.upgrades.is_empty() {
                    break;
                }
            }
        }
        // These are upgrades whose read entry is gone.
        for entry in bereft {
            fail_all(&entry, &LockError::Evicted, actions);
        }
        for entry in behind_foreign {
            fail_all(&entry, &LockError::KindMismatch { stored: LockKind::Foreign }, actions);
        }
        for (QueuePosition { since, key }, entry) in due {
            let mut inner = entry.lock();
            let keys = Arc::clone(&inner.keys);
            if inner.phase != (Phase::Waiting { since }) || !keys.contains(&key) {
                drop(inner);
                self.wait_no_more(prefix, &QueuePosition::new(since, key));
                continue;
            }
            // A grant is delivered only while the session is valid.
            if !self.may_hold(&entry, &keys, since) || entry.session.end(shared.now()).is_some() {
                continue;
            }
            self.grant(shared, &entry, &mut inner, since, actions);
            drop(inner);
            for (prefix, key) in entry.prefixes.iter().zip(keys.iter()) {
                self.wait_no_more(prefix, &QueuePosition::new(since, key.clone()));
            }
        }
    }

    pub(crate) fn wait_no_more(&mut self, prefix: &Bytes, position: &QueuePosition) {
        let Some(queue) = self.queues.get_mut(prefix) else { return };
        queue.waiting.remove(position);
        queue.upgrades.remove(position);
    }
}
