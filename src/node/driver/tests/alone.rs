//! Tests of linearizable reads on the only member of a cluster, which need no query to the leader.

use std::panic::catch_unwind;
use std::sync::{Mutex, OnceLock};

use super::*;
use crate::env::{Point, Points};
use crate::mutant::Mutant;

/// Records at each crash point whether a read would have to wait.
#[derive(Default)]
struct Reading {
    shared: OnceLock<Arc<Shared>>,
    waits: Mutex<Vec<(Point, bool)>>,
}

impl Points for Reading {
    fn reach(&self, point: Point) {
        if let Some(shared) = self.shared.get() {
            self.waits.lock().unwrap().push((point, waits(shared)));
        }
    }
}

/// Returns whether a read that starts now has to wait.
fn waits(shared: &Arc<Shared>) -> bool {
    let deadline = shared.now() + Duration::from_secs(5);
    let mut read = Box::pin(shared.read_barrier(deadline));
    read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn single_member_reads_without_a_round_except_during_apply() {
    let reading = Arc::new(Reading::default());
    let clock = Arc::new(HeldClock::default());
    let env = Env {
        clock: clock.clone(),
        entropy: Arc::new(OsEntropy),
        disk: Arc::new(SimDisk::new(1)),
        points: reading.clone(),
    };
    let mut alone = settings(0);
    alone.members.retain(|node, _| *node == id(0));
    let assembly = Assembly::open(alone, env, Wakers::silent(), None).unwrap();
    let network = MemoryHub::default().join(id(0), assembly.introducer(), assembly.receiver());
    let mut node = assembly.finish(Box::new(network)).unwrap();
    let shared = Arc::clone(&node.shared);
    let mut step = || {
        clock.0.fetch_add(5, Ordering::Relaxed);
        node.driver.turn();
        node.log_worker.turn();
    };
    assert!(waits(&shared), "it has not been elected");
    (0..1_000).for_each(|_| step());
    assert!(!waits(&shared));
    assert!(reading.shared.set(Arc::clone(&shared)).is_ok());
    for row in 0..10 {
        let (writer, deadline) = (Arc::clone(&shared), shared.now() + Duration::from_secs(5));
        let command = put(&format!("row/{row}"), 10);
        let mut call: Call = Box::pin(async move { writer.write(command, deadline).await });
        while poll(&mut call).is_pending() {
            step();
        }
    }
    let waits = reading.waits.lock().unwrap();
    let at =
        |at: Point| waits.iter().filter(move |(point, _)| *point == at).map(|(_, waits)| *waits);
    assert!(at(Point::DriverBeforeApply).count() >= 10);
    assert!(at(Point::DriverBeforeApply).all(|waits| waits), "leases are seen before their keys");
    assert!(at(Point::DriverBeforeReply).all(|waits| !waits), "everybody has seen what there is");
    shared.stop(crate::node::StopReason::Killed);
    let ended = Box::pin(shared.read_barrier(shared.now()))
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ended, Poll::Ready(Err(CallError::Stopped { .. }))));
}

#[test]
fn single_member_read_test_fails_under_mutant_b53() {
    let _planted = Mutant::B53.plant();
    assert!(catch_unwind(single_member_reads_without_a_round_except_during_apply).is_err());
}
