//! What becomes of a member's disk, and what then becomes of the member and of its cluster: files that
//! are deleted, cut short, flipped, swapped and replaced by older copies, of one member of three and of a
//! single node; directories that belong to somebody else; no room. `docs/operating/disks.md` promises the outcomes.

mod directory;
mod files;
mod full;
mod log;
mod snapshot;
mod warm;

/// Says what a test has counted: that is part of its result.
#[allow(clippy::print_stderr, reason = "the counts are part of the test's result")]
fn say(line: &str) {
    eprintln!("{line}");
}
