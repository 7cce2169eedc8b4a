//! Compares the output with etcdctl's byte for byte. Bowline's command and etcdctl use separate servers. The tests are
//! skipped if etcdctl is not installed. Output that exists only since etcd 3.6 (more columns, hexadecimal ids) has
//! separate tests, because Debian's etcdctl is older.

use std::process::Command;

use crate::ask::{CliOutput, Going, command, run};
use bowline_testkit::process::{Server, etcdctl_is_installed};

/// The requests that are rejected.
const REFUSED: [&str; 9] = [
    "get k --rev 5000",
    "get k --consistency=x",
    "get x --prefix --from-key",
    "put a b --lease 1234",
    "put a b --lease zz",
    "lease keep-alive 1234 --once",
    "lease revoke 1234",
    "compaction 999",
    "nothing",
];

fn etcdctl(server: &Server) -> Command {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").args(["--endpoints", &server.address]);
    command
}

/// Masks what differs between two clusters, such as long numbers and ids, and elapsed seconds of a TTL of 600.
fn masked(printed: &CliOutput) -> String {
    let text = String::from_utf8_lossy(&printed.out).into_owned();
    let mut masked = String::new();
    let mut number = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_hexdigit() {
            number.push(c);
            continue;
        }
        let is_left = number.parse().is_ok_and(|number: u32| (570..=600).contains(&number));
        masked.push_str(match number.len() {
            12.. => "#",
            _ if is_left => "600",
            _ => &number,
        });
        number.clear();
        masked.push(c);
    }
    // The order of leases varies, and addresses differ between servers.
    masked
}

/// The two servers, and the last lease of each.
struct Pair {
    servers: [Server; 2],
    leases: [String; 2],
}

impl Pair {
    fn ask(&mut self, input: &str, arguments: &[&str]) {
        let printed = [0, 1].map(|at| {
            let server = &self.servers[at];
            let mut asked = if at == 0 { etcdctl(server) } else { command(server) };
            let lease = &self.leases[at];
            asked.args(arguments.iter().map(|argument| argument.replace("LEASE", lease)));
            run(asked, input.as_bytes())
        });
        let [theirs, ours] = &printed;
        assert_eq!(masked(theirs), masked(ours), "{arguments:?}: {theirs:?} {ours:?}");
        assert_eq!(theirs.code == 0, ours.code == 0, "{arguments:?}: {theirs:?} {ours:?}");
        if arguments.starts_with(&["lease", "grant"]) {
            self.leases =
                printed.map(|printed| printed.text().split(' ').nth(1).unwrap().to_owned());
        }
    }
}

#[test]
fn replies_are_printed_as_in_etcdctl() {
    if !etcdctl_is_installed() {
        return;
    }
    let servers = [Server::alone(&[]), Server::alone(&[])];
    let mut pair = Pair { servers, leases: Default::default() };
    pair.ask("", &["lease", "grant", "600"]);
    for format in ["simple", "json", "fields"] {
        let mut ask = |line: &str| {
            // A rejection has the same text in all formats.
            if format != "simple" && REFUSED.contains(&line) {
                return;
            }
            let words: Vec<_> = line.split_whitespace().map(|word| word.replace('~', "")).collect();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            pair.ask("a\u{7f}\n\"\tü<&>\u{200b}", &[&["-w", format], &words[..]].concat());
        };
        for line in [
            "put k v",
            "put k w --prev-kv",
            "put bin",
            "put l v --lease LEASE",
            "put k --ignore-value --prev-kv",
            "put l x --ignore-lease --prev-kv",
            "get k",
            "get none",
            "get ~ --prefix",
            "get b --from-key --limit 1",
            "get a l --order DESCEND --sort-by MODIFY",
            "get ~ --prefix --sort-by version",
            "get ~ --prefix --keys-only",
            "get k --rev 3",
            "get ~ --prefix --keys-only --limit 1",
            "get k --consistency=s",
            "get k --rev 5000",
            "get k --consistency=x",
            "get x --prefix --from-key",
            "put a b --lease 1234",
            "put a b --lease zz",
            "lease timetolive LEASE --keys",
            "lease timetolive 1234",
            "lease list",
            "lease keep-alive LEASE --once",
            "lease keep-alive 1234 --once",
            "lease keep-alive 1234",
            "lease revoke 1234",
            "del none --prev-kv",
            "del bin --prev-kv",
            "del k z",
            "compaction 999",
            "nothing",
        ] {
            ask(line);
        }
        let txn = "mod(\"k\") > \"0\"\nval(\"k\") != \"v2\"\n\nput x \"a b\"\nget x\ndel x --prev-kv\n\nput z z\nget none\ndel none\n\n";
        pair.ask(txn, &["-w", format, "txn"]);
        pair.ask(txn, &["-w", format, "txn", "-i"]);
        pair.ask("x\n\n\n\n", &["-w", format, "txn"]);
    }
    pair.ask("", &["--hex", "put", "k", "\u{7f}ü"]);
    pair.ask("", &["--hex", "get", "k"]);
    pair.ask("", &["get", "k", "--print-value-only"]);
    pair.ask("", &["compaction", "5"]);
    pair.ask("", &["compaction", "5"]);
    pair.ask("", &["lease", "revoke", "LEASE"]);
}

#[test]
fn alarms_are_printed_as_in_etcdctl() {
    if !etcdctl_is_installed() {
        return;
    }
    let server = Server::alone(&[]);
    let raise = || {
        for member in [0, 5] {
            let alarm =
                format!(r#"{{"action":"ACTIVATE","alarm":"NOSPACE","memberID":"{member}"}}"#);
            assert_eq!(server.http("POST", "/v3/maintenance/alarm", &alarm).0, 200);
        }
    };
    raise();
    for arguments in [
        &["alarm", "list"][..],
        &["-w", "json", "alarm", "list"],
        &["-w", "fields", "alarm", "list"],
        &["alarm", "disarm"],
    ] {
        let printed = [etcdctl(&server), command(&server)].map(|mut asked| {
            raise();
            asked.args(arguments);
            run(asked, b"")
        });
        assert_eq!(printed[0].text(), printed[1].text(), "{arguments:?}: {printed:?}");
        assert!(printed[1].code == 0 && !printed[1].out.is_empty(), "{arguments:?}: {printed:?}");
    }
    assert_eq!(crate::ask::ask(&server, &["alarm", "list"]).done(), "");
}

#[test]
fn watches_are_printed_as_in_etcdctl() {
    if !etcdctl_is_installed() {
        return;
    }
    let server = Server::alone(&[]);
    for arguments in
        [&["put", "k", "1"][..], &["put", "k", "2"], &["del", "k"], &["put", "kk", "3"]]
    {
        crate::ask::ask(&server, arguments).done();
    }
    for arguments in [
        &["watch", "k", "--rev", "2", "--prev-kv"][..],
        &["watch", "k", "--rev", "2", "--prefix"],
        &["watch", "k", "l", "--rev", "3"],
        &["watch", "k", "--rev", "4", "--", "sh", "-c", "env | grep ETCD_WATCH_ | sort"],
    ] {
        for format in ["simple", "json", "fields"] {
            let start = |mut command: Command| {
                command.args(["-w", format]).args(arguments);
                Going::start(command)
            };
            let (mut theirs, mut ours) = (start(etcdctl(&server)), start(command(&server)));
            // All changes have happened, so all lines are available at once. A further line would belong to the next
            // change.
            let lines = match format {
                "json" => 1,
                _ => 3,
            };
            assert_eq!(theirs.lines(lines), ours.lines(lines), "{format} {arguments:?}");
        }
    }
}
