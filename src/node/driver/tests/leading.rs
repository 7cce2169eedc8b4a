//! Tests of a leader under faults: leases still expire, queries are answered, and a leader with a
//! hanging disk transfers its leadership.

use std::panic::catch_unwind;

use super::slow::{Read, begin_read, look};
use super::*;
use crate::model::{Caller, LeaseId};
use crate::mutant::Mutant;
use crate::node::ReplyTo;
use crate::node::driver::DriverStage;

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns three nodes, led by the first for long enough that no earlier rejection delays requests.
fn led() -> Three {
    let mut three = Three::led_by(0, |_, _| {});
    three.pass(500);
    three
}

/// Returns the number of rounds that a node has started as the leader.
pub(super) fn rounds(three: &Three, node: usize) -> u64 {
    let meters = Arc::clone(&three.shared(node).meters);
    crate::metrics::Metrics::new("", meters).snapshot().read_rounds_total
}

pub(super) fn grant(three: &mut Three, node: usize, ttl: u64) -> LeaseId {
    let grant = Command::Grant { id: None, ttl: ms(ttl), session: None };
    match three.write(node, grant) {
        Ok(Reply::Grant(granted)) => granted.id,
        other => panic!("{other:?}"),
    }
}

pub(super) fn leases(three: &Three, node: usize) -> Vec<LeaseId> {
    three.shared(node).reader.leases().into_iter().map(|(lease, _)| lease).collect()
}

/// Cuts all connections of a node, in both directions.
pub(super) fn isolate(three: &Three, node: usize) {
    for other in (0..3).filter(|other| *other != node) {
        three.hub.cut(id(node), id(other));
        three.hub.cut(id(other), id(node));
    }
}

/// Requests a leadership transfer to a node.
pub(super) fn transfer(three: &Three, leader: usize, to: usize, within: u64) -> Read {
    let shared = Arc::clone(three.shared(leader));
    let (to, deadline) = (Some(id(to)), shared.now() + ms(within));
    let mut asked: Read = Box::pin(async move { shared.transfer(to, deadline).await });
    assert!(look(&mut asked).is_pending());
    asked
}

/// Returns the number of milliseconds until a question is answered, and the result.
fn answered_after(three: &mut Three, mut read: Read) -> (u64, CallResult<()>) {
    for passed in 0..2_000 {
        if let Poll::Ready(result) = look(&mut read) {
            return (passed * 5, result);
        }
        three.step();
    }
    panic!("a question has no answer after ten seconds");
}

#[test]
fn lease_due_during_a_failed_transfer_ends_after_it() {
    let mut three = led();
    let lease = grant(&mut three, 2, 1_000);
    three.pass(1_000);
    // During the transfer, which lasts an election timeout, nothing is proposed. The lease becomes
    // due during the transfer.
    isolate(&three, 1);
    let asked = transfer(&three, 0, 1, 5_000);
    three.pass(250);
    assert_eq!(leases(&three, 2), [lease], "it is due, and cannot be proposed");
    three.pass(600);
    assert_eq!(three.shared(0).state.status.borrow().role, Role::Leader);
    assert_eq!(leases(&three, 2), []);
    drop(asked);
}

#[test]
fn regranted_lease_id_is_not_ended_for_the_old_lease() {
    let own = LeaseId::new(7).unwrap();
    let grant = || Command::Grant { id: Some(own), ttl: ms(1_000), session: None };
    let acting = || Caller { user: None, revision: 0 };
    for revoke in [Command::Revoke(own), Command::As(acting(), Box::new(Command::Revoke(own)))] {
        let mut three = led();
        three.write(0, grant()).unwrap();
        three.pass(1_000);
        // Nothing is committed while the lease becomes due.
        isolate(&three, 0);
        let calls = [revoke, grant()].map(|command| three.call(0, command, 5_000));
        three.pass(250);
        assert_eq!(leases(&three, 0), [own]);
        three.hub.heal_all();
        for call in calls {
            three.finish(call).unwrap();
        }
        three.pass(300);
        assert!(three.nodes[0].driver.look().leads, "it has counted all the time");
        assert_eq!(leases(&three, 0), [own], "the second one has just been granted");
        three.pass(1_200);
        assert_eq!(leases(&three, 0), []);
    }
}

#[test]
fn leadership_transfer_respects_its_deadline() {
    let mut three = led();
    isolate(&three, 1);
    let asked = transfer(&three, 0, 1, 800);
    let (after, result) = answered_after(&mut three, asked);
    assert_eq!(result, Err(CallError::Deadline { maybe_applied: false }));
    assert!((800..=850).contains(&after), "after {after} ms");
    assert_eq!(three.shared(0).state.status.borrow().role, Role::Leader);
}

#[test]
fn leader_with_a_hanging_disk_transfers_leadership() {
    let mut three = led();
    let mut call = three.call(1, put("k", 10), 5_000);
    for passed in 0.. {
        if let Poll::Ready(result) = poll(&mut call) {
            result.unwrap();
            break;
        }
        assert!(passed * 5 < 2_000, "a quorum's disks are well, and a write takes {passed} steps");
        three.step_without_log(Some(0));
    }
    let leads = |three: &Three| three.shared(0).state.status.borrow().role == Role::Leader;
    for _ in 0..2_000 / 5 {
        three.step_without_log(Some(0));
    }
    assert!(!leads(&three), "its disk has not answered for two seconds");
    // The healthy members continue without the member whose disk hangs.
    let mut call = three.call(2, put("k", 10), 1_000);
    let ended = (0..200).any(|_| {
        three.step_without_log(Some(0));
        matches!(poll(&mut call), Poll::Ready(Ok(_)))
    });
    assert!(ended, "nobody takes writes");
}

#[test]
fn returning_leader_is_counted_as_one_change() {
    let mut three = led();
    let changes = |three: &Three| {
        let meters = Arc::clone(&three.shared(2).meters);
        crate::metrics::Metrics::new("", meters).snapshot().leader_changes_total
    };
    let leader = |three: &Three| three.shared(2).state.status.borrow().leader;
    let before = changes(&three);
    isolate(&three, 2);
    three.until("it is in touch with the leader still", |three| leader(three).is_none());
    assert_eq!(changes(&three), before);
    three.hub.heal_all();
    three.until("it does not find the leader again", |three| leader(three).is_some());
    assert_eq!(changes(&three), before + 1);
}

#[test]
fn pending_read_is_sent_to_the_new_leader_at_once() {
    let mut three = led();
    three.hub.cut(id(0), id(2));
    let read = begin_read(&three, 2);
    let moved = transfer(&three, 0, 1, 5_000);
    let (after, result) = answered_after(&mut three, read);
    assert_eq!(result, Ok(()));
    assert_eq!(three.shared(2).state.status.borrow().leader, Some(id(1)));
    assert!(after < 150, "after {after} ms: a question is put again by itself after 200");
    drop(moved);
}

#[test]
fn read_on_a_new_leader_is_answered_once_it_commits() {
    let mut three = led();
    let moved = transfer(&three, 0, 1, 5_000);
    let is_chosen = |three: &Three| three.nodes[2].driver.look().vote == Some(id(1));
    three.until("nobody votes for it", is_chosen);
    // The node is elected, and the messages that it sends as the leader are lost.
    three.hub.cut(id(1), id(0));
    three.hub.cut(id(1), id(2));
    three.until("it is not elected", |three| three.nodes[1].driver.look().leads);
    three.pass(40);
    let before = three.nodes[1].driver.look();
    let read = begin_read(&three, 1);
    three.step();
    three.hub.heal_all();
    let (after, result) = answered_after(&mut three, read);
    assert_eq!(result, Ok(()));
    let now = three.nodes[1].driver.look();
    assert!(now.leads && now.term == before.term && now.commit > before.commit, "{now:?}");
    assert!(after < 150, "after {after} ms: a question is put again by itself after 200");
    drop(moved);
}

#[test]
fn read_on_a_leader_that_never_commits_ends_at_its_deadline() {
    let mut three = led();
    isolate(&three, 0);
    let read = begin_read(&three, 0);
    let (after, result) = answered_after(&mut three, read);
    assert_eq!(result, Err(CallError::Deadline { maybe_applied: false }));
    assert!((5_000..=5_050).contains(&after), "after {after} ms");
}

#[test]
fn read_rounds_forgotten_by_raft_are_started_again() {
    let mut three = led();
    three.hub.cut(id(1), id(0));
    three.hub.cut(id(2), id(0));
    // Start the maximum number of unconfirmed rounds.
    let before = rounds(&three, 0);
    let reads: Vec<Read> = (0..4)
        .map(|_| {
            let read = begin_read(&three, 0);
            three.step();
            read
        })
        .collect();
    assert_eq!(rounds(&three, 0) - before, 4);
    let DriverStage::Running(consensus) = &mut three.nodes[0].driver.stage else {
        panic!("it leads")
    };
    consensus.forget_rounds();
    three.hub.heal_all();
    for read in reads {
        let (after, result) = answered_after(&mut three, read);
        assert_eq!(result, Ok(()));
        assert!(after < 700, "after {after} ms: an election timeout is 500");
    }
    assert!(three.nodes[0].driver.look().leads, "it has led all the time");
}

#[test]
fn paused_node_does_not_catch_up_on_missed_ticks() {
    let mut three = led();
    three.pass(1_000);
    let ticks = |three: &Three, node: usize| three.nodes[node].driver.look().ticks;
    let before: Vec<u64> = (0..3).map(|node| ticks(&three, node)).collect();
    let term = three.nodes[0].driver.look().term;
    // All nodes stall for a minute. Then each node runs many turns.
    three.clock.0.fetch_add(60_000, Ordering::Relaxed);
    for _ in 0..100 {
        for node in &mut three.nodes {
            node.driver.turn();
        }
    }
    for (node, before) in before.into_iter().enumerate() {
        assert!(ticks(&three, node) <= before + 1, "{} ticks", ticks(&three, node) - before);
    }
    three.pass(1_000);
    let now = three.nodes[0].driver.look();
    assert!(now.leads && now.term == term, "nobody had a reason to stand for election: {now:?}");
}

#[test]
fn idle_replica_is_scrubbed() {
    let mut three = led();
    for row in 0..200 {
        three.put(0, &format!("row/{row:03}"), 10).unwrap();
    }
    three.pass(1_000);
    let before = three.nodes[0].driver.look();
    three.push(1, Input::Rot { key: b"row/007".to_vec(), reply: ReplyTo::Discard });
    // 200 rows, with 16 verified each tick, and 40 ticks each second.
    three.pass(500);
    let why = three.shared(1).stop_reason().expect("it has found out").to_string();
    assert!(why.contains("row/007"), "{why}");
    let now = three.nodes[0].driver.look();
    assert_eq!((now.term, now.applied), (before.term, before.applied), "nothing else happened");
}

const NOTICED: [(Mutant, fn()); 8] = [
    (Mutant::B41, lease_due_during_a_failed_transfer_ends_after_it),
    (Mutant::B43, leader_with_a_hanging_disk_transfers_leadership),
    (Mutant::B44, paused_node_does_not_catch_up_on_missed_ticks),
    (Mutant::B45, leadership_transfer_respects_its_deadline),
    (Mutant::B47, pending_read_is_sent_to_the_new_leader_at_once),
    (Mutant::B48, read_on_a_new_leader_is_answered_once_it_commits),
    (Mutant::B49, read_rounds_forgotten_by_raft_are_started_again),
    (Mutant::B50, idle_replica_is_scrubbed),
];

/// No other test detects the last four mutants: another mechanism soon repairs their effect.
#[test]
fn each_of_these_tests_fails_under_its_mutant() {
    for (mutant, test) in NOTICED {
        let _planted = mutant.plant();
        assert!(catch_unwind(test).is_err(), "{mutant:?}: {}", mutant.breaks());
    }
}

#[test]
fn transfer_to_a_nonmember_is_rejected_at_once() {
    let mut three = led();
    let stranger = transfer(&three, 0, 7, 5_000);
    assert_eq!(answered_after(&mut three, stranger), (5, Err(CallError::NoTransferee)));
}
