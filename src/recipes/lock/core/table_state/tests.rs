//! Tests of the lock table.

use super::*;
use crate::machine::Change;
use crate::model::{Event, EventKind, KeyValue};
use crate::node::ReplyTo;
use crate::node::SessionEndReason;
use crate::recipes::lock::core::bound::{BoundKey, Load};
use crate::recipes::lock::core::entry::{Action, Enqueued};
use crate::recipes::lock::core::waiter::WaiterOptions;

const SINCE: Revision = Revision(2);

/// Returns a new entry with this key in the table, and a waiter for each of `TASKS` tasks.
fn new_entry<const TASKS: usize>(
    state: &mut LockTableState,
    session: &Arc<SharedSession>,
    key: &Bytes,
) -> (Arc<QueueEntry>, [Arc<Waiter>; TASKS]) {
    let prefix = Bytes::from_static(b"lock/");
    let counts = state.counts(std::slice::from_ref(&prefix));
    let data = EntryData::new([key.clone()].into(), Bytes::new(), counts);
    let entry = QueueEntry::new(state.number(), [prefix].into(), Arc::clone(session), true, data);
    let waiters = std::array::from_fn(|_| entry.add_waiter(WaiterOptions::default()));
    state.insert(&entry);
    (entry, waiters)
}

fn enqueued(entry: &Arc<QueueEntry>, outcome: Enqueued) {
    let mut actions = DeferredActions::default();
    entry.apply(EntryEvent::Enqueued { since: SINCE, outcome }, &mut actions);
}

/// Releases a hold without waiters, so that the entry is gone.
fn release(entry: &Arc<QueueEntry>, waiter: &Arc<Waiter>, actions: &mut DeferredActions) {
    assert!(entry.release(waiter, LostReason::Released, ReplyTo::Discard, actions));
}

/// Returns a lock table with one entry, and a waiter for each of `TASKS` tasks.
fn entering<const TASKS: usize>() -> (LockTableState, Arc<QueueEntry>, [Arc<Waiter>; TASKS]) {
    let (lease, until) =
        (LeaseId::new(5).unwrap(), Moment::since_boot(std::time::Duration::from_secs(9)));
    let session = Arc::new(SharedSession::with_valid_lease(lease, until));
    let mut state = LockTableState::default();
    let key = Bytes::from_static(b"lock/5");
    let (entry, waiters) = new_entry(&mut state, &session, &key);
    // The key is missing from the queue, as after a manual deletion or an expired lease.
    state.queues.get_mut(&b"lock/"[..]).unwrap().all = Some(LockQueue::default());
    (state, entry, waiters)
}

/// Like [`entering`], with an entry that holds since revision 2.
fn held<const TASKS: usize>() -> (LockTableState, Arc<QueueEntry>, [Arc<Waiter>; TASKS]) {
    let (state, entry, waiters) = entering();
    enqueued(&entry, Enqueued::MayHold(SINCE));
    (state, entry, waiters)
}

#[test]
fn key_name_is_reused_only_after_its_known_deletion() {
    let (mut state, entry, [_waiter]) = held();
    let lease = entry.session.lease;
    let [prefix, plain] = ["lock/", "lock/5"].map(Bytes::from);
    let stand = |state: &mut LockTableState| {
        let key = state.new_key(&prefix, lease, |_| false);
        let (next, []) = new_entry(state, &entry.session, &key);
        (next, key)
    };
    let [one, two, three] = [(); 3].map(|()| stand(&mut state));
    assert!(one.1 != two.1 && two.1 != three.1 && three.1 != one.1);
    // The entry was given up, but its key may still exist or may meanwhile belong to another
    // session.
    let why = LockError::Evicted;
    two.0.apply(EntryEvent::EnqueueFailed(why), &mut DeferredActions::default());
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
    Change::of_events(Revision(9), rows.iter().map(event).collect())
}

fn follow(state: &mut LockTableState, rows: &[(&'static str, Option<u64>, Option<u64>)]) {
    let change = change(rows);
    let (mut touched, mut requests, mut actions) = Default::default();
    state.follow(&change, &mut touched, &mut requests, &mut actions);
}

#[test]
fn returned_key_belongs_to_the_successor() {
    // This node has not applied the change in which the key belonged to another session.
    let (mut state, before, [holder]) = held();
    release(&before, &holder, &mut DeferredActions::default());
    let key = state.new_key(&before.prefixes[0], before.session.lease, |_| false);
    let (successor, [waiter]) = new_entry(&mut state, &before.session, &key);
    enqueued(&successor, Enqueued::MustWait);
    assert_eq!(key, "lock/5.2");
    follow(&mut state, &[("lock/5", Some(7), Some(5)), ("lock/5.2", Some(5), None)]);
    assert!(matches!(waiter.stage(None), WaiterStage::Requested));
    assert_eq!(successor.keys()[..], ["lock/5"]);
    assert!(state.local(b"lock/5").is_some_and(|entry| Arc::ptr_eq(entry, &successor)));
    assert!(state.local(b"lock/5.2").is_none());
}

#[test]
fn row_value_is_recorded_only_once_the_entry_owns_its_key() {
    let (mut state, entry, [_waiter]) = entering();
    follow(&mut state, &[("lock/5", Some(7), Some(5))]);
    assert_eq!(entry.value(), "");
    follow(&mut state, &[("lock/5", Some(5), Some(5))]);
    assert_eq!(entry.value(), "of the successor");
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
    let (keys, mut actions) = (entry.keys(), DeferredActions::default());
    // The entry held. The task of the holder releases it on another thread before the deletion
    // of the key is processed.
    release(&entry, &waiter, &mut actions);
    assert_eq!(entry.phase(), Phase::Gone);
    evict(&mut state, &entry, &keys, &mut actions);
    assert!(state.is_empty() && state.sessions.is_empty(), "nobody will ever say that it is gone");
}

#[test]
fn requeued_entry_keeps_its_waiters_during_eviction() {
    let (mut state, entry, [first, second]) = held();
    let (keys, mut actions) = (entry.keys(), DeferredActions::default());
    assert!(entry.prevent_handoff(&first));
    release(&entry, &first, &mut actions);
    assert_eq!(entry.phase(), Phase::Entering);
    evict(&mut state, &entry, &keys, &mut actions);
    assert_eq!(entry.phase(), Phase::Entering);
    assert!(matches!(second.stage(None), WaiterStage::Requested), "its new key would stay forever");
}

#[test]
fn waiters_behind_an_evicted_hold_requeue_once() {
    let (mut state, entry, [first, second]) = held();
    let (keys, mut actions) = (entry.keys(), DeferredActions::default());
    evict(&mut state, &entry, &keys, &mut actions);
    assert_eq!(first.loss(), Some(LostReason::KeyDeleted));
    assert_eq!(entry.phase(), Phase::Entering);
    evict(&mut state, &entry, &keys, &mut actions);
    assert!(matches!(second.stage(None), WaiterStage::Requested));
    let again = |(_, action): &(Arc<QueueEntry>, Action)| matches!(action, Action::Requeue { .. });
    assert_eq!(actions.into_iter().filter(again).count(), 1);
}

#[test]
fn keys_bound_late_are_left_to_the_lost_sessions_lease() {
    let (_, entry, [waiter]) = held();
    let mut actions = DeferredActions::default();
    let bound = vec![BoundKey::of_key(Bytes::from_static(b"bound"))];
    let binds = Load::of(&bound);
    assert_eq!(entry.begin_txn(&waiter, binds), Ok(true));
    entry.session.end(Moment::since_boot(std::time::Duration::from_secs(9)));
    let end = SessionEndReason::NotRenewed;
    let (loss, why) = (LostReason::SessionEnded(end), LockError::SessionEnded(end));
    entry.apply(EntryEvent::Ended { loss, why }, &mut actions);
    entry.apply(EntryEvent::TxnEnded { binds, is_known: true, bound }, &mut actions);
    let deletes = |(_, action): (Arc<QueueEntry>, Action)| {
        matches!(action, Action::DeleteBound(_) | Action::Release { .. })
    };
    assert!(
        !actions.into_iter().any(deletes),
        "it goes with the lock's own key, after the lock delay"
    );
}
