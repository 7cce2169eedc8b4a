//! Tests of the example programs.

use std::io::{BufRead as _, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Time after which a program counts as hung.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Returns the example's program, which `cargo test` has built.
fn example(name: &str) -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("examples");
    path.push(name);
    assert!(
        path.exists(),
        "{} is not built: run the tests without a filter on targets",
        path.display()
    );
    Command::new(path)
}

fn words(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}{complaints}");
    words
}

/// Runs an example to its end and returns its output.
fn run(name: &str) -> String {
    let process = example(name).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = process.id();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(process.wait_with_output()));
    let output = ended.recv_timeout(TIME_MAX).unwrap_or_else(|_| {
        let id = i32::try_from(id).ok().and_then(Pid::from_raw).unwrap();
        kill_process(id, Signal::KILL).unwrap();
        let output = ended.recv().unwrap().unwrap();
        panic!("{name} hangs, and has said {}", String::from_utf8_lossy(&output.stdout));
    });
    words(&output.unwrap())
}

#[test]
fn quick_start_example_runs() {
    let words = run("quick_start");
    assert!(words.contains("the rate was 100 and is 200 now: true"), "{words}");
    // The list of threads is empty, unless a sync of the disk takes longer than a shutdown waits.
    assert!(words.contains("threads left behind: "), "{words}");
}

#[test]
fn cron_example_survives_failures_leader_kills_and_outages() {
    let words = run("cron");
    assert!(words.contains("has resigned: the job failed: the printer is on fire"), "{words}");
    assert!(words.contains("runs the job now; it is killed"), "{words}");
    assert!(words.contains("after the outage instance"), "{words}");
    assert!(words.contains("they have resigned: true"), "{words}");
}

#[test]
fn cron_resigns_on_ctrl_c() {
    let mut process = example("cron").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.contains(" leads, token "), "{first}");
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    for name in 0..3 {
        assert!(rest.contains(&format!("instance {name} has ended")), "{rest:?}");
    }
    assert!(process.wait().unwrap().success(), "{rest:?}");
}

#[test]
fn six_steps_example_serves_sessions_in_arrival_order() {
    let words = run("six_steps");
    assert!(words.contains(r#"served as ["2", "3", "1", "4"]"#), "{words}");
    assert!(words.contains("session 4 held the lock"), "{words}");
}

#[test]
fn redis_lock_example_rejects_a_late_holder() {
    let words = run("redis_lock");
    assert!(words.contains("a: true\n  b: false\ndeleted"), "{words}");
    assert!(words.contains("b: false\n  a: true\n"), "{words}");
    assert!(words.contains("held is false"), "{words}");
    assert!(words.contains("sends to others is refused"), "{words}");
}

#[test]
fn zookeeper_example_serves_numbered_keys_in_order() {
    let words = run("zookeeper_recipes");
    assert!(words.contains("number 0 holds\n  number 1 holds\n  number 2 holds"), "{words}");
    assert!(words.contains("3 workers\n  2 workers"), "{words}");
    assert!(words.contains("rate is 100"), "{words}");
}

#[test]
fn lock_object_example_resumes_a_lock_by_owner_id() {
    let words = run("lock_object");
    assert!(words.contains("after the restart: acquired is true"), "{words}");
    assert!(words.contains("gets it: false\n"), "{words}");
    assert!(words.contains("after the release: true"), "{words}");
    assert!(words.contains("1267 is unknown"), "{words}");
}

#[test]
fn sql_locks_example_takes_one_call_each() {
    let words = run("sql_locks");
    assert!(words.contains("worker 1 does not: worker 0 has"), "{words}");
    assert!(words.contains("a has 40, b has 60"), "{words}");
    assert!(words.contains("18 in stock"), "{words}");
}

#[test]
fn leader_callbacks_example_stops_before_the_next_leader_starts() {
    let words = run("leader_callbacks");
    // The second instance may also stop, at the end of the program.
    let (stops, starts) = (words.find("stopped leading"), words.rfind("started leading"));
    assert!(stops.is_some() && stops < starts, "{words}");
    assert!(words.contains("new leader"), "{words}");
}

#[test]
fn three_processes_increment_one_counter() {
    let dir = tempfile::tempdir().unwrap();
    // Find three adjacent ports that are currently free.
    let port = (20_000..60_000)
        .step_by(3)
        .map(|port| port + (std::process::id() % 1_000) as u16 * 3 % 2_997)
        .find(|port| {
            let free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
            (0..3).all(|i| free(port + i))
        })
        .unwrap();
    let mut processes: Vec<_> = ["n1", "n2", "n3"]
        .map(|name| {
            example("three_processes")
                .arg(dir.path())
                .args([name, "4", &port.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .into();
    // A process that ends stops its member, so no process may end before all are done.
    let mut said: Vec<String> = Vec::new();
    for process in &mut processes {
        let mut lines = std::io::BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("done") {
            line.clear();
            let read = std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
            assert!(read > 0, "a process ended early: {said:?}");
            said.push(line.clone());
        }
        process.stdout = Some(lines.into_inner());
    }
    for process in &mut processes {
        process.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
    for process in processes {
        words(&process.wait_with_output().unwrap());
    }
    let mut counts: Vec<u64> = said
        .iter()
        .filter_map(|line| line.split("counted to ").nth(1)?.split(' ').next()?.parse().ok())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=12).collect::<Vec<u64>>(), "{said:?}");
}

#[test]
fn tickets_example_sells_no_seat_twice_unless_careless() {
    let words = run("tickets");
    assert!(words.contains("none sold twice"), "{words}");
    let careless = example("tickets").arg("careless").output().unwrap();
    let words = String::from_utf8_lossy(&careless.stderr);
    assert!(
        words.contains("SOLD-ONCE is broken") && words.contains("run it again with"),
        "{words}"
    );
}

/// `docs/assurance/checkers.md` uses this history as its first example.
#[test]
fn example_history_is_a_violation() {
    use bowline_check::{Budget, Register, RegisterCall, Verdict, linear, lines};
    let text = include_str!("../docs/examples/history.jsonl");
    let read = lines::read::<RegisterCall>(text.as_bytes()).unwrap();
    let verdict = linear::check(&Register::default(), &read.history, Budget::default());
    let Verdict::Violation(why) = verdict else { panic!("{verdict}") };
    assert!(why.to_string().contains("#0, #1, #2"), "{why}");
}
