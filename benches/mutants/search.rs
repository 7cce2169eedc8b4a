//! The search: runs mutants over seeds, and writes the page of the results.

use std::collections::BTreeMap;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bowline::mutant::Mutant;
use bowline::sim::{self, Violation};

/// Number of seeds that a mutant may survive.
const SEEDS: u64 = 2_000;

/// CPU time of this process after which a running seed counts as an endless loop.
const SEED_TIME_MAX: Duration = Duration::from_secs(180);

/// Environment variable with the name of a mutant: the process runs only this mutant.
const ALONE: &str = "BOWLINE_MUTANT_ALONE";

/// Value of [`ALONE`] for a run without a mutant.
const NONE: &str = "none";

/// The text of the page above the table.
const ABOVE: &str = "\
# Mutants

For contributors: each mutant is one deliberate bug behind a switch that releases do not contain (`src/mutant.rs`). The table says which
seed of the [simulator](simulator.md) finds it first, by which invariant, and the CPU seconds up to that seed. These commands write this page:

    export RUSTFLAGS=\"--cfg bowline_mutants\" CARGO_TARGET_DIR=target/mutants
    cargo bench --bench mutants
    BOWLINE_MUTANT=M07,B03 cargo bench --bench mutants    only these

M: bugs that any replicated log with leases and locks could have. B: bugs that only this library could have. N: negative controls. Their
programs or disks misbehave. Mutants without a seed break no invariant or need a rare situation, and the named test finds them.

";

/// The text of the page below the table.
const BELOW: &str = "
Missing numbers are mutants that cannot exist in the simulator, for example M42, a thread that survives a shutdown.
";

/// Mutants that are not searched for in seeds, with the test that detects each. The effect of B47 to B50 is repaired by
/// another mechanism a little later, or is irrelevant in the simulator. The other mutants need a situation that is rare
/// in seeds.
const ONLY_IN_TESTS: [(Mutant, &str); 9] = [
    (
        Mutant::M46,
        "`consensus/tests/traps/restarts.rs`: test_of_rewritten_entries_fails_under_its_mutant",
    ),
    (Mutant::B47, LEADING),
    (Mutant::B48, LEADING),
    (Mutant::B49, LEADING),
    (Mutant::B50, LEADING),
    (Mutant::B52, "`sim/stories.rs`: removed_member_stays_until_the_others_can_do_without"),
    (Mutant::B53, "`sim/stories.rs`: former_only_member_serves_no_stale_read_after_joins"),
    (Mutant::B70, "`node/sessions/mod.rs`: test_of_late_renewals_fails_under_its_mutant"),
    (Mutant::B71, "`sim/stories.rs`: only_evidence_replaces_a_leader_early"),
];

const LEADING: &str = "`node/driver/tests/leading.rs`: each_of_these_tests_fails_under_its_mutant";

/// The result for a mutant.
enum Found {
    By { seed: u64, what: String },
    Survived { seeds: u64 },
}

pub(crate) fn main() -> ExitCode {
    if let Ok(name) = std::env::var(ALONE) {
        let mutant = Mutant::named(&name).expect("the name of a mutant");
        println!("{}", row(mutant, &hunt(Some(mutant))));
        // Abandon a seed that runs in an endless loop.
        std::process::exit(0);
    }
    let wanted = std::env::var("BOWLINE_MUTANT").unwrap_or_default();
    let is_wanted = |mutant: &Mutant| {
        wanted.is_empty() || wanted.split(',').any(|name| name == format!("{mutant:?}"))
    };
    if let Some(seed) = number("BOWLINE_SEED") {
        let _planted = Mutant::named(&wanted).map(Mutant::plant);
        match sim::run_seed(seed, true) {
            Ok(report) => println!("{}", report.story),
            Err(failure) => println!("{failure}"),
        }
        return ExitCode::SUCCESS;
    }
    if wanted == NONE {
        return match hunt(None) {
            Found::By { seed, what } => {
                println!("nothing is broken, and seed {seed} falls by {what}");
                ExitCode::FAILURE
            }
            Found::Survived { seeds } => {
                println!("nothing is broken, and {seeds} seeds stand");
                ExitCode::SUCCESS
            }
        };
    }
    let mut page = Page::read();
    for mutant in Mutant::ALL.iter().copied().filter(is_wanted) {
        let row = match ONLY_IN_TESTS.iter().find(|(of, _)| *of == mutant) {
            Some((_, test)) => format!("| {mutant:?} | {} | none | {test} | 0 |", mutant.breaks()),
            None => alone(mutant),
        };
        println!("{row}");
        page.rows.insert(format!("{mutant:?}"), row);
        page.write();
    }
    // These are the mutants that survived, or whose process ended without a failing seed.
    let has_no_seed = |row: &&String| row.split(" | ").nth(2).is_none_or(|seed| seed == "-");
    match page.rows.values().filter(has_no_seed).count() {
        0 => ExitCode::SUCCESS,
        left => {
            println!("{left} were found by no seed");
            ExitCode::FAILURE
        }
    }
}

/// Returns the row of a mutant, from a process that runs nothing else.
fn alone(mutant: Mutant) -> String {
    let name = format!("{mutant:?}");
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(this);
    let child = command.env(ALONE, &name).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = child.output().expect("this program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find(|line| line.starts_with(&format!("| {name} "))) {
        Some(row) => row.to_owned(),
        None => format!(
            "| {name} | {} | - | the process ended: {} | - |",
            mutant.breaks(),
            output.status
        ),
    }
}

fn row(mutant: Mutant, found: &Found) -> String {
    let cpu = cpu_time().as_secs();
    let (seed, what) = match found {
        Found::By { seed, what } => (seed.to_string(), what.clone()),
        Found::Survived { seeds } => ("-".to_owned(), format!("survived {seeds} seeds")),
    };
    format!("| {mutant:?} | {} | {seed} | {what} | {cpu} |", mutant.breaks())
}

/// Runs seeds until one fails, and all seeds below that one.
fn hunt(mutant: Option<Mutant>) -> Found {
    // The row contains the message of the failure.
    std::panic::set_hook(Box::new(|_| {}));
    let seeds = number("BOWLINE_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(1);
    let first: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let in_progress: Mutex<BTreeMap<u64, Duration>> = Mutex::default();
    let fell = |seed: u64, what: String| {
        let mut first = first.lock().unwrap();
        if first.as_ref().is_none_or(|(known, _)| seed < *known) {
            *first = Some((seed, what));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let working = AtomicUsize::new(threads);
    let is_over =
        |seed: u64| first.lock().unwrap().as_ref().is_some_and(|(fallen, _)| *fallen < seed);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let _planted = mutant.map(Mutant::plant);
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds || is_over(seed) {
                        working.fetch_sub(1, Ordering::Relaxed);
                        return;
                    }
                    in_progress.lock().unwrap().insert(seed, cpu_time());
                    let ran = catch_unwind(|| sim::run_seed(seed, false));
                    in_progress.lock().unwrap().remove(&seed);
                    match ran {
                        Ok(Ok(_)) => {}
                        Ok(Err(failure)) => fell(seed, words(&failure.violation)),
                        // The run found nothing, and then the simulator panicked while its state was dropped.
                        Err(_) => fell(seed, "an assertion, in its end".to_owned()),
                    }
                }
            });
        }
        scope.spawn(|| {
            while working.load(Ordering::Relaxed) > 0 {
                thread::sleep(Duration::from_millis(200));
                let in_progress = in_progress.lock().unwrap();
                let endless =
                    in_progress.iter().find(|(_, began)| cpu_time() - **began > SEED_TIME_MAX);
                if let Some((seed, _)) = endless {
                    fell(*seed, "goes round forever".to_owned());
                    let (seed, what) = first.lock().unwrap().clone().expect("it has just fallen");
                    if let Some(mutant) = mutant {
                        println!("{}", row(mutant, &Found::By { seed, what }));
                    }
                    std::process::exit(i32::from(mutant.is_none()));
                }
            }
        });
    });
    match first.into_inner().unwrap() {
        Some((seed, what)) => Found::By { seed, what },
        None => Found::Survived { seeds },
    }
}

/// Returns a number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Describes the failure of a seed, short enough for a table.
fn words(violation: &Violation) -> String {
    if violation.invariant != "PANIC" {
        return violation.invariant.to_owned();
    }
    let line = violation.detail.lines().next().unwrap_or_default();
    let short: String = line.chars().take(60).collect();
    format!("an assertion: {}", short.replace('|', "/"))
}

/// Returns the CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// The page `docs/assurance/mutants.md`.
struct Page {
    path: PathBuf,
    /// The rows by the name of the mutant.
    rows: BTreeMap<String, String>,
}

impl Page {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/assurance/mutants.md");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let rows = text.lines().filter_map(|line| {
            let name = line.strip_prefix("| ")?.split(' ').next()?;
            Mutant::named(name)?;
            Some((name.to_owned(), line.to_owned()))
        });
        Self { path, rows: rows.collect() }
    }

    fn write(&self) {
        let mut text = ABOVE.to_owned();
        text.push_str("| mutant | what it breaks | first seed | found by | seconds |\n");
        text.push_str("|---|---|---|---|---|\n");
        for mutant in Mutant::ALL {
            if let Some(row) = self.rows.get(&format!("{mutant:?}")) {
                text.push_str(row);
                text.push('\n');
            }
        }
        text.push_str(BELOW);
        fs::write(&self.path, text).expect("the page can be written");
    }
}
