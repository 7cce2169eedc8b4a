//! Measures a contended lock: the time from the release until the next holder runs.
//!
//! There are two kinds of waiters. Waiters with their own keys are in the lock queue of the
//! cluster, where each handoff is a commit. Tasks of one session without further options wait
//! inside the node, which needs a commit only to pass the lock to another node.

use std::fmt::Write as _;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::bench::{Bench, Meter};
use crate::report::{Row, Spent, rates};
use crate::site::{Site, number};
use bowline_testkit::crew::{Cluster, Measured, together};

/// Time limit for all waiters to be queued.
const ENTERED: Duration = Duration::from_secs(60);

const NAME: &str = "handoff";

/// The times at which a waiter acquired and released the lock.
type Hold = (Duration, Duration);

/// In a member: the tasks that wait for one lock.
pub(crate) struct Line(JoinSet<Hold>);

/// Starts tasks that wait for a lock, each with a key of its own. Each releases the lock as soon as it holds it.
pub(crate) async fn line_up(site: &Arc<Site>, name: &str, waiters: u64) {
    let mutex = site.session().await.mutex(name.to_owned());
    let mut line = JoinSet::new();
    for _ in 0..waiters {
        let (mutex, site) = (mutex.clone(), Arc::clone(site));
        line.spawn(async move {
            let guard = mutex.lock().reason("waits").await.expect("a lock");
            let granted = site.now();
            let released = site.now();
            let _ = guard.release().await.expect("a release");
            (granted, released)
        });
    }
    *site.line() = Some(Line(line));
}

impl Line {
    /// Waits until all tasks have held the lock, and returns the times.
    pub(crate) async fn drained(mut self) -> String {
        let mut words = String::new();
        while let Some(hold) = self.0.join_next().await {
            let (granted, released) = hold.expect("a waiter");
            write!(words, " {}:{}", granted.as_nanos(), released.as_nanos()).expect("a string");
        }
        words
    }
}

/// In a member: starts tasks that lock and unlock one lock repeatedly. The time that each task
/// waits for the lock is measured.
pub(crate) async fn contend(site: &Arc<Site>, name: &str, tasks: u64, time: Duration) -> Measured {
    let mutex = site.session().await.mutex(name.to_owned());
    let begun = Instant::now();
    together(tasks, |_| {
        let mutex = mutex.clone();
        async move {
            let mut measured = Measured::new(Duration::ZERO);
            while begun.elapsed() < time {
                let called = Instant::now();
                let guard = mutex.lock().await.expect("a lock");
                measured.add(called.elapsed());
                let _ = guard.release().await.expect("a release");
            }
            measured
        }
    })
    .await
}

/// Numbers of waiters.
const SIZES: [u64; 4] = [2, 16, 256, 10_000];

/// Runs the rows in which a lock queue forms and is then drained.
pub(crate) fn drain(bench: &mut Bench) -> Result<(), String> {
    for everywhere in [false, true] {
        for waiters in SIZES {
            let place = if everywhere { "all nodes" } else { "the leader's node" };
            let name = format!("handoff, {waiters} waiters on {place}, a key each");
            if unfit(bench, &name, waiters, everywhere) {
                continue;
            }
            let time = bench.options.time;
            let (cluster, leader) = bench.cluster()?;
            let shares = match everywhere {
                true => cluster.shares(leader, waiters),
                false => vec![(leader, waiters)],
            };
            for member in &mut cluster.members {
                member.ask("session");
            }
            let (mut all, mut spent) = (Measured::new(Duration::ZERO), Spent::default());
            let mut entering = Duration::ZERO;
            let (begun, mut rounds) = (Instant::now(), 0);
            while rounds == 0 || begun.elapsed() < time {
                let mut round = Round { cluster, leader, shares: &shares };
                entering += round.line_up(waiters)?;
                spent += round.drain(&mut all);
                rounds += 1;
            }
            let entered = (waiters * rounds) as f64;
            let mut numbers = rates(&all);
            numbers.extend(spent.each(all.count()));
            numbers.extend([
                ("lines", rounds as f64),
                ("entered a second", entered / entering.as_secs_f64()),
            ]);
            let words = "a lock passes from its holder to the next in a line that has formed before \
                         and is drained, and how long that takes from the call of release until the \
                         next one runs";
            bench.row(&Row { name: &name, words, numbers });
        }
    }
    Ok(())
}

/// One lock queue that is formed and drained.
struct Round<'a> {
    cluster: &'a mut Cluster,
    leader: usize,
    /// Number of waiters on each member.
    shares: &'a [(usize, u64)],
}

impl Round<'_> {
    /// Queues all waiters after a holder. Returns the time that this took.
    fn line_up(&mut self, waiters: u64) -> Result<Duration, String> {
        self.cluster.members[self.leader].ask(&format!("keep {NAME}"));
        let begun = Instant::now();
        for (member, share) in self.shares {
            self.cluster.members[*member].ask(&format!("line-up {NAME} {share}"));
        }
        // All members must see the whole queue before the lock is released.
        for (member, _) in self.shares {
            while number::<u64>(&self.cluster.members[*member].ask(&format!("length {NAME}")))
                <= waiters
            {
                if begun.elapsed() > ENTERED {
                    return Err(format!("no line of {waiters} within {ENTERED:?}"));
                }
                sleep(Duration::from_micros(200));
            }
        }
        Ok(begun.elapsed())
    }

    /// Releases the lock of the holder, and records the time of each handoff.
    fn drain(&mut self, all: &mut Measured) -> Spent {
        let meter = Meter::start(self.cluster, self.leader);
        let members = &mut self.cluster.members;
        let begun: u64 = number(&members[self.leader].ask("let-go"));
        self.shares.iter().for_each(|(member, _)| members[*member].send("drained"));
        let mut holds: Vec<(u64, u64)> = Vec::new();
        for (member, _) in self.shares {
            let words = members[*member].answer();
            holds.extend(words.split_whitespace().map(|word| {
                let (granted, released) = word.split_once(':').expect("two moments");
                (number(granted), number(released))
            }));
        }
        let mut spent = meter.stop(self.cluster);
        // Subtract the last release, after which no task acquires the lock.
        spent.entries = spent.entries.saturating_sub(1);
        holds.sort_unstable();
        let mut free = begun;
        for (granted, released) in holds {
            assert!(granted >= free, "two held at once");
            all.add(Duration::from_nanos(granted - free));
            free = released;
        }
        all.elapsed += Duration::from_nanos(free - begun);
        spent
    }
}

/// Runs the rows in which tasks lock repeatedly.
pub(crate) fn again(bench: &mut Bench) -> Result<(), String> {
    for everywhere in [false, true] {
        for tasks in SIZES {
            let place = if everywhere { "all nodes" } else { "the leader's node" };
            let name = format!("contended, {tasks} tasks on {place}");
            if unfit(bench, &name, tasks, everywhere) {
                continue;
            }
            let millis = bench.options.time.as_millis();
            let (cluster, leader) = bench.cluster()?;
            let shares = match everywhere {
                true => cluster.shares(leader, tasks),
                false => vec![(leader, tasks)],
            };
            for member in &mut cluster.members {
                member.ask("session");
            }
            let meter = Meter::start(cluster, leader);
            for (member, share) in &shares {
                let order = format!("contend {NAME} {share} {millis}");
                cluster.members[*member].send(&order);
            }
            let (mut all, mut counts) = (Measured::new(Duration::ZERO), Vec::new());
            for (member, _) in &shares {
                let measured = cluster.members[*member].measured();
                counts.push(measured.count());
                all.merge(&measured);
            }
            let spent = meter.stop(cluster);
            let least = counts.into_iter().min().unwrap_or(0) as f64;
            let mut numbers = rates(&all);
            numbers.extend(spent.each(all.count()));
            numbers.extend([
                ("mean us from hold to hold", 1e6 / all.rate()),
                ("longest wait ms", all.micros(1.0) / 1e3),
                ("smallest share percent", least * 100.0 / all.count().max(1) as f64),
            ]);
            let words = "a task that wants what the others want gets it, and releases it to come again \
                         at once; how long is the wait";
            bench.row(&Row { name: &name, words, numbers });
        }
    }
    Ok(())
}

/// Returns whether a row is not selected or not possible.
fn unfit(bench: &Bench, name: &str, waiters: u64, everywhere: bool) -> bool {
    let alone = bench.options.shape.members == 1;
    !bench.wants(name) || waiters > bench.options.waiters || (everywhere && alone)
}
