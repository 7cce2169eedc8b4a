//! Tests of what operators can see of locks, and of the actions that they can take.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bowline::{
    Blocking, Effect, Error, KeyRange, Leadership, LockError, LockState, LostReason, Node, Op,
    Rejection, Released,
    cluster::{Alarm, AlarmChange, AlarmKind},
    lock::{LockAdminError, LockEntry, ReadGuard, WriteGuard},
};

use crate::stage::{
    Begun, SHORT, SOON, another_session, lasting, mortal, places, roles, session, stand_in_line,
    until_places, until_true,
};

/// Returns the entry at a position of a lock queue, as a member sees it.
fn place(node: &Node, name: &str, at: usize) -> LockEntry {
    node.locks().of(name.to_owned()).unwrap().queue[at].clone()
}

#[test]
fn any_member_lists_holders_waiters_reasons_and_foreign_keys() {
    let cluster = lasting(3);
    let holder = another_session(&cluster, 0, "billing");
    let _guard = holder.mutex("jobs/nightly").lock().reason("closing the books").block().unwrap();
    let waiting = stand_in_line(&session(&cluster, 1), cluster.node(1), "jobs/nightly");
    let kv = cluster.node(2).client();
    kv.put("jobs/nightly/readme", "not a place").block().unwrap();
    kv.put("jobs/other", "no lock").block().unwrap();
    until_places(cluster.node(2), "jobs/nightly", 3);

    let all = cluster.node(2).locks().list_prefix("jobs/").unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    let [first, second] = &all[0].queue[..] else { panic!("{all:?}") };
    assert!(first.holds && !second.holds);
    assert_eq!(first.label.as_deref(), Some("billing"));
    assert_eq!(first.reason, "closing the books");
    assert!(first.site.contains("tests/nodes/operators.rs:"), "{first:?}");
    assert_eq!(second.label.as_deref(), Some("m1"));
    assert_eq!(all[0].foreign_keys, ["jobs/nightly/readme"]);
    assert!(first.to_string().starts_with("billing, "), "{first}");
    drop(waiting);
    until_places(cluster.node(2), "jobs/nightly", 2);
}

#[test]
fn holder_is_notified_of_a_release_request() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    assert_eq!(guard.request(), None);
    until_places(cluster.node(1), "lock", 1);
    let holder = place(cluster.node(1), "lock", 0);
    cluster.node(1).locks().request_release(&holder, "a release goes out").block().unwrap();
    let request = guard.asked_to_release().block();
    assert_eq!((request.by.as_str(), request.reason.as_str()), ("m1", "a release goes out"));
    assert!(guard.is_held());
    assert_eq!(guard.release().block().unwrap(), Released::Now);
    until_places(cluster.node(1), "lock", 0);
    let late = cluster.node(1).locks().request_release(&holder, "too late").block();
    assert_eq!(late.unwrap_err(), LockAdminError::Gone);
    assert_eq!(places(cluster.node(0), "lock"), 0);
}

/// Writes one more entry. The message that replicates it also reports to the followers that all
/// earlier entries are committed.
fn known_as_committed(node: &Node) {
    node.client().put("later", "").block().unwrap();
}

#[test]
fn admin_action_reaches_a_new_holder_in_the_same_turn() {
    for transfer in [false, true] {
        let cluster = lasting(3);
        let (leader, one, two) = roles(&cluster);
        let first = session(&cluster, leader).mutex("lock").lock().block().unwrap();
        let second = stand_in_line(&session(&cluster, one), cluster.node(one), "lock");
        let third = stand_in_line(&session(&cluster, two), cluster.node(two), "lock");
        // The second request is granted and receives an admin request, and its node learns of both
        // at once.
        cluster.pause(one);
        first.release().block().unwrap();
        until_places(cluster.node(leader), "lock", 2);
        let line = cluster.node(leader).locks().of("lock").unwrap().queue;
        assert!(line[0].holds && line[0].lease == session(&cluster, one).lease());
        let locks = cluster.node(leader).locks();
        if transfer {
            let order = Begun::new(async move { locks.transfer(&line[0], &line[1], "").await });
            until_places(cluster.node(leader), "lock", 3);
            known_as_committed(cluster.node(leader));
            cluster.resume(one);
            assert!(third.finish().unwrap().is_held());
            order.finish().unwrap();
            assert_eq!(second.finish().unwrap_err(), LockError::Evicted);
        } else {
            locks.request_release(&line[0], "it is due").block().unwrap();
            known_as_committed(cluster.node(leader));
            cluster.resume(one);
            let second = second.finish().unwrap();
            let node = cluster.node(one);
            until_true(node, "the holder is asked", || second.request().is_some());
        }
    }
}

#[test]
fn admin_action_reaches_a_successor_before_its_queue_entry_is_known() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let first = session(&cluster, leader).mutex("lock").lock().block().unwrap();
    let mine = session(&cluster, one);
    // The request arrives, but no answer comes back. While the node is paused, it cannot notice the cut before it has
    // sent the request.
    cluster.pause(one);
    let successor = Begun::new(mine.mutex("lock").lock());
    cluster.cut(leader, one);
    cluster.cut(two, one);
    cluster.resume(one);
    until_places(cluster.node(leader), "lock", 2);
    first.transfer(&place(cluster.node(leader), "lock", 1)).block().unwrap();
    let holder = place(cluster.node(leader), "lock", 0);
    assert!(holder.holds && holder.lease == mine.lease());
    cluster.node(leader).locks().request_release(&holder, "it is due").block().unwrap();
    cluster.heal();
    let successor = successor.finish().unwrap();
    until_true(cluster.node(one), "the successor is asked", || successor.request().is_some());
    successor.release().block().unwrap();
    until_places(cluster.node(leader), "lock", 0);
}

#[test]
fn admin_action_at_the_end_of_its_entry_leaves_no_key() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    until_places(cluster.node(leader), "lock", 1);
    let (holder, locks) = (place(cluster.node(leader), "lock", 0), cluster.node(leader).locks());
    // The node of the entry learns of both changes at once.
    cluster.pause(one);
    locks.request_release(&holder, "it is due").block().unwrap();
    cluster.node(leader).client().delete(holder.key).block().unwrap();
    known_as_committed(cluster.node(leader));
    cluster.resume(one);
    assert_eq!(guard.lost().block(), LostReason::KeyDeleted);
    until_places(cluster.node(two), "lock", 0);
}

#[test]
fn force_released_lock_is_lost_before_the_next_grant() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    until_places(cluster.node(1), "lock", 1);
    let next = stand_in_line(&session(&cluster, 2), cluster.node(2), "lock");
    let holder = place(cluster.node(1), "lock", 0);
    cluster.node(1).locks().force_release(&holder, "it hangs").block().unwrap();
    let next = next.finish().unwrap();
    let LostReason::ForceReleased { by, reason: why } = guard.lost().block() else {
        panic!("{:?}", guard.state())
    };
    assert_eq!((by.as_str(), why.as_str()), ("m1", "it hangs"));
    assert!(next.token() > guard.token());
    let late = guard.txn().then(Op::put("k", "late")).commit().block();
    assert!(late.is_err());
    assert!(matches!(
        guard.release().block().unwrap(),
        Released::AlreadyLost(LostReason::ForceReleased { .. })
    ));
    next.release().block().unwrap();
    until_places(cluster.node(1), "lock", 0);
}

#[test]
fn tasks_behind_a_force_released_hold_requeue() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let guard = session.mutex("lock").lock().block().unwrap();
    let behind = session.mutex("lock").lock().enqueue().unwrap();
    assert_eq!(behind.position(), Some(1));
    cluster.node(0).locks().force_release(&place(cluster.node(0), "lock", 0), "").block().unwrap();
    let next = behind.block().unwrap();
    assert!(matches!(guard.state(), LockState::Lost(LostReason::ForceReleased { .. })));
    assert!(next.token() > guard.token());
}

#[test]
fn waiter_can_be_evicted() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let waiting = stand_in_line(&session(&cluster, 1), cluster.node(1), "lock");
    until_places(cluster.node(2), "lock", 2);
    let waiter = place(cluster.node(2), "lock", 1);
    cluster.node(2).locks().force_release(&waiter, "not you").block().unwrap();
    assert_eq!(waiting.finish().unwrap_err(), LockError::Evicted);
    assert!(guard.is_held());
    assert_eq!(places(cluster.node(2), "lock"), 1);
}

#[test]
fn force_release_wait_survives_a_compaction_of_its_action() {
    let cluster = lasting(3);
    let (leader, cut, _) = roles(&cluster);
    let node = cluster.node(leader);
    let guard = session(&cluster, cut).mutex("lock").lock().block().unwrap();
    until_places(node, "lock", 1);
    let holder = place(node, "lock", 0);
    cluster.partition(&[cut]);
    let locks = node.locks();
    let mut order = Begun::new(async move { locks.force_release(&holder, "it hangs").await });
    // The admin request is stored below the entry, and is compacted from the history before the
    // caller polls again.
    until_places(node, "lock", 2);
    let later = node.client().put("later", "").block().unwrap().revision;
    node.client().compact(later).block().unwrap();
    let (tell, told) = mpsc::channel();
    let waiting = thread::spawn(move || {
        tell.send(order.poll().is_none()).unwrap();
        order.finish()
    });
    assert_eq!(told.recv_timeout(SOON), Ok(true), "one poll goes round and round");
    cluster.heal();
    waiting.join().unwrap().unwrap();
    assert!(matches!(guard.state(), LockState::Lost(LostReason::ForceReleased { .. })));
}

#[test]
fn unreachable_holder_keeps_its_lock_unless_force_released_immediately() {
    let cluster = lasting(3);
    let (leader, cut, other) = roles(&cluster);
    let guard = mortal(&cluster, cut).mutex("lock").lock().block().unwrap();
    until_places(cluster.node(leader), "lock", 1);
    let holder = place(cluster.node(leader), "lock", 0);
    cluster.partition(&[cut]);
    cluster.node(leader).locks().force_release(&holder, "gone").block().unwrap();
    assert!(!guard.is_held(), "the other may have the lock by now");
    let next = session(&cluster, other).mutex("lock").lock().block().unwrap();
    cluster.heal();
    drop(next);

    let again = session(&cluster, leader).mutex("now").lock().block().unwrap();
    let holder = place(cluster.node(leader), "now", 0);
    cluster.node(leader).locks().force_release_now(&holder, "at once").block().unwrap();
    assert_eq!(places(cluster.node(leader), "now"), 0);
    assert!(!again.is_held());
}

#[test]
fn lock_of_a_foreign_client_can_only_be_force_released_immediately() {
    let cluster = lasting(1);
    let (node, kv) = (cluster.node(0), cluster.node(0).client());
    let lease = kv.grant(Duration::from_secs(600)).block().unwrap().id;
    kv.put(format!("lock/{lease}"), "").lease(lease).block().unwrap();
    let foreign = place(node, "lock", 0);
    let refused = node.locks().force_release(&foreign, "").block().unwrap_err();
    assert_eq!(refused, LockAdminError::Foreign { key: foreign.key.clone() });
    node.locks().force_release_now(&foreign, "").block().unwrap();
    assert_eq!(places(node, "lock"), 0);
}

#[test]
fn lock_is_transferred_past_waiters_with_a_new_token() {
    for same_node in [false, true] {
        let cluster = lasting(3);
        let successors = if same_node { 0 } else { 2 };
        let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
        let between = stand_in_line(&session(&cluster, 1), cluster.node(1), "lock");
        let successor = another_session(&cluster, successors, "successor");
        let waiting = stand_in_line(&successor, cluster.node(successors), "lock");
        until_places(cluster.node(0), "lock", 3);
        let token = guard.token();
        let stale = guard.txn().then(Op::put("k", "stale"));
        guard.transfer(&place(cluster.node(0), "lock", 2)).block().unwrap();
        let got = waiting.finish().unwrap();
        assert!(got.token() > token);
        assert!(stale.commit().block().is_err());
        assert!(got.txn().then(Op::put("k", "mine")).commit().block().unwrap().succeeded);
        assert_eq!(places(cluster.node(0), "lock"), 2);
        assert_eq!(got.release().block().unwrap(), Released::Now);
        let last = between.finish().unwrap();
        last.release().block().unwrap();
        until_places(cluster.node(0), "lock", 0);
    }
}

#[test]
fn downgraded_hold_is_not_transferred_as_a_writer() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let name = "lock";
    let writer = session(&cluster, one).rw_lock(name).write().block().unwrap();
    until_places(cluster.node(two), name, 1);
    let read = session(&cluster, two).rw_lock(name).read().deadline(SOON);
    let reader: Begun<Result<ReadGuard, LockError>> = Begun::new(read);
    until_places(cluster.node(leader), name, 2);
    let write = session(&cluster, leader).rw_lock(name).write().deadline(SOON);
    let mut successor: Begun<Result<WriteGuard, LockError>> = Begun::new(write);
    until_places(cluster.node(leader), name, 3);
    let line = cluster.node(leader).locks().of(name).unwrap().queue;
    // The admin request is in the log, but the holder's node does not know of it when the program
    // downgrades the lock.
    cluster.pause(one);
    let locks = cluster.node(leader).locks();
    let order = Begun::new(async move { locks.transfer(&line[0], &line[2], "").await });
    until_places(cluster.node(leader), name, 4);
    let downgrade = Begun::new(writer.downgrade());
    cluster.resume(one);
    let reader = reader.finish().unwrap();
    order.finish().unwrap();
    drop(downgrade);
    let kv = cluster.node(leader).client();
    cluster.all_at(kv.put("any", "").block().unwrap().revision).block().unwrap();
    assert!(reader.is_held());
    assert!(successor.poll().is_none(), "a writer holds beside a reader");
    reader.release().block().unwrap();
    successor.finish().unwrap().release().block().unwrap();
    until_places(cluster.node(leader), name, 0);
}

#[test]
fn condition_on_a_hold_fails_under_a_later_hold() {
    let cluster = lasting(3);
    let (mine, other) = (session(&cluster, 0), session(&cluster, 1));
    let first = mine.mutex("lock").lock().block().unwrap();
    let between = stand_in_line(&other, cluster.node(1), "lock");
    until_places(cluster.node(0), "lock", 2);
    let conditions = first.still_held();
    let successor = place(cluster.node(0), "lock", 1);
    first.transfer(&successor).block().unwrap();
    let second = between.finish().unwrap();
    // Then the lock is transferred back to the session for which the conditions were made, but to another task.
    let again = Begun::new(mine.mutex("lock").lock().reason("another task"));
    until_places(cluster.node(1), "lock", 2);
    second.transfer(&place(cluster.node(1), "lock", 1)).block().unwrap();
    let third = again.finish().unwrap();
    assert!(third.is_held());
    let kv = cluster.node(2).client();
    let late = conditions.into_iter().fold(kv.txn(), bowline::TxnCall::when);
    let late = late.then(Op::put("k", "late")).commit().block().unwrap();
    assert!(!late.succeeded, "a hold that is over is still held");
    assert!(third.txn().then(Op::put("k", "mine")).commit().block().unwrap().succeeded);
    third.release().block().unwrap();
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn returned_hold_belongs_to_its_successor_despite_a_new_request() {
    // The new request reaches the log before or after the transfer of the lock back to this session.
    for comes_before in [false, true] {
        let cluster = lasting(3);
        let (leader, one, two) = roles(&cluster);
        let (mine, other, name) = (session(&cluster, one), session(&cluster, two), "lock");
        let first = mine.rw_lock(name).write().block().unwrap();
        let read = Begun::new(mine.rw_lock(name).read());
        until_places(cluster.node(leader), name, 2);
        let beside = Begun::new(session(&cluster, leader).rw_lock(name).read());
        until_places(cluster.node(two), name, 3);
        let between = Begun::new(other.rw_lock(name).write());
        until_places(cluster.node(two), name, 4);
        let locks = cluster.node(two).locks();
        let line = locks.of(name).unwrap().queue;
        locks.transfer(&line[0], &line[3], "").block().unwrap();
        let between = between.finish().unwrap();
        assert_eq!((between.key(), first.is_held()), (first.key(), false));
        let kv = cluster.node(leader).client();
        cluster.all_at(kv.put("any", "").block().unwrap().revision).block().unwrap();

        // The node of the session knows only of the new request.
        cluster.pause(one);
        let mut again = Begun::new(mine.rw_lock(name).write());
        if comes_before {
            let behind = Begun::asked(cluster.node(one).client().put("behind", ""));
            cluster.cut(leader, one);
            cluster.cut(two, one);
            cluster.resume(one);
            let has_come = || kv.get("behind").block().unwrap().is_some();
            until_true(cluster.node(leader), "the request comes", has_come);
            drop(behind);
        }
        let line = locks.of(name).unwrap().queue;
        locks.transfer(&line[0], &line[1], "").block().unwrap();
        assert!(!between.is_held());
        cluster.heal();
        cluster.resume(one);

        let (read, beside) = (read.finish().unwrap(), beside.finish().unwrap());
        assert_eq!((read.key(), read.is_held()), (between.key(), true));
        cluster.all_at(kv.put("any", "").block().unwrap().revision).block().unwrap();
        assert!(beside.is_held() && again.poll().is_none(), "a writer holds beside readers");
        read.release().block().unwrap();
        beside.release().block().unwrap();
        again.finish().unwrap().release().block().unwrap();
        until_places(cluster.node(leader), name, 0);
    }
}

#[test]
fn reader_that_just_acquired_keeps_its_hold_during_a_transfer() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let name = "lock";
    let first = session(&cluster, one).rw_lock(name).read().block().unwrap();
    until_places(cluster.node(leader), name, 1);
    let between = Begun::new(session(&cluster, leader).rw_lock(name).write());
    until_places(cluster.node(leader), name, 2);
    let read = session(&cluster, two).rw_lock(name).read().deadline(SOON);
    let successor: Begun<Result<ReadGuard, LockError>> = Begun::new(read);
    until_places(cluster.node(leader), name, 3);
    let line = cluster.node(leader).locks().of(name).unwrap().queue;
    // When the admin request reaches the holder's node, the successor does not have to wait any
    // more.
    cluster.pause(one);
    let locks = cluster.node(leader).locks();
    let order = Begun::new(async move { locks.transfer(&line[0], &line[2], "").await });
    until_places(cluster.node(leader), name, 4);
    drop(between);
    let successor = successor.finish().unwrap();
    known_as_committed(cluster.node(leader));
    cluster.resume(one);
    order.finish().unwrap();
    assert_eq!(first.lost().block(), LostReason::HandedOver);
    let kv = cluster.node(leader).client();
    cluster.all_at(kv.put("any", "").block().unwrap().revision).block().unwrap();
    assert!(successor.is_held(), "{:?}", successor.state());
    successor.release().block().unwrap();
    until_places(cluster.node(leader), name, 0);
}

#[test]
fn operator_transfers_leadership_to_a_named_candidate() {
    let cluster = lasting(3);
    let lead = |member: usize| session(&cluster, member).election("jobs");
    let first = lead(0).campaign("a").block().unwrap();
    let _second = stand_in_line(&session(&cluster, 1), cluster.node(1), "jobs");
    let third = Begun::new(lead(2).campaign("c"));
    until_places(cluster.node(1), "jobs", 3);
    let line = cluster.node(1).locks().of("jobs").unwrap().queue;
    cluster.node(1).locks().transfer(&line[0], &line[2], "upgrade").block().unwrap();
    let third: Leadership = third.finish().unwrap();
    assert_eq!(first.lost().block(), LostReason::HandedOver);
    assert_eq!(lead(1).leader().block().unwrap().unwrap().value, "c");
    third.proclaim("c2").block().unwrap();
    assert!(third.token() > first.token());
}

#[test]
fn reused_key_name_of_a_successor_is_not_the_successor() {
    for by_order in [false, true] {
        let cluster = lasting(3);
        let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
        let successors = session(&cluster, 2);
        let successor = stand_in_line(&successors, cluster.node(2), "lock");
        let next = stand_in_line(&session(&cluster, 1), cluster.node(1), "lock");
        until_places(cluster.node(0), "lock", 3);
        let line = cluster.node(0).locks().of("lock").unwrap().queue;
        drop(successor);
        until_places(cluster.node(2), "lock", 2);
        let later = stand_in_line(&successors, cluster.node(2), "lock");
        until_places(cluster.node(0), "lock", 3);
        assert_eq!(place(cluster.node(0), "lock", 2).key, line[1].key);
        // The successor has left the queue since the caller read it, so the next request is granted.
        match by_order {
            false => guard.transfer(&line[1]).block().unwrap(),
            true => cluster.node(0).locks().transfer(&line[0], &line[1], "").block().unwrap(),
        }
        assert_eq!(place(cluster.node(0), "lock", 0).key, line[2].key);
        next.finish().unwrap().release().block().unwrap();
        later.finish().unwrap().release().block().unwrap();
        until_places(cluster.node(0), "lock", 0);
    }
}

#[test]
fn transfer_past_a_foreign_client_or_to_a_nonwaiter_is_rejected() {
    let cluster = lasting(1);
    let (node, kv) = (cluster.node(0), cluster.node(0).client());
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let successor = another_session(&cluster, 0, "successor");
    let waiting = stand_in_line(&successor, node, "lock");
    let known = place(node, "lock", 1);
    drop(waiting);
    until_places(node, "lock", 1);
    // The successor has left the queue, so the transfer releases the lock.
    guard.transfer(&known).block().unwrap();
    until_places(node, "lock", 0);

    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let lease = kv.grant(Duration::from_secs(600)).block().unwrap().id;
    kv.put(format!("lock/{lease}"), "").lease(lease).block().unwrap();
    let waiting = stand_in_line(&successor, node, "lock");
    let line = node.locks().of("lock").unwrap().queue;
    let refused = node.locks().transfer(&line[0], &line[2], "").block().unwrap_err();
    assert_eq!(refused, LockAdminError::Foreign { key: line[1].key.clone() });
    assert!(guard.is_held());
    drop(waiting);
    let below = kv.range(KeyRange::prefix("lock/")).block().unwrap();
    assert!(below.count >= 2);
}

#[test]
fn deleted_key_transfers_no_hold_to_a_reader() {
    let cluster = lasting(3);
    let [a, b, c] = [0, 1, 2].map(|member| session(&cluster, member).rw_lock("lock"));
    let first = a.read().block().unwrap();
    until_places(cluster.node(1), "lock", 1);
    let second = b.read().block().unwrap();
    until_places(cluster.node(0), "lock", 2);
    let successor = place(cluster.node(0), "lock", 1);
    // This transaction imitates a transfer by an operator that is in progress when the successor is
    // granted the lock.
    let (from, to) = (first.key().clone(), second.session().lease());
    let kv = cluster.node(0).client();
    let row = kv.get(from.clone()).block().unwrap().unwrap();
    let put = bowline::Put {
        key: from,
        value: bowline::kv::PutValue::Set(row.value),
        lease: bowline::kv::PutLease::Attach(to),
        prev_kv: false,
    };
    kv.txn().then(Op::Put(put)).then(Op::delete(successor.key)).commit().block().unwrap();
    assert_eq!(first.lost().block(), LostReason::KeyDeleted);
    assert_eq!(second.lost().block(), LostReason::KeyDeleted);
    let writer = c.write().block().unwrap();
    assert!(writer.is_held() && !second.is_held() && !first.is_held());
}

#[test]
fn alarm_allows_releases_but_rejects_transfers() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let [near, far] = [1, 2].map(|member| {
        let waiting = stand_in_line(&session(&cluster, member), cluster.node(member), "lock");
        until_places(cluster.node(0), "lock", member as u64 + 1);
        waiting
    });
    let full = Alarm { member: None, kind: AlarmKind::NoSpace };
    cluster.node(0).client().change_alarms(AlarmChange::Raise(full)).block().unwrap();

    let successor = place(cluster.node(0), "lock", 2);
    let refused = Error::Rejected(Rejection::Alarm(AlarmKind::NoSpace));
    assert_eq!(guard.transfer(&successor).block().unwrap_err(), LockAdminError::Store(refused));
    let guard = near.finish().unwrap();
    until_places(cluster.node(2), "lock", 2);

    let (locks, holder) = (cluster.node(2).locks(), place(cluster.node(2), "lock", 0));
    assert!(
        matches!(locks.force_release(&holder, "").block(), Err(LockAdminError::Store(_))),
        "an order is a put"
    );
    locks.force_release_now(&holder, "its machine hangs").block().unwrap();
    far.finish().unwrap().release().block().unwrap();
    assert_eq!(guard.lost().block(), LostReason::KeyDeleted);
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn admin_action_applies_even_if_its_caller_stops_waiting() {
    let mut cluster = lasting(3);
    let (leader, cut, other) = roles(&cluster);
    let guard = session(&cluster, cut).mutex("lock").lock().block().unwrap();
    let successor = stand_in_line(&session(&cluster, leader), cluster.node(leader), "lock");
    until_places(cluster.node(other), "lock", 2);
    let line = cluster.node(other).locks().of("lock").unwrap().queue;
    cluster.partition(&[cut]);
    // The holder does not receive the admin request.
    let locks = cluster.node(other).locks();
    let late = locks.force_release(&line[0], "it hangs").deadline(SHORT).block().unwrap_err();
    assert_eq!(late, LockAdminError::Store(Error::Deadline { effect: Effect::Unknown }));
    let late = locks.transfer(&line[0], &line[1], "").deadline(SHORT).block().unwrap_err();
    assert_eq!(late, LockAdminError::Store(Error::Deadline { effect: Effect::Unknown }));
    let order = Begun::new(locks.force_release(&line[0], "it hangs still"));
    let written = || {
        let orders = cluster.node(leader).client().range(KeyRange::prefix("lock/")).local();
        let orders = orders.block().unwrap().kvs;
        orders.iter().any(|row| row.value.ends_with(b"it hangs still"))
    };
    until_true(cluster.node(leader), "the order is there", written);
    cluster.shutdown(other).block();
    let stopped = order.finish().unwrap_err();
    let is_unknown = |error: &Error| error.effect() == Effect::Unknown;
    assert!(matches!(&stopped, LockAdminError::Store(error) if is_unknown(error)), "{stopped:?}");
    cluster.heal();
    assert!(successor.finish().unwrap().is_held());
    assert!(matches!(guard.lost().block(), LostReason::ForceReleased { .. }));
}

#[test]
fn lost_hold_is_no_longer_valid() {
    let cluster = lasting(1);
    let node = cluster.node(0);
    let session = another_session(&cluster, 0, "holder");
    let [broken, deleted, closed] =
        ["broken", "deleted", "closed"].map(|name| session.mutex(name).lock().block().unwrap());
    assert!(broken.valid_until() > node.now() && session.valid_until() > node.now());
    node.locks().force_release(&place(node, "broken", 0), "it hangs").block().unwrap();
    assert!(matches!(broken.state(), LockState::Lost(LostReason::ForceReleased { .. })));
    assert!(broken.valid_until() <= node.now());
    node.client().delete(deleted.key().clone()).block().unwrap();
    assert_eq!(deleted.lost().block(), LostReason::KeyDeleted);
    assert!(deleted.valid_until() <= node.now());
    assert!(closed.valid_until() > node.now());
    session.close().block().unwrap();
    assert!(closed.valid_until() <= node.now() && session.valid_until() <= node.now());
}

#[test]
fn group_barrier_and_queue_entries_are_not_listed_as_locks() {
    let cluster = lasting(1);
    let (node, mine) = (cluster.node(0), session(&cluster, 0));
    let _member = mine.group("group").join("a").block().unwrap();
    let _waits = Begun::new(mine.double_barrier("barrier", 2).enter());
    let _takes = Begun::new(mine.queue("queue").take());
    for prefix in ["barrier/", "queue/idle/"] {
        let is_there = || {
            let rows = node.client().range(KeyRange::prefix(prefix)).local().block().unwrap();
            rows.count == 1
        };
        until_true(node, prefix, is_there);
    }
    let holds = mine.mutex("lock").lock().reason("alone").block().unwrap();
    let waits = stand_in_line(&mine, node, "lock");
    let locks = node.locks().list_prefix("").unwrap();
    let names: Vec<_> = locks.iter().map(|lock| &lock.name[..]).collect();
    assert_eq!((names, locks[0].queue.len()), (vec![&b"lock"[..]], 2));
    drop((holds, waits));
}
