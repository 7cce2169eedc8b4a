//! Updates the lock table from the changes that the replica applies: deleted keys, rewritten rows,
//! holds transferred to local entries, admin requests, and snapshots that replace the state.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::super::error::LockError;
use super::super::line::parent;
use super::super::order::{self, Order};
use super::super::place::{Act, Acts, Phase, Place};
use super::super::rule::Rule;
use super::super::stance::Stance;
use super::super::view;
use super::{Book, fail_all, no_more, queue_of};
use crate::machine::Change;
use crate::model::{Event, EventKind, KeyValue, Revision};
use crate::node::{ReplyTo, Shared};

impl Book {
    /// Processes one change of the store. Rows that may be admin requests are only collected. Each
    /// is stored with the local entry that has the addressed key now, because that entry may be
    /// gone when all changes have been processed.
    pub(in super::super) fn follow<'a>(
        &mut self,
        change: &'a Change,
        touched: &mut BTreeSet<Bytes>,
        orders: &mut Vec<(&'a KeyValue, Option<Arc<Place>>)>,
        acts: &mut Acts,
    ) {
        // Compute this at most once per change, and only if a local entry loses its key, because
        // the end of a session deletes many keys in one change.
        let handed = OnceCell::new();
        for event in change.events.iter() {
            if event.kind == EventKind::Delete && !self.spent.is_empty() {
                self.spent.retain(|(_, key, _)| *key != event.kv.key);
            }
            let Some(prefix) = parent(&event.kv.key) else { continue };
            let Some(line) = self.lines.get_mut(prefix) else {
                if event.kind == EventKind::Put
                    && let Some(key) = order::addressee(&event.kv.key)
                {
                    match mutant!(B35) {
                        false => orders.push((&event.kv, self.local(key).cloned())),
                        true => self.follow_order(&event.kv, None, acts),
                    }
                }
                continue;
            };
            let Some(queue) = &mut line.queue else { continue };
            let key = &event.kv.key;
            let is_place = event.kind == EventKind::Put && event.kv.lease.is_some();
            if let Some(before) = &event.prev {
                let rank = (before.create_revision, key.clone());
                queue.remove(&rank);
                if !is_place {
                    line.waiting.remove(&rank);
                    line.upgrades.remove(&rank);
                }
            }
            if is_place {
                let rule = Stance::rule_in_line(key, &event.kv.value);
                queue.insert((event.kv.create_revision, key.clone()), rule);
            }
            touched.insert(Bytes::copy_from_slice(prefix));
            let Some(place) = line.local.get(key).cloned() else { continue };
            if !is_place || event.kv.lease != Some(place.session.lease) {
                let handed = handed.get_or_init(|| handed_in(change));
                self.has_gone(handed, event, &place, acts);
            } else if !changes_hands(event) {
                update_value(&place, key, &event.kv.value, acts);
            }
            if event.kind == EventKind::Delete
                && let Some(line) = self.lines.get_mut(prefix)
            {
                line.is_deleted(prefix, key, place.session.lease);
            }
        }
    }

    /// Processes an admin request to a local entry: the entry that has the addressed key now, or
    /// the entry that had the key when the request was applied.
    pub(in super::super) fn follow_order(
        &self,
        row: &KeyValue,
        then: Option<Arc<Place>>,
        acts: &mut Acts,
    ) {
        let (Some(key), Some(order)) = (order::addressee(&row.key), Order::parse(&row.value))
        else {
            return;
        };
        let is_meant = |place: &&Arc<Place>| row.lease == Some(place.session.lease);
        if let Some(place) = self.local(key).into_iter().chain(&then).find(is_meant) {
            place.obey(order, key, &row.key, acts);
        }
    }

    /// Handles the loss of a local entry's key: it was deleted, detached, or attached to another
    /// lease. `handed` are the keys that were transferred in the same change.
    pub(super) fn has_gone(
        &mut self,
        handed: &[&Event],
        event: &Event,
        place: &Arc<Place>,
        acts: &mut Acts,
    ) {
        let key = &event.kv.key;
        let (phase, keys) = {
            let inner = place.lock();
            (inner.phase, Arc::clone(&inner.keys))
        };
        let Some(prefix) =
            place.prefixes.iter().find(|prefix| parent(key) == Some(prefix)).cloned()
        else {
            return;
        };
        if !keys.contains(key) {
            // This is an old key of the entry, which was re-enqueued with a new key.
            return self.forget(place, &prefix, key);
        }
        let line = self.lines.get(&prefix);
        let is_its = |other: &&&Event| {
            other.kv.lease == Some(place.session.lease)
                && parent(&other.kv.key) == Some(&prefix)
                && !line.is_some_and(|line| line.has(&other.kv.key))
        };
        if let Some(other) = handed.iter().find(is_its) {
            let (handed, since) = (other.kv.key.clone(), other.kv.create_revision);
            if keys.len() == 1 {
                return self.is_handed(place, &handed, since, acts);
            }
            // A request for several locks cannot use a single lock, so release the transferred hold
            // again. The request has lost its queue position.
            let handed: Arc<[Bytes]> = Arc::new([handed]);
            let (place, parting) = (Arc::clone(place), no_more(&handed, since));
            acts.0.push(Act::Part { place, parting, reply: ReplyTo::Nobody });
        }
        match phase {
            // The outcome of the enqueue arrives later and will find the key deleted.
            Phase::Entering => {}
            Phase::Waiting { since } | Phase::Held { since, .. } => {
                self.is_evicted(place, &keys, since, Some(key), acts);
            }
            Phase::Gone => self.forget(place, &prefix, key),
        }
    }

    /// Handles a transfer to a waiting entry: the entry's own key is replaced by the holder's key,
    /// which is now attached to the entry's lease.
    pub(super) fn is_handed(
        &mut self,
        place: &Arc<Place>,
        key: &Bytes,
        since: Revision,
        acts: &mut Acts,
    ) {
        let prefix = &place.prefixes[0];
        let mut is_spent = false;
        let old = {
            let mut inner = place.lock();
            let old = std::mem::replace(&mut inner.keys, Arc::new([key.clone()]));
            if matches!(inner.phase, Phase::Entering | Phase::Waiting { .. }) {
                inner.phase = Phase::Waiting { since };
                is_spent = self.spent.contains(&(place.session.lease, key.clone(), since));
                if is_spent && inner.waiting() > 0 {
                    // Two holds of one session with the same key could not be distinguished.
                    let (place, parting) = (Arc::clone(place), Some(no_more(&inner.keys, since)));
                    acts.0.push(Act::EnterAgain { place, parting });
                    inner.begin_again();
                } else {
                    place.rest(&mut inner, ReplyTo::Nobody, acts);
                }
            } else {
                // Meanwhile the successor has left, or has acquired the lock with the key that is
                // now deleted.
                let session = place.session.ended().map(LockError::SessionEnded);
                inner.end(&session.unwrap_or(LockError::Evicted), place.session.lease, acts);
                let parting = no_more(&inner.keys, since);
                let (place, reply) = (Arc::clone(place), ReplyTo::Nobody);
                acts.0.push(Act::Part { place, parting, reply });
            }
            old
        };
        let before = self.lines.get(prefix).and_then(|line| line.local.get(key)).cloned();
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, place)) {
            // The previous holder is on this node as well: remove its entry.
            self.forget(&before, prefix, key);
        }
        if let Some(line) = self.lines.get_mut(prefix) {
            line.local.remove(&old[0]);
            line.local.insert(key.clone(), Arc::clone(place));
            line.waiting.retain(|_, waiting| !Arc::ptr_eq(waiting, place));
            if !is_spent {
                line.waiting.insert((since, key.clone()), Arc::clone(place));
            }
        }
    }

    /// Looks for a hold that was transferred to a waiting entry whose key is gone.
    pub(in super::super) fn find_handed(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        acts: &mut Acts,
    ) -> bool {
        let [prefix] = &*place.prefixes else { return false };
        let Some(line) = self.lines.get(prefix) else { return false };
        let rows = view::rows(shared, prefix);
        let (value, since) = {
            let inner = place.lock();
            (inner.value.clone(), inner.since())
        };
        let handed = rows.into_iter().find(|row| {
            // A transfer rewrites the holder's row with the value of the successor's row, while the
            // successor waits.
            row.lease == Some(place.session.lease)
                && row.version > 1
                && Some(row.mod_revision) > since
                && row.value == value
                && !line.has(&row.key)
        });
        let Some(row) = handed else { return false };
        self.is_handed(place, &row.key, row.create_revision, acts);
        self.grant_waiting(shared, prefix, acts);
        // When the request was applied, the entry of this key was not known yet.
        if let Some(order) = shared.reader.get(&order::key_for(&row.key)).0 {
            self.follow_order(&order, None, acts);
        }
        true
    }

    /// Rebuilds the table after the replica was replaced by a snapshot.
    pub(in super::super) fn is_replaced(&mut self, shared: &Shared, acts: &mut Acts) {
        let prefixes: Vec<Bytes> = self.lines.keys().cloned().collect();
        for prefix in &prefixes {
            let Some(line) = self.lines.get_mut(prefix) else { continue };
            if line.queue.is_none() {
                continue;
            }
            let queue = queue_of(view::rows(shared, prefix));
            let places: Vec<(Bytes, Arc<Place>)> =
                line.local.iter().map(|(key, place)| (key.clone(), Arc::clone(place))).collect();
            line.waiting.retain(|rank, _| queue.contains(rank));
            line.upgrades.retain(|rank| queue.contains(rank));
            line.queue = Some(queue);
            for (key, place) in places {
                let (phase, now) = {
                    let inner = place.lock();
                    (inner.phase, Arc::clone(&inner.keys))
                };
                let row = shared.reader.get(&key).0;
                let row = row.filter(|row| row.lease == Some(place.session.lease));
                let is_there =
                    |since: Revision| row.as_ref().is_some_and(|row| row.create_revision == since);
                // The row may have been rewritten in changes that the snapshot skipped.
                if let Some(row) = row.as_ref().filter(|row| now.contains(&row.key)) {
                    update_value(&place, &key, &row.value, acts);
                }
                match phase {
                    // This is an old key of the entry. The skipped changes may have deleted or
                    // transferred it.
                    _ if !now.contains(&key) => {
                        if row.is_none() {
                            self.forget(&place, prefix, &key);
                        }
                    }
                    // The outcome of the enqueue arrives later.
                    Phase::Entering => {}
                    Phase::Waiting { since } | Phase::Held { since, .. } => {
                        if !is_there(since) && !self.find_handed(shared, &place, acts) {
                            self.is_evicted(&place, &now, since, Some(&key), acts);
                        }
                    }
                    Phase::Gone => {
                        if row.is_none() {
                            self.forget(&place, prefix, &key);
                        }
                    }
                }
            }
        }
        for prefix in &prefixes {
            self.grant_waiting(shared, prefix, acts);
            for row in order::rows(shared, prefix) {
                self.follow_order(&row, None, acts);
            }
        }
    }
}

/// Returns the rows of a change that were attached to another lease.
fn handed_in(change: &Change) -> Vec<&Event> {
    change.events.iter().filter(|event| changes_hands(event)).collect()
}

/// Reports whether a row was attached to another lease. The row then has the successor's value,
/// which does not concern an earlier entry with this key.
fn changes_hands(event: &Event) -> bool {
    let before = event.prev.as_ref().and_then(|before| before.lease);
    event.prev.is_some() && event.kv.lease.is_some() && event.kv.lease != before
}

/// Stores a new value of an entry's row. The entry itself may have written it.
pub(super) fn update_value(place: &Arc<Place>, key: &Bytes, value: &Bytes, acts: &mut Acts) {
    place.lock().value = value.clone();
    if let Rule::Permits { limit, wants: asked } = Stance::rule_of(key, value)
        && asked > limit
    {
        // The new value does not affect an entry that already holds the lock.
        fail_all(place, &LockError::TooManyPermits { asked, limit }, acts);
    }
}
