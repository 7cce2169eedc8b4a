//! Runs the simulator with many seeds. If a seed fails, the runner reduces it by leaving out parts that the failure
//! does not need, and prints the command that replays it. `BOWLINE_SEEDS` sets the number of valid seeds, and
//! `BOWLINE_FIRST_SEED` the first one. `docs/assurance/simulator.md` explains the output.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what a reader of a run wants to see"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline::sim::{self, Failure, Report};
use rustix::time::ClockId;

/// The system's allocator would take a sixth of the run time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of valid seeds in the default run.
const SEEDS: u64 = 60;

/// Time limit for reducing a failed seed, in seconds.
const MINIMISE_SECONDS: u64 = 60;

/// Maximum share of invalid seeds, in percent. A seed is invalid if too little happens in its run, because such a run
/// proves nothing.
const INVALID_PERCENT_MAX: u64 = 5;

/// Events that must occur regularly: on average, in at least one of the given number of seeds.
const OFTEN: &[(&str, u64)] = &[
    ("put", 1),
    ("delete", 2),
    ("compare and set", 2),
    ("transfer", 2),
    ("read", 1),
    ("local read", 2),
    ("grant", 2),
    ("leased put", 2),
    ("revoke", 2),
    ("compact", 2),
    ("broad read", 2),
    ("range deleted", 2),
    ("broad transaction", 2),
    ("several changes at one revision", 2),
    ("broad transaction refused", 6),
    ("guarded write", 2),
    ("close", 2),
    ("attempt cancelled", 2),
    ("election on evidence", 6),
    ("unlock", 2),
    ("lock lost", 4),
    ("lock left to be resumed", 6),
    ("lock resumed", 6),
    ("lock lost before it was resumed", 10),
    ("held lock not waited for", 4),
    ("guarded write refused", 6),
    ("guarded write given up", 6),
    ("lock passed between tasks of a node", 15),
    ("leader observed", 15),
    ("missing leader observed", 15),
    ("leader's work done", 15),
    ("leader's work stopped", 15),
    ("two locks held", 15),
    ("deadlock", 15),
    ("lock acquired again by its owner", 15),
    ("held read/write lock not waited for", 15),
    ("downgrade", 15),
    ("upgrade", 15),
    ("second upgrade refused", 20),
    ("upgrade given up", 25),
    ("upgrade dropped", 25),
    ("slots claimed", 15),
    ("resize", 15),
    ("semaphore limit refused", 15),
    ("request for too many permits refused", 25),
    ("several locks acquired", 15),
    ("several locks not waited for", 15),
    ("holder asked to release", 15),
    ("lock released by force", 15),
    ("waiter evicted", 15),
    ("eviction reported", 15),
    ("lock handed over", 15),
    ("lock handed over by an operator", 15),
    ("permit handed over", 25),
    ("read lock handed over", 20),
    ("lock delay", 8),
    ("lock of a rarely polled request", 15),
    ("acknowledged", 15),
    ("acknowledged too late", 20),
    ("item given back", 15),
    ("item taken without competition", 15),
    ("tool/counter", 16),
    ("counter set", 16),
    ("tool/latch", 16),
    ("tool/barrier", 16),
    ("compare and swap", 16),
    ("key with a TTL", 16),
    ("sequence key created", 16),
    ("member left", 16),
    ("group watched", 16),
    ("run once", 16),
    ("double barrier entered", 16),
    ("double barrier left", 16),
    ("cached range read", 16),
    ("damaged message refused", 6),
    ("stopped in order", 4),
    ("joined", 5),
    ("member promoted", 12),
    ("member removed", 12),
    ("joint configuration left", 8),
    ("stopped as removed", 12),
    ("machine of a replaced voter lost", 25),
    ("damaged log refused", 12),
    ("snapshot bit flipped", 16),
    ("lease end", 2),
    ("lease renewed by its caller", 2),
    ("lease gone before it was renewed", 8),
    ("own key deleted", 2),
    ("deletion not applied", 60),
    ("grant not applied", 6),
    ("revocation not applied", 12),
    ("compaction not applied", 4),
    ("watch event with the previous row", 2),
    ("session reported valid", 2),
    ("session resumed", 2),
    ("session resumed late", 6),
    ("pause during a resume", 12),
    ("first leader back before its entries were written", 50),
    ("change visible when its caller was woken", 2),
    ("session whose lease has ended", 6),
    ("session not renewed", 4),
    ("read of the past", 2),
    ("read of a compacted revision", 4),
    ("watch ended by a compaction", 6),
    ("snapshot installed", 6),
    ("restart checked against earlier messages", 2),
    ("member replaced", 12),
    ("power lost while starting", 10),
    ("power lost at a point", 10),
    ("disk failed", 10),
    ("leadership moved", 12),
    ("disk was full", 10),
    ("all machines but a quorum destroyed", 64),
    ("fault: kill", 10),
    ("fault: power loss", 10),
    ("fault: power loss of all", 10),
    ("fault: power loss at a point", 10),
    ("fault: pause", 10),
    ("fault: pause, then isolation", 10),
    ("fault: pause during a resume, then isolation", 10),
    ("fault: pause of all", 10),
    ("fault: partition", 10),
    ("fault: one-way partition", 10),
    ("fault: reset connections", 10),
    ("fault: clogged link", 10),
    ("fault: slow disk", 10),
    ("fault: slow snapshots", 10),
    ("fault: failing disk", 10),
    ("fault: clock drift", 10),
    ("fault: returning leader", 10),
    ("fault: leadership transfer", 10),
    ("fault: damaged log", 10),
    ("fault: full disk", 10),
    ("fault: stop in order", 10),
    ("fault: rolling restart", 10),
    ("fault: newcomer", 10),
    ("fault: replacement", 10),
    ("fault: promotion", 10),
    ("fault: removal", 10),
];

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}

fn replay(seed: u64, without: &[usize]) -> String {
    let without: Vec<String> = without.iter().map(ToString::to_string).collect();
    let without = match without.is_empty() {
        true => String::new(),
        false => format!("BOWLINE_WITHOUT={} ", without.join(",")),
    };
    format!(
        "BOWLINE_SEED={seed} {without}cargo test --workspace --test simulation one_seed -- --nocapture"
    )
}

/// Returns the report of a failed seed, reduced within `BOWLINE_MINIMISE` seconds.
fn small(failed: &Failure) -> String {
    let (seed, invariant) = (failed.seed, failed.violation.invariant);
    let limit = Duration::from_secs(number("BOWLINE_MINIMISE", MINIMISE_SECONDS));
    let (began, parts) = (Instant::now(), sim::parts_of_seed(seed));
    let mut tried = 0;
    let without = sim::minimise(parts.len(), |without| {
        tried += 1;
        let again = || sim::run_seed_without(seed, without, false).err();
        let fails = || again().is_some_and(|other| other.violation.invariant == invariant);
        (began.elapsed() < limit).then(fails)
    });
    let again = sim::run_seed_without(seed, &without, true).err();
    let words = again.map_or_else(|| failed.to_string(), |failed| failed.to_string());
    let left = parts.iter().enumerate().filter(|(part, _)| !without.contains(part));
    let left: String = left.map(|(part, words)| format!("  {part:>3}  {words}\n")).collect();
    let replay = replay(seed, &without);
    format!("{words}\nof its plan it needs, after {tried} tries:\n{left}replay it:  {replay}")
}

#[test]
fn many_seeds_keep_every_promise() {
    let wanted = number("BOWLINE_SEEDS", SEEDS);
    let first = number("BOWLINE_FIRST_SEED", 1);
    let (next, valid) = (AtomicU64::new(first), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let (reports, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while valid.load(Ordering::Relaxed) < wanted && !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // If no seed were valid, the run would not end.
                    if seed >= first + wanted * 2 {
                        break;
                    }
                    match sim::run_seed(seed, false) {
                        Ok(report) => {
                            valid.fetch_add(u64::from(report.is_valid()), Ordering::Relaxed);
                            reports.lock().unwrap().push(report);
                        }
                        Err(why) => {
                            failed.store(true, Ordering::Relaxed);
                            failures.lock().unwrap().push(why);
                        }
                    }
                }
            });
        }
    });
    let reports = reports.into_inner().unwrap();
    summarize(&reports);
    if let Some(failed) = failures.into_inner().unwrap().first() {
        panic!("{}", small(failed));
    }
    for (what, seeds) in OFTEN {
        let happened = reports.iter().filter(|report| report.counts.contains_key(what)).count();
        let enough =
            happened as u64 * seeds >= reports.len() as u64 || (reports.len() as u64) < SEEDS;
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

/// Returns the CPU time of this process or thread.
fn cpu_time(of: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(of);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn summarize(reports: &[Report]) {
    let simulated: Duration = reports.iter().map(|report| report.simulated).sum();
    let hours = simulated.as_secs_f64() / 3600.0;
    let minutes = cpu_time(ClockId::ProcessCPUTime).as_secs_f64() / 60.0;
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for report in reports {
        *sizes.entry(report.nodes).or_default() += 1;
    }
    let trace = reports.iter().map(|report| report.trace).fold(0, |all, one| all ^ one);
    let fewest = reports.iter().map(|report| report.acknowledged).min().unwrap_or_default();
    let sum = |field: fn(&Report) -> u64| reports.iter().map(field).sum::<u64>();
    println!(
        "{} seeds, {hours:.1} simulated hours, {:.2} for each minute of a processor; runs by size of \
         cluster {sizes:?}; {} acknowledged operations ({fewest} or more a seed), {} leader changes, {} crashes; trace {trace:016x}",
        reports.len(),
        hours / minutes,
        sum(|report| report.acknowledged),
        sum(|report| report.leader_changes),
        sum(|report| report.crashes),
    );
    // For each event: the total count, and the number of seeds in which it occurs.
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (what, count) in reports.iter().flat_map(|report| &report.counts) {
        let (sum, seeds) = counts.entry(what).or_default();
        (*sum, *seeds) = (*sum + count, *seeds + 1);
    }
    println!("{counts:?}");
}

/// With `--profile night` and `BOWLINE_SECONDS=3600`, measures how many hours can be simulated in a minute of CPU
/// time, with three nodes and about a hundred operations a second.
#[test]
fn three_nodes_at_a_hundred_operations_a_second() {
    let time = Duration::from_secs(number("BOWLINE_SECONDS", 60));
    let began = cpu_time(ClockId::ThreadCPUTime);
    let report = match sim::run_steady(number("BOWLINE_SEED", 1), time) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    };
    let (simulated, took) =
        (report.simulated.as_secs_f64(), (cpu_time(ClockId::ThreadCPUTime) - began).as_secs_f64());
    let rate = report.acknowledged as f64 / simulated;
    println!(
        "{:.1} simulated hours a minute of a processor; {rate:.0} operations a second; {}",
        simulated / 60.0 / took,
        report.story
    );
    assert!(rate > 30.0, "{rate} operations a second");
}

/// Debug and release builds give the same trace, too: `docs/assurance/simulator.md` has the command that compares them.
#[test]
fn seed_replays_to_the_same_trace() {
    for seed in [3, 4, 5, 6] {
        let run =
            |verbose| sim::run_seed(seed, verbose).unwrap_or_else(|failed| panic!("{failed}"));
        let (first, second) = (run(false), run(true));
        assert_eq!(first.trace, second.trace, "seed {seed} did two things: {}", replay(seed, &[]));
        println!("trace of seed {seed}: {:016x}", first.trace);
    }
}

/// Replays `BOWLINE_SEED`, without the parts of its plan that `BOWLINE_WITHOUT` names, and prints the end of the
/// trace.
#[test]
fn one_seed() {
    let seed = number("BOWLINE_SEED", 1);
    let without = std::env::var("BOWLINE_WITHOUT").unwrap_or_default();
    let without = without.split(',').filter(|part| !part.is_empty());
    let without: Vec<usize> = without.map(|part| part.parse().expect("a number")).collect();
    match sim::run_seed_without(seed, &without, true) {
        Ok(report) => println!("{report:#?}"),
        Err(failed) => panic!("{failed}\nreplay it:  {}", replay(seed, &without)),
    }
}
