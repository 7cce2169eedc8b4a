//! Tests of races between real threads: when a task is woken, the change is visible on every thread, and no wake-up
//! is lost between a check and the wait after it.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use bowline::testing::Cluster;
use bowline::{Blocking, Client, Config, Error, KeyRange, Op, Revision};

use crate::stage::{self, SOON};

/// Records the revision that is visible to readers at the moment of waking, when the driver is in the middle of its
/// turn.
struct AtWaking {
    kv: Client,
    seen: AtomicU64,
    thread: Thread,
}

impl Wake for AtWaking {
    fn wake(self: Arc<Self>) {
        self.seen.store(self.kv.revision().get(), Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Returns an answer, and the revision that was visible when its caller was woken. The revision is `None` if the
/// answer was immediate.
fn woken<C: IntoFuture>(kv: &Client, call: C) -> (C::Output, Option<Revision>) {
    let thread = thread::current();
    let waking = Arc::new(AtWaking { kv: kv.clone(), seen: AtomicU64::new(0), thread });
    let waker = Waker::from(Arc::clone(&waking));
    let (mut future, begun) = (pin!(call.into_future()), Instant::now());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => {
                let seen = waking.seen.load(Ordering::SeqCst);
                return (answer, (seen > 0).then_some(Revision(seen)));
            }
            Poll::Pending => thread::park_timeout(SOON),
        }
        assert!(begun.elapsed() < SOON, "a wake-up was lost");
    }
}

/// Counts the wake-ups at which the change was visible.
#[derive(Default)]
struct Visible(AtomicU64);

impl Visible {
    fn check(&self, what: &str, seen: Option<Revision>, owed: Revision) {
        let Some(seen) = seen else { return };
        assert!(seen >= owed, "{what} at {owed} woke its caller while readers saw {seen}");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn results_are_visible_when_their_callers_are_woken() {
    const ROUNDS: usize = 150;
    let cluster = stage::lasting(3);
    let [writes, reads, watches, views, locks] = std::array::from_fn(|_| Visible::default());
    let is_over = AtomicBool::new(false);
    // The newest value that a caller has seen, which later linearizable reads must return.
    let known = AtomicU64::new(0);
    thread::scope(|scope| {
        let writers: Vec<_> = cluster
            .running()
            .map(|(member, node)| {
                let (writes, reads, locks, known) = (&writes, &reads, &locks, &known);
                scope.spawn(move || {
                    let (kv, session) = (node.client(), node.session().block().unwrap());
                    for round in 0..ROUNDS {
                        let (reply, seen) =
                            woken(&kv, kv.put(format!("k/{member}"), round.to_string()));
                        let revision = reply.unwrap().revision;
                        writes.check("a write", seen, revision);
                        known.fetch_max(revision.get(), Ordering::SeqCst);
                        let owed = Revision(known.load(Ordering::SeqCst));
                        let (reply, seen) = woken(&kv, kv.range(KeyRange::prefix("k/")));
                        assert!(reply.unwrap().revision >= owed);
                        reads.check("a read", seen, owed);
                        if round % 5 == 0 {
                            let (guard, seen) = woken(&kv, session.mutex("lock").lock());
                            let guard = guard.unwrap();
                            locks.check("a lock", seen, guard.token().revision());
                            guard.release().block().unwrap();
                        }
                    }
                })
            })
            .collect();
        for (_, node) in cluster.running() {
            let (watches, views, is_over) = (&watches, &views, &is_over);
            scope.spawn(move || {
                let kv = node.client();
                let mut watch = kv.watch(KeyRange::prefix("k/")).block().unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    let (batch, seen) = woken(&kv, watch.next());
                    // The wake-up was for the first event. More events may have arrived since.
                    let owed = batch.unwrap().unwrap().events[0].revision();
                    watches.check("a watch", seen, owed);
                }
            });
            scope.spawn(move || {
                let kv = node.client();
                let mut cached = kv.cached_prefix("k/").block().unwrap();
                while !is_over.load(Ordering::SeqCst) {
                    let (view, seen) = woken(&kv, cached.changed());
                    // The view may include changes that came after the wake-up.
                    let _ = view.unwrap();
                    views.check("a view", seen, Revision(1));
                }
            });
        }
        for writer in writers {
            writer.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        cluster.node(0).client().put("k/last", "").block().unwrap();
    });
    for (what, visible) in [
        ("writes", writes),
        ("reads", reads),
        ("watches", watches),
        ("views", views),
        ("locks", locks),
    ] {
        let woken = visible.0.into_inner();
        assert!(woken > 20, "{woken} {what} were waited for");
    }
}

/// The writer continues when all followers have seen its last write, so that each change races with followers that
/// start to wait.
#[test]
fn all_followers_of_a_view_are_notified_of_each_change() {
    const ROUNDS: u64 = 400;
    const FOLLOWERS: usize = 4;
    let cluster = stage::lasting(1);
    let kv = cluster.node(0).client();
    let cached = kv.cached_prefix("c/").block().unwrap();
    let reached = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..FOLLOWERS {
            let (kv, mut cached, reached) = (kv.clone(), cached.clone(), &reached);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    loop {
                        let (view, _) = woken(&kv, cached.changed());
                        let view = view.unwrap();
                        let value = view.get("c/k").map(|row| row.value.clone());
                        if value.is_some_and(|value| value == round.to_string()) {
                            break;
                        }
                    }
                    reached.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 1..=ROUNDS {
            kv.put("c/k", round.to_string()).block().unwrap();
            let begun = Instant::now();
            while reached.load(Ordering::SeqCst) < round * FOLLOWERS as u64 {
                assert!(begun.elapsed() < SOON, "a follower missed change {round}");
                thread::yield_now();
            }
        }
    });
}

/// On many threads at once, calls of all kinds are answered, rejected as busy, or dropped early.
/// Afterwards no counter may be left above zero.
#[test]
fn admission_counters_return_to_zero() {
    const CALLS: usize = 400;
    let limits = |config: Config| config.open_writes_max(4, 1 << 20).open_reads_max(4);
    let cluster = stage::lasting_with(3, limits);
    let [answered, busy, dropped] = std::array::from_fn(|_| AtomicU64::new(0));
    let count = |call: Result<(), Error>| match call {
        Ok(()) => answered.fetch_add(1, Ordering::Relaxed),
        Err(Error::Busy) => busy.fetch_add(1, Ordering::Relaxed),
        Err(error) => panic!("{error}"),
    };
    thread::scope(|scope| {
        for (member, node) in cluster.running() {
            for thread in 0..4 {
                let (count, dropped) = (&count, &dropped);
                scope.spawn(move || {
                    let kv = node.client();
                    for call in 0..CALLS {
                        let key = format!("{member}/{thread}");
                        match call % 4 {
                            0 => count(kv.put(key, "v").block().map(drop)),
                            1 => count(kv.get(key).block().map(drop)),
                            2 => count(kv.txn().then(Op::delete(key)).commit().block().map(drop)),
                            _ => {
                                stage::give_up(kv.put(key.clone(), "v"));
                                stage::give_up(kv.get(key));
                                dropped.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                    }
                });
            }
        }
    });
    for counted in [&answered, &busy, &dropped] {
        assert!(counted.load(Ordering::Relaxed) > 0, "{answered:?} {busy:?} {dropped:?}");
    }
    for (member, node) in cluster.running() {
        let open = || node.metrics().snapshot();
        stage::until_true(node, "nothing is open", || {
            open().open_bytes == 0 && open().open_requests == 0 && open().open_reads == 0
        });
        // The whole limit is available again.
        let kv = node.client();
        let mut calls: Vec<_> = (0..4)
            .map(|call| stage::Begun::asked(kv.put(format!("{member}/{call}"), "v")))
            .collect();
        while let Some(call) = calls.pop() {
            call.finish().unwrap();
        }
    }
}

/// Maximum number of wake-ups of the driver and log threads of three members for one put of one caller. The leader needs
/// about four: for the call, for its log, for the synced entry and for an acknowledgement. Each follower needs about
/// four: for the entry, for its log, for the synced entry and for the commit.
const WAKEUPS_PER_PUT_MAX: u64 = 16;

#[test]
fn put_of_one_caller_wakes_few_threads() {
    const PUTS: u64 = 500;
    let cluster = Cluster::start(3).block().unwrap();
    let leader = cluster.leader().block().unwrap();
    let kv = cluster.node(leader).client();
    let wakeups = || -> u64 {
        let of = |node: usize| cluster.node(node).metrics().snapshot().wakeups_total;
        (0..3).flat_map(of).map(|(_, woken)| woken).sum()
    };
    let before = wakeups();
    for _ in 0..PUTS {
        kv.put("k", "v").block().unwrap();
    }
    let woken = wakeups() - before;
    assert!(woken >= 2 * PUTS, "{woken} wake-ups for {PUTS} puts cannot be right");
    assert!(woken <= WAKEUPS_PER_PUT_MAX * PUTS, "{woken} wake-ups for {PUTS} puts");
}

/// Maximum number of voluntary context switches of three members and their caller for one put, if nothing else runs.
const SWITCHES_PER_PUT_MAX: u64 = 40;

/// Returns the voluntary context switches of all threads of this process.
#[cfg(target_os = "linux")]
fn context_switches() -> u64 {
    let of = |status: String| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.and_then(|count| count.trim().parse::<u64>().ok())
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    threads
        .map(|thread| thread.unwrap().path().join("status"))
        .filter_map(|path| std::fs::read_to_string(path).ok().and_then(of))
        .sum()
}

/// Counts in a process of its own, because other tests run in this one.
#[allow(clippy::print_stdout, reason = "the figures are worth reading")]
#[cfg(target_os = "linux")]
#[test]
fn put_of_one_caller_switches_few_contexts() {
    const PUTS: u64 = 500;
    const ALONE: &str = "BOWLINE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "threads::put_of_one_caller_switches_few_contexts";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let status = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    let cluster = Cluster::start(3).block().unwrap();
    let leader = cluster.leader().block().unwrap();
    let kv = cluster.node(leader).client();
    kv.put("k", "v").block().unwrap();
    let before = context_switches();
    for _ in 0..PUTS {
        kv.put("k", "v").block().unwrap();
    }
    let switches = context_switches() - before;
    println!("{switches} context switches for {PUTS} puts");
    assert!(switches >= 4 * PUTS, "{switches} context switches for {PUTS} puts cannot be right");
    assert!(switches <= SWITCHES_PER_PUT_MAX * PUTS, "{switches} context switches for {PUTS} puts");
}
