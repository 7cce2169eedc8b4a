//! Tests of the commands for keys, transactions, watches and leases.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use tempfile::tempdir;

use crate::ask::{Going, ask, command, run};
use bowline_testkit::process::{Server, SingleMember};

#[test]
fn arbitrary_bytes_round_trip() {
    let dir = tempdir().unwrap();
    let server = Server::alone(&[]);
    let value: Vec<u8> = (0..=255).collect();
    let key = OsString::from_vec(b"k\xff\xfe".to_vec());
    let file = dir.path().join("value");
    fs::write(&file, &value).unwrap();

    let mut from_input = command(&server);
    from_input.args([&OsString::from("put"), &key]);
    assert_eq!(run(from_input, &value).done(), "OK\n");
    let mut get = command(&server);
    get.args([&OsString::from("get"), &key]);
    let expected = [&b"k\xff\xfe\n"[..], &value, b"\n"].concat();
    assert_eq!(run(get, b"").out, expected);

    let file = file.to_str().unwrap();
    ask(&server, &["put", "f", "--value-file", file]).done();
    let only = ask(&server, &["get", "f", "--print-value-only"]);
    assert_eq!(only.out, [&value[..], b"\n"].concat());
    assert_eq!(ask(&server, &["get", "", "--prefix", "--count-only"]).done(), "2\n");

    // A key with zero bytes must be read from a file, because arguments cannot contain zero bytes.
    let key = dir.path().join("key");
    fs::write(&key, b"\x00k\x00").unwrap();
    let key = key.to_str().unwrap();
    ask(&server, &["put", "--key-file", key, "--value-file", file]).done();
    let got = ask(&server, &["get", "--key-file", key]);
    assert_eq!(got.out, [&b"\x00k\x00\n"[..], &value, b"\n"].concat());
    let mut from_input = command(&server);
    from_input.args(["get", "--key-file", "-", "--print-value-only"]);
    assert_eq!(run(from_input, b"\x00k\x00").out, [&value[..], b"\n"].concat());
    assert_eq!(
        ask(&server, &["put", "--key-file", "-"]).code,
        2,
        "key and value both from standard input"
    );
    let mut txn = command(&server);
    txn.arg("txn");
    assert_eq!(run(txn, b"\nget --key-file -\n").code, 2);
    assert_eq!(ask(&server, &["del", "--key-file", key]).done(), "1\n");
}

#[test]
fn transaction_from_a_file_reports_its_branch() {
    let dir = tempdir().unwrap();
    let server = Server::alone(&[]);
    let file = dir.path().join("txn");
    fs::write(&file, "ver(\"k\") = \"0\"\n\nput k 'a b'\nget k\n\nget k\n").unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(ask(&server, &["txn", file]).done(), "SUCCESS\n\nOK\n\nk\na b\n");
    assert_eq!(ask(&server, &["txn", file]).done(), "FAILURE\n\nk\na b\n");
    let mut prompted = command(&server);
    prompted.args(["txn", "-i"]);
    let printed = run(prompted, b"\nget k\n\n\n").done();
    let prompts =
        "compares:\nsuccess requests (get, put, del):\nfailure requests (get, put, del):\n";
    assert_eq!(printed, format!("{prompts}SUCCESS\n\nk\na b\n"));
    let mut wrong = command(&server);
    wrong.arg("txn");
    let wrong = run(wrong, b"mod(\"k\") = \"x\"\n");
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("expected a number"), "{}", wrong.err);
}

#[test]
fn watch_runs_a_command_per_change_and_survives_a_restart() {
    let member = SingleMember::prepare();
    let server = member.start(&[]);
    ask(&server, &["put", "k", "0"]).done();
    let mut watch = command(&server);
    watch.args(["--command-timeout", "60s", "watch", "k", "--rev", "2", "--", "sh", "-c"]);
    watch.arg("echo \"$ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE\"");
    let mut watch = Going::start(watch);
    assert_eq!(watch.lines(4), "PUT\nk\n0\n\"PUT\" \"k\" \"0\"\n");
    server.stop();
    let server = member.start(&[]);
    ask(&server, &["del", "k"]).done();
    assert_eq!(watch.lines(4), "DELETE\nk\n\n\"DELETE\" \"k\" \"\"\n");
}

#[test]
fn watch_command_does_not_read_the_input_of_the_watch() {
    use std::io::Write;
    let server = Server::alone(&[]);
    ask(&server, &["put", "k", "v"]).done();
    let mut watch = command(&server);
    watch.args(["watch", "k", "--rev", "2", "--", "sh", "-c", "read line; echo \"[$line]\""]);
    watch.stdin(std::process::Stdio::piped());
    let mut watch = Going::start(watch);
    let mut input = watch.child.stdin.take().unwrap();
    input.write_all(b"a line\n").unwrap();
    // The watch must deliver available events without waiting for more input.
    assert_eq!(watch.lines(4), "PUT\nk\nv\n[]\n");
    drop(input);
}

#[test]
fn lease_revocation_deletes_its_keys() {
    let server = Server::alone(&[]);
    let granted = ask(&server, &["lease", "grant", "60"]).done();
    let id = granted.split(' ').nth(1).unwrap();
    assert_eq!(granted, format!("lease {id} granted with TTL(60s)\n"));
    ask(&server, &["put", "k", "v", "--lease", id]).done();
    let life = ask(&server, &["lease", "timetolive", id, "--keys"]).done();
    assert!(life.contains("granted with TTL(60s)") && life.ends_with("keys([k])\n"), "{life}");
    let mut keeps = command(&server);
    keeps.args(["lease", "keep-alive", id]);
    let mut keeps = Going::start(keeps);
    assert_eq!(keeps.line(), format!("lease {id} keepalived with TTL(60)\n"));
    ask(&server, &["lease", "revoke", id]).done();
    assert_eq!(ask(&server, &["get", "k"]).done(), "");
    let gone = ask(&server, &["lease", "revoke", id]);
    assert_eq!(gone.code, 1);
    assert!(gone.err.contains("lease not found") && gone.err.contains("hint:"), "{}", gone.err);
}

#[test]
fn streamed_range_is_printed_like_a_range() {
    let server = Server::alone(&["--max-request-bytes=4096"]);
    for number in 0..40 {
        ask(&server, &["put", &format!("k{number:02}"), &"v".repeat(500)]).done();
    }
    for format in ["simple", "json", "fields"] {
        for options in [&[][..], &["--limit=33"], &["--keys-only"], &["--count-only"], &["--rev=9"]]
        {
            let get = [&["get", "k", "--prefix", "-w", format], options].concat();
            let expected = ask(&server, &get).done();
            let streamed = ask(&server, &[&get[..], &["--stream"]].concat()).done();
            assert_eq!(streamed, expected, "{get:?}");
        }
    }
    let sorted = ask(&server, &["get", "k", "--prefix", "--order=DESCEND", "--stream"]);
    assert_eq!(sorted.code, 1);
    assert!(sorted.err.contains("RangeStream does not support custom sort orders"), "{sorted:?}");
}

/// The error texts are those of etcdctl 3.6.
#[test]
fn contradictory_get_options_are_rejected() {
    let server = Server::alone(&[]);
    for (line, why) in [
        (
            "get k --keys-only --count-only",
            "`--keys-only` and `--count-only` cannot be set at the same time, choose one",
        ),
        (
            "get k --min-create-rev 3 --max-create-rev 2",
            "getMinCreateRev(=3) > getMaxCreateRev(=2)",
        ),
        ("get k --min-mod-rev 3 --max-mod-rev 2", "getMinModRev(=3) > getMaxModRev(=2)"),
    ] {
        let printed = ask(&server, &line.split(' ').collect::<Vec<_>>());
        assert!(printed.code == 2 && printed.err.contains(why), "{line}: {printed:?}");
    }
    ask(&server, &["get", "k", "--min-mod-rev", "3", "--max-mod-rev", "3"]).done();
    ask(&server, &["get", "k", "--min-mod-rev", "3"]).done();
}
