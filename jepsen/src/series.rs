//! Many runs, some of them side by side. What each came to is written down at once, so that a series that was
//! broken off goes on where it was, and several add up.
//!
//! Runs share the processors and nothing else: each has its own ports, directories and file systems.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::over::Programs;
use crate::process::Trouble;
use crate::report::{self, Summary};
use crate::run::{self, Plan};

/// Where a directory of reports says what came of its runs: a [`Summary`] as JSON in each line.
pub const RUNS: &str = "runs.jsonl";

/// How far a series is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// How many runs have ended.
    pub done: usize,
    /// Of how many.
    pub of: usize,
    /// How many of those that have ended were neither ok nor skipped.
    pub bad: usize,
    /// How long the others will take, roughly.
    pub left: Duration,
}

/// Runs all plans, `at_once` of them side by side, and tells of each when it has ended.
///
/// # Errors
/// A report cannot be written.
pub fn run(
    plans: &[Plan],
    programs: &Programs,
    out: &Path,
    at_once: usize,
    mut told: impl FnMut(&Summary, Progress),
) -> Result<Vec<Summary>, Trouble> {
    let (begun, next) = (Instant::now(), Mutex::new(plans.iter()));
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, plans.len().max(1)) {
            let (sender, take) = (sender.clone(), &take);
            scope.spawn(move || {
                while let Some(plan) = take() {
                    let ran = match programs.of(plan.over) {
                        Ok(program) => run::run(plan, program),
                        Err(why) => run::skipped(plan, why),
                    };
                    let written = report::write(&ran, out);
                    if sender.send((plan, written)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let (mut summaries, mut loaded) = (Vec::new(), Duration::ZERO);
        let whole: Duration = plans.iter().map(|plan| plan.load).sum();
        for (plan, written) in &receiver {
            let summary = written?;
            remember(&summary, out)?;
            loaded += plan.load;
            let bad = |summary: &&Summary| !["ok", "skipped"].contains(&summary.verdict.as_str());
            summaries.push(summary);
            let share = whole.as_secs_f64() / loaded.as_secs_f64().max(1e-3) - 1.0;
            told(
                summaries.last().expect("it was just pushed"),
                Progress {
                    done: summaries.len(),
                    of: plans.len(),
                    bad: summaries.iter().filter(bad).count(),
                    left: begun.elapsed().mul_f64(share.clamp(0.0, 1e6)),
                },
            );
        }
        Ok(summaries)
    })
}

/// Adds a line to what a directory knows of its runs.
fn remember(summary: &Summary, dir: &Path) -> Result<(), Trouble> {
    let line = serde_json::to_string(summary).unwrap_or_default() + "\n";
    fs::create_dir_all(dir)
        .and_then(|()| fs::OpenOptions::new().append(true).create(true).open(dir.join(RUNS)))
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|source| Trouble::System { what: "writing down a run", source })
}

/// What a directory knows of its runs, the oldest first. One that does not exist knows of none.
///
/// # Errors
/// The file system's; a line that is none of ours.
pub fn remembered(dir: &Path) -> Result<Vec<Summary>, Trouble> {
    let system = |source| Trouble::System { what: "reading what runs came to", source };
    let file = match fs::File::open(dir.join(RUNS)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(system)?,
    };
    let read = |line: std::io::Result<String>| {
        line.and_then(|line| serde_json::from_str(&line).map_err(Into::into)).map_err(system)
    };
    BufReader::new(file).lines().map(read).collect()
}

/// What several directories know of their runs.
///
/// # Errors
/// Those of [`remembered`].
pub fn remembered_in(dirs: &[PathBuf]) -> Result<Vec<Summary>, Trouble> {
    let all = dirs.iter().map(|dir| remembered(dir)).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// The plans that have not been run yet, at least as long and well, by these summaries.
pub fn not_done(plans: Vec<Plan>, summaries: &[Summary]) -> Vec<Plan> {
    let is_of = |summary: &Summary, plan: &Plan| {
        (summary.workload.as_str(), summary.nemesis.as_str())
            == (plan.workload.name, plan.nemesis.name)
            && (summary.members, summary.over, summary.seed) == (plan.members, plan.over, plan.seed)
            && summary.load_seconds >= plan.load.as_secs()
            && summary.verdict == "ok"
    };
    plans.into_iter().filter(|plan| !summaries.iter().any(|one| is_of(one, plan))).collect()
}
