//! The toolbox of coordination on real nodes in one process: latches, barriers, counters, cells,
//! sequences, groups; contended, dropped in the middle, and with members that crash.

use std::collections::BTreeSet;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use bowline::testing::{Cluster, ClusterOptions};
use bowline::{
    BarrierError, CounterError, DoubleBarrier, DoubleBarrierError, Effect, Error, Expected,
    GroupError, GroupEvent, GroupWatch, KeyRange, LatchError, Node, Revision, RunOnceError,
    SequenceError, SessionEnd, Swap, Wait,
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// Elections take little; sessions are long enough for a busy machine.
fn quick(members: usize) -> Cluster {
    ClusterOptions::new(members)
        .configure(|config| {
            config
                .heartbeat(Duration::from_millis(20))
                .election_timeout(Duration::from_millis(150))
                .session_ttl(Duration::from_secs(3))
        })
        .start()
        .wait()
        .expect("the cluster starts")
}

fn deadline<T>(effect: Effect) -> Result<T, Error> {
    Err(Error::Deadline { effect })
}

type Running<F> = Pin<Box<<F as IntoFuture>::IntoFuture>>;

/// Polls a call once.
fn begin<F: IntoFuture>(call: F) -> Running<F> {
    let mut future = Box::pin(call.into_future());
    assert!(poll(&mut future).is_pending(), "it has to wait");
    future
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a call until it has looked at the store and waits for others.
fn begin_to_wait<F: IntoFuture>(node: &Node, call: F) -> Running<F> {
    let mut future = begin(call);
    // Reads are answered in the order in which they are asked.
    node.client().get("nothing").wait().unwrap();
    assert!(poll(&mut future).is_pending(), "it has to wait");
    future
}

/// Waits until there are so many keys below a prefix, as a node sees it.
fn wait_for_keys(node: &Node, prefix: &'static str, count: u64) {
    let (kv, range) = (node.client(), KeyRange::prefix(prefix));
    let mut watch = kv.watch(range.clone()).wait().unwrap();
    while kv.range(range.clone()).local().wait().unwrap().count != count {
        watch.next().wait().unwrap().unwrap();
    }
}

/// Runs `work` on each of the members, `tasks` times at once, and collects what they come to.
fn on_all<T: Send>(
    cluster: &Cluster,
    tasks: usize,
    work: impl Fn(&Node, usize) -> Vec<T> + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let spawn = |(_, node)| (0..tasks).map(move |task| scope.spawn(move || work(node, task)));
        let threads: Vec<_> = cluster.running().flat_map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn every_sum_is_given_once_whoever_adds_at_the_same_time() {
    let cluster = quick(3);
    let counters: Vec<_> =
        cluster.running().map(|(_, node)| node.client().counter("visits")).collect();
    let of = |node: &Node| counters[node.status().id.get() as usize - 1].clone();
    let sums = on_all(&cluster, 8, |node, _| {
        (0..10).map(|_| of(node).increment().deadline(LONG).wait().unwrap()).collect()
    });
    let distinct: BTreeSet<i64> = sums.iter().copied().collect();
    assert_eq!(distinct, (1..=240).collect());
    assert_eq!(counters[1].get().wait(), Ok(240));
}

#[test]
fn who_adds_on_the_leaders_node_all_the_time_does_not_starve_the_others() {
    let cluster = quick(3);
    let leader = cluster.leader().wait().unwrap();
    let (far, near) = (cluster.node((leader + 1) % 3), cluster.node(leader));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let counter = near.client().counter("n");
            while !is_done.load(Ordering::Relaxed) {
                counter.increment().deadline(LONG).wait().unwrap();
            }
        });
        let counter = far.client().counter("n");
        for _ in 0..20 {
            counter.increment().wait().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_counter_ends_where_numbers_do_and_takes_nothing_else_for_one() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let counter = kv.counter("n");
    assert_eq!(counter.get().wait(), Ok(0));
    assert_eq!(counter.add(-5).wait(), Ok(-5));
    assert_eq!(counter.add(0).wait(), Ok(-5));
    assert_eq!(counter.set(i64::MAX - 1).wait(), Ok(()));
    assert_eq!(counter.increment().wait(), Ok(i64::MAX));
    let overflow = CounterError::Overflow { value: i64::MAX, add: 1 };
    assert_eq!(counter.increment().wait(), Err(overflow));
    assert_eq!(
        counter.compare_and_set(0, 1).wait(),
        Err(CounterError::Changed { value: i64::MAX })
    );
    assert_eq!(counter.compare_and_set(i64::MAX, 7).wait(), Ok(()));
    assert_eq!(counter.get().wait(), Ok(7));
    kv.delete("n").wait().unwrap();
    assert_eq!(counter.compare_and_set(0, 3).wait(), Ok(()), "what is not there is 0");
    kv.put("n", "three").wait().unwrap();
    let foreign = CounterError::NotANumber("three".into());
    assert_eq!(counter.add(1).wait(), Err(foreign.clone()));
    assert_eq!(counter.compare_and_set(3, 4).wait(), Err(foreign));
}

#[test]
fn what_a_counter_says_was_added_was_added_over_crashes_of_leaders_too() {
    let mut cluster = quick(3);
    let client = |cluster: &Cluster, member| cluster.node(member).client().counter("n");
    let leader = cluster.leader().wait().unwrap();
    let counters: Vec<_> = (0..3).map(|member| client(&cluster, member)).collect();
    let (added, unknown) = thread::scope(|scope| {
        let count = |counter: bowline::Counter| {
            let (mut added, mut unknown) = (0, 0);
            for _ in 0..60 {
                match counter.increment().deadline(LONG).wait() {
                    Ok(_) => added += 1,
                    Err(CounterError::Store(error)) if error.effect() == Effect::Unknown => {
                        unknown += 1;
                    }
                    Err(CounterError::Store(Error::Stopped { .. })) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            (added, unknown)
        };
        let threads: Vec<_> =
            counters.into_iter().map(|counter| scope.spawn(move || count(counter))).collect();
        cluster.kill(leader).wait();
        cluster.restart(leader).wait().unwrap();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.fold((0, 0), |sum, result| (sum.0 + result.0, sum.1 + result.1))
    });
    let value = client(&cluster, leader).get().wait().unwrap();
    assert!(added >= 120, "those who were not killed have added all: {added}");
    assert!((added..=added + unknown).contains(&value), "{added} {value} {unknown}");
}

#[test]
fn a_latch_is_counted_down_once_for_each_call_and_opens_at_the_last() {
    let cluster = quick(3);
    let latch = |node: &Node| node.client().latch("phase");
    assert_eq!(latch(cluster.node(0)).count_down().wait(), Ok(0), "at 0 it stays 0");
    assert_eq!(latch(cluster.node(0)).try_set(45).wait(), Ok(true));
    assert_eq!(latch(cluster.node(1)).try_set(9).wait(), Ok(false), "a round is under way");
    let left = thread::scope(|scope| {
        let waiters: Vec<_> = cluster
            .running()
            .map(|(_, node)| scope.spawn(move || latch(node).wait().deadline(LONG).wait()))
            .collect();
        let left = on_all(&cluster, 3, |node, _| {
            let latch = latch(node);
            (0..5).map(|_| latch.count_down().deadline(LONG).wait().unwrap()).collect()
        });
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
        left
    });
    let distinct: BTreeSet<u64> = left.into_iter().collect();
    assert_eq!(distinct, (0..45).collect());
    assert_eq!(latch(cluster.node(2)).try_set(1).wait(), Ok(true), "it can be used again");
    assert_eq!(latch(cluster.node(0)).count_down().wait(), Ok(0));
    let rows = cluster.node(0).client().range(KeyRange::all()).wait().unwrap();
    assert_eq!(rows.count, 0, "an open latch leaves nothing behind");
}

#[test]
fn who_waits_for_a_round_of_a_latch_is_not_caught_in_the_next() {
    let cluster = quick(3);
    let (here, there) = (cluster.node(0), cluster.node(1));
    let latch = there.client().latch("l");
    assert_eq!(latch.try_set(1).wait(), Ok(true));
    let mut waiting = begin_to_wait(here, here.client().latch("l").wait().deadline(LONG));
    let late = here.client().latch("l").wait().deadline(Duration::from_millis(50)).wait();
    assert_eq!(late, Err(LatchError::Store(deadline::<()>(Effect::NotApplied).unwrap_err())));
    assert_eq!(latch.count_down().wait(), Ok(0));
    assert_eq!(latch.try_set(5).wait(), Ok(true));
    assert_eq!(waiting.as_mut().wait(), Ok(()));
    here.client().put("l", "soon").wait().unwrap();
    let foreign = Err(LatchError::NotACount("soon".into()));
    assert_eq!(latch.count_down().wait().map(drop), foreign);
    assert_eq!(latch.wait().wait(), foreign);
    assert_eq!(latch.count().wait().map(drop), foreign);
}

#[test]
fn a_cell_is_changed_by_who_has_seen_it_last() {
    let cluster = quick(3);
    let cell = |member| cluster.node(member).client().cell("c");
    assert_eq!(cell(0).get().wait(), Ok(None));
    let first = cell(0).compare_and_set(Expected::Missing, "a").wait().unwrap();
    assert!(first.is_done());
    let seen = cell(1).get().wait().unwrap().unwrap();
    assert!(cell(1).compare_and_set(seen.version, "b").wait().unwrap().is_done());
    let late = cell(2).compare_and_set(seen.version, "c").wait().unwrap();
    assert!(matches!(&late, Swap::Lost { row: Some(row) } if row.value == "b"), "{late:?}");

    cell(0).set("").wait().unwrap();
    let written = on_all(&cluster, 2, |node, task| {
        let cell = node.client().cell("c");
        let update = |_| {
            let mut tries = 0;
            let name = format!("{}{task}", node.status().name);
            let call = cell.update(|old| {
                tries += 1;
                [old.unwrap(), name.as_bytes(), b" "].concat()
            });
            let written = call.deadline(LONG).wait().unwrap();
            assert!(tries > 0);
            written.version
        };
        (0..8).map(update).collect()
    });
    let distinct: BTreeSet<Revision> = written.iter().copied().collect();
    let value = cell(1).get().wait().unwrap().unwrap();
    assert_eq!((distinct.len(), Some(&value.version)), (48, distinct.last()));
    assert_eq!(value.value.split(|byte| *byte == b' ').count(), 48 + 1);
}

#[test]
fn who_waits_for_a_cell_to_change_sees_the_change() {
    let cluster = quick(3);
    let cell = |member| cluster.node(member).client().cell("c");
    let version = cell(0).set("old").wait().unwrap();
    let waiting = begin_to_wait(cluster.node(1), cell(1).changed(version).deadline(LONG));
    cell(0).set("new").wait().unwrap();
    assert_eq!(waiting.wait().unwrap().unwrap().value, "new");
    let none = cell(2).changed(Revision(0)).wait().unwrap();
    assert_eq!(none.unwrap().value, "new", "at once, if it is another one already");
}

#[test]
fn of_those_who_put_if_absent_one_wins_and_the_others_leave_no_lease() {
    let cluster = quick(3);
    let ttl = Duration::from_secs(3600);
    let wins = on_all(&cluster, 4, |node, task| {
        let call = node.client().put_if_absent("k", format!("{task}")).ttl(ttl);
        vec![call.deadline(LONG).wait().unwrap().is_done()]
    });
    assert_eq!(wins.iter().filter(|won| **won).count(), 1);
    let kv = cluster.node(0).client();
    let row = kv.get("k").wait().unwrap().unwrap();
    // Ended in the background, behind what was asked before it.
    let mut watch = kv.watch("mark").wait().unwrap();
    cluster.running().for_each(|(_, node)| {
        node.client().put("mark", "").wait().unwrap();
    });
    while kv.leases() != [row.lease.unwrap()] {
        watch.request_progress();
        watch.next().wait().unwrap().unwrap();
    }
    let endless = kv.put_if_absent("other", "v").wait().unwrap();
    assert!(endless.is_done());
    assert_eq!(kv.get("other").wait().unwrap().unwrap().lease, None);
    assert!(kv.delete("k").wait().unwrap().deleted == 1);
    assert!(kv.put_if_absent("k", "again").lease(row.lease.unwrap()).wait().unwrap().is_done());
}

#[test]
fn a_put_if_absent_that_is_dropped_leaves_neither_key_nor_lease() {
    let cluster = quick(3);
    let kv = cluster.node(1).client();
    let mut watch = kv.watch("mark").wait().unwrap();
    for polls in 1..40 {
        let call = kv.put_if_absent("k", "v").ttl(Duration::from_secs(3600));
        let mut future = Box::pin(call.into_future());
        let mut is_done = false;
        for _ in 0..polls {
            if let Poll::Ready(result) = poll(&mut future) {
                assert!(result.unwrap().is_done());
                assert!(kv.compare_and_delete("k", Expected::value("v")).wait().unwrap().is_done());
                let lease = kv.leases().into_iter().next().expect("it has a lease");
                kv.revoke(lease).wait().unwrap();
                is_done = true;
                break;
            }
            // Time for the node, by something that takes a commit.
            kv.put("mark", "").wait().unwrap();
            watch.next().wait().unwrap().unwrap();
        }
        drop(future);
        if is_done {
            assert!(polls > 2, "a grant and a put take some");
            return;
        }
        while !kv.leases().is_empty() || kv.get("k").local().wait().unwrap().is_some() {
            kv.put("mark", "").wait().unwrap();
            watch.next().wait().unwrap().unwrap();
        }
    }
    panic!("it is never done");
}

#[test]
fn a_conditional_change_is_made_only_if_the_key_is_as_expected() {
    let cluster = quick(1);
    let (kv, node) = (cluster.node(0).client().scoped("app/"), cluster.node(0));
    let lease = node.session().wait().unwrap().lease();
    let put = kv.put("k", "v").lease(lease).wait().unwrap().revision;
    for expected in
        [Expected::Missing, Expected::Version(2), Expected::value("w"), put.next().into()]
    {
        let lost = kv.compare_and_set("k", expected.clone(), "x").wait().unwrap();
        let Swap::Lost { row: Some(row) } = lost else { panic!("{expected:?} does not hold") };
        assert_eq!((row.key, row.value), ("k".into(), "v".into()));
        assert!(!kv.compare_and_delete("k", expected).wait().unwrap().is_done());
    }
    assert!(kv.compare_and_set("k", Expected::Version(1), "w").wait().unwrap().is_done());
    let row = kv.get("k").wait().unwrap().unwrap();
    assert_eq!((&row.value[..], row.lease), (&b"w"[..], Some(lease)), "its lease stays");
    assert!(kv.compare_and_delete("k", row.mod_revision).wait().unwrap().is_done());
    assert!(kv.compare_and_set("k", Revision(0), "new").wait().unwrap().is_done());
    assert_eq!(node.client().get("app/k").wait().unwrap().unwrap().value, "new");
}

#[test]
fn numbers_of_a_sequence_are_dense_and_never_given_twice() {
    let cluster = quick(3);
    let made = on_all(&cluster, 3, |node, task| {
        let jobs = node.client().sequential("jobs/j");
        let put = |_| jobs.put(format!("{task}")).deadline(LONG).wait().unwrap();
        (0..8).map(put).collect()
    });
    let numbers: BTreeSet<u64> = made.iter().map(|key| key.number).collect();
    assert_eq!(numbers, (0..72).collect());
    let kv = cluster.node(1).client();
    let rows = kv.range(KeyRange::prefix("jobs/")).wait().unwrap().kvs;
    let in_order: Vec<_> = (0..72).map(|number| format!("jobs/j{number:010}")).collect();
    assert_eq!(rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), in_order);
    assert!(rows.is_sorted_by_key(|row| row.create_revision), "keys are in the order of making");

    kv.delete(KeyRange::prefix("jobs/")).wait().unwrap();
    let jobs = kv.sequential("jobs/j");
    assert_eq!(jobs.put("").wait().unwrap().number, 72);
    kv.put("jobs/j0000000073", "by hand").wait().unwrap();
    assert_eq!(jobs.put("").wait().unwrap().number, 74);
    kv.put("__sequence/jobs/j", "9999999999").wait().unwrap();
    assert_eq!(jobs.put("").wait().unwrap().number, 9_999_999_999);
    assert_eq!(jobs.put("").wait(), Err(SequenceError::Exhausted));
    kv.put("__sequence/jobs/j", "one").wait().unwrap();
    assert_eq!(jobs.put("").wait(), Err(SequenceError::NotANumber("one".into())));
}

#[test]
fn a_sequential_key_that_is_bound_to_a_session_goes_with_it() {
    let mut cluster = quick(3);
    let node = cluster.node(0);
    let session = node.session().wait().unwrap();
    let line = node.client().scoped("app/").sequential("line/");
    let bound = line.put_bound("me", &session).wait().unwrap();
    assert_eq!((&bound.key[..], bound.number), (&b"line/0000000000"[..], 0));
    drop(begin(line.put_bound("dropped", &session)));
    let next = line.put_bound("next", &session).wait().unwrap();
    assert!(next.number <= 2, "the one that was dropped took a number, or none");
    wait_for_keys(node, "app/line/", 2);
    cluster.kill(0).wait();
    wait_for_keys(cluster.node(1), "app/line/", 0);
    let session = cluster.node(1).open_session().wait().unwrap();
    session.close().wait().unwrap();
    let late = cluster.node(1).client().sequential("line/").put_bound("", &session).wait();
    assert!(matches!(late, Err(SequenceError::Store(Error::SessionEnded(_)))), "{late:?}");
}

#[test]
fn a_barrier_lets_all_through_when_it_is_released_or_its_holder_crashes() {
    let mut cluster = quick(3);
    let gate = |member| cluster.node(member).client().barrier("gate");
    assert_eq!(gate(0).wait().wait(), Ok(()), "it is open");
    let session = cluster.node(0).session().wait().unwrap();
    let hold = gate(0).hold(&session).wait().unwrap();
    let held = gate(1).hold_unbound().wait().unwrap_err();
    let lease = Some(session.lease());
    assert_eq!(held, BarrierError::Held { since: hold.since(), lease });
    let mut waiting = begin_to_wait(cluster.node(1), gate(1).wait().deadline(LONG));
    assert_eq!(hold.release().wait(), Ok(true));
    let since = gate(2).hold_unbound().wait().unwrap();
    assert_eq!(waiting.as_mut().wait(), Ok(()), "also if it is held anew");
    let held = gate(0).hold(&session).wait().unwrap_err();
    assert_eq!(held, BarrierError::Held { since, lease: None });
    assert_eq!(gate(1).release().wait(), Ok(true));
    assert_eq!(gate(1).release().wait(), Ok(false));

    let hold = gate(0).hold(&session).wait().unwrap();
    let late = gate(1).wait().deadline(Duration::from_millis(50)).wait();
    assert_eq!(late, deadline(Effect::NotApplied));
    let waiting = begin_to_wait(cluster.node(1), gate(1).wait().deadline(LONG));
    cluster.kill(0).wait();
    assert_eq!(waiting.wait(), Ok(()), "the holder has crashed");
    drop(hold);
}

#[test]
fn a_hold_that_is_dropped_at_any_point_frees_the_barrier() {
    let cluster = quick(3);
    let node = cluster.node(1);
    let gate = node.client().barrier("gate");
    let session = node.session().wait().unwrap();
    drop(gate.hold(&session).wait().unwrap());
    assert_eq!(gate.wait().deadline(LONG).wait(), Ok(()));
    for _ in 0..20 {
        drop(begin(gate.hold(&session)));
        let other = cluster.node(0).client().barrier("gate");
        assert_eq!(other.wait().deadline(LONG).wait(), Ok(()));
    }
    cluster.partition(&[1]);
    let late = gate.hold(&session).deadline(Duration::from_millis(100)).wait().unwrap_err();
    assert_eq!(late, BarrierError::Store(deadline::<()>(Effect::NotApplied).unwrap_err()));
    cluster.heal();
    let other = cluster.node(0).client().barrier("gate");
    let session = cluster.node(0).session().wait().unwrap();
    wait_for_keys(node, "gate", 0);
    let hold = other.hold(&session).deadline(LONG).wait().unwrap();
    assert_eq!(hold.release().wait(), Ok(true));
}

/// The next event, as a word and what the member says of itself.
fn next(watch: &mut GroupWatch) -> (&'static str, String) {
    let (word, member) = match watch.next().wait().unwrap().unwrap() {
        GroupEvent::Joined(member) => ("joined", member),
        GroupEvent::Changed(member) => ("changed", member),
        GroupEvent::Left(member) => ("left", member),
    };
    (word, String::from_utf8(member.meta.to_vec()).unwrap())
}

#[test]
fn a_group_is_followed_through_joining_changing_leaving_and_crashing() {
    let mut cluster = quick(3);
    let group = |member| cluster.node(member).session().wait().unwrap().group("workers");
    let a = group(0).join("a").wait().unwrap();
    let b = group(1).join("b").wait().unwrap();
    let mut watch = group(2).watch();
    assert_eq!(next(&mut watch), ("joined", "a".into()));
    assert_eq!(next(&mut watch), ("joined", "b".into()));
    let c = group(2).join("c").wait().unwrap();
    assert_eq!(next(&mut watch), ("joined", "c".into()));
    b.update("b2").wait().unwrap();
    assert_eq!(next(&mut watch), ("changed", "b2".into()));
    let members = group(0).members().wait().unwrap();
    let metas: Vec<_> = members.iter().map(|member| &member.meta[..]).collect();
    assert_eq!(metas, [&b"a"[..], b"b2", b"c"]);
    assert_eq!((members[1].since, members[1].label.as_deref()), (b.since(), Some("m1")));
    assert_eq!(c.leave().wait(), Ok(true));
    assert_eq!(next(&mut watch), ("left", "c".into()));
    drop(b);
    assert_eq!(next(&mut watch), ("left", "b2".into()));
    cluster.kill(0).wait();
    assert_eq!(next(&mut watch), ("left", "a".into()), "by the end of its session");
    assert_eq!(watch.members().count(), 0);
    drop(a);
    cluster.shutdown(2).wait();
    assert!(matches!(watch.next().wait(), Some(Err(Error::Stopped { .. }))));
    assert!(watch.next().wait().is_none());
}

#[test]
fn one_session_may_be_in_a_group_more_than_once_and_a_dropped_joining_is_no_member() {
    let cluster = quick(3);
    let session = cluster.node(0).session().wait().unwrap();
    let group = session.group("g");
    let first = group.join("1").wait().unwrap();
    for _ in 0..10 {
        drop(begin(group.join("dropped")));
    }
    let second = group.join("2").wait().unwrap();
    wait_for_keys(cluster.node(0), "g/", 2);
    assert_ne!(first.key(), second.key());
    // Somebody throws it out.
    cluster.node(1).client().delete(first.key().clone()).wait().unwrap();
    assert_eq!(first.update("late").wait(), Err(GroupError::NotAMember));
    assert_eq!(first.leave().wait(), Ok(false));
    session.close().wait().unwrap();
    assert_eq!(group.members().wait().unwrap(), []);
    assert!(matches!(group.join("late").wait(), Err(Error::SessionEnded(_))));
}

#[test]
fn who_follows_a_group_and_falls_behind_compaction_hears_the_difference() {
    let cluster = quick(1);
    let session = cluster.node(0).session().wait().unwrap();
    let (group, kv) = (session.group("g"), cluster.node(0).client());
    let stays = group.join("stays").wait().unwrap();
    let leaves = group.join("leaves").wait().unwrap();
    let mut watch = group.watch();
    assert_eq!(next(&mut watch), ("joined", "stays".into()));
    assert_eq!(next(&mut watch), ("joined", "leaves".into()));
    leaves.leave().wait().unwrap();
    let comes = group.join("comes").wait().unwrap();
    // More than a watcher keeps.
    for i in 0..1000 {
        stays.update(i.to_string()).wait().unwrap();
    }
    kv.compact(kv.revision()).wait().unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&("changed", "999".to_owned())) {
        told.push(next(&mut watch));
    }
    assert!(
        told.contains(&("left", "leaves".into())) && told.contains(&("joined", "comes".into()))
    );
    assert!(told.len() < 1000, "it has fallen behind: {}", told.len());
    drop(comes);
}

fn step(cluster: &Cluster, member: usize, participants: usize) -> DoubleBarrier {
    cluster.node(member).session().wait().unwrap().double_barrier("step", participants)
}

#[test]
fn participants_begin_together_and_end_together_round_after_round() {
    const ROUNDS: usize = 6;
    let cluster = quick(3);
    let (come, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rounds = on_all(&cluster, 2, |node, _| {
        let step = node.session().wait().unwrap().double_barrier("step", 6);
        let round = |round| {
            come.fetch_add(1, Ordering::SeqCst);
            let inside = step.enter().deadline(LONG).wait().unwrap();
            assert!(come.load(Ordering::SeqCst) >= 6 * (round + 1), "all have come");
            done.fetch_add(1, Ordering::SeqCst);
            let number = inside.round();
            inside.leave().deadline(LONG).wait().unwrap();
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
fn a_cyclic_barrier_is_met_at_again_and_again() {
    const ROUNDS: usize = 10;
    let cluster = quick(3);
    let come = AtomicUsize::new(0);
    on_all(&cluster, 1, |node, _| {
        let step = node.session().wait().unwrap().double_barrier("step", 3);
        for round in 0..ROUNDS {
            come.fetch_add(1, Ordering::SeqCst);
            step.meet().deadline(LONG).wait().unwrap();
            assert!(come.load(Ordering::SeqCst) >= 3 * (round + 1), "all have come");
        }
        vec![()]
    });
    wait_for_keys(cluster.node(0), "", 0);
}

#[test]
fn one_too_many_and_one_who_counts_otherwise_are_told_and_leave() {
    let cluster = quick(3);
    let waiting = begin(step(&cluster, 0, 2).enter());
    wait_for_keys(cluster.node(1), "step/", 1);
    let mismatch = DoubleBarrierError::SizeMismatch { stored: "2".to_owned() };
    assert_eq!(step(&cluster, 1, 3).enter().wait().unwrap_err(), mismatch);
    wait_for_keys(cluster.node(1), "step/", 1);
    let one = step(&cluster, 1, 2).enter().deadline(LONG).wait().unwrap();
    let two = waiting.wait().unwrap();
    let full = DoubleBarrierError::Full { participants: 2 };
    assert_eq!(step(&cluster, 2, 2).enter().wait().unwrap_err(), full);
    drop(two);
    one.leave().deadline(LONG).wait().unwrap();
    wait_for_keys(cluster.node(1), "", 0);
    let late = step(&cluster, 2, 2).enter().deadline(Duration::from_millis(50)).wait();
    assert_eq!(late.unwrap_err(), DoubleBarrierError::Store(late_error()));
    drop(begin(step(&cluster, 2, 2).enter()));
    wait_for_keys(cluster.node(1), "", 0);
}

fn late_error() -> Error {
    Error::Deadline { effect: Effect::NotApplied }
}

#[test]
fn who_crashes_before_all_have_come_is_missing_and_can_be_replaced() {
    let mut cluster = quick(3);
    let first = begin(step(&cluster, 1, 3).enter().deadline(LONG));
    let crashes = begin(step(&cluster, 0, 3).enter());
    wait_for_keys(cluster.node(1), "step/", 2);
    cluster.kill(0).wait();
    assert!(crashes.wait().is_err());
    wait_for_keys(cluster.node(1), "step/", 1);
    let second = begin(step(&cluster, 2, 3).enter().deadline(LONG));
    wait_for_keys(cluster.node(1), "step/", 2);
    cluster.restart(0).wait().unwrap();
    let third = step(&cluster, 0, 3).enter().deadline(LONG).wait().unwrap();
    let (first, second) = (first.wait().unwrap(), second.wait().unwrap());
    assert_eq!((first.round(), second.round()), (third.round(), third.round()));
}

#[test]
fn who_crashes_inside_has_left_and_the_next_round_can_begin() {
    let mut cluster = quick(3);
    let enter = |cluster: &Cluster| {
        let enter = |member| {
            let call = step(cluster, member, 3).enter().deadline(LONG);
            thread::spawn(move || call.wait().unwrap())
        };
        let threads: Vec<_> = (0..3).map(enter).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    };
    let mut inside = enter(&cluster);
    let crashes = inside.remove(0);
    cluster.kill(0).wait();
    drop(inside.remove(0));
    inside.remove(0).leave().deadline(LONG).wait().unwrap();
    assert!(crashes.leave().wait().is_err(), "it has crashed");
    cluster.restart(0).wait().unwrap();
    wait_for_keys(cluster.node(1), "step/", 0);

    let inside = enter(&cluster);
    // All crash inside, as their sessions see it; what is left serves the next.
    for member in 0..3 {
        cluster.node(member).session().wait().unwrap().close().wait().unwrap();
    }
    for one in inside {
        let left = one.leave().wait().unwrap_err();
        assert!(matches!(left, DoubleBarrierError::Store(Error::SessionEnded(_))), "{left:?}");
    }
    wait_for_keys(cluster.node(1), "step/", 1);
    let inside = enter(&cluster);
    cluster.node(0).client().delete(KeyRange::prefix("step/")).wait().unwrap();
    for one in inside {
        assert_eq!(one.leave().wait(), Err(DoubleBarrierError::KeyDeleted));
    }
}

type Never = std::convert::Infallible;

#[test]
fn of_many_who_run_something_once_one_does_and_all_get_what_came_of_it() {
    let cluster = quick(3);
    let runs = AtomicUsize::new(0);
    let ran = on_all(&cluster, 4, |node, task| {
        let once = node.client().run_once("once", &node.session().wait().unwrap());
        let work = || async {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Never>(format!("{}{task}", node.status().name))
        };
        vec![once.run(work).deadline(LONG).wait().unwrap()]
    });
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(ran.iter().filter(|ran| ran.is_here).count(), 1);
    assert!(ran.iter().all(|other| other.result == ran[0].result));
    let node = cluster.node(2);
    let once = node.client().run_once("once", &node.session().wait().unwrap());
    assert_eq!(once.result().wait(), Ok(Some(ran[0].result.clone())));
    wait_for_keys(node, "once/", 0);
    assert_eq!(once.forget().wait(), Ok(true));
    assert!(once.run(|| async { Ok::<_, Never>("") }).wait().unwrap().is_here);
}

#[test]
fn who_fails_or_goes_away_in_the_middle_of_running_once_leaves_it_to_another() {
    let mut cluster = quick(3);
    let once = |cluster: &Cluster, member| {
        let node: &Node = cluster.node(member);
        node.client().run_once("once", &node.session().wait().unwrap())
    };
    let failed = once(&cluster, 0).run(|| async { Err::<&str, _>("no") }).wait();
    assert_eq!(failed, Err(RunOnceError::Failed("no")));
    let hangs = || std::future::pending::<Result<&str, Never>>();
    let late = once(&cluster, 1).run(hangs).deadline(Duration::from_millis(100)).wait();
    assert_eq!(late, Err(RunOnceError::Store(late_error())));

    // One runs when the session ends: it is stopped, and told.
    let node = cluster.node(2);
    let session = node.open_session().wait().unwrap();
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
        node.client().put("mark", "").wait().unwrap();
        assert!(poll(&mut running).is_pending());
    }
    session.close().wait().unwrap();
    let lost = Err(RunOnceError::Lost(bowline::Loss::SessionEnded(SessionEnd::Closed)));
    assert_eq!(running.wait(), lost);
    assert!(receiver.recv().is_err(), "the work was dropped");

    // One crashes while it runs.
    let node = cluster.node(0);
    let mut running = begin(once(&cluster, 0).run(hangs));
    while cluster.node(1).client().range(KeyRange::prefix("once/")).wait().unwrap().count == 0 {
        node.client().put("mark", "").wait().unwrap();
        assert!(poll(&mut running).is_pending());
    }
    let waiting = begin(once(&cluster, 1).run(|| async { Ok::<_, Never>("done") }).deadline(LONG));
    cluster.kill(0).wait();
    let ran = waiting.wait().unwrap();
    assert!(ran.is_here && ran.result == "done");
    assert!(running.wait().is_err());
}
