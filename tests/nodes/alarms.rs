//! Tests of cluster alarms: an alarm is active on every node and survives failovers and restarts,
//! and the operations that an alarm must not stop continue.

use std::time::Duration;

use bowline::backup::{self, RestoreOptions};
use bowline::testing::{Cluster, ClusterOptions};
use bowline::{
    Blocking, Config, Error, KeyRange, LockError, Node, Rejection, Revision,
    cluster::{Alarm, AlarmChange, AlarmKind},
};

const FULL: Alarm = Alarm { member: None, kind: AlarmKind::NoSpace };

/// Configures a node that truncates its log every few hundred writes.
fn small(config: Config) -> Config {
    config.snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10)
}

fn three() -> Cluster {
    ClusterOptions::new(3).configure(small).start().block().unwrap()
}

fn raise(node: &Node, alarm: Alarm) {
    assert_eq!(
        node.client().change_alarms(AlarmChange::Raise(alarm)).block().unwrap().alarms,
        [alarm]
    );
}

fn end(node: &Node, alarm: Alarm) {
    assert_eq!(
        node.client().change_alarms(AlarmChange::End(alarm)).block().unwrap().alarms,
        [alarm]
    );
}

fn refused(kind: AlarmKind) -> Error {
    Error::Rejected(Rejection::Alarm(kind))
}

#[track_caller]
fn puts_are_refused(node: &Node, kind: AlarmKind) {
    let error = node.client().put("k", "refused").block().unwrap_err();
    assert_eq!(error, refused(kind));
    assert_eq!(error.effect(), bowline::Effect::NotApplied);
    assert!(error.to_string().contains("bowline alarm disarm"), "{error}");
}

/// Appends entries that make the log grow, but not the state.
fn delete_many(node: &Node) -> Revision {
    let client = node.client();
    let long = |n: u32| format!("none/{n}/{}", "x".repeat(900));
    for n in 0..600 {
        client.delete(long(n)).block().unwrap();
    }
    client.delete("last").block().unwrap().revision
}

#[test]
fn alarm_survives_failover_and_restarts_until_ended() {
    let mut cluster = three();
    let leader = cluster.leader().block().unwrap();
    let (one, two) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.node(one).client().put("k", "v").block().unwrap();
    raise(cluster.node(one), FULL);
    for member in 0..3 {
        assert_eq!(cluster.node(member).client().read_alarms().block().unwrap().len(), 1);
        puts_are_refused(cluster.node(member), AlarmKind::NoSpace);
    }
    cluster.kill(leader).block();
    let other = cluster.leader().block().unwrap();
    assert_ne!(other, leader);
    for member in [one, two] {
        puts_are_refused(cluster.node(member), AlarmKind::NoSpace);
    }
    for member in [one, two] {
        cluster.kill(member).block();
    }
    for member in 0..3 {
        cluster.restart(member).block().unwrap();
    }
    cluster.leader().block().unwrap();
    for member in 0..3 {
        puts_are_refused(cluster.node(member), AlarmKind::NoSpace);
    }
    end(cluster.node(two), FULL);
    // Once the end of an alarm is acknowledged, it has ended on every member.
    for member in 0..3 {
        cluster.node(member).client().put("k", "again").block().unwrap();
        assert!(cluster.node(member).client().read_alarms().block().unwrap().is_empty());
    }
    let row = cluster.node(one).client().get("k").block().unwrap().unwrap();
    assert_eq!((row.version, &row.value[..]), (4, &b"again"[..]), "and nothing that was refused");
}

#[test]
fn absent_member_receives_alarms_in_a_snapshot() {
    let mut cluster = three();
    let leader = cluster.leader().block().unwrap();
    let away = (leader + 1) % 3;
    cluster.node(leader).client().put("k", "v").block().unwrap();
    cluster.kill(away).block();
    let corrupt =
        Alarm { member: Some(cluster.node(leader).status().id), kind: AlarmKind::Corrupt };
    raise(cluster.node(leader), FULL);
    raise(cluster.node(leader), corrupt);
    let taken = || cluster.node(leader).metrics().snapshot().snapshots_taken_total;
    let before = taken();
    while taken() < before + 2 {
        delete_many(cluster.node(leader));
    }
    // At the first start, the member fetches a snapshot. At the second start, it uses its own snapshot.
    for installs in [1, 0] {
        cluster.restart(away).block().unwrap();
        let client = cluster.node(away).client();
        let alarms = client.read_alarms().block().unwrap();
        assert_eq!(alarms.iter().copied().collect::<Vec<_>>(), [FULL, corrupt]);
        assert_eq!(cluster.node(away).metrics().snapshot().snapshots_installed_total, installs);
        puts_are_refused(cluster.node(away), AlarmKind::Corrupt);
        cluster.shutdown(away).block();
    }
    cluster.restart(away).block().unwrap();
    end(cluster.node(away), corrupt);
    puts_are_refused(cluster.node(leader), AlarmKind::NoSpace);
    end(cluster.node(away), FULL);
    let put = cluster.node(leader).client().put("k", "w").block().unwrap();
    cluster.all_at(put.revision).block().unwrap();
}

#[test]
fn single_node_keeps_alarms_over_restarts_but_a_restore_drops_them() {
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str| Node::start(small(Config::new(dir.path().join(name), "solo"))).block();
    let node = start("first").unwrap();
    node.client().put("k", "v").block().unwrap();
    raise(&node, FULL);
    while node.metrics().snapshot().snapshots_taken_total == 0 {
        delete_many(&node);
    }
    assert!(node.shutdown().block().hanging.is_empty());
    let node = start("first").unwrap();
    puts_are_refused(&node, AlarmKind::NoSpace);
    let file = dir.path().join("backup");
    node.backup(&file).block().unwrap();
    backup::verify(&file).unwrap();
    assert!(node.shutdown().block().hanging.is_empty());

    let config = small(Config::new(dir.path().join("second"), "solo"));
    backup::restore(&file, &config, &RestoreOptions::default()).unwrap();
    let node = start("second").unwrap();
    assert!(node.client().read_alarms().block().unwrap().is_empty());
    node.client().put("k", "w").block().unwrap();
    assert!(node.shutdown().block().hanging.is_empty());
}

#[test]
fn alarm_blocks_new_lock_requests_but_not_releases_or_sessions() {
    for kind in [AlarmKind::NoSpace, AlarmKind::Corrupt] {
        let cluster = three();
        let leader = cluster.leader().block().unwrap();
        let (near, far) = (cluster.node(leader), cluster.node((leader + 1) % 3));
        let ttl = Duration::from_secs(2);
        let session = near.open_session().ttl(ttl).block().unwrap();
        let waiter = far.open_session().ttl(ttl).block().unwrap();
        let held = session.mutex("door").lock().block().unwrap();
        let other = session.mutex("other").lock().block().unwrap();
        let mut waits = Box::pin(async { waiter.mutex("door").lock().await });
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let in_line = || near.client().range(KeyRange::prefix("door/")).block().unwrap().kvs.len();
        while in_line() < 2 {}
        let lease = near.client().grant(Duration::from_secs(3)).block().unwrap().id;
        near.client().put("leased", "v").lease(lease).block().unwrap();

        raise(far, Alarm { member: None, kind });
        let came = far.session().block();
        assert_eq!(came.unwrap_err(), refused(kind), "no new sessions");
        let entered = waiter.mutex("third").try_lock().block();
        assert_eq!(entered.unwrap_err(), LockError::Store(refused(kind)));
        // The release grants the lock to a request that was already queued, without any other
        // change.
        held.release().block().unwrap();
        let guard = waits.as_mut().block().unwrap();
        let rejection = guard.txn().then(bowline::Op::put("k", "v")).commit().block().unwrap_err();
        assert_eq!(rejection, bowline::GuardError::Store(refused(kind)));
        drop(other);
        while !near.client().range(KeyRange::prefix("other/")).block().unwrap().kvs.is_empty() {}
        // Renew for longer than the TTL of the sessions.
        let renewed = || near.client().renew(session.lease()).block().unwrap();
        assert_eq!(renewed(), ttl);
        while near.client().lease_info(lease).block().unwrap().is_some() {}
        assert_eq!(near.client().get("leased").block().unwrap(), None, "its time was up");
        assert!(guard.is_held() && session.end().is_none());
        session.close().block().unwrap();
        guard.release().block().unwrap();
        assert_eq!(in_line(), 0);

        end(near, Alarm { member: None, kind });
        let again = waiter.mutex("third").lock().block().unwrap();
        again.release().block().unwrap();
        far.session().block().unwrap();
    }
}
