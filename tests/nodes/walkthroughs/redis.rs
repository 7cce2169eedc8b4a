//! Redis: a lock as one key with a value and a TTL, its classic mistakes, and the failures of Redlock.

use std::time::Duration;

use bowline::{
    Blocking, Client, Compare, Error, GuardError, LeaseId, LockState, LostReason, Op, Put,
    Rejection, SessionEndReason,
    coordination::{CasOutcome, Expected},
    kv::PutLease,
};

use crate::stage::{
    Outside, STEADY, another_session, lasting, let_pass, mortal, roles, session, stand_in_line,
    steady, timed_out, until_deleted, with_clocks,
};

/// `SET name value NX PX ttl`: one log entry creates the key and binds it to its lease.
fn set_nx_px(kv: &Client, name: &str, value: &str, ttl: Duration) -> Option<LeaseId> {
    let lease = kv.grant(ttl).block().unwrap().id;
    let mut put = Put::new(name.to_owned(), value.to_owned());
    put.lease = PutLease::Attach(lease);
    let txn = kv.txn().when(Compare::missing(name.to_owned())).then(Op::Put(put));
    if txn.commit().block().unwrap().succeeded {
        return Some(lease);
    }
    kv.revoke(lease).block().unwrap();
    None
}

/// Deletes the key if it has this value, like the usual script on Redis.
fn compare_and_delete(kv: &Client, name: &str, value: &str) -> bool {
    let mine = Compare::value(name.to_owned()).eq(value.to_owned());
    kv.txn().when(mine).then(Op::delete(name.to_owned())).commit().block().unwrap().succeeded
}

/// Sets another TTL if the key has this value.
fn compare_and_expire(kv: &Client, name: &str, value: &str, ttl: Duration) -> bool {
    let mine = Expected::value(value.to_owned());
    let longer = kv.compare_and_set(name.to_owned(), mine, value.to_owned()).ttl(ttl);
    longer.block().unwrap().is_done()
}

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

#[test]
fn set_nx_px_value_is_required_to_release_or_extend() {
    let cluster = lasting(3);
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    assert!(set_nx_px(&a, "name", "a", HALF_A_MINUTE).is_some());
    assert!(set_nx_px(&b, "name", "b", HALF_A_MINUTE).is_none());
    assert!(!compare_and_delete(&b, "name", "b"));
    assert!(!compare_and_expire(&b, "name", "b", HALF_A_MINUTE));
    assert!(compare_and_expire(&a, "name", "a", HALF_A_MINUTE * 2));
    let lease = a.get("name").block().unwrap().unwrap().lease.unwrap();
    assert_eq!(a.lease_info(lease).block().unwrap().unwrap().ttl, HALF_A_MINUTE * 2);
    assert!(compare_and_delete(&a, "name", "a"));
    assert!(set_nx_px(&b, "name", "b", HALF_A_MINUTE).is_some());
}

#[test]
fn late_holder_cannot_release_the_lock_of_another() {
    let cluster = lasting(3);
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    assert!(set_nx_px(&a, "name", "a", STEADY).is_some());
    until_deleted(&b, "name");
    assert!(set_nx_px(&b, "name", "b", HALF_A_MINUTE).is_some());
    assert!(!compare_and_delete(&a, "name", "a"));
    assert_eq!(b.get("name").block().unwrap().unwrap().value, "b");
}

/// SETNX, then EXPIRE: a client that dies in between leaves a key permanently. Here the lease comes first, and the
/// key is bound to it in the entry that creates it.
#[test]
fn key_and_its_expiry_are_set_atomically() {
    let cluster = lasting(3);
    let kv = cluster.node(0).client();
    let lease = set_nx_px(&kv, "name", "a", STEADY).unwrap();
    assert_eq!(kv.get("name").block().unwrap().unwrap().lease, Some(lease));
    until_deleted(&kv, "name");
    // A client that pauses between the two steps finds its lease expired, and no key is created.
    let mut put = Put::new("name", "late");
    put.lease = PutLease::Attach(lease);
    let txn = kv.txn().when(Compare::missing("name")).then(Op::Put(put)).commit().block();
    assert_eq!(txn.unwrap_err(), Error::Rejected(Rejection::LeaseNotFound(lease)));
    assert_eq!(kv.get("name").block().unwrap(), None);
}

/// GETSET with the expiry time as the value needs synchronised clocks. Here no two clocks are compared; only
/// durations on one machine are measured.
#[test]
fn clocks_hours_apart_have_no_effect() {
    let (cluster, clocks) = with_clocks(STEADY);
    let (leader, one, two) = roles(&cluster);
    clocks[one].jump(Duration::from_secs(7_200));
    let first = another_session(&cluster, one, "ahead").mutex("lock").lock().block().unwrap();
    assert!(matches!(first.state(), LockState::Held(_) | LockState::Unconfirmed(_)));
    let second = another_session(&cluster, two, "behind");
    let mut waiting = stand_in_line(&second, cluster.node(two), "lock");
    // Let several TTLs pass, by the clock of a third machine.
    let_pass(cluster.node(leader), STEADY * 2, || {
        assert!(waiting.poll().is_none());
        assert!(first.is_held());
    });
    first.release().block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
}

/// Redlock: the clock of a store jumps, the key expires early, and a second client gets a majority.
#[test]
fn clock_jump_on_the_leader_grants_no_second_holder() {
    let (cluster, clocks) = with_clocks(STEADY);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    clocks[leader].jump(Duration::from_secs(3_600));
    let tried = session(&cluster, two).mutex("lock").lock().deadline(STEADY * 2).block();
    assert!(tried.as_ref().is_err_and(timed_out), "{tried:?}");
    assert!(guard.is_held());
    guard.txn().then(Op::put("data", "mine")).commit().block().unwrap();
}

/// The holder's own clock jumps: it gives up too early rather than too late.
#[test]
fn clock_jump_at_the_holder_ends_its_hold_before_the_next() {
    let (cluster, clocks) = with_clocks(STEADY);
    let (_, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    clocks[one].jump(Duration::from_secs(3_600));
    assert_eq!(
        guard.state(),
        LockState::Lost(LostReason::SessionEnded(SessionEndReason::NotRenewed))
    );
    let next = session(&cluster, two).mutex("lock").lock().block().unwrap();
    assert!(next.token() > guard.token());
}

/// Redlock: a store restarts without unsynced writes, and a second client gets a majority.
#[test]
fn members_that_restart_forget_no_lock() {
    let mut cluster = lasting(3);
    let holder = 0;
    let guard = session(&cluster, holder).mutex("lock").lock().block().unwrap();
    for member in [1, 2] {
        cluster.kill(member).block();
        cluster.restart(member).block().unwrap();
        let tried = session(&cluster, member).mutex("lock").try_lock().block();
        assert!(tried.is_err(), "{tried:?}");
    }
    // Restart both members at once, so that a majority has to read the lock from its disks.
    for member in [1, 2] {
        cluster.kill(member).block();
    }
    for member in [1, 2] {
        cluster.restart(member).block().unwrap();
    }
    let tried = session(&cluster, 1).mutex("lock").try_lock().block();
    assert!(tried.is_err(), "{tried:?}");
    assert!(guard.is_held());
    guard.txn().then(Op::put("data", "mine")).commit().block().unwrap();
}

/// Redlock: a client pauses for longer than the TTL, and writes when it resumes.
#[test]
fn holder_paused_beyond_the_ttl_writes_nothing_late() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let mut outside = Outside::default();
    let slow = mortal(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.pause(one);
    let next = session(&cluster, two).mutex("lock").lock().block().unwrap();
    next.txn().then(Op::put("data", "new")).commit().block().unwrap();
    outside.write(next.token(), "new").unwrap();
    cluster.resume(one);
    let late = slow.txn().then(Op::put("data", "late")).commit().block();
    assert_eq!(late.unwrap_err(), GuardError::NotHeld);
    assert_eq!(outside.write(slow.token(), "late"), Err(next.token()));
    assert_eq!(outside.written, ["new"]);
    assert_eq!(cluster.node(one).client().get("data").block().unwrap().unwrap().value, "new");
}

/// Redisson's watchdog: the lock is renewed while the process lives.
#[test]
fn a_lock_is_renewed_while_its_process_lives() {
    let cluster = steady(3);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    let_pass(cluster.node(leader), STEADY * 2, || {});
    assert!(guard.is_held());
    assert!(session(&cluster, two).mutex("lock").try_lock().block().is_err());
}

/// Redis' lock, with one call for each operation.
#[test]
fn set_nx_px_and_its_release_are_one_call_each() {
    let cluster = lasting(3);
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());
    assert!(a.put_if_absent("name", "a").ttl(HALF_A_MINUTE).block().unwrap().is_done());
    let refused = b.put_if_absent("name", "b").ttl(HALF_A_MINUTE).block().unwrap();
    assert!(matches!(refused, CasOutcome::Lost { row: Some(row) } if row.value == "a"));
    assert!(!b.compare_and_delete("name", Expected::value("b")).block().unwrap().is_done());
    assert!(a.compare_and_delete("name", Expected::value("a")).block().unwrap().is_done());
    assert_eq!(b.get("name").block().unwrap(), None);
}

/// Redisson's watchdog: a lock with a lease time of its own is not renewed.
#[test]
fn lock_with_max_hold_is_not_renewed() {
    let cluster = steady(3);
    let (_, one, two) = roles(&cluster);
    let mine = session(&cluster, one);
    let guard = mine.mutex("lock").lock().max_hold(STEADY).block().unwrap();
    let other = session(&cluster, two);
    let waiting = stand_in_line(&other, cluster.node(two), "lock");
    assert_eq!(guard.lost().block(), LostReason::HeldTooLong);
    assert!(waiting.finish().unwrap().is_held());
    assert!(mine.end().is_none(), "the session lives on");
    let late = guard.txn().then(Op::put("data", "late")).commit().block();
    assert_eq!(late.unwrap_err(), GuardError::NotHeld);
}
