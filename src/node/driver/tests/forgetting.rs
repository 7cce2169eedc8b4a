//! Tests of the leader's automatic compaction.

use super::*;
use crate::metrics::Metrics;
use crate::model::Revision;

fn compacted(three: &Three) -> Vec<u64> {
    (0..3).map(|node| three.shared(node).reader.compacted().get()).collect()
}

fn compactions(three: &Three) -> u64 {
    let of = |node| Metrics::new("", Arc::clone(&three.shared(node).meters)).snapshot();
    (0..3).map(|node| of(node).compactions_total).sum()
}

#[test]
fn excess_revisions_are_compacted_on_all_nodes() {
    let mut three =
        Three::new(|_, settings| settings.history = History::keep_all().revisions_max(40));
    for round in 0..200 {
        three.put(round % 3, "k", 10).unwrap();
    }
    three.pass(200);
    assert!(compacted(&three).iter().all(|at| (156..=161).contains(at)), "{:?}", compacted(&three));
    let count = compactions(&three);
    assert!((10..=40).contains(&count), "{count} compactions, each of some revisions");
    // Without writes nothing is compacted, and compacted versions are still freed.
    three.pass(20_000);
    assert_eq!(compactions(&three), count);
    let bytes = three.shared(1).reader.history_bytes();
    assert!(bytes < 50 * 200, "{bytes} bytes of history");
}

#[test]
fn a_new_leader_keeps_a_whole_window_from_its_beginning() {
    let mut three = Three::led_by(0, |_, settings| {
        settings.history = History::keep_all().window(Duration::from_secs(10));
    });
    three.put(0, "k", 1).unwrap();
    three.put(0, "k", 2).unwrap();
    three.pass(10_500);
    assert_eq!(compacted(&three), [0, 0, 0], "ten seconds, and one for the drift of clocks");
    three.lead(1);
    three.put(0, "k", 3).unwrap();
    three.pass(10_500);
    assert_eq!(compacted(&three), [0, 0, 0], "it has not seen when the older ones were written");
    three.pass(1_000);
    let newest_then = compacted(&three);
    assert!(newest_then.iter().all(|at| [3, 4].contains(at)), "{newest_then:?}");
    three.put(0, "k", 4).unwrap();
    three.pass(13_000);
    assert_eq!(compacted(&three), [5, 5, 5]);
}

#[test]
fn keep_all_history_never_compacts() {
    let mut three = Three::new(|_, _| {});
    for _ in 0..100 {
        three.put(0, "k", 10).unwrap();
    }
    three.pass(60_000);
    assert_eq!((compacted(&three), compactions(&three)), (vec![0, 0, 0], 0));
}

#[test]
fn compactions_are_not_repeated_without_a_quorum() {
    let mut three =
        Three::led_by(0, |_, settings| settings.history = History::keep_all().revisions_max(8));
    for _ in 0..9 {
        three.put(0, "k", 10).unwrap();
    }
    for peer in [1, 2] {
        three.hub.cut(id(peer), id(0));
    }
    // The proposals of this leader are never committed. The leader keeps leading until it notices
    // that no member follows.
    drop(three.call(0, put("k", 1), 1_000));
    three.pass(10_000);
    assert!(compactions(&three) <= 3, "{} compactions", compactions(&three));
    assert!(three.shared(0).reader.revision() == Revision(10));
}
