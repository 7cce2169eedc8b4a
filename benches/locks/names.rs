//! Measures uncontended locks: the cost of one, the rate over few and many names, and the memory that an unused name
//! leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bench::{At, Bench, Meter, counts};
use crate::report::{Row, rates};
use crate::site::Site;
use bowline_testkit::crew::{Cluster, Measured};

/// Number of callers in the rows with many names.
const CALLERS: u64 = 64;

/// Time limit for a compaction to be applied and its freed memory to be counted.
const SWEEP: Duration = Duration::from_secs(30);

/// The names that callers lock in turn.
pub(crate) struct Names {
    prefix: String,
    names: u64,
    /// Number of locks after which the callers stop.
    times: u64,
    taken: AtomicU64,
}

impl Names {
    pub(crate) fn new(prefix: &str, names: u64, times: u64) -> Self {
        Self { prefix: prefix.to_owned(), names, times, taken: AtomicU64::new(0) }
    }

    fn next(&self) -> Option<String> {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        (taken < self.times).then(|| format!("{}/{:07}", self.prefix, taken % self.names))
    }
}

/// In a member: locks and unlocks until the time has passed or all names were used. Measures the
/// acquisition, the release, and both together.
pub(crate) async fn cycle(site: &Arc<Site>, names: Names, callers: u64, time: Duration) -> String {
    let session = site.session().await.clone();
    let names = Arc::new(names);
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..callers {
        let (session, names) = (session.clone(), Arc::clone(&names));
        tasks.spawn(async move {
            let mut parts = [(); 3].map(|()| Measured::new(Duration::ZERO));
            while begun.elapsed() < time
                && let Some(name) = names.next()
            {
                let begun = Instant::now();
                let guard = session.mutex(name).lock().await.expect("a lock");
                let taken = begun.elapsed();
                let _ = guard.release().await.expect("a release");
                let both = begun.elapsed();
                for (part, took) in parts.iter_mut().zip([taken, both - taken, both]) {
                    part.add(took);
                }
            }
            parts
        });
    }
    let mut all = [(); 3].map(|()| Measured::new(Duration::ZERO));
    while let Some(parts) = tasks.join_next().await {
        for (all, part) in all.iter_mut().zip(&parts.expect("a caller")) {
            all.merge(part);
        }
    }
    all.map(|mut part| {
        part.elapsed = begun.elapsed();
        part.to_words()
    })
    .join("|")
}

/// Runs the rows in which each caller locks its own names.
pub(crate) fn uncontended(bench: &mut Bench) -> Result<(), String> {
    let rows = [
        ("uncontended on the leader's node, 1 caller", At::Leader, 1),
        ("uncontended on a follower's node, 1 caller", At::Follower, 1),
        ("uncontended on the leader's node, 64 callers", At::Leader, CALLERS),
        ("uncontended on a follower's node, 64 callers", At::Follower, CALLERS),
    ];
    for (name, at, callers) in rows {
        if !bench.wants(name) || (at == At::Follower && bench.options.shape.members == 1) {
            continue;
        }
        let millis = bench.options.time.as_millis();
        let (cluster, leader) = bench.cluster()?;
        let member = at.member(cluster, leader);
        cluster.members[member].ask("session");
        // Use many names, so that no caller waits until another caller has released a lock.
        let order =
            |millis| format!("cycle alone {callers} {} {millis} {}", callers * 64, u64::MAX);
        // Warm up everything that is created on first use.
        cluster.members[member].ask(&order(20));
        let meter = Meter::start(cluster, leader);
        let [taking, release, both] = parts(&cluster.members[member].ask(&order(millis)));
        let spent = meter.stop(cluster);
        let mut numbers = rates(&both);
        numbers.extend([
            ("take median us", taking.micros(0.5)),
            ("take p99 us", taking.micros(0.99)),
            ("release median us", release.micros(0.5)),
            ("release p99 us", release.micros(0.99)),
        ]);
        numbers.extend(spent.each(both.count()));
        let words = "a lock that nobody else wants is taken and released, and how long both take";
        bench.row(&Row { name, words, numbers });
    }
    Ok(())
}

/// Runs the rows with 64 callers and increasing numbers of names.
pub(crate) fn many(bench: &mut Bench) -> Result<(), String> {
    let most = bench.options.names;
    for names in [1, 1_000, 1_000_000] {
        let name = format!("locks a second over {names} names, {CALLERS} callers");
        if names > most || !bench.wants(&name) {
            continue;
        }
        // Use a new cluster for each row, so that its memory is not affected by other rows.
        let mut cluster = Cluster::start::<Site>(&bench.options.shape)?;
        let leader = cluster.leader()?;
        // Lock each of a million names once, without a time limit.
        let forever = Duration::from_secs(3_600);
        let (time, times) = match names {
            1_000_000 => (forever, names),
            _ => (bench.options.time, u64::MAX),
        };
        let cycle = |prefix: &str, time: Duration, times: u64| {
            format!("cycle {prefix} {CALLERS} {names} {} {times}", time.as_millis())
        };
        cluster.members[leader].ask("session");
        // Warm up threads, sockets and the allocator's first chunks.
        cluster.members[leader].ask(&cycle("first", Duration::from_millis(100), u64::MAX));
        compact(&mut cluster, leader)?;
        let before = counts(&mut cluster, leader);
        let meter = Meter::start(&mut cluster, leader);
        let [_, _, both] = parts(&cluster.members[leader].ask(&cycle("a", time, times)));
        let spent = meter.stop(&mut cluster);
        let used = counts(&mut cluster, leader);
        compact(&mut cluster, leader)?;
        let swept = counts(&mut cluster, leader);
        // Lock the same number of other names, which should reuse the memory of the first names.
        cluster.members[leader].ask(&cycle("b", forever, both.count()));
        compact(&mut cluster, leader)?;
        let again = counts(&mut cluster, leader);
        cluster.end();
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut numbers = rates(&both);
        numbers.extend(spent.each(both.count()));
        numbers.extend([
            ("keys before", before.keys as f64),
            ("keys after compaction", swept.keys as f64),
            ("state bytes before", before.state_bytes as f64),
            ("state bytes used", used.state_bytes as f64),
            ("state bytes after compaction", swept.state_bytes as f64),
            ("memory MiB before", mib(before.resident_bytes)),
            ("memory MiB used", mib(used.resident_bytes)),
            ("memory MiB after compaction", mib(swept.resident_bytes)),
            ("memory MiB after as many other names", mib(again.resident_bytes)),
        ]);
        let words = "a lock is taken and released; callers in the leader's process, whose memory is \
                     told, go through the names in turn";
        bench.row(&Row { name: &name, words, numbers });
    }
    Ok(())
}

/// Compacts all history, and waits until its memory is freed.
fn compact(cluster: &mut Cluster, leader: usize) -> Result<(), String> {
    cluster.members[leader].ask("compact");
    let begun = Instant::now();
    let mut last = None;
    // The driver updates the gauge at its ticks, and frees versions in slices.
    while begun.elapsed() < SWEEP {
        sleep(Duration::from_millis(200));
        let now = counts(cluster, leader).state_bytes;
        if last == Some(now) {
            return Ok(());
        }
        last = Some(now);
    }
    Err(format!("a compaction that is not over after {SWEEP:?}"))
}

fn parts(words: &str) -> [Measured; 3] {
    let mut parts = words.split('|').map(|part| Measured::from_words(part).expect("a measurement"));
    [(); 3].map(|()| parts.next().expect("three parts"))
}
