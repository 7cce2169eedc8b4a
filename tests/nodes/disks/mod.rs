//! Tests of damaged disks of one member of three, and of a single node: files that are deleted, truncated, flipped,
//! swapped and replaced by older copies; directories of other members; full disks. `docs/operating/disks.md`
//! documents the outcomes.

mod directory;
mod files;
mod full;
mod log;
mod snapshot;
mod warm;

/// Prints the counts of a test, to be read by the developer.
#[allow(clippy::print_stderr, reason = "the counts are part of the test's result")]
fn say(line: &str) {
    eprintln!("{line}");
}
