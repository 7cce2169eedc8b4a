//! Tests of keys that exist exactly as long as a hold: a rejected transaction attaches no key and
//! does not end the hold, and all attached keys are deleted with the hold. Also tests how many
//! operations fit into one transaction under a hold.

use bowline::{
    Blocking, Client, Compare, Error, Guard, GuardError, KeyRange, Op, Rejection, Session,
    lock::Hold,
};

use crate::stage::{lasting, roles, session};

/// Two values of this size do not fit into one request.
const LARGE: usize = 5 << 20;

fn lock(session: &Session) -> Guard {
    session.mutex("lock").lock().block().unwrap()
}

fn bind(guard: &Guard, key: &str, bytes: usize) -> Result<(), GuardError> {
    guard.txn().then_while_held(key.to_owned(), vec![b'v'; bytes]).commit().block().map(drop)
}

fn keys(kv: &Client) -> u64 {
    kv.range(KeyRange::prefix("desk")).count_only().block().unwrap().count
}

fn is_too_large(result: &Result<(), GuardError>) -> bool {
    let too_large = |rejection: &Rejection| {
        matches!(rejection, Rejection::ValueTooLarge { .. } | Rejection::RequestTooLarge { .. })
    };
    matches!(result, Err(GuardError::Store(Error::Rejected(rejection))) if too_large(rejection))
}

#[test]
fn oversized_bound_value_is_rejected_and_the_lock_released() {
    let cluster = lasting(3);
    let (leader, follower, other) = roles(&cluster);
    for member in [leader, follower] {
        let mine = session(&cluster, member);
        let guard = lock(&mine);
        assert!(is_too_large(&bind(&guard, "desk", LARGE)));
        drop(guard);
        drop(lock(&session(&cluster, other)));
        assert_eq!(cluster.node(member).stop_reason(), None);
    }
}

#[test]
fn rejected_second_bound_value_leaves_the_first_bound() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let guard = lock(&mine);
    bind(&guard, "desk", 1).unwrap();
    assert!(is_too_large(&bind(&guard, "desk", LARGE)));
    assert_eq!(keys(&mine.client()), 1);
    guard.release().block().unwrap();
    assert_eq!(keys(&mine.client()), 0);
}

/// Attaches keys of 4,000 bytes, fifty in a transaction, until a transaction is rejected. Returns
/// the number of attached keys.
fn bind_all(guard: &Guard) -> u64 {
    for round in 0.. {
        let all = (0..50).map(|n| format!("desk/{round:03}{n:03}{}", "x".repeat(3_980)));
        let txn = all.fold(guard.txn(), |txn, key| txn.then_while_held(key, "v"));
        let result = txn.commit().block().map(drop);
        if is_too_large(&result) {
            return round * 50;
        }
        result.unwrap();
    }
    unreachable!("no more fits, and it is taken")
}

#[test]
fn bound_keys_of_a_hold_are_limited_to_one_entry() {
    let cluster = lasting(3);
    let (_, follower, other) = roles(&cluster);
    let mine = session(&cluster, follower);
    let guard = lock(&mine);
    let bound = bind_all(&guard);
    assert!(bound >= 100, "{bound}");
    assert_eq!(keys(&mine.client()), bound);
    drop(guard);
    let next = lock(&session(&cluster, other));
    assert_eq!(keys(&cluster.node(other).client()), 0);
    drop(next);
}

#[test]
fn commit_and_release_deletes_many_bound_keys() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    let kv = mine.client();
    for holds in [true, false] {
        let guard = lock(&mine);
        assert!(bind_all(&guard) > 128 / 2, "more than a request may delete");
        let work = guard.txn().when(Compare::missing("done")).then(Op::put("done", "yes"));
        assert_eq!(work.commit_and_release(guard).block().unwrap().succeeded, holds);
        assert_eq!(keys(&kv), 0);
        drop(mine.mutex("lock").try_lock().block().unwrap());
    }
}

/// Checks that a transaction under this hold accepts as many operations as documented, and not one more.
fn holds_at_most(hold: &Hold, ops: usize) {
    let commit = |count: usize| {
        let put = |n: usize| Op::put(format!("data/{n}"), "");
        (0..count)
            .map(put)
            .fold(hold.txn(), bowline::lock::GuardTxn::then)
            .commit()
            .block()
            .map(drop)
    };
    assert_eq!(commit(ops), Ok(()));
    let (count, max) = (ops + 1, ops);
    let rejection = Rejection::TooManyOps { count, max };
    assert_eq!(commit(ops + 1), Err(GuardError::Store(Error::Rejected(rejection))));
}

#[test]
fn each_lock_kind_leaves_room_for_a_number_of_operations() {
    let cluster = lasting(1);
    let mine = session(&cluster, 0);
    holds_at_most(&lock(&mine), 126);
    holds_at_most(&mine.election("election").campaign("a").block().unwrap(), 126);
    holds_at_most(&mine.semaphore("permits", 3).acquire_many(2).block().unwrap(), 126);
    let shelf = mine.rw_lock("shelf");
    holds_at_most(&shelf.read().block().unwrap(), 126);
    holds_at_most(&shelf.write().block().unwrap(), 125);
    let names = (0..30).map(|n| format!("locks/{n}"));
    holds_at_most(&mine.lock_all(names).block().unwrap(), 68);
}
