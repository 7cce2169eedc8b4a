//! Formats the results of many runs as text for a terminal: one line per run, and a total.

use std::time::Duration;

use super::Summary;
use crate::series::Progress;

/// Returns the names of the columns.
pub fn heading() -> String {
    format!(
        "{:<21} {:<20} {:<8} {:>5} {:>9} {:>8} {:>7} {:>7} {:>6} {:>8} {:>8} {:>6} {:>7}",
        "workload",
        "nemesis",
        "over",
        "nodes",
        "verdict",
        "ok",
        "failed",
        "unknown",
        "ok/s",
        "p50 ms",
        "p99 ms",
        "faults",
        "leaders"
    )
}

/// Returns the line of a run. If the run is not ok, the reason follows.
pub fn row(summary: &Summary) -> String {
    let Summary { workload, nemesis, members, verdict, operations, .. } = summary;
    let mut row = format!(
        "{workload:<21} {nemesis:<20} {:<8} {members:>5} {verdict:>9} {:>8} {:>7} {:>7} {:>6.0} {:>8.1} {:>8.1} {:>6} \
         {:>7}",
        summary.over.word(),
        operations.ok,
        operations.failed,
        operations.unknown,
        summary.ok_per_second,
        summary.latency_ms_median,
        summary.latency_ms_p99,
        summary.faults,
        summary.leader_changes,
    );
    if verdict != "ok" {
        row.push_str(&format!("\n    {}", summary.why));
        row.push_str(&format!("\n    repeat: {}", summary.command));
    }
    for file in &summary.evidence {
        row.push_str(&format!("\n    evidence: {}", file.display()));
    }
    for again in &summary.judge_again {
        row.push_str(&format!("\n    check again: {again}"));
    }
    row
}

/// Returns a line about all runs. `took` is their total time; some of them may have run in parallel.
pub fn sum(summaries: &[Summary], took: Duration) -> String {
    let of = |verdict| summaries.iter().filter(|summary| summary.verdict == verdict).count();
    let ok: u64 = summaries.iter().map(|summary| summary.operations.ok).sum();
    let all: u64 = (summaries.iter())
        .map(|s| s.operations.ok + s.operations.failed + s.operations.unknown)
        .sum();
    format!(
        "{} runs: {} ok, {} violations, {} undecided, {} invalid, {} skipped; {all} operations, {ok} of them ok; \
         {} s",
        summaries.len(),
        of("ok"),
        of("violation"),
        of("undecided"),
        of("invalid"),
        of("skipped"),
        took.as_secs(),
    )
}

/// Returns a line about the progress of a series.
pub fn progress(progress: Progress) -> String {
    let Progress { done, of, bad, left } = progress;
    format!("{done} of {of} runs done, {bad} of them not ok; about {} s left", left.as_secs())
}
