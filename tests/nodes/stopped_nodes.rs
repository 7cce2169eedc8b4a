//! Tests that every use of a stopped node reports the same reason.

use std::sync::Arc;
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{
    Blocking, Error, Guard, GuardError, LeadError, Leadership, LockError, LockState, LostReason,
    Node, Released, Session, SessionEndReason, StopReason,
    queue::{Delivery, QueueError, QueueTaker},
};

use crate::stage::{Begun, lasting, roles, stand_in_line, until_places};

/// All handles that a program may hold, and all calls that it may wait for.
struct Desk {
    session: Session,
    guard: Guard,
    waits: Begun<Result<Guard, LockError>>,
    leads: Begun<Result<(), LeadError>>,
    stands: Begun<Result<(), LeadError>>,
    jobs: QueueTaker,
    job: Delivery,
    takes: Begun<Result<Delivery, QueueError>>,
}

fn lead(session: &Session) -> Begun<Result<(), LeadError>> {
    let election = session.election("leader");
    let work = async |_: Arc<Leadership>| std::future::pending::<()>().await;
    Begun::new(async move { election.run_while_leader("x", work).await })
}

fn sit_down(node: &Node) -> Desk {
    let session = node.session().block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    let other = node.open_session().block().unwrap();
    let waits = stand_in_line(&other, node, "lock");
    let leads = lead(&session);
    until_places(node, "leader", 1);
    let stands = lead(&other);
    until_places(node, "leader", 2);
    let jobs = session.queue("jobs");
    jobs.put("x").block().unwrap();
    let job = jobs.take().block().unwrap();
    let takes = Begun::new(jobs.take());
    until_places(node, "jobs/idle", 1);
    Desk { session, guard, waits, leads, stands, jobs, job, takes }
}

fn assert_all_say(desk: Desk, why: &StopReason) {
    let Desk { session, guard, waits, leads, stands, jobs, job, takes } = desk;
    let loss = LostReason::NodeStopped(why.clone());
    let not_taken = LockError::NodeStopped(why.clone());
    let is_stop = |error: &Error| matches!(error, Error::Stopped { reason, .. } if reason == why);
    let is_taken_no_more =
        |error: &QueueError| matches!(error, QueueError::Store(error) if is_stop(error));

    assert_eq!(session.end(), Some(SessionEndReason::NodeStopped));
    assert_eq!(guard.state(), LockState::Lost(loss.clone()));
    assert_eq!(guard.lost().block(), loss);
    let refused = guard.txn().then(bowline::Op::put("k", "v")).commit().block().unwrap_err();
    assert_eq!(refused, GuardError::NotHeld);
    assert_eq!(guard.release().block().unwrap(), Released::AlreadyLost(loss.clone()));
    assert_eq!(waits.finish().unwrap_err(), not_taken);
    assert_eq!(session.mutex("lock").lock().block().unwrap_err(), not_taken);
    assert_eq!(session.mutex("lock").try_lock().block().unwrap_err(), not_taken);
    for leading in [leads, stands] {
        let error = leading.finish().unwrap_err();
        assert_eq!(error, LeadError::NotElected(not_taken.clone()));
        assert_eq!(
            error.to_string(),
            format!("cannot be elected any more: the node has stopped: {why}")
        );
    }
    assert_eq!(job.lost().block(), loss);
    assert!(is_taken_no_more(&job.ack().block().unwrap_err()));
    assert!(is_taken_no_more(&takes.finish().unwrap_err()));
    assert!(is_taken_no_more(&jobs.take().block().unwrap_err()));
    assert!(is_taken_no_more(&jobs.try_take().block().unwrap_err()));
    assert!(is_taken_no_more(&jobs.put("y").block().unwrap_err()));
    assert!(is_stop(&session.group("group").join("me").block().unwrap_err()));
    assert!(is_stop(&session.client().put("k", "v").block().unwrap_err()));
    assert!(is_stop(&session.client().get("k").block().unwrap_err()));
}

#[test]
fn handles_of_a_shut_down_node_report_shutdown() {
    let mut cluster = lasting(1);
    let desk = sit_down(cluster.node(0));
    cluster.shutdown(0).block();
    assert_all_say(desk, &StopReason::Shutdown);
}

#[test]
fn handles_of_a_killed_node_report_killed() {
    let mut cluster = lasting(1);
    let desk = sit_down(cluster.node(0));
    cluster.kill(0).block();
    assert_all_say(desk, &StopReason::Killed);
    assert!(!StopReason::Killed.to_string().contains("shut down"));
}

#[test]
fn locks_are_lost_during_shutdown() {
    let mut cluster: Cluster = lasting(3);
    let (_, one, _) = roles(&cluster);
    let node = cluster.node(one);
    let guard = node.session().block().unwrap().mutex("lock").lock().block().unwrap();
    let mut lost = Begun::new(async move { guard.lost().await });
    let mut stopping = Begun::asked(async move { cluster.shutdown(one).await });
    let mut first = None;
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    while stopping.poll().is_none() {
        first = first.or_else(|| lost.poll());
        assert!(std::time::Instant::now() < limit);
        std::thread::yield_now();
    }
    let received = first.unwrap_or_else(|| lost.finish());
    assert_eq!(received, LostReason::NodeStopped(StopReason::Shutdown));
}
