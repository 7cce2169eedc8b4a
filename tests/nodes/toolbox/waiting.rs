//! Tests of latches and barriers.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use bowline::{
    Blocking, Effect, KeyRange, Node,
    coordination::{BarrierError, LatchError},
};

use super::{LONG, begin_to_wait, deadline, give_up, on_all, quick, wait_for_keys};

#[test]
fn latch_counts_down_once_per_call_and_opens_at_zero() {
    let cluster = quick(3);
    let latch = |node: &Node| node.client().latch("phase");
    assert_eq!(latch(cluster.node(0)).count_down().block(), Ok(0), "at 0 it stays 0");
    assert_eq!(latch(cluster.node(0)).try_set(45).block(), Ok(true));
    assert_eq!(latch(cluster.node(1)).try_set(9).block(), Ok(false), "a round is under way");
    let left = thread::scope(|scope| {
        let waiters: Vec<_> = cluster
            .running()
            .map(|(_, node)| scope.spawn(move || latch(node).wait().deadline(LONG).block()))
            .collect();
        let left = on_all(&cluster, 3, |node, _| {
            let latch = latch(node);
            (0..5).map(|_| latch.count_down().deadline(LONG).block().unwrap()).collect()
        });
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
        left
    });
    let distinct: BTreeSet<u64> = left.into_iter().collect();
    assert_eq!(distinct, (0..45).collect());
    assert_eq!(latch(cluster.node(2)).try_set(1).block(), Ok(true), "it can be used again");
    assert_eq!(latch(cluster.node(0)).count_down().block(), Ok(0));
    let rows = cluster.node(0).client().range(KeyRange::all()).block().unwrap();
    assert_eq!(rows.count, 0, "an open latch leaves nothing behind");
}

#[test]
fn latch_waiter_of_one_round_is_not_caught_by_the_next() {
    let cluster = quick(3);
    let (here, there) = (cluster.node(0), cluster.node(1));
    let latch = there.client().latch("l");
    assert_eq!(latch.try_set(1).block(), Ok(true));
    let mut waiting = begin_to_wait(here, here.client().latch("l").wait().deadline(LONG));
    let late = here.client().latch("l").wait().deadline(Duration::from_millis(50)).block();
    assert_eq!(late, Err(LatchError::Store(deadline::<()>(Effect::NotApplied).unwrap_err())));
    assert_eq!(latch.count_down().block(), Ok(0));
    assert_eq!(latch.try_set(5).block(), Ok(true));
    assert_eq!(waiting.as_mut().block(), Ok(()));
    here.client().put("l", "soon").block().unwrap();
    let foreign = Err(LatchError::NotACount("soon".into()));
    assert_eq!(latch.count_down().block().map(drop), foreign);
    assert_eq!(latch.wait().block(), foreign);
    assert_eq!(latch.count().block().map(drop), foreign);
}

#[test]
fn barrier_opens_on_release_or_holder_crash() {
    let mut cluster = quick(3);
    let gate = |member| cluster.node(member).client().barrier("gate");
    assert_eq!(gate(0).wait().block(), Ok(()), "it is open");
    let session = cluster.node(0).session().block().unwrap();
    let hold = gate(0).hold(&session).block().unwrap();
    let held = gate(1).hold_without_session().block().unwrap_err();
    let lease = Some(session.lease());
    assert_eq!(held, BarrierError::Held { since: hold.since(), lease });
    let mut waiting = begin_to_wait(cluster.node(1), gate(1).wait().deadline(LONG));
    assert_eq!(hold.release().block(), Ok(true));
    let since = gate(2).hold_without_session().block().unwrap();
    assert_eq!(waiting.as_mut().block(), Ok(()), "also if it is held again");
    let held = gate(0).hold(&session).block().unwrap_err();
    assert_eq!(held, BarrierError::Held { since, lease: None });
    assert_eq!(gate(1).release().block(), Ok(true));
    assert_eq!(gate(1).release().block(), Ok(false));

    let hold = gate(0).hold(&session).block().unwrap();
    let late = gate(1).wait().deadline(Duration::from_millis(50)).block();
    assert_eq!(late, deadline(Effect::NotApplied));
    let waiting = begin_to_wait(cluster.node(1), gate(1).wait().deadline(LONG));
    cluster.kill(0).block();
    assert_eq!(waiting.block(), Ok(()), "the holder has crashed");
    drop(hold);
}

#[test]
fn a_hold_that_is_dropped_at_any_point_frees_the_barrier() {
    let cluster = quick(3);
    let node = cluster.node(1);
    let gate = node.client().barrier("gate");
    let session = node.session().block().unwrap();
    drop(gate.hold(&session).block().unwrap());
    assert_eq!(gate.wait().deadline(LONG).block(), Ok(()));
    for _ in 0..20 {
        give_up(gate.hold(&session));
        let other = cluster.node(0).client().barrier("gate");
        assert_eq!(other.wait().deadline(LONG).block(), Ok(()));
    }
    cluster.partition(&[1]);
    let late = gate.hold(&session).deadline(Duration::from_millis(100)).block().unwrap_err();
    assert_eq!(late, BarrierError::Store(deadline::<()>(Effect::Unknown).unwrap_err()));
    cluster.heal();
    let other = cluster.node(0).client().barrier("gate");
    let session = cluster.node(0).session().block().unwrap();
    wait_for_keys(node, "gate", 0);
    let hold = other.hold(&session).deadline(LONG).block().unwrap();
    assert_eq!(hold.release().block(), Ok(true));
}
