//! Chubby's sequencer, which is passed to another server and checked there; and the guarantees of Kubernetes' leader
//! election.

use bowline::{
    Blocking, Compare, LeaderEvent, LockState, LostReason, SessionEndReason, SessionState, Token,
};

use crate::stage::{
    Begun, Outside, SHORT, STEADY, another_session, lasting, let_pass, mortal, roles, session,
    stand_in_line, until_true,
};

/// The sequencer that is sent to the other server has the name, the mode and the generation.
#[test]
fn a_sequencer_is_checked_by_a_server_that_remembers_the_newest() {
    let cluster = lasting(3);
    let mut server = Outside::default();
    let accept = |server: &mut Outside, sequencer: &str, what: &str| {
        let generation = sequencer.rsplit(':').next().unwrap();
        server.write(generation.parse::<Token>().unwrap(), what).is_ok()
    };
    let first = session(&cluster, 0).mutex("files/a").lock().block().unwrap();
    let old = format!("files/a:exclusive:{}", first.token());
    assert!(accept(&mut server, &old, "one"));
    first.release().block().unwrap();
    let second = session(&cluster, 1).mutex("files/a").lock().block().unwrap();
    let new = format!("files/a:exclusive:{}", second.token());
    assert!(accept(&mut server, &new, "two"));
    assert!(!accept(&mut server, &old, "late"));
    assert_eq!(server.written, ["one", "two"]);
}

/// A server that does not remember tokens checks a sequencer by reading the store.
#[test]
fn a_sequencer_is_checked_by_a_server_that_asks_the_store() {
    let cluster = lasting(3);
    let guard = session(&cluster, 0).mutex("files/a").lock().block().unwrap();
    // The holder sends its key, and the revision of the key.
    let (key, since) = (guard.key().clone(), guard.since());
    let server = cluster.node(2).client();
    let holds = || {
        let held = Compare::create_revision(key.clone()).eq(since);
        server.txn().when(held).commit().block().unwrap().succeeded
    };
    assert!(holds());
    guard.release().block().unwrap();
    assert!(!holds());
}

/// Chubby's lock delay, for servers that cannot check sequencers: after an unclean end, the lock
/// stays unavailable for a while.
#[test]
fn lock_delay_applies_after_a_loss_but_not_after_a_release() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let delay = SHORT * 2;
    let open = || cluster.node(one).open_session().ttl(STEADY).lock_delay(delay).block().unwrap();
    let other = session(&cluster, two);
    let held = open().mutex("files/a").lock().block().unwrap();
    cluster.partition(&[one]);
    held.lost().block();
    let until = held.valid_until();
    let next = other.mutex("files/a").lock().block().unwrap();
    // All members of this test use the same clock.
    let granted = cluster.node(two).now();
    assert!(granted >= until + delay, "believed in until {until:?}, granted at {granted:?}");
    cluster.heal();
    next.release().block().unwrap();

    let held = open().mutex("files/a").lock().block().unwrap();
    held.release().block().unwrap();
    assert!(other.mutex("files/a").try_lock().block().is_ok());
}

/// Chubby's jeopardy: between "held" and "lost" there is time to stop in an orderly way.
#[test]
fn overdue_session_reports_at_risk_before_it_ends() {
    let cluster = lasting(3);
    let (_, one, _) = roles(&cluster);
    // The TTL is long enough for this thread to query between the warning and the loss.
    let mine = cluster.node(one).open_session().ttl(STEADY * 3).block().unwrap();
    let is_well = || matches!(mine.state(), SessionState::Active(_));
    until_true(cluster.node(one), "it is confirmed", is_well);
    cluster.partition(&[one]);
    let warned = mine.at_risk().block();
    let SessionState::RenewalOverdue(until) = warned else {
        panic!("not warned before: {warned:?}")
    };
    mine.ended().block();
    assert!(cluster.node(one).now() >= until);
    assert!(matches!(mine.state(), SessionState::Ended(_)));
}

/// The lease is longer than the renewal deadline, so the leader gives up before another instance may lead.
#[test]
fn leader_that_cannot_renew_stops_before_another_leads() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let leads = mortal(&cluster, one).election("kube").campaign("one").block().unwrap();
    let other = session(&cluster, two);
    cluster.partition(&[one]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let next = other.election("kube").campaign("two").block().unwrap();
            assert!(!leads.is_leader(), "two lead");
            assert!(next.token() > leads.token());
        });
        assert_eq!(leads.lost().block(), LostReason::SessionEnded(SessionEndReason::NotRenewed));
    });
    assert!(matches!(leads.state(), LockState::Lost(_)));
}

/// The callbacks for the start and end of leading, and for each new leader.
#[test]
fn observers_see_each_new_leader_and_the_leader_its_end() {
    let cluster = lasting(3);
    let (one, two) = (session(&cluster, 0), another_session(&cluster, 1, "two"));
    let mut seen = session(&cluster, 2).election("kube").observe();
    let mut next = || match seen.next().block().unwrap().unwrap() {
        LeaderEvent::Leads(leader) => String::from_utf8(leader.value.to_vec()).unwrap(),
        _ => "nobody".to_owned(),
    };
    assert_eq!(next(), "nobody");
    let first = one.election("kube").campaign("one").block().unwrap();
    assert_eq!(next(), "one");
    let key = first.key().clone();
    cluster.node(2).client().delete(key).block().unwrap();
    assert_eq!(first.lost().block(), LostReason::KeyDeleted);
    assert_eq!(next(), "nobody");
    let second = two.election("kube").campaign("two").block().unwrap();
    assert_eq!(next(), "two");
    second.resign().block().unwrap();
    assert_eq!(next(), "nobody");
}

/// Release on cancel: after an orderly stop, the successor does not wait for the lease.
#[test]
fn resigned_leader_is_replaced_at_once() {
    let cluster = lasting(3);
    let first = session(&cluster, 0).mutex("kube").lock().block().unwrap();
    let second = session(&cluster, 1);
    let waiting = stand_in_line(&second, cluster.node(1), "kube");
    drop(first);
    // The TTL is far longer than this test may take.
    assert!(waiting.finish().unwrap().is_held());
}

/// A health check for supervisors: if the leader cannot renew its session, the check fails before another node may
/// lead.
#[test]
fn a_leader_that_cannot_renew_is_not_ready_before_it_has_lost() {
    let cluster = lasting(3);
    let (leader, one, two) = roles(&cluster);
    let leads = mortal(&cluster, one).election("kube").campaign("one").block().unwrap();
    let_pass(cluster.node(leader), STEADY * 2, || {
        assert!(leads.is_leader(), "it is renewed");
    });
    until_true(cluster.node(one), "it serves", || cluster.node(one).health().is_serving());
    let other = session(&cluster, two);
    let next = Begun::new(other.election("kube").campaign("two"));
    cluster.partition(&[one]);
    until_true(cluster.node(one), "not ready", || !cluster.node(one).health().is_serving());
    assert!(leads.is_leader(), "readiness is lost before leadership is");
    assert!(next.finish().unwrap().is_leader());
    assert!(!leads.is_leader());
    let health = cluster.node(one).health();
    assert!(health.is_alive() && !health.is_serving(), "{health:?}");
}
