//! Tests with unreachable or silent servers: a read is repeated at the next server, a change only if the change was
//! certainly not applied.

use std::io::Read;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::{Going, ask, command, command_at, run};
use crate::locks::silence;
use bowline_testkit::process::{Server, SingleMember, free_ports};

/// An address at which no server listens.
const CLOSED: &str = "127.0.0.1:1";

/// Accepts connections, reads some bytes, and disconnects or stays silent.
fn broken(hangs_up: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut read = [0; 64];
            drop(stream.read(&mut read));
            if !hangs_up {
                kept.push(stream);
            }
        }
    });
    address
}

#[test]
fn unreachable_endpoint_is_skipped() {
    let server = Server::alone(&[]);
    let both = format!("{CLOSED}, {}", server.address);
    let mut put = command_at(&both);
    put.args(["put", "k", "v"]);
    assert_eq!(run(put, b"").done(), "OK\n");

    let mut unreachable = command_at(CLOSED);
    unreachable.args(["get", "k"]);
    let unreachable = run(unreachable, b"");
    assert_eq!(unreachable.code, 4, "{unreachable:?}");
    assert!(unreachable.err.contains(&format!("{CLOSED}: ")), "{}", unreachable.err);
    assert!(
        unreachable.err.contains("hint: pass the servers' addresses with --endpoints"),
        "{}",
        unreachable.err
    );
}

#[test]
fn change_with_unknown_outcome_is_not_retried_elsewhere() {
    let server = Server::alone(&[]);
    for hangs_up in [true, false] {
        let both = format!("{},{}", broken(hangs_up), server.address);
        let mut put = command_at(&both);
        put.args(["put", "k", "v", "--command-timeout", "5s"]);
        let put = run(put, b"");
        assert_eq!(put.code, 3, "{put:?}");
        assert!(put.err.contains("the outcome is unknown"), "{}", put.err);
        assert_eq!(ask(&server, &["get", "k"]).done(), "");

        // A read may be repeated.
        let mut get = command_at(&both);
        get.args(["get", "", "--prefix", "--count-only", "--command-timeout", "10s"]);
        assert_eq!(run(get, b"").done(), "0\n");
    }
}

/// Accepts `count` connections at an address, and closes each.
pub(crate) fn hang_up(address: &str, count: usize) {
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    for taken in 0..count {
        while listener.accept().is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{taken} connections, and no more");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn silent_endpoint_does_not_block_the_next() {
    let server = Server::alone(&[]);
    let [port] = free_ports();
    let silent = format!("127.0.0.1:{port}");
    let _silence = silence(&silent);
    let mut put = command_at(&format!("{silent},{}", server.address));
    // The put must go to the next endpoint although the connection attempt to the first has not timed out.
    put.env("BOWLINE_DIAL_TIMEOUT", "1000s");
    put.args(["put", "k", "v", "--command-timeout", "10s"]);
    assert_eq!(run(put, b"").done(), "OK\n");
    // A server that accepts a connection but does not answer the login is skipped too.
    let mut put = command_at(&format!("{},{}", broken(false), server.address));
    put.args(["--user", "ann:x", "put", "k", "v", "--command-timeout", "10s"]);
    assert_eq!(run(put, b"").done(), "OK\n");
}

#[test]
fn idempotent_change_reports_an_unknown_outcome() {
    let uncertain = format!("{},{CLOSED}", broken(true));
    for arguments in [["auth", "enable"], ["auth", "disable"]] {
        let mut change = command_at(&uncertain);
        change.args(arguments);
        let change = run(change, b"");
        assert_eq!(change.code, 3, "{change:?}");
        assert!(change.err.contains("the outcome is unknown"), "{change:?}");
    }
}

#[test]
fn change_with_an_unprintable_reply_reports_an_unknown_outcome() {
    let server = Server::alone(&[]);
    let into_full = |arguments: &[&str]| {
        let mut command = command(&server);
        let full = std::fs::File::create("/dev/full").unwrap();
        command.args(arguments).stdout(full).status().unwrap().code()
    };
    assert_eq!(into_full(&["put", "k", "v"]), Some(3));
    assert_eq!(into_full(&["get", "k"]), Some(1));
    assert_eq!(ask(&server, &["get", "k"]).done(), "k\nv\n");
}

#[test]
fn lease_keep_alive_survives_server_restarts() {
    let member = SingleMember::prepare();
    let server = member.start(&[]);
    let granted = ask(&server, &["lease", "grant", "15"]).done();
    let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
    let mut keeps = command(&server);
    keeps.args(["lease", "keep-alive", &lease]);
    let mut keeps = Going::start(keeps);
    let renewed = format!("lease {lease} keepalived with TTL(15)\n");
    assert_eq!(keeps.line(), renewed);
    let address = server.address.clone();
    server.stop();
    hang_up(&address, 6);
    let server = member.start(&[]);
    assert_eq!(keeps.line(), renewed);
    ask(&server, &["lease", "revoke", &lease]).done();
    assert_eq!(keeps.line(), format!("lease {lease} expired or revoked.\n"));
}

#[test]
fn open_watch_survives_server_failures() {
    let member = SingleMember::prepare();
    let server = member.start(&[]);
    ask(&server, &["put", "k", "0"]).done();
    let mut watch = command(&server);
    watch.args(["watch", "k", "--rev", "2"]);
    let mut watch = Going::start(watch);
    assert_eq!(watch.lines(3), "PUT\nk\n0\n");
    let address = server.address.clone();
    server.stop();
    // The server hangs up more often than one request is attempted.
    hang_up(&address, 6);
    let server = member.start(&[]);
    ask(&server, &["put", "k", "1"]).done();
    assert_eq!(watch.lines(3), "PUT\nk\n1\n");
}

#[test]
fn watch_resumes_after_its_last_event_despite_compaction() {
    let member = SingleMember::prepare();
    let start = || member.start(&["--watch-progress-notify-interval=100ms"]);
    let server = start();
    let mut watch = command(&server);
    watch.args(["watch", "k", "--rev", "2", "--progress-notify"]);
    let mut watch = Going::start(watch);
    for _ in 0..5 {
        ask(&server, &["put", "other", "v"]).done();
    }
    let mut line = String::new();
    while line != "progress notify: 6\n" {
        line = watch.line();
        assert!(!line.is_empty(), "the watch ended");
    }
    ask(&server, &["compact", "6"]).done();
    server.stop();
    let server = start();
    ask(&server, &["put", "k", "1"]).done();
    line = watch.line();
    while line == "progress notify: 6\n" {
        line = watch.line();
    }
    assert_eq!(line + &watch.lines(2), "PUT\nk\n1\n");
}

#[test]
fn options_come_from_variables_and_invalid_ones_are_named() {
    let server = Server::alone(&[]);
    let mut put = bowline_testkit::process::bowline();
    put.env("ETCDCTL_ENDPOINTS", &server.address).env("BOWLINE_WRITE_OUT", "json");
    put.args(["put", "k", "v"]);
    assert!(run(put, b"").done().starts_with("{\"header\":{\"cluster_id\":"));
    let mut wrong = bowline_testkit::process::bowline();
    wrong.env("BOWLINE_COMMAND_TIMEOUT", "soon").args(["get", "k"]);
    let wrong = run(wrong, b"");
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("COMMAND_TIMEOUT") && wrong.err.contains("soon"), "{}", wrong.err);
    let misplaced = ask(&server, &["inspect", "/tmp"]);
    assert_eq!(misplaced.code, 2, "{misplaced:?}");
    let table = ask(&server, &["-w", "table", "put", "t", "v"]);
    assert_eq!(table.code, 2);
    assert_eq!(ask(&server, &["get", "t"]).done(), "", "rejected before any change");
}
