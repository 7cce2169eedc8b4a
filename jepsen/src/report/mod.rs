//! Reports of runs: an HTML page for each run, a text table and JSON for many runs, and the history of each run that
//! was not ok.

mod page;
mod plot;
mod table;
mod tally;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ledger::End;
use crate::over::{Build, Over};
use crate::process::HarnessError;
use crate::progress::{self, Count};
use crate::run::{Evidence, Ran, Verdict};

pub use table::{heading, progress, row, sum};
pub use tally::{left, tally};

/// The summary of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the workload.
    pub workload: String,
    /// Name of the nemesis.
    pub nemesis: String,
    /// Number of members.
    pub members: usize,
    /// How clients reached the members.
    #[serde(default)]
    pub over: Over,
    /// The seed.
    pub seed: u64,
    /// The build of the programs.
    #[serde(flatten)]
    pub made: Build,
    /// Maximum number of client steps per second. 0 in results of older harnesses, which did not record it.
    #[serde(default)]
    pub rate: u64,
    /// Intended length of a fault, in milliseconds. 0 in results of older harnesses.
    #[serde(default)]
    pub window_ms: u64,
    /// Intended length of the rest between two faults, in milliseconds. 0 in results of older harnesses.
    #[serde(default)]
    pub rest_ms: u64,
    /// `ok`, `violation`, `undecided`, `invalid` or `skipped`.
    pub verdict: String,
    /// The reason in a few words.
    pub why: String,
    /// Counts of all operations.
    pub operations: Count,
    /// Counts of operations by kind.
    pub kinds: std::collections::BTreeMap<String, Count>,
    /// Successful operations per second of load.
    pub ok_per_second: f64,
    /// Median latency of the successful operations, in milliseconds.
    pub latency_ms_median: f64,
    /// 99th percentile of the latency of the successful operations, in milliseconds.
    pub latency_ms_p99: f64,
    /// Number of faults.
    pub faults: usize,
    /// Number of leader changes.
    pub leader_changes: u64,
    /// Intended length of the load, in seconds.
    pub load_seconds: u64,
    /// Length of the run, in seconds.
    pub seconds: f64,
    /// Path of the page of the run.
    pub page: Option<PathBuf>,
    /// Files that a run leaves if the run is not ok: histories, and the pages of checkers.
    pub evidence: Vec<PathBuf>,
    /// Commands that check these histories again.
    pub judge_again: Vec<String>,
    /// The command that repeats the run.
    pub command: String,
}

impl Summary {
    /// Returns the summary of a run with this build.
    pub fn of(ran: &Ran, made: Build) -> Self {
        let kinds = progress::counts(&ran.entries);
        let mut operations = Count::default();
        for count in kinds.values() {
            operations.ok += count.ok;
            operations.failed += count.failed;
            operations.unknown += count.unknown;
        }
        let mut latencies: Vec<u64> = (ran.entries.iter())
            .filter(|entry| entry.end == End::Ok)
            .map(|entry| entry.ended - entry.invoked)
            .collect();
        latencies.sort_unstable();
        let at = |percent: usize| {
            let place = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
            latencies.get(place).map_or(0.0, |micros| *micros as f64 / 1000.0)
        };
        let load = ran.load.1.saturating_sub(ran.load.0) as f64 / 1e6;
        Self {
            workload: ran.plan.workload.name.to_owned(),
            nemesis: ran.plan.nemesis.name.to_owned(),
            members: ran.plan.members,
            over: ran.plan.over,
            seed: ran.plan.seed,
            made,
            rate: ran.plan.rate,
            window_ms: millis(ran.plan.pace.window),
            rest_ms: millis(ran.plan.pace.rest),
            verdict: ran.verdict.word().to_owned(),
            why: ran.verdict.why().to_owned(),
            operations,
            kinds: kinds.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect(),
            ok_per_second: if load > 0.0 { operations.ok as f64 / load } else { 0.0 },
            latency_ms_median: at(50),
            latency_ms_p99: at(99),
            faults: ran.windows.len(),
            leader_changes: ran.leader_changes,
            load_seconds: ran.plan.load.as_secs(),
            seconds: ran.took.as_secs_f64(),
            page: None,
            evidence: Vec::new(),
            judge_again: Vec::new(),
            command: ran.plan.command(),
        }
    }

    /// Returns whether this result makes another run unnecessary. The other run is unnecessary if both have the same
    /// plan, programs and pace, and this run was at least as long and had at least the same rate.
    pub(crate) fn stands_for(&self, other: &Self) -> bool {
        (&self.workload, &self.nemesis, self.members, self.over, self.seed)
            == (&other.workload, &other.nemesis, other.members, other.over, other.seed)
            && (self.window_ms, self.rest_ms) == (other.window_ms, other.rest_ms)
            && self.load_seconds >= other.load_seconds
            && self.rate >= other.rate
            // Runs are compared only if the build is known.
            && self.made.build.is_some()
            && self.made == other.made
    }
}

/// Returns a duration in milliseconds.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Writes the page of a run into a directory. If the run was not ok, also writes its histories. Returns the summary.
///
/// # Errors
///
/// Returns errors of the file system.
pub fn write(ran: &Ran, made: Build, dir: &Path) -> Result<Summary, HarnessError> {
    let system = HarnessError::system("cannot write a report");
    let mut summary = Summary::of(ran, made);
    if matches!(ran.verdict, Verdict::Skipped(_)) {
        return Ok(summary);
    }
    std::fs::create_dir_all(dir).map_err(system)?;
    let name = ran.plan.name();
    for Evidence { name: of, check, lines, page } in &ran.evidence {
        let history = dir.join(format!("{name}-{of}.jsonl"));
        std::fs::write(&history, lines).map_err(system)?;
        summary
            .judge_again
            .extend(check.map(|check| format!("bowline check {} {check}", history.display())));
        summary.evidence.push(history);
        if let Some(page) = page {
            let at = dir.join(format!("{name}-{of}.html"));
            std::fs::write(&at, page).map_err(system)?;
            summary.evidence.push(at);
        }
    }
    let page = dir.join(format!("{name}.html"));
    summary.page = Some(page.clone());
    std::fs::write(&page, page::page(ran, &summary)).map_err(system)?;
    Ok(summary)
}
