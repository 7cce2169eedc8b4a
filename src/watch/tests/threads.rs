//! Tests with real threads: one thread publishes while other threads watch, wait, stall, drop and
//! resume. Also tests of wakers.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::World;
use crate::model::{Event, KeyRange, Op, Revision};
use crate::watch::{WatchBatch, WatchError, WatchLimits, WatchRequest, Watcher};

const CHANGES: u64 = 4_000;
const CONSUMERS: u64 = 6;
/// Far longer than the test takes: a thread that sleeps this long was not woken.
const LOST: Duration = Duration::from_secs(30);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let deadline = Instant::now() + LOST;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park_timeout(LOST);
        assert!(Instant::now() < deadline, "a wake-up was lost");
    }
}

fn recv(watcher: &mut Watcher) -> WatchBatch {
    block_on(watcher.recv()).expect("not ended").expect("not failed")
}

#[test]
fn threads_that_race_see_every_change_once_and_whole() {
    let limits = WatchLimits { queue_revisions_max: 8, ..WatchLimits::default() };
    let world = World::new(limits);
    let last = Revision(CHANGES + 1);
    let reached = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..CONSUMERS {
            let (world, reached) = (&world, &reached);
            scope.spawn(move || consume(world, number, last, reached));
        }
        for at in 0..CHANGES {
            // Several events per revision, in several ranges.
            let put = |key: &str| Op::put(format!("{key}/{}", at % 7), at.to_string());
            let ops =
                if at % 3 == 0 { vec![put("a"), put("b"), put("a/x")] } else { vec![put("a")] };
            let mut store = world.store();
            if at % 128 == 60 {
                // These changes come with the state of another replica.
                store.install(|store| store.apply(ops));
                store.installed(&world.hub);
                continue;
            }
            store.apply(ops);
            if at % 2 == 1 || at + 1 == CHANGES {
                store.publish(&world.hub);
            }
            drop(store);
            if at % 64 == 0 {
                // Pause now and then, so that the watchers catch up and are live about as often as
                // behind.
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    assert_eq!(reached.into_inner(), CONSUMERS);
    assert_eq!(world.hub.live(), 0);
    assert_eq!(Arc::strong_count(&world.hub), 1);
}

/// Follows the stream to its end, sometimes with a new watch, sometimes slowly.
fn consume(world: &World, number: u64, last: Revision, reached: &AtomicU64) {
    let range =
        [KeyRange::prefix("a"), KeyRange::all(), KeyRange::key("a/3")][number as usize % 3].clone();
    let request = WatchRequest { from: Some(Revision(2)), ..WatchRequest::new(range.clone()) };
    let mut watcher = world.hub.watch(request.clone());
    let mut found: Vec<Event> = Vec::new();
    let mut through = Revision(1);
    for round in 1u64.. {
        // A watcher whose range has no change in the last revision reaches that revision only if it
        // requests progress.
        if world.hub.visible() == last {
            watcher.request_progress();
        }
        let batch = if range.as_single().is_some() {
            // A watcher of a single key is not woken for the last revision, so poll it.
            match watcher.try_recv() {
                Poll::Ready(batch) => batch.expect("not ended").expect("not failed"),
                Poll::Pending => {
                    thread::yield_now();
                    continue;
                }
            }
        } else {
            recv(&mut watcher)
        };
        assert!(batch.revision >= through, "{} after {through}", batch.revision);
        assert!(batch.events.iter().all(|event| event.revision() > through), "a torn revision");
        assert!(batch.events.iter().all(|event| event.revision() <= batch.revision));
        through = batch.revision;
        found.extend(batch.events);
        if through == last {
            break;
        }
        if round % (11 + number) == 0 {
            let from = Some(watcher.resume());
            drop(watcher);
            watcher = world.hub.watch(WatchRequest { from, ..request.clone() });
        }
        if round % 32 == number {
            thread::sleep(Duration::from_millis(2));
        }
    }
    drop(watcher);
    let store = world.store();
    let truth = store.log.iter().flat_map(|change| change.events().iter());
    let truth: Vec<Event> = truth
        .filter(|event| range.contains(&event.kv.key))
        .map(|event| Event { prev: None, ..event.clone() })
        .collect();
    assert!(found == truth, "{} events of {}", found.len(), truth.len());
    reached.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn waiting_consumer_is_woken_by_each_racing_change() {
    const ROUNDS: u64 = 5_000;
    let world = World::new(WatchLimits::default());
    let mut watcher = world.hub.watch(WatchRequest::new("k"));
    let mut store = world.store();
    (0..ROUNDS).for_each(|at| store.apply(vec![Op::put("k", at.to_string())]));
    let turn = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for (at, change) in (0..).zip(&store.log) {
                let deadline = Instant::now() + 2 * LOST;
                for spins in 0u64.. {
                    if turn.load(Ordering::Acquire) == at {
                        break;
                    }
                    std::hint::spin_loop();
                    if spins % 1_000 == 999 {
                        assert!(Instant::now() < deadline, "the consumer sleeps");
                        thread::yield_now();
                    }
                }
                // Wait a little longer in each round, so that the publication happens before,
                // while, or after the other thread checks and parks.
                (0..at % 509).for_each(|_| std::hint::spin_loop());
                world.hub.publish(std::slice::from_ref(change), change.revision());
            }
        });
        for at in 0..ROUNDS {
            let batch = recv(&mut watcher);
            assert_eq!((batch.events.len(), batch.revision), (1, Revision(at + 2)));
            turn.store(at + 1, Ordering::Release);
        }
    });
}

/// A publication to thousands of watchers takes a while. In each round, the first watcher looks for
/// changes at another moment of the publication. The watcher must then either find the change or be
/// woken.
#[test]
fn large_publication_wakes_every_watcher() {
    const WATCHERS: usize = 5_000;
    const ROUNDS: u64 = 600;
    const MOMENTS: u32 = 97;
    let world = World::new(WatchLimits::default());
    let watch = || world.hub.watch(WatchRequest::new("k"));
    let mut first = watch();
    let mut others: Vec<Watcher> = (1..WATCHERS).map(|_| watch()).collect();
    let mut store = world.store();
    (0..ROUNDS).for_each(|at| store.apply(vec![Op::put("k", at.to_string())]));
    let [asked, begun, done] = [const { AtomicU64::new(0) }; 3];
    let reaches = |counter: &AtomicU64, round: u64| {
        let deadline = Instant::now() + LOST;
        for spins in 1u64.. {
            if counter.load(Ordering::Acquire) >= round {
                return;
            }
            std::hint::spin_loop();
            if spins.is_multiple_of(1_000) {
                assert!(Instant::now() < deadline, "the other thread has fallen");
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for (round, change) in (1..).zip(&store.log) {
                reaches(&asked, round);
                begun.store(round, Ordering::Release);
                world.hub.publish(std::slice::from_ref(change), change.revision());
                done.store(round, Ordering::Release);
            }
        });
        let mut span = Duration::from_millis(1);
        for round in 1..=ROUNDS {
            asked.store(round, Ordering::Release);
            reaches(&begun, round);
            let began = Instant::now();
            let moment = span * (round as u32 % MOMENTS) / MOMENTS;
            while began.elapsed() < moment {
                std::hint::spin_loop();
            }
            let (woken, waker) = counting(false);
            let look = first.poll_recv(&mut Context::from_waker(&waker));
            reaches(&done, round);
            span = began.elapsed().min(Duration::from_millis(5));
            if look.is_pending() {
                let woken = woken.woken.load(Ordering::Relaxed);
                assert_eq!(woken, 1, "change {round} was published, and its watcher sleeps");
                assert_eq!(recv(&mut first).events.len(), 1);
            }
            if round.is_multiple_of(100) {
                others.iter_mut().for_each(|other| drop(recv(other)));
            }
        }
    });
}

#[test]
fn revision_is_whole_for_a_concurrent_reader() {
    const ROUNDS: u64 = 20;
    const KEYS: usize = 3_000;
    let world = World::new(WatchLimits::default());
    let mut watcher = world.hub.watch(WatchRequest::new(KeyRange::prefix("k")));
    let last = Revision(ROUNDS + 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                world.change((0..KEYS).map(|key| Op::put(format!("k{key}"), "")).collect());
            }
        });
        let mut seen = 0;
        while watcher.resume() <= last {
            match watcher.try_recv() {
                Poll::Ready(batch) => {
                    let batch = batch.expect("not ended").expect("not failed");
                    seen += batch.events.len();
                    assert_eq!(seen, KEYS * (batch.revision.0 as usize - 1), "a torn revision");
                }
                Poll::Pending => std::hint::spin_loop(),
            }
        }
        assert_eq!(seen, KEYS * ROUNDS as usize);
    });
}

#[test]
fn hub_can_be_closed_after_a_driver_panic() {
    let world = World::new(WatchLimits::default());
    let mut watcher = world.hub.watch(WatchRequest::new("k"));
    let mut store = world.store();
    store.apply(vec![Op::put("k", "1")]);
    store.apply(vec![Op::put("k", "2")]);
    let gap = [store.log[0].clone(), store.log[0].clone()];
    let driver = || world.hub.publish(&gap, Revision(3));
    assert!(catch_unwind(AssertUnwindSafe(driver)).is_err());
    assert!(watcher.try_recv().is_pending(), "nothing was pushed");
    world.hub.close("the driver panicked");
    let Poll::Ready(Some(Err(WatchError::Closed { resume, .. }))) = watcher.try_recv() else {
        panic!("not closed")
    };
    assert_eq!(resume, Revision(2));
}

#[test]
fn close_wakes_waiters() {
    let world = World::new(WatchLimits::default());
    thread::scope(|scope| {
        let mut watcher = world.hub.watch(WatchRequest::new("k"));
        let waiter = scope.spawn(move || block_on(watcher.recv()));
        thread::sleep(Duration::from_millis(5));
        world.hub.close("a test");
        let end = waiter.join().unwrap();
        let closed = WatchError::Closed { resume: Revision(2), why: "a test".into() };
        assert_eq!(end, Some(Err(closed)));
    });
}

/// A waker that counts its wake-ups, and panics at each one if configured.
struct Counting {
    woken: AtomicUsize,
    panics: bool,
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        if self.panics {
            std::panic::resume_unwind(Box::new("the host's executor is broken"));
        }
    }
}

fn counting(panics: bool) -> (Arc<Counting>, Waker) {
    let counting = Arc::new(Counting { woken: AtomicUsize::new(0), panics });
    (Arc::clone(&counting), Waker::from(counting))
}

#[test]
fn publication_wakes_each_matching_watcher_once() {
    let world = World::new(WatchLimits::default());
    let mut one = world.hub.watch(WatchRequest::new(KeyRange::prefix("a")));
    let mut other = world.hub.watch(WatchRequest::new("z"));
    let (woken, waker) = counting(false);
    let (idle, idle_waker) = counting(false);
    assert!(one.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    assert!(other.poll_recv(&mut Context::from_waker(&idle_waker)).is_pending());
    let mut store = world.store();
    store.apply(vec![Op::put("a1", "x"), Op::put("a2", "x")]);
    store.apply(vec![Op::put("a3", "x")]);
    store.publish(&world.hub);
    drop(store);
    assert_eq!(woken.woken.load(Ordering::Relaxed), 1);
    assert_eq!(idle.woken.load(Ordering::Relaxed), 0);
    let mut context = Context::from_waker(&waker);
    let Poll::Ready(Some(Ok(batch))) = Pin::new(&mut one).poll_next(&mut context) else { panic!() };
    assert_eq!(batch.events.len(), 3);
}

#[test]
fn panicking_waker_affects_neither_the_driver_nor_others() {
    let world = World::new(WatchLimits::default());
    let mut bad = world.hub.watch(WatchRequest::new("k"));
    let mut good = world.hub.watch(WatchRequest::new("k"));
    let (broken, broken_waker) = counting(true);
    let (sound, sound_waker) = counting(false);
    assert!(bad.poll_recv(&mut Context::from_waker(&broken_waker)).is_pending());
    assert!(good.poll_recv(&mut Context::from_waker(&sound_waker)).is_pending());
    world.change(vec![Op::put("k", "v")]);
    assert_eq!(broken.woken.load(Ordering::Relaxed), 1);
    assert_eq!(sound.woken.load(Ordering::Relaxed), 1);
    assert_eq!(recv(&mut bad), recv(&mut good));
}

#[test]
fn a_dropped_call_loses_nothing_and_a_dropped_watcher_leaves_nothing() {
    let world = World::new(WatchLimits::default());
    let mut watcher = world.hub.watch(WatchRequest::new("k"));
    let (woken, waker) = counting(false);
    {
        let mut call = pin!(watcher.recv());
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        world.change(vec![Op::put("k", "v")]);
    }
    assert_eq!(recv(&mut watcher).events.len(), 1);
    let mut call = Box::pin(watcher.recv());
    assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(call);
    drop(watcher);
    drop(waker);
    assert_eq!(world.hub.live(), 0);
    assert_eq!(Arc::strong_count(&woken), 1, "the hub keeps a waker of nobody");
}

#[test]
fn watcher_is_send_and_sync() {
    fn is<T: Send + Sync + 'static>() {}
    is::<Watcher>();
    is::<crate::watch::Hub>();
}
