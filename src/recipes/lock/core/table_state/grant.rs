//! Determines the queue positions of this node's entries, and grants the lock to those that may
//! hold it.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::super::entry::{DeferredActions, Enqueued, EntryEvent, Phase, QueueEntry};
use super::super::error::LockError;
use super::super::view::{self, LockEntry};
use super::LockTableState;
use crate::lock_format::{LockKind, LockMode, LockQueue, QueueMismatch, QueuePosition};
use crate::model::{KeyValue, Revision};
use crate::node::Shared;

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
        entry.apply(EntryEvent::PositionKnown, actions);
    }

    /// Checks whether the entry is allowed in its queues, and grants the lock if the entry may hold
    /// it.
    fn find_position(
        &mut self,
        shared: &Shared,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        actions: &mut DeferredActions,
    ) {
        if !Arc::ptr_eq(&entry.keys(), keys) {
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
                    entry.update_value(key, &row.value, actions);
                }
                queue.all = Some(LockQueue::of(&rows));
            }
            let position = QueuePosition::new(since, key.clone());
            if !queue.all.as_ref().is_some_and(|all| all.contains(&position)) {
                // Another client deleted the key in the same iteration of the driver.
                let outcome = Enqueued::Overtaken;
                entry.apply(EntryEvent::Enqueued { since, outcome }, actions);
                if !self.find_transfer(shared, entry, actions) {
                    self.key_lost(entry, keys, since, Some(key), actions);
                }
                return;
            }
        }
        let allowed = self.validate(entry, keys, since);
        let is_awaited = allowed.is_ok() && entry.has_waiters();
        let end = if is_awaited { entry.session.end(shared.now()) } else { None };
        let outcome = match allowed {
            Err(why) => Enqueued::NotAllowed(why),
            Ok(()) if end.is_none() && self.may_hold(entry, keys, since) => {
                Enqueued::MayHold(self.grant_revision(shared, entry))
            }
            Ok(()) => Enqueued::MustWait,
        };
        let step = entry.apply(EntryEvent::Enqueued { since, outcome }, actions);
        if step.from != Phase::Entering {
            return;
        }
        self.keep_hold_timer(shared, entry);
        if step.to != Phase::Waiting(since) || !entry.has_waiters() {
            return;
        }
        for (prefix, key) in entry.prefixes.iter().zip(keys.iter()) {
            let queue = self.queues.get_mut(prefix).expect("the queue was read above");
            let position = QueuePosition::new(since, key.clone());
            let all = queue.all.as_ref().expect("the queue was read above");
            if all.mode(&position).is_some_and(LockMode::is_upgrade) {
                queue.upgrades.insert(position.clone());
            }
            queue.waiting.insert(position, Arc::clone(entry));
        }
        for waiter in entry.waiters() {
            if waiter.only_try {
                // If the session has ended, the entry does not hold the lock even if nothing is
                // ahead of the entry.
                let why = match end {
                    Some(end) => LockError::SessionEnded(end),
                    None => {
                        let holder = self.blocking_entry(shared, entry, keys, since).map(Box::new);
                        LockError::WouldBlock { holder }
                    }
                };
                entry.fail_waiter(&waiter, why, actions);
            } else {
                entry.set_waiting(&waiter, since, actions);
            }
        }
    }

    /// If this entry must wait in one of its queues, returns the first other entry of that queue.
    fn blocking_entry(
        &self,
        shared: &Shared,
        entry: &QueueEntry,
        keys: &[Bytes],
        since: Revision,
    ) -> Option<LockEntry> {
        entry.prefixes.iter().zip(keys).find_map(|(prefix, key)| {
            let all = self.all(prefix)?;
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

    fn validate(
        &self,
        entry: &QueueEntry,
        keys: &[Bytes],
        since: Revision,
    ) -> Result<(), LockError> {
        for (prefix, key) in entry.prefixes.iter().zip(keys) {
            let position = QueuePosition::new(since, key.clone());
            let Some(all) = self.all(prefix) else { continue };
            all.validate(&position, entry.requested).map_err(|misfit| match misfit {
                QueueMismatch::SecondUpgrade => LockError::UpgradeTaken,
                QueueMismatch::NoRead => LockError::Evicted,
                QueueMismatch::Kind { stored, asked } => LockError::mismatch(stored, asked),
            })?;
        }
        Ok(())
    }

    fn may_hold(&self, entry: &QueueEntry, keys: &[Bytes], since: Revision) -> bool {
        let locks = if mutant!(B06) { 1 } else { keys.len() };
        entry.prefixes.iter().zip(keys).take(locks).all(|(prefix, key)| {
            let position = QueuePosition::new(since, key.clone());
            self.all(prefix).is_some_and(|all| all.may_hold(&position))
        })
    }

    /// Prepares the grant of a lock. Returns the revision of the grant, which becomes its token.
    fn grant_revision(&self, shared: &Shared, entry: &QueueEntry) -> Revision {
        let is_long = |prefix| self.all(prefix).is_some_and(|all| all.len() > 1);
        let is_contended = entry.prefixes.iter().any(is_long);
        entry.set_contended(is_contended);
        let mut granted = shared.reader.revision();
        mutant!(M25, granted = Revision(entry.session.lease.get()));
        granted
    }

    /// Starts the timer of a new holder with a maximum hold time.
    fn keep_hold_timer(&mut self, shared: &Shared, entry: &Arc<QueueEntry>) {
        let Some(waiter) = entry.holder() else { return };
        if let Some(max_hold) = waiter.max_hold {
            let until = (shared.now() + max_hold, self.number());
            waiter.set_until(Some(until));
            self.keep_timer(Some(until), entry, &waiter);
        }
    }

    /// Handles a failed enqueue: the entry has no keys.
    pub(crate) fn enqueue_failed(
        &mut self,
        entry: &Arc<QueueEntry>,
        keys: &[Bytes],
        why: LockError,
        actions: &mut DeferredActions,
    ) {
        entry.apply(EntryEvent::EnqueueFailed(why), actions);
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
        match entry.apply(EntryEvent::KeyLost { since }, actions).from {
            Phase::Waiting(before) | Phase::Held(before) if before == since => {}
            // The entry was given up meanwhile. No other notification will report that its key is
            // gone.
            Phase::Gone => {}
            // The entry was re-enqueued. The handler of that enqueue's outcome handles the old
            // keys.
            Phase::Entering | Phase::Waiting(_) | Phase::Held(_) => return,
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
                entry.set_contended(all.len() > 1);
            }
            if let Some(foreign) = all.first_foreign() {
                let behind = queue.waiting.range((Bound::Excluded(foreign), Bound::Unbounded));
                behind_foreign.extend(behind.map(|(_, entry)| Arc::clone(entry)));
            }
            for (position, entry) in &queue.waiting {
                if queue.upgrades.contains(position)
                    && all.validate(position, entry.requested) == Err(QueueMismatch::NoRead)
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
            entry.apply(EntryEvent::WaitersFailed(LockError::Evicted), actions);
        }
        for entry in behind_foreign {
            let why = LockError::KindMismatch { stored: LockKind::Foreign };
            entry.apply(EntryEvent::WaitersFailed(why), actions);
        }
        for (QueuePosition { since, key }, entry) in due {
            let keys = entry.keys();
            if entry.phase() != Phase::Waiting(since) || !keys.contains(&key) {
                self.remove_waiting(prefix, &QueuePosition { since, key });
                continue;
            }
            // A grant is delivered only while the session is valid.
            if !self.may_hold(&entry, &keys, since) || entry.session.end(shared.now()).is_some() {
                continue;
            }
            let granted = self.grant_revision(shared, &entry);
            entry.apply(EntryEvent::MayHold { since, granted }, actions);
            self.keep_hold_timer(shared, &entry);
            for (prefix, key) in entry.prefixes.iter().zip(keys.iter()) {
                self.remove_waiting(prefix, &QueuePosition::new(since, key.clone()));
            }
        }
    }

    fn remove_waiting(&mut self, prefix: &Bytes, position: &QueuePosition) {
        let Some(queue) = self.queues.get_mut(prefix) else { return };
        queue.waiting.remove(position);
        queue.upgrades.remove(position);
    }
}
