//! Tests of the `Candidacy` API: the state that it reports, waiting for a term, the end of terms, and mutual
//! exclusion of leaders.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use bowline::env::{BootClock, Clock};
use bowline::testing::Cluster;
use bowline::{
    Blocking, LeaderEvent, Leadership, LockError, LostReason, Moment, Released, SessionEndReason,
    StopReason, Token,
    cluster::{Alarm, AlarmChange, AlarmKind},
    election::Candidacy,
};

use crate::stage::{
    Begun, LONG, SOON, STEADY, another_session, give_up, lasting, places, roles, session, steady,
    until_places, until_true, with, with_clocks,
};

type Elected = Result<Arc<Leadership>, LockError>;

/// Starts a task that waits for a term.
fn waits(candidacy: &Arc<Candidacy>) -> Begun<Elected> {
    let candidacy = Arc::clone(candidacy);
    Begun::new(async move { candidacy.elected().await })
}

/// Waits for a term, with a time limit.
fn elected(candidacy: &Arc<Candidacy>) -> Elected {
    let (sender, answer) = mpsc::channel();
    let candidacy = Arc::clone(candidacy);
    thread::spawn(move || {
        let elected = candidacy.elected().block();
        drop(candidacy);
        sender.send(elected)
    });
    answer.recv_timeout(SOON).expect("it is elected, or told why not")
}

fn stand(cluster: &Cluster, member: usize, value: &'static str) -> Arc<Candidacy> {
    Arc::new(session(cluster, member).election("jobs").candidacy(value))
}

fn into_inner(candidacy: Arc<Candidacy>) -> Candidacy {
    Arc::into_inner(candidacy).expect("nobody else has it")
}

#[test]
fn candidate_leads_once_its_predecessors_left_even_without_a_waiter() {
    let cluster = lasting(3);
    let first = stand(&cluster, 0, "a");
    let term = elected(&first).unwrap();
    let second = stand(&cluster, 1, "b");
    until_places(cluster.node(1), "jobs", 2);
    until_true(cluster.node(1), "it stands", || second.position() == Some(1));
    assert!(first.is_leader() && first.position() == Some(0));
    assert!(!second.is_leader() && second.leadership().is_none());

    assert_eq!(into_inner(first).withdraw().block(), Ok(Released::Now));
    assert!(!term.is_leader());
    assert_eq!(term.lost().block(), LostReason::Released);
    until_true(cluster.node(1), "it leads", || second.is_leader());
    let next = second.leadership().unwrap();
    assert!(next.token() > term.token());
    assert_eq!(elected(&second).unwrap().token(), next.token(), "it is told at once");
    next.txn().then(bowline::Op::put("done", "b")).commit().block().unwrap();
    let leader = session(&cluster, 2).election("jobs").leader().block().unwrap().unwrap();
    assert_eq!(leader.value, "b");
}

#[test]
fn dropped_wait_keeps_the_queue_entry_and_wakes_other_waiters() {
    let cluster = lasting(3);
    let first = stand(&cluster, 0, "a");
    elected(&first).unwrap();
    let second = stand(&cluster, 1, "b");
    let mut waiting: Vec<_> = (0..4).map(|_| waits(&second)).collect();
    until_places(cluster.node(1), "jobs", 2);
    assert!(waiting.iter_mut().all(|waits| waits.poll().is_none()));
    drop(waiting.pop());
    drop(first);
    let tokens: Vec<Token> =
        waiting.into_iter().map(|waits| waits.finish().unwrap().token()).collect();
    assert_eq!(tokens, [second.leadership().unwrap().token(); 3]);
}

/// A state query consumes the notification, but waiting tasks must still be woken.
#[test]
fn polling_does_not_hide_changes_from_waiters() {
    let cluster = lasting(1);
    let election = session(&cluster, 0).election("jobs");
    for round in 0..150 {
        let held = election.campaign("before").block().unwrap();
        let candidacy = Arc::new(election.candidacy("b"));
        let is_over = Arc::new(AtomicBool::new(false));
        let lookers: Vec<_> = (0..2)
            .map(|_| {
                let (candidacy, is_over) = (Arc::clone(&candidacy), Arc::clone(&is_over));
                thread::spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        candidacy.is_leader();
                    }
                })
            })
            .collect();
        let (sender, answers) = mpsc::channel();
        for _ in 0..3 {
            let (candidacy, sender) = (Arc::clone(&candidacy), sender.clone());
            thread::spawn(move || {
                sender.send(candidacy.elected().block().map(|term| term.token()))
            });
        }
        if round % 2 == 0 {
            until_places(cluster.node(0), "jobs", 2);
        }
        drop(held);
        for _ in 0..3 {
            answers.recv_timeout(SOON).expect("its news are not lost").unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        lookers.into_iter().for_each(|looker| looker.join().unwrap());
        drop(candidacy);
        until_places(cluster.node(0), "jobs", 0);
    }
}

#[test]
fn candidate_requeues_after_losing_a_term() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let (kv, locks) = (cluster.node(two).client(), cluster.node(two).locks());
    let candidacy = stand(&cluster, one, "a");
    let mut term = elected(&candidacy).unwrap();
    for round in 0..4 {
        let expected = match round % 2 {
            0 => {
                kv.delete(term.key().clone()).block().unwrap();
                LostReason::KeyDeleted
            }
            _ => {
                until_places(cluster.node(two), "jobs", 1);
                let line = locks.of("jobs").unwrap().queue;
                locks.force_release(&line[0], "tired of it").block().unwrap();
                let node = cluster.node(two).status().name;
                LostReason::ForceReleased { by: node, reason: "tired of it".to_owned() }
            }
        };
        let loss = term.lost().block();
        assert_eq!(std::mem::discriminant(&loss), std::mem::discriminant(&expected), "{loss:?}");
        assert!(!term.is_leader());
        // In the first terms the candidate learns of its election by waiting, and in the later
        // terms by a query.
        let next = match round < 2 {
            true => elected(&candidacy).unwrap(),
            false => {
                until_true(cluster.node(one), "it leads again", || candidacy.is_leader());
                candidacy.leadership().unwrap()
            }
        };
        assert!(next.token() > term.token());
        term = next;
    }
    assert_eq!(places(cluster.node(two), "jobs"), 1);
}

#[test]
fn evicted_candidate_requeues_at_the_end() {
    let cluster = lasting(3);
    let first = stand(&cluster, 0, "a");
    let term = elected(&first).unwrap();
    let second = stand(&cluster, 1, "b");
    let mut waiting = waits(&second);
    until_places(cluster.node(2), "jobs", 2);
    let third = stand(&cluster, 2, "c");
    until_places(cluster.node(2), "jobs", 3);
    let kv = cluster.node(2).client();
    let line = session(&cluster, 2).election("jobs").candidates().unwrap();
    kv.delete(line[1].key.clone()).block().unwrap();
    let order = || {
        // The waiting future must be polled, because nothing else advances the candidacy.
        assert!(waiting.poll().is_none());
        let line = session(&cluster, 2).election("jobs").candidates().unwrap();
        line.iter().map(|place| place.reason.to_vec()).collect::<Vec<_>>() == [b"a", b"c", b"b"]
    };
    let order = Mutex::new(order);
    until_true(cluster.node(2), "it stands behind", || order.lock().unwrap()());
    drop((order, first));
    assert!(!term.is_leader());
    elected(&third).unwrap();
    drop(third);
    waiting.finish().unwrap();
    assert!(second.is_leader());
}

#[test]
fn candidate_requeues_behind_its_successor_after_a_transfer() {
    let cluster = lasting(3);
    let first = stand(&cluster, 0, "a");
    let term = elected(&first).unwrap();
    let second = stand(&cluster, 1, "b");
    until_places(cluster.node(0), "jobs", 2);
    let locks = cluster.node(0).locks();
    let line = locks.of("jobs").unwrap().queue;
    locks.transfer(&line[0], &line[1], "its turn").block().unwrap();
    assert_eq!(term.lost().block(), LostReason::HandedOver);
    elected(&second).unwrap();
    assert!(!first.is_leader());
    until_places(cluster.node(0), "jobs", 2);
    drop(second);
    assert!(elected(&first).unwrap().token() > term.token());
}

#[test]
fn observer_sees_a_transfer_to_a_leader_with_the_same_value() {
    let cluster = lasting(3);
    let mut observer = session(&cluster, 2).election("jobs").observe();
    let mut next = || match observer.next().block().unwrap().unwrap() {
        LeaderEvent::Leads(leader) => Some(leader),
        _ => None,
    };
    assert_eq!(next(), None);
    let first = session(&cluster, 0).election("jobs").campaign("ready").block().unwrap();
    let behind = Begun::new(session(&cluster, 1).election("jobs").campaign("ready"));
    until_places(cluster.node(0), "jobs", 2);
    let before = next().unwrap();
    let line = cluster.node(0).locks().of("jobs").unwrap().queue;
    cluster.node(0).locks().transfer(&line[0], &line[1], "its turn").block().unwrap();
    let second = behind.finish().unwrap();
    let successor = second.session().lease();
    second.resign().block().unwrap();
    let after = next().expect("it is told before it resigns");
    assert_eq!((&before.key, before.since), (&after.key, after.since), "by the same key");
    assert_eq!((before.lease, after.lease), (first.session().lease(), successor));
    assert_eq!(next(), None);
}

#[test]
fn dropped_candidacy_ends_all_its_leaderships() {
    let cluster = lasting(3);
    let first = stand(&cluster, 0, "a");
    let kept = elected(&first).unwrap();
    let second = stand(&cluster, 1, "b");
    let waiting = waits(&second);
    drop(first);
    assert!(!kept.is_leader());
    assert_eq!(kept.lost().block(), LostReason::Released);
    waiting.finish().unwrap();
    // A candidacy that waits, or whose request is still in flight, also leaves no key behind.
    let third = stand(&cluster, 2, "c");
    until_places(cluster.node(0), "jobs", 2);
    drop(third);
    drop(stand(&cluster, 2, "d"));
    until_places(cluster.node(0), "jobs", 1);
}

#[test]
fn session_end_ends_the_candidacy() {
    let cluster = lasting(3);
    let sessions = [0, 1].map(|member| another_session(&cluster, member, "candidate"));
    let first = Arc::new(sessions[0].election("jobs").candidacy("a"));
    elected(&first).unwrap();
    let second = Arc::new(sessions[1].election("jobs").candidacy("b"));
    let (waiting, other) = (waits(&second), waits(&second));
    until_places(cluster.node(0), "jobs", 2);
    let closed = LockError::SessionEnded(SessionEndReason::Closed);
    sessions[1].close().block().unwrap();
    assert_eq!(waiting.finish().unwrap_err(), closed);
    assert_eq!(other.finish().unwrap_err(), closed);
    assert!(first.is_leader());

    let [closing, _] = sessions;
    let closing = Begun::asked(async move { closing.close().await });
    // The candidacy reports the loss as soon as `close` is called.
    assert!(!first.is_leader() && first.leadership().is_none() && first.position().is_none());
    assert_eq!(elected(&first).unwrap_err(), closed);
    closing.finish().unwrap();
    let lost = Released::AlreadyLost(LostReason::SessionEnded(SessionEndReason::Closed));
    assert_eq!(into_inner(first).withdraw().block(), Ok(lost));
    until_places(cluster.node(2), "jobs", 0);
}

#[test]
fn node_stop_ends_the_candidacy() {
    let mut cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let first = stand(&cluster, one, "a");
    elected(&first).unwrap();
    let second = stand(&cluster, two, "b");
    until_places(cluster.node(two), "jobs", 2);
    cluster.kill(one).block();
    assert!(!first.is_leader());
    let error = elected(&first).unwrap_err();
    assert!(matches!(error, LockError::NodeStopped(_) | LockError::SessionEnded(_)), "{error:?}");
    drop(first);
    // The next incarnation ends the session of this one.
    cluster.restart(one).block().unwrap();
    elected(&second).unwrap();
    cluster.shutdown(two).block();
    let error = elected(&second).unwrap_err();
    let stopped = LockError::NodeStopped(StopReason::Shutdown);
    assert!(error == stopped || matches!(error, LockError::SessionEnded(_)), "{error:?}");
}

#[test]
fn candidate_sees_its_loss_at_the_first_check_after_a_pause() {
    let (cluster, clocks) = with_clocks(STEADY);
    let candidacy = stand(&cluster, 0, "a");
    let term = elected(&candidacy).unwrap();
    assert!(candidacy.is_leader());
    clocks[0].jump(STEADY);
    assert!(cluster.node(0).now() >= term.valid_until());
    assert!(!candidacy.is_leader() && candidacy.leadership().is_none());
    let ended = LockError::SessionEnded(SessionEndReason::NotRenewed);
    assert_eq!(elected(&candidacy).unwrap_err(), ended);
}

#[test]
fn withdrawn_candidacy_leaves_the_queue_empty() {
    let cluster = lasting(3);
    let (_, one, two) = roles(&cluster);
    let holder = stand(&cluster, two, "a");
    elected(&holder).unwrap();
    for round in 0..40 {
        let candidacy = stand(&cluster, one, "b");
        if round % 2 == 0 {
            // Wait for the key in some rounds. In the other rounds, the outcome of the request is
            // not known yet.
            until_places(cluster.node(two), "jobs", 2);
        }
        assert_eq!(into_inner(candidacy).withdraw().block(), Ok(Released::Now));
        assert_eq!(places(cluster.node(two), "jobs"), 1);
    }
    let line = session(&cluster, two).election("jobs").observe().next().block().unwrap().unwrap();
    let LeaderEvent::Leads(before) = line else { panic!("somebody leads") };
    assert_eq!(into_inner(holder).withdraw().block(), Ok(Released::Now));
    assert_eq!(places(cluster.node(one), "jobs"), 0);
    // The candidate is elected, but its `Candidacy` is not queried until the observer has seen the election.
    let candidacy = stand(&cluster, one, "b");
    let observer = session(&cluster, two).election("jobs");
    let is_it = || observer.leader().block().unwrap().is_some_and(|now| now.since > before.since);
    until_true(cluster.node(two), "it is elected", is_it);
    assert_eq!(into_inner(candidacy).withdraw().block(), Ok(Released::Now));
    assert_eq!(places(cluster.node(two), "jobs"), 0);
}

#[test]
fn dropped_withdrawal_still_completes() {
    let cluster = lasting(3);
    let holder = stand(&cluster, 0, "a");
    elected(&holder).unwrap();
    for is_polled in [true, false] {
        let candidacy = stand(&cluster, 1, "b");
        until_places(cluster.node(0), "jobs", 2);
        match is_polled {
            true => give_up(into_inner(candidacy).withdraw()),
            false => drop(into_inner(candidacy).withdraw()),
        }
        until_places(cluster.node(0), "jobs", 1);
    }
    let kept = holder.leadership().unwrap();
    give_up(into_inner(holder).withdraw());
    assert!(!kept.is_leader());
    until_places(cluster.node(1), "jobs", 0);
}

#[test]
fn partitioned_candidacy_does_not_report_a_withdrawal() {
    let cluster = with(3, |config| config.session_ttl(LONG).call_deadline(STEADY));
    let (_, one, two) = roles(&cluster);
    let holder = stand(&cluster, two, "a");
    elected(&holder).unwrap();
    let candidacy = stand(&cluster, one, "b");
    until_places(cluster.node(two), "jobs", 2);
    cluster.partition(&[one]);
    let error = into_inner(candidacy).withdraw().block().unwrap_err();
    assert_eq!(error.effect(), bowline::Effect::Unknown, "{error:?}");
    cluster.heal();
    // The node retries.
    until_places(cluster.node(two), "jobs", 1);
}

#[test]
fn permanent_rejections_are_reported_and_transient_ones_retried() {
    let cluster = lasting(1);
    let election = session(&cluster, 0).election("jobs");
    let refused = Arc::new(election.candidacy("bowline:1 read\n"));
    assert!(!refused.is_leader());
    assert_eq!(elected(&refused).unwrap_err(), LockError::ReservedValue);
    assert_eq!(into_inner(refused).withdraw().block(), Ok(Released::Now));
    let nameless = Arc::new(session(&cluster, 0).election("").candidacy("a"));
    assert_eq!(elected(&nameless).unwrap_err(), LockError::EmptyName);

    // During an alarm, no request can be queued. The candidate leads after the alarm has ended.
    let alarm = Alarm { member: None, kind: AlarmKind::NoSpace };
    let mine = session(&cluster, 0);
    let kv = cluster.node(0).client();
    kv.change_alarms(AlarmChange::Raise(alarm)).block().unwrap();
    let candidacy = Arc::new(mine.election("later").candidacy("a"));
    let refused = mine.election("later").campaign("b").block().unwrap_err();
    assert!(!candidacy.is_leader() && !refused.is_transient(), "{refused:?}");
    kv.change_alarms(AlarmChange::End(alarm)).block().unwrap();
    elected(&candidacy).unwrap();

    // The limit of waiters on this node is reached, and the next candidate waits for room.
    let full = with(1, |config| config.lock_waiters_max(2));
    let mut all: Vec<_> = ["a", "b"].map(|value| stand(&full, 0, value)).into();
    let one_more = stand(&full, 0, "c");
    assert!(!one_more.is_leader());
    let (waiting, other) = (waits(&one_more), waits(&one_more));
    drop(all.drain(..));
    waiting.finish().unwrap();
    other.finish().unwrap();
}

/// A waker that queries the candidacy, like an executor that polls in its wakers.
struct LooksWhenWoken {
    candidacy: OnceLock<Arc<Candidacy>>,
    woken: AtomicU64,
    led: AtomicU64,
}

impl Wake for LooksWhenWoken {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        let leads = self.candidacy.get().unwrap().is_leader();
        self.led.fetch_add(u64::from(leads), Ordering::SeqCst);
    }
}

#[test]
fn waker_may_poll_the_candidacy_at_once() {
    let cluster = lasting(1);
    // In some rounds the driver may detect the end of the session before the query does. The other
    // rounds must cover the query.
    for ends in [false, true, true, true, true] {
        let session = another_session(&cluster, 0, "candidate");
        let held = session.election("jobs").campaign("before").block().unwrap();
        let candidacy = Arc::new(session.election("jobs").candidacy("a"));
        let (woken, led) = Default::default();
        let looks = LooksWhenWoken { candidacy: OnceLock::new(), woken, led };
        looks.candidacy.set(Arc::clone(&candidacy)).unwrap();
        let looks = Arc::new(looks);
        let waker = Waker::from(Arc::clone(&looks));
        let mut elected = Box::pin(candidacy.elected());
        let poll = elected.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        until_places(cluster.node(0), "jobs", 2);
        if !ends {
            drop(held);
            until_true(cluster.node(0), "it is woken", || looks.led.load(Ordering::SeqCst) > 0);
            continue;
        }
        // The query itself detects the end of the session, and wakes the waiting task.
        let (sender, looked) = mpsc::channel();
        let look = Arc::clone(&candidacy);
        thread::spawn(move || {
            let closing = Begun::asked(async move { session.close().await });
            assert!(!look.is_leader());
            sender.send(closing.finish()).unwrap();
        });
        looked.recv_timeout(SOON).expect("nobody waits for himself").unwrap();
        assert!(looks.woken.load(Ordering::SeqCst) > 0);
        let poll = elected.as_mut().poll(&mut Context::from_waker(&waker));
        let closed = LockError::SessionEnded(SessionEndReason::Closed);
        assert!(matches!(poll, Poll::Ready(Err(why)) if why == closed));
    }
}

/// The intervals in which a candidate was guaranteed to lead, by the clock of this machine.
type Spells = Arc<Mutex<Vec<(Moment, Moment, Token)>>>;

/// Records the interval of each term, until the candidacy ends.
fn note_terms(
    candidacy: &Candidacy,
    stop: &AtomicBool,
    spells: &Spells,
    begun: impl Fn(Token),
) -> Result<(), LockError> {
    while !stop.load(Ordering::SeqCst) {
        let term = candidacy.elected().block()?;
        let mut surely: Option<(Moment, Moment)> = None;
        let is_same =
            |now: Option<Arc<Leadership>>| now.is_some_and(|now| now.token() == term.token());
        loop {
            let before = BootClock.now();
            if stop.load(Ordering::SeqCst) || !is_same(candidacy.leadership()) {
                break;
            }
            match &mut surely {
                Some((first, last)) => {
                    if last < first {
                        begun(term.token());
                    }
                    *last = before;
                }
                None => surely = Some((BootClock.now(), before)),
            }
        }
        if let Some((first, last)) = surely.filter(|(first, last)| first < last) {
            spells.lock().unwrap().push((first, last, term.token()));
        }
    }
    Ok(())
}

#[test]
fn two_candidates_never_lead_during_kills_partitions_and_force_releases() {
    let mut cluster = steady(3);
    let (spells, stop) = (Spells::default(), Arc::new(AtomicBool::new(false)));
    let (sender, begun) = mpsc::channel();
    let candidate = |cluster: &Cluster, member: usize| {
        let candidacy = session(cluster, member).election("jobs").candidacy(member.to_string());
        let (spells, stop, sender) = (Arc::clone(&spells), Arc::clone(&stop), sender.clone());
        thread::spawn(move || {
            let tell = |token| sender.send((member, token)).unwrap();
            note_terms(&candidacy, &stop, &spells, tell)
        })
    };
    let mut threads: Vec<_> = (0..3).map(|member| candidate(&cluster, member)).collect();
    let mut tokens = Vec::new();
    for round in 0..9 {
        let (leads, token) = begun.recv_timeout(SOON).expect("somebody leads");
        tokens.push(token);
        match round % 3 {
            0 => cluster.kill(leads).block(),
            1 => cluster.partition(&[leads]),
            _ => {
                // Use a forced release, which invalidates the hold first. If the key were simply
                // deleted, the holder's node would learn of the deletion too late.
                let other = cluster.node((leads + 1) % 3);
                loop {
                    until_true(other, "somebody stands", || places(other, "jobs") > 0);
                    let line = other.locks().of("jobs").unwrap().queue;
                    let Some(first) = line.first() else { continue };
                    if other.locks().force_release(first, "another's turn").block().is_ok() {
                        break;
                    }
                }
                // The member becomes a candidate again by itself.
                continue;
            }
        }
        assert!(threads.remove(leads).join().unwrap().is_err());
        match round % 3 {
            0 => cluster.restart(leads).block().unwrap(),
            _ => cluster.heal(),
        }
        threads.insert(leads, candidate(&cluster, leads));
    }
    stop.store(true, Ordering::SeqCst);
    drop(threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>());
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let mut spells = spells.lock().unwrap().clone();
    spells.sort();
    for pair in spells.windows(2) {
        assert!(pair[0].1 < pair[1].0 && pair[0].2 < pair[1].2, "two lead at once: {pair:?}");
    }
    assert!(spells.len() >= 6, "{}", spells.len());
}
