//! Tests that restore procedures written for etcd work with Bowline.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::ask::{CliOutput, ask, run};
use bowline_testkit::process::{Server, bowline, flags, free_ports};

/// Returns a directory with `a.snap`, a snapshot of three keys, and the snapshot's revision.
fn snapshot() -> (TempDir, u64) {
    let place = tempdir().unwrap();
    let server = Server::alone(&[]);
    for key in ["a", "b", "c"] {
        ask(&server, &["put", key, "v"]).done();
    }
    let file = place.path().join("a.snap");
    ask(&server, &["snapshot", "save", file.to_str().unwrap()]).done();
    let revision = status(place.path(), "json");
    (place, serde_json::from_str::<Value>(&revision).unwrap()["revision"].as_u64().unwrap())
}

fn in_place(place: &Path, line: &str) -> CliOutput {
    let mut command = bowline();
    command.args(line.split_whitespace()).current_dir(place);
    run(command, b"")
}

fn status(place: &Path, form: &str) -> String {
    in_place(place, &format!("snapshot status a.snap -w {form}")).done()
}

#[test]
fn snapshot_status_prints_the_formats_of_etcdutl() {
    let (place, revision) = snapshot();
    let json: Value = serde_json::from_str(&status(place.path(), "json")).unwrap();
    // The file has padding and a hash after it, like etcd's, which are not part of the size.
    let bytes = json["totalSize"].as_u64().unwrap();
    assert!(bytes > 0 && bytes <= fs::metadata(place.path().join("a.snap")).unwrap().len());
    assert_eq!(json["totalKey"], 3);
    assert_eq!((&json["revision"], &json["version"]), (&revision.into(), &"3.7.0".into()));
    let hash = json["hash"].as_u64().unwrap();
    assert!(hash <= u64::from(u32::MAX), "{json}");

    let expected = format!(
        "\"Hash\" : {hash}\n\"Revision\" : {revision}\n\"Keys\" : 3\n\"Size\" : {bytes}\n\"Version\" : 3.7.0\n"
    );
    assert_eq!(status(place.path(), "fields"), expected);
    let table = status(place.path(), "table");
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        cells.collect::<Vec<_>>()
    };
    let lines: Vec<_> = table.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    assert_eq!(lines[0], ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"]);
    assert_eq!(lines[1][..3], [format!("{hash:x}"), revision.to_string(), "3".to_owned()]);
    assert_eq!((lines[1][3].ends_with('B'), lines[1][4].as_str()), (true, "3.7.0"));
}

#[test]
fn etcds_runbook_restores_three_members_from_one_file() {
    let (place, revision) = snapshot();
    let peers: [u16; 3] = free_ports();
    let clients: [u16; 3] = free_ports();
    let member = |at: usize| format!("m{at}=http://127.0.0.1:{}", peers[at]);
    let cluster = [0, 1, 2].map(member).join(",");
    for (at, peer) in peers.iter().enumerate() {
        let line = format!(
            "snapshot restore a.snap --name m{at} --initial-cluster {cluster} \
             --initial-cluster-token etcd-cluster --skip-hash-check=true --wal-dir= \
             --initial-advertise-peer-urls http://localhost:{peer}"
        );
        in_place(place.path(), &line).done();
    }
    let servers = [0, 1, 2].map(|at| {
        let dir = place.path().join(format!("m{at}.etcd"));
        Server::start(&flags(at, &peers, clients[at], &dir), clients[at], &[])
    });
    let servers = servers.map(Server::ready);
    for server in &servers {
        assert_eq!(ask(server, &["get", "a"]).done(), "a\nv\n");
        let got = ask(server, &["get", "a", "-w", "json"]).done();
        let got: Value = serde_json::from_str(&got).unwrap();
        assert!(got["header"]["revision"].as_u64().unwrap() > revision + 999_999_999, "{got}");
    }
}

#[test]
fn bump_revision_raises_the_revision_and_compacts_old_ones() {
    let (place, revision) = snapshot();
    // The command has neither a name nor a directory.
    let line = "snapshot restore --bump-revision 1000 --mark-compacted a.snap --json";
    let restored: Value = serde_json::from_str(&in_place(place.path(), line).done()).unwrap();
    assert_eq!((&restored["name"], &restored["dir"]), (&"default".into(), &"default.etcd".into()));
    assert_eq!(restored["revision"], revision + 1000);

    let [peer, client] = free_ports();
    let dir = format!("--data-dir={}", place.path().join("default.etcd").display());
    let urls = ["--listen-client-urls", "--advertise-client-urls"];
    let mut words = urls.map(|name| format!("{name}=http://127.0.0.1:{client}")).to_vec();
    words.extend([dir, format!("--listen-peer-urls=http://127.0.0.1:{peer}")]);
    let server = Server::start(&words, client, &[]).ready();
    let got: Value =
        serde_json::from_str(&ask(&server, &["get", "a", "-w", "json"]).done()).unwrap();
    assert_eq!(got["header"]["revision"], revision + 1000);
    let old = revision.to_string();
    for command in [["get", "a", "--rev", &old], ["watch", "a", "--rev", &old]] {
        let refused = ask(&server, &command);
        assert!(refused.code != 0 && refused.err.contains("compacted"), "{refused:?}");
    }
}

#[test]
fn unsupported_restore_flags_are_rejected() {
    let (place, _) = snapshot();
    let list = "--name a --initial-cluster a=http://127.0.0.1:1,b=http://127.0.0.1:2";
    let cases = [
        ("--wal-dir /elsewhere".to_owned(), "the log is kept in the data directory"),
        ("--bump-revision 5".to_owned(), "--bump-revision requires --mark-compacted"),
        ("--mark-compacted".to_owned(), "--mark-compacted requires --bump-revision"),
        ("--bump-revision 0 --mark-compacted".to_owned(), "always rise"),
        ("--bump-revision 5 --revision-jump 5".to_owned(), "cannot be used with"),
        (format!("{list} --initial-advertise-peer-urls http://127.0.0.1:2"), "127.0.0.1:1 for"),
    ];
    for (flags, words) in cases {
        let refused =
            in_place(place.path(), &format!("snapshot restore a.snap --data-dir d {flags}"));
        assert_eq!(refused.code, 2, "{flags}: {refused:?}");
        assert!(refused.err.contains(words), "{flags}: {refused:?}");
        assert!(!place.path().join("d").exists(), "{flags}");
    }
    let usual = "--wal-dir d/member/wal --initial-memory-map-size 10000000";
    in_place(place.path(), &format!("snapshot restore a.snap --data-dir d {usual}")).done();
}
