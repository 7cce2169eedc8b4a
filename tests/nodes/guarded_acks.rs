//! Tests of queue items that are processed under a lock: the result, the acknowledgement and the release happen in
//! one step, or none of them does.

use std::time::Duration;

use bowline::{
    Blocking, Compare, Effect, Error, Guard, GuardError, Limits, Node, Op, Session, TxnResult,
    queue::Delivery,
};

use crate::stage::{
    self, Begun, SOON, another_leader, lasting, places, roles, session, stand_in_line,
    until_places, until_true,
};

/// Takes an item, and acquires the lock that it needs.
fn begin(session: &Session) -> (Delivery, Guard) {
    let jobs = session.queue("jobs");
    jobs.put("x").block().unwrap();
    let job = jobs.take().block().unwrap();
    (job, session.mutex("lock").lock().block().unwrap())
}

fn result() -> Op {
    Op::put("result", "done")
}

fn is_there(node: &Node, key: &'static str) -> bool {
    node.client().get(key).block().unwrap().is_some()
}

/// Checks that the item is free again at its position, and removes it.
fn check_returned_item(session: &Session) {
    let again = session.queue("jobs").take().deadline(SOON).block().unwrap();
    assert_eq!((again.value(), again.attempt()), (&"x".into(), 2));
    again.ack().block().unwrap();
}

#[test]
fn result_acknowledgement_and_release_are_one_revision() {
    let cluster = lasting(3);
    let (_, taker, other) = roles(&cluster);
    let session = session(&cluster, taker);
    let (job, guard) = begin(&session);
    let waiter =
        stand_in_line(&crate::stage::session(&cluster, other), cluster.node(other), "lock");
    let before = session.client().revision();
    let txn = guard.txn().ack(job).then(Op::get("nothing")).then(result());
    let reply = txn.commit_and_release(guard).block().unwrap();
    assert!(reply.succeeded);
    assert!(
        matches!(&reply.results[..2], [TxnResult::Range(none), TxnResult::Put(_)] if none.count == 0),
        "the caller's own operations come first: {reply:?}"
    );
    // All these changes have the same revision.
    let kv = cluster.node(taker).client();
    let mut changes = kv.watch(bowline::KeyRange::all()).from(before.next()).block().unwrap();
    let batch = changes.next().block().unwrap().unwrap();
    let step = batch.events.iter().filter(|event| event.revision() == reply.revision);
    let keys: Vec<String> =
        step.map(|event| String::from_utf8_lossy(&event.kv.key).into_owned()).collect();
    assert_eq!(keys.len(), 4, "{keys:?}");
    for part in ["jobs/item/", "jobs/claim/", "lock/", "result"] {
        assert!(keys.iter().any(|key| key.starts_with(part)), "{part} is not among {keys:?}");
    }
    waiter.finish().unwrap().release().block().unwrap();
    until_places(cluster.node(taker), "jobs/item", 0);
}

#[test]
fn many_items_may_be_acknowledged_under_one_lock() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let (first, guard) = begin(&session);
    let jobs = session.queue("jobs");
    jobs.put("y").block().unwrap();
    let second = jobs.take().block().unwrap();
    let reply = guard.txn().then(result()).ack(first).ack(second).commit().block().unwrap();
    assert!(reply.succeeded && guard.is_held());
    assert!(jobs.is_empty().block().unwrap());
    assert!(guard.txn().then(result()).commit().block().unwrap().succeeded, "it goes on");
}

#[test]
fn lost_item_drops_the_result_and_frees_the_lock() {
    let cluster = lasting(1);
    let (node, session) = (cluster.node(0), session(&cluster, 0));
    let kv = node.client();
    for releases in [false, true] {
        let (job, guard) = begin(&session);
        kv.delete(bowline::KeyRange::prefix("jobs/claim/")).block().unwrap();
        let theirs = session.queue("jobs").take().deadline(SOON).block().unwrap();
        let txn = guard.txn().when(Compare::missing("result")).then(result());
        let txn = txn.or_else(Op::put("other", "")).ack(job);
        if releases {
            assert_eq!(txn.commit_and_release(guard).block(), Err(GuardError::ClaimLost));
            assert_eq!(places(node, "lock"), 0, "released in the same entry");
        } else {
            assert_eq!(txn.commit().block(), Err(GuardError::ClaimLost));
            assert!(guard.is_held());
            guard.release().block().unwrap();
        }
        assert!(!is_there(node, "result") && !is_there(node, "other"));
        assert!(theirs.is_claimed(), "its new holder keeps it");
        theirs.ack().block().unwrap();
    }
}

#[test]
fn commit_and_release_rejects_the_guard_of_another_hold() {
    let cluster = lasting(1);
    let (node, session) = (cluster.node(0), session(&cluster, 0));
    let (job, guard) = begin(&session);
    let other = session.mutex("other").lock().block().unwrap();
    let refused = guard.txn().then(result()).ack(job).commit_and_release(other).block();
    assert_eq!(refused, Err(GuardError::ForeignGuard));
    assert!(!is_there(node, "result") && guard.is_held());
    check_returned_item(&session);
    // The call drops the guard that was passed in, so its lock is released.
    until_places(node, "other", 0);
    assert!(guard.txn().then(result()).commit_and_release(guard).block().unwrap().succeeded);
}

#[test]
fn commit_and_release_works_with_the_smallest_limits() {
    let least = Limits {
        key_bytes_max: Limits::KEY_BYTES_LEAST,
        value_bytes_max: Limits::VALUE_BYTES_LEAST,
        request_bytes_max: Limits::REQUEST_BYTES_LEAST,
        txn_ops_max: Limits::TXN_OPS_LEAST,
        txn_depth_max: 3,
        txn_keys_max: 1,
    };
    let cluster = stage::with(1, move |config| config.limits(least.clone()));
    let session = session(&cluster, 0);
    let (job, guard) = begin(&session);
    let txn = guard.txn().when(Compare::missing("result")).then(result());
    assert!(txn.ack(job).commit_and_release(guard).block().unwrap().succeeded);
    let leads = session.election("leader").campaign("a").block().unwrap();
    leads.proclaim("b").block().unwrap();
    leads.resign().block().unwrap();
    let lock = session.rw_lock("shared");
    let write = lock.read().block().unwrap().upgrade().block().unwrap();
    write.downgrade().block().unwrap().release().block().unwrap();
    let pool = session.semaphore("pool", 3);
    pool.acquire().block().unwrap().release().block().unwrap();
    let both = session.lock_all(["one", "two"]).block().unwrap();
    both.release().block().unwrap();
}

#[test]
fn lost_lock_drops_the_result_and_returns_the_item() {
    let cluster = lasting(1);
    let (node, session) = (cluster.node(0), session(&cluster, 0));
    for releases in [false, true] {
        let (job, guard) = begin(&session);
        node.client().delete(guard.key().clone()).block().unwrap();
        let txn = guard.txn().then(result()).ack(job);
        let refused =
            if releases { txn.commit_and_release(guard).block() } else { txn.commit().block() };
        assert_eq!(refused, Err(GuardError::NotHeld));
        assert!(!is_there(node, "result"));
        check_returned_item(&session);
    }
}

#[test]
fn unapplied_transaction_returns_the_item() {
    let cluster = lasting(1);
    let (node, session) = (cluster.node(0), session(&cluster, 0));
    // Case: a condition of the caller does not hold.
    let (job, guard) = begin(&session);
    let txn = guard.txn().when(Compare::exists("nothing")).then(result());
    let reply = txn.or_else(Op::put("other", "")).ack(job).commit_and_release(guard).block();
    assert!(!reply.unwrap().succeeded && is_there(node, "other"));
    check_returned_item(&session);
    // Case: the store rejects the transaction.
    let (job, guard) = begin(&session);
    let large = Op::put("result", vec![0; 64 << 20]);
    let refused = guard.txn().then(large).ack(job).commit_and_release(guard).block();
    assert!(matches!(&refused, Err(GuardError::Store(Error::Rejected(_)))), "{refused:?}");
    check_returned_item(&session);
    // Case: the transaction is never started.
    let (job, guard) = begin(&session);
    drop(guard.txn().then(result()).ack(job));
    check_returned_item(&session);
    drop(guard);
    assert!(!is_there(node, "result"));
    until_places(node, "lock", 0);
    until_places(node, "jobs", 0);
}

#[test]
fn dropped_commit_acknowledges_with_the_result_or_returns_the_item() {
    let cluster = lasting(3);
    let (_, taker, _) = roles(&cluster);
    let (node, session) = (cluster.node(taker), session(&cluster, taker));
    let kv = node.client();
    for wakes in 0..3 {
        for releases in [false, true] {
            let (job, guard) = begin(&session);
            let txn = guard.txn().then(result()).ack(job);
            let mut kept = None;
            if releases {
                let call = Begun::asked(async move { txn.commit_and_release(guard).await });
                poll_on(node, wakes, call);
            } else {
                let call = Begun::asked(async move { txn.commit().await });
                kept = Some(guard);
                poll_on(node, wakes, call);
            }
            until_places(node, "jobs/claim", 0);
            let left = session.queue("jobs").len().block().unwrap();
            assert_eq!(is_there(node, "result"), left == 0, "both, or nothing");
            drop(kept);
            until_places(node, "lock", 0);
            kv.delete("result").block().unwrap();
            kv.delete(bowline::KeyRange::prefix("jobs/")).block().unwrap();
        }
    }
}

/// Polls a call up to `wakes` times, each time after a wake-up, or until there is an answer. Then drops it.
fn poll_on<T>(node: &Node, wakes: u64, mut call: Begun<T>) {
    for wake in 1..=wakes {
        until_true(node, "a wake-up", || call.wakes() >= wake);
        if call.poll().is_some() {
            return;
        }
    }
}

#[test]
fn unknown_commit_outcome_is_atomic() {
    let cluster = lasting(3);
    for round in 0..4 {
        let leader = cluster.leader().block().unwrap();
        let session = session(&cluster, leader);
        let (job, guard) = begin(&session);
        // The entry is in the leader's own log, and no other member acknowledges it. The others are paused, or are
        // cut off and elect another leader. Entries that arrive while the leader is paused reach its log before it
        // can notice.
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        cluster.pause(leader);
        if round > 1 {
            cluster.partition(&[leader]);
        } else {
            others.into_iter().for_each(|member| cluster.pause(member));
        }
        let txn = guard.txn().then(result()).ack(job).deadline(Duration::from_secs(2));
        let error = if round % 2 == 0 {
            let commit = Begun::new(txn.commit_and_release(guard));
            cluster.resume(leader);
            commit.finish().unwrap_err()
        } else {
            let commit = Begun::new(txn.commit());
            cluster.resume(leader);
            let error = commit.finish().unwrap_err();
            drop(guard);
            error
        };
        let GuardError::Store(error) = error else { panic!("{error}") };
        assert_eq!(error.effect(), Effect::Unknown);
        if round > 1 {
            another_leader(&cluster, leader);
        }
        cluster.heal();
        others.into_iter().for_each(|member| cluster.resume(member));
        let node = cluster.node(leader);
        // The session continues, so the item is released only because the call was dropped.
        until_places(node, "jobs/claim", 0);
        let left = session.queue("jobs").len().block().unwrap();
        assert_eq!(is_there(node, "result"), left == 0, "both, or nothing");
        if left == 1 {
            check_returned_item(&session);
        }
        until_places(node, "lock", 0);
        node.client().delete("result").block().unwrap();
    }
}

#[test]
fn tasks_of_one_session_take_turns_with_commit_and_release() {
    const EACH: u64 = 25;
    for members in [1, 3] {
        let cluster = lasting(members);
        let session = session(&cluster, 0);
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let session = session.clone();
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        let guard = session.mutex("lock").lock().block().unwrap();
                        let write = guard.txn().then(Op::put("count", ""));
                        assert!(write.commit_and_release(guard).block().unwrap().succeeded);
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        let row = session.client().get("count").block().unwrap().unwrap();
        assert_eq!(row.version, 4 * EACH);
        until_places(cluster.node(0), "lock", 0);
    }
}

#[test]
fn task_behind_a_deleted_hold_requeues() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let guard = session.mutex("lock").lock().block().unwrap();
    let mut behind = Begun::new(session.mutex("lock").lock());
    assert!(behind.poll().is_none(), "it waits");
    let kv = session.client();
    assert_eq!(kv.delete(bowline::KeyRange::prefix("lock/")).block().unwrap().deleted, 1);
    let next = behind.finish().unwrap();
    assert!(next.token() > guard.token());
    until_true(cluster.node(0), "it is told", || !guard.is_held());
    next.release().block().unwrap();
}

#[test]
fn guarded_transaction_for_a_client_uses_its_prefix() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let kv = cluster.node(0).client();
    let app = kv.with_prefix("app/");
    let (job, guard) = begin(&session);
    kv.put("app/old", "1").block().unwrap();
    let txn = guard.txn_for(&app).when(Compare::value("old").eq("1")).then(Op::put("new", "2"));
    let nested = bowline::kv::Txn { success: vec![Op::get("old")], ..Default::default() };
    let txn = txn.then(Op::get("old")).then(nested).then_while_held("held", "3").ack(job);
    let reply = txn.commit().block().unwrap();
    assert!(reply.succeeded);
    let TxnResult::Range(range) = &reply.results[1] else { panic!("{reply:?}") };
    assert_eq!(range.kvs[0].key, "old");
    let TxnResult::Txn(inner) = &reply.results[2] else { panic!("{reply:?}") };
    let TxnResult::Range(range) = &inner.results[0] else { panic!("{reply:?}") };
    assert_eq!(range.kvs[0].key, "old");
    assert!(is_there(cluster.node(0), "app/new") && is_there(cluster.node(0), "app/held"));
    assert!(session.queue("jobs").is_empty().block().unwrap());
    // This transaction only reads. It also contains the compares of another lock, whose keys are complete, so the
    // prefix must not be added to them.
    let other = session.mutex("other").lock().block().unwrap();
    let read = guard.txn_for(&app).when_complete(other.still_held()).then(Op::get("new"));
    let reply = read.commit().block().unwrap();
    let TxnResult::Range(range) = &reply.results[0] else { panic!("{reply:?}") };
    assert!(reply.succeeded && range.kvs[0].key == "new");
    let unguarded = |held| app.txn().when_complete(held).then(Op::put("new", "4")).commit().block();
    let held = other.still_held();
    assert!(unguarded(held.clone()).unwrap().succeeded);
    other.release().block().unwrap();
    assert!(!unguarded(held).unwrap().succeeded);
    // The release deletes the key that was attached under the prefix.
    guard.release().block().unwrap();
    until_true(cluster.node(0), "the attached key is deleted", || {
        !is_there(cluster.node(0), "app/held")
    });
}
