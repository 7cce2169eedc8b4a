//! Tests of complaints by operators.

use std::time::Duration;

use bowline::{Blocking, Op};

use crate::stage::{another_leader, another_session, lasting, roles, session, with};

/// python-etcd#123: unexpected keys below the name of a lock.
#[test]
fn foreign_keys_below_the_lock_name_block_no_request() {
    let cluster = lasting(3);
    let kv = cluster.node(0).client();
    kv.put("lock/note", "no lease: no waiter").block().unwrap();
    kv.put("lock/", "nor is this").block().unwrap();
    let session = session(&cluster, 1);
    kv.put("lock/deeper/key", "not a child").lease(session.lease()).block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    assert_eq!(session.mutex("lock").queue().unwrap().len(), 1);
    guard.release().block().unwrap();
}

/// network-operator#3256, ovn-kubernetes#3959: a short outage of the store ends the leadership.
#[test]
fn short_store_outage_costs_no_lock() {
    let cluster = with(3, |config| {
        let config = config.heartbeat(Duration::from_millis(20));
        config.election_timeout(Duration::from_millis(150)).session_ttl(Duration::from_secs(5))
    });
    let (leader, one, _) = roles(&cluster);
    let leads = session(&cluster, one).election("jobs").campaign("one").block().unwrap();
    cluster.pause(leader);
    another_leader(&cluster, leader);
    cluster.resume(leader);
    leads.txn().then(Op::put("k", "v")).commit().block().unwrap();
    assert!(leads.is_leader());
}

/// etcd#6127, where operators ask who holds a lock.
#[test]
fn holders_and_waiters_are_readable_by_anyone() {
    let cluster = lasting(3);
    let holder = another_session(&cluster, 0, "billing-7");
    let guard = holder.mutex("lock").lock().block().unwrap();
    let waiter = another_session(&cluster, 1, "billing-8");
    let waiting = crate::stage::stand_in_line(&waiter, cluster.node(1), "lock");
    let newest = cluster.node(2).client().range("any").block().unwrap().revision;
    cluster.all_at(newest).block().unwrap();
    for member in 0..3 {
        let line = session(&cluster, member).mutex("lock").queue().unwrap();
        let labels: Vec<_> = line.iter().filter_map(|place| place.label.as_deref()).collect();
        assert_eq!(labels, ["billing-7", "billing-8"]);
        assert!(line[0].since < line[1].since);
    }
    drop(waiting);
    guard.release().block().unwrap();
}
