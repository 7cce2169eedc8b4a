//! Tests of complaints about keys, leases and memory that are left behind.

use std::time::Duration;

use bowline::{Blocking, KeyRange, LockError};

use crate::stage::{
    LONG, SOON, STEADY, another_session, lasting, mortal, places, roles, session, stand_in_line,
    until_deleted, until_places, until_true, with,
};

/// python-etcd#228.
#[test]
fn failed_try_lock_leaves_no_key() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    for _ in 0..5 {
        let tried = session(&cluster, 1).mutex("lock").try_lock().block();
        assert!(matches!(tried, Err(LockError::WouldBlock { .. })), "{tried:?}");
    }
    until_places(cluster.node(1), "lock", 1);
    guard.release().block().unwrap();
    let free = session(&cluster, 2).mutex("lock").try_lock().block();
    assert!(free.is_ok(), "{free:?}");
}

/// kazoo#760: a key that a failed attempt left behind after the connection was lost.
#[test]
fn failed_try_lock_without_a_connection_leaves_no_key() {
    let cluster = with(3, |config| {
        let config = config.heartbeat(Duration::from_millis(20));
        let config = config.election_timeout(Duration::from_millis(150));
        config.session_ttl(LONG).call_deadline(STEADY)
    });
    let (_, one, two) = roles(&cluster);
    let cut = session(&cluster, one);
    cluster.partition(&[one]);
    let tried = cut.mutex("lock").try_lock().block();
    assert!(tried.is_err(), "{tried:?}");
    cluster.heal();
    let next = another_session(&cluster, two, "next").mutex("lock").lock().block().unwrap();
    until_places(cluster.node(two), "lock", 1);
    next.release().block().unwrap();
}

/// redisson#7272, redisson#1626, etcd#17470.
#[test]
fn closed_session_is_not_renewed() {
    let cluster = lasting(3);
    let kept = another_session(&cluster, 0, "closed");
    let guard = kept.mutex("lock").lock().block().unwrap();
    let lease = kept.lease();
    kept.close().block().unwrap();
    assert_eq!(cluster.node(1).client().lease_info(lease).block().unwrap(), None);
    assert!(!guard.is_held());
    assert_eq!(places(cluster.node(1), "lock"), 0);
}

/// etcd#17470, tristanls/dynamodb-lock-client#1.
#[test]
fn stopped_program_renews_nothing() {
    let mut cluster = lasting(3);
    let (leader, one, _) = roles(&cluster);
    let gone = mortal(&cluster, one);
    let lease = gone.lease();
    let kv = cluster.node(leader).client();
    kv.put("here", "").lease(lease).block().unwrap();
    cluster.shutdown(one).block();
    until_deleted(&kv, "here");
    assert_eq!(kv.lease_info(lease).block().unwrap(), None);
}

/// hazelcast#26526, hazelcast#25344, hazelcast#17498, curator#29.
#[test]
fn used_lock_names_leave_nothing() {
    let cluster = lasting(1);
    let node = cluster.node(0);
    let session = session(&cluster, 0);
    let kv = node.client();
    kv.put("k", "v").block().unwrap();
    let settle = || {
        kv.compact(kv.revision()).block().unwrap();
        let begun = node.now();
        // Compacted versions are freed in the background.
        let mut least = node.metrics().snapshot().state_bytes;
        while node.now().since(begun) < Duration::from_millis(500) {
            kv.get("k").block().unwrap();
            least = least.min(node.metrics().snapshot().state_bytes);
        }
        least
    };
    let before = settle();
    for name in 0..500 {
        session.mutex(format!("name/{name}")).lock().block().unwrap().release().block().unwrap();
    }
    kv.compact(kv.revision()).block().unwrap();
    until_true(node, "all of them are swept", || {
        kv.get("k").block().unwrap();
        node.metrics().snapshot().state_bytes <= before + 4_096
    });
    assert_eq!(kv.range(KeyRange::all()).count_only().block().unwrap().count, 1);
}

/// hazelcast#17709: the holder of a lock calls `try_lock` again and again.
#[test]
fn repeated_try_lock_by_the_holder_leaves_nothing() {
    let cluster = lasting(1);
    let session = session(&cluster, 0);
    let guard = session.mutex("lock").lock().block().unwrap();
    for _ in 0..200 {
        assert!(session.mutex("lock").try_lock().block().is_err());
    }
    until_places(cluster.node(0), "lock", 1);
    assert!(guard.is_held());
}

/// lakekeeper#1789, and guards that can only be dropped on a runtime.
#[test]
fn a_guard_dropped_on_any_thread_releases() {
    let cluster = lasting(3);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mine = session(&cluster, 0);
    let guard = runtime.block_on(async { mine.mutex("lock").lock().await.unwrap() });
    drop(runtime);
    let other = session(&cluster, 1);
    let waiting = stand_in_line(&other, cluster.node(1), "lock");
    std::thread::spawn(move || drop(guard)).join().unwrap();
    let begun = cluster.node(1).now();
    assert!(waiting.finish().unwrap().is_held());
    assert!(cluster.node(1).now().since(begun) < SOON);
}

/// nats-server#3653.
#[test]
fn expired_lease_ends_on_all_replicas_in_one_revision() {
    let cluster = lasting(3);
    let kv = cluster.node(0).client();
    let lease = kv.grant(STEADY).block().unwrap().id;
    for key in ["a", "b"] {
        kv.put(key, "").lease(lease).block().unwrap();
    }
    let ends: Vec<_> = (0..3)
        .map(|member| {
            let kv = cluster.node(member).client();
            ["a", "b"].map(|key| until_deleted(&kv, key))
        })
        .collect();
    assert!(ends.iter().flatten().all(|end| *end == ends[0][0]), "{ends:?}");
}

/// redisson#2045, redisson#4462, redisson#2213: permits that are lost permanently.
#[test]
fn permits_of_a_crashed_holder_are_freed() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let _lost = mortal(&cluster, one).semaphore("gpu", 2).acquire_many(2).block().unwrap();
    cluster.kill(one).block();
    let both = session(&cluster, two).semaphore("gpu", 2).acquire_many(2).block();
    assert!(both.is_ok(), "{both:?}");
}
