//! Tests of renewals under the leader lease, without a round of confirmation by a quorum, on the
//! leader and on a replaced leader.

use std::panic::catch_unwind;

use super::leading::{grant, isolate, leases, ms, rounds, transfer};
use super::*;
use crate::model::LeaseId;
use crate::mutant::Mutant;
use crate::node::leader_queries::lease_calls::LeaseRequest;

const TTL: u64 = 1_000;

type Renewing = Pin<Box<dyn Future<Output = CallResult<Duration>>>>;

fn look(renewing: &mut Renewing) -> Poll<CallResult<Duration>> {
    renewing.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls for a renewal on a node. Returns the answer if the node can give it at once.
fn renew_at_once(three: &Three, node: usize, lease: LeaseId) -> Option<Duration> {
    match look(&mut begin_renewal(three, node, lease)) {
        Poll::Ready(answer) => Some(answer.unwrap()),
        Poll::Pending => None,
    }
}

fn begin_renewal(three: &Three, node: usize, lease: LeaseId) -> Renewing {
    let shared = Arc::clone(three.shared(node));
    let deadline = shared.now() + ms(5_000);
    Box::pin(async move { shared.lease_call(lease, LeaseRequest::Renew, deadline).await })
}

/// Renews a lease on a node, and returns the number of rounds of the leader, which is the first node.
fn rounds_to_renew(three: &mut Three, node: usize, lease: LeaseId) -> u64 {
    let before = rounds(three, 0);
    let mut renewing = begin_renewal(three, node, lease);
    for _ in 0..200 {
        if let Poll::Ready(answer) = look(&mut renewing) {
            assert_eq!(answer, Ok(ms(TTL)));
            return rounds(three, 0) - before;
        }
        three.step();
    }
    panic!("a renewal has no answer after a second");
}

/// Returns three nodes without drift, led by the first, whose leader lease has just begun, and a lease.
fn confirmed() -> (Three, LeaseId) {
    let mut three = Three::led_by(0, |_, settings| settings.drift = Drift::percent(0));
    three.pass(500);
    let lease = grant(&mut three, 0, TTL);
    three.pass(200);
    assert_eq!(rounds_to_renew(&mut three, 0, lease), 1);
    (three, lease)
}

/// Makes the second node the leader, while the first receives no messages and still acts as the
/// leader.
fn replaced() -> (Three, LeaseId) {
    let (mut three, lease) = confirmed();
    let asked = transfer(&three, 0, 1, 5_000);
    three.hub.cut(id(1), id(0));
    three.hub.cut(id(2), id(0));
    three.until("it is not elected", |three| three.nodes[1].driver.look().leads);
    isolate(&three, 0);
    assert!(three.nodes[0].driver.look().leads);
    drop(asked);
    (three, lease)
}

#[test]
fn renewals_after_a_confirmed_round_need_no_round() {
    let (mut three, lease) = confirmed();
    assert_eq!(renew_at_once(&three, 0, lease), Some(ms(TTL)));
    assert_eq!(rounds_to_renew(&mut three, 2, lease), 0, "on a follower");
    three.pass(100);
    assert_eq!(rounds_to_renew(&mut three, 2, lease), 1, "on a follower");
    three.pass(100);
    assert_eq!(renew_at_once(&three, 0, lease), None);
}

#[test]
fn leader_lease_does_not_answer_for_an_unknown_lease() {
    let (mut three, _) = confirmed();
    let unknown = LeaseId::new(99).unwrap();
    let before = rounds(&three, 0);
    let mut renewing = begin_renewal(&three, 0, unknown);
    assert!(look(&mut renewing).is_pending());
    three.pass(100);
    let rejection = crate::model::Rejection::LeaseNotFound(unknown);
    assert_eq!(look(&mut renewing), Poll::Ready(Err(CallError::Rejected(rejection))));
    assert_eq!(rounds(&three, 0) - before, 1);
}

#[test]
fn leader_lease_of_an_isolated_leader_ends() {
    let (mut three, lease) = confirmed();
    isolate(&three, 0);
    three.pass(100);
    assert!(three.nodes[0].driver.look().leads);
    assert_eq!(renew_at_once(&three, 0, lease), None);
}

#[test]
fn slow_round_starts_no_leader_lease() {
    let (mut three, lease) = confirmed();
    three.pass(100);
    three.hub.cut(id(1), id(0));
    three.hub.cut(id(2), id(0));
    let mut renewing = begin_renewal(&three, 0, lease);
    assert!(look(&mut renewing).is_pending());
    three.pass(150);
    three.hub.heal_all();
    while look(&mut renewing).is_pending() {
        three.step();
    }
    assert_eq!(renew_at_once(&three, 0, lease), None, "the round has taken longer");
}

#[test]
fn leader_lease_ends_with_the_term() {
    let (mut three, lease) = confirmed();
    for to in [1, 0] {
        let leads = |three: &Three| three.nodes[to].driver.look().leads;
        let from = 1 - to;
        let asked = transfer(&three, from, to, 5_000);
        three.until("it is not elected", leads);
        drop(asked);
    }
    assert_eq!(renew_at_once(&three, 0, lease), None);
}

#[test]
fn lease_that_a_replaced_leader_renews_lives_for_its_ttl() {
    let (mut three, lease) = replaced();
    let mut last = three.clock.now();
    while renew_at_once(&three, 0, lease).is_some() {
        last = three.clock.now();
        three.step();
    }
    assert!(three.nodes[1].driver.look().leads);
    while three.clock.now().since(last) < ms(TTL) {
        assert_eq!(
            leases(&three, 1),
            [lease],
            "{:?} after it was renewed",
            three.clock.now().since(last)
        );
        three.step();
    }
    three.pass(200);
    assert_eq!(leases(&three, 1), []);
}

#[test]
fn new_leader_ends_no_lease_that_a_replaced_leader_may_renew() {
    let (mut three, lease) = replaced();
    let mut revoked = three.call(1, Command::Revoke(lease), 5_000);
    let mut renewed = 0;
    loop {
        // Check whether the revocation has returned before sending the next renewal.
        let is_revoked = poll(&mut revoked).is_ready();
        let is_renewed = renew_at_once(&three, 0, lease).is_some();
        assert!(!(is_revoked && is_renewed), "a revoked lease is renewed");
        renewed += u64::from(is_renewed);
        if is_revoked {
            break;
        }
        three.step();
    }
    assert!(renewed > 0);
    assert_eq!(leases(&three, 1), []);
}

#[test]
fn new_leader_ends_leases_of_its_own_term_at_once() {
    let (mut three, _) = replaced();
    let elected = three.clock.now();
    let lease = grant(&mut three, 1, TTL);
    three.write(1, Command::Revoke(lease)).unwrap();
    assert!(three.clock.now().since(elected) < ms(100), "it has not waited");
    assert!(!leases(&three, 1).contains(&lease));
}

#[test]
fn revocation_held_by_a_new_leader_reaches_the_next_one() {
    let (mut three, lease) = replaced();
    let revoked = [1, 2].map(|node| three.call(node, Command::Revoke(lease), 5_000));
    three.pass(20);
    assert_eq!(leases(&three, 2), [lease], "the new leader holds them");
    three.hub.heal_all();
    isolate(&three, 1);
    three.until("nobody else leads", |three| {
        [0, 2].into_iter().any(|node| {
            let look = three.nodes[node].driver.look();
            look.leads && look.term > three.nodes[1].driver.look().term
        })
    });
    three.hub.heal_all();
    let results = revoked.map(|call| three.finish(call));
    let applied = results.iter().filter(|result| result.is_ok()).count();
    assert_eq!(applied, 1, "one of them has revoked it: {results:?}");
    assert_eq!(leases(&three, 0), []);
}

#[test]
fn renewals_need_a_round_while_a_revocation_is_proposed() {
    let (mut three, lease) = confirmed();
    let other = grant(&mut three, 0, TTL);
    assert_eq!(rounds_to_renew(&mut three, 0, lease), 0);
    let call = three.call(0, Command::Revoke(other), 5_000);
    // The leader proposes the revocation, which a follower may apply before the leader does.
    three.nodes[0].driver.turn();
    assert_eq!(renew_at_once(&three, 0, lease), None);
    three.finish(call).unwrap();
    three.step();
    assert_eq!(renew_at_once(&three, 0, lease), Some(ms(TTL)));
}

const NOTICED: [(Mutant, fn()); 5] = [
    (Mutant::B74, leader_lease_of_an_isolated_leader_ends),
    (Mutant::B75, lease_that_a_replaced_leader_renews_lives_for_its_ttl),
    (Mutant::B76, new_leader_ends_no_lease_that_a_replaced_leader_may_renew),
    (Mutant::B77, renewals_need_a_round_while_a_revocation_is_proposed),
    (Mutant::B78, slow_round_starts_no_leader_lease),
];

#[test]
fn each_of_these_tests_fails_under_its_mutant() {
    for (mutant, test) in NOTICED {
        let _planted = mutant.plant();
        assert!(catch_unwind(test).is_err(), "{mutant:?}: {}", mutant.breaks());
    }
}
