//! Tests of complaints about late detection, waiters that hang, and candidates that do not exist.

use std::time::Duration;

use bowline::{Blocking, LostReason, SessionEndReason};

use crate::stage::{
    Begun, another_leader, another_session, lasting, lasting_with, mortal, places, roles, session,
    session_ended, stand_in_line, steady, timed_out, until_places,
};

/// kubernetes#23731, contrib#690: the old leader was blocked in a call for a minute.
#[test]
fn blocked_holder_is_notified_of_its_loss_in_time() {
    let cluster = lasting_with(3, |config| config.call_deadline(Duration::from_secs(60)));
    let (_, one, two) = roles(&cluster);
    let guard = mortal(&cluster, one).mutex("lock").lock().block().unwrap();
    cluster.partition(&[one]);
    let kv = cluster.node(one).client();
    let mut hanging = Begun::new(kv.put("k", "v"));
    assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    assert!(hanging.poll().is_none(), "the call still hangs");
    assert!(session(&cluster, two).mutex("lock").lock().block().unwrap().is_held());
}

/// cagriekin/charts#326, charts#327.
#[test]
fn candidate_with_an_ended_session_neither_waits_nor_leads() {
    let cluster = lasting(3);
    let leads = session(&cluster, 0).election("jobs").campaign("a").block().unwrap();
    let dying = another_session(&cluster, 1, "dying");
    let campaign = Begun::new(dying.election("jobs").campaign("dying"));
    until_places(cluster.node(1), "jobs", 2);
    cluster.node(2).client().revoke(dying.lease()).block().unwrap();
    let error = campaign.finish().unwrap_err();
    assert!(session_ended(&error), "{error:?}");
    assert_eq!(places(cluster.node(0), "jobs"), 1);
    leads.resign().block().unwrap();
    assert!(session(&cluster, 2).election("jobs").leader().block().unwrap().is_none());
}

/// etcd#14641.
#[test]
fn campaign_survives_a_paused_cluster_leader() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let first = session(&cluster, one).election("jobs").campaign("one").block().unwrap();
    let waits = session(&cluster, two);
    let campaign = Begun::new(waits.election("jobs").campaign("two"));
    until_places(cluster.node(two), "jobs", 2);
    cluster.pause(leader);
    another_leader(&cluster, leader);
    first.resign().block().unwrap();
    assert!(campaign.finish().unwrap().is_leader());
    cluster.resume(leader);
}

/// tiflow#5753.
#[test]
fn node_campaigns_again_after_losing_its_session() {
    let cluster = steady(3);
    let (_, one, _) = roles(&cluster);
    let first = session(&cluster, one).election("jobs").campaign("one").block().unwrap();
    cluster.partition(&[one]);
    first.lost().block();
    cluster.heal();
    let again = session(&cluster, one).election("jobs").campaign("one").block().unwrap();
    assert!(again.is_leader());
    assert!(again.token() > first.token());
}

/// consul#4902.
#[test]
fn lost_lock_can_be_acquired_again() {
    let cluster = lasting(3);
    let mutex = session(&cluster, 0).mutex("lock");
    for _ in 0..3 {
        let guard = mutex.lock().block().unwrap();
        cluster.node(1).client().delete(guard.key().clone()).block().unwrap();
        assert_eq!(guard.lost().block(), LostReason::KeyDeleted);
    }
    assert!(mutex.lock().block().unwrap().is_held());
}

/// redisson#1104, redisson#4595, redisson#5503, kazoo#412, hiqlite#352: the first waiter in the queue is dead.
#[test]
fn dead_waiters_at_the_front_block_no_request() {
    let mut cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let guard = session(&cluster, leader).mutex("lock").lock().block().unwrap();
    let dead: Vec<_> = ["first", "second"]
        .map(|_| {
            let session = mortal(&cluster, one);
            let waiting = stand_in_line(&session, cluster.node(one), "lock");
            (session, waiting)
        })
        .into();
    let alive = session(&cluster, two);
    let waiting = stand_in_line(&alive, cluster.node(two), "lock");
    cluster.kill(one).block();
    guard.release().block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
    for (_, waiting) in dead {
        assert!(waiting.finish().is_err());
    }
}

/// redisson#763, redisson#5762, curator#1046: a missed wake-up.
#[test]
fn every_one_of_many_waiters_is_served() {
    let cluster = lasting(3);
    let gate = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..30)
            .map(|waiter: usize| {
                let session = another_session(&cluster, waiter % 3, &waiter.to_string());
                scope.spawn(move || {
                    let guard = session.mutex("lock").lock().block().unwrap();
                    // Half of the waiters drop the guard without waiting for the release.
                    if waiter.is_multiple_of(2) {
                        guard.release().block().unwrap();
                    }
                })
            })
            .collect();
        until_places(cluster.node(0), "lock", 31);
        gate.release().block().unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    until_places(cluster.node(0), "lock", 0);
}

/// curator#1193.
#[test]
fn a_release_without_a_connection_leaves_the_lock_usable() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let mutex = session(&cluster, one).mutex("lock");
    let guard = mutex.lock().block().unwrap();
    cluster.partition(&[one]);
    drop(guard);
    cluster.heal();
    for _ in 0..3 {
        mutex.lock().block().unwrap().release().block().unwrap();
        let other = session(&cluster, two).mutex("lock").lock().block().unwrap();
        other.release().block().unwrap();
    }
    assert_eq!(places(cluster.node(two), "lock"), 0);
}

/// atomix#808.
#[test]
fn timed_out_waiter_blocks_no_request() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let quitter = session(&cluster, 1);
    let waited = quitter.mutex("lock").lock().deadline(Duration::from_millis(100)).block();
    assert!(waited.as_ref().is_err_and(timed_out), "{waited:?}");
    let other = session(&cluster, 2);
    let waiting = stand_in_line(&other, cluster.node(2), "lock");
    guard.release().block().unwrap();
    assert!(waiting.finish().unwrap().is_held());
}

/// atomix#544.
#[test]
fn locks_work_after_all_members_restarted() {
    let mut cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("lock").lock().block().unwrap();
    let token = guard.token();
    for member in 0..3 {
        cluster.kill(member).block();
    }
    for member in 0..3 {
        cluster.restart(member).block().unwrap();
    }
    let next = session(&cluster, 1).mutex("lock").lock().block().unwrap();
    assert!(next.token() > token);
}
