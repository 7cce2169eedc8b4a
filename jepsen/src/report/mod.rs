//! What is left of runs: a page for each, a table of many, the same as JSON, and the history of a run that went wrong.

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

/// A run in numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// What clients did.
    pub workload: String,
    /// What went wrong.
    pub nemesis: String,
    /// How many members.
    pub members: usize,
    /// How clients reached them.
    #[serde(default)]
    pub over: Over,
    /// Its seed.
    pub seed: u64,
    /// What it was made with.
    #[serde(flatten)]
    pub made: Build,
    /// How many steps of clients a second there were at most; 0 in lines of a harness that did not write it down.
    #[serde(default)]
    pub rate: u64,
    /// How long its faults were meant to last, in milliseconds, and 0 likewise.
    #[serde(default)]
    pub window_ms: u64,
    /// How long the rests between them.
    #[serde(default)]
    pub rest_ms: u64,
    /// `ok`, `violation`, `undecided`, `invalid` or `skipped`.
    pub verdict: String,
    /// Why, in a few words.
    pub why: String,
    /// How many operations, and how they ended.
    pub operations: Count,
    /// The same by kind.
    pub kinds: std::collections::BTreeMap<String, Count>,
    /// Operations a second of load that ended well.
    pub ok_per_second: f64,
    /// The median of their latencies, in milliseconds.
    pub latency_ms_median: f64,
    /// What one of a hundred exceeds.
    pub latency_ms_p99: f64,
    /// How many faults.
    pub faults: usize,
    /// How often somebody else led.
    pub leader_changes: u64,
    /// How long the load was meant to last, in seconds.
    pub load_seconds: u64,
    /// How long the run took, in seconds.
    pub seconds: f64,
    /// Its page.
    pub page: Option<PathBuf>,
    /// What it leaves if it is not ok: histories, and checkers' pages.
    pub evidence: Vec<PathBuf>,
    /// How those histories are judged again.
    pub judge_again: Vec<String>,
    /// How to run it again.
    pub command: String,
}

impl Summary {
    /// Of a run that was made with this.
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

    /// Whether it is the same run as another, at least as long, at this pace and no lower rate, by the very same programs: so
    /// that what it says is what the other was to say.
    pub(crate) fn stands_for(&self, other: &Self) -> bool {
        (&self.workload, &self.nemesis, self.members, self.over, self.seed)
            == (&other.workload, &other.nemesis, other.members, other.over, other.seed)
            && (self.window_ms, self.rest_ms) == (other.window_ms, other.rest_ms)
            && self.load_seconds >= other.load_seconds
            && self.rate >= other.rate
            // What nobody knows the build of is of another one.
            && self.made.build.is_some()
            && self.made == other.made
    }
}

/// As a line says it.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Writes the page of a run into a directory, and if it went wrong what clients saw. Says how it went.
///
/// # Errors
/// The file system's.
pub fn write(ran: &Ran, made: Build, dir: &Path) -> Result<Summary, HarnessError> {
    let system = |source| HarnessError::System { what: "writing a report", source };
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
