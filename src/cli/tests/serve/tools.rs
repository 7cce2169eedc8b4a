//! etcd's own command line, as Debian packages it. Where it is not installed its tests say so and pass.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use tempfile::tempdir;

use crate::process::Server;

/// The command, unless it is not there.
fn etcdctl(server: &Server) -> Option<Command> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", &server.address]);
    let is_there = Command::new("etcdctl").arg("version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        // Past the test harness, which would keep it to itself.
        drop(writeln!(io::stderr(), "SKIPPED: etcdctl is not installed (Debian: etcd-client)"));
    }
    is_there.then_some(command)
}

fn run(server: &Server, arguments: &[&str]) -> Option<String> {
    let output = etcdctl(server)?.args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {arguments:?}: {text}{complaint}");
    Some(text)
}

#[test]
fn etcdctl_puts_gets_and_deletes() {
    let dir = tempdir().unwrap();
    let server = Server::alone(&dir, &[]);
    let Some(said) = run(&server, &["put", "k", "v"]) else { return };
    assert_eq!(said, "OK\n");
    assert_eq!(run(&server, &["get", "k"]).unwrap(), "k\nv\n");
    assert_eq!(run(&server, &["del", "k", "--prev-kv"]).unwrap(), "1\nk\nv\n");
    assert_eq!(run(&server, &["get", "", "--prefix"]).unwrap(), "");
}
