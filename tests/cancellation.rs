//! Cancels lock requests at every possible point while messages are lost, and checks that no
//! request leaves a key behind. See `bowline::sim::run_cancellation`.
#![allow(clippy::print_stdout, reason = "what a reader of a run wants to see")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bowline::sim::{Break, Cancellation, Endings, LockAttemptKind, run_cancellation};

fn cases() -> Vec<Cancellation> {
    let mut cases = Vec::new();
    for attempt in LockAttemptKind::ALL {
        for breaks in Break::ALL {
            for (on_leader, held) in [(false, false), (false, true), (true, false), (true, true)] {
                let seed = 1 + cases.len() as u64;
                cases.push(Cancellation { seed, attempt, breaks, on_leader, held });
            }
        }
    }
    cases
}

#[test]
fn dropped_acquire_leaves_the_lock_to_the_next() {
    let (cases, next) = (cases(), AtomicUsize::new(0));
    let all = Mutex::new((BTreeMap::new(), Duration::ZERO));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let endings = run_cancellation(*case).unwrap_or_else(|why| {
                        next.store(cases.len(), Ordering::Relaxed);
                        panic!("{case:?}: {why}")
                    });
                    let mut all = all.lock().unwrap();
                    for (how, count) in endings.counts {
                        *all.0.entry(how).or_insert(0) += count;
                    }
                    all.1 = all.1.max(endings.longest);
                }
            });
        }
    });
    let (counts, longest) = all.into_inner().unwrap();
    println!("{counts:?}; the next one waited for {longest:?} at most");
    // Each outcome of a request must occur often enough for the test to be meaningful.
    for how in ["dropped", "refused", "held, released", "held, dropped", "held, release dropped"] {
        assert!(counts.get(how).is_some_and(|count| *count >= 20), "{how}: {counts:?}");
    }
}

#[test]
fn case_replays_to_the_same_trace() {
    let run = || -> Endings { run_cancellation(cases()[7]).unwrap() };
    assert_eq!(run().trace, run().trace);
}
