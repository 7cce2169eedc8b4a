//! Many runs on a terminal: a line each, and a sum.

use super::Summary;

/// The names of the columns.
pub fn heading() -> String {
    format!(
        "{:<21} {:<20} {:>5} {:>9} {:>8} {:>7} {:>7} {:>6} {:>8} {:>8} {:>6} {:>7}",
        "workload",
        "nemesis",
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

/// A run in a line; with the reason below it if it is not ok.
pub fn row(summary: &Summary) -> String {
    let Summary { workload, nemesis, members, verdict, operations, .. } = summary;
    let mut row = format!(
        "{workload:<21} {nemesis:<20} {members:>5} {verdict:>9} {:>8} {:>7} {:>7} {:>6.0} {:>8.1} {:>8.1} {:>6} {:>7}",
        operations.ok,
        operations.failed,
        operations.unknown,
        summary.ok_per_second,
        summary.latency_ms_median,
        summary.latency_ms_p99,
        summary.faults,
        summary.leader_changes,
    );
    if *verdict != "ok" {
        row.push_str(&format!("\n    {}", summary.why));
        row.push_str(&format!("\n    again: {}", summary.command));
    }
    if let Some(history) = &summary.history {
        row.push_str(&format!("\n    history: {}", history.display()));
    }
    row
}

/// All of them in a line.
pub fn sum(summaries: &[Summary]) -> String {
    let of = |verdict| summaries.iter().filter(|summary| summary.verdict == verdict).count();
    let ok: u64 = summaries.iter().map(|summary| summary.operations.ok).sum();
    let all: u64 = (summaries.iter())
        .map(|s| s.operations.ok + s.operations.failed + s.operations.unknown)
        .sum();
    let seconds: f64 = summaries.iter().map(|summary| summary.seconds).sum();
    let cpu: f64 = summaries.iter().map(|summary| summary.cpu_seconds).sum();
    format!(
        "{} runs: {} ok, {} violations, {} undecided, {} invalid, {} skipped; {all} operations, {ok} of them ok; \
         {seconds:.0} s, {cpu:.0} s of the processors",
        summaries.len(),
        of("ok"),
        of("violation"),
        of("undecided"),
        of("invalid"),
        of("skipped"),
    )
}
