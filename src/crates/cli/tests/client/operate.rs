//! Tests of the commands for members, servers, users and roles.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::ask::ask;
use bowline_testkit::process::{Server, etcdctl_is_installed};

#[test]
fn members_and_servers_are_listed() {
    let servers = Server::three();
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
    let leads = |line: &str| line.split(", ").nth(8) == Some("true");
    // Waits until all servers agree on the leader, and returns the leader and the term.
    let led = || {
        let begun = Instant::now();
        loop {
            let status = everywhere(&["endpoint", "status"]).done();
            let term = |line: &str| line.split(", ").nth(10).unwrap().parse::<u64>().unwrap();
            let terms: Vec<_> = status.lines().map(term).collect();
            let leaders = status.lines().filter(|line| leads(line)).count();
            if terms.iter().all(|term| *term == terms[0]) && leaders == 1 {
                return (terms[0], status);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        }
    };
    led();
    let health = everywhere(&["endpoint", "health"]).done();
    assert_eq!(health.matches(" is healthy: ").count(), 3, "{health}");
    let hashes = everywhere(&["endpoint", "hashkv", "-w", "json"]).done();
    assert_eq!(hashes.matches("\"HashKV\":{\"header\":").count(), 3, "{hashes}");

    let begun = Instant::now();
    loop {
        let (term, status) = led();
        let follower = status.lines().find(|line| !leads(line)).unwrap();
        let id = follower.split(", ").nth(1).unwrap();
        let moved = everywhere(&["move-leader", id]);
        if moved.code == 0 {
            let moved = moved.done();
            assert!(
                moved.starts_with("Leadership transferred from ")
                    && moved.ends_with(&format!(" to {id}\n"))
            );
            break;
        }
        // Either another member was elected meanwhile, or the intended leader is slow.
        assert!(moved.err.contains("timed out") || led().0 > term, "{moved:?}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{moved:?}");
    }
    assert_eq!(everywhere(&["alarm", "list"]).done(), "");
    assert_eq!(everywhere(&["defrag"]).done().lines().count(), 3);

    let unknown = everywhere(&["member", "remove", "1234"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("member not found") && unknown.err.contains("hint:"));
    assert_eq!(everywhere(&["member", "promote", "xyz"]).code, 2);
}

#[test]
fn alarms_are_listed_and_disarmed_through_any_member() {
    let servers = Server::three();
    let raise = |server: usize, alarm: &str| {
        let (code, printed) = servers[server].http("POST", "/v3/maintenance/alarm", alarm);
        assert_eq!(code, 200, "{printed}");
    };
    raise(1, r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#);
    let refused = ask(&servers[2], &["put", "k", "v"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("database space exceeded"), "{refused:?}");
    assert!(refused.err.contains("hint:") && refused.err.contains("alarm disarm"), "{refused:?}");
    raise(2, r#"{"action":"ACTIVATE","memberID":"77","alarm":"CORRUPT"}"#);
    let listed = "alarm:NOSPACE \nmemberID:77 alarm:CORRUPT \n";
    assert_eq!(ask(&servers[0], &["alarm", "list"]).done(), listed);
    let json = ask(&servers[0], &["-w", "json", "alarm", "list"]).done();
    let alarms = r#""alarms":[{"alarm":1},{"memberID":77,"alarm":2}]"#;
    assert!(json.contains(alarms), "{json}");
    let refused = ask(&servers[0], &["del", "k"]);
    assert!(refused.code == 1 && refused.err.contains("corrupt cluster"), "{refused:?}");
    assert!(refused.err.contains("hint:"), "{refused:?}");
    let health = ask(&servers[1], &["endpoint", "health"]);
    assert_eq!(health.code, 1, "{health:?}");
    assert!(health.err.contains("Active Alarm(s): NOSPACE CORRUPT \n"), "{health:?}");
    let status = ask(&servers[1], &["endpoint", "status"]).done();
    assert!(status.contains("alarm:NOSPACE , memberID:77 alarm:CORRUPT"), "{status}");
    assert_eq!(ask(&servers[1], &["alarm", "disarm"]).done(), listed);
    for server in &servers {
        assert_eq!(ask(server, &["alarm", "list"]).done(), "");
        ask(server, &["put", "k", "v"]).done();
        ask(server, &["endpoint", "health"]).done();
    }
}

/// The status as etcdctl 3.6 prints it.
#[test]
fn endpoint_status_prints_all_fields() {
    let server = Server::alone(&[]);
    let line = ask(&server, &["endpoint", "status"]).done();
    let cells: Vec<_> = line.trim_end_matches('\n').split(", ").collect();
    let address = server.address.as_str();
    let expected = [(0, address), (3, "3.7.0"), (7, "2.1 GB"), (8, "true"), (9, "false")];
    for (at, cell) in expected.into_iter().chain([(13, ""), (14, ""), (15, "false")]) {
        assert_eq!(cells[at], cell, "{at}: {line}");
    }
    assert!(cells.len() == 16 && cells[6].ends_with('%'), "{line}");
    let table = ask(&server, &["-w", "table", "endpoint", "status"]).done();
    let titles =
        "| STORAGE VERSION | DB SIZE | IN USE  | PERCENTAGE NOT IN USE | QUOTA  | IS LEADER |";
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed(&table).contains(&squeezed(titles)), "{table}");
    assert!(table.contains("| DOWNGRADE TARGET VERSION | DOWNGRADE ENABLED |"), "{table}");
    let fields = ask(&server, &["-w", "fields", "endpoint", "status"]).done();
    let names = fields.lines().filter_map(|line| line.split('"').nth(1)).collect::<Vec<_>>();
    let expected = "ClusterID MemberID Revision RaftTerm Version StorageVersion DBSize DBSizeInUse DBSizeQuota Leader \
                    IsLearner RaftIndex RaftAppliedIndex Errors Endpoint DowngradeTargetVersion DowngradeEnabled";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    let json = ask(&server, &["-w", "json", "endpoint", "status"]).done();
    assert!(json.contains(r#""dbSizeQuota":2147483648,"downgradeInfo":{}}"#), "{json}");
}

#[test]
fn hash_is_printed_with_its_revision() {
    let server = Server::alone(&[]);
    ask(&server, &["put", "k", "v"]).done();
    let hash_kv = |format: &str, rev: &str| {
        ask(&server, &["-w", format, "endpoint", "hashkv", "--rev", rev]).done()
    };
    assert!(hash_kv("simple", "0").ends_with(", 2\n"));
    assert!(hash_kv("fields", "0").ends_with("\n\"HashRevision\" : 2\n\n"));
    assert!(hash_kv("table", "1").contains("| HASH REVISION |"));
}

#[test]
fn member_add_reports_a_learner_only_with_the_learner_flag() {
    let server = Server::alone(&[]);
    let add = |name: &str, more: &[&str]| {
        ask(
            &server,
            &[&["member", "add", name, "--peer-urls", &format!("http://{name}:1")], more].concat(),
        )
        .done()
    };
    assert!(add("a", &["--learner"]).contains(" added as learner to cluster "));
    assert!(add("b", &[]).contains(" added to cluster "));
}

#[test]
fn defrag_names_each_endpoint_and_its_duration() {
    let server = Server::alone(&[]);
    let mut defrag = crate::ask::command_at(&format!("{},127.0.0.1:1", server.address));
    defrag.arg("defrag");
    let printed = crate::ask::run(defrag, b"");
    let done = format!("Finished defragmenting etcd member[{}]. took ", server.address);
    assert!(printed.text().starts_with(&done) && printed.text().ends_with("s\n"), "{printed:?}");
    let failed = "Failed to defragment etcd member[127.0.0.1:1]. took ";
    assert!(printed.err.starts_with(failed) && printed.err.ends_with(")\n"), "{printed:?}");
    assert_ne!(printed.code, 0);
}

#[test]
fn unhealthy_endpoint_is_named_and_sets_the_exit_code() {
    let server = Server::alone(&[]);
    let mut health = crate::ask::command_at(&format!("{},127.0.0.1:1", server.address));
    health.args(["endpoint", "health"]);
    let health = crate::ask::run(health, b"");
    assert_eq!(health.code, 1);
    assert!(health.text().starts_with(&format!("{} is healthy", server.address)));
    assert!(health.err.contains("127.0.0.1:1 is unhealthy"), "{}", health.err);
}

#[test]
fn permission_types_ignore_case() {
    let server = Server::alone(&[]);
    ask(&server, &["role", "add", "r"]).done();
    for (kind, key) in [("READ", "a"), ("READWRITE", "b"), ("Write", "c")] {
        ask(&server, &["role", "grant-permission", "r", kind, key]).done();
    }
    let role = ask(&server, &["role", "get", "r"]).done();
    assert_eq!(role, "Role r\nKV Read:\n\ta\n\tb\nKV Write:\n\tb\n\tc\n");
}

#[test]
fn root_role_covers_all_keys() {
    let server = Server::alone(&[]);
    for line in [&["role", "add", "root"][..], &["role", "add", "r"]] {
        ask(&server, line).done();
    }
    ask(&server, &["role", "grant-permission", "r", "read", "p", "--prefix"]).done();
    let all = "Role root\nKV Read:\n\t[, <open ended>\nKV Write:\n\t[, <open ended>\n";
    assert_eq!(ask(&server, &["role", "get", "root"]).done(), all);
    let one = "Role r\nKV Read:\n\t[p, q) (prefix p)\nKV Write:\n";
    assert_eq!(ask(&server, &["role", "get", "r"]).done(), one);
}

/// A user who may read keys but not alarms gets no confirmation that there are none.
#[test]
fn server_that_hides_its_alarms_is_unhealthy() {
    let server = Server::alone(&[]);
    // A proxy that forwards one request for a key, and no other.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    let address = server.address.clone();
    std::thread::spawn(move || {
        let mut requests = 0;
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&address).unwrap());
            let (mut back, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back, &mut to));
            let mut preface = [0; 24];
            client.read_exact(&mut preface).unwrap();
            server.write_all(&preface).unwrap();
            let mut head = [0; 9];
            while client.read_exact(&mut head).is_ok() {
                // A frame of type HEADERS starts a request.
                requests += u32::from(head[3] == 1);
                if requests > 1 {
                    break;
                }
                let mut frame =
                    vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                client.read_exact(&mut frame).unwrap();
                server.write_all(&[&head[..], &frame].concat()).unwrap();
            }
            drop((client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both)));
        }
    });
    let mut health = crate::ask::command_at(&between);
    health.args(["endpoint", "health"]);
    let health = crate::ask::run(health, b"");
    assert_eq!(health.code, 1, "{health:?}");
    assert!(health.err.contains("Unable to fetch the alarm list"), "{health:?}");
}

#[test]
fn authentication_is_disabled_by_default() {
    let server = Server::alone(&[]);
    let status = ask(&server, &["auth", "status"]).done();
    assert!(status.starts_with("Authentication Status: false\n"), "{status}");
    let status = ask(&server, &["-w", "json", "auth", "status"]).done();
    assert!(status.ends_with(",\"authRevision\":1}\n"), "{status}");
    // While authentication is disabled, credentials are ignored.
    assert_eq!(ask(&server, &["--user", "ann:x", "put", "k", "v"]).done(), "OK\n");
}

/// A server that both commands contact.
struct Asked {
    address: String,
}

impl Asked {
    fn ours(&self, arguments: &[&str], input: &[u8]) -> crate::ask::CliOutput {
        let mut command = crate::ask::command_at(&self.address);
        command.args(arguments);
        crate::ask::run(command, input)
    }

    fn theirs(&self, arguments: &[&str], input: &[u8]) -> crate::ask::CliOutput {
        let mut command = std::process::Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.address]).args(arguments);
        crate::ask::run(command, input)
    }
}

#[test]
fn users_and_roles_are_managed_as_by_etcdctl() {
    if !etcdctl_is_installed() {
        return;
    }
    let Some(etcd) = Server::etcd(&[]) else { return };
    compare(&Asked { address: etcd.address.clone() }, &["json", "fields"]);
    let server = Server::alone(&[]);
    compare(&Asked { address: server.address.clone() }, &["simple"]);
}

/// Runs both commands and compares their output.
fn compare(etcd: &Asked, formats: &[&str]) {
    let lines = [
        "role add r1",
        "role grant-permission r1 readwrite a b",
        "role grant-permission r1 read p --prefix",
        "role grant-permission r1 write w",
        "role grant-permission r1 write w2 --from-key",
        "role get r1",
        "role list",
        "role revoke-permission r1 w",
        "role revoke-permission r1 a b",
        "user add u1:pw",
        "user add u2 --no-password",
        "user passwd u1 --interactive=false",
        "user grant-role u1 r1",
        "user get u1",
        "user get u1 --detail",
        "user list",
        "user revoke-role u1 r1",
        "user delete u1",
        "user delete u2",
        "role delete r1",
        "user get nobody",
        "auth disable",
        "member list",
        "move-leader 1234",
    ];
    for &format in formats {
        for line in lines {
            // etcdctl cannot print the responses to these commands in this format.
            if format == "fields" && ["user get u1", "user list"].contains(&line) {
                continue;
            }
            let words: Vec<_> = ["-w", format].into_iter().chain(line.split(' ')).collect();
            // Both commands make the same change, so it is undone in between.
            let theirs = etcd.theirs(&words, b"secret\n");
            let undo = match line {
                "role add r1" => Some("role delete r1"),
                "user add u1:pw" => Some("user delete u1"),
                "user add u2 --no-password" => Some("user delete u2"),
                "user grant-role u1 r1" => Some("user revoke-role u1 r1"),
                "user revoke-role u1 r1" => Some("user grant-role u1 r1"),
                "user delete u1" => Some("user add u1:pw"),
                "user delete u2" => Some("user add u2:pw"),
                "role delete r1" => Some("role add r1"),
                "role revoke-permission r1 w" => Some("role grant-permission r1 write w"),
                "role revoke-permission r1 a b" => Some("role grant-permission r1 readwrite a b"),
                _ => None,
            };
            if let Some(undo) = undo {
                etcd.theirs(&undo.split(' ').collect::<Vec<_>>(), b"").done();
            }
            let ours = etcd.ours(&words, b"secret\n");
            // An older etcdctl prints a revision for responses without one.
            let shared = theirs.text().replace("\"Revision\" : 0\n", "");
            assert_eq!(shared, ours.text(), "{line}: {theirs:?} {ours:?}");
            assert_eq!(theirs.code == 0, ours.code == 0, "{line}: {theirs:?} {ours:?}");
        }
    }
}

#[test]
fn credentials_are_checked_once_authentication_is_enabled() {
    let server = Server::alone(&[]);
    asks_who(&Asked { address: server.address.clone() });
    if let Some(etcd) = Server::etcd(&[]) {
        asks_who(&Asked { address: etcd.address.clone() });
    }
}

fn asks_who(etcd: &Asked) {
    etcd.ours(&["put", "k", "v"], b"").done();
    etcd.ours(&["user", "add", "root:rp"], b"").done();
    assert_eq!(etcd.ours(&["auth", "enable"], b"").done(), "Authentication Enabled\n");
    let anonymous = etcd.ours(&["get", "k"], b"");
    assert_eq!(anonymous.code, 1);
    assert!(anonymous.err.contains("hint: authentication is enabled"), "{}", anonymous.err);
    let wrong = etcd.ours(&["--user", "root:wrong", "get", "k"], b"");
    assert_eq!(wrong.code, 1, "{wrong:?}");
    assert_eq!(etcd.ours(&["--user", "root:rp", "get", "k"], b"").done(), "k\nv\n");
    let printed =
        etcd.ours(&["--user", "root", "--password", "rp", "lock", "m", "--", "echo", "in"], b"");
    assert_eq!(printed.done(), "in\n");
    // A user needs write permission to hold a lock.
    let as_root = |line: &str| {
        let words = line.split(' ').chain(["--user", "root:rp"]).collect::<Vec<_>>();
        etcd.ours(&words, b"").done()
    };
    as_root("user add ann:ap");
    as_root("role add jobs");
    as_root("role grant-permission jobs readwrite jobs/ --prefix");
    as_root("user grant-role ann jobs");
    let as_ann = |name| etcd.ours(&["--user", "ann:ap", "lock", name, "--", "echo", "in"], b"");
    assert_eq!(as_ann("jobs/a").done(), "in\n");
    let refused = as_ann("other");
    assert_eq!(refused.code, 125);
    assert!(refused.err.contains("permission denied"), "{}", refused.err);
    let disabled = etcd.ours(&["auth", "disable", "--user", "root:rp"], b"").done();
    assert_eq!(disabled, "Authentication Disabled\n");
}

#[test]
fn help_of_a_command_shows_examples_and_only_its_own_options() {
    let server = Server::alone(&[]);
    let help = ask(&server, &["lock", "--help"]).done();
    assert!(help.contains("Examples:") && !help.contains("--cacert"), "{help}");
}
