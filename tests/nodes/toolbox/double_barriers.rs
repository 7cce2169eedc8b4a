//! Tests of double barriers, with crashes at every point.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{
    Blocking, Effect, Error, KeyRange, Revision,
    coordination::{DoubleBarrier, DoubleBarrierError},
};

use super::{LONG, begin, on_all, quick, wait_for_keys};
use crate::stage;

fn effect_of(error: &DoubleBarrierError) -> Effect {
    match error {
        DoubleBarrierError::Store(error) => error.effect(),
        _ => Effect::NotApplied,
    }
}

fn step(cluster: &Cluster, member: usize, participants: usize) -> DoubleBarrier {
    cluster.node(member).session().block().unwrap().double_barrier("step", participants)
}

#[test]
fn participants_start_and_end_each_round_together() {
    const ROUNDS: usize = 6;
    let cluster = quick(3);
    let (come, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rounds = on_all(&cluster, 2, |node, _| {
        let step = node.session().block().unwrap().double_barrier("step", 6);
        let round = |round| {
            come.fetch_add(1, Ordering::SeqCst);
            let inside = step.enter().deadline(LONG).block().unwrap();
            assert!(come.load(Ordering::SeqCst) >= 6 * (round + 1), "all have come");
            done.fetch_add(1, Ordering::SeqCst);
            let number = inside.round();
            inside.leave().deadline(LONG).block().unwrap();
            assert!(done.load(Ordering::SeqCst) >= 6 * (round + 1), "all have left");
            number
        };
        (0..ROUNDS).map(round).collect()
    });
    let distinct: BTreeSet<Revision> = rounds.into_iter().collect();
    assert_eq!(distinct.len(), ROUNDS, "all see the same rounds");
    wait_for_keys(cluster.node(0), "", 0);
}

#[test]
fn cyclic_barrier_is_reusable() {
    const ROUNDS: usize = 10;
    let cluster = quick(3);
    let come = AtomicUsize::new(0);
    on_all(&cluster, 1, |node, _| {
        let step = node.session().block().unwrap().double_barrier("step", 3);
        for round in 0..ROUNDS {
            come.fetch_add(1, Ordering::SeqCst);
            step.arrive_and_wait().deadline(LONG).block().unwrap();
            assert!(come.load(Ordering::SeqCst) >= 3 * (round + 1), "all have come");
        }
        vec![()]
    });
    wait_for_keys(cluster.node(0), "", 0);
}

#[test]
fn excess_and_mismatched_participants_are_rejected() {
    let cluster = quick(3);
    let waiting = begin(step(&cluster, 0, 2).enter());
    wait_for_keys(cluster.node(1), "step/", 1);
    let mismatch = DoubleBarrierError::SizeMismatch { stored: "2".to_owned() };
    assert_eq!(step(&cluster, 1, 3).enter().block().unwrap_err(), mismatch);
    wait_for_keys(cluster.node(1), "step/", 1);
    let one = step(&cluster, 1, 2).enter().deadline(LONG).block().unwrap();
    let two = waiting.block().unwrap();
    let full = DoubleBarrierError::Full { participants: 2 };
    assert_eq!(step(&cluster, 2, 2).enter().block().unwrap_err(), full);
    drop(two);
    one.leave().deadline(LONG).block().unwrap();
    wait_for_keys(cluster.node(1), "", 0);
    let late = step(&cluster, 2, 2).enter().deadline(Duration::from_millis(50)).block();
    // Another participant could have counted this participant before it left, so the effect is
    // unknown.
    let counted = Error::Deadline { effect: Effect::Unknown };
    assert_eq!(late.unwrap_err(), DoubleBarrierError::Store(counted));
    drop(begin(step(&cluster, 2, 2).enter()));
    wait_for_keys(cluster.node(1), "", 0);
}

#[test]
fn participant_that_crashes_before_the_start_can_be_replaced() {
    let mut cluster = quick(3);
    let first = begin(step(&cluster, 1, 3).enter().deadline(LONG));
    let crashes = begin(step(&cluster, 0, 3).enter());
    wait_for_keys(cluster.node(1), "step/", 2);
    cluster.kill(0).block();
    assert!(crashes.block().is_err());
    wait_for_keys(cluster.node(1), "step/", 1);
    let second = begin(step(&cluster, 2, 3).enter().deadline(LONG));
    wait_for_keys(cluster.node(1), "step/", 2);
    cluster.restart(0).block().unwrap();
    let third = step(&cluster, 0, 3).enter().deadline(LONG).block().unwrap();
    let (first, second) = (first.block().unwrap(), second.block().unwrap());
    assert_eq!((first.round(), second.round()), (third.round(), third.round()));
}

#[test]
fn participant_that_crashes_inside_has_left() {
    let mut cluster = quick(3);
    let enter = |cluster: &Cluster| {
        let enter = |member| {
            let call = step(cluster, member, 3).enter().deadline(LONG);
            thread::spawn(move || call.block().unwrap())
        };
        let threads: Vec<_> = (0..3).map(enter).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    };
    let mut inside = enter(&cluster);
    let crashes = inside.remove(0);
    cluster.kill(0).block();
    drop(inside.remove(0));
    inside.remove(0).leave().deadline(LONG).block().unwrap();
    assert!(crashes.leave().block().is_err(), "it has crashed");
    cluster.restart(0).block().unwrap();
    wait_for_keys(cluster.node(1), "step/", 0);

    let inside = enter(&cluster);
    // All sessions end while the participants are inside, so the row that marks the round as ready is left. The next
    // round overwrites this row.
    for member in 0..3 {
        cluster.node(member).session().block().unwrap().close().block().unwrap();
    }
    for one in inside {
        let left = one.leave().block().unwrap_err();
        assert!(matches!(left, DoubleBarrierError::Store(Error::SessionEnded { .. })), "{left:?}");
    }
    wait_for_keys(cluster.node(1), "step/", 1);
    let inside = enter(&cluster);
    cluster.node(0).client().delete(KeyRange::prefix("step/")).block().unwrap();
    for one in inside {
        assert_eq!(one.leave().block(), Err(DoubleBarrierError::KeyDeleted));
    }
}

#[test]
fn participant_with_a_lost_reply_reports_an_unknown_effect() {
    let cluster = quick(3);
    let (leader, other, late) = stage::roles(&cluster);
    let waiting = begin(step(&cluster, other, 2).enter().deadline(LONG));
    wait_for_keys(cluster.node(late), "step/", 1);
    let barrier = step(&cluster, late, 2);
    // The request arrives, but no answer comes back.
    cluster.cut(leader, late);
    cluster.cut(other, late);
    let told = barrier.enter().deadline(Duration::from_millis(100)).block().unwrap_err();
    let inside = waiting.block().unwrap();
    assert_eq!(effect_of(&told), Effect::Unknown, "{told:?}");
    cluster.heal();
    // For this participant, the call returns because its own key is deleted.
    inside.leave().deadline(LONG).block().unwrap();
}

#[test]
fn timed_out_leave_still_counts() {
    let cluster = quick(1);
    let waiting = begin(step(&cluster, 0, 2).enter().deadline(LONG));
    let stays = step(&cluster, 0, 2).enter().deadline(LONG).block().unwrap();
    let leaves = waiting.block().unwrap();
    let late = leaves.leave().deadline(Duration::from_millis(200)).block().unwrap_err();
    let applied = Error::Deadline { effect: Effect::Applied };
    assert_eq!(late, DoubleBarrierError::Store(applied));
    stays.leave().deadline(LONG).block().unwrap();
}
