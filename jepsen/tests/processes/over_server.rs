//! Tests of runs over servers with the etcd protocol. Without a defect, a run must be ok. With an injected defect
//! (lost writes, stale reads, two holders of one lock), a run must report the violation.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bowline_jepsen::calls::{Call, Kind, Reply};
use bowline_jepsen::fleet::{Fleet, Setup};
use bowline_jepsen::nemesis::{self, Pace};
use bowline_jepsen::over::Build;
use bowline_jepsen::run::{self, Plan, Ran, Verdict};
use bowline_jepsen::{Answer, Order, Over, report, workload};

use crate::trial::THIEF;
use crate::{beside, trial};

/// Maximum time of anything here.
const LIMIT: Duration = Duration::from_secs(20);

/// Repeats a run until it is valid.
fn judged(workload: &str, nemesis: &'static nemesis::Kind, members: usize, seconds: u64) -> Ran {
    trial::until_judged(|| run(workload, nemesis, members, seconds))
}

fn run(workload: &str, nemesis: &'static nemesis::Kind, members: usize, seconds: u64) -> Ran {
    let plan = Plan {
        workload: workload::named(workload).unwrap(),
        nemesis,
        members,
        over: Over::Server,
        load: Duration::from_secs(seconds),
        seed: 1,
        pace: Pace { window: Duration::from_secs(2), rest: Duration::from_millis(500) },
        rate: 200,
    };
    run::run(&plan, &beside::server())
}

#[test]
fn server_run_with_kills_passes_and_records_its_settings() {
    let ran = judged("register", nemesis::named("kill").unwrap(), 3, 6);
    assert!(matches!(ran.verdict, Verdict::Ok(_)), "{:?}", ran.verdict);
    assert!(ran.leader_changes > 0 && !ran.windows.is_empty());
    let dir = tempfile::tempdir().unwrap();
    let summary = report::write(&ran, Build::default(), dir.path()).unwrap();
    let page = std::fs::read_to_string(summary.page.unwrap()).unwrap();
    for part in ["register under kill, 3 members, over servers", "--over server", "kills m"] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn lost_write_fails_the_run() {
    for workload in ["set", "append", "bank"] {
        let ran = judged(workload, &THIEF, 1, 4);
        assert!(matches!(ran.verdict, Verdict::Violation(_)), "{workload}: {:?}", ran.verdict);
        assert!(!ran.evidence.is_empty());
    }
}

#[test]
fn stale_local_reads_of_a_partitioned_member_are_detected() {
    let ran = judged("register-local", nemesis::named("partition-leader").unwrap(), 3, 10);
    let Verdict::Ok(why) = ran.verdict else { panic!("{:?}", ran.verdict) };
    assert!(why.starts_with("failed as expected"), "{why}");
}

fn call(fleet: &Fleet, member: usize, call: Call) -> Result<Reply, String> {
    match fleet.ask(member, &Order::Call(Box::new(call)), LIMIT) {
        Some(Answer::Came(reply)) => Ok(*reply),
        answer => Err(format!("{answer:?}")),
    }
}

fn acquire(fleet: &Fleet, member: usize, slot: &str, wait: Duration) -> Result<Reply, String> {
    let wait_ms = wait.as_millis().try_into().unwrap();
    let (slot, lock) = (slot.to_owned(), "l".to_owned());
    call(fleet, member, Call::Acquire { slot, lock, kind: Kind::Mutex, wait_ms })
}

fn is_held(fleet: &Fleet, member: usize, slot: &str) -> bool {
    let look = call(fleet, member, Call::Look { slot: slot.to_owned() });
    matches!(look, Ok(Reply::Held { held: true, .. }))
}

#[test]
fn server_lock_is_granted_after_release_expiry_or_pause() {
    let fleet = Fleet::new(beside::server(), Setup { over: Over::Server, ..Setup::of(3) }).unwrap();
    fleet.start().unwrap();
    let short = Duration::from_millis(300);
    acquire(&fleet, 0, "a", LIMIT).unwrap();
    assert!(is_held(&fleet, 0, "a"));
    let refused = acquire(&fleet, 1, "b", short).unwrap_err();
    assert!(refused.contains("Refused") && refused.contains("not acquired"), "{refused}");
    let released = call(&fleet, 0, Call::Release { slot: "a".to_owned() });
    assert!(matches!(released, Ok(Reply::Held { held: true, .. })), "{released:?}");

    // A request whose wait has ended blocks no other.
    let Ok(Reply::Granted { token: first }) = acquire(&fleet, 1, "c", LIMIT) else { panic!() };
    call(&fleet, 1, Call::Forget { slot: "c".to_owned() }).unwrap();
    let Ok(Reply::Granted { token: second }) = acquire(&fleet, 2, "d", LIMIT) else { panic!() };
    assert!(first < second, "tokens rise");

    // The clients of the paused member continue, and notice by their clocks before another client can have the lock.
    fleet.pause(2).unwrap();
    let begun = Instant::now();
    while is_held(&fleet, 2, "d") {
        assert!(begun.elapsed() < LIMIT, "it is believed in forever");
        thread::sleep(Duration::from_millis(20));
    }
    acquire(&fleet, 0, "e", LIMIT).unwrap();
    fleet.resume(2).unwrap();
    let released = call(&fleet, 2, Call::Release { slot: "d".to_owned() });
    assert!(matches!(released, Ok(Reply::Held { held: false, .. })), "{released:?}");
    assert!(is_held(&fleet, 0, "e"), "what was lost released nothing of another's");
}

#[test]
fn server_that_fails_reports_why_and_stops_cleanly_on_request() {
    let fleet = Fleet::new(beside::server(), Setup { over: Over::Server, ..Setup::of(1) }).unwrap();
    std::fs::write(fleet.dir(0), "no directory").unwrap();
    fleet.spawn(0).unwrap();
    let why = fleet.await_ready(0).unwrap_err().to_string();
    assert!(why.contains("m0 did not start: cannot start the member"), "{why}");
    assert_eq!(fleet.stopped().len(), 1);
    fleet.bury_however(0).unwrap();
    std::fs::remove_file(fleet.dir(0)).unwrap();
    fleet.restart(0).unwrap();
    fleet.stop(0).unwrap();
}

#[test]
fn unsupported_server_options_are_rejected_with_a_reason() {
    let harness = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bowline-jepsen"));
        let output = command.args(words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (words, said) in [
        (
            vec!["--workload", "queue"],
            "queue is not supported with --over server: the server has no queues",
        ),
        (vec!["--workload", "set", "--nemesis", "disk-full"], "need a node process of the harness"),
        (vec!["--workload", "set", "--server", "/nowhere/bowline"], "program not found"),
    ] {
        let (code, why) = harness(&[&["run", "--over", "server"], &words[..]].concat());
        assert_eq!(code, Some(2), "{why}");
        assert!(why.contains(said), "{why}");
    }
    let (code, why) = harness(&["matrix", "--over", "server", "--nemeses", "rot-log"]);
    assert_eq!(code, Some(2), "{why}");
    assert!(Path::new(&beside::server().path).is_file());
}
