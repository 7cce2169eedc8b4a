//! Tests with etcd's own command-line tools, as packaged by Debian. The tests are skipped if the tools are not
//! installed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use bowline_testkit::process::{Server, etcdctl_is_installed};

/// Returns the command, or `None` if it is not installed.
pub(crate) fn etcdctl(server: &Server) -> Option<Command> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", &server.address]);
    etcdctl_is_installed().then_some(command)
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
    let server = Server::alone(&[]);
    let Some(printed) = run(&server, &["put", "k", "v"]) else { return };
    assert_eq!(printed, "OK\n");
    assert_eq!(run(&server, &["get", "k"]).unwrap(), "k\nv\n");
    assert_eq!(run(&server, &["del", "k", "--prev-kv"]).unwrap(), "1\nk\nv\n");
    assert_eq!(run(&server, &["get", "", "--prefix"]).unwrap(), "");
}

/// Two `etcdctl lock` commands that contend for one lock.
#[test]
fn two_terminals_take_turns_on_one_lock() {
    let server = Server::alone(&[]);
    let Some(mut one) = etcdctl(&server) else { return };
    let mut one = one.args(["lock", "mutex1"]).stdout(Stdio::piped()).spawn().unwrap();
    let held = line(&mut one);
    assert!(held.starts_with("mutex1/"), "{held}");
    let mut two = etcdctl(&server).unwrap();
    let two = two.args(["lock", "mutex1", "--", "sh", "-c", "echo got $ETCD_LOCK_KEY"]);
    let mut two = two.stdout(Stdio::piped()).spawn().unwrap();
    // The second request waits after the first in the lock queue.
    let waiting = || run(&server, &["get", "mutex1/", "--prefix", "--keys-only"]).unwrap();
    while waiting().lines().filter(|line| !line.is_empty()).count() < 2 {}
    assert!(
        two.try_wait().unwrap().is_none(),
        "the second lock is acquired before the first is released"
    );
    kill_process(Pid::from_child(&one), Signal::INT).unwrap();
    let got = line(&mut two);
    assert!(got.starts_with("got mutex1/") && got[4..] != held, "{got}");
    assert!(two.wait().unwrap().success());
    one.wait().unwrap();
    assert_eq!(waiting(), "");
}

/// `etcdctl elect` in two terminals, and `elect -l` in a third.
#[test]
fn etcdctl_elects_one_leader_at_a_time_and_observers_see_both() {
    let server = Server::alone(&[]);
    let elect = |arguments: &[&str]| {
        let mut elect = etcdctl(&server)?;
        Some(elect.arg("elect").args(arguments).stdout(Stdio::piped()).spawn().unwrap())
    };
    let Some(mut first) = elect(&["e", "one"]) else { return };
    let won = line(&mut first);
    assert!(won.starts_with("e/"), "{won}");
    let mut listener = elect(&["-l", "e"]).unwrap();
    let mut received = BufReader::new(listener.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!((received.next(), received.next()), (Some(won.clone()), Some("one".to_owned())));
    let mut second = elect(&["e", "two"]).unwrap();
    let candidates = || run(&server, &["get", "e/", "--prefix", "--keys-only"]).unwrap();
    while candidates().lines().filter(|line| !line.is_empty()).count() < 2 {}
    assert!(
        second.try_wait().unwrap().is_none(),
        "the second candidate leads while the first does"
    );
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    let next = line(&mut second);
    assert!(next.starts_with("e/") && next != won, "{next}");
    assert_eq!((received.next(), received.next()), (Some(next), Some("two".to_owned())));
    for child in [&mut second, &mut listener] {
        kill_process(Pid::from_child(child), Signal::INT).unwrap();
        child.wait().unwrap();
    }
    first.wait().unwrap();
    assert_eq!(candidates(), "");
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_owned()
}
