//! Updates the lock table from the changes that the replica applies: deleted keys, rewritten rows,
//! holds transferred to local entries, admin requests, and snapshots that replace the state.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::super::entry::{Action, AdminRow, DeferredActions, EntryEvent, Phase, QueueEntry};
use super::super::release_plan::ReleasePlan;
use super::super::view;
use super::LockTableState;
use crate::lock_format::{
    AdminRequest, EntryMetadata, LockQueue, QueuePosition, admin_request_key, admin_request_target,
    parent,
};
use crate::machine::Change;
use crate::model::{Event, EventKind, KeyValue, Revision};
use crate::node::{ReplyTo, Shared};

impl LockTableState {
    /// Processes one change of the store. Rows that may be admin requests are only collected. Each
    /// is stored with the local entry that has the addressed key now, because that entry may be
    /// gone when all changes have been processed.
    pub(crate) fn follow<'a>(
        &mut self,
        change: &'a Change,
        touched: &mut BTreeSet<Bytes>,
        requests: &mut Vec<(&'a KeyValue, Option<Arc<QueueEntry>>)>,
        actions: &mut DeferredActions,
    ) {
        // Compute this at most once per change, and only if a local entry loses its key, because
        // the end of a session deletes many keys in one change.
        let handed = OnceCell::new();
        let concerns_locks = |key: &[u8]| {
            let is_in_queue = |prefix| self.queues.contains_key(prefix);
            parent(key).is_some_and(is_in_queue) || admin_request_target(key).is_some()
        };
        if self.unusable.is_empty() && !change.any_key(concerns_locks) {
            return;
        }
        for event in change.events().iter() {
            if event.kind == EventKind::Delete && !self.unusable.is_empty() {
                self.unusable.retain(|(_, key, _)| *key != event.kv.key);
            }
            let Some(prefix) = parent(&event.kv.key) else { continue };
            let Some(queue) = self.queues.get_mut(prefix) else {
                if event.kind == EventKind::Put
                    && let Some(key) = admin_request_target(&event.kv.key)
                {
                    let then = self.local(key).cloned();
                    mutant!(B35, {
                        self.follow_request(&event.kv, None, actions);
                        continue;
                    });
                    requests.push((&event.kv, then));
                }
                continue;
            };
            let Some(all) = &mut queue.all else { continue };
            let key = &event.kv.key;
            let is_entry = event.kind == EventKind::Put && event.kv.lease.is_some();
            if let Some(before) = &event.prev {
                let position = QueuePosition::new(before.create_revision, key.clone());
                all.remove(&position);
                if !is_entry {
                    queue.waiting.remove(&position);
                    queue.upgrades.remove(&position);
                }
            }
            if is_entry {
                let mode = EntryMetadata::mode_in_queue(key, &event.kv.value);
                all.insert(QueuePosition::new(event.kv.create_revision, key.clone()), mode);
            }
            touched.insert(Bytes::copy_from_slice(prefix));
            let Some(entry) = queue.local.get(key).cloned() else { continue };
            if !is_entry || event.kv.lease != Some(entry.session.lease) {
                let handed = handed.get_or_init(|| transferred_rows(change));
                self.local_key_lost(handed, event, &entry, actions);
            } else if !is_transferred(event) {
                entry.update_value(key, &event.kv.value, actions);
            }
            if event.kind == EventKind::Delete
                && let Some(queue) = self.queues.get_mut(prefix)
            {
                queue.is_deleted(prefix, key, entry.session.lease);
            }
        }
    }

    /// Processes an admin request to a local entry: the entry that has the addressed key now, or
    /// the entry that had the key when the request was applied.
    pub(crate) fn follow_request(
        &self,
        row: &KeyValue,
        then: Option<Arc<QueueEntry>>,
        actions: &mut DeferredActions,
    ) {
        let (Some(key), Some(request)) =
            (admin_request_target(&row.key), AdminRequest::parse(&row.value))
        else {
            return;
        };
        let is_meant = |entry: &&Arc<QueueEntry>| row.lease == Some(entry.session.lease);
        if let Some(entry) = self.local(key).into_iter().chain(&then).find(is_meant) {
            let key = Bytes::copy_from_slice(key);
            let admin = AdminRow { request, key, row: row.key.clone() };
            entry.apply(EntryEvent::Admin(admin), actions);
        }
    }

    /// Handles the loss of a local entry's key: it was deleted, detached, or attached to another
    /// lease. `handed` are the keys that were transferred in the same change.
    pub(crate) fn local_key_lost(
        &mut self,
        handed: &[&Event],
        event: &Event,
        entry: &Arc<QueueEntry>,
        actions: &mut DeferredActions,
    ) {
        let key = &event.kv.key;
        let (phase, keys) = (entry.phase(), entry.keys());
        let Some(prefix) =
            entry.prefixes.iter().find(|prefix| parent(key) == Some(prefix)).cloned()
        else {
            return;
        };
        if !keys.contains(key) {
            // This is an old key of the entry, which was re-enqueued with a new key.
            return self.forget(entry, &prefix, key);
        }
        let queue = self.queues.get(&prefix);
        let is_its = |other: &&&Event| {
            other.kv.lease == Some(entry.session.lease)
                && parent(&other.kv.key) == Some(&prefix)
                && !queue.is_some_and(|queue| queue.has(&other.kv.key))
        };
        if let Some(other) = handed.iter().find(is_its) {
            let (handed, since) = (other.kv.key.clone(), other.kv.create_revision);
            if keys.len() == 1 {
                return self.receive_transfer(entry, &handed, since, actions);
            }
            // A request for several locks cannot use a single lock, so release the transferred hold
            // again. The request has lost its queue position.
            let handed: Arc<[Bytes]> = Arc::new([handed]);
            let plan = ReleasePlan::of_lost(&handed, since);
            actions.push(entry, Action::Release { plan, reply: ReplyTo::Discard });
        }
        match phase {
            // The outcome of the enqueue arrives later and will find the key deleted.
            Phase::Entering => {}
            Phase::Waiting(since) | Phase::Held(since) => {
                self.key_lost(entry, &keys, since, Some(key), actions);
            }
            Phase::Gone => self.forget(entry, &prefix, key),
        }
    }

    /// Handles a transfer to a waiting entry: the entry's own key is replaced by the holder's key,
    /// which is now attached to the entry's lease.
    pub(crate) fn receive_transfer(
        &mut self,
        entry: &Arc<QueueEntry>,
        key: &Bytes,
        since: Revision,
        actions: &mut DeferredActions,
    ) {
        let prefix = &entry.prefixes[0];
        let old = entry.keys();
        let is_unusable = self.unusable.contains(&(entry.session.lease, key.clone(), since));
        let event = EntryEvent::TransferReceived { key: key.clone(), since, is_unusable };
        let step = entry.apply(event, actions);
        let is_unusable = is_unusable && matches!(step.from, Phase::Entering | Phase::Waiting(_));
        let before = self.queues.get(prefix).and_then(|queue| queue.local.get(key)).cloned();
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, entry)) {
            // The previous holder is on this node as well: remove its entry.
            self.forget(&before, prefix, key);
        }
        if let Some(queue) = self.queues.get_mut(prefix) {
            queue.local.remove(&old[0]);
            queue.local.insert(key.clone(), Arc::clone(entry));
            queue.waiting.retain(|_, waiting| !Arc::ptr_eq(waiting, entry));
            if !is_unusable {
                queue.waiting.insert(QueuePosition::new(since, key.clone()), Arc::clone(entry));
            }
        }
    }

    /// Looks for a hold that was transferred to a waiting entry whose key is gone.
    pub(crate) fn find_transfer(
        &mut self,
        shared: &Shared,
        entry: &Arc<QueueEntry>,
        actions: &mut DeferredActions,
    ) -> bool {
        let [prefix] = &*entry.prefixes else { return false };
        let Some(queue) = self.queues.get(prefix) else { return false };
        let rows = view::rows(shared, prefix);
        let (value, since) = (entry.value(), entry.since());
        let handed = rows.into_iter().find(|row| {
            // A transfer rewrites the holder's row with the value of the successor's row, while the
            // successor waits.
            row.lease == Some(entry.session.lease)
                && row.version > 1
                && Some(row.mod_revision) > since
                && row.value == value
                && !queue.has(&row.key)
        });
        let Some(row) = handed else { return false };
        self.receive_transfer(entry, &row.key, row.create_revision, actions);
        self.grant_waiting(shared, prefix, actions);
        // When the request was applied, the entry of this key was not known yet.
        if let Some(order) = shared.reader.get(&admin_request_key(&row.key)).0 {
            self.follow_request(&order, None, actions);
        }
        true
    }

    /// Rebuilds the table after the replica was replaced by a snapshot.
    pub(crate) fn rebuild(&mut self, shared: &Shared, actions: &mut DeferredActions) {
        let prefixes: Vec<Bytes> = self.queues.keys().cloned().collect();
        for prefix in &prefixes {
            let Some(queue) = self.queues.get_mut(prefix) else { continue };
            if queue.all.is_none() {
                continue;
            }
            let all = LockQueue::of(&view::rows(shared, prefix));
            let entries: Vec<(Bytes, Arc<QueueEntry>)> =
                queue.local.iter().map(|(key, entry)| (key.clone(), Arc::clone(entry))).collect();
            queue.waiting.retain(|position, _| all.contains(position));
            queue.upgrades.retain(|position| all.contains(position));
            queue.all = Some(all);
            for (key, entry) in entries {
                let (phase, now) = (entry.phase(), entry.keys());
                let row = shared.reader.get(&key).0;
                let row = row.filter(|row| row.lease == Some(entry.session.lease));
                let is_there =
                    |since: Revision| row.as_ref().is_some_and(|row| row.create_revision == since);
                // The row may have been rewritten in changes that the snapshot skipped.
                if let Some(row) = row.as_ref().filter(|row| now.contains(&row.key)) {
                    entry.update_value(&key, &row.value, actions);
                }
                match phase {
                    // This is an old key of the entry. The skipped changes may have deleted or
                    // transferred it.
                    _ if !now.contains(&key) => {
                        if row.is_none() {
                            self.forget(&entry, prefix, &key);
                        }
                    }
                    // The outcome of the enqueue arrives later.
                    Phase::Entering => {}
                    Phase::Waiting(since) | Phase::Held(since) => {
                        if !is_there(since) && !self.find_transfer(shared, &entry, actions) {
                            self.key_lost(&entry, &now, since, Some(&key), actions);
                        }
                    }
                    Phase::Gone => {
                        if row.is_none() {
                            self.forget(&entry, prefix, &key);
                        }
                    }
                }
            }
        }
        for prefix in &prefixes {
            self.grant_waiting(shared, prefix, actions);
            for row in view::request_rows(shared, prefix) {
                self.follow_request(&row, None, actions);
            }
        }
    }
}

/// Returns the rows of a change that were attached to another lease.
fn transferred_rows(change: &Change) -> Vec<&Event> {
    change.events().iter().filter(|event| is_transferred(event)).collect()
}

/// Reports whether a row was attached to another lease. The row then has the successor's value,
/// which does not concern an earlier entry with this key.
fn is_transferred(event: &Event) -> bool {
    let before = event.prev.as_ref().and_then(|before| before.lease);
    event.prev.is_some() && event.kv.lease.is_some() && event.kv.lease != before
}
