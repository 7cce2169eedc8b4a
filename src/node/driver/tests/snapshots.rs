//! Tests of moving snapshots between nodes, turn by turn.

use super::*;
use crate::env::Disk;
use crate::machine::RestoreError;
use crate::metrics::Metrics;
use crate::model::{ClusterVersion, Fault, LogIndex, SnapshotId, Term};
use crate::node::snapshots::news::News;

fn often(_: usize, settings: &mut Settings) {
    settings.log_segment_bytes = 2 << 10;
    settings.snapshot_log_bytes = 4 << 10;
}

#[test]
fn accepted_snapshot_waits_for_a_slow_log() {
    let mut three = Three::led_by(0, often);
    for other in [0, 1] {
        three.hub.cut(id(2), id(other));
        three.hub.cut(id(other), id(2));
    }
    for i in 0..200 {
        three.put(0, &format!("k{i}"), 100).unwrap();
    }
    three.pass(30_000);
    three.hub.heal_all();
    // After many ticks, the snapshot has arrived, but the log of node 2 has not made it durable.
    for _ in 0..600 {
        three.step_without_log(Some(2));
    }
    let revision = |three: &Three, node: usize| three.shared(node).state.status.borrow().revision;
    assert!(revision(&three, 2) < revision(&three, 0), "the log's proof was not waited for");
    three.until("it never catches up", |three| revision(three, 2) == revision(three, 0));
    let metrics = Metrics::new("m2", Arc::clone(&three.shared(2).meters)).snapshot();
    assert_eq!(metrics.snapshots_installed_total, 1);
}

#[test]
fn fetch_overtaken_by_the_log_is_abandoned_with_its_file() {
    let gone =
        |three: &mut Three, id_of_it| three.nodes[2].driver.end_fetch_of_missing(id(1), id_of_it);
    let ends: [fn(&mut Three, SnapshotId); 3] = [|_, _| {}, gone, |three, _| three.restart(2)];
    for ends in ends {
        let mut three = Three::led_by(0, often);
        let applied = three.shared(2).state.status.borrow().applied;
        let later = LogIndex(applied.get() + 20);
        let id_of_it = SnapshotId { index: later, term: Term(1), bytes: 1 << 20, checksum: 7 };
        // The peer that offers the snapshot is cut off, and is not the leader.
        three.hub.cut(id(2), id(1));
        let now = three.clock.now();
        three.nodes[2].driver.fetch(id(1), id_of_it, now);
        let partials = |three: &Three| {
            let names = three.disks[2].list(std::path::Path::new("/data")).unwrap();
            names.iter().filter(|name| name.ends_with(".partial")).count()
        };
        three.pass(300);
        let fetches = |three: &Three| three.nodes[2].driver.snapshots.own.fetching().is_some();
        assert!(fetches(&three) && partials(&three) == 1);
        ends(&mut three, id_of_it);
        for i in 0..30 {
            three.put(0, &format!("k{i}"), 10).unwrap();
        }
        three.until("it fetches on", |three| !fetches(three) && partials(three) == 0);
        assert!(three.shared(2).state.status.borrow().applied >= later);
    }
}

#[test]
fn snapshot_of_a_newer_build_stops_the_node_with_a_reason() {
    let mut three = Three::led_by(0, often);
    let snapshot = SnapshotId { index: LogIndex(99), term: Term(1), bytes: 1 << 20, checksum: 7 };
    let (version, known) = (ClusterVersion(9), ClusterVersion(1));
    let why = RestoreError::Outgrown(Fault::Outgrown { version, known }).into();
    three.push(2, Input::Snapshot(News::NotReceived { id: snapshot, why }));
    three.pass(50);
    let why = three.shared(2).stop_reason().expect("it is not fetched forever").to_string();
    assert!(why.ends_with("upgrade this node"), "{why}");
}

#[test]
fn corrupted_state_outside_the_rows_stops_the_node() {
    let mut three = Three::led_by(0, often);
    let grant = Command::Grant { id: None, ttl: Duration::from_secs(600), session: None };
    three.write(2, grant).unwrap();
    let revision = |three: &Three, node: usize| three.shared(node).state.status.borrow().revision;
    three.nodes[2].driver.machine.rot_lease();
    for i in 0..100 {
        three.put(0, &format!("k{i}"), 100).unwrap();
    }
    three.until("its copies are taken for sound", |three| three.shared(2).stop_reason().is_some());
    let why = three.shared(2).stop_reason().unwrap().to_string();
    assert!(why.contains("has changed in memory"), "{why}");
    three.restart(2);
    three.until("it has lost something", |three| revision(three, 2) == revision(three, 0));
    let digest = |three: &Three, node: usize| three.nodes[node].driver.machine.digest();
    three.pass(1_000);
    assert_eq!(digest(&three, 2), digest(&three, 0));
}

type Backup = Pin<Box<dyn Future<Output = CallResult<SnapshotId>>>>;

/// Starts a backup of the first node.
fn backup(three: &Three) -> (Backup, Poll<CallResult<SnapshotId>>) {
    let shared = Arc::clone(three.shared(0));
    let mut backup: Backup = Box::pin(async move { shared.backup("/data/backup".into()).await });
    let first = look(&mut backup);
    (backup, first)
}

fn look(backup: &mut Backup) -> Poll<CallResult<SnapshotId>> {
    backup.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn hanging_backups_are_bounded_and_delay_no_snapshot() {
    let mut three = Three::led_by(0, often);
    // The backup worker does not run, as if the disk did not respond.
    let mut backups: Vec<Backup> = (0..5).map(|_| backup(&three).0).collect();
    three.pass(100);
    let results: Vec<_> = backups.iter_mut().map(look).collect();
    assert!(results[..4].iter().all(Poll::is_pending), "{results:?}");
    assert_eq!(results[4], Poll::Ready(Err(CallError::Busy)));
    let taken = |three: &Three| {
        Metrics::new("m1", Arc::clone(&three.shared(0).meters)).snapshot().snapshots_taken_total
    };
    let before = taken(&three);
    for i in 0..200 {
        three.put(0, &format!("k{i}"), 100).unwrap();
    }
    three.pass(1_000);
    assert!(taken(&three) > before + 1, "{} snapshots since", taken(&three) - before);
    // The disk responds again, and the backups complete one by one.
    let Assembled { backup_worker, mut driver, .. } = three.nodes.remove(0);
    let worker = std::thread::spawn(move || backup_worker.run());
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    for mut backup in backups.into_iter().take(4) {
        let result = loop {
            if let Poll::Ready(result) = look(&mut backup) {
                break result;
            }
            assert!(std::time::Instant::now() < deadline, "it is not written");
            std::thread::yield_now();
        };
        result.unwrap();
    }
    driver.abandon(&crate::node::StopReason::Killed);
    worker.join().unwrap();
}
