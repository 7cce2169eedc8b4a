//! Measures the lock queue inside the node: tasks of one session use one lock that no other session
//! requests. For comparison, the same tasks use tokio's mutex, which is not distributed.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::bench::{Bench, Meter};
use crate::report::Row;
use crate::site::{Site, number};
use bowline_testkit::crew::member::cpu_of;
use bowline_testkit::crew::{Measured, together};

/// One of this many handoffs is timed. At a timed handoff the task also checks whether the
/// measurement has ended.
const TIMED: u64 = 64;

/// The runtime of the tasks.
#[derive(Clone, Copy)]
pub(crate) enum On {
    /// One thread.
    One,
    /// One thread for each core.
    Many,
}

/// The lock, and how it is released.
#[derive(Clone, Copy)]
pub(crate) enum Lock {
    /// A Bowline lock whose release is awaited.
    Released,
    /// A Bowline lock whose guard is dropped.
    Dropped,
    /// Tokio's mutex.
    Tokio,
}

impl FromStr for On {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "one" => Ok(On::One),
            "many" => Ok(On::Many),
            _ => Err(()),
        }
    }
}

impl FromStr for Lock {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "released" => Ok(Lock::Released),
            "dropped" => Ok(Lock::Dropped),
            "tokio" => Ok(Lock::Tokio),
            _ => Err(()),
        }
    }
}

/// The state that each holder changes. If two tasks held the lock at once, the counts would be
/// wrong.
#[derive(Default)]
struct Passed {
    holds: AtomicU64,
    /// Time of the last timed release, in nanoseconds since the start.
    released: AtomicU64,
    is_over: AtomicU64,
}

/// One hold of the lock.
struct Turn<'a> {
    passed: &'a Passed,
    begun: Instant,
    time: Duration,
    number: u64,
}

impl<'a> Turn<'a> {
    /// Begins a hold right after the lock was acquired.
    fn begin(passed: &'a Passed, begun: Instant, time: Duration, timed: &mut Measured) -> Self {
        let number = passed.holds.load(Ordering::Relaxed);
        if number % TIMED == 1 {
            let released = Duration::from_nanos(passed.released.load(Ordering::Relaxed));
            timed.add(begun.elapsed().saturating_sub(released));
        }
        Self { passed, begun, time, number }
    }

    /// Ends the hold right before the lock is released.
    fn end(self) {
        if self.number.is_multiple_of(TIMED) {
            let now = self.begun.elapsed();
            if now >= self.time {
                self.passed.is_over.store(1, Ordering::Relaxed);
            }
            let nanos = u64::try_from(now.as_nanos()).expect("not centuries");
            self.passed.released.store(nanos, Ordering::Relaxed);
        }
        self.passed.holds.store(self.number + 1, Ordering::Relaxed);
    }
}

/// In a member: lets tasks pass a lock on for `time`. Returns the number of holds, their CPU time in nanoseconds, and
/// the latencies that were timed.
pub(crate) async fn pass_on(
    site: &Arc<Site>,
    on: On,
    lock: Lock,
    tasks: u64,
    time: Duration,
) -> String {
    let mutex = site.session().await.mutex("inside");
    let (sender, receiver) = oneshot::channel();
    // A separate runtime from the one that this function runs on.
    let thread = thread::spawn(move || {
        let mut runtime = match on {
            On::One => Builder::new_current_thread(),
            On::Many => Builder::new_multi_thread(),
        };
        let runtime = runtime.enable_time().build().expect("a runtime");
        let (passed, tokio) = (Arc::new(Passed::default()), Arc::new(tokio::sync::Mutex::new(())));
        let (begun, cpu) = (Instant::now(), cpu_of("self"));
        // The sum of the holds that each task counts must equal the shared count.
        let counted = Arc::new(AtomicU64::new(0));
        let measured = runtime.block_on(together(tasks, |_| {
            let (mutex, tokio) = (mutex.clone(), Arc::clone(&tokio));
            let (passed, counted) = (Arc::clone(&passed), Arc::clone(&counted));
            async move {
                let (mut timed, mut holds) = (Measured::new(Duration::ZERO), 0);
                while passed.is_over.load(Ordering::Relaxed) == 0 {
                    match lock {
                        Lock::Released => {
                            let guard = mutex.lock().await.expect("a lock");
                            Turn::begin(&passed, begun, time, &mut timed).end();
                            let _ = guard.release().await.expect("a release");
                        }
                        Lock::Dropped => {
                            let guard = mutex.lock().await.expect("a lock");
                            Turn::begin(&passed, begun, time, &mut timed).end();
                            drop(guard);
                        }
                        Lock::Tokio => {
                            let guard = tokio.lock().await;
                            Turn::begin(&passed, begun, time, &mut timed).end();
                            drop(guard);
                        }
                    }
                    holds += 1;
                }
                counted.fetch_add(holds, Ordering::Relaxed);
                timed
            }
        }));
        let holds = passed.holds.load(Ordering::Relaxed);
        assert_eq!(holds, counted.load(Ordering::Relaxed), "two held at once");
        // The threads of the runtime still exist, so their time is included.
        let cpu = cpu_of("self").saturating_sub(cpu).as_nanos();
        let _ = sender.send(format!("{holds}|{cpu}|{}", measured.to_words()));
        drop(runtime);
    });
    let answer = receiver.await.expect("the thread answers");
    thread.join().expect("it ends");
    answer
}

/// Runs the rows of this module.
pub(crate) fn queue(bench: &mut Bench) -> Result<(), String> {
    for (on, threads) in [("one", "one thread"), ("many", "a thread for each core")] {
        for (lock, how) in
            [("released", ""), ("dropped", ", dropped"), ("tokio", ", tokio's mutex")]
        {
            for tasks in [2_u64, 16, 256, 10_000] {
                let name = format!("inside a process, {tasks} tasks on {threads}{how}");
                if !bench.wants(&name) || tasks > bench.options.waiters {
                    continue;
                }
                let millis = bench.options.time.as_millis();
                let (cluster, leader) = bench.cluster()?;
                let member = &mut cluster.members[leader];
                member.ask("session");
                let meter = Meter::start(cluster, leader);
                let order = format!("inside {on} {lock} {tasks} {millis}");
                let answer = cluster.members[leader].ask(&order);
                let mut spent = meter.stop(cluster);
                let parts: Vec<&str> = answer.split('|').collect();
                let [holds, cpu, timed] = parts[..] else { panic!("three parts: {answer:?}") };
                let timed = Measured::from_words(timed).expect("a measurement");
                let holds: u64 = number(holds);
                spent.cpu = Duration::from_nanos(number(cpu));
                let mut numbers = vec![
                    ("a second", holds as f64 / timed.elapsed.as_secs_f64()),
                    ("median us", timed.micros(0.5)),
                    ("p99 us", timed.micros(0.99)),
                    // The rate per second of CPU time.
                    ("a second of CPU", holds as f64 / spent.cpu.as_secs_f64().max(1e-9)),
                ];
                numbers.extend(spent.each(holds));
                let words = "tasks of one session in the leader's process pass a lock on; how long is \
                             from just before the release until the next one runs, one time in 64; the \
                             CPU is that of this process";
                bench.row(&Row { name: &name, words, numbers });
            }
        }
    }
    Ok(())
}
