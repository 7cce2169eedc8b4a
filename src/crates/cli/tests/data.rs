//! Runs `bowline snapshot status` and `restore`, `recover` and `inspect` as processes, and the commands of their
//! documentation pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use bowline::{Blocking, Config, KeyRange, Node};
use serde_json::Value;
use tempfile::TempDir;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// A directory of the test, removed on drop.
struct Place(TempDir);

impl Place {
    fn new(test: &str) -> Self {
        Self(TempDir::with_prefix(format!("bowline-data-{test}-")).unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(BOWLINE);
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed, and parses its JSON.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        assert_eq!(output.stderr, b"", "{arguments:?}");
        serde_json::from_slice(&output.stdout).expect("the output is one JSON object")
    }

    /// Creates a stopped member with keys, a lease and a lock in `data`, and a backup of it.
    fn with_data(self) -> Self {
        let node = Node::start(Config::new(self.at("data"), "solo")).block().unwrap();
        let client = node.client();
        for key in 0..10 {
            client.put(format!("k{key}"), "v").block().unwrap();
        }
        let lease = client.grant(Duration::from_secs(600)).block().unwrap();
        client.put("leased", "v").lease(lease.id).block().unwrap();
        node.backup(self.at("orders.backup")).block().unwrap();
        self.end(node, "data");
        self
    }

    /// Stops a node, and waits until it has released its directory. A shutdown waits for a slow disk only for a limited
    /// time.
    fn end(&self, node: Node, dir: &str) {
        node.shutdown().block();
        let begun = Instant::now();
        loop {
            let inspected = self.run(&["inspect", dir]);
            if inspected.status.success() {
                return;
            }
            let complaint = text(&inspected.stderr);
            assert!(begun.elapsed() < Duration::from_secs(60), "{complaint}");
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns the commands in the code blocks of a page, with line continuations joined.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|after| after.split("```").next().unwrap());
    blocks
        .flat_map(str::lines)
        .map(|line| line.trim().to_owned())
        .filter(|l| !l.is_empty())
        .collect()
}

/// Runs a page's commands in order, in a shell that finds the program by name.
fn run_page(page: &str, place: &Place, expected: usize) {
    let path = Path::new(BOWLINE).parent().unwrap().display();
    let path = format!("{path}:{}", std::env::var("PATH").unwrap());
    let commands = commands(page);
    assert_eq!(commands.len(), expected, "{commands:#?}");
    for command in commands {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &command]).current_dir(place.0.path()).env("PATH", &path);
        let output = shell.stdin(Stdio::null()).output().unwrap();
        let complaint = text(&output.stderr);
        assert!(output.status.success() && complaint.is_empty(), "{command}: {complaint}");
        assert!(!text(&output.stdout).contains('\x1b'), "no colors without a terminal");
    }
}

#[test]
fn commands_of_the_backup_page_work() {
    let place = Place::new("backup-page").with_data();
    run_page(include_str!("../../../../docs/operating/backup.md"), &place, 8);
    let of = |name: &str| place.json(&["inspect", "--json", name]);
    let (a, b, c) = (of("new/a"), of("new/b"), of("new/c"));
    assert!(a["cluster"] == b["cluster"] && b["cluster"] == c["cluster"]);
    assert_eq!([&a["member"], &b["member"], &c["member"]], [1, 2, 3]);
    assert_ne!(of("second/a")["cluster"], a["cluster"]);
    let look = Config::new(place.at("look"), "look").cluster_token("etcd-cluster");
    let node = Node::start(look).block().unwrap();
    let rows = node.client().range(KeyRange::all()).block().unwrap();
    assert_eq!(rows.kvs.len(), 10, "all but the leased key");
    assert!(rows.revision.get() > 1_000_000_000);
}

#[test]
fn commands_of_the_recovery_page_work() {
    let place = Place::new("recovery-page").with_data();
    run_page(include_str!("../../../../docs/operating/recovery.md"), &place, 5);
    let made = place.json(&["inspect", "--json", "new/a"]);
    assert_eq!(made["founded"], false);
    assert_eq!(made["from_backup"]["revision_jump"], 1_000_000_000);
}

#[test]
fn snapshot_and_inspect_print_the_actual_contents() {
    let place = Place::new("words").with_data();
    let backup = place.json(&["snapshot", "status", "orders.backup", "--json"]);
    assert_eq!(
        (&backup["sound"], &backup["keys"], &backup["leases"]),
        (&true.into(), &11.into(), &1.into())
    );
    assert_eq!(backup["members"][0]["name"], "solo");
    let words = place.run(&["snapshot", "status", "orders.backup"]);
    assert!(text(&words.stdout).contains("all checksums match"), "{words:?}");

    let info = place.json(&["inspect", "data", "--json"]);
    assert_eq!((&info["cluster"], &info["name"]), (&backup["cluster"], &"solo".into()));
    assert_eq!(
        (&info["keys"], &info["starts"], &info["problems"]),
        (&11.into(), &1.into(), &Value::Array(vec![]))
    );
    let words = place.run(&["inspect", "data"]);
    assert!(text(&words.stdout).contains("1 solo"), "{words:?}");

    let recovered =
        place.json(&["recover", "--dir", "data", "--out", "recovered", "--yes", "--json"]);
    assert_eq!((&recovered["keys"], &recovered["cluster"]), (&11.into(), &info["cluster"]));
    assert_eq!(recovered["warning"]["last"], info["log"]["last"]);
    let words = place.run(&["recover", "--dir", "data", "--out", "again", "--yes"]);
    assert!(
        text(&words.stdout)
            .contains("any later write that the other members acknowledged is missing")
    );

    let arguments = [
        "snapshot",
        "restore",
        "orders.backup",
        "--dir",
        "new",
        "--name",
        "x",
        "--revision-jump",
        "5",
        "--json",
    ];
    let restored = place.json(&arguments);
    assert_eq!((&restored["keys"], &restored["keys_deleted"]), (&10.into(), &1.into()));
    assert_eq!(restored["revision"].as_u64().unwrap(), backup["revision"].as_u64().unwrap() + 5);
}

#[test]
fn three_members_restored_by_the_command_are_a_cluster() {
    let place = Place::new("three").with_data();
    let addresses = bowline_fleet::ports::free_addresses(3).unwrap();
    let names = ["a", "b", "c"];
    let members: Vec<(&str, String)> = names.into_iter().zip(addresses).collect();
    for name in names {
        let list: Vec<String> =
            members.iter().map(|(name, at)| format!("--member={name}={at}")).collect();
        let mut arguments =
            vec!["snapshot", "restore", "orders.backup", "--dir", name, "--name", name];
        arguments.extend(["--token", "new", "--json"]);
        arguments.extend(list.iter().map(String::as_str));
        place.json(&arguments);
    }
    let nodes = names.map(|name| {
        let config = Config::new(place.at(name), name).members(members.clone());
        Node::start(config.cluster_token("new")).block().unwrap()
    });
    for node in &nodes {
        let rows = node.client().range(KeyRange::all()).deadline(Duration::from_secs(30));
        assert_eq!(rows.block().unwrap().kvs.len(), 10);
    }
}

#[test]
fn failed_commands_explain_themselves_and_set_the_exit_code() {
    let place = Place::new("refused").with_data();
    let mut bytes = fs::read(place.at("orders.backup")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(place.at("bad"), bytes).unwrap();
    let restore = |more: &[&'static str]| {
        [&["snapshot", "restore", "orders.backup", "--dir", "new", "--name", "a"], more].concat()
    };
    let cases: Vec<(Vec<&str>, i32, &str)> = vec![
        (vec!["snapshot", "status", "bad"], 1, "is damaged at byte"),
        (vec!["snapshot", "status", "nowhere"], 1, "nowhere"),
        (vec!["snapshot", "status", "data"], 1, "data"),
        (vec!["snapshot", "status"], 2, "<FILE>"),
        (vec!["snapshot"], 2, "status"),
        (
            vec!["snapshot", "restore", "bad", "--dir", "new", "--name", "a"],
            1,
            "is damaged at byte",
        ),
        (
            vec!["snapshot", "restore", "orders.backup", "--dir", "data", "--name", "a"],
            1,
            "is not empty",
        ),
        (restore(&["--member", "b=h:1"]), 2, "use the name of a listed member"),
        (restore(&["--member", "a"]), 2, "expected NAME=HOST:PORT"),
        (restore(&["--member", "a=h"]), 2, "not of the form host:port"),
        (restore(&["--revision-jump", "0"]), 2, "of the backup by 0: the jump must be at least 1"),
        (vec!["recover", "--dir", "data", "--out", "out"], 1, "pass --yes"),
        (vec!["recover", "--dir", "data", "--out", "orders.backup", "--yes"], 1, "already exists"),
        (vec!["recover", "--dir", ".", "--out", "out", "--yes"], 1, "no data of a member"),
        (vec!["inspect", "nowhere"], 1, "nowhere contains no data of a member"),
    ];
    for (arguments, code, words) in cases {
        let output = place.run(&arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
        assert!(complaint.contains(words), "{arguments:?}: {complaint:?} lacks {words:?}");
        assert_eq!(output.stdout, b"", "{arguments:?}");
    }
    assert!(!place.at("new").exists() && !place.at("out").exists());
}

#[test]
fn damaged_directory_is_inspected_as_far_as_possible() {
    let place = Place::new("damaged").with_data();
    assert_eq!(
        place
            .run(&[
                "snapshot",
                "restore",
                "orders.backup",
                "--dir",
                "new",
                "--name",
                "a",
                "--token",
                ""
            ])
            .status
            .code(),
        Some(0)
    );
    let node = Node::start(Config::new(place.at("new"), "a")).block().unwrap();
    node.client().put("k", "v").block().unwrap();
    place.end(node, "new");
    let snapshot = fs::read_dir(place.at("new")).unwrap().map(|file| file.unwrap().path());
    let snapshot =
        snapshot.into_iter().find(|path| path.extension().is_some_and(|e| e == "snapshot"));
    let snapshot = snapshot.unwrap();
    let mut bytes = fs::read(&snapshot).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&snapshot, bytes).unwrap();
    let output = place.run(&["inspect", "new", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&info["snapshots"][0]["sound_bytes"], &info["keys"]), (&Value::Null, &Value::Null));
    assert!(info["problems"].as_array().unwrap().len() == 2, "{info:#}");
    let output = place.run(&["inspect", "new"]);
    assert!(text(&output.stderr).contains("damaged: "), "{}", text(&output.stderr));
    let node = Command::new(BOWLINE).args(["recover", "--help"]).output().unwrap();
    for words in ["--dir", "--out", "--yes", "--json", "Exit codes"] {
        assert!(text(&node.stdout).contains(words), "{words}");
    }
}
