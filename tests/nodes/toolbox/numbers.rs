//! Tests of counters and sequential keys.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{
    Blocking, Effect, Error, KeyRange, Node,
    coordination::{CounterError, SequenceError},
};

use super::{LONG, give_up, on_all, quick, wait_for_keys};

#[test]
fn concurrent_increments_return_each_sum_once() {
    let cluster = quick(3);
    let counters: Vec<_> =
        cluster.running().map(|(_, node)| node.client().counter("visits")).collect();
    let of = |node: &Node| counters[node.status().id.get() as usize - 1].clone();
    let sums = on_all(&cluster, 8, |node, _| {
        (0..10).map(|_| of(node).increment().deadline(LONG).block().unwrap()).collect()
    });
    let distinct: BTreeSet<i64> = sums.iter().copied().collect();
    assert_eq!(distinct, (1..=240).collect());
    assert_eq!(counters[1].get().block(), Ok(240));
}

#[test]
fn busy_writer_on_the_leader_does_not_starve_others() {
    let cluster = quick(3);
    let leader = cluster.leader().block().unwrap();
    let (far, near) = (cluster.node((leader + 1) % 3), cluster.node(leader));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let counter = near.client().counter("n");
            while !is_done.load(Ordering::Relaxed) {
                counter.increment().deadline(LONG).block().unwrap();
            }
        });
        let counter = far.client().counter("n");
        for _ in 0..20 {
            counter.increment().block().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn counter_rejects_overflow_and_foreign_values() {
    let cluster = quick(1);
    let kv = cluster.node(0).client();
    let counter = kv.counter("n");
    assert_eq!(counter.get().block(), Ok(0));
    assert_eq!(counter.add(-5).block(), Ok(-5));
    assert_eq!(counter.add(0).block(), Ok(-5));
    assert_eq!(counter.set(i64::MAX - 1).block(), Ok(()));
    assert_eq!(counter.increment().block(), Ok(i64::MAX));
    let overflow = CounterError::Overflow { value: i64::MAX, add: 1 };
    assert_eq!(counter.increment().block(), Err(overflow));
    assert_eq!(
        counter.compare_and_set(0, 1).block(),
        Err(CounterError::Changed { value: i64::MAX })
    );
    assert_eq!(counter.compare_and_set(i64::MAX, 7).block(), Ok(()));
    assert_eq!(counter.get().block(), Ok(7));
    kv.delete("n").block().unwrap();
    assert_eq!(counter.compare_and_set(0, 3).block(), Ok(()), "what is not there is 0");
    kv.put("n", "three").block().unwrap();
    let foreign = CounterError::NotANumber("three".into());
    assert_eq!(counter.add(1).block(), Err(foreign.clone()));
    assert_eq!(counter.compare_and_set(3, 4).block(), Err(foreign));
}

#[test]
fn acknowledged_increments_survive_leader_crashes() {
    let mut cluster = quick(3);
    let client = |cluster: &Cluster, member| cluster.node(member).client().counter("n");
    let leader = cluster.leader().block().unwrap();
    let counters: Vec<_> = (0..3).map(|member| client(&cluster, member)).collect();
    let (added, unknown) = thread::scope(|scope| {
        let count = |counter: bowline::coordination::Counter| {
            let (mut added, mut unknown) = (0, 0);
            for _ in 0..60 {
                match counter.increment().deadline(LONG).block() {
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
        cluster.kill(leader).block();
        cluster.restart(leader).block().unwrap();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.fold((0, 0), |sum, result| (sum.0 + result.0, sum.1 + result.1))
    });
    let value = client(&cluster, leader).get().block().unwrap();
    assert!(added >= 120, "those who were not killed have added all: {added}");
    assert!((added..=added + unknown).contains(&value), "{added} {value} {unknown}");
}

#[test]
fn sequence_numbers_are_dense_and_unique() {
    let cluster = quick(3);
    let made = on_all(&cluster, 3, |node, task| {
        let jobs = node.client().sequential_prefix("jobs/j");
        let put = |_| jobs.put(format!("{task}")).deadline(LONG).block().unwrap();
        (0..8).map(put).collect()
    });
    let numbers: BTreeSet<u64> = made.iter().map(|key| key.number).collect();
    assert_eq!(numbers, (0..72).collect());
    let kv = cluster.node(1).client();
    let rows = kv.range(KeyRange::prefix("jobs/")).block().unwrap().kvs;
    let in_order: Vec<_> = (0..72).map(|number| format!("jobs/j{number:010}")).collect();
    assert_eq!(rows.iter().map(|row| row.key.clone()).collect::<Vec<_>>(), in_order);
    assert!(rows.is_sorted_by_key(|row| row.create_revision), "keys are in the order of making");

    kv.delete(KeyRange::prefix("jobs/")).block().unwrap();
    let jobs = kv.sequential_prefix("jobs/j");
    assert_eq!(jobs.put("").block().unwrap().number, 72);
    kv.put("jobs/j0000000073", "by hand").block().unwrap();
    assert_eq!(jobs.put("").block().unwrap().number, 74);
    kv.put("__sequence/jobs/j", "9999999999").block().unwrap();
    assert_eq!(jobs.put("").block().unwrap().number, 9_999_999_999);
    assert_eq!(jobs.put("").block(), Err(SequenceError::Exhausted));
    kv.put("__sequence/jobs/j", "one").block().unwrap();
    assert_eq!(jobs.put("").block(), Err(SequenceError::NotANumber("one".into())));
}

#[test]
fn sequential_key_bound_to_a_session_is_deleted_with_it() {
    let mut cluster = quick(3);
    let node = cluster.node(0);
    let session = node.session().block().unwrap();
    let line = node.client().with_prefix("app/").sequential_prefix("line/");
    let bound = line.put_bound("me", &session).block().unwrap();
    assert_eq!((&bound.key[..], bound.number), (&b"line/0000000000"[..], 0));
    give_up(line.put_bound("dropped", &session));
    let next = line.put_bound("next", &session).block().unwrap();
    assert!(next.number <= 2, "the one that was dropped took a number, or none");
    wait_for_keys(node, "app/line/", 2);
    cluster.kill(0).block();
    wait_for_keys(cluster.node(1), "app/line/", 0);
    let session = cluster.node(1).open_session().block().unwrap();
    session.close().block().unwrap();
    let late = cluster.node(1).client().sequential_prefix("line/").put_bound("", &session).block();
    assert!(matches!(late, Err(SequenceError::Store(Error::SessionEnded { .. }))), "{late:?}");
}

#[test]
fn undone_bound_key_may_have_used_a_number() {
    let cluster = quick(3);
    let node = cluster.node(0);
    let session = node.session().block().unwrap();
    let line = node.client().sequential_prefix("line/");
    line.put_bound("first", &session).block().unwrap();
    cluster.partition(&[0]);
    let late = line.put_bound("late", &session).deadline(Duration::from_millis(100)).block();
    let unknown = Error::Deadline { effect: Effect::Unknown };
    assert_eq!(late, Err(SequenceError::Store(unknown)));
    cluster.heal();
    line.put_bound("next", &session).block().unwrap();
    wait_for_keys(node, "line/", 2);
}
