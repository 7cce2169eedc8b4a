//! What works on files and processes of this machine: snapshots, a cluster for trying things out, completions.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::ask::{Going, ask, command_at, run};
use crate::process::{Server, bowline};

#[test]
fn a_snapshot_is_saved_looked_into_and_made_a_cluster_of() {
    let (dir, place) = (tempdir().unwrap(), tempdir().unwrap());
    let server = Server::alone(&dir, &[]);
    for key in ["a", "b", "c"] {
        ask(&server, &["put", key, "v"]).done();
    }
    let file = place.path().join("today.snap");
    let path = file.to_str().unwrap();
    let saved = ask(&server, &["snapshot", "save", path]).done();
    assert!(saved.starts_with(&format!("Snapshot saved at {path}\n")), "{saved}");
    assert!(!place.path().join("today.snap.part").exists());
    let status = ask(&server, &["-w", "json", "snapshot", "status", path]).done();
    assert!(status.contains("\"keys\":3"), "{status}");
    let new = place.path().join("new");
    let restore = ["snapshot", "restore", path, "--dir", new.to_str().unwrap(), "--name", "a"];
    assert!(ask(&server, &restore).done().contains("restored"));
    let nowhere = ask(&server, &["snapshot", "save", "/no/such/place/x.snap"]);
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.err.contains("/no/such/place"), "{}", nowhere.err);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(ask(&server, &["snapshot", "status", path]).code, 1);
}

#[test]
fn a_cluster_is_started_with_one_command_and_keeps_what_it_has() {
    let place = tempdir().unwrap();
    // Six in a row: two for each server. Below those that the system hands out, which others take meanwhile.
    let is_free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let some = u16::try_from(std::process::id() % 2000).unwrap();
    let mut firsts = (0..2000).map(|step| 10_000 + (some + step) % 2000 * 10);
    let first = firsts.find(|first| (*first..first + 6).all(is_free)).unwrap();
    let port = first.to_string();
    let up = || {
        let mut up = bowline();
        up.args(["up", "--nodes", "3", "--port", &port, "--dir"]).arg(place.path());
        up.stderr(std::process::Stdio::null());
        let mut up = Going::start(up);
        let line = up.line();
        let endpoints = line.trim().strip_prefix("3 servers are ready: --endpoints ").unwrap();
        let endpoints = endpoints.to_owned();
        (up, endpoints)
    };
    let ask = |endpoints: &str, arguments: &[&str]| {
        let mut command = command_at(endpoints);
        command.args(arguments);
        run(command, b"").done()
    };
    let (mut first, endpoints) = up();
    assert_eq!(endpoints.split(',').count(), 3);
    ask(&endpoints, &["put", "k", "v"]);
    let health = ask(&endpoints, &["endpoint", "health"]);
    assert_eq!(health.lines().count(), 3, "{health}");
    kill_process(Pid::from_child(&first.child), Signal::INT).unwrap();
    assert_eq!(first.child.wait().unwrap().code(), Some(0));

    let (mut again, endpoints) = up();
    assert_eq!(ask(&endpoints, &["get", "k"]), "k\nv\n");
    kill_process(Pid::from_child(&again.child), Signal::TERM).unwrap();
    assert_eq!(again.child.wait().unwrap().code(), Some(0));
    let mut nobody = command_at(&endpoints);
    nobody.args(["get", "k"]);
    assert_eq!(run(nobody, b"").code, 4, "none of them runs");
}

#[test]
fn shells_are_told_what_to_complete() {
    for shell in ["bash", "zsh", "fish"] {
        let mut completion = bowline();
        completion.args(["completion", shell]);
        let text = run(completion, b"").done();
        assert!(text.contains("keep-alive") && text.contains("endpoints"), "{shell}");
    }
}
