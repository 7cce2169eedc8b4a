//! Tests that `bowline import` copies all keys at one revision and verifies them.

use std::net::TcpListener;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, assert_equal, delete, import, imported, pairs, put, until};
use crate::ask::{command_at, run};

/// Writes rows of all kinds: binary, empty, large, many.
fn furnish(place: &Place) {
    place.fill("many/", 1500, 0);
    place.put(&[
        (b"\x00\xff\n\"key", b"\x00\x01\xfe"),
        (b"empty", b""),
        (b"\xff\xff\xff", b"last"),
    ]);
    for at in 0..3u8 {
        place.put(&[(format!("large/{at}").as_bytes(), &vec![at; 1 << 20])]);
    }
    place.put(&[(b"gone", b"1")]);
    place.delete("gone");
}

#[test]
fn import_copies_all_keys_and_names_leased_ones() {
    for (source, target) in pairs() {
        furnish(&source);
        let lease = source.lease(600);
        source.txn(vec![put(b"alive/a", b"1", lease), put(b"many/zz", b"2", lease)]);
        let revision = source.revision();
        let printed = imported(&source, &target, &[]).done();
        let id = format!("{lease:016x}");
        assert!(printed.contains(&format!("revision {revision}\n")), "{printed}");
        assert!(
            printed.contains("verified   1506 keys, equal on both sides, sha256 "),
            "{printed}"
        );
        assert!(printed.contains("left out   2 keys with leases:\n"), "{printed}");
        assert!(printed.contains(&format!("\"alive/a\" on lease {id}\n")), "{printed}");
        let mut rows = source.rows("");
        rows.retain(|_, row| row.1 == 0);
        assert_equal(&rows, &target.rows(""));

        // A second import has nothing to change.
        let before = target.revision();
        let again = imported(&source, &target, &["-w", "json"]).done();
        assert!(again.starts_with("{\"what\":\"copied\",\"source_cluster_id\":"), "{again}");
        assert!(again.contains("\"keys\":1506,"), "{again}");
        assert!(again.contains(&format!("\"written\":0,\"beside\":{{\"count\":0,\"keys\":[]}},\"left_out\":[{{\"key\":\"YWxpdmUvYQ==\",\"lease\":{lease}}}")), "{again}");
        assert_eq!(target.revision(), before);
        assert_eq!(source.revision(), revision, "nothing is written to the source");
    }
}

#[test]
fn conflicting_keys_are_named_and_kept_without_overwrite() {
    let (source, target) = (Place::ours(), Place::ours());
    source.fill("k/", 900, 0);
    target.put(&[(b"k/000800", b"mine"), (b"k/other", b"mine")]);
    let before = target.revision();
    let refused = imported(&source, &target, &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("1 keys at the target differ from the source"), "{}", refused.err);
    assert!(refused.err.contains(": \"k/000800\". Nothing was written"), "{}", refused.err);

    let planned = imported(&source, &target, &["--dry-run"]);
    assert_eq!(planned.code, 1);
    assert!(planned.text().contains("to write   899 keys\n"), "{planned:?}");
    assert!(planned.text().contains("conflict   1 keys"), "{planned:?}");
    assert_eq!(target.revision(), before, "nothing was written");

    let output = imported(&source, &target, &["--overwrite"]).done();
    assert!(
        output.contains("beside     1 keys that exist only at the target: \"k/other\"\n"),
        "{output}"
    );
    assert_eq!(target.get("k/other").as_deref(), Some("mine"));
    imported(&source, &target, &["--delete"]).done();
    assert_equal(&source.rows(""), &target.rows(""));
    let planned = imported(&source, &target, &["--dry-run"]).done();
    assert!(planned.contains("equal      900 keys\nto write   0 keys\n"), "{planned}");
}

#[test]
fn prefix_is_imported_under_another_prefix() {
    let (source, target) = (Place::ours(), Place::ours());
    source.put(&[(b"a/1", b"x"), (b"a/2", b"y"), (b"a/", b"z"), (b"b/1", b"w"), (b"c/1", b"v")]);
    target.put(&[(b"old/zzz", b"mine"), (b"a/9", b"mine")]);
    imported(&source, &target, &["--prefix", "a/", "--dest-prefix", "old/a/"]).done();
    for (key, value) in [("old/a/1", "x"), ("old/a/2", "y"), ("old/a/", "z"), ("old/zzz", "mine")] {
        assert_eq!(target.get(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(target.count(), 5);
    imported(&source, &target, &["--prefix", "c/", "--prefix", "b/", "--prefix", "b/1"]).done();
    assert_eq!(target.count(), 7);
    assert_eq!(target.get("b/1").as_deref(), Some("w"));

    let nameless = imported(&source, &target, &["--prefix", "a/", "--dest-prefix", ""]);
    assert_eq!(nameless.code, 2, "{nameless:?}");
    assert!(nameless.err.contains("\"a/\" would have an empty name"), "{}", nameless.err);
    let several =
        imported(&source, &target, &["--prefix", "a", "--prefix", "b", "--dest-prefix", "c"]);
    assert_eq!(several.code, 2, "{several:?}");
}

#[test]
fn import_rejects_the_same_cluster_and_a_missing_source() {
    let (source, target) = (Place::ours(), Place::ours());
    source.put(&[(b"a/k", b"v")]);
    let same = imported(&source, &source, &[]);
    assert_eq!(same.code, 2, "{same:?}");
    assert!(same.err.contains("are the same cluster"), "{}", same.err);
    // The target names have another prefix, so they are different keys.
    imported(&source, &source, &["--prefix", "a/", "--dest-prefix", "b/"]).done();
    assert_eq!(source.get("b/k").as_deref(), Some("v"));
    let mut unreachable = command_at(&target.address());
    unreachable.args(["import", "--from", "127.0.0.1:1"]);
    let unreachable = run(unreachable, b"");
    assert_eq!(unreachable.code, 4, "{unreachable:?}");
    assert!(unreachable.err.contains("127.0.0.1:1: "), "{}", unreachable.err);
    source.compact();
    let forgotten = imported(&source, &target, &["--rev", "1"]);
    assert_eq!(forgotten.code, 1, "{forgotten:?}");
    assert!(forgotten.err.contains("has compacted revision 1: omit --rev"), "{}", forgotten.err);
}

#[test]
fn interrupted_import_resumes_on_the_next_run() {
    let (source, target) = (Place::ours(), Place::ours());
    source.fill("k/", 20_000, 300);
    let revision = source.revision();
    let mut begun = import(&source, &target, &[]);
    begun.stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = begun.spawn().unwrap();
    until("some keys are copied", || target.count() > 1000);
    kill_process(Pid::from_child(&begun), Signal::INT).unwrap();
    let ended = begun.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    if ended.status.code() == Some(0) {
        // The import finished before the signal arrived, which can happen on a busy machine.
        return assert_equal(&source.rows(""), &target.rows(""));
    }
    assert_eq!(ended.status.code(), Some(130), "{err}");
    assert!(err.contains(&format!("add --rev {revision} if")), "{err}");
    let count = target.count();

    // The source changes: one copied key has a new value, and one is deleted.
    source.txn(vec![put(b"k/000003", b"new", 0), delete("k/000004", false)]);
    let refused = imported(&source, &target, &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("\"k/000003\""), "{}", refused.err);
    let rev = revision.to_string();
    let went_on = imported(&source, &target, &["--rev", &rev, "-w", "json"]).done();
    let written = went_on.split("\"written\":").nth(1).unwrap().split(',').next().unwrap();
    // Writes that were in progress when the import was interrupted may have been applied afterwards.
    assert!((0..=20_000 - count).contains(&written.parse().unwrap()), "{went_on}");
    imported(&source, &target, &["--overwrite", "--delete"]).done();
    assert_equal(&source.rows(""), &target.rows(""));
}

#[test]
fn import_can_be_interrupted_while_a_cluster_is_silent() {
    let target = Place::ours();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = silent.local_addr().unwrap().to_string();
    for (mode, signal, code) in [
        ("--dry-run", Signal::TERM, 143),
        ("--dry-run", Signal::INT, 130),
        ("--mirror", Signal::TERM, 143),
    ] {
        let mut command = command_at(&target.address());
        command.args([
            "--command-timeout",
            "1h",
            "--dial-timeout",
            "1h",
            "import",
            "--from",
            &from,
            mode,
        ]);
        let mut going = command.stderr(Stdio::null()).spawn().unwrap();
        let _connection = silent.accept().unwrap();
        kill_process(Pid::from_child(&going), signal).unwrap();
        until("the command ends", || going.try_wait().unwrap().is_some());
        assert_eq!(going.wait().unwrap().code(), Some(code), "{mode} {signal:?}");
    }
}

/// Runs `what` during a copy of `keys` keys. If the copy finishes too early, `what` returns false and is repeated with
/// more keys.
fn while_it_copies(keys: usize, what: impl Fn(usize) -> bool) {
    assert!(
        [keys, 4 * keys, 16 * keys].into_iter().any(what),
        "the copy ended before the signal every time"
    );
}

#[test]
fn import_survives_kills_of_both_clusters_and_a_compaction() {
    while_it_copies(30_000, lives_through_kills);
}

fn lives_through_kills(keys: usize) -> bool {
    let (mut source, mut target) = (Place::ours(), Place::ours());
    source.fill("k/", keys, 200);
    let mut begun = import(&source, &target, &[]);
    begun.stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = begun.spawn().unwrap();
    until("some keys are copied", || target.count() > 500);
    target.kill();
    target.start();
    until("more keys are copied", || target.count() > 2000);
    source.kill();
    source.start();
    until("more keys are copied", || target.count() > 5000);
    // While the import is suspended, keys that were already copied change, and their history is compacted.
    kill_process(Pid::from_child(&begun), Signal::STOP).unwrap();
    let before = source.rows("");
    source.txn(vec![put(b"k/000001", b"new", 0), delete("k/000002", false), put(b"k/", b"new", 0)]);
    source.compact();
    kill_process(Pid::from_child(&begun), Signal::CONT).unwrap();
    let ended = begun.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(0), "{err}");
    let rows = target.rows("");
    if rows == before {
        return false;
    }
    assert!(err.contains("restarting with a newer one"), "{err}");
    assert_equal(&source.rows(""), &rows);
    assert_eq!(target.get("k/000001").as_deref(), Some("new"));
    true
}

#[test]
fn import_gives_up_on_an_absent_cluster_and_reports_its_progress() {
    while_it_copies(20_000, is_given_up);
}

fn is_given_up(keys: usize) -> bool {
    let (source, mut target) = (Place::ours(), Place::ours());
    source.fill("k/", keys, 300);
    let mut begun = import(&source, &target, &["--retry-for", "1s"]);
    begun.stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = begun.spawn().unwrap();
    until("some keys are copied", || target.count() > 500);
    target.kill();
    let ended = begun.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    if ended.status.code() == Some(0) {
        target.start();
        assert_equal(&source.rows(""), &target.rows(""));
        return false;
    }
    assert_eq!(ended.status.code(), Some(1), "{err}");
    assert!(err.contains("changes were written, for revision"), "{err}");
    assert!(err.contains(&target.address()), "{err}");
    true
}

#[test]
fn import_has_separate_credentials_for_source_and_target() {
    let (source, target) = (Place::ours(), Place::ours());
    source.put(&[(b"k", b"v")]);
    for words in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        let mut asked = command_at(&source.address());
        asked.args(words);
        run(asked, b"").done();
    }
    let refused = imported(&source, &target, &[]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(
        refused.err.contains("the source: ") && refused.err.contains("hint: "),
        "{}",
        refused.err
    );
    let mut with_variable = import(&source, &target, &["--from-user", "root"]);
    with_variable.env("BOWLINE_FROM_PASSWORD", "secret");
    run(with_variable, b"").done();
    assert_eq!(target.get("k").as_deref(), Some("v"));
    imported(&source, &target, &["--from-user", "root:secret"]).done();
}
