//! Tests of the edge cases that lock services often get wrong, one test each.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bowline::backup::{self, RestoreOptions};
use bowline::testing;
use bowline::{
    Blocking, Compare, Config, Effect, Error, GuardError, KeyRange, LockError, LockState,
    LostReason, Node, Op, Released, SessionEndReason, Token, lock::LockKind,
};

use crate::loopback;
use crate::stage::{
    Begun, LONG, Outside, SOON, STEADY, another_leader, another_session, commit_if, lasting,
    lasting_with, let_pass, mortal, places, roles, session, session_ended, stand_in_line,
    until_deleted, until_places, until_true, with, with_clocks,
};

#[test]
fn session_expiry_frees_the_lock_and_notifies_the_holder() {
    let cluster = lasting(3);
    let held = another_session(&cluster, 0, "holder");
    let guard = held.mutex("lock").lock().block().unwrap();
    let other = session(&cluster, 1);
    let waiting = stand_in_line(&other, cluster.node(1), "lock");
    let believed = guard.valid_until();
    // The test revokes the lease, but any other end of a lease is a log entry too.
    cluster.node(2).client().revoke(held.lease()).block().unwrap();
    assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::LeaseEnded));
    assert!(cluster.node(0).now() < believed, "told at the apply, not when the belief runs out");
    assert!(waiting.finish().unwrap().is_held());
    let late = guard.txn().then(Op::put("data", "late")).commit().block();
    assert_eq!(late.unwrap_err(), GuardError::NotHeld);
    let released = guard.release().block().unwrap();
    assert_eq!(
        released,
        Released::AlreadyLost(LostReason::SessionEnded(SessionEndReason::LeaseEnded))
    );
}

#[test]
fn partitioned_session_expires_by_its_own_clock() {
    let cluster = lasting(3);
    let (_, one, _) = roles(&cluster);
    let guard = mortal(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.partition(&[one]);
    assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    assert!(cluster.node(one).now() >= guard.valid_until());
}

#[test]
fn session_expiry_ends_the_wait_and_removes_the_queue_entry() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let other = another_session(&cluster, 1, "waiter");
    let waiting = stand_in_line(&other, cluster.node(1), "lock");
    cluster.node(2).client().revoke(other.lease()).block().unwrap();
    let error = waiting.finish().unwrap_err();
    assert!(session_ended(&error), "{error:?}");
    assert_eq!(places(cluster.node(0), "lock"), 1);
    assert!(guard.is_held());
}

#[test]
fn release_by_a_non_holder_has_no_effect() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    // A release needs the name and the token.
    let token = guard.token();
    let gone = Released::AlreadyLost(LostReason::Released);
    let another = session(&cluster, 1).mutex("lock");
    assert_eq!(another.release(token).block().unwrap(), gone);
    let mine = session(&cluster, 0).mutex("lock");
    let earlier: Token = format!("{}.0", token.revision().get() - 1).parse().unwrap();
    assert_eq!(mine.release(earlier).block().unwrap(), gone);
    assert!(guard.is_held());
    assert_eq!(guard.release().block().unwrap(), Released::Now);
}

#[test]
fn release_with_a_lost_request_is_applied_once() {
    let cluster = with(3, |config| config.session_ttl(LONG).call_deadline(STEADY));
    let (_, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, two);
    let first = stand_in_line(&other, cluster.node(two), "lock");
    let third = another_session(&cluster, two, "third");
    let mut second = stand_in_line(&third, cluster.node(two), "lock");
    cluster.partition(&[one]);
    let error = guard.release().block().unwrap_err();
    assert_eq!(error, Error::Deadline { effect: Effect::Unknown });
    cluster.heal();
    // The node retries, and a retry does not affect another request.
    let next = first.finish().unwrap();
    cluster.node(one).client().put("k", "v").block().unwrap();
    assert!(next.is_held());
    assert!(second.poll().is_none());
    next.release().block().unwrap();
    assert!(second.finish().unwrap().is_held());
}

#[test]
fn release_with_a_lost_reply_is_applied_once() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, two);
    let first = stand_in_line(&other, cluster.node(two), "lock");
    let third = another_session(&cluster, two, "third");
    let mut second = stand_in_line(&third, cluster.node(two), "lock");
    // The request leaves the node, but no answer arrives. While the node is paused, it cannot notice the cut before
    // it has sent the request.
    cluster.pause(one);
    let mut release = Begun::new(guard.release());
    cluster.cut(leader, one);
    cluster.cut(two, one);
    cluster.resume(one);
    let next = first.finish().unwrap();
    assert!(release.poll().is_none(), "its answer was not delivered");
    cluster.heal();
    assert_eq!(release.finish().unwrap(), Released::Now);
    // Meanwhile the node has repeated its release request, which must not release the lock of
    // another session.
    cluster.node(one).client().put("k", "v").block().unwrap();
    assert!(next.is_held());
    assert!(second.poll().is_none());
    next.release().block().unwrap();
    assert!(second.finish().unwrap().is_held());
}

#[test]
fn release_after_a_loss_does_no_harm_and_reports_it() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    cluster.node(1).client().delete(guard.key().clone()).block().unwrap();
    assert_eq!(guard.lost().block(), LostReason::KeyDeleted);
    let next = session(&cluster, 1).mutex("lock").lock().block().unwrap();
    assert_eq!(guard.release().block().unwrap(), Released::AlreadyLost(LostReason::KeyDeleted));
    assert!(next.is_held());
}

#[test]
fn acquire_with_a_lost_reply_takes_one_queue_entry() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let mine = session(&cluster, one);
    // The request arrives, but no answer comes back. While the node is paused, it cannot notice the cut before it has
    // sent the request.
    cluster.pause(one);
    let mut call = Begun::new(mine.mutex("lock").lock());
    cluster.cut(leader, one);
    cluster.cut(two, one);
    cluster.resume(one);
    until_places(cluster.node(two), "lock", 1);
    assert!(call.poll().is_none());
    cluster.heal();
    let guard = call.finish().unwrap();
    assert_eq!(places(cluster.node(leader), "lock"), 1);
    guard.txn().then(Op::put("data", "mine")).commit().block().unwrap();
    guard.release().block().unwrap();
    assert_eq!(places(cluster.node(leader), "lock"), 0);
}

#[test]
fn dropped_waiting_acquire_leaves_the_queue() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, 1);
    drop(stand_in_line(&other, cluster.node(1), "lock"));
    until_places(cluster.node(0), "lock", 1);
    drop(guard);
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn acquire_dropped_after_an_undelivered_grant_releases() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, 1);
    let granted = stand_in_line(&other, cluster.node(1), "lock");
    guard.release().block().unwrap();
    let kv = cluster.node(0).client();
    cluster.all_at(kv.range("any").block().unwrap().revision).block().unwrap();
    drop(granted);
    until_places(cluster.node(0), "lock", 0);
}

#[test]
fn acquire_dropped_with_an_unknown_outcome_is_undone() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let mine = session(&cluster, one);
    cluster.partition(&[one]);
    drop(Begun::new(mine.mutex("lock").lock()));
    cluster.heal();
    // The caller of the first request has gone away, so its lock must be free, whether or not the
    // request was applied.
    let next = session(&cluster, two).mutex("lock").lock().block().unwrap();
    until_places(cluster.node(two), "lock", 1);
    assert!(next.is_held());
}

#[test]
fn pause_beyond_the_ttl_is_detected_by_holder_store_and_resource() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let guard = mortal(&cluster, one).mutex("lock").lock().block().unwrap();
    let mut outside = Outside::default();
    cluster.pause(one);
    let sent = Begun::new(guard.txn().then(Op::put("data", "sent before")).commit());
    assert!(guard.is_held(), "its own clock has not ended it: the store must");
    let next = session(&cluster, two).mutex("lock").lock().block().unwrap();
    outside.write(next.token(), "new").unwrap();
    cluster.resume(one);
    assert_eq!(sent.finish().unwrap_err(), GuardError::NotHeld);
    assert_eq!(
        guard.state(),
        LockState::Lost(LostReason::SessionEnded(SessionEndReason::NotRenewed))
    );
    let late = guard.txn().then(Op::put("data", "late")).commit().block();
    assert_eq!(late.unwrap_err(), GuardError::NotHeld);
    assert!(!commit_if(&cluster.node(two).client(), guard.still_held(), "data", "late"));
    assert!(outside.write(guard.token(), "late").is_err());
}

#[test]
fn hold_that_exceeds_max_hold_before_delivery_is_lost() {
    let cluster = lasting(1);
    let [one, two] = ["one", "two"].map(|label| another_session(&cluster, 0, label));
    // While the node is paused, the first poll gets no answer.
    cluster.pause(0);
    let first = Begun::new(one.mutex("lock").lock().max_hold(Duration::from_millis(50)));
    cluster.resume(0);
    until_places(cluster.node(0), "lock", 1);
    // The executor of the first request hangs: it is not polled until another request has acquired the lock.
    let second = two.mutex("lock").lock().deadline(SOON).block().unwrap();
    let missed = first.finish().unwrap_err();
    assert_eq!(missed, LockError::LostBeforeDelivery(LostReason::HeldTooLong));
    assert!(second.is_held());
    until_places(cluster.node(0), "lock", 1);
}

#[test]
fn leader_change_keeps_locks_and_queue_entries() {
    let mut cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    let waiters = [(two, "a"), (one, "b"), (two, "c")].map(|(member, label)| {
        let session = another_session(&cluster, member, label);
        let waiting = stand_in_line(&session, cluster.node(member), "lock");
        (session, waiting)
    });
    cluster.kill(leader).block();
    another_leader(&cluster, leader);
    assert!(guard.is_held());
    until_places(cluster.node(one), "lock", 4);
    let line = session(&cluster, one).mutex("lock").queue().unwrap();
    let labels: Vec<_> = line.into_iter().map(|row| row.label.unwrap()).collect();
    assert_eq!(labels[1..], ["a", "b", "c"]);
    let mut last = guard.token();
    guard.release().block().unwrap();
    for (_, waiting) in waiters {
        let guard = waiting.finish().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().block().unwrap();
    }
}

#[test]
fn a_lease_gets_its_full_ttl_from_a_new_leader() {
    let mut cluster = lasting(3);
    // Do not renew this lease.
    let ttl = STEADY * 3;
    let kv = cluster.node(0).client();
    let lease = kv.grant(ttl).block().unwrap().id;
    kv.put("bound", "").lease(lease).block().unwrap();
    let_pass(cluster.node(0), ttl / 3, || {});
    let (leader, one, _) = roles(&cluster);
    let killed = cluster.node(one).now();
    cluster.kill(leader).block();
    // The new leader does not know how long the lease has lived, and counts the full TTL.
    until_deleted(&cluster.node(one).client(), "bound");
    let ended = cluster.node(one).now();
    assert!(ended >= killed + ttl, "it ended at {ended:?}, its leader at {killed:?}");
}

#[test]
fn held_lock_is_lost_after_a_quorum_outage() {
    let (mut cluster, clocks) = with_clocks(Duration::from_secs(60));
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    assert!(matches!(guard.state(), LockState::Held(_)));
    cluster.kill(1).block();
    cluster.kill(2).block();
    // The TTL is 60 seconds. The session relies on the lease for 54 seconds, and makes two renewals
    // within 36 seconds.
    clocks[0].jump(Duration::from_secs(40));
    assert!(matches!(guard.state(), LockState::Unconfirmed(_)), "{:?}", guard.state());
    assert!(guard.is_held());
    clocks[0].jump(Duration::from_secs(20));
    assert_eq!(
        guard.state(),
        LockState::Lost(LostReason::SessionEnded(SessionEndReason::NotRenewed))
    );
    assert!(cluster.node(0).now() >= guard.valid_until());
    let moment = Duration::from_secs(1);
    let write = cluster.node(0).client().put("k", "v").deadline(moment).block().unwrap_err();
    assert!(matches!(write, Error::Deadline { .. }), "{write:?}");
    let opened = cluster.node(0).open_session().deadline(moment).block().unwrap_err();
    assert!(matches!(opened, Error::Deadline { .. }), "{opened:?}");
}

#[test]
fn a_node_that_restarts_ends_its_old_session_at_once() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, two);
    let waiting = stand_in_line(&other, cluster.node(two), "lock");
    cluster.kill(one).block();
    cluster.restart(one).block().unwrap();
    // The TTL is ten minutes.
    let begun = cluster.node(two).now();
    assert!(waiting.finish().unwrap().is_held());
    assert!(cluster.node(two).now().since(begun) < SOON);
    assert!(!guard.is_held());
}

#[test]
fn clock_jump_ends_the_session_at_the_first_check() {
    let (cluster, clocks) = with_clocks(STEADY);
    let (_, one, _) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    clocks[one].jump(Duration::from_secs(60));
    assert_eq!(
        guard.state(),
        LockState::Lost(LostReason::SessionEnded(SessionEndReason::NotRenewed))
    );
    assert!(!guard.is_held());
}

#[test]
fn snapshot_without_the_key_of_the_holder_loses_the_lock() {
    let cluster = with(3, |config| {
        let config = config.snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10);
        config.session_ttl(LONG)
    });
    let (leader, one, _) = roles(&cluster);
    let kept = session(&cluster, one).mutex("kept").lock().block().unwrap();
    let lost = session(&cluster, one).mutex("lost").lock().block().unwrap();
    cluster.partition(&[one]);
    let kv = cluster.node(leader).client();
    let mut revision = kv.delete(lost.key().clone()).block().unwrap().revision;
    // The member that is cut off needs a snapshot once the leader's log no longer has the deletion.
    let mut keys = (0..50).cycle();
    while cluster.data_dir(leader).join("0000000001.log").exists() {
        let key = format!("key/{}", keys.next().expect("an endless iterator"));
        revision = kv.put(key, vec![b'v'; 200]).block().unwrap().revision;
    }
    cluster.heal();
    cluster.all_at(revision).block().unwrap();
    let installed = cluster.node(one).metrics().snapshot().snapshots_installed_total;
    assert!(installed > 0, "it caught up from the log");
    assert_eq!(lost.lost().block(), LostReason::KeyDeleted);
    assert!(kept.is_held());
}

#[test]
fn tokens_keep_rising_after_a_restore_and_sessions_end() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Config::new(dir.path().join("old"), "solo")).block().unwrap();
    let guard = node.session().block().unwrap().mutex("lock").lock().block().unwrap();
    let (token, lease) = (guard.token(), guard.session().lease());
    let file = dir.path().join("backup");
    node.backup(&file).block().unwrap();
    // Tokens that the old cluster granted after the backup are lower than those of the new one.
    guard.release().block().unwrap();
    let newest = node.session().block().unwrap().mutex("lock").lock().block().unwrap().token();
    assert!(newest > token);
    assert!(testing::shutdown(node).block().hanging.is_empty());

    let members = [("solo", loopback::address())];
    let config = Config::new(dir.path().join("new"), "solo").members(members);
    let restored = backup::restore(&file, &config, &RestoreOptions::default()).unwrap();
    assert_eq!(restored.leases_ended, 1);
    let node = Node::start(config).block().unwrap();
    assert_eq!(node.client().lease_info(lease).block().unwrap(), None);
    let below = node.client().range(KeyRange::prefix("lock/")).block().unwrap();
    assert_eq!(below.count, 0);
    let guard = node.session().block().unwrap().mutex("lock").lock().block().unwrap();
    assert!(guard.token() > newest);
    drop(guard);
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

/// The limit counts the requests of all sessions of one node for one lock.
#[test]
fn full_queue_rejects_requests_and_keeps_serving() {
    let cluster = lasting_with(2, |config| config.lock_waiters_max(2));
    let [one, two] = ["one", "two"].map(|label| another_session(&cluster, 0, label));
    let remote = session(&cluster, 1);
    let guard = one.mutex("lock").lock().block().unwrap();
    let waiting = [&one, &two].map(|session| Begun::new(session.mutex("lock").lock()));
    until_places(cluster.node(0), "lock", 2);
    for session in [&one, &two] {
        let error = session.mutex("lock").lock().deadline(SOON).block().unwrap_err();
        assert_eq!(error, LockError::QueueFull { max: 2 });
    }
    // Neither another node nor another lock is affected.
    let elsewhere = stand_in_line(&remote, cluster.node(1), "lock");
    assert!(one.mutex("another").lock().block().is_ok());
    guard.release().block().unwrap();
    for waiting in waiting.into_iter().chain([elsewhere]) {
        waiting.finish().unwrap().release().block().unwrap();
    }
    assert!(two.mutex("lock").lock().block().is_ok());
}

#[test]
fn a_session_that_is_resumed_after_a_restart_keeps_its_lock() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let kept = another_session(&cluster, one, "kept");
    let lease = kept.lease();
    let guard = kept.mutex("lock").lock().block().unwrap();
    cluster.kill(one).block();
    drop((guard, kept));
    cluster.restart(one).block().unwrap();
    let kept = cluster.node(one).resume_session(lease).block().unwrap();
    assert!(session(&cluster, two).mutex("lock").try_lock().block().is_err());
    kept.close().block().unwrap();
    assert!(session(&cluster, two).mutex("lock").lock().block().is_ok());
}

/// No holder releases these keys, so a request would wait behind them until their session ends.
#[test]
fn leased_keys_that_are_not_lock_requests_are_a_kind_mismatch() {
    let cluster = lasting(1);
    let (owner, other) = (session(&cluster, 0), another_session(&cluster, 0, "other"));
    let mismatch = LockError::KindMismatch { stored: LockKind::Foreign };
    let group = owner.group("workers").join("meta").block().unwrap();
    let kv = cluster.node(0).client();
    kv.sequential_prefix("jobs/").put_bound("build", &owner).block().unwrap();
    kv.put("barrier/ready", "1").lease(owner.lease()).block().unwrap();
    for name in ["workers", "jobs", "barrier"] {
        let locked = other.mutex(name).lock().block().map(drop);
        assert_eq!(locked, Err(mismatch.clone()), "{name}");
        let elected = other.election(name).campaign("me").block().map(drop);
        assert_eq!(elected, Err(mismatch.clone()), "{name}");
        let permit = other.semaphore(name, 2).acquire().block().map(drop);
        assert_eq!(permit, Err(mismatch.clone()), "{name}");
    }
    let text = mismatch.to_string();
    assert!(text.contains("the name is in use as keys that are not lock requests"), "{text}");
    // The mismatch is also reported to a request that would hold the lock after the current holder.
    let guard = other.mutex("late").lock().block().unwrap();
    kv.put("late/ready", "1").lease(owner.lease()).block().unwrap();
    let third = another_session(&cluster, 0, "third");
    assert_eq!(third.mutex("late").lock().block().map(drop), Err(mismatch.clone()));
    guard.release().block().unwrap();
    // This key was created before the request, and gets its lease while the request waits.
    kv.put("older/ready", "1").block().unwrap();
    let guard = other.mutex("older").lock().block().unwrap();
    let waiting = stand_in_line(&third, cluster.node(0), "older");
    kv.put("older/ready", "2").lease(owner.lease()).block().unwrap();
    assert_eq!(waiting.finish().map(drop), Err(mismatch));
    assert!(guard.is_held());
    // A key without a lease is not part of the queue, and blocks nothing.
    kv.put("plain/settings", "1").block().unwrap();
    assert!(other.mutex("plain").lock().block().is_ok());
    drop(group);
}

/// The nodes are killed, so no session is closed; the lease outlives them in the log.
#[test]
fn lock_of_a_detached_session_survives_a_crash_of_all_members() {
    let mut cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let kept = another_session(&cluster, one, "kept");
    let lease = kept.lease();
    let guard = kept.mutex("lock").lock().block().unwrap();
    let token = guard.token();
    for member in [leader, one, two] {
        cluster.kill(member).block();
    }
    drop((guard, kept));
    for member in [leader, one, two] {
        cluster.restart(member).block().unwrap();
    }
    cluster.leader().block().unwrap();
    let held = session(&cluster, two).mutex("lock").try_lock().block().unwrap_err();
    assert!(matches!(held, LockError::WouldBlock { .. }), "{held:?}");
    let kept = cluster.node(one).resume_session(lease).block().unwrap();
    until_places(cluster.node(two), "lock", 1);
    assert_eq!(cluster.node(two).locks().of("lock").unwrap().queue[0].lease, lease);
    kept.close().block().unwrap();
    let next = session(&cluster, two).mutex("lock").lock().block().unwrap();
    assert!(next.token() > token);
}

#[test]
fn another_lock_kind_on_one_name_is_rejected() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("name").lock().block().unwrap();
    let other = session(&cluster, 1);
    let error = other.semaphore("name", 3).acquire().block().unwrap_err();
    assert_eq!(error, LockError::KindMismatch { stored: LockKind::Mutex });
    until_places(cluster.node(1), "name", 1);
    guard.release().block().unwrap();
    // Once the queue is empty, the name may be used for another kind of lock.
    assert!(other.semaphore("name", 3).acquire().block().is_ok());
}

#[test]
fn another_semaphore_limit_is_rejected() {
    let cluster = lasting(3);
    let permit = session(&cluster, 0).semaphore("name", 3).acquire().block().unwrap();
    let error = session(&cluster, 1).semaphore("name", 4).acquire().block().unwrap_err();
    assert_eq!(error, LockError::LimitMismatch { stored: 3, asked: 4 });
    assert!(session(&cluster, 1).semaphore("name", 3).acquire().block().is_ok());
    drop(permit);
}

#[test]
fn conditions_of_a_handed_off_hold_fail_for_the_next_holder() {
    let cluster = lasting(1);
    let mutex = session(&cluster, 0).mutex("lock");
    let first = mutex.lock().block().unwrap();
    let next = Begun::new(mutex.lock());
    assert_eq!(mutex.release(first.token()).block().unwrap(), Released::Now);
    let next = next.finish().unwrap();
    assert_eq!(next.key(), first.key());
    let kv = cluster.node(0).client();
    let commit = |conditions: Vec<Compare>| {
        let txn = conditions.into_iter().fold(kv.txn(), |txn, condition| txn.when(condition));
        txn.then(Op::put("done", "1")).commit().block().unwrap().succeeded
    };
    assert!(!commit(first.still_held()));
    assert!(commit(next.still_held()));
}

#[test]
fn lock_released_with_an_open_transaction_is_free_after_its_session() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let mine = another_session(&cluster, one, "leaves");
    let guard = mine.mutex("lock").lock().block().unwrap();
    cluster.partition(&[one]);
    let open = Begun::new(guard.txn().then(Op::put("done", "1")).commit());
    let acquire = Begun::new(mine.mutex("other").lock());
    drop(guard);
    mine.detach();
    // The node sees the end of the session before it knows the outcome of the transaction.
    let over = LockError::SessionEnded(SessionEndReason::Detached);
    assert_eq!(acquire.finish().unwrap_err(), over);
    cluster.heal();
    assert!(session(&cluster, two).mutex("lock").lock().block().unwrap().is_held());
    drop(open);
}

/// An executor whose wakers panic.
struct Falls(AtomicU64);

impl Wake for Falls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("the executor has fallen");
    }
}

#[test]
fn panicking_waker_does_not_affect_the_node() {
    let cluster = lasting(1);
    let node = cluster.node(0);
    let held = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let other = another_session(&cluster, 0, "other");
    let falls = Arc::new(Falls(AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&falls));
    let client = node.client();
    // Provoke three wake-ups: by an answer of the driver, by a granted lock, and by the end of a
    // session.
    let mut put = Box::pin(client.put("key", "value").into_future());
    let mut acquire = Box::pin(other.mutex("lock").lock().into_future());
    let mut ended = Box::pin(other.ended());
    let mut context = Context::from_waker(&waker);
    // While the node is paused, the first poll gets no answer.
    cluster.pause(0);
    assert!(put.as_mut().poll(&mut context).is_pending());
    cluster.resume(0);
    assert!(acquire.as_mut().poll(&mut context).is_pending());
    assert!(ended.as_mut().poll(&mut context).is_pending());
    let woken = |times| {
        until_true(node, "nobody is woken", || falls.0.load(Ordering::SeqCst) >= times);
    };
    woken(1);
    until_places(node, "lock", 2);
    held.release().block().unwrap();
    woken(2);
    node.client().revoke(other.lease()).block().unwrap();
    woken(3);
    assert_eq!(node.stop_reason(), None);
    node.client().put("key", "after").block().unwrap();
}

#[test]
fn panicking_waker_in_a_recipe_does_not_affect_the_node() {
    let cluster = lasting(1);
    let (node, mine) = (cluster.node(0), session(&cluster, 0));
    let guard = mine.mutex("lock").lock().block().unwrap();
    let (jobs, group) = (mine.queue("jobs"), mine.group("group"));
    let falls = Arc::new(Falls(AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&falls));
    let mut waits: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let mut begin = |call: Pin<Box<dyn Future<Output = ()>>>| {
        waits.push(call);
        let call = waits.last_mut().expect("it was just put there");
        // While the node is paused, the first poll gets no answer.
        cluster.pause(0);
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        cluster.resume(0);
    };
    let woken = |times| {
        until_true(node, "nobody is woken", || falls.0.load(Ordering::SeqCst) >= times);
        assert_eq!(node.stop_reason(), None);
    };
    begin(Box::pin(async { drop(guard.txn().then(Op::put("key", "")).commit().await) }));
    woken(1);
    begin(Box::pin(async { drop(group.join("").await) }));
    woken(2);
    begin(Box::pin(async { drop(jobs.take().await) }));
    node.client().queue("jobs").put("item").block().unwrap();
    woken(3);
    begin(Box::pin(async { drop(guard.lost().await) }));
    node.client().delete(guard.key().clone()).block().unwrap();
    woken(4);
    begin(Box::pin(async { drop(node.wait_for(|_| false).await) }));
    node.client().put("key", "after").block().unwrap();
    woken(5);
    node.client().put("key", "after all").block().unwrap();
}

#[test]
fn lock_is_freed_despite_a_panicking_loss_waiter() {
    let cluster = lasting(2);
    let mutex = session(&cluster, 0).mutex("lock");
    let guard = mutex.lock().block().unwrap();
    let waker = Waker::from(Arc::new(Falls(AtomicU64::new(0))));
    let mut lost = Box::pin(guard.lost());
    assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(mutex.release(guard.token()).block().unwrap(), Released::Now);
    assert!(session(&cluster, 1).mutex("lock").lock().block().unwrap().is_held());
}
