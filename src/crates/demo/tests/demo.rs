//! Runs the demo as a process and checks its output, its exit code, and the files that it leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

const DEMO: &str = env!("CARGO_BIN_EXE_bowline-demo");

/// Time limit for every wait, generous for a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A directory of the test, removed on drop.
struct Place(TempDir);

impl Place {
    fn new(test: &str) -> Self {
        Self(TempDir::with_prefix(format!("bowline-demo-{test}-")).unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn entries(&self) -> Vec<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// Returns the demo command, with its temporary files in `place`.
fn demo(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(DEMO);
    command.args(arguments).env("TMPDIR", place.0.path()).stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn events(output: &Output) -> Vec<Value> {
    let lines = text(&output.stdout).lines();
    lines
        .map(|line| serde_json::from_str(line).expect("the output has only JSON objects"))
        .collect()
}

/// Returns processes with open files below `dir`.
#[cfg(target_os = "linux")]
fn processes_at_work_in(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        // Processes of other users, and those that end meanwhile, cannot be inspected.
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let open = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        if open.into_iter().any(|path| path.starts_with(dir)) {
            found.push(process.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

#[cfg(not(target_os = "linux"))]
fn processes_at_work_in(_dir: &Path) -> Vec<String> {
    Vec::new()
}

fn eventually(what: &str, mut met: impl FnMut() -> bool) {
    let began = Instant::now();
    while !met() {
        assert!(began.elapsed() < WAIT_MAX, "timed out: {what}");
        // The demo does not report this, so the test polls.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn short_demo_proves_its_claims_and_cleans_up() {
    let place = Place::new("short");
    let output = demo(&place, &["--seconds", "6", "--seed", "7", "--json"]).output().unwrap();
    let events = events(&output);
    let verdict = events.last().expect("there is a verdict");
    assert_eq!(output.status.code(), Some(0), "{verdict:#}\n{}", text(&output.stderr));
    assert_eq!(output.stderr, b"");

    assert_eq!(verdict["event"], "verdict");
    assert_eq!(verdict["proven"], true);
    assert_eq!(verdict["seed"], 7);
    let claims = verdict["claims"].as_array().unwrap();
    assert_eq!(claims.len(), 10);
    for claim in claims {
        assert_eq!(claim["finding"], "proven", "{claim}");
    }
    let figures = &verdict["figures"];
    for figure in
        ["acknowledged", "handoffs", "elections", "leader_kills", "holder_kills", "holders_stopped"]
    {
        assert!(figures[figure].as_u64().unwrap() > 0, "{figure}: {figures}");
    }
    assert!(figures["recovery_ms"]["min"].as_u64().unwrap() > 0, "{figures}");

    // A duplicate name in an object would hide the first value.
    assert!(events.iter().all(|object| object["at"].is_f64()), "{events:#?}");

    let count =
        |event: &str| events.iter().filter(|object| object["event"] == event).count() as u64;
    assert_eq!(count("begins"), 1);
    assert_eq!(count("leader_killed"), figures["leader_kills"].as_u64().unwrap());
    assert_eq!(count("holder_killed"), figures["holder_kills"].as_u64().unwrap());
    assert_eq!(count("holder_stopped"), count("resumed"));
    assert_eq!(count("read"), 3);
    assert!(count("ledger_refused") > 0 && count("store_refused") > 0);

    assert_eq!(place.entries(), Vec::<PathBuf>::new());
    assert_eq!(processes_at_work_in(place.0.path()), Vec::<String>::new());
}

#[test]
fn single_process_demo_recovers_and_keeps_its_files_on_request() {
    let place = Place::new("single");
    let dir = place.at("new/dir");
    let arguments = ["--nodes", "1", "--seconds", "1", "--keep", "--dir", dir.to_str().unwrap()];
    let output = demo(&place, &arguments).output().unwrap();
    let story = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{story}{}", text(&output.stderr));
    assert!(story.contains("kill -9: the leader of term"), "{story}");
    assert!(story.contains("Nothing was lost."), "{story}");
    assert!(story.contains("no holder was paused beyond its lease"), "{story}");
    assert!(!story.contains('\x1b'), "no colors without a terminal: {story}");
    for file in ["ledger.jsonl", "n1", "n1.log"] {
        assert!(dir.join(file).exists(), "{file}");
    }
}

#[test]
fn invalid_arguments_are_explained_and_exit_with_2() {
    let place = Place::new("wrong");
    fs::write(place.at("mine"), "x").unwrap();
    let full = place.0.path().to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["--nodes", "2"], "[possible values: 1, 3, 5]"),
        (&["--seconds", "0"], "0 is not in 1..=3600"),
        (&["--seconds", "soon"], "invalid value 'soon' for '--seconds <SECONDS>'"),
        (&["--seed", "-1"], "unexpected argument '-1' found"),
        (&["--sedes"], "a similar argument exists: '--seed'"),
        (&["--dir", full], "the directory is not empty"),
        (&["--dir", "/dev/null"], "cannot work in /dev/null"),
    ];
    for (arguments, words) in cases {
        let output = demo(&place, arguments).output().unwrap();
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("error: "), "{arguments:?}: {complaint}");
        assert!(complaint.contains(words), "{arguments:?}: {complaint:?} lacks {words:?}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
    assert_eq!(place.entries(), [place.at("mine")]);
}

#[test]
fn help_succeeds_and_names_every_option() {
    let place = Place::new("help");
    let output = demo(&place, &["--help"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    for option in ["--nodes", "--seconds", "--dir", "--seed", "--json", "--keep", "Exit codes"] {
        assert!(text(&output.stdout).contains(option), "{option}");
    }
}

/// Starts a long demo, and waits until its processes are working.
fn demo_at_work(place: &Place) -> (std::process::Child, Pid) {
    let mut parent = demo(place, &["--seconds", "60", "--json"]);
    let parent = parent.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_child(&parent);
    eventually("the members' data", || {
        let made = place.entries();
        made.first().is_some_and(|dir| ["n1", "n2", "n3"].iter().all(|n| dir.join(n).exists()))
    });
    (parent, pid)
}

#[test]
fn an_interrupted_demo_ends_its_processes_and_cleans_up() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new(&format!("signal-{}", signal.as_raw()));
        let (parent, pid) = demo_at_work(&place);
        kill_process(pid, signal).unwrap();
        let output = parent.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("error: interrupted by "));
        assert_eq!(place.entries(), Vec::<PathBuf>::new());
        assert_eq!(processes_at_work_in(place.0.path()), Vec::<String>::new());
    }
}

#[test]
fn no_process_outlives_a_killed_parent() {
    let place = Place::new("detaches");
    let (mut parent, pid) = demo_at_work(&place);
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(test_kill_process(pid).is_err());
    eventually("the children to end", || processes_at_work_in(place.0.path()).is_empty());
}
