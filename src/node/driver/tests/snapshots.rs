//! Snapshots on their way from one node to another, turn by turn.

use super::*;
use crate::metrics::Metrics;

fn often(_: usize, settings: &mut Settings) {
    settings.log_segment_bytes = 2 << 10;
    settings.snapshot_log_bytes = 4 << 10;
}

#[test]
fn a_snapshot_that_consensus_has_taken_waits_for_the_log_however_slow_the_disk_is() {
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
    // Many ticks: the snapshot is here, and the log does not say that it stands in its place.
    for _ in 0..600 {
        three.step_without_log(Some(2));
    }
    let revision = |three: &Three, node: usize| three.shared(node).status.borrow().revision;
    assert!(revision(&three, 2) < revision(&three, 0), "the log's proof was not waited for");
    three.until("it never catches up", |three| revision(three, 2) == revision(three, 0));
    let metrics = Metrics::new("m2", Arc::clone(&three.shared(2).meters)).snapshot();
    assert_eq!(metrics.snapshots_installed_total, 1);
}
