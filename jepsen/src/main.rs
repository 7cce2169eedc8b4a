//! The command line of the harness: `bowline-jepsen run`, `all`, `matrix`, `sum`, `list`.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | every run was ok, or was skipped with a message |
//! | 1 | a violation |
//! | 2 | invalid arguments |
//! | 3 | a run is undecided, or (with `sum`) a run is invalid, and no later repetition of that run was ok; or (with `sum`) there are no results |

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bowline_jepsen::matrix::{self, Cell};
use bowline_jepsen::nemesis::{self, Pace};
use bowline_jepsen::run::Plan;
use bowline_jepsen::{Over, Programs, driver, report, series, workload};
use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

const EXIT_VIOLATION: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_NO_VERDICT: u8 = 3;

/// Environment variable that names the promise that nodes break on purpose.
const MUTANT: &str = "BOWLINE_MUTANT";

/// Test real Bowline processes: inject faults and check what their clients observed
#[derive(Parser, Debug)]
#[command(name = "bowline-jepsen", arg_required_else_help = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run one workload with one nemesis
    Run(RunOptions),
    /// Run every workload and every nemesis at least once, some also over servers (with --quick in under ten minutes)
    All(AllOptions),
    /// Run every workload with every nemesis, with cluster sizes in turn
    Matrix(MatrixOptions),
    /// Add up the results of earlier runs as Markdown
    Sum {
        /// Directories of reports, the oldest first
        #[arg(default_value = "target/jepsen")]
        dirs: Vec<PathBuf>,
    },
    /// List the workloads and nemeses
    List,
    /// Run one member that reads its orders from standard input
    #[command(hide = true)]
    Node {
        /// DIR NAME NAME=ADDRESS,... [POINT:HITS]
        words: Vec<String>,
    },
}

#[derive(Args, Debug)]
struct RunOptions {
    /// Workload of the clients (see `list`)
    #[arg(long)]
    workload: String,
    /// Faults to inject (see `list`)
    #[arg(long, default_value = "none")]
    nemesis: String,
    /// Number of members
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    nodes: u8,
    /// How clients reach the members: inside their processes, or over the API of `bowline serve`
    #[arg(long, value_enum, default_value_t)]
    over: Over,
    /// Number of runs, each with the next seed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct AllOptions {
    /// Make short runs
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct MatrixOptions {
    /// Only these workloads, separated by commas
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Only these nemeses, separated by commas
    #[arg(long, value_delimiter = ',')]
    nemeses: Vec<String>,
    /// How clients reach the members: inside their processes, or over the API of `bowline serve`
    #[arg(long, value_enum, default_value_t)]
    over: Over,
    /// Maximum number of runs
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    runs: Option<usize>,
    /// Skip runs that are ok in --out: with the same programs, pace and rate, and at least the same length
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct Common {
    /// Length of the load of a run, in seconds [default: 60; 10 with --quick]
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed for the targets of faults and the choices of clients
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Length of a fault, in seconds [default: 4; 3 with --quick]
    #[arg(long)]
    window: Option<f32>,
    /// Pause between faults, in seconds [default: 4; 1.5 with --quick]
    #[arg(long)]
    rest: Option<f32>,
    /// Maximum number of client steps per second in total
    #[arg(long, default_value_t = 300)]
    rate: u64,
    /// Number of parallel runs [default: 1; one per processor with `all`]
    #[arg(long)]
    at_once: Option<usize>,
    /// Server program for runs over servers [default: `bowline` in the directory of this program]
    #[arg(long)]
    server: Option<PathBuf>,
    /// Directory for pages, histories and results
    #[arg(long, default_value = "target/jepsen")]
    out: PathBuf,
    /// Print one JSON object per run
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // If the message cannot be printed, the exit code remains.
            drop(error.print());
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(EXIT_USAGE),
            };
        }
    };
    match arguments.command {
        Command::Run(options) => run_one(&options),
        Command::All(options) => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let plans = plans(&matrix::cross_section(), &options.common, options.quick);
            execute(&plans, &options.common, processors)
        }
        Command::Matrix(options) => run_matrix(&options),
        Command::Sum { dirs } => sum(&dirs),
        Command::List => list(),
        Command::Node { words } => match driver::main(&words) {
            Ok(()) => ExitCode::SUCCESS,
            // The node has reported the reason on its standard output, which the harness reads.
            Err(_) => ExitCode::FAILURE,
        },
    }
}

fn run_one(options: &RunOptions) -> ExitCode {
    let Some(workload) = workload::named(&options.workload) else {
        return report_problem(&format!("unknown workload {}: see `list`", options.workload));
    };
    let Some(nemesis) = nemesis::named(&options.nemesis) else {
        return report_problem(&format!("unknown nemesis {}: see `list`", options.nemesis));
    };
    let (members, over) = (options.nodes.into(), options.over);
    if let Some(why) = over.refuses(workload, nemesis) {
        return report_problem(&why);
    }
    let plan = plan(&options.common, Cell { workload, nemesis, members, over }, false);
    let again = |time| Plan { seed: plan.seed + time, ..plan.clone() };
    execute(&(0..options.times).map(again).collect::<Vec<_>>(), &options.common, 1)
}

fn run_matrix(options: &MatrixOptions) -> ExitCode {
    let unknown = (options.workloads.iter())
        .find(|name| workload::named(name).is_none())
        .or_else(|| options.nemeses.iter().find(|name| nemesis::named(name).is_none()));
    if let Some(name) = unknown {
        return report_problem(&format!("unknown workload or nemesis {name}: see `list`"));
    }
    let chosen = |of: &[String], name: &str| of.is_empty() || of.iter().any(|n| n == name);
    let mut cells = match options.over {
        Over::Embedded => matrix::pairwise(),
        Over::Server => matrix::pairwise_over_servers(),
    };
    cells.retain(|cell| {
        chosen(&options.workloads, cell.workload.name)
            && chosen(&options.nemeses, cell.nemesis.name)
    });
    if cells.is_empty() {
        return report_problem(
            "no selected run is supported over servers: see docs/assurance/harness.md",
        );
    }
    let mut plans = plans(&cells, &options.common, false);
    if options.resume {
        let programs = match programs(&options.common) {
            Ok(programs) => programs,
            Err(why) => return report_problem(&why),
        };
        match series::remembered(&options.common.out) {
            Ok(summaries) => plans = series::not_done(plans, &programs, &summaries),
            Err(trouble) => return report_problem(&trouble.to_string()),
        }
    }
    plans.truncate(options.runs.unwrap_or(usize::MAX));
    execute(&plans, &options.common, 1)
}

fn sum(dirs: &[PathBuf]) -> ExitCode {
    let remembered: Result<Vec<_>, _> = dirs.iter().map(|dir| series::remembered(dir)).collect();
    let by_dir = match remembered {
        Ok(by_dir) => by_dir,
        Err(trouble) => return report_problem(&trouble.to_string()),
    };
    let empty = dirs.iter().zip(&by_dir).find(|(_, summaries)| summaries.is_empty());
    if let Some((dir, _)) = empty {
        drop(writeln!(io::stderr().lock(), "error: no results in {}", dir.display()));
    }
    let summaries = by_dir.concat();
    say(&report::tally(&summaries));
    exit_for(report::left(&summaries).or(empty.map(|_| "invalid")))
}

fn plans(cells: &[Cell], common: &Common, quick: bool) -> Vec<Plan> {
    cells.iter().map(|cell| plan(common, *cell, quick)).collect()
}

fn plan(common: &Common, cell: Cell, quick: bool) -> Plan {
    let Cell { workload, nemesis, members, over } = cell;
    // A control (a workload that must fail) needs many faults, because not every fault affects the holder of the lock.
    let (seconds, window, rest) = match (workload.control.is_some(), quick) {
        (true, false) => (60, 3.5, 1.0),
        (true, true) => (30, 3.5, 1.0),
        (false, true) => (10, 3.0, 1.5),
        (false, false) => (60, 4.0, 4.0),
    };
    let span = |asked: Option<f32>, usual| {
        let seconds = asked.unwrap_or(usual);
        Duration::try_from_secs_f32(seconds).unwrap_or(Pace::default().window)
    };
    Plan {
        workload,
        nemesis,
        members,
        over,
        load: Duration::from_secs(common.seconds.unwrap_or(seconds)),
        seed: common.seed,
        pace: Pace { window: span(common.window, window), rest: span(common.rest, rest) },
        rate: common.rate,
    }
}

fn execute(plans: &[Plan], common: &Common, at_once: usize) -> ExitCode {
    let programs = match programs(common) {
        Ok(programs) => programs,
        Err(why) => return report_problem(&why),
    };
    // If exactly one run was requested, it must not be skipped.
    if let ([plan, ..], true) = (plans, plans.iter().all(|plan| plan.over == Over::Server))
        && let Err(why) = programs.of(plan.over)
    {
        return report_problem(&why);
    }
    if programs.mutant.is_some() && plans.iter().all(|plan| plan.over == Over::Server) {
        return report_problem(
            "BOWLINE_MUTANT requires --over embedded: servers are built without mutants",
        );
    }
    if !common.json {
        say(&report::heading());
    }
    let begun = Instant::now();
    let at_once = common.at_once.unwrap_or(at_once);
    let summaries = series::run(plans, &programs, &common.out, at_once, |summary, progress| {
        match common.json {
            true => say(&serde_json::to_string(summary).unwrap_or_default()),
            false => say(&report::row(summary)),
        }
        // An error is ignored, because the progress is only informational.
        drop(writeln!(io::stderr().lock(), "{}", report::progress(progress)));
    });
    let summaries = match summaries {
        Ok(summaries) => summaries,
        Err(trouble) => return report_problem(&trouble.to_string()),
    };
    if !common.json {
        say(&report::sum(&summaries, begun.elapsed()));
        say(&format!("pages: {}", common.out.display()));
    }
    let some = |verdict: &&str| summaries.iter().any(|summary| summary.verdict == *verdict);
    exit_for(["violation", "undecided", "invalid"].into_iter().find(some))
}

/// Returns the exit code of the worst verdict.
fn exit_for(worst: Option<&str>) -> ExitCode {
    match worst {
        Some("violation") => ExitCode::from(EXIT_VIOLATION),
        Some(_) => ExitCode::from(EXIT_NO_VERDICT),
        None => ExitCode::SUCCESS,
    }
}

/// Returns the programs of the members and the promise that they break on purpose.
fn programs(common: &Common) -> Result<Programs, String> {
    let path = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let mutant = std::env::var_os(MUTANT).map(|name| name.to_string_lossy().into_owned());
    if mutant.is_some() && !cfg!(bowline_mutants) {
        return Err(format!(
            "{MUTANT} is set, but this harness is built without mutants: build it with RUSTFLAGS=\"--cfg bowline_mutants\", or unset it"
        ));
    }
    Ok(Programs::beside(&path, common.server.as_deref()).with_mutant(mutant))
}

fn list() -> ExitCode {
    say("workloads");
    for workload in workload::ALL {
        say(&format!("  {:<22} {}", workload.name, workload.about));
    }
    say("nemeses");
    for nemesis in nemesis::ALL {
        let not_here = match (nemesis.possible)() {
            Ok(()) => String::new(),
            Err(why) => format!(" (not supported on this machine: {why})"),
        };
        say(&format!("  {:<22} {}{not_here}", nemesis.name, nemesis.about));
    }
    ExitCode::SUCCESS
}

fn say(line: &str) {
    // If the output is closed, the exit code remains.
    drop(writeln!(io::stdout().lock(), "{line}"));
}

fn report_problem(why: &str) -> ExitCode {
    drop(writeln!(io::stderr().lock(), "error: {why}"));
    ExitCode::from(EXIT_USAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_runs_are_rejected_and_have_no_verdict() {
        let is_asked = |words: &[&str]| {
            Arguments::try_parse_from([&["bowline-jepsen"], words].concat()).is_ok()
        };
        for (times, may_be) in [("0", false), ("1", true)] {
            assert_eq!(is_asked(&["run", "--workload", "set", "--times", times]), may_be);
            assert_eq!(is_asked(&["matrix", "--runs", times]), may_be);
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(sum(&[dir.path().to_owned()]), ExitCode::from(EXIT_NO_VERDICT));
    }
}
