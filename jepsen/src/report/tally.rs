//! Computes totals of many runs, possibly from several series, and formats them as Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::Summary;
use crate::progress::PASSED_ON;

/// Kinds of operations that pass a lock or a leadership from one holder to the next.
const HANDOFFS: &[&str] = &["acquire", "campaign", PASSED_ON];
/// Prefix of workloads in which each addition takes a lock.
const ADDS_UNDER_LOCK: &str = "locked-set";
/// Prefixes of nemeses that crash members in each window.
const CRASHES: &[&str] = &["kill", "power"];

#[derive(Default)]
struct Row {
    runs: u64,
    ok: u64,
    operations: u64,
    faults: u64,
    handoffs: u64,
    seconds: f64,
}

impl Row {
    fn add(&mut self, summary: &Summary) {
        let count = summary.operations;
        self.runs += 1;
        self.ok += u64::from(summary.verdict == "ok");
        self.operations += count.ok + count.failed + count.unknown;
        self.faults += summary.faults as u64;
        self.handoffs += handoffs(summary);
        self.seconds += summary.seconds;
    }
}

fn handoffs(summary: &Summary) -> u64 {
    let under_lock = summary.workload.starts_with(ADDS_UNDER_LOCK);
    let is_one = |kind: &str| HANDOFFS.contains(&kind) || under_lock && kind == "add";
    summary.kinds.iter().filter(|(kind, _)| is_one(kind)).map(|(_, count)| count.ok).sum()
}

/// Returns totals, a table by workload, a table by nemesis, every run that was not ok with the command that repeats
/// it, and the skipped runs with the reasons. Runs whose nodes broke a promise on purpose are listed separately.
pub fn tally(summaries: &[Summary]) -> String {
    let (skipped, ran): (Vec<&Summary>, Vec<&Summary>) =
        summaries.iter().filter(|one| is_ordinary(one)).partition(|one| one.verdict == "skipped");
    let mut all = Row::default();
    ran.iter().for_each(|summary| all.add(summary));
    let crashes: usize = (ran.iter())
        .filter(|one| CRASHES.iter().any(|crash| one.nemesis.starts_with(crash)))
        .map(|one| one.faults)
        .sum();
    let minutes = ran.iter().filter(|one| one.load_seconds >= 60).count();
    let mut page = format!(
        "{} runs, {minutes} of them of 60 s or more; {} ok, {} not ok, {} more skipped; {} operations, {} changes of \
         lock holders or leaders, {} faults, {crashes} of them kills and power cuts; {:.1} hours\n",
        all.runs,
        all.ok,
        all.runs - all.ok,
        skipped.len(),
        all.operations,
        all.handoffs,
        all.faults,
        all.seconds / 3600.0,
    );
    let nobody_knows = |one: &&&Summary| one.made.build.is_none();
    let builds: BTreeSet<&str> = ran.iter().filter_map(|one| one.made.build.as_deref()).collect();
    if builds.len() > 1 || ran.iter().any(|one| nobody_knows(&one)) {
        writeln!(
            page,
            "They used {} builds; {} of them have no recorded build",
            builds.len(),
            ran.iter().filter(nobody_knows).count()
        )
        .expect("a String takes everything");
    }
    table(&mut page, "workload", &ran, |one| &one.workload);
    table(&mut page, "nemesis", &ran, |one| &one.nemesis);
    table(&mut page, "clients", &ran, |one| one.over.word());
    let left = of_verdicts(summaries);
    let is_left = |one: &&&Summary| left.iter().any(|other| std::ptr::eq(**one, *other));
    for bad in ran.iter().filter(|one| one.verdict != "ok") {
        let Summary { workload, nemesis, members, over, verdict, why, command, .. } = bad;
        let (over, again) =
            (over.word(), if is_left(&bad) { "" } else { " (repeated with result ok)" });
        write!(
            page,
            "\n{verdict}{again}: {workload}, {nemesis}, {members} members, {over}: {why}\n    {command}\n"
        )
        .expect("a String takes everything");
    }
    let mut reasons: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for one in skipped {
        *reasons.entry((&one.workload, &one.nemesis, &one.why)).or_default() += 1;
    }
    for ((workload, nemesis, why), times) in reasons {
        writeln!(page, "\nskipped {times} times: {workload}, {nemesis}: {why}")
            .expect("a String takes everything");
    }
    of_mutants(&mut page, summaries);
    page
}

/// Returns whether the nodes of the run broke no promise on purpose.
fn is_ordinary(one: &Summary) -> bool {
    one.made.mutant.is_none()
}

/// Adds the results of mutants.
fn of_mutants(page: &mut String, summaries: &[Summary]) {
    let mut seen: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for one in summaries {
        let Some(mutant) = &one.made.mutant else { continue };
        let (runs, violations) = seen.entry(mutant).or_default();
        *runs += 1;
        *violations += u64::from(one.verdict == "violation");
    }
    for (mutant, (runs, violations)) in seen {
        writeln!(page, "\nin addition, with {mutant}: {runs} runs, {violations} violations")
            .expect("a String takes everything");
    }
}

/// Returns the overall problem of these runs: `violation` if a run has a violation; otherwise `undecided` if a run is
/// undecided; otherwise `invalid` if there are no runs, or if an invalid run was not repeated successfully. The runs
/// must be sorted with the oldest first.
pub fn left(summaries: &[Summary]) -> Option<&'static str> {
    if !summaries.iter().any(is_ordinary) {
        return Some("invalid");
    }
    let left = of_verdicts(summaries);
    ["violation", "undecided", "invalid"]
        .into_iter()
        .find(|verdict| left.iter().any(|one| one.verdict == *verdict))
}

/// Returns the runs that were not ok. An invalid run is omitted if a later ok run replaces it. Violations and
/// undecided runs are never omitted: processes are not deterministic, so another run has another history.
fn of_verdicts(summaries: &[Summary]) -> Vec<&Summary> {
    let is_left = |(place, one): &(usize, &Summary)| match one.verdict.as_str() {
        "ok" | "skipped" => false,
        "invalid" => {
            !summaries[*place..].iter().any(|later| later.verdict == "ok" && later.stands_for(one))
        }
        _ => true,
    };
    let ordinary = summaries.iter().enumerate().filter(|(_, one)| is_ordinary(one));
    ordinary.filter(is_left).map(|(_, one)| one).collect()
}

/// Adds a table of the runs, grouped by a name.
fn table(page: &mut String, title: &str, ran: &[&Summary], name: impl Fn(&Summary) -> &str) {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    ran.iter().for_each(|summary| rows.entry(name(summary)).or_default().add(summary));
    let mut say = |line: String| page.push_str(&(line + "\n"));
    say(format!(
        "\n| {title} | runs | ok | operations | handoffs | faults |\n|---|---|---|---|---|---|"
    ));
    for (name, row) in rows {
        let Row { runs, ok, operations, handoffs, faults, .. } = row;
        say(format!("| {name} | {runs} | {ok} | {operations} | {handoffs} | {faults} |"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nemesis::{self, Pace};
    use crate::over::{Build, Over};
    use crate::run::{self, Plan, Verdict};
    use crate::workload;
    use std::time::Duration;

    fn summary(seed: u64, verdict: Verdict) -> Summary {
        let plan = Plan {
            workload: workload::named("register").unwrap(),
            nemesis: nemesis::named("kill").unwrap(),
            members: 3,
            over: Over::Embedded,
            load: Duration::from_secs(60),
            seed,
            pace: Pace::default(),
            rate: 300,
        };
        let made = Build { build: Some("b".to_owned()), mutant: None };
        Summary::of(&run::without(&plan, verdict), made)
    }

    fn ok(seed: u64) -> Summary {
        summary(seed, Verdict::Ok("well".to_owned()))
    }

    #[test]
    fn total_verdict_is_the_worst_without_a_successful_rerun() {
        let violation = |seed| summary(seed, Verdict::Violation("lost".to_owned()));
        let invalid = |seed| summary(seed, Verdict::Invalid("nothing happened".to_owned()));
        let skipped = summary(1, Verdict::Skipped("no root".to_owned()));
        assert_eq!(left(&[ok(1), skipped]), None);
        assert_eq!(left(&[]), Some("invalid"), "no runs are not ok");
        assert_eq!(left(&[ok(1), violation(2), invalid(3)]), Some("violation"));
        assert_eq!(left(&[violation(1), ok(1)]), Some("violation"), "a violation remains");
        assert_eq!(left(&[ok(1), invalid(2)]), Some("invalid"));
        assert_eq!(left(&[invalid(1), ok(1)]), None, "it was repeated");
        assert_eq!(left(&[ok(1), invalid(1)]), Some("invalid"), "it was not repeated since");
        let undecided = || summary(2, Verdict::Undecided("steps".to_owned()));
        assert_eq!(left(&[undecided(), invalid(3)]), Some("undecided"));
        assert_eq!(
            left(&[undecided(), ok(2)]),
            Some("undecided"),
            "another run has another history"
        );
    }

    #[test]
    fn rerun_with_other_settings_does_not_replace_an_invalid_run() {
        let changes: &[fn(&mut Summary)] = &[
            |other| other.load_seconds = 10,
            |other| other.rate = 100,
            |other| other.window_ms = 100,
            |other| other.rest_ms = 60_000,
            |other| other.made.build = Some("a".to_owned()),
            |other| other.made.mutant = Some("M06".to_owned()),
        ];
        for (place, change) in changes.iter().enumerate() {
            let mut other = ok(1);
            change(&mut other);
            let invalid = summary(1, Verdict::Invalid("nothing happened".to_owned()));
            assert_eq!(left(&[invalid, other]), Some("invalid"), "change {place}");
        }
        let nobodys = |mut of: Summary| {
            of.made.build = None;
            of
        };
        let invalid = summary(1, Verdict::Invalid("nothing happened".to_owned()));
        assert_eq!(left(&[nobodys(invalid), nobodys(ok(1))]), Some("invalid"));
    }

    #[test]
    fn report_lists_skipped_runs_and_counts_mutant_runs_separately() {
        let mutant = |verdict| {
            let mut summary = summary(7, verdict);
            summary.made.mutant = Some("M06".to_owned());
            summary
        };
        let caught = mutant(Verdict::Violation("seen".to_owned()));
        let all = [
            ok(1),
            summary(2, Verdict::Skipped("no root".to_owned())),
            summary(3, Verdict::Skipped("no root".to_owned())),
            caught,
            mutant(Verdict::Ok("not seen".to_owned())),
        ];
        assert_eq!(left(&all), None, "mutants say nothing about ordinary runs");
        assert_eq!(left(&all[3..]), Some("invalid"), "mutants alone are not ok");
        let page = tally(&all);
        for part in [
            "1 runs, 1 of them of 60 s or more; 1 ok, 0 not ok, 2 more skipped;",
            "skipped 2 times: register, kill: no root",
            "in addition, with M06: 2 runs, 1 violations",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("violation:"), "{page}");
    }
}
