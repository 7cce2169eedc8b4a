//! Tests of `run_once`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{Blocking, KeyRange, Node, SessionEndReason, coordination::RunOnceError};

use super::{LONG, begin, late_error, on_all, poll, quick, wait_for_keys};

type Never = std::convert::Infallible;

#[test]
fn run_once_runs_once_and_all_callers_get_the_result() {
    let cluster = quick(3);
    let runs = AtomicUsize::new(0);
    let ran = on_all(&cluster, 4, |node, task| {
        let once = node.client().run_once("once", &node.session().block().unwrap());
        let work = || async {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Never>(format!("{}{task}", node.status().name))
        };
        vec![once.run(work).deadline(LONG).block().unwrap()]
    });
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(ran.iter().filter(|ran| ran.is_here).count(), 1);
    assert!(ran.iter().all(|other| other.result == ran[0].result));
    let node = cluster.node(2);
    let once = node.client().run_once("once", &node.session().block().unwrap());
    assert_eq!(once.result().block(), Ok(Some(ran[0].result.clone())));
    wait_for_keys(node, "once/", 0);
    assert_eq!(once.forget().block(), Ok(true));
    assert!(once.run(|| async { Ok::<_, Never>("") }).block().unwrap().is_here);
}

#[test]
fn failed_or_crashed_run_once_is_taken_over() {
    let mut cluster = quick(3);
    let once = |cluster: &Cluster, member| {
        let node: &Node = cluster.node(member);
        node.client().run_once("once", &node.session().block().unwrap())
    };
    let failed = once(&cluster, 0).run(|| async { Err::<&str, _>("no") }).block();
    assert_eq!(failed, Err(RunOnceError::Failed("no")));
    let hangs = || std::future::pending::<Result<&str, Never>>();
    let late = once(&cluster, 1).run(hangs).deadline(Duration::from_millis(100)).block();
    assert_eq!(late, Err(RunOnceError::Store(late_error())));

    // The session ends while the work runs: the work is dropped, and the caller gets an error.
    let node = cluster.node(2);
    let session = node.open_session().block().unwrap();
    let is_begun = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&is_begun);
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let work = move || async move {
        begun.store(true, Ordering::SeqCst);
        let _sender = sender;
        hangs().await
    };
    let mut running = begin(node.client().run_once("once", &session).run(work));
    while !is_begun.load(Ordering::SeqCst) {
        node.client().put("mark", "").block().unwrap();
        assert!(poll(&mut running).is_pending());
    }
    session.close().block().unwrap();
    let lost = Err(RunOnceError::Lost(bowline::LostReason::SessionEnded(SessionEndReason::Closed)));
    assert_eq!(running.block(), lost);
    assert!(receiver.recv().is_err(), "the work was dropped");

    // A member crashes while the work runs.
    let node = cluster.node(0);
    let mut running = begin(once(&cluster, 0).run(hangs));
    while cluster.node(1).client().range(KeyRange::prefix("once/")).block().unwrap().count == 0 {
        node.client().put("mark", "").block().unwrap();
        assert!(poll(&mut running).is_pending());
    }
    let waiting = begin(once(&cluster, 1).run(|| async { Ok::<_, Never>("done") }).deadline(LONG));
    cluster.kill(0).block();
    let ran = waiting.block().unwrap();
    assert!(ran.is_here && ran.result == "done");
    assert!(running.block().is_err());
}
