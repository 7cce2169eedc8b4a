//! The demo (`bowline-demo`, `bowline demo`): starts processes, each with an embedded node. Workers call these nodes to
//! increment a counter under a lock, while the demo kills and suspends processes. At the end the demo verifies that no
//! increment was lost or counted twice, and that the ledger accepted no write from a worker that had lost the lock.
//!
//! ```text
//!   parent: scenario (`faults`, `stage`), workers' steps (`worker`), ledger file, history, `proof`
//!        │ calls ▲ replies (`bowline-fleet`)
//!        ├───────┴───────┬───────────────┐
//!        n1 node, locks  n2              n3              SIGKILL, SIGSTOP, SIGCONT
//!        └────── Raft on loopback, one data directory each ┘
//! ```
//!
//! The parent embeds no node. The parent compares three independent sources: the replies that the workers got, the
//! writes that reached the ledger, and the store that each member reports at the end. Bowline's checkers
//! ([`bowline_check`]) check the history of the counter and the tokens in the ledger.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;

mod workplace;

mod account;
mod faults;
mod ledger;
mod node;
mod stage;
mod worker;

mod proof;
mod timeline;

use account::Shared;
use faults::Schedule;
use ledger::Ledger;
use stage::{DemoError, Stage, signals};
use timeline::Timeline;
use workplace::Workplace;

pub use node::{NodeOptions, main as node_main};

/// Exit code if the arguments are invalid, or the machine does not allow the demo.
const EXIT_USAGE: u8 = 2;
/// A claim was disproved.
const EXIT_DISPROVEN: u8 = 1;
/// Exit code of shells for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Kill a working cluster with kill -9, and verify that nothing is lost
///
/// Starts processes on this machine, each embedding a Bowline node with a real data directory, real sockets and synced
/// writes. Workers call all of them to increment one counter under a lock. They also write to a ledger outside the
/// store with the lock's fencing token, and write the increment in a guarded transaction.
///
/// Meanwhile the demo kills the leader and processes that hold the lock with kill -9. It also suspends a process that
/// holds the lock until its lease has expired and another worker has the lock; then it resumes the process. The late
/// writes of its worker must be rejected. At the end it reads every member and checks that every acknowledged increment
/// exists exactly once, that fencing tokens only increased, that the ledger and the store rejected the late writes, and
/// more.
///
/// Exit codes: 0 all claims proven; 1 a claim disproven; 2 wrong arguments, or the machine does not allow the demo; 130
/// interrupted.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Number of processes
    #[arg(
        long,
        default_value = "3",
        value_parser = PossibleValuesParser::new(["1", "3", "5"])
            .map(|nodes| nodes.parse::<usize>().expect("the values are numbers"))
    )]
    nodes: usize,

    /// Duration of the work, in seconds
    ///
    /// Every kind of fault is injected once, however short this is. Startup and verification take additional time.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Directory to work in (empty or missing)
    ///
    /// Everything created there is removed at the end. Default: a new directory for temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Seed of the fault schedule
    ///
    /// The same seed gives the same schedule; the reaction of the processes varies. Default: a random seed, which is
    /// shown.
    #[arg(long)]
    seed: Option<u64>,

    /// Print a JSON object for each event, the verdict last, and nothing else
    #[arg(long)]
    json: bool,

    /// Keep the data, the members' logs and the ledger
    #[arg(long)]
    keep: bool,
}

/// Runs the demo.
pub fn main(options: &Options) -> ExitCode {
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_DISPROVEN),
        Err(error) => {
            print_failure(&error);
            ExitCode::from(match error {
                DemoError::Interrupted(_) => EXIT_INTERRUPTED,
                DemoError::Environment(_) | DemoError::Output(_) => EXIT_USAGE,
                DemoError::Halted(_) => EXIT_DISPROVEN,
            })
        }
    }
}

/// Runs the demo. Returns whether all claims were proven. This function starts the processes, so it must run on a thread
/// that ends last: the kernel kills the processes when the thread that created them ends.
fn run(options: &Options) -> Result<bool, DemoError> {
    let signals = signals().map_err(DemoError::environment("cannot handle signals"))?;
    let given = options.dir.as_deref();
    let place = Workplace::make(given, options.keep).map_err(|error| {
        let dir = given.map_or_else(std::env::temp_dir, PathBuf::from);
        DemoError::Environment(format!("cannot work in {}: {error}", dir.display()))
    })?;
    let seed = options.seed.unwrap_or_else(random_seed);
    let timeline = Timeline::begin(options.json, Duration::from_secs(options.seconds));
    let ledger = Ledger::create(&place.ledger());
    let ledger = ledger.map_err(DemoError::environment("cannot open the ledger"))?;
    let addresses = bowline_fleet::ports::free_addresses(options.nodes)
        .map_err(DemoError::environment("cannot reserve addresses for the members"))?;
    let mut stage = Stage::set(Shared::new(timeline, ledger), &place, addresses, signals);
    let (nodes, seconds) = (options.nodes, options.seconds);
    let dir = place.dir().display().to_string();
    let begins = json!({"nodes": nodes, "seconds": seconds, "seed": seed, "dir": dir});
    stage.report(None, "begins", &begins);

    let outcome = story(&mut stage, options, seed);
    // All processes are ended here, whatever the result is.
    let problems = if outcome.is_ok() { stage.end() } else { Vec::new() };
    stage.kill_all();
    let timeline = &stage.shared.timeline;
    timeline.end_progress();
    let mut account = stage.shared.lock();
    let claims = match outcome {
        Ok(()) => {
            let evidence = &mut account.evidence;
            let ledger = stage.shared.ledger().read_back();
            evidence.ledger = ledger.map_err(DemoError::environment("cannot read the ledger"))?;
            evidence.history = stage.shared.history.history();
            evidence.problems = problems;
            proof::evaluate(evidence)
        }
        Err(DemoError::Halted(why)) => proof::halted(why),
        Err(other) => return Err(other),
    };
    timeline.verdict(seed, &claims, &account.figures()).map_err(DemoError::Output)?;
    if options.keep {
        timeline.kept(place.dir()).map_err(DemoError::Output)?;
    }
    Ok(!claims.iter().any(proof::Claim::is_disproven))
}

/// Runs the demo's steps in order.
fn story(stage: &mut Stage<'_>, options: &Options, seed: u64) -> Result<(), DemoError> {
    let time = Duration::from_secs(options.seconds);
    stage.start_all()?;
    let mut schedule = Schedule::new(seed, options.nodes);
    while schedule.continues(stage.work_time(), time) {
        let round = schedule.draw();
        stage.pass(round.calm)?;
        faults::carry_out(round, stage)?;
    }
    stage.pass(time.saturating_sub(stage.work_time()))?;
    stage.rest()?;
    stage.read_all()
}

/// Returns a seed that is short enough to type.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() % 1_000_000
}

/// Prints an error on standard error.
fn print_failure(why: &dyn std::fmt::Display) {
    // If standard error cannot be written, the exit code must suffice.
    drop(writeln!(io::stderr().lock(), "error: {why}"));
}
