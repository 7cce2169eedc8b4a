//! The release plan of a hold that has ended: states what happens to its keys and to the keys
//! attached to it.

use std::sync::Arc;

use bytes::Bytes;

use crate::lock_format::{EntryMetadata, LockMode, LockQueue, QueuePosition, parent};
use crate::model::{Compare, KeyRange, KeyValue, LeaseId, Op, Put, Revision, Txn};
use crate::node::Shared;

use super::bound::{BoundKey, delete_bound};
use super::view;

/// Maximum number of other semaphore entries that a transfer of permits may depend on. The transfer
/// is applied only if none of these entries has changed.
const TRANSFERRED_MAX: usize = 64;

pub(crate) struct ReleasePlan {
    pub(crate) keys: Arc<[Bytes]>,
    pub(crate) since: Revision,
    /// Keys that are deleted with the hold.
    pub(crate) bound: Vec<BoundKey>,
    /// A transaction under the hold may still be applied.
    pub(crate) has_late_txns: bool,
    /// The entry that gets the hold. If that entry is not waiting any more, the keys are deleted.
    pub(crate) successor: Option<Successor>,
}

/// The entry to which a hold is transferred.
pub(crate) struct Successor {
    pub(crate) position: QueuePosition,
    /// Whether the waiting caller has named the successor. If so, the caller gets an error if the
    /// transfer is not possible.
    pub(crate) reports_failure: bool,
}

impl ReleasePlan {
    /// Returns the plan of a lost hold: its remaining keys are deleted.
    pub(crate) fn of_lost(keys: &Arc<[Bytes]>, since: Revision) -> Self {
        let (keys, bound) = (Arc::clone(keys), Vec::new());
        Self { keys, since, bound, has_late_txns: false, successor: None }
    }

    /// Returns the transaction of the release plan.
    pub(crate) fn to_txn(&self, shared: &Shared, lease: LeaseId) -> Txn {
        let leaving = self.leaving(lease);
        let ([key], Some(successor)) = (&*self.keys, &self.successor) else { return leaving };
        let QueuePosition { since, key: successor } = &successor.position;
        let row = shared.reader.get(successor).0.filter(|row| row.create_revision == *since);
        let Some(row) = row else { return leaving };
        let Some(successor_lease) = row.lease.filter(|successor| *successor != lease) else {
            return leaving;
        };
        // A reader's hold cannot be transferred to a writer: other readers may hold at the same
        // time.
        let (Some(held), _) = shared.reader.get(key) else { return leaving };
        let mode = EntryMetadata::mode_of(&held.key, &held.value);
        if !mode.covers(&EntryMetadata::mode_of(successor, &row.value)) && !mutant!(B65) {
            return leaving;
        }
        let mut compares = still_mine(key, self.since, lease).to_vec();
        let Some(barred) = kept_waiting(shared, &row) else { return leaving };
        // This decision is based on the local replica. A downgrade of the row may be in flight. A
        // downgrade changes neither lease nor create revision, so the transaction must also compare
        // the row's revision.
        if !mutant!(B34) {
            compares.push(Compare::mod_revision(key.clone()).eq(held.mod_revision));
        }
        if !mutant!(B19) {
            compares.extend(still_mine(successor, row.create_revision, successor_lease));
            compares.push(Compare::mod_revision(successor.clone()).eq(row.mod_revision));
        }
        if !mutant!(B66) {
            compares.extend(barred);
        }
        let taken = Put::new(key.clone(), row.value).lease(successor_lease);
        let mut success = vec![Op::Put(taken), Op::delete(successor.clone())];
        success.extend(delete_bound(lease, &self.bound));
        Txn { compares, success, failure: vec![Op::Txn(leaving)] }
    }

    /// Returns the transaction that deletes each key that still belongs to the entry, and the keys
    /// attached to its hold.
    pub(crate) fn leaving(&self, lease: LeaseId) -> Txn {
        let mut parts: Vec<Txn> = self
            .keys
            .iter()
            .take(if mutant!(B07) { 1 } else { self.keys.len() })
            .map(|key| {
                let mut deletion = Op::delete(key.clone());
                mutant!(
                    M26,
                    deletion =
                        Op::delete(KeyRange::prefix(parent(key).unwrap_or_default().to_vec()))
                );
                Txn::if_all(still_mine(key, self.since, lease), [deletion])
            })
            .collect();
        // Delete only keys with the lease of the hold. A key with another lease belongs to another
        // owner.
        parts[0].success.extend(delete_bound(lease, &self.bound));
        if parts.len() == 1 {
            return parts.remove(0);
        }
        Txn { success: parts.into_iter().map(Op::Txn).collect(), ..Txn::default() }
    }
}

/// Returns the conditions under which a successor still waits, apart from the holder's own entry. A
/// successor that has meanwhile become a holder by itself must not lose that hold together with its
/// key. Returns `None` if the successor already holds, or if there would be too many conditions.
fn kept_waiting(shared: &Shared, successor: &KeyValue) -> Option<Vec<Compare>> {
    let prefix = Bytes::copy_from_slice(parent(&successor.key)?);
    let rows = view::rows(shared, &prefix);
    let queue = LockQueue::of(&rows);
    let position = QueuePosition::of(successor);
    if queue.may_hold(&position) {
        return None;
    }
    let before = rows.iter().take_while(|row| row.key != successor.key);
    let as_it_is = |row: &KeyValue| Compare::mod_revision(row.key.clone()).eq(row.mod_revision);
    match queue.mode(&position)? {
        // Only the transferring holder holds the lock, so no further conditions are needed.
        LockMode::Mutex | LockMode::Write | LockMode::Upgrade(_) => Some(Vec::new()),
        LockMode::Read => {
            let bars =
                |row: &&KeyValue| EntryMetadata::mode_of(&row.key, &row.value) != LockMode::Read;
            Some(before.clone().find(bars).map(as_it_is).into_iter().collect())
        }
        LockMode::Foreign => None,
        LockMode::Permits { limit, .. } => {
            // Permits stay held when the limit is reduced, and a row does not show whether its
            // permits are held. But if no limit that applies to a waiter was ever reduced, the
            // waiter has never held its permits.
            let has_less = |row: &KeyValue| match EntryMetadata::mode_of(&row.key, &row.value) {
                LockMode::Permits { limit: other, .. } => other < *limit,
                _ => false,
            };
            if successor.version > 1 || before.clone().any(has_less) {
                return None;
            }
            let all: Vec<Compare> = before.map(as_it_is).collect();
            (all.len() <= TRANSFERRED_MAX).then_some(all)
        }
    }
}

/// Returns the conditions under which a key still belongs to an entry.
pub(crate) fn still_mine(key: &Bytes, since: Revision, lease: LeaseId) -> [Compare; 2] {
    [Compare::create_revision(key.clone()).eq(since), Compare::lease(key.clone()).eq(lease.get())]
}
