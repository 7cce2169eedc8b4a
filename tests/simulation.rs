//! Runs the simulated world over many seeds. A seed that fails is printed with the one command that
//! replays it. `BOWLINE_SEEDS` raises how many seeds count, `BOWLINE_FIRST_SEED` moves where they
//! begin; `docs/simulator.md` says how to read what comes out.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what a reader of a run wants to see"
)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bowline::sim::{self, Report};

/// How many valid seeds the quick leg runs.
const SEEDS: u64 = 120;

/// A run of a seed in which too little happens proves nothing; of a hundred runs, so many may be so.
const INVALID_PERCENT_MAX: u64 = 5;

/// What must have happened now and then: in one of so many seeds at least.
const OFTEN: &[(&str, u64)] = &[
    ("wish given up", 2),
    ("unlock", 2),
    ("lock lost", 4),
    ("lock that was taken already", 4),
    ("guarded write refused", 6),
    ("lock passed on inside a node", 15),
    ("leader observed", 15),
    ("vacancy observed", 15),
    ("both locks", 15),
    ("deadlock", 15),
    ("lock held again", 15),
    ("read/write lock that was taken already", 15),
    ("downgrade", 15),
    ("upgrade", 15),
    ("second upgrade refused", 20),
    ("upgrade given up", 25),
    ("upgrade dropped", 25),
    ("slots", 15),
    ("resize", 15),
    ("another limit", 15),
    ("more permits than there will be", 25),
    ("locks at once", 15),
    ("locks of which one was taken already", 15),
    ("asked to release", 15),
    ("hold broken", 15),
    ("place evicted", 15),
    ("evicted", 15),
    ("handed over", 15),
    ("hold handed over by an order", 15),
    ("lock delay", 15),
    ("acknowledged", 15),
    ("acknowledged too late", 20),
    ("item given back", 15),
    ("tool/counter", 15),
    ("tool/latch", 15),
    ("tool/barrier", 15),
    ("swap", 15),
    ("member left", 15),
    ("group followed", 15),
    ("run once", 15),
    ("inside a double barrier", 15),
    ("out of a double barrier", 15),
    ("view", 15),
];

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}

fn run(seed: u64, verbose: bool) -> Result<Report, String> {
    match catch_unwind(AssertUnwindSafe(|| sim::run_seed(seed, verbose))) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err(format!("seed {seed}: something fell; the panic is above")),
    }
}

fn replay(seed: u64) -> String {
    format!("BOWLINE_SEED={seed} cargo test --test simulation one_seed -- --nocapture")
}

#[test]
fn hundreds_of_seeds_keep_every_promise() {
    let wanted = number("BOWLINE_SEEDS", SEEDS);
    let (next, valid) = (AtomicU64::new(number("BOWLINE_FIRST_SEED", 1)), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let (reports, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while valid.load(Ordering::Relaxed) < wanted && !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match run(seed, false) {
                        Ok(report) => {
                            valid.fetch_add(u64::from(report.is_valid()), Ordering::Relaxed);
                            reports.lock().unwrap().push(report);
                        }
                        Err(why) => {
                            failed.store(true, Ordering::Relaxed);
                            failures.lock().unwrap().push((seed, why));
                        }
                    }
                }
            });
        }
    });
    let reports = reports.into_inner().unwrap();
    summarize(&reports);
    if let Some((seed, why)) = failures.into_inner().unwrap().first() {
        panic!("{why}\nreplay it:  {}", replay(*seed));
    }
    for (what, seeds) in OFTEN {
        let happened = reports.iter().filter(|report| report.counts.contains_key(what)).count();
        let enough = happened as u64 * seeds >= reports.len() as u64 || reports.len() < 100;
        assert!(enough, "{what} has happened in {happened} of {} seeds", reports.len());
    }
    let invalid: Vec<&Report> = reports.iter().filter(|report| !report.is_valid()).collect();
    assert!(
        invalid.len() as u64 * 100 <= reports.len() as u64 * INVALID_PERCENT_MAX,
        "{} of {} seeds did too little to count: {invalid:#?}",
        invalid.len(),
        reports.len(),
    );
}

/// The time that this process has kept a processor busy.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn summarize(reports: &[Report]) {
    let simulated: Duration = reports.iter().map(|report| report.simulated).sum();
    let hours = simulated.as_secs_f64() / 3600.0;
    let minutes = cpu_time().as_secs_f64() / 60.0;
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for report in reports {
        *sizes.entry(report.nodes).or_default() += 1;
    }
    let sum = |field: fn(&Report) -> u64| reports.iter().map(field).sum::<u64>();
    println!(
        "{} seeds, {hours:.1} simulated hours, {:.2} for each minute of a processor; runs by size of \
         cluster {sizes:?}; {} acknowledged operations, {} leader changes, {} crashes",
        reports.len(),
        hours / minutes,
        sum(|report| report.acknowledged),
        sum(|report| report.leader_changes),
        sum(|report| report.crashes),
    );
    // How often, and in how many seeds.
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (what, count) in reports.iter().flat_map(|report| &report.counts) {
        let (sum, seeds) = counts.entry(what).or_default();
        (*sum, *seeds) = (*sum + count, *seeds + 1);
    }
    println!("{counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 4, 5, 6] {
        let (first, second) = (run(seed, false).unwrap(), run(seed, true).unwrap());
        assert_eq!(first.trace, second.trace, "seed {seed} did two things: {}", replay(seed));
    }
}

/// Replays `BOWLINE_SEED`, with the end of its trace in words.
#[test]
fn one_seed() {
    let seed = number("BOWLINE_SEED", 1);
    match run(seed, true) {
        Ok(report) => println!("{report:#?}"),
        Err(why) => panic!("{why}\nreplay it:  {}", replay(seed)),
    }
}
