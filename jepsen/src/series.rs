//! Runs many plans, some of them in parallel. Each result is stored as soon as its run ends. An interrupted series can
//! therefore be resumed, and the results of several series can be added up.
//!
//! Parallel runs share only the processors: each run has its own ports, directories and file systems.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::over::Programs;
use crate::process::HarnessError;
use crate::report::{self, Summary};
use crate::run::{self, Plan, Ran, Verdict};
use crate::workload::words_of;

/// File name of the results in a directory of reports: one [`Summary`] as JSON per line.
pub const RUNS: &str = "runs.jsonl";

/// The progress of a series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Number of completed runs.
    pub done: usize,
    /// Total number of runs.
    pub of: usize,
    /// Number of completed runs that were neither ok nor skipped.
    pub bad: usize,
    /// Rough estimate of the remaining time.
    pub left: Duration,
}

/// Runs all plans, `at_once` of them in parallel, and calls the callback after each run.
///
/// # Errors
///
/// Returns an error if a report cannot be written.
pub fn run(
    plans: &[Plan],
    programs: &Programs,
    out: &Path,
    at_once: usize,
    mut told: impl FnMut(&Summary, Progress),
) -> Result<Vec<Summary>, HarnessError> {
    let (begun, next) = (Instant::now(), Mutex::new(plans.iter()));
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once.clamp(1, plans.len().max(1)) {
            let (sender, take) = (sender.clone(), &take);
            scope.spawn(move || {
                while let Some(plan) = take() {
                    let ran = match programs.of(plan.over) {
                        Ok(program) => whole(plan, || run::run(plan, program)),
                        Err(why) => run::without(plan, Verdict::Skipped(why)),
                    };
                    let written = report::write(&ran, programs.build(plan.over), out);
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

/// Runs a plan. If the harness itself panics, the run is recorded as invalid.
fn whole(plan: &Plan, run: impl FnOnce() -> Ran) -> Ran {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let why = format!("the harness panicked: {}", words_of(&*panic));
        run::without(plan, Verdict::Invalid(why))
    })
}

/// Adds a line to the results in a directory.
fn remember(summary: &Summary, dir: &Path) -> Result<(), HarnessError> {
    let line = serde_json::to_string(summary).unwrap_or_default() + "\n";
    fs::create_dir_all(dir)
        .and_then(|()| fs::OpenOptions::new().append(true).create(true).open(dir.join(RUNS)))
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(HarnessError::system("cannot record a run"))
}

/// Returns the results in a directory, the oldest first. If the directory does not exist, returns no results.
///
/// # Errors
///
/// Returns errors of the file system, and an error for an invalid line.
pub fn remembered(dir: &Path) -> Result<Vec<Summary>, HarnessError> {
    let system = HarnessError::system("cannot read the results of runs");
    let file = match fs::File::open(dir.join(RUNS)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(system)?,
    };
    let read = |line: std::io::Result<String>| {
        line.and_then(|line| serde_json::from_str(&line).map_err(Into::into)).map_err(system)
    };
    BufReader::new(file).lines().map(read).collect()
}

/// Returns the plans that still need a run. A plan needs no run if an ok run of the plan is recorded that was at least
/// as long and used the same programs.
pub fn not_done(plans: Vec<Plan>, programs: &Programs, summaries: &[Summary]) -> Vec<Plan> {
    let is_done = |plan: &Plan| {
        let wanted = run::without(plan, Verdict::Ok(String::new()));
        let wanted = Summary::of(&wanted, programs.build(plan.over));
        summaries.iter().any(|one| one.verdict == "ok" && one.stands_for(&wanted))
    };
    plans.into_iter().filter(|plan| !is_done(plan)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::{self, Pace};
    use crate::over::{Build, Over};
    use crate::workload;

    fn plan() -> Plan {
        Plan {
            workload: workload::named("register").unwrap(),
            nemesis: nemesis::named("kill").unwrap(),
            members: 3,
            over: Over::Embedded,
            load: Duration::from_secs(60),
            seed: 1,
            pace: Pace::default(),
            rate: 300,
        }
    }

    /// Returns a harness with this content in a directory of its own.
    fn programs(bytes: &str) -> Programs {
        let dir = tempfile::tempdir().unwrap();
        let harness = dir.path().join("harness");
        fs::write(&harness, bytes).unwrap();
        Programs::beside(&harness, None)
    }

    fn summary(programs: &Programs) -> Summary {
        let ran = run::without(&plan(), Verdict::Ok("all is well".to_owned()));
        Summary::of(&ran, programs.build(Over::Embedded))
    }

    #[test]
    fn successful_run_counts_only_for_the_same_programs_and_settings() {
        let programs_of_now = programs("of now");
        let left = |change: fn(&mut Summary)| {
            let mut summary = summary(&programs_of_now);
            change(&mut summary);
            not_done(vec![plan()], &programs_of_now, &[summary]).len()
        };
        assert_eq!(left(|_| {}), 0);
        assert_eq!(left(|summary| summary.load_seconds = 120), 0);
        assert_eq!(left(|summary| summary.rate = 3000), 0);
        let changes: &[fn(&mut Summary)] = &[
            |summary| summary.verdict = "invalid".to_owned(),
            |summary| summary.seed = 2,
            |summary| summary.load_seconds = 10,
            |summary| summary.rate = 100,
            |summary| summary.window_ms = 100,
            |summary| summary.rest_ms = 60_000,
            |summary| summary.made.mutant = Some("M06".to_owned()),
            |summary| summary.made.build = None,
            |summary| summary.made = programs("of yesterday").build(Over::Embedded),
        ];
        for (place, change) in changes.iter().enumerate() {
            assert_eq!(left(*change), 1, "change {place}");
        }
        let mutant = programs_of_now.clone().with_mutant(Some("M06".to_owned()));
        assert_eq!(not_done(vec![plan()], &mutant, &[summary(&programs_of_now)]).len(), 1);
    }

    #[test]
    fn summaries_of_older_harness_versions_can_be_read() {
        let line = r#"{"workload":"register","nemesis":"kill","members":3,"seed":1,"verdict":"ok","why":"",
            "operations":{"ok":9,"failed":0,"unknown":0},"kinds":{},"ok_per_second":1.0,"latency_ms_median":1.0,
            "latency_ms_p99":1.0,"faults":2,"leader_changes":1,"load_seconds":60,"seconds":70.0,"page":null,
            "evidence":[],"judge_again":[],"command":""}"#;
        let old: Summary = serde_json::from_str(line).unwrap();
        assert_eq!((old.rate, old.window_ms, old.rest_ms), (0, 0, 0));
        assert_eq!(old.made, Build::default());
        let new = summary(&programs("of now"));
        let again: Summary = serde_json::from_str(&serde_json::to_string(&new).unwrap()).unwrap();
        assert_eq!((again.made, again.rate, again.window_ms), (new.made, 300, 4000));
    }

    #[test]
    fn run_with_a_harness_panic_is_recorded_as_invalid() {
        let ran = whole(&plan(), || panic!("of a surprise"));
        let dir = tempfile::tempdir().unwrap();
        let summary = report::write(&ran, Build::default(), dir.path()).unwrap();
        remember(&summary, dir.path()).unwrap();
        let remembered = remembered(dir.path()).unwrap();
        assert_eq!((remembered.len(), remembered[0].verdict.as_str()), (1, "invalid"));
        assert!(remembered[0].why.contains("of a surprise"), "{}", remembered[0].why);
    }
}
