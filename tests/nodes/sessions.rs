//! Tests of sessions on real nodes: how they end, how they are resumed, and how long their keys outlive them.

use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::stage::until_true;
use bowline::testing::{Cluster, ClusterOptions};
use bowline::{
    Blocking, Client, Effect, Error, GuardError, KeyRange, LeaseId, Limits, LockState, LostReason,
    Op, Rejection, Released, Session, SessionEndReason, SessionState,
    cluster::{Alarm, AlarmChange, AlarmKind},
    lease::ResumeSessionError,
    lock::LockAdminError,
    queue::QueueError,
};

/// A TTL that is long enough for renewals on a busy machine, and short enough for a test to wait
/// until it has passed.
const TTL: Duration = Duration::from_secs(3);

/// The TTL of sessions that outlive any test.
const LONG: Duration = Duration::from_secs(600);

/// Returns the error of closing a session that has ended for this reason.
fn not_closed(end: SessionEndReason) -> Error {
    Error::SessionEnded { end, effect: Effect::NotApplied }
}

/// Starts a cluster with short timeouts, so that tests that wait for timeouts are fast.
fn quick(members: usize) -> Cluster {
    electing(members, Duration::from_millis(150))
}

/// Starts a cluster with this election timeout.
fn electing(members: usize, election_timeout: Duration) -> Cluster {
    ClusterOptions::new(members)
        .configure(move |config| {
            config
                .heartbeat(Duration::from_millis(20))
                .election_timeout(election_timeout)
                .session_ttl(TTL)
        })
        .start()
        .block()
        .expect("the cluster starts")
}

/// Returns a follower and one of the other members.
fn followers(cluster: &Cluster) -> (usize, usize) {
    let leader = cluster.leader().block().unwrap();
    ((leader + 1) % 3, (leader + 2) % 3)
}

fn bind(session: &Session, key: &'static str) {
    session.client().put(key, "v").lease(session.lease()).block().unwrap();
}

fn is_bound(client: &Client, key: &'static str) -> bool {
    client.get(key).block().unwrap().is_some()
}

/// Waits until a key is deleted.
fn gone(client: &Client, key: &'static str) {
    let mut changes = client.watch(key).block().unwrap();
    while is_bound(client, key) {
        changes.next().block().unwrap().unwrap();
    }
}

/// Waits until the lease of a session was renewed `times` times.
fn renewed(session: &Session, times: usize) {
    for _ in 0..times {
        let until = session.valid_until();
        while session.valid_until() == until {
            assert_eq!(session.end(), None);
            is_bound(&session.client(), "time passes");
        }
    }
}

/// The node keeps its pending revocation, and completes it later.
#[test]
fn close_without_a_quorum_reports_an_unknown_effect() {
    let mut cluster = quick(3);
    let session = cluster.node(0).open_session().ttl(LONG).block().unwrap();
    bind(&session, "bound");
    cluster.kill(1).block();
    cluster.kill(2).block();
    let error = session.close().block().unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    cluster.restart(1).block().unwrap();
    gone(&cluster.node(0).client(), "bound");
}

#[test]
fn crashed_program_resumes_its_session_after_a_restart() {
    let mut cluster = quick(3);
    let (crashes, other) = followers(&cluster);
    let open = cluster.node(crashes).open_session().label("importer");
    let session = open.ttl(Duration::from_secs(4)).block().unwrap();
    bind(&session, "address");
    let lease = session.lease();
    cluster.kill(crashes).block();
    assert_eq!(session.end(), Some(SessionEndReason::NodeStopped));
    cluster.restart(crashes).block().unwrap();
    let again = cluster.node(crashes).resume_session(lease).block().unwrap();
    assert_eq!((again.lease(), again.label()), (lease, "importer"));
    // Longer than the TTL of the lease.
    renewed(&again, 4);
    assert!(is_bound(&cluster.node(other).client(), "address"));
    assert_eq!(session.end(), Some(SessionEndReason::NodeStopped), "the first one stays ended");
    again.close().block().unwrap();
    gone(&cluster.node(other).client(), "address");
}

#[test]
fn session_moves_to_another_node_and_keeps_its_keys() {
    let cluster = quick(3);
    let (from, to) = followers(&cluster);
    let session = cluster.node(from).open_session().block().unwrap();
    let handle = session.clone();
    bind(&session, "address");
    let lease = session.detach();
    assert_eq!(handle.state(), SessionState::Ended(SessionEndReason::Detached));
    assert_eq!(handle.close().block(), Err(not_closed(SessionEndReason::Detached)));
    let session = cluster.node(to).resume_session(lease).block().unwrap();
    drop(handle);
    renewed(&session, 4);
    assert!(is_bound(&cluster.node(from).client(), "address"));
    let [row] = &cluster.node(to).client().sessions()[..] else { panic!("one session") };
    assert_eq!((row.lease, row.ttl, row.own), (lease, TTL, false));
    assert_eq!(&row.node, &cluster.node(from).status().id, "who opened it");
}

#[test]
fn ended_sessions_and_own_node_sessions_cannot_be_resumed() {
    let mut cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let own = cluster.node(holder).session().block().unwrap();
    let (lease, node) = (own.lease(), cluster.node(holder).status().id);
    let refused = cluster.node(other).resume_session(lease).block().unwrap_err();
    assert_eq!(refused, Error::NotResumed(ResumeSessionError::OwnSessionLease { lease, node }));
    let session = cluster.node(holder).open_session().block().unwrap();
    let closed = session.lease();
    session.close().block().unwrap();
    session.close().block().unwrap();
    for lease in [closed, LeaseId::new(77_777).unwrap()] {
        let refused = cluster.node(other).resume_session(lease).block().unwrap_err();
        assert_eq!(refused, Error::Rejected(Rejection::LeaseNotFound(lease)));
    }
    // The next incarnation has revoked the lease of the node's own session.
    cluster.kill(holder).block();
    cluster.restart(holder).block().unwrap();
    cluster.node(holder).session().block().unwrap();
    let refused = cluster.node(holder).resume_session(lease).block().unwrap_err();
    assert_eq!(refused, Error::Rejected(Rejection::LeaseNotFound(lease)));
}

#[test]
fn plain_lease_can_be_resumed_as_a_session() {
    let cluster = quick(1);
    let client = cluster.node(0).client();
    let lease = client.grant(TTL).block().unwrap().id;
    client.put("k", "v").lease(lease).block().unwrap();
    let session = cluster.node(0).resume_session(lease).block().unwrap();
    assert_eq!((session.label(), session.ttl()), ("", TTL));
    renewed(&session, 4);
    assert!(is_bound(&client, "k"));
    drop(session);
    gone(&client, "k");
}

#[test]
fn lock_of_a_crashed_holder_stays_taken_for_the_lock_delay() {
    let mut cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let delay = Duration::from_secs(2);
    let session = cluster.node(holder).open_session().lock_delay(delay).block().unwrap();
    assert_eq!((session.ttl(), session.lock_delay()), (TTL, delay));
    let status =
        cluster.node(holder).client().lease_info(session.lease()).block().unwrap().unwrap();
    assert_eq!(status.ttl, TTL + delay);
    let guard = session.mutex("lock").lock().block().unwrap();
    let believed = guard.valid_until();
    let now = cluster.node(holder).now();
    assert!(believed <= now + TTL, "the delay is not believed in");
    cluster.kill(holder).block();
    let until = guard.valid_until();
    let next = cluster.node(other).open_session().ttl(LONG).block().unwrap();
    let next = next.mutex("lock").lock().block().unwrap();
    let granted = cluster.node(other).now();
    assert!(granted >= until + delay, "believed in until {until:?}, taken at {granted:?}");
    drop((guard, next));
}

#[test]
fn closed_session_releases_its_locks_without_the_lock_delay() {
    let cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let delay = Limits::LOCK_DELAY_MAX;
    let session = cluster.node(holder).open_session().lock_delay(delay).block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    session.close().block().unwrap();
    assert!(!guard.is_held());
    let next = cluster.node(other).session().block().unwrap();
    let next = next.mutex("lock").lock().deadline(Duration::from_secs(20)).block();
    assert!(next.is_ok(), "{next:?}");
}

#[test]
fn partitioned_holder_cannot_shorten_its_lock_delay() {
    let cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let delay = Limits::LOCK_DELAY_MAX;
    let session = cluster.node(holder).open_session().lock_delay(delay).block().unwrap();
    bind(&session, "k");
    cluster.partition(&[holder]);
    assert_eq!(session.ended().block(), SessionEndReason::NotRenewed);
    cluster.heal();
    assert_eq!(session.close().block(), Err(not_closed(SessionEndReason::NotRenewed)));
    let lease = session.lease();
    drop(session);
    // When this write returns, the earlier requests of the node have been processed.
    let client = cluster.node(holder).client();
    client.put("after", "v").block().unwrap();
    assert!(is_bound(&cluster.node(other).client(), "k"));
    client.revoke(lease).block().unwrap();
    assert!(!is_bound(&client, "k"), "an operator can");
}

/// The lock delay applies even if the holder releases the lock when it learns of its loss.
#[test]
fn lost_holder_cannot_shorten_its_lock_delay_by_releasing() {
    let cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let delay = Limits::LOCK_DELAY_MAX;
    let session = cluster.node(holder).open_session().lock_delay(delay).block().unwrap();
    let names = ["dropped", "released", "by its token", "with a write", "handed over"];
    let guards = names.map(|name| session.mutex(name).lock().block().unwrap());
    let keys = guards.each_ref().map(|guard| guard.key().clone());
    let successors = cluster.node(other).open_session().ttl(LONG).block().unwrap();
    let successor = successors.mutex("handed over");
    let waiting = thread::spawn(move || successor.lock().block());
    let successor = loop {
        let line = session.mutex("handed over").queue().unwrap();
        match line.into_iter().find(|place| !place.holds) {
            Some(successor) => break successor,
            None => thread::yield_now(),
        }
    };
    let [dropped, released, by_token, with_write, handed_over] = guards;
    let write = with_write.txn().then(Op::put("written", "v"));
    cluster.partition(&[holder]);
    let lost = LostReason::SessionEnded(SessionEndReason::NotRenewed);
    assert_eq!(dropped.lost().block(), lost);
    drop(dropped);
    assert_eq!(handed_over.transfer(&successor).block(), Err(LockAdminError::Gone));
    let was_lost = Ok(Released::AlreadyLost(lost));
    assert_eq!(session.mutex("by its token").release(by_token.token()).block(), was_lost);
    assert_eq!(write.commit_and_release(with_write).block(), Err(GuardError::NotHeld));
    assert_eq!(released.release().block(), was_lost);
    cluster.heal();
    let (client, lease) = (cluster.node(holder).client(), session.lease());
    client.put("after", "v").block().unwrap();
    for key in keys {
        let row = client.get(key.clone()).block().unwrap();
        assert_eq!(row.and_then(|row| row.lease), Some(lease), "{key:?}");
    }
    assert!(!is_bound(&client, "written"));
    client.revoke(lease).block().unwrap();
    assert!(waiting.join().unwrap().is_ok());
}

/// The lock delay applies to all keys of the session, and not only to its locks.
#[test]
fn keys_of_a_lost_session_outlive_it_by_the_lock_delay() {
    let cluster = quick(3);
    let (holder, _) = followers(&cluster);
    let delay = Limits::LOCK_DELAY_MAX;
    let session = cluster.node(holder).open_session().lock_delay(delay).block().unwrap();
    let client = cluster.node(holder).client();
    let hold = |name| client.barrier(name).hold(&session).block().unwrap();
    let (dropped, released) = (hold("dropped"), hold("released"));
    let [stays, leaves] = ["stays", "leaves"].map(|g| session.group(g).join("").block().unwrap());
    let jobs = session.queue("jobs");
    jobs.put_many(["1", "2"]).block().unwrap();
    let [job, other_job] = [(); 2].map(|()| jobs.take().block().unwrap());
    cluster.partition(&[holder]);
    assert_eq!(session.ended().block(), SessionEndReason::NotRenewed);
    drop((dropped, stays, other_job));
    assert_eq!(released.release().block(), Ok(false));
    assert_eq!(leaves.leave().block(), Ok(false));
    assert_eq!(job.nack().block(), Err(QueueError::ClaimLost));
    cluster.heal();
    client.put("after", "v").block().unwrap();
    let mut keys = client.lease_info(session.lease()).with_keys().block().unwrap().unwrap().keys;
    keys.retain(|key| !key.starts_with(b"jobs/idle/"));
    assert_eq!(keys.len(), 2 + 2 + 2, "{keys:?}");
    client.revoke(session.lease()).block().unwrap();
}

/// Like the previous test, for a call that was in flight and is rejected.
#[test]
fn rejected_acknowledgement_does_not_return_the_item_of_a_lost_session() {
    let cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let delay = Limits::LOCK_DELAY_MAX;
    let session = cluster.node(holder).open_session().lock_delay(delay).block().unwrap();
    let jobs = session.queue("jobs");
    jobs.put("1").block().unwrap();
    let job = jobs.take().block().unwrap();
    cluster.partition(&[holder]);
    let client = cluster.node(other).client();
    let full = Alarm { member: None, kind: AlarmKind::NoSpace };
    client.change_alarms(AlarmChange::Raise(full)).block().unwrap();
    let mut acknowledging = pin!(job.ack_with([Op::put("effect", "v")]));
    let polled = acknowledging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    assert_eq!(session.ended().block(), SessionEndReason::NotRenewed);
    cluster.heal();
    let refused = Error::Rejected(Rejection::Alarm(AlarmKind::NoSpace));
    assert_eq!(acknowledging.block().unwrap_err(), QueueError::Store(refused));
    // When this returns, the earlier requests of the node have been processed.
    cluster.node(holder).client().delete("after").block().unwrap();
    let claims = client.range(KeyRange::prefix("jobs/claim/")).block().unwrap();
    assert_eq!(claims.count, 1);
    client.revoke(session.lease()).block().unwrap();
}

#[test]
fn excessive_lock_delay_is_rejected_by_name() {
    let cluster = quick(1);
    let (node, max) = (cluster.node(0), Limits::LOCK_DELAY_MAX);
    let asked = max + Duration::from_millis(1);
    let expected = Error::LockDelay { asked, max };
    assert_eq!(node.open_session().lock_delay(asked).block().unwrap_err(), expected);
    assert_eq!(expected.to_string(), "not applied: the lock delay 600.001s is longer than 600s");
    let session = node.open_session().lock_delay(max).block().unwrap();
    let resume = |delay| node.resume_session(session.lease()).lock_delay(delay).block();
    assert_eq!(resume(asked).unwrap_err(), expected);
    assert!(matches!(
        resume(TTL),
        Err(Error::NotResumed(ResumeSessionError::OtherLockDelay { .. }))
    ));
    assert!(resume(max).is_ok());
}

#[test]
fn invalid_session_ttl_is_rejected_at_once() {
    let cluster = quick(1);
    let node = cluster.node(0);
    let (min, max) = (Limits::SESSION_TTL_MIN, Limits::LEASE_TTL_MAX);
    let ms = Duration::from_millis(1);
    for asked in [Duration::ZERO, ms, min - ms, max + ms] {
        // An invalid TTL is rejected with any lock delay.
        for delay in [Duration::ZERO, Limits::LOCK_DELAY_MAX] {
            let refused = node.open_session().ttl(asked).lock_delay(delay).block().unwrap_err();
            assert_eq!(refused, Error::SessionTtl { asked, min, max });
        }
    }
    let words = Error::SessionTtl { asked: ms, min, max }.to_string();
    assert_eq!(words, "not applied: the session TTL 1ms is out of range: 100ms to 9000000000s");
}

#[test]
fn partitioned_holder_is_warned_before_the_loss() {
    let cluster = quick(3);
    let (holder, _) = followers(&cluster);
    // The TTL is long enough for this thread to query between the warning and the loss.
    let session = cluster.node(holder).open_session().ttl(TTL * 3).block().unwrap();
    assert!(matches!(session.state(), SessionState::Active(_)));
    cluster.partition(&[holder]);
    let SessionState::RenewalOverdue(until) = session.at_risk().block() else {
        panic!("not told in time")
    };
    assert_eq!(until, session.valid_until());
    assert_eq!(session.ended().block(), SessionEndReason::NotRenewed);
    assert!(cluster.node(holder).now() >= until);
    assert_eq!(session.at_risk().block(), SessionState::Ended(SessionEndReason::NotRenewed));
}

#[test]
fn hold_reports_at_risk_before_its_loss() {
    let cluster = quick(3);
    let (holder, _) = followers(&cluster);
    let session = cluster.node(holder).open_session().ttl(TTL * 3).block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    assert!(matches!(guard.state(), LockState::Held(_)));
    cluster.partition(&[holder]);
    let LockState::Unconfirmed(until) = guard.at_risk().block() else {
        panic!("lost without a warning")
    };
    assert!(guard.is_held());
    assert_eq!(until, guard.valid_until());
    assert_eq!(guard.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    assert!(cluster.node(holder).now() >= until);
    // If the hold is already lost, the call returns at once.
    let lost = guard.at_risk().block();
    assert_eq!(lost, LockState::Lost(LostReason::SessionEnded(SessionEndReason::NotRenewed)));
}

#[test]
fn at_risk_is_checked_by_the_clock_without_a_wakeup() {
    let cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let session = cluster.node(holder).open_session().ttl(TTL * 3).block().unwrap();
    let (mut risk, mut end) = (Box::pin(session.at_risk()), Box::pin(session.ended()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(risk.as_mut().poll(&mut context).is_pending());
    assert!(end.as_mut().poll(&mut context).is_pending());
    // The threads of the node are paused, so it sends no notification.
    cluster.pause(holder);
    let client = cluster.node(other).client();
    while cluster.node(holder).now() < session.valid_until() {
        is_bound(&client, "time passes");
    }
    let ended = SessionEndReason::NotRenewed;
    assert_eq!(risk.as_mut().poll(&mut context), Poll::Ready(SessionState::Ended(ended)));
    assert_eq!(end.as_mut().poll(&mut context), Poll::Ready(ended));
    cluster.resume(holder);
}

#[test]
fn session_lives_while_any_handle_exists() {
    let cluster = quick(3);
    let (holder, other) = followers(&cluster);
    let client = cluster.node(other).client();
    let session = cluster.node(holder).open_session().block().unwrap();
    bind(&session, "k");
    let guard = session.mutex("lock").lock().block().unwrap();
    drop(session);
    let session = guard.session().clone();
    renewed(&session, 4);
    drop(session);
    assert!(guard.is_held() && is_bound(&client, "k"));
    drop(guard);
    gone(&client, "k");
    // The node itself holds a handle on its own session.
    let own = cluster.node(holder).session().block().unwrap();
    let lease = own.lease();
    bind(&own, "k");
    drop(own);
    let own = cluster.node(holder).session().block().unwrap();
    assert_eq!(own.lease(), lease);
    renewed(&own, 4);
    assert!(is_bound(&client, "k"));
}

#[test]
fn session_opened_by_a_dropped_call_is_not_kept() {
    let cluster = quick(1);
    let node = cluster.node(0);
    for _ in 0..20 {
        let mut call = node.open_session().into_future();
        let mut context = Context::from_waker(Waker::noop());
        // While the node is paused, the first poll gets no answer.
        cluster.pause(0);
        assert!(call.as_mut().poll(&mut context).is_pending());
        cluster.resume(0);
        // The call may be answered before it is dropped.
        node.client().put("k", "v").block().unwrap();
        drop(call);
    }
    let none = |status: &bowline::NodeStatus| status.sessions == 0;
    node.wait_for(none).block();
    // The sessions may exist for a little longer, because a new leader holds back revocations for a short time.
    until_true(node, "a session is kept", || node.client().sessions().is_empty());
}

#[test]
fn plain_lease_is_renewable_and_visible_through_any_node() {
    // Use a long election timeout, because after an election the lease would have its full TTL
    // again.
    let cluster = electing(3, TTL);
    let (one, other) = followers(&cluster);
    let client = cluster.node(one).client();
    let lease = client.grant(TTL).block().unwrap();
    client.put("kept", "v").lease(lease.id).block().unwrap();
    let began = cluster.node(one).now();
    while cluster.node(one).now().since(began) < TTL * 2 {
        assert_eq!(client.renew(lease.id).block(), Ok(TTL));
        let seen = cluster.node(other).client().lease_time_to_live(lease.id).block().unwrap();
        assert!(seen.is_some_and(|left| left <= TTL), "{seen:?}");
    }
    assert!(is_bound(&client, "kept"));
    let now = || cluster.node(one).now();
    let (mut left, mut asked) = (TTL, now());
    let mut lives_until = asked;
    while let Some(seen) = client.lease_time_to_live(lease.id).block().unwrap() {
        assert!(seen <= left, "nobody renews it: {seen:?} after {left:?}");
        left = seen;
        lives_until = lives_until.max(asked + seen);
        asked = now();
    }
    assert!(now() >= lives_until, "it was to live until {lives_until:?}");
    assert!(!is_bound(&client, "kept"));
    let gone = Err(Error::Rejected(Rejection::LeaseNotFound(lease.id)));
    assert_eq!(client.renew(lease.id).block(), gone);
}

#[test]
fn renewal_without_a_leader_ends_at_its_deadline() {
    let mut cluster = quick(3);
    let (one, other) = followers(&cluster);
    let leader = cluster.leader().block().unwrap();
    let client = cluster.node(one).client();
    let lease = client.grant(Duration::from_secs(60)).block().unwrap();
    cluster.kill(leader).block();
    cluster.kill(other).block();
    let error = client.renew(lease.id).block().unwrap_err();
    assert_eq!(error, Error::Deadline { effect: bowline::Effect::Unknown });
}
