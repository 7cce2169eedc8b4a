//! Tests of several real nodes in one process, as seen by programs that embed them.

use std::future::{Future, IntoFuture};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline::testing::{self, ClusterOptions};
use bowline::{
    Blocking, Compare, Config, Effect, Error, GuardError, KeyRange, LeaderEvent, LockError,
    LockState, LostReason, Node, Op, Rejection, Released, Revision, Role, SessionEndReason,
    StopReason,
};

use crate::stage::{
    Begun, FREED_WITHIN, LONG, SOON, STEADY, another_leader, commit_if, lasting, lasting_with,
    mortal, timed_out, until_deleted, until_places,
};

#[test]
fn write_on_one_member_is_readable_on_all() {
    let cluster = lasting(3);
    for (i, node) in cluster.running() {
        node.client().put(format!("k{i}"), format!("v{i}")).block().unwrap();
    }
    for (_, node) in cluster.running() {
        let rows = node.client().range(KeyRange::all()).block().unwrap();
        assert_eq!(rows.count, 3);
        assert_eq!(rows.revision, Revision(4));
    }
}

#[test]
fn completed_write_is_visible_to_local_reads_on_the_same_node() {
    let cluster = lasting(3);
    for (_, node) in cluster.running() {
        let kv = node.client();
        for i in 0..50 {
            let put = kv.put("k", i.to_string()).block().unwrap();
            let row = kv.get("k").local().block().unwrap().unwrap();
            assert!(row.mod_revision >= put.revision);
        }
    }
}

#[test]
fn read_on_another_node_can_wait_for_a_revision() {
    let cluster = lasting(3);
    let put = cluster.node(0).client().put("k", "v").block().unwrap();
    for (_, node) in cluster.running() {
        let row = node.client().get("k").at_least(put.revision).block().unwrap().unwrap();
        assert_eq!(row.value, "v");
    }
    let never = cluster.node(1).client().get("k").at_least(Revision(1_000_000));
    let error = never.deadline(Duration::from_millis(100)).block().unwrap_err();
    assert_eq!(error, Error::Deadline { effect: Effect::NotApplied });
}

#[test]
fn minority_crash_and_restart_loses_nothing() {
    let mut cluster = lasting(3);
    for round in 0..3 {
        let leader = cluster.leader().block().unwrap();
        cluster.node(leader).client().put(format!("k{round}"), "v").block().unwrap();
        cluster.kill(leader).block();
        let next = cluster.leader().block().unwrap();
        cluster.node(next).client().put(format!("after{round}"), "v").block().unwrap();
        cluster.restart(leader).block().unwrap();
    }
    let last = cluster.node(0).client().put("last", "v").block().unwrap();
    cluster.all_at(last.revision).block().unwrap();
    for (_, node) in cluster.running() {
        assert_eq!(node.client().range(KeyRange::all()).local().block().unwrap().count, 7);
    }
}

#[test]
fn handle_of_a_killed_member_does_not_disturb_its_restart() {
    let mut cluster = lasting(3);
    let handle = cluster.shared_node(1);
    handle.client().put("k", "v").block().unwrap();
    cluster.kill(1).block();
    assert!(matches!(handle.client().get("k").block(), Err(Error::Stopped { .. })));
    cluster.restart(1).block().unwrap();
    cluster.node(1).ready().block().unwrap();
    drop(handle);
    assert_eq!(cluster.node(1).client().get("k").block().unwrap().unwrap().value, "v");

    let handle = cluster.shared_node(2);
    drop(cluster);
    assert_eq!(handle.stopped().block(), StopReason::Shutdown);
}

#[test]
fn crash_of_all_members_loses_nothing() {
    let mut cluster = lasting(3);
    for i in 0..20 {
        cluster.node(i % 3).client().put(format!("k{i}"), "v").block().unwrap();
    }
    for member in 0..3 {
        cluster.kill(member).block();
    }
    for member in 0..3 {
        cluster.restart(member).block().unwrap();
    }
    assert_eq!(cluster.node(0).client().range(KeyRange::all()).block().unwrap().count, 20);
}

#[test]
fn calls_without_a_quorum_end_at_their_deadline_with_their_effect() {
    let cluster = lasting_with(3, |config| config.election_timeout(Duration::from_secs(1)));
    let leader = cluster.leader().block().unwrap();
    let kv = cluster.node(leader).client();
    // Entries that arrive while the leader is paused reach only its own log, before it can notice that it has no
    // followers.
    cluster.pause(leader);
    cluster.partition(&[leader]);
    let put = Begun::new(kv.put("k", "v").deadline(STEADY));
    cluster.resume(leader);
    assert_eq!(put.finish().unwrap_err(), Error::Deadline { effect: Effect::Unknown });
    let get = kv.get("k").deadline(Duration::from_millis(300)).block().unwrap_err();
    assert_eq!(get, Error::Deadline { effect: Effect::NotApplied });
    assert_eq!(kv.get("k").local().block().unwrap(), None);
    cluster.heal();
    kv.put("k", "w").block().unwrap();
    assert_eq!(kv.get("k").block().unwrap().unwrap().value, "w");
}

#[test]
fn deposed_leader_serves_no_stale_read() {
    let cluster = lasting(3);
    let old = cluster.leader().block().unwrap();
    cluster.node(old).client().put("k", "old").block().unwrap();
    cluster.partition(&[old]);
    let new = another_leader(&cluster, old);
    cluster.node(new).client().put("k", "new").block().unwrap();
    let late = cluster.node(old).client().get("k").deadline(Duration::from_millis(300)).block();
    assert_eq!(late.unwrap_err(), Error::Deadline { effect: Effect::NotApplied });
    cluster.heal();
    assert_eq!(cluster.node(old).client().get("k").block().unwrap().unwrap().value, "new");
}

/// Shutdown works while other parts of the program still hold the node.
#[test]
fn node_shuts_down_cleanly_while_in_use() {
    async {
        let dir = tempfile::tempdir().unwrap();
        let start = async || Arc::new(Node::start(Config::new(dir.path(), "solo")).await.unwrap());
        let node = start().await;
        let uses = std::thread::spawn({
            let node = Arc::clone(&node);
            move || while node.client().put("k", "v").block().is_ok() {}
        });
        node.client().put("k", "v").await.unwrap();
        assert!(node.shutdown().await.hanging.is_empty());
        assert!(matches!(node.client().get("k").await, Err(Error::Stopped { .. })));
        assert!(node.shutdown().await.hanging.is_empty(), "a second time there is nothing to do");
        uses.join().unwrap();
        // The directory is free, although the node value still exists.
        let again = start().await;
        assert_eq!(again.client().get("k").await.unwrap().unwrap().value, "v");
        assert!(again.shutdown().await.hanging.is_empty());
        drop(node);
    }
    .block();
}

#[test]
fn leadership_moves_on_request_and_on_shutdown() {
    let mut cluster = lasting(3);
    let old = cluster.leader().block().unwrap();
    cluster.node(old).transfer_leadership(None).block().unwrap();
    let new = another_leader(&cluster, old);
    cluster.shutdown(new).block();
    another_leader(&cluster, new);
}

/// A session's position in the queue is the create revision of its key, and tokens increase from grant to grant.
#[test]
fn sessions_are_granted_a_lock_in_the_order_of_their_keys() {
    let cluster = lasting(3);
    let granted = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for member in 0..3 {
            let (cluster, granted) = (&cluster, &granted);
            scope.spawn(move || {
                let session = cluster.node(member).session().block().unwrap();
                for _ in 0..20 {
                    let guard = session.mutex("lock").lock().block().unwrap();
                    let mut alone = granted.try_lock().expect("two are inside");
                    // Make a round trip while the lock is held, so that a second holder would be
                    // noticed.
                    cluster.node(member).client().put("seen", "").block().unwrap();
                    alone.push(guard.token());
                    drop(alone);
                    assert_eq!(guard.release().block().unwrap(), Released::Now);
                }
            });
        }
    });
    let granted = granted.into_inner().unwrap();
    assert_eq!(granted.len(), 60);
    assert!(granted.is_sorted_by(|earlier, later| earlier < later), "{granted:?}");
    assert_eq!(cluster.node(0).client().range(KeyRange::prefix("lock/")).block().unwrap().count, 0);
}

#[test]
fn two_tasks_on_one_session_exclude_each_other() {
    let cluster = lasting(1);
    let session = cluster.node(0).session().block().unwrap();
    let first = session.mutex("lock").lock().block().unwrap();
    let second = session.mutex("lock").lock().deadline(Duration::from_millis(100)).block();
    assert_eq!(second.unwrap_err(), LockError::TimedOut { before: 1 });
    let refused = session.mutex("lock").try_lock().block().unwrap_err();
    let LockError::WouldBlock { holder: Some(holder) } = refused else { panic!("{refused:?}") };
    assert_eq!(&holder.key, first.key());
    assert_eq!(holder.label.as_deref(), Some("m0"));
    drop(first);
    session.mutex("lock").lock().block().unwrap().release().block().unwrap();
}

#[test]
fn a_lock_is_free_after_its_holder_has_crashed() {
    let mut cluster = lasting(3);
    let leader = cluster.leader().block().unwrap();
    let (holder, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let guard = mortal(&cluster, holder).mutex("lock").lock().block().unwrap();
    let token = guard.token();
    cluster.kill(holder).block();
    assert!(matches!(guard.state(), LockState::Lost(_)));
    let session = cluster.node(other).session().block().unwrap();
    let next = session.mutex("lock").lock().deadline(FREED_WITHIN).block().unwrap();
    assert!(next.token() > token);
}

#[test]
fn restarted_member_does_not_wait_for_its_old_session() {
    // With the default TTL, the sessions would outlive the test.
    let options = ClusterOptions::new(3)
        .configure(|config| config.session_ttl(LONG))
        .wait_limit(Duration::from_secs(20));
    let mut cluster = options.start().block().unwrap();
    let session = cluster.node(1).session().block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    cluster.kill(1).block();
    drop(guard);
    cluster.restart(1).block().unwrap();
    let session = cluster.node(1).session().block().unwrap();
    let again = session.mutex("lock").lock().deadline(SOON).block();
    assert!(again.is_ok(), "{again:?}");
}

#[test]
fn paused_holder_writes_nothing_late_and_learns_of_its_loss() {
    let cluster = lasting(3);
    let leader = cluster.leader().block().unwrap();
    let (holder, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let guard = mortal(&cluster, holder).mutex("lock").lock().block().unwrap();
    cluster.pause(holder);
    // This transaction is sent while the holder still considers the lock held, and is proposed
    // after the next holder has written.
    let sent = Begun::new(guard.txn().then(Op::put("data", "sent before")).commit());
    assert!(guard.is_held());
    let next = cluster.node(other).session().block().unwrap().mutex("lock").lock().block().unwrap();
    next.txn().then(Op::put("data", "new")).commit().block().unwrap();
    cluster.resume(holder);
    assert_eq!(sent.finish().unwrap_err(), GuardError::NotHeld);
    assert_eq!(
        guard.state(),
        LockState::Lost(LostReason::SessionEnded(SessionEndReason::NotRenewed))
    );
    let late = guard.txn().then(Op::put("data", "late")).commit().block();
    assert_eq!(late.unwrap_err(), GuardError::NotHeld);
    assert!(!commit_if(&cluster.node(other).client(), guard.still_held(), "data", "late"));
    assert_eq!(cluster.node(holder).client().get("data").block().unwrap().unwrap().value, "new");
    assert!(next.token() > guard.token());
    assert!(matches!(guard.release().block().unwrap(), Released::AlreadyLost(_)));
}

#[test]
fn partitioned_holder_reports_its_loss_before_another_holds() {
    let cluster = lasting(3);
    let leader = cluster.leader().block().unwrap();
    let (holder, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let guard = mortal(&cluster, holder).mutex("lock").lock().block().unwrap();
    let next = cluster.node(other).session().block().unwrap();
    cluster.partition(&[holder]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let next = next.mutex("lock").lock().block().unwrap();
            assert!(!guard.is_held(), "two hold");
            assert!(next.token() > guard.token());
        });
        assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    });
}

#[test]
fn abandoned_wait_leaves_no_key() {
    let cluster = lasting(3);
    let session = cluster.node(0).session().block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    let other = cluster.node(1).session().block().unwrap();
    for _ in 0..5 {
        let waited = other.mutex("lock").lock().deadline(Duration::from_millis(60)).block();
        let error = waited.unwrap_err();
        assert!(timed_out(&error), "{error:?}");
    }
    let waiting = Begun::new(other.mutex("lock").lock().deadline(STEADY * 2));
    until_places(cluster.node(1), "lock", 2);
    assert_eq!(waiting.finish().unwrap_err(), LockError::TimedOut { before: 1 });
    // A future that was never polled has not sent a request. A future that is dropped later leaves
    // the queue.
    drop(other.mutex("lock").lock());
    guard.release().block().unwrap();
    let kv = cluster.node(2).client();
    let mut changes = kv.watch(KeyRange::prefix("lock/")).block().unwrap();
    while kv.range(KeyRange::prefix("lock/")).block().unwrap().count > 0 {
        changes.next().block().unwrap().unwrap();
    }
}

#[test]
fn lock_with_a_deleted_key_is_lost_at_once() {
    let cluster = lasting(1);
    let guard = cluster.node(0).session().block().unwrap().mutex("lock").lock().block().unwrap();
    cluster.node(0).client().delete(guard.key().clone()).block().unwrap();
    assert_eq!(guard.lost().block(), LostReason::KeyDeleted);
    assert_eq!(guard.release().block().unwrap(), Released::AlreadyLost(LostReason::KeyDeleted));
}

#[test]
fn election_has_one_leader_and_observers_see_each_change() {
    let cluster = lasting(3);
    let election = cluster.node(0).session().block().unwrap().election("jobs");
    let mut seen = cluster.node(2).session().block().unwrap().election("jobs").observe();
    assert_eq!(seen.next().block().unwrap().unwrap(), LeaderEvent::Vacant);
    let leadership = election.campaign("a").block().unwrap();
    let LeaderEvent::Leads(leader) = seen.next().block().unwrap().unwrap() else {
        panic!("nobody leads")
    };
    assert_eq!(leader.value, "a");
    leadership.proclaim("b").block().unwrap();
    let LeaderEvent::Leads(leader) = seen.next().block().unwrap().unwrap() else {
        panic!("nobody leads")
    };
    assert_eq!(leader.value, "b");
    assert_eq!(election.leader().block().unwrap().unwrap().value, "b");
    leadership.resign().block().unwrap();
    assert_eq!(seen.next().block().unwrap().unwrap(), LeaderEvent::Vacant);
}

#[test]
fn session_keys_are_deleted_with_the_session() {
    let cluster = lasting(3);
    let session = cluster.node(0).session().block().unwrap();
    let kv = cluster.node(0).client();
    kv.put("here", "v").lease(session.lease()).block().unwrap();
    session.close().block().unwrap();
    assert_eq!(session.end(), Some(SessionEndReason::Closed));
    assert_eq!(cluster.node(1).client().get("here").block().unwrap(), None);
    let late = kv.put("here", "v").lease(session.lease()).block().unwrap_err();
    assert_eq!(late, Error::Rejected(Rejection::LeaseNotFound(session.lease())));
}

#[test]
fn unrenewed_lease_expires_and_a_session_lease_lives() {
    let cluster = lasting(3);
    let kv = cluster.node(0).client();
    let session = mortal(&cluster, 0);
    let lease = kv.grant(STEADY).block().unwrap();
    kv.put("short", "v").lease(lease.id).block().unwrap();
    kv.put("long", "v").lease(session.lease()).block().unwrap();
    until_deleted(&kv, "short");
    // The lease is renewed several times, and its key still exists when the lease would have expired otherwise.
    let first = session.valid_until();
    while session.valid_until() < first + STEADY {
        kv.put("tick", "v").block().unwrap();
        assert_eq!(session.end(), None);
    }
    assert!(kv.get("long").block().unwrap().is_some());
}

#[test]
fn scoped_client_reads_and_writes_only_its_prefix() {
    let cluster = lasting(1);
    let kv = cluster.node(0).client();
    let app = kv.with_prefix("app/");
    kv.put("other", "v").block().unwrap();
    app.put("k", "v").block().unwrap();
    let rows = app.range(KeyRange::all()).block().unwrap();
    assert_eq!(rows.kvs.len(), 1);
    assert_eq!(rows.kvs[0].key, "k");
    let done = app
        .txn()
        .when(Compare::exists("k"))
        .then(Op::put("l", "w"))
        .then(Op::range(KeyRange::all()))
        .commit()
        .block()
        .unwrap();
    assert!(done.succeeded);
    assert_eq!(app.delete(KeyRange::all()).block().unwrap().deleted, 2);
    assert_eq!(kv.range(KeyRange::all()).block().unwrap().count, 1);
}

#[test]
fn shutdown_leaves_no_threads() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    node.client().put("k", "v").block().unwrap();
    let client = node.client();
    let report = testing::shutdown(node).block();
    assert!(report.hanging.is_empty(), "{report:?}");
    let late = client.put("k", "v").block().unwrap_err();
    assert!(matches!(late, Error::Stopped { effect: Effect::NotApplied, .. }), "{late:?}");
    // The directory is free again.
    let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    assert_eq!(node.client().get("k").block().unwrap().unwrap().value, "v");
}

#[test]
fn blocked_host_costs_neither_leadership_nor_leases() {
    let cluster = lasting_with(3, |config| {
        config.heartbeat(Duration::from_millis(50)).election_timeout(Duration::from_secs(2))
    });
    let leader = cluster.leader().block().unwrap();
    let guard = mortal(&cluster, leader).mutex("lock").lock().block().unwrap();
    let term = cluster.node(leader).status().term;
    // Block the program for longer than a TTL. This thread is its only one.
    let (_hold, wait) = std::sync::mpsc::channel::<()>();
    assert!(wait.recv_timeout(STEADY + STEADY / 2).is_err());
    assert!(guard.is_held());
    let status = cluster.node(leader).status();
    assert_eq!((status.term, status.role), (term, Role::Leader));
}

#[test]
fn guard_dropped_during_a_leadership_transfer_releases_the_lock() {
    let cluster = lasting_with(3, |config| config.election_timeout(Duration::from_secs(2)));
    let leader = cluster.leader().block().unwrap();
    let (other, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let guard = cluster.node(leader).session().block().unwrap().mutex("l").lock().block().unwrap();
    // The new leader receives nothing. Until the old leader gives up the transfer, it accepts no proposals.
    cluster.cut(leader, third);
    let node = cluster.node(leader);
    let to = cluster.node(third).status().id;
    let mut transfer = Box::pin(node.transfer_leadership(Some(to)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(transfer.as_mut().poll(&mut context).is_pending());
    drop(guard);
    node.client().put("k", "v").block().unwrap();
    let waiter = cluster.node(other).session().block().unwrap();
    // The session still exists, so only a release frees the lock.
    assert!(waiter.mutex("l").lock().deadline(SOON).block().unwrap().is_held());
    cluster.heal();
}

#[test]
fn paused_member_can_be_stopped_and_restarted() {
    let mut cluster = lasting(3);
    cluster.leader().block().unwrap();
    cluster.pause(0);
    cluster.shutdown(0).block();
    cluster.restart(0).block().unwrap();
}

#[test]
fn concurrent_session_requests_without_a_quorum_time_out_together() {
    let call = STEADY;
    let options = ClusterOptions::new(3).configure(move |config| config.call_deadline(call));
    let mut cluster = options.start().block().unwrap();
    cluster.leader().block().unwrap();
    cluster.kill(1).block();
    cluster.kill(2).block();
    let node = cluster.node(0);
    let began = node.now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let error = node.session().block().unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
            });
        }
    });
    assert!(node.now().since(began) < 4 * call, "{:?}", node.now().since(began));
}

#[test]
fn ready_resolves_once_a_leader_serves() {
    let mut cluster = lasting(3);
    for (_, node) in cluster.running() {
        node.ready().block().unwrap();
        assert!(node.status().leader.is_some());
    }
    // Acknowledged writes are still visible.
    let put = cluster.node(0).client().put("k", "v").block().unwrap();
    cluster.node(1).ready().block().unwrap();
    assert!(cluster.node(1).client().revision() >= put.revision);
    for member in 0..3 {
        cluster.kill(member).block();
    }
    cluster.restart(0).block().unwrap();
    let late = cluster.node(0).ready().deadline(Duration::from_millis(300)).block();
    assert_eq!(late, Err(Error::Deadline { effect: Effect::NotApplied }));
    let mut waits = Box::pin(cluster.node(0).ready().deadline(Duration::MAX).into_future());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    cluster.restart(1).block().unwrap();
    waits.block().unwrap();
    assert!(cluster.node(0).client().revision() >= put.revision);
    cluster.kill(1).block();
    let waits = cluster.node(0).ready().deadline(Duration::MAX).into_future();
    cluster.kill(0).block();
    assert!(matches!(waits.block(), Err(Error::Stopped { .. })));
}

#[test]
fn waiting_founder_names_absent_members() {
    let dir = tempfile::tempdir().unwrap();
    let free = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let (own, other) = (free(), free());
    let members = [("first", own), ("second", other.clone())];
    let config = Config::new(dir.path(), "first").members(members).insecure_peers(true);
    let node = Node::start(config).block().unwrap();
    let absent = format!("second ({other})");
    let late = node.ready().deadline(Duration::from_millis(800)).block().unwrap_err();
    assert_eq!(late, Error::NotFounded { waiting_for: vec![absent.clone()] });
    let words = format!(
        "not applied: deadline exceeded; the cluster is not founded yet: waiting for {absent}"
    );
    assert_eq!(late.to_string(), words);
    assert!(late.is_transient() && late.effect() == Effect::NotApplied);
    let put = node.client().put("k", "v").deadline(Duration::from_millis(50)).block();
    assert_eq!(put, Err(late));
    let health = node.health();
    assert_eq!(health.unreached, std::slice::from_ref(&absent));
    let words = format!("the cluster is not founded yet: waiting for {absent}");
    assert_eq!(health.to_string(), words);
    node.shutdown().block();
}
