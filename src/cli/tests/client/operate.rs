//! Members, servers, users and roles.

use tempfile::tempdir;

use crate::ask::ask;
use crate::process::Server;

#[test]
fn members_and_servers_are_shown() {
    let dirs = [tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap()];
    let servers = Server::three(&dirs);
    let listed = ask(&servers[0], &["member", "list"]).done();
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.lines().all(|line| line.contains(", started, m")), "{listed}");
    let table = ask(&servers[0], &["-w", "table", "member", "list"]).done();
    assert!(table.contains("| IS LEARNER |"), "{table}");

    let all: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let all = all.join(",");
    let everywhere = |arguments: &[&str]| {
        let mut command = crate::ask::command_at(&all);
        command.args(arguments);
        crate::ask::run(command, b"")
    };
    let status = everywhere(&["endpoint", "status"]).done();
    let leads = |line: &str| line.split(", ").nth(4) == Some("true");
    assert_eq!(status.lines().filter(|line| leads(line)).count(), 1, "{status}");
    let health = everywhere(&["endpoint", "health"]).done();
    assert_eq!(health.matches(" is healthy: ").count(), 3, "{health}");
    let hashes = everywhere(&["endpoint", "hashkv", "-w", "json"]).done();
    assert_eq!(hashes.matches("\"HashKV\":{\"header\":").count(), 3, "{hashes}");

    let follower = status.lines().find(|line| !leads(line)).unwrap();
    let id = follower.split(", ").nth(1).unwrap();
    let moved = everywhere(&["move-leader", id]).done();
    assert!(
        moved.starts_with("Leadership transferred from ")
            && moved.ends_with(&format!(" to {id}\n"))
    );
    assert_eq!(everywhere(&["alarm", "list"]).done(), "");
    assert_eq!(everywhere(&["defrag"]).done().lines().count(), 3);

    let unknown = everywhere(&["member", "remove", "1234"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("member not found") && unknown.err.contains("hint:"));
    assert_eq!(everywhere(&["member", "promote", "xyz"]).code, 2);
}

#[test]
fn who_is_sick_is_named_and_the_exit_code_says_so() {
    let dir = tempdir().unwrap();
    let server = Server::alone(&dir, &[]);
    let [closed] = crate::process::free_ports();
    let mut health = crate::ask::command_at(&format!("{},127.0.0.1:{closed}", server.address));
    health.args(["endpoint", "health"]);
    let health = crate::ask::run(health, b"");
    assert_eq!(health.code, 1);
    assert!(health.text().starts_with(&format!("{} is healthy", server.address)));
    assert!(health.err.contains(&format!("127.0.0.1:{closed} is unhealthy")), "{}", health.err);
}

#[test]
fn authentication_is_off_at_first() {
    let dir = tempdir().unwrap();
    let server = Server::alone(&dir, &[]);
    let status = ask(&server, &["auth", "status"]).done();
    assert!(status.starts_with("Authentication Status: false\n"), "{status}");
    // Who says who they are is let in as before.
    assert_eq!(ask(&server, &["--user", "ann:x", "put", "k", "v"]).done(), "OK\n");
}
