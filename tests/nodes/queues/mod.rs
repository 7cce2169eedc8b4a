//! Tests of queues on real nodes: each item is taken by one taker at a time, whatever fails.

mod dead_letters;
mod worker_faults;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bowline::testing::Cluster;
use bowline::{
    Blocking, Client, Compare, Effect, Error, KeyRange, LostReason, Op, Rejection, Revision,
    cluster::{Alarm, AlarmChange, AlarmKind},
    queue::{Delivery, FailOutcome, ItemId, ItemState, Queue, QueueError, QueueTaker, QueuedItem},
};

use crate::stage;

/// Starts a cluster with short timeouts, so that tests that wait for timeouts are fast. Sessions are long enough for a
/// busy machine.
fn quick(members: usize) -> Cluster {
    stage::with(members, |config| {
        config
            .heartbeat(Duration::from_millis(20))
            .election_timeout(Duration::from_millis(250))
            .session_ttl(Duration::from_secs(4))
            .call_deadline(Duration::from_secs(20))
    })
}

/// Time during which an item is reserved for the node that it is meant for. Same value as in
/// `src/recipes/queue/board.rs`.
const WAIT_MAX: Duration = Duration::from_millis(50);

fn taker(cluster: &Cluster, member: usize, name: &'static str) -> QueueTaker {
    cluster.node(member).session().block().unwrap().queue(name)
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.value().to_vec()).unwrap()
}

fn take(taker: &QueueTaker) -> String {
    let delivery = taker.take().block().unwrap();
    let value = text(&delivery);
    delivery.ack().block().unwrap();
    value
}

fn assert_stopped(error: &QueueError) {
    let stopped = matches!(error, QueueError::Store(Error::Stopped { .. }));
    assert!(stopped, "{error:?}");
}

fn count(kv: &Client, prefix: &'static str) -> u64 {
    kv.range(KeyRange::prefix(prefix)).count_only().block().unwrap().count
}

/// Waits until a prefix has `wanted` keys, by watching it.
fn until_count(kv: &Client, prefix: &'static str, wanted: u64) {
    let rows = kv.range(KeyRange::prefix(prefix)).block().unwrap();
    let mut watch = kv.watch(KeyRange::prefix(prefix)).from(rows.revision.next()).block().unwrap();
    while count(kv, prefix) != wanted {
        watch.next().block().unwrap().unwrap();
    }
}

/// Reports to this thread that a future was woken.
struct Flag(AtomicBool, thread::Thread);

impl Flag {
    fn raised() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true), thread::current()))
    }

    /// Waits until the flag is raised, and lowers it.
    fn wait(&self) {
        while !self.0.swap(false, Ordering::SeqCst) {
            thread::park();
        }
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}

/// Polls a future up to `times` times, each time after a wake-up. Then drops it.
fn poll_at_most<F: IntoFuture>(times: usize, future: F) -> Option<F::Output> {
    let flag = Flag::raised();
    let waker = Waker::from(Arc::clone(&flag));
    let mut future = Box::pin(future.into_future());
    for _ in 0..times {
        flag.wait();
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
    }
    None
}

#[test]
fn items_are_taken_in_priority_then_arrival_order() {
    let cluster = quick(3);
    let jobs = cluster.client(0).queue("jobs");
    jobs.put("b1").block().unwrap();
    jobs.put_many(["b2", "b3", "b4"]).block().unwrap();
    jobs.put("c").priority(7).block().unwrap();
    jobs.put_many(["a1", "a2"]).priority(-7).block().unwrap();
    let revision = jobs.put("b5").block().map(|_| cluster.client(0).revision()).unwrap();
    let order = ["a1", "a2", "b1", "b2", "b3", "b4", "b5", "c"];
    let listed = jobs.items().block().unwrap();
    assert_eq!(listed.iter().map(|item| &item.value).collect::<Vec<_>>(), order);
    assert!(listed.iter().all(|item| item.state == ItemState::Free && item.attempts == 0));
    cluster.all_at(revision).block().unwrap();
    let taker = taker(&cluster, 1, "jobs");
    assert_eq!(order.map(|_| take(&taker)), order);
    assert!(jobs.is_empty().block().unwrap());
    drop(taker);
    until_count(&cluster.client(0), "jobs/", 0);
}

#[test]
fn waiting_consumer_gets_an_item_put_later_on_any_node() {
    let cluster = Arc::new(quick(3));
    let waiting: Vec<_> = (0..3)
        .map(|member| {
            let taker = taker(&cluster, member, "jobs");
            thread::spawn(move || take(&taker))
        })
        .collect();
    let kv = cluster.client(0);
    until_count(&kv, "jobs/idle/", 3);
    kv.queue("jobs").put_many(["1", "2", "3"]).block().unwrap();
    let taken: BTreeSet<String> = waiting.into_iter().map(|one| one.join().unwrap()).collect();
    assert_eq!(taken, ["1", "2", "3"].map(String::from).into());
    until_count(&kv, "jobs/", 0);
}

#[test]
fn taken_item_is_exclusive_until_returned() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    taker.put("x").block().unwrap();
    let first = taker.take().block().unwrap();
    assert!(first.is_claimed());
    assert_eq!((first.attempt(), first.priority()), (1, 0));
    let state = taker.items().block().unwrap()[0].state;
    let session = cluster.node(0).session().block().unwrap();
    assert_eq!(state, ItemState::Taken { by: Some(session.lease()) });
    assert!(taker.try_take().block().unwrap().is_none());
    let late = taker.take().deadline(Duration::from_millis(50)).block().unwrap_err();
    assert_eq!(late, QueueError::TimedOut { before: 0 });
    first.nack().block().unwrap();
    let second = taker.take().block().unwrap();
    assert_eq!(second.attempt(), 2);
    let token = second.taken_at();
    drop(second); // in the background
    let third = taker.take().block().unwrap();
    assert_eq!(third.attempt(), 3);
    assert!(third.taken_at() > token);
    third.ack().block().unwrap();
    assert!(taker.try_take().block().unwrap().is_none());
}

#[test]
fn item_of_a_detached_session_is_returned_when_dropped() {
    let cluster = quick(1);
    let node = cluster.node(0);
    let session = node.open_session().block().unwrap();
    let taker = session.queue("jobs");
    taker.put("a").block().unwrap();
    let delivery = taker.take().block().unwrap();
    // Another call waits, so that the board of the taker is registered as idle.
    let waits = poll_at_most(1, taker.take());
    assert!(waits.is_none());
    let mut idle = Box::pin(taker.take().into_future());
    assert!(idle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until_count(&node.client(), "jobs/idle/", 1);
    let lease = session.detach();
    drop((idle, delivery, taker));
    let _kept = node.resume_session(lease).block().unwrap();
    let other = self::taker(&cluster, 0, "jobs");
    let again = other.take().deadline(Duration::from_secs(60)).block().unwrap();
    assert_eq!((text(&again).as_str(), again.attempt()), ("a", 2));
    until_count(&node.client(), "jobs/idle/", 0);
}

#[test]
fn returned_item_keeps_its_position() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    taker.put_many(["1", "2", "3"]).block().unwrap();
    let first = taker.take().block().unwrap();
    assert_eq!(take(&taker), "2");
    first.nack().block().unwrap();
    assert_eq!([take(&taker), take(&taker)], ["1", "3"]);
}

#[test]
fn acknowledgement_and_its_effects_are_atomic() {
    let cluster = quick(3);
    let taker = taker(&cluster, 1, "jobs");
    let kv = cluster.client(1);
    taker.put("x").block().unwrap();
    // If an effect is rejected, nothing is acknowledged, and the item is returned.
    let delivery = taker.take().block().unwrap();
    let lease = bowline::LeaseId::new(77).unwrap();
    let mut bound = bowline::Put::new("effect", "");
    bound.lease = bowline::kv::PutLease::Attach(lease);
    let refused = delivery.ack_with([bound]).block().unwrap_err();
    assert_eq!(refused, QueueError::Store(Error::Rejected(Rejection::LeaseNotFound(lease))));
    let delivery = taker.take().block().unwrap();
    assert_eq!(delivery.attempt(), 2);
    // This effect exceeds the limits.
    let large = Op::put("effect", vec![0; 2 << 20]);
    let refused = delivery.ack_with([large]).block().unwrap_err();
    assert!(matches!(refused, QueueError::Store(Error::Rejected(Rejection::ValueTooLarge { .. }))));
    // The effect puts an item into the next queue and returns a result.
    let next = kv.queue("next");
    let delivery = taker.take().block().unwrap();
    assert_eq!(delivery.attempt(), 3);
    let ops = [Op::put("effect", "done"), Op::get("effect"), next.put_op("y", -1)];
    let reply = delivery.ack_with(ops).block().unwrap();
    assert_eq!((reply.succeeded, reply.results.len()), (true, 3));
    assert_eq!(kv.get("effect").block().unwrap().unwrap().value, "done");
    assert_eq!(next.items().block().unwrap()[0].priority, -1);
    assert!(taker.is_empty().block().unwrap());
}

#[test]
fn lost_claim_acknowledges_nothing() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    let kv = cluster.client(0);
    taker.put("x").block().unwrap();
    let first = taker.take().block().unwrap();
    let lost = {
        let key = kv.range(KeyRange::prefix("jobs/claim/")).block().unwrap().kvs.remove(0).key;
        kv.delete(key).block().unwrap();
        first.lost().block()
    };
    assert_eq!(lost, LostReason::KeyDeleted);
    assert!(!first.is_claimed());
    let second = taker.take().block().unwrap();
    assert_eq!(second.id(), first.id());
    let guarded = kv.txn().when(first.still_claimed()).then(Op::put("effect", ""));
    assert!(!guarded.commit().block().unwrap().succeeded);
    let error = first.ack_with([Op::put("effect", "")]).block().unwrap_err();
    assert_eq!(error, QueueError::ClaimLost);
    assert_eq!(kv.get("effect").block().unwrap(), None);
    assert!(second.is_claimed());
    second.ack().block().unwrap();
}

#[test]
fn crash_returns_taken_items_and_counts_the_attempt() {
    let mut cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let (crashes, lives) = ((leader + 1) % 3, (leader + 2) % 3);
    let other = taker(&cluster, lives, "jobs");
    other.put_many(["1", "2"]).block().unwrap();
    let crashing = taker(&cluster, crashes, "jobs");
    let held = crashing.take().block().unwrap();
    assert_eq!(text(&held), "1");
    cluster.kill(crashes).block();
    assert_eq!(take(&other), "2");
    let again = other.take().block().unwrap();
    assert_eq!((text(&again), again.attempt()), ("1".into(), 2));
    again.ack().block().unwrap();
    assert!(matches!(held.ack().block().unwrap_err(), QueueError::Store(Error::Stopped { .. })));
    assert_stopped(&crashing.take().block().unwrap_err());
}

#[test]
fn partitioned_consumer_loses_its_item_and_cannot_acknowledge_it() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let (away, lives) = ((leader + 1) % 3, (leader + 2) % 3);
    let (cut, other) = (taker(&cluster, away, "jobs"), taker(&cluster, lives, "jobs"));
    other.put("x").block().unwrap();
    let held = cut.take().block().unwrap();
    cluster.partition(&[away]);
    let again = other.take().block().unwrap();
    assert_eq!(again.attempt(), 2);
    assert!(!held.is_claimed(), "it gave up before the others got it");
    assert!(matches!(held.lost().block(), LostReason::SessionEnded(_)));
    cluster.heal();
    assert_eq!(held.ack_with([Op::put("effect", "")]).block().unwrap_err(), QueueError::ClaimLost);
    again.ack().block().unwrap();
    assert_eq!(count(&cluster.client(away), "effect"), 0);
}

#[test]
fn dropped_take_leaves_nothing() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let taker = taker(&cluster, (leader + 1) % 3, "jobs");
    let kv = cluster.client(leader);
    for polls in 0..6 {
        // The queue is empty, so the call registers its board as idle. The call is dropped before or after the
        // registration.
        for wakes in 0..2 {
            let mut future = Box::pin(taker.take().into_future());
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                assert!(future.as_mut().poll(&mut context).is_pending());
            }
            if polls > 0 && wakes > 0 {
                until_count(&kv, "jobs/idle/", 1);
            }
            drop(future);
            until_count(&kv, "jobs/", 0);
        }
        // Now the queue has an item.
        taker.put("x").block().unwrap();
        drop(poll_at_most(polls, taker.take()));
        drop(poll_at_most(polls, async { taker.try_take().await }));
        until_count(&kv, "jobs/claim/", 0);
        until_count(&kv, "jobs/idle/", 0);
        assert_eq!(take(&taker), "x");
    }
}

#[test]
fn item_granted_to_a_dropped_take_is_passed_on() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    let kv = cluster.client(0);
    let mut context = Context::from_waker(Waker::noop());
    // The item is claimed and delivered, and the future is not polled again.
    let mut first = Box::pin(taker.take().into_future());
    assert!(first.as_mut().poll(&mut context).is_pending());
    taker.put("x").block().unwrap();
    until_count(&kv, "jobs/claim/", 1);
    drop(first);
    until_count(&kv, "jobs/claim/", 0);
    let mut first = Box::pin(taker.take().into_future());
    // While the node is paused, the first poll gets no answer.
    cluster.pause(0);
    assert!(first.as_mut().poll(&mut context).is_pending());
    cluster.resume(0);
    let second = thread::spawn({
        let taker = taker.clone();
        move || taker.take().block().unwrap().attempt()
    });
    drop(first);
    assert!(second.join().unwrap() >= 2);
}

#[test]
fn dropped_acknowledgements_and_puts_are_atomic_and_leave_nothing() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let taker = taker(&cluster, (leader + 1) % 3, "jobs");
    let kv = cluster.client(leader);
    for polls in 0..4 {
        for kind in 0..3 {
            let item = taker.put("x").block().unwrap();
            let delivery = taker.take().block().unwrap();
            assert_eq!(delivery.id(), &item);
            match kind {
                0 => drop(poll_at_most(polls, delivery.ack())),
                1 => drop(poll_at_most(polls, delivery.ack_with([Op::put("effect", "")]))),
                _ => drop(poll_at_most(polls, delivery.nack())),
            }
            until_count(&kv, "jobs/claim/", 0);
            let left = taker.try_take().block().unwrap();
            if kind < 2 && polls > 0 {
                assert!(left.is_none(), "what is begun is carried out");
            }
            if kind == 2 || polls == 0 {
                assert_eq!(left.as_ref().map(Delivery::attempt), Some(2));
            }
            if let Some(left) = left {
                left.ack().block().unwrap();
            }
        }
        drop(poll_at_most(polls, taker.put("x").delay(Duration::from_millis(30))));
        drop(poll_at_most(polls, taker.put_many(["x", "y"])));
        // Earlier calls reach the log before these.
        taker.put("last").priority(100).block().unwrap();
        let mut taken = Vec::new();
        while taken.last().is_none_or(|last| last != "last") {
            taken.push(take(&taker));
        }
        until_count(&kv, "jobs/delay/", 0);
        while let Some(late) = taker.try_take().block().unwrap() {
            late.ack().block().unwrap();
        }
    }
    until_count(&kv, "jobs/", 0);
}

#[test]
fn put_is_applied_once_despite_leader_changes() {
    let cluster = Arc::new(quick(3));
    let done = Arc::new(AtomicBool::new(false));
    let putting: Vec<_> = (0..3)
        .map(|member| {
            let (cluster, done) = (Arc::clone(&cluster), Arc::clone(&done));
            thread::spawn(move || {
                let jobs = cluster.client(member).queue("jobs");
                let [mut sure, mut maybe, mut never] = [const { BTreeSet::new() }; 3];
                for n in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let value = format!("{member}.{n}");
                    match jobs.put(value.clone()).block() {
                        Ok(_) => assert!(sure.insert(value)),
                        Err(QueueError::Store(error)) if error.effect() == Effect::Unknown => {
                            assert!(maybe.insert(value));
                        }
                        Err(QueueError::Store(Error::Deadline { .. })) => {
                            assert!(never.insert(value));
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                (sure, maybe, never)
            })
        })
        .collect();
    for _ in 0..4 {
        let leader = cluster.leader().block().unwrap();
        cluster.partition(&[leader]);
        let others = |status: &bowline::NodeStatus| {
            status.role == bowline::Role::Leader && status.name != format!("m{leader}")
        };
        cluster.wait_until("another member leads", |all| all.iter().any(others)).block().unwrap();
        cluster.heal();
        let kv = cluster.client(leader);
        kv.put("alive", "").block().unwrap();
    }
    done.store(true, Ordering::Relaxed);
    let all: Vec<_> = putting.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut there = BTreeMap::new();
    for item in cluster.client(0).queue("jobs").items().block().unwrap() {
        *there.entry(String::from_utf8(item.value.to_vec()).unwrap()).or_insert(0) += 1;
    }
    assert!(there.values().all(|times| *times == 1));
    let mut puts = 0;
    for (sure, maybe, never) in all {
        puts += sure.len();
        assert!(sure.iter().all(|value| there.remove(value).is_some()));
        assert!(maybe.iter().all(|value| there.remove(value).is_none_or(|times| times == 1)));
        assert!(never.iter().all(|value| !there.contains_key(value)), "it was not applied");
    }
    assert!(there.is_empty(), "nobody put {there:?}");
    assert!(puts > 10);
}

#[test]
fn eight_consumers_on_each_of_three_nodes_take_each_item_once() {
    const ITEMS: usize = 2000;
    let cluster = Arc::new(quick(3));
    let jobs = cluster.client(0).queue("jobs");
    let acked = Arc::new(AtomicU64::new(0));
    let takers: Vec<_> = (0..3)
        .flat_map(|member| {
            let taker = taker(&cluster, member, "jobs");
            (0..8).map(move |_| (member, taker.clone()))
        })
        .map(|(member, taker)| {
            let (cluster, acked) = (Arc::clone(&cluster), Arc::clone(&acked));
            thread::spawn(move || {
                let kv = cluster.client(member);
                let mut mine = 0;
                loop {
                    let delivery = taker.take().block().unwrap();
                    if delivery.value().is_empty() {
                        delivery.ack().block().unwrap();
                        return mine;
                    }
                    let done = [&b"done/"[..], delivery.value()].concat();
                    let once = kv.txn().when(Compare::missing(done.clone())).commit().block();
                    assert!(once.unwrap().succeeded, "it was done before");
                    delivery.ack_with([Op::put(done, "")]).block().unwrap();
                    mine += 1;
                    acked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for chunk in 0..ITEMS / 50 {
        let values = (0..50).map(|n| format!("{:04}", chunk * 50 + n));
        jobs.put_many(values).block().unwrap();
    }
    // Put one end marker for each taker.
    jobs.put_many(vec![""; takers.len()]).priority(1).block().unwrap();
    let each: Vec<usize> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
    assert_eq!(each.iter().sum::<usize>(), ITEMS);
    assert_eq!(acked.load(Ordering::Relaxed), ITEMS as u64);
    let done = cluster.client(1).range(KeyRange::prefix("done/")).block().unwrap();
    assert_eq!(done.count, ITEMS as u64);
    assert!(done.kvs.iter().all(|row| row.version == 1), "acknowledged twice");
    until_count(&cluster.client(2), "jobs/", 0);
}

#[test]
fn consumers_may_crash_anywhere_and_each_item_has_its_effect_once() {
    const ITEMS: usize = 300;
    let mut cluster = quick(3);
    let values = |round: usize| (round * 100..round * 100 + 100).map(|n| format!("{n:04}"));
    let work = |cluster: &Cluster, member| {
        let taker = taker(cluster, member, "jobs");
        let workers = (0..3).map(move |_| {
            let taker = taker.clone();
            // The taker runs until its node is killed or all items are done.
            thread::spawn(move || {
                while let Ok(delivery) = taker.take().block() {
                    let end = delivery.value().is_empty();
                    let effect = Op::put([b"done/", &delivery.value()[..]].concat(), "");
                    match delivery.ack_with([effect]).block() {
                        Ok(_) if end => return,
                        Ok(_) | Err(QueueError::ClaimLost) => {}
                        Err(_) => return,
                    }
                }
            })
        });
        workers.collect::<Vec<_>>()
    };
    let mut workers: Vec<_> = (0..3).flat_map(|member| work(&cluster, member)).collect();
    for round in 0..3 {
        let victim = (round + 1) % 3;
        let lives = cluster.client((victim + 1) % 3);
        // Some items are done, so this is in the middle of the work.
        let mut done = lives.watch(KeyRange::prefix("done/")).block().unwrap();
        lives.queue("jobs").put_many(values(round)).block().unwrap();
        for _ in 0..=round * 7 {
            done.next().block().unwrap().unwrap();
        }
        cluster.kill(victim).block();
        cluster.restart(victim).block().unwrap();
        workers.extend(work(&cluster, victim));
    }
    let kv = cluster.client(0);
    until_count(&kv, "done/", ITEMS as u64);
    let rows = kv.range(KeyRange::prefix("done/")).block().unwrap().kvs;
    assert!(rows.iter().all(|row| row.version == 1), "one had its effect twice");
    kv.queue("jobs").put_many(vec![""; workers.len()]).block().unwrap();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    kv.delete(KeyRange::prefix("jobs/item/")).block().unwrap(); // those for the dead
    until_count(&kv, "jobs/", 0);
}

#[test]
fn one_put_wakes_one_of_the_waiting_nodes_in_turn() {
    const JUDGED: u64 = 30;
    let cluster = Arc::new(quick(3));
    let kv = cluster.client(0);
    let taken: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
    let threads: Vec<_> = (0..3)
        .flat_map(|member| {
            let taker = taker(&cluster, member, "jobs");
            (0..2).map(move |_| (member, taker.clone()))
        })
        .map(|(member, taker)| {
            let taken = Arc::clone(&taken);
            thread::spawn(move || {
                while take(&taker) != "end" {
                    taken[member].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    until_count(&kv, "jobs/idle/", 3);
    let leader = cluster.leader().block().unwrap();
    // A status is as old as the last tick. If the status includes this mark, it includes all earlier writes.
    let log = || {
        let mark = kv.put("mark", "").block().unwrap();
        let status = cluster.node(leader).wait_for(|status| status.revision >= mark.revision);
        status.block().commit.get()
    };
    let (jobs, mut before) = (kv.queue("jobs"), log());
    let (mut entries, mut judged, mut was_quick) = (0, 0, true);
    let mut rounds = 0..JUDGED * 20;
    while judged < JUDGED {
        let n =
            rounds.next().expect("the machine is too slow: takers that are woken come too late");
        let begun = Instant::now();
        jobs.put(n.to_string()).block().unwrap();
        until_count(&kv, "jobs/item/", 0);
        // On a slow disk a woken taker may be slower than the time for which its item is reserved, so that other takers
        // compete for the item. Such rounds are not counted.
        let is_quick = begun.elapsed() < WAIT_MAX / 2;
        let now = log();
        if is_quick && was_quick {
            judged += 1;
            entries += now - before - 1;
        }
        (before, was_quick) = (now, is_quick);
    }
    jobs.put_many(vec!["end"; threads.len()]).block().unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let each: Vec<u64> = taken.iter().map(|n| n.load(Ordering::Relaxed)).collect();
    assert!(each.iter().all(|n| *n >= 5), "{each:?}");
    // Each item needs log entries for a put, a claim and an acknowledgement. Sometimes there is a further entry,
    // because a board registers as idle again or two takers compete.
    assert!(entries < 5 * judged, "{entries} entries for {judged} items");
}

#[test]
fn items_for_a_paused_node_are_taken_by_others() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let (still, lives) = ((leader + 1) % 3, (leader + 2) % 3);
    let session = cluster.node(still).open_session().ttl(Duration::from_secs(60)).block().unwrap();
    let sleeper = session.queue("jobs");
    let mut waits = Box::pin(sleeper.take().into_future());
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let kv = cluster.client(leader);
    until_count(&kv, "jobs/idle/", 1);
    cluster.pause(still);
    let taker = taker(&cluster, lives, "jobs");
    for n in 0..5 {
        taker.put(n.to_string()).block().unwrap();
        assert_eq!(take(&taker), n.to_string());
    }
    assert_eq!(count(&kv, "jobs/idle/"), 1, "its session lives");
    cluster.resume(still);
    drop(waits);
}

#[test]
fn delayed_item_is_taken_after_its_delay_at_its_original_position() {
    let cluster = quick(3);
    let node = cluster.node(1);
    let taker = taker(&cluster, 1, "jobs");
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(3600));
    taker.put("much later").delay(long).block().unwrap();
    taker.put_many(["x", "y"]).delay(Duration::from_micros(1)).block().unwrap();
    let first = &taker.items().block().unwrap()[0];
    assert_eq!((&first.value[..], first.state), (&b"much later"[..], ItemState::Delayed));
    // Leases may end one by one, in any order.
    let mut both = [take(&taker), take(&taker)];
    both.sort();
    assert_eq!(both, ["x", "y"]);
    assert!(taker.try_take().block().unwrap().is_none());
    assert_eq!(taker.len().block().unwrap(), 1);
    let before = node.now();
    taker.put("later").delay(short).block().unwrap();
    assert_eq!(take(&taker), "later");
    assert!(node.now().since(before) >= short);
    // A delayed item comes before items that were put after it.
    taker.put("1").delay(Duration::from_millis(1)).block().unwrap();
    until_count(&node.client(), "jobs/delay/", 1);
    taker.put("2").block().unwrap();
    assert_eq!([take(&taker), take(&taker)], ["1", "2"]);
    assert_eq!(node.client().leases().len(), 2, "the session's, and the long delay's");
}

#[test]
fn failed_delayed_put_leaves_no_lease() {
    let cluster = quick(1);
    let node = cluster.node(0);
    let (kv, month) = (node.client(), Duration::from_secs(30 * 24 * 3600));
    let queue = kv.queue("jobs");
    let before = kv.leases().len();
    let refused = queue.put(vec![b'x'; 2 << 20]).delay(month).block().unwrap_err();
    let too_large =
        matches!(refused, QueueError::Store(Error::Rejected(Rejection::ValueTooLarge { .. })));
    assert!(too_large, "{refused:?}");
    assert_eq!(kv.leases().len(), before);
    for polls in 0..12 {
        drop(poll_at_most(polls % 4, queue.put("x").delay(month)));
    }
    // For each dropped put, either both the item and its lease exist in the end, or neither.
    let begun = node.now();
    while kv.leases().len() - before != usize::try_from(count(&kv, "jobs/delay/")).unwrap() {
        assert!(node.now().since(begun) < Duration::from_secs(20), "{:?}", kv.leases());
        thread::yield_now();
    }
}

#[test]
fn queue_at_its_limit_rejects_more_items() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    let jobs: Queue = taker.limit(3);
    jobs.put_many(["1", "2"]).block().unwrap();
    let full = QueueError::Full { limit: 3 };
    assert_eq!(jobs.put_many(["3", "4"]).block().unwrap_err(), full);
    jobs.put("3").block().unwrap();
    let held = taker.take().block().unwrap();
    assert_eq!(jobs.put("4").block().unwrap_err(), full, "what is taken counts");
    held.ack().block().unwrap();
    jobs.put("4").block().unwrap();
    assert_eq!(jobs.put_many(Vec::<String>::new()).block().unwrap(), []);
}

#[test]
fn queue_needs_a_name_and_nested_names_are_separate() {
    let cluster = quick(1);
    let nameless = taker(&cluster, 0, "");
    assert_eq!(nameless.put("x").block().unwrap_err(), QueueError::EmptyName);
    assert_eq!(nameless.take().block().unwrap_err(), QueueError::EmptyName);
    assert_eq!(nameless.try_take().block().unwrap_err(), QueueError::EmptyName);
    let (outer, inner) = (taker(&cluster, 0, "a"), taker(&cluster, 0, "a/b"));
    inner.put("inner").block().unwrap();
    assert!(outer.try_take().block().unwrap().is_none());
    assert_eq!(take(&inner), "inner");
}

#[test]
fn queue_of_a_scoped_client_reports_its_full_name() {
    let cluster = quick(1);
    let kv = cluster.client(0);
    let app = kv.with_prefix("app/");
    let scoped = app.queue("jobs");
    assert_eq!(scoped.name(), "app/jobs");
    let session = cluster.node(0).session().block().unwrap();
    let taker = session.queue(scoped.name().clone()).attempts_max(1);
    scoped.put("scoped").block().unwrap();
    assert_eq!(scoped.items().block().unwrap()[0].value, "scoped");
    assert_eq!(take(&taker), "scoped");
    kv.txn().then(scoped.put_op("in a transaction", 0)).commit().block().unwrap();
    let delivery = taker.take().block().unwrap();
    delivery.ack_with([scoped.put_op("next", 0)]).block().unwrap();
    taker.take().block().unwrap().nack().block().unwrap();
    assert!(taker.try_take().block().unwrap().is_none(), "it was taken too often");
    let dead = session.queue(scoped.dead_letters().name().clone());
    assert_eq!(take(&dead), "next");
    assert_eq!(scoped.limit(3).name(), "app/jobs");
}

#[test]
fn item_put_by_another_client_is_taken() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    taker.put("later").priority(1).block().unwrap();
    cluster.client(0).put("jobs/item/from etcdctl", "hello").block().unwrap();
    assert_eq!([take(&taker), take(&taker)], ["hello", "later"]);
}

#[test]
fn takes_end_with_their_session_and_with_their_node() {
    let mut cluster = quick(1);
    let session = cluster.node(0).open_session().block().unwrap();
    let taker_of_session = session.queue("jobs");
    let first = thread::spawn(move || taker_of_session.take().block().unwrap_err());
    until_count(&cluster.client(0), "jobs/idle/", 1);
    session.close().block().unwrap();
    let ended = first.join().unwrap();
    assert!(matches!(ended, QueueError::SessionEnded(_)), "{ended:?}");
    let waiting = taker(&cluster, 0, "jobs");
    let second = thread::spawn(move || waiting.take().block().unwrap_err());
    until_count(&cluster.client(0), "jobs/idle/", 1);
    cluster.shutdown(0).block();
    assert_stopped(&second.join().unwrap());
}

#[test]
fn item_lost_before_delivery_is_not_taken() {
    let cluster = quick(1);
    let kv = cluster.client(0);
    let session = cluster.node(0).open_session().block().unwrap();
    let jobs = session.queue("jobs");
    let mut takes = Box::pin(jobs.take().into_future());
    assert!(takes.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    taker(&cluster, 0, "jobs").put("x").block().unwrap();
    until_count(&kv, "jobs/claim/", 1);
    // Once one more entry is applied, the waiting call has been notified of the previous entry.
    kv.put("later", "").block().unwrap();
    session.close().block().unwrap();
    let ended = takes.block().unwrap_err();
    assert!(matches!(ended, QueueError::SessionEnded(_)), "{ended:?}");
    assert_eq!(take(&taker(&cluster, 0, "jobs")), "x");
}

#[test]
fn consumer_continues_after_a_compaction() {
    let cluster = quick(1);
    let taker = taker(&cluster, 0, "jobs");
    let kv = cluster.client(0);
    taker.put("first").block().unwrap();
    assert_eq!(take(&taker), "first");
    // Write more events than a watch buffers.
    for n in 0..400 {
        taker.put(n.to_string()).block().unwrap();
    }
    kv.compact(kv.revision()).block().unwrap();
    for n in 0..400 {
        assert_eq!(take(&taker), n.to_string());
    }
    assert!(kv.revision() > Revision(1200));
}

#[test]
fn consumer_blocked_by_an_alarm_leaves_the_queue_and_takes_later() {
    let cluster = quick(2);
    let kv = cluster.client(0);
    kv.queue("jobs").put("one").block().unwrap();
    let delivery = taker(&cluster, 0, "jobs").take().block().unwrap();
    let waiting = taker(&cluster, 1, "jobs");
    let full = Alarm { member: None, kind: AlarmKind::NoSpace };
    thread::scope(|scope| {
        let refused = scope.spawn(|| waiting.take().block().unwrap_err());
        until_count(&kv, "jobs/idle/", 1);
        kv.change_alarms(AlarmChange::Raise(full)).block().unwrap();
        // Returning an item only deletes keys.
        delivery.nack().block().unwrap();
        let rejection = Error::Rejected(Rejection::Alarm(AlarmKind::NoSpace));
        assert_eq!(refused.join().unwrap(), QueueError::Store(rejection));
    });
    until_count(&kv, "jobs/idle/", 0);
    kv.change_alarms(AlarmChange::End(full)).block().unwrap();
    assert_eq!(take(&waiting), "one");
}

#[test]
fn item_returned_with_a_delay_keeps_its_position() {
    let cluster = quick(3);
    let (one, two) = (taker(&cluster, 0, "jobs"), taker(&cluster, 1, "jobs"));
    let kv = cluster.client(2);
    one.put("first").block().unwrap();
    let job = one.take().block().unwrap();
    one.put("second").block().unwrap();
    job.nack_after(Duration::from_millis(700)).block().unwrap();
    let state = |at: usize| two.items().block().unwrap()[at].state;
    assert_eq!((state(0), state(1)), (ItemState::Delayed, ItemState::Free));
    assert_eq!(take(&two), "second");
    let again = two.take().block().unwrap();
    assert_eq!((text(&again), again.attempt()), ("first".to_owned(), 2));
    // A delay of zero releases the item at once.
    again.nack_after(Duration::ZERO).block().unwrap();
    let again = two.take().block().unwrap();
    // A taker that has lost the item cannot delay it for its current taker.
    kv.delete(KeyRange::prefix("jobs/claim/")).block().unwrap();
    let another = one.take().block().unwrap();
    let late = again.nack_after(Duration::from_secs(600)).block();
    assert_eq!(late, Err(QueueError::ClaimLost));
    assert_eq!(count(&kv, "jobs/delay/"), 0);
    another.ack().block().unwrap();
    // If the call is dropped, the item is returned, now or after the delay.
    one.put("third").block().unwrap();
    let mut nack = Box::pin(one.take().block().unwrap().nack_after(Duration::from_millis(300)));
    assert!(nack.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(nack);
    assert_eq!(take(&two), "third");
    until_count(&kv, "jobs/delay/", 0);
}

#[test]
fn put_of_too_many_items_reports_items_and_delays() {
    let cluster = quick(1);
    let kv = cluster.client(0);
    let jobs = kv.queue("jobs");
    let (values, before) = (|count| vec!["x"; count], kv.leases().len());
    let error = jobs.put_many(values(129)).block().unwrap_err();
    assert_eq!(error, QueueError::TooManyItems { items: 129, max: 128, is_delayed: false });
    assert_eq!(
        error.to_string(),
        "not applied: too many items in one put: 129, at most 128; split them into several \
         calls, or raise Limits::txn_ops_max on all members"
    );
    assert_eq!((error.effect(), error.is_transient()), (Effect::NotApplied, false));
    let delay = Duration::from_secs(3600);
    let error = jobs.put_many(values(65)).delay(delay).block().unwrap_err();
    assert_eq!(error, QueueError::TooManyItems { items: 65, max: 64, is_delayed: true });
    let text = error.to_string();
    assert!(text.contains("too many items with a delay in one put: 65, at most 64;"), "{text}");
    assert_eq!((count(&kv, "jobs/"), kv.leases().len()), (0, before));
    jobs.put_many(values(128)).block().unwrap();
    jobs.put_many(values(64)).delay(delay).block().unwrap();
    assert_eq!(jobs.len().block().unwrap(), 192);
}
