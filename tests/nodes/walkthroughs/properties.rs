//! Tests of the properties that every lock service lists, one test each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline::{Blocking, Compare, LockError, LockState, Op, Released};

use crate::stage::{
    FREED_WITHIN, another_session, lasting, mortal, places, read_number, roles, session,
    stand_in_line, timed_out, until_places,
};

/// Every holder reads a counter and writes it back plus one, without any condition. Only mutual
/// exclusion keeps the sum right.
#[test]
fn mutual_exclusion() {
    const HOLDS: u64 = 10;
    let cluster = lasting(3);
    let inside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for member in [0, 1, 2, 0, 1, 2] {
            let session = session(&cluster, member);
            let (inside, kv) = (&inside, cluster.node(member).client());
            scope.spawn(move || {
                for _ in 0..HOLDS {
                    let guard = session.mutex("lock").lock().block().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let sum = read_number(&kv, "sum");
                    kv.put("sum", (sum + 1).to_string()).block().unwrap();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().block().unwrap();
                }
            });
        }
    });
    assert_eq!(read_number(&cluster.node(0).client(), "sum"), 6 * HOLDS);
}

#[test]
fn crashed_holder_frees_the_lock() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let guard = mortal(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.kill(one).block();
    let next = session(&cluster, two).mutex("lock").lock().deadline(FREED_WITHIN).block().unwrap();
    assert!(next.token() > guard.token());
    assert!(matches!(guard.state(), LockState::Lost(_)));
}

#[test]
fn available_while_a_minority_is_down() {
    let mut cluster = lasting(3);
    let leader = cluster.leader().block().unwrap();
    cluster.kill(leader).block();
    for member in (0..3).filter(|member| *member != leader) {
        let guard = session(&cluster, member).mutex("lock").lock().block().unwrap();
        assert_eq!(guard.release().block().unwrap(), Released::Now);
    }
}

#[test]
fn only_the_owner_unlocks_the_lock() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    // There is no release by name alone. A release with a wrong key or revision changes nothing, and a cancelled wait
    // does not affect another request.
    let kv = cluster.node(1).client();
    let wrong = Compare::create_revision(guard.key().clone()).eq(guard.since().get() + 1);
    let txn = kv.txn().when(wrong).then(Op::delete(guard.key().clone()));
    assert!(!txn.commit().block().unwrap().succeeded);
    let other = session(&cluster, 1);
    drop(stand_in_line(&other, cluster.node(1), "lock"));
    until_places(cluster.node(1), "lock", 1);
    assert!(guard.is_held());
    guard.txn().then(Op::put("data", "mine")).commit().block().unwrap();
}

#[test]
fn expiry() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let guard = mortal(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.partition(&[one]);
    let next = session(&cluster, two).mutex("lock").lock().deadline(FREED_WITHIN).block().unwrap();
    assert!(next.is_held());
    assert!(!guard.is_held());
}

#[test]
fn blocking() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let other = session(&cluster, 1);
    let mut waiting = stand_in_line(&other, cluster.node(1), "lock");
    assert!(waiting.poll().is_none());
    guard.release().block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
}

#[test]
fn not_blocking() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    for member in 0..3 {
        let tried = session(&cluster, member).mutex("lock").try_lock().block();
        assert!(matches!(tried, Err(LockError::WouldBlock { .. })), "{tried:?}");
    }
    guard.release().block().unwrap();
    let free = session(&cluster, 1).mutex("lock").try_lock().block();
    assert!(free.is_ok(), "{free:?}");
}

#[test]
fn blocking_for_a_while() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    for member in 0..3 {
        let waited = session(&cluster, member).mutex("lock").lock();
        let error = waited.deadline(Duration::from_millis(100)).block().unwrap_err();
        assert!(timed_out(&error), "{error:?}");
    }
    until_places(cluster.node(0), "lock", 1);
    assert!(guard.is_held());
}

#[test]
fn fair() {
    let cluster = lasting(3);
    let gate = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let order = [2, 0, 1, 1, 0, 2];
    let sessions: Vec<_> =
        order.iter().map(|member| another_session(&cluster, *member, "waiter")).collect();
    let waiting: Vec<_> = sessions
        .iter()
        .zip(order)
        .map(|(session, member)| stand_in_line(session, cluster.node(member), "lock"))
        .collect();
    let mut last = gate.token();
    gate.release().block().unwrap();
    for next in waiting {
        // If another waiter had been granted the lock first, this call would wait forever, because
        // the other waiter is not polled.
        let guard = next.finish().unwrap();
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().block().unwrap();
    }
    assert_eq!(places(cluster.node(0), "lock"), 0);
}

#[test]
fn reentrant_where_asked() {
    let cluster = lasting(3);
    let session = session(&cluster, 0);
    let work = session.owner("transfer 7");
    let once = session.mutex("lock").lock().owner(&work).block().unwrap();
    let twice = session.mutex("lock").lock().owner(&work).block().unwrap();
    assert_eq!(once.token(), twice.token());
    // Another task with the same session is another owner.
    let other = session.owner("transfer 8");
    let tried = session.mutex("lock").try_lock().owner(&other).block();
    assert!(matches!(tried, Err(LockError::WouldBlock { .. })), "{tried:?}");
    assert_eq!(once.release().block().unwrap(), Released::StillHeld { times: 1 });
    assert!(twice.is_held());
    assert_eq!(twice.release().block().unwrap(), Released::Now);
    until_places(cluster.node(1), "lock", 0);
}

/// While another node waits, the lock is passed on inside its node at most 16 times. Then it goes to the other node.
#[test]
fn local_handoffs_are_bounded_when_other_nodes_wait() {
    let cluster = lasting(3);
    let (here, there) = (session(&cluster, 0), session(&cluster, 1));
    let gate = here.mutex("lock").lock().block().unwrap();
    let remote = stand_in_line(&there, cluster.node(0), "lock");
    // The node's table of locks must know the waiter on the other node. The table is updated before the reply to this
    // read.
    here.client().get("nothing").block().unwrap();
    let (sender, served) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..40 {
            let acquire = here.mutex("lock").lock().enqueue().unwrap();
            let sender = sender.clone();
            scope.spawn(move || {
                let guard = acquire.block().unwrap();
                sender.send("here").unwrap();
                guard.release().block().unwrap();
            });
        }
        let sender = sender.clone();
        scope.spawn(move || {
            let guard = remote.finish().unwrap();
            sender.send("there").unwrap();
            guard.release().block().unwrap();
        });
        gate.release().block().unwrap();
    });
    drop(sender);
    let order: Vec<_> = served.into_iter().collect();
    let before = order.iter().position(|who| *who == "there").unwrap();
    assert_eq!(order.len(), 41);
    assert_eq!(before, 16, "tasks of the holding node that were served first");
}
