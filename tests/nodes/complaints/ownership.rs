//! Tests of complaints about lost or duplicate ownership.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bowline::{Blocking, Effect, GuardError, LockState, LostReason, Node, Op, SessionEndReason};

use crate::stage::{
    LONG, SHORT, STEADY, another_leader, another_session, lasting, lasting_with, let_pass, mortal,
    read_number, roles, session, session_ended, stand_in_line, steady, until_true, with,
};

/// etcd#11456, etcd#9921.
#[test]
fn lock_is_not_granted_to_an_ended_session() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let dying = another_session(&cluster, 1, "dying");
    let waiting = stand_in_line(&dying, cluster.node(1), "lock");
    // The lock is released and the lease of the waiter is revoked at practically the same time.
    cluster.node(0).client().revoke(dying.lease()).block().unwrap();
    guard.release().block().unwrap();
    let error = waiting.finish().unwrap_err();
    assert!(session_ended(&error), "{error:?}");
    assert!(dying.mutex("lock").lock().block().is_err());
    assert!(session(&cluster, 1).mutex("lock").try_lock().block().is_ok());
}

/// etcd#11457.
#[test]
fn no_update_is_lost_when_holders_pause_beyond_their_lease() {
    let cluster = lasting_with(3, |config| config.session_ttl(SHORT));
    let (acknowledged, unknown) = (Counts::default(), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    let total = || acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).sum::<u64>();
    std::thread::scope(|scope| {
        let ends = SetWhenDropped(&done);
        for member in 0..3 {
            let (node, done) = (cluster.node(member), &done);
            let (acknowledged, unknown) = (&acknowledged[member], &unknown);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    match add_one(node) {
                        Some(Ok(())) => acknowledged.fetch_add(1, Ordering::SeqCst),
                        Some(Err(Effect::Unknown)) => unknown.fetch_add(1, Ordering::SeqCst),
                        Some(Err(_)) | None => 0,
                    };
                }
            });
        }
        let leader = cluster.leader().block().unwrap();
        for member in [(leader + 1) % 3, (leader + 2) % 3] {
            let session_of_paused = session(&cluster, member);
            let (before, own) = (total(), acknowledged[member].load(Ordering::SeqCst));
            cluster.pause(member);
            let_pass(cluster.node(leader), SHORT * 2, || {});
            until_true(cluster.node(leader), "the others go on", || total() > before + 1);
            cluster.resume(member);
            let continues = || acknowledged[member].load(Ordering::SeqCst) > own + 1;
            until_true(cluster.node(leader), "the paused node goes on", continues);
            assert!(session_of_paused.end().is_some(), "the pause has outlasted the lease");
        }
        drop(ends);
    });
    let sum = read_number(&cluster.node(0).client(), "sum");
    // The sum includes all acknowledged calls and no rejected call. A call with an unknown outcome
    // may be included.
    let (acknowledged, unknown) = (total(), unknown.into_inner());
    let may_be = acknowledged..=acknowledged + unknown;
    assert!(may_be.contains(&sum), "{sum} counted, {acknowledged} acknowledged, {unknown} unknown");
}

/// Sets a flag when it is dropped, so that threads also end if the test fails.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Number of acknowledged updates on each member.
type Counts = [AtomicU64; 3];

/// Adds one to the sum under the lock: reads it, then writes it in a guarded transaction. Returns `None` if no
/// transaction was started.
fn add_one(node: &Node) -> Option<Result<(), Effect>> {
    let session = node.session().block().ok()?;
    let guard = session.mutex("lock").lock().block().ok()?;
    let row = node.client().get("sum").block().ok()?;
    let sum: u64 = row.map_or(0, |row| std::str::from_utf8(&row.value).unwrap().parse().unwrap());
    let add = guard.txn().then(Op::put("sum", (sum + 1).to_string()));
    Some(match add.commit().block() {
        Ok(_) => Ok(()),
        Err(GuardError::Store(error)) => Err(error.effect()),
        Err(_) => Err(Effect::NotApplied),
    })
}

/// etcd#11429.
#[test]
fn one_of_two_waiters_acquires_after_a_holder_panics() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let (two, three) = (session(&cluster, 1), session(&cluster, 2));
    let first = stand_in_line(&two, cluster.node(1), "lock");
    let mut second = stand_in_line(&three, cluster.node(2), "lock");
    let fell = std::thread::spawn(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("the holder fell"));
    });
    assert!(fell.join().is_err());
    let held = first.finish().unwrap();
    cluster.all_at(held.token().revision()).block().unwrap();
    assert!(second.poll().is_none());
    assert!(held.is_held());
    held.release().block().unwrap();
    assert!(second.finish().unwrap().is_held());
}

/// etcd#15247, first part: a leader whose disk had blocked expired all leases.
#[test]
fn paused_leader_ends_no_lease() {
    let cluster = steady(3);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.pause(leader);
    let new = another_leader(&cluster, leader);
    let_pass(cluster.node(new), STEADY * 2, || {});
    cluster.resume(leader);
    // The old leader receives the entries that it has missed, and continues.
    let put = cluster.node(new).client().put("tick", "").block().unwrap();
    cluster.all_at(put.revision).block().unwrap();
    assert!(guard.is_held());
    assert!(session(&cluster, two).mutex("lock").try_lock().block().is_err());
}

/// etcd#15247, second part; etcd#12528.
#[test]
fn leader_without_followers_renews_no_lease() {
    let cluster = lasting(3);
    let leader = cluster.leader().block().unwrap();
    let guard = mortal(&cluster, leader).mutex("lock").lock().block().unwrap();
    cluster.partition(&[leader]);
    assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    let new = another_leader(&cluster, leader);
    assert!(session(&cluster, new).mutex("lock").lock().block().unwrap().is_held());
}

/// etcd#11886, with fewer sessions and a shorter TTL, so that the test can wait for several TTLs.
#[test]
fn hundreds_of_sessions_of_one_node_are_all_renewed() {
    let cluster = with(1, |config| config.session_ttl(LONG));
    let node = cluster.node(0);
    let sessions: Vec<_> =
        (0..300).map(|_| node.open_session().ttl(STEADY).block().unwrap()).collect();
    let_pass(node, STEADY * 2, || {});
    let ended = sessions.iter().filter(|session| session.end().is_some()).count();
    assert_eq!(ended, 0);
}

/// etcd#10756.
#[test]
fn thousand_tasks_on_one_session_count_to_a_thousand() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let count = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let (session, count) = (session.clone(), Arc::clone(&count));
            runtime.spawn(async move {
                let _guard = session.mutex("lock").lock().await.unwrap();
                let seen = count.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                count.store(seen + 1, Ordering::Relaxed);
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 1_000);
}

/// curator#1121.
#[test]
fn new_session_does_not_adopt_the_old_queue_entry() {
    let cluster = steady(3);
    let (_, one, two) = roles(&cluster);
    let other = cluster.node(two).open_session().ttl(LONG).block().unwrap();
    let old = session(&cluster, one);
    let first = old.mutex("lock").lock().block().unwrap();
    cluster.partition(&[one]);
    let held = other.mutex("lock").lock().block().unwrap();
    cluster.heal();
    let new = session(&cluster, one);
    assert_ne!(new.lease(), old.lease());
    let mut waiting = stand_in_line(&new, cluster.node(one), "lock");
    assert!(waiting.poll().is_none());
    assert!(matches!(first.state(), LockState::Lost(_)));
    held.release().block().unwrap();
    let second = waiting.finish().unwrap();
    assert_ne!(second.key(), first.key());
    assert!(second.token() > first.token());
}

/// redisson#3194.
#[test]
fn renewals_continue_after_a_connection_loss() {
    let cluster = steady(3);
    let (leader, one, _) = roles(&cluster);
    let guard = session(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.partition(&[one]);
    let_pass(cluster.node(leader), STEADY / 4, || {});
    cluster.heal();
    let before = guard.valid_until();
    let_pass(cluster.node(leader), STEADY * 2, || {});
    assert!(guard.is_held());
    assert!(guard.valid_until() > before);
}

/// awslabs/amazon-dynamodb-lock-client PR 116, dynamolock#14, tristanls/dynamodb-lock-client#1.
#[test]
fn released_lock_is_not_renewed_and_a_new_hold_is() {
    let cluster = steady(3);
    let (leader, one, two) = roles(&cluster);
    let mutex = session(&cluster, one).mutex("lock");
    let key = {
        let guard = mutex.lock().block().unwrap();
        let key = guard.key().clone();
        guard.release().block().unwrap();
        key
    };
    let node = cluster.node(leader);
    let kv = cluster.node(two).client();
    let_pass(node, STEADY, || assert_eq!(kv.get(key.clone()).block().unwrap(), None));
    let again = mutex.lock().block().unwrap();
    let_pass(node, STEADY * 2, || assert!(again.is_held()));
}
