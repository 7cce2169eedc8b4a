//! Tests of the health that nodes report during faults.

use std::cell::Cell;

use super::*;
use crate::model::MembershipRequest;
use crate::node::HealthStatus;

fn verdict(three: &Three, node: usize) -> HealthStatus {
    three.shared(node).health().status
}

#[test]
fn missing_quorum_or_leader_is_reported_until_recovery() {
    let mut three = Three::led_by(0, |_, _| {});
    three.pass(500);
    assert!((0..3).all(|node| verdict(&three, node) == HealthStatus::Healthy));
    assert_eq!(three.shared(0).health().to_string(), "healthy: the node is the leader");
    assert_eq!(three.shared(1).health().to_string(), "healthy: the node follows m0");
    for peer in [1, 2] {
        three.hub.cut(id(peer), id(0));
        three.hub.cut(id(0), id(peer));
    }
    three.until("the old leader does not notice", |three| {
        verdict(three, 0) == HealthStatus::NoQuorum && verdict(three, 1) == HealthStatus::Healthy
    });
    assert!(three.shared(0).health().is_alive() && !three.shared(0).health().is_serving());
    three.hub.heal_all();
    three.until("it does not recover", |three| verdict(three, 0) == HealthStatus::Healthy);
}

#[test]
fn leader_contact_counts_a_quorum_of_peers() {
    let mut three = Three::led_by(0, |_, _| {});
    three.pass(500);
    let in_touch = |three: &Three| three.shared(0).health().in_touch.unwrap();
    three.hub.cut(id(1), id(0));
    three.pass(300);
    assert!(in_touch(&three) <= Duration::from_millis(200), "the other one is enough");
    three.hub.cut(id(2), id(0));
    three.pass(300);
    assert!(in_touch(&three) >= Duration::from_millis(200), "{:?}", in_touch(&three));
}

#[test]
fn lagging_member_reports_how_far_it_is_behind() {
    let mut three = Three::led_by(0, |_, _| {});
    for peer in [0, 1] {
        three.hub.cut(id(peer), id(2));
        three.hub.cut(id(2), id(peer));
    }
    for _ in 0..1200 {
        three.put(0, "k", 1000).unwrap();
    }
    three.hub.heal_all();
    for _ in 0..400 {
        if verdict(&three, 2) == HealthStatus::CatchingUp {
            break;
        }
        three.step_without_log(Some(2));
    }
    let health = three.shared(2).health();
    assert!(health.behind >= 512 && health.is_serving(), "{health:?}");
    three.until("it does not catch up", |three| verdict(three, 2) == HealthStatus::Healthy);
}

#[test]
fn hanging_driver_hanging_disk_and_full_disk_are_distinguished() {
    let mut three = Three::led_by(0, |_, _| {});
    three.disk(1, Space::Low);
    three.pass(50);
    assert_eq!(verdict(&three, 1), HealthStatus::DiskFull);
    three.disk(1, Space::Plenty);
    three.pass(50);
    assert_eq!(verdict(&three, 1), HealthStatus::Healthy);
    // The log of node 2 does not respond, and its driver continues.
    drop(three.call(0, put("k", 1), 1_000));
    (0..100).for_each(|_| three.step_without_log(Some(2)));
    assert_eq!(verdict(&three, 2), HealthStatus::DiskSlow);
    three.pass(100);
    assert_eq!(verdict(&three, 2), HealthStatus::Healthy);
    three.clock.0.fetch_add(1_100, Ordering::Relaxed);
    assert!((0..3).all(|node| verdict(&three, node) == HealthStatus::Stuck));
    three.push(1, Input::LogFailed("a test's own failure".to_owned()));
    three.pass(50);
    assert_eq!(verdict(&three, 1), HealthStatus::Stopped);
    let words = three.shared(1).health().to_string();
    assert_eq!(words, "the node has stopped: the log has failed: a test's own failure");
}

#[test]
fn calls_behind_a_failure_in_the_inbox_get_its_reason() {
    let mut three = Three::led_by(0, |_, _| {});
    three.push(1, Input::LogFailed("a test's own failure".to_owned()));
    let mut call = three.call(1, put("k", 1), 1_000);
    three.pass(50);
    let Poll::Ready(Err(CallError::Stopped { reason, maybe_applied })) = poll(&mut call) else {
        panic!("the call has no answer");
    };
    assert_eq!(reason.to_string(), "the log has failed: a test's own failure");
    assert!(!maybe_applied, "the node has never taken the call");
}

#[test]
fn followers_keep_their_leader_until_another_is_elected() {
    let mut three = Three::led_by(0, |_, _| {});
    three.pass(500);
    for peer in [1, 2] {
        three.hub.cut(id(peer), id(0));
        three.hub.cut(id(0), id(peer));
    }
    let leads =
        |three: &Three, node: usize| three.shared(node).state.status.borrow().role == Role::Leader;
    let (saw_none, waited) = (Cell::new(false), Cell::new(false));
    three.until("no other member leads", |three| {
        for node in [1, 2] {
            let health = three.shared(node).health();
            assert!(health.has_leader && health.status == HealthStatus::Healthy, "{health:?}");
            saw_none
                .set(saw_none.get() || three.shared(node).state.status.borrow().leader.is_none());
            waited.set(
                waited.get() || health.to_string().starts_with("the node is waiting for a leader"),
            );
        }
        leads(three, 1) || leads(three, 2)
    });
    assert!(saw_none.get() && waited.get(), "the election was seen");
}

#[test]
fn isolated_member_reports_no_leader_in_bounded_time() {
    let mut three = Three::led_by(0, |_, _| {});
    three.pass(500);
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        three.hub.cut(id(one), id(other));
        three.hub.cut(id(other), id(one));
    }
    // The hub drops messages but keeps connections open, so the loss of the quorum is detected
    // after four election timeouts and a few ticks.
    three.pass(2_000 + 500);
    for node in 0..3 {
        let health = three.shared(node).health();
        assert!(
            !health.has_leader && health.status == HealthStatus::NoQuorum,
            "{node}: {health:?}"
        );
    }
    three.hub.heal_all();
    three.until("it does not recover", |three| {
        (0..3).all(|node| verdict(three, node) == HealthStatus::Healthy)
    });
}

#[test]
fn new_leader_delays_membership_changes_until_it_has_contact() {
    let mut three = Three::led_by(0, |_, _| {});
    three.pass(600);
    for (from, to) in [(1, 2), (2, 1)] {
        three.hub.cut(id(from), id(to));
    }
    let deadline = three.clock.now() + Duration::from_secs(5);
    let reply = crate::node::ReplyTo::Discard;
    three.push(0, Input::Transfer { to: Some(id(1)), deadline, reply });
    three.until("m1 does not lead", |three| {
        three.shared(1).state.status.borrow().role == Role::Leader
    });
    three.pass(50);
    three.hub.heal_all();
    // The new leader has not heard from the other remaining member yet.
    let shared = Arc::clone(three.shared(1));
    let mut removal =
        Box::pin(async move { shared.step(MembershipRequest::Remove(id(0)), deadline).await });
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        if let Poll::Ready(removed) = removal.as_mut().poll(&mut context) {
            return assert_eq!(removed, Ok(id(0)));
        }
        three.step();
    }
    panic!("the removal has not ended");
}
