//! Tests of messages that no correct member sends. Such messages must not crash a leader or falsify
//! an answer.

use super::*;
use crate::model::{AckWindow, Incarnation, Proposal};

/// Returns requests of node 2, in a later incarnation than its real one, with a window of `spans` ranges.
fn proposal(seq: u64, command: Command, spans: u64) -> Proposal {
    let open = (0..spans).map(|span| span * 2 + 1..span * 2 + 2).collect();
    let window = AckWindow { frontier: spans * 2 + 1, open };
    let requests = vec![(spans * 2 + seq, command)];
    Proposal { node: id(2), incarnation: Incarnation(1 << 40), window, requests }
}

fn refused(three: &Three, node: usize) -> u64 {
    use crate::metrics::{Metrics, Refused};
    let snapshot = Metrics::new("", Arc::clone(&three.shared(node).meters)).snapshot();
    let mut reasons = snapshot.proposals_refused_total.into_iter();
    reasons.find(|(reason, _)| *reason == Refused::Malformed).unwrap().1
}

#[test]
fn oversized_requests_are_dropped_and_the_leader_keeps_leading() {
    let mut three = Three::led_by(0, |_, _| {});
    let large = proposal(1, put("large", 8 << 20), 0);
    let window = proposal(1, put("window", 1), 3 << 20);
    let foreign = Proposal { node: id(1), ..proposal(1, put("foreign", 1), 0) };
    for message in [large, window, foreign] {
        three.receivers[0].deliver(id(2), PeerMessage::Propose(message));
    }
    three.pass(200);
    assert_eq!(refused(&three, 0), 3);
    three.put(0, "k", 10).unwrap();
    for key in ["large", "window", "foreign"] {
        assert_eq!(three.shared(0).reader.get(key.as_bytes()).0, None, "{key}");
    }
}

#[test]
fn requests_with_large_windows_are_spread_over_entries() {
    // A large segment size allows this many bytes of requests in flight.
    let mut three = Three::led_by(0, |_, settings| settings.log_segment_bytes = 20 << 20);
    for seq in 1..=20 {
        let message = proposal(seq, put(&format!("k{seq:02}"), 1), 200_000);
        three.deliver(0, 2, PeerMessage::Propose(message));
    }
    three.pass(500);
    assert_eq!(refused(&three, 0), 0);
    assert_eq!(three.shared(0).reader.keys(), 20);
}

#[test]
fn duplicate_of_a_rejected_request_is_rejected_for_a_while() {
    let mut three = Three::led_by(0, |_, _| {});
    three.disk(1, Space::Low);
    three.disk(2, Space::Low);
    three.pass(50);
    let message = || PeerMessage::Propose(proposal(1, put("k", 1), 0));
    three.deliver(0, 2, message());
    three.pass(50);
    three.disk(1, Space::Plenty);
    three.disk(2, Space::Plenty);
    three.pass(50);
    three.put(0, "other", 1).unwrap();
    three.deliver(0, 2, message());
    three.pass(200);
    assert_eq!(
        three.shared(0).reader.get(b"k").0,
        None,
        "its node has reported that it is never applied"
    );
    three.pass(1_000);
    three.deliver(0, 2, message());
    three.pass(200);
    assert!(three.shared(0).reader.get(b"k").0.is_some(), "asked for on purpose");
}
