//! Bowline (embedded, and as a server), etcd and Redis compared in one run.
//!
//! All systems run at the same time, and are measured in turns. The benchmark `versus` in `src/crates/cli/benches` runs
//! this module. [`report`] documents its files.

mod chart;
mod failover;
mod format;
mod options;
mod page;
mod redis;
pub mod report;
mod rows;
mod systems;
mod text;

use std::io::Write;
use std::path::Path;

use crate::crew::site::Site;
use crate::crew::{Plan, live};
use options::Options;
use report::Report;
use rows::{ROWS, RowMeasurements};
use systems::{Found, Systems};

/// Runs the benchmark, or a member of its embedded cluster if the arguments are those of a member. Unless options name
/// other directories, the data of all systems is stored in `tmp`, and the results in `tmp/versus`. `tmp` should be on a
/// real disk.
///
/// # Errors
/// Returns an error if an option is invalid, or a system that is installed does not work.
pub fn run(args: &[String], tmp: &Path, out: &mut dyn Write) -> Result<(), String> {
    if args.first().is_some_and(|arg| arg == Plan::WORD) {
        let plan = Plan::from_args(args).ok_or("invalid arguments of a member")?;
        live::<Site>(&plan, std::io::stdin().lock(), std::io::stdout().lock());
        return Ok(());
    }
    compare(&Options::from_args(args, tmp)?, out)
}

fn compare(options: &Options, out: &mut dyn Write) -> Result<(), String> {
    let words = |error: std::io::Error| error.to_string();
    std::fs::create_dir_all(&options.out)
        .map_err(|error| format!("--out {}: {error}", options.out.display()))?;
    let found = Found::look(options);
    let mut report = Report::new(options, &found);
    text::head(&report, out).map_err(words)?;
    let mut systems = Systems::start(options, &found)?;
    let rows: Vec<_> = ROWS.iter().filter(|row| options.wants(row.name)).collect();
    if !rows.is_empty() {
        systems.fill()?;
        text::rows_head(out).map_err(words)?;
    }
    for row in rows {
        let mut measurements = RowMeasurements::default();
        for round in 0..options.rounds {
            for system in systems.in_order_of(round) {
                if let Some((measured, cpu)) = systems.measure(row, system)? {
                    measurements.add(system, &measured, cpu);
                }
            }
        }
        let row = measurements.finish(row);
        text::row(&row, out).map_err(words)?;
        report.rows.push(row);
    }
    if options.wants(failover::NAME) {
        failover::measure(options, &mut systems, &mut report)?;
        text::failover(&report, out).map_err(words)?;
    }
    systems.end();
    report.machine.load_after = report::load_average();
    let (json, html) = (options.out.join("versus.json"), options.out.join("versus.html"));
    std::fs::write(&json, report.to_json()).map_err(words)?;
    std::fs::write(&html, page::page(&report)).map_err(words)?;
    writeln!(out, "\nwrote {} and {}", json.display(), html.display()).map_err(words)
}
