//! The examples do what they say.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The example's program, which `cargo test` has built.
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

#[test]
fn the_quick_start_runs() {
    let words = words(&example("quick_start").output().unwrap());
    assert!(words.contains("the rate was 100 and is 200 now: true"), "{words}");
    assert!(words.contains("threads left behind: 0"), "{words}");
}

#[test]
fn a_cron_job_has_another_leader_when_the_first_is_killed() {
    let words = words(&example("cron").output().unwrap());
    assert!(words.contains("runs the job now"), "{words}");
}

#[test]
fn four_sessions_are_served_in_the_order_of_their_coming() {
    let words = words(&example("six_steps").output().unwrap());
    assert!(words.contains(r#"served as ["2", "3", "1", "4"]"#), "{words}");
    assert!(words.contains("session 4 held the lock"), "{words}");
}

#[test]
fn three_processes_count_one_counter() {
    let dir = tempfile::tempdir().unwrap();
    // Three neighbouring ports that are free now.
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
    // All stay until all are done: a process that ends takes its member along.
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
