//! Tests of full disks, and of recovery from them.

use super::*;
use crate::metrics::Metrics;

fn no_space(result: &CallResult<Reply>) -> bool {
    *result == Err(CallError::NoSpace)
}

#[test]
fn follower_with_a_full_disk_rejects_growth_and_others_do_not() {
    let mut three = Three::led_by(0, |_, _| {});
    three.put(2, "k", 10).unwrap();
    three.disk(2, Space::Low);
    three.pass(50);
    assert!(no_space(&three.put(2, "more", 10)));
    three.delete(2, "k").unwrap();
    three.put(1, "more", 10).unwrap();
    three.put(0, "more", 10).unwrap();
    three.disk(2, Space::Plenty);
    three.pass(50);
    three.put(2, "again", 10).unwrap();
    assert_eq!(three.leader(), 0, "nobody else had to lead");
}

#[test]
fn leader_with_a_full_disk_transfers_to_a_voter_with_space() {
    let mut three = Three::led_by(0, |_, _| {});
    three.disk(1, Space::Low);
    three.pass(50);
    three.disk(0, Space::Low);
    three.until("the full leader stays", |three| three.leader_now() == Some(2));
    // Two of three disks are full, so no quorum can store more.
    three.pass(600);
    for node in 0..3 {
        assert!(no_space(&three.put(node, "more", 10)), "on {node}");
    }
    three.delete(2, "k").unwrap();
    three.disk(1, Space::Plenty);
    three.pass(50);
    three.put(2, "more", 10).unwrap();
    three.put(1, "more", 10).unwrap();
}

#[test]
fn full_disks_everywhere_keep_the_leader_and_heal_by_themselves() {
    let mut three = Three::led_by(1, |_, _| {});
    for node in [0, 2, 1] {
        three.disk(node, Space::Low);
        three.pass(50);
    }
    three.pass(5_000);
    assert_eq!(three.leader(), 1);
    let term = three.shared(1).state.status.borrow().term;
    assert!((0..3).all(|node| no_space(&three.put(node, "more", 10))));
    three.delete(0, "k").unwrap();
    (0..3).for_each(|node| three.disk(node, Space::Plenty));
    three.pass(50);
    (0..3).for_each(|node| drop(three.put(node, "more", 10).unwrap()));
    assert_eq!(three.shared(1).state.status.borrow().term, term, "without an election");
}

#[test]
fn lost_space_message_is_repeated() {
    let mut three = Three::led_by(0, |_, _| {});
    three.disk(1, Space::Low);
    three.disk(2, Space::Low);
    three.pass(50);
    assert!(no_space(&three.put(0, "more", 10)));
    three.hub.cut(id(1), id(0));
    three.disk(1, Space::Plenty);
    three.step();
    three.hub.heal_all();
    assert!(no_space(&three.put(0, "more", 10)), "the leader has not heard of it");
    three.pass(2_500);
    three.put(0, "more", 10).unwrap();
}

/// Overwrites a key until the disk is full. Returns the number of writes.
fn fill(three: &mut Three, node: usize) -> usize {
    for round in 0..2_000 {
        let call = three.call(node, put("k", 20_000), 3_000);
        match three.finish(call) {
            Ok(_) => {}
            Err(CallError::NoSpace) => return round,
            // Writes in flight may wait until there is space.
            Err(CallError::Deadline { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("40 MB went onto a disk with room for 2");
}

#[test]
fn full_disks_recover_repeatedly() {
    let mut three = Three::led_by(0, |_, settings| {
        settings.log_segment_bytes = 256 << 10;
        // The log is never truncated, so it fills the disk.
        settings.snapshot_log_bytes = 1 << 40;
    });
    let mut kept = three.put(0, "first", 10).unwrap().revision();
    for round in 0..5 {
        for disk in &three.disks {
            disk.limit(Some(disk.used() + (2 << 20)));
        }
        let wrote = fill(&mut three, round % 3);
        assert!(wrote > 10, "{wrote} writes in round {round}");
        three.pass(600);
        for node in 0..3 {
            assert!(no_space(&three.put(node, "more", 10)), "on {node} in round {round}");
        }
        // Deletions succeed, because the log has a reserve.
        let deleted = three.delete(round % 3, "k").unwrap().revision();
        assert!(deleted > kept, "in round {round}");
        three.disks.iter().for_each(|disk| disk.limit(None));
        three.pass(3_000);
        for node in 0..3 {
            kept = three.put(node, "more", 10).unwrap().revision();
        }
        assert!((0..3).all(|node| three.shared(node).stop_reason().is_none()));
    }
}

#[test]
fn single_full_disk_does_not_affect_the_cluster() {
    let mut three = Three::led_by(0, |_, settings| settings.log_segment_bytes = 256 << 10);
    let disk = Arc::clone(&three.disks[0]);
    disk.limit(Some(disk.used() + (1 << 20)));
    let mut wrote = 0;
    while three.leader_now() == Some(0) && wrote < 500 {
        let call = three.call(1, put("k", 20_000), 3_000);
        drop(three.finish(call));
        wrote += 1;
    }
    let leader = three.leader();
    assert_ne!(leader, 0, "the full leader hands over");
    (0..50).for_each(|_| drop(three.put(leader, "k", 20_000).unwrap()));
    assert!(no_space(&three.put(0, "k", 10)));
    disk.limit(None);
    three.pass(3_000);
    three.put(0, "k", 10).unwrap();
}

#[test]
fn writes_in_flight_leave_room_for_deletions_on_full_disks() {
    let mut three = Three::led_by(0, |_, settings| {
        settings.log_segment_bytes = 4 << 20;
        settings.snapshot_log_bytes = 1 << 40;
    });
    three.put(0, "k", 10).unwrap();
    // Wait until the log has allocated the next segment and the reserve. The log can allocate no
    // more after that.
    three.pass(5_000);
    three.disks.iter().for_each(|disk| disk.limit(Some(disk.used())));
    // Write three times the size of a segment before the leader detects the full disk.
    let calls: Vec<Call> =
        (0..300).map(|i| three.call(0, put(&format!("more{i}"), 40_000), 60_000)).collect();
    three.pass(3_000);
    assert!(no_space(&three.put(0, "more", 10)));
    three.delete(0, "k").unwrap();
    three.disks.iter().for_each(|disk| disk.limit(None));
    three.pass(3_000);
    let taken = calls.into_iter().map(|call| three.finish(call)).filter(Result::is_ok).count();
    assert!((10..250).contains(&taken), "{taken}");
    three.put(0, "again", 10).unwrap();
}

#[test]
fn full_disk_truncates_the_log_despite_a_lagging_follower() {
    let mut three = Three::led_by(0, |_, settings| {
        settings.log_segment_bytes = 2 << 10;
        settings.snapshot_log_bytes = 64 << 10;
    });
    let first = |three: &Three| three.nodes[0].driver.io.log_reader.first().get();
    // Member 2 is connected but does not write its log.
    for i in 0..100 {
        let mut call = three.call(0, put(&format!("k{i}"), 1_000), 5_000);
        while poll(&mut call).is_pending() {
            three.step_without_log(Some(2));
        }
    }
    (0..200).for_each(|_| three.step_without_log(Some(2)));
    let metrics = Metrics::new("m0", Arc::clone(&three.shared(0).meters)).snapshot();
    assert!(metrics.snapshots_taken_total > 0, "there is nothing to cut behind");
    three.pass(1_000);
    let before = first(&three);
    three.disk(0, Space::Low);
    three.until("nothing is cut off", |three| first(three) > before + 10);
}
