//! Tests of the runner itself: a short run is ok, a lost write is a violation, and a run in which nothing happened is
//! invalid. The command line reports each of them.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bowline_jepsen::caller::Caller;
use bowline_jepsen::fleet::Program;
use bowline_jepsen::nemesis::{self, Pace};
use bowline_jepsen::over::Build;
use bowline_jepsen::run::{self, Plan, Ran, Verdict};
use bowline_jepsen::workload::{self, Client, Exhibit, Workload};
use bowline_jepsen::{Over, report};

use crate::trial::THIEF;
use crate::{HARNESS, trial};

fn run(workload: &'static workload::Kind, nemesis: &'static nemesis::Kind, members: usize) -> Ran {
    let plan = Plan {
        workload,
        nemesis,
        members,
        over: Over::Embedded,
        load: Duration::from_secs(5),
        seed: 1,
        pace: Pace { window: Duration::from_secs(2), rest: Duration::from_millis(500) },
        rate: 200,
    };
    run::run(&plan, &Program { path: HARNESS.into(), words: vec!["node".to_owned()] })
}

/// Repeats a run until it is valid.
fn judged(
    workload: &'static workload::Kind,
    nemesis: &'static nemesis::Kind,
    members: usize,
) -> Ran {
    trial::until_judged(|| run(workload, nemesis, members))
}

fn named(name: &str) -> &'static workload::Kind {
    workload::named(name).unwrap()
}

#[test]
fn run_with_kills_passes_and_writes_a_page() {
    let ran = judged(named("register"), nemesis::named("kill").unwrap(), 3);
    assert!(matches!(ran.verdict, Verdict::Ok(_)), "{:?}", ran.verdict);
    assert!(ran.leader_changes > 0 && !ran.windows.is_empty());
    let dir = tempfile::tempdir().unwrap();
    let summary = report::write(&ran, Build::default(), dir.path()).unwrap();
    assert_eq!((summary.verdict.as_str(), summary.evidence.len()), ("ok", 0));
    let page = std::fs::read_to_string(summary.page.unwrap()).unwrap();
    for part in ["register under kill, 3 members", "<svg", "class=\"fault\"", "kills m", "--seed 1"]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn lost_write_fails_the_run_and_keeps_its_history() {
    for workload in ["set", "append", "bank", "queue"] {
        let ran = judged(named(workload), &THIEF, 1);
        assert!(matches!(ran.verdict, Verdict::Violation(_)), "{workload}: {:?}", ran.verdict);
        let dir = tempfile::tempdir().unwrap();
        let summary = report::write(&ran, Build::default(), dir.path()).unwrap();
        assert_eq!(summary.verdict, "violation");
        let history = std::fs::read_to_string(&summary.evidence[0]).unwrap();
        assert!(history.lines().count() > 10, "{history}");
        assert!(report::row(&summary).contains("evidence: "));
        // Public checkers leave a page and the command to repeat the check.
        let has_page =
            summary.evidence[1..].iter().any(|file| file.extension() == Some("html".as_ref()));
        assert_eq!(has_page, workload != "queue");
        // For a queue, a public checker checks the holds of its takers and finds no violation.
        assert!(!summary.judge_again.is_empty());
    }
}

/// A workload that does nothing.
struct Idle;

static IDLE: workload::Kind = workload::Kind {
    name: "idle",
    about: "nothing",
    least: &[("read", 1)],
    clients: 1,
    control: None,
    make: || Box::new(Idle),
};

impl Client for Idle {
    fn step(&mut self, _caller: &mut Caller<'_>) {}
}

impl Workload for Idle {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(Idle)
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        // The history is empty.
        (named("register").make)().exhibits()
    }
}

#[test]
fn run_without_operations_is_invalid() {
    let ran = run(&IDLE, nemesis::named("none").unwrap(), 1);
    let Verdict::Invalid(why) = ran.verdict else { panic!("{:?}", ran.verdict) };
    assert!(why.contains("of kind read") && why.contains("succeeded during"), "{why}");
}

/// A control that cannot fail.
static HARMLESS: workload::Kind = workload::Kind {
    name: "harmless",
    about: "a control that is as good as what it is a control of",
    least: &[("add", 1)],
    clients: 1,
    control: Some(workload::Control { under: "none", may_stop: false }),
    make: || (named("counter").make)(),
};

#[test]
fn control_that_does_not_fail_is_invalid() {
    let ran = run(&HARMLESS, nemesis::named("none").unwrap(), 1);
    let Verdict::Invalid(why) = ran.verdict else { panic!("{:?}", ran.verdict) };
    assert!(why.starts_with("the control did not fail"), "{why}");
}

fn harness(words: &[&str], dir: &Path) -> Output {
    Command::new(HARNESS).args(words).arg("--out").arg(dir).output().unwrap()
}

#[test]
fn exit_code_reports_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let run = |seconds: &str| {
        let words = ["run", "--nodes", "1", "--workload", "counter", "--json", "--window", "3"];
        harness(&[&words[..], &["--seconds", seconds, "--seed", seconds]].concat(), dir.path())
    };
    let said =
        |output: &Output| -> serde_json::Value { serde_json::from_slice(&output.stdout).unwrap() };
    let mut good = run("6");
    for _ in 1..trial::RUNS_MAX {
        if good.status.code() == Some(3) {
            good = run("6");
        }
    }
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    let line = said(&good);
    assert_eq!((&line["verdict"], &line["workload"]), (&"ok".into(), &"counter".into()));
    // After the warm-up there is no time for a fault.
    let invalid = run("1");
    assert_eq!(invalid.status.code(), Some(3), "{invalid:?}");
    assert_eq!(said(&invalid)["verdict"], "invalid");
    // The result of several runs is that of the worst.
    let sum = || Command::new(HARNESS).arg("sum").arg(dir.path()).output().unwrap();
    assert_eq!(sum().status.code(), Some(3), "{:?}", sum());
    let runs = dir.path().join("runs.jsonl");
    let lines = std::fs::read_to_string(&runs).unwrap();
    std::fs::write(&runs, lines.replace(r#""verdict":"invalid""#, r#""verdict":"violation""#))
        .unwrap();
    assert_eq!(sum().status.code(), Some(1), "{:?}", sum());
    let unknown = harness(&["run", "--workload", "tightrope"], dir.path());
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    let list = Command::new(HARNESS).arg("list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    for name in workload::ALL.iter().map(|k| k.name).chain(nemesis::ALL.iter().map(|k| k.name)) {
        assert!(list.contains(&format!("  {name} ")), "{name} in {list}");
    }
}
