//! Tests that an import mirrors the source's changes. Whichever process is killed, each revision arrives exactly once,
//! as a whole, and in order.

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use tokio_stream::wrappers::ReceiverStream;

use super::{Place, WAIT_MAX, assert_equal, delete, import, imported, pairs, put, until};
use crate::ask::{Going, command_at, run};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::Event;
use pb::watch_client::WatchClient;

/// Starts a mirror, and waits until its copy is complete.
fn mirror(source: &Place, target: &Place, more: &[&str]) -> Going {
    let mut command = import(source, target, &["--mirror"]);
    command.args(more).stderr(Stdio::null());
    let mut going = Going::start(command);
    received(&mut going, "verified ");
    going
}

/// Reads until a line starts with `words`.
#[track_caller]
fn received(going: &mut Going, words: &str) -> String {
    loop {
        let line = going.line();
        assert!(!line.is_empty(), "the output ended before {words:?}");
        if line.starts_with(words) {
            return line;
        }
    }
}

/// Waits until the mirror reports to be in sync at the source's revision.
#[track_caller]
fn in_sync(going: &mut Going, source: &Place) {
    let revision = source.revision();
    while received(going, "in sync at revision ").trim()
        != format!("in sync at revision {revision}")
    {}
}

/// Stops the mirror with SIGINT.
fn end(mut going: Going) -> String {
    kill_process(Pid::from_child(&going.child), Signal::INT).unwrap();
    let line = received(&mut going, "mirrored up to revision ");
    assert_eq!(going.child.wait().unwrap().code(), Some(0));
    line
}

/// Returns all changes of a key from a revision up to the value `last`.
fn history(place: &Place, key: &str, from: i64, last: &[u8]) -> Vec<Event> {
    place.runtime.block_on(async {
        let (requests, stream) = tokio::sync::mpsc::channel(1);
        let create = pb::WatchCreateRequest {
            key: key.to_owned().into(),
            start_revision: from,
            ..Default::default()
        };
        requests.send(create.into()).await.unwrap();
        let mut watch =
            WatchClient::new(place.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut answers = watch.watch(ReceiverStream::new(stream)).await.unwrap().into_inner();
        let mut events = Vec::new();
        let all = async {
            while events.last().is_none_or(|event: &Event| event.kv.as_ref().unwrap().value != last)
            {
                events.extend(answers.message().await.unwrap().unwrap().events);
            }
        };
        tokio::time::timeout(WAIT_MAX, all).await.unwrap();
        events
    })
}

/// Writes revisions that each increment two keys, and sometimes put and delete others.
fn write(place: &Place, from: usize, until: usize) {
    for at in from..until {
        let count = at.to_string();
        let mut ops = vec![put(b"one", count.as_bytes(), 0), put(b"two", count.as_bytes(), 0)];
        let turn = |at: usize| format!("turn/{:02}", at % 37);
        match at % 3 {
            0 => ops.push(put(turn(at).as_bytes(), count.as_bytes(), 0)),
            1 => ops.push(delete(&turn(at / 2), false)),
            _ => ops.push(delete("turn/1", at % 50 == 2)),
        }
        place.txn(ops);
    }
}

#[test]
fn mirror_applies_each_revision_once_in_order_despite_kills() {
    for (mut source, mut target) in pairs() {
        source.fill("many/", 500, 0);
        source.put(&[(b"turn/00", b"x"), (b"one", b"0"), (b"two", b"0")]);
        let mut going = mirror(&source, &target, &[]);
        let began = target.revision();
        write(&source, 1, 200);
        target.kill();
        write(&source, 200, 300);
        target.start();
        write(&source, 300, 400);
        source.kill();
        source.start();
        write(&source, 400, 600);
        in_sync(&mut going, &source);
        assert_equal(&source.rows(""), &target.rows(""));
        let revision = source.revision();
        assert!(end(going).starts_with(&format!("mirrored up to revision {revision}: ")));

        // Each revision of the source corresponds to one revision of the target: no revision is lost, repeated or
        // split.
        let [one, two] = ["one", "two"].map(|key| history(&target, key, began, b"599"));
        let received = |events: &[Event]| {
            let rows = events.iter().map(|event| event.kv.as_ref().unwrap());
            let received =
                rows.map(|row| (String::from_utf8(row.value.to_vec()).unwrap(), row.mod_revision));
            received.filter(|(value, _)| value != "0").collect::<Vec<_>>()
        };
        let counts: Vec<_> = received(&one).into_iter().map(|(value, _)| value).collect();
        assert_eq!(counts, (1..600).map(|at| at.to_string()).collect::<Vec<_>>());
        assert_eq!(received(&one), received(&two));
    }
}

#[test]
fn mirror_keeps_up_with_a_writer_and_is_never_torn() {
    let (source, target) = (Place::ours(), Place::ours());
    source.put(&[(b"one", b"0"), (b"two", b"0")]);
    let done = AtomicBool::new(false);
    let looked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The loop runs until enough is written and observed, but not longer than a time limit.
            let is_enough = |at| at > 1500 && looked.load(Ordering::Relaxed) > 10;
            let last = (0..100_000).step_by(100).find(|at| {
                write(&source, at + 1, at + 101);
                is_enough(*at)
            });
            done.store(true, Ordering::Release);
            assert!(last.is_some(), "no progress was printed");
        });
        let mut going = mirror(&source, &target, &[]);
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let rows = target.rows("");
                assert_eq!(rows[&b"one"[..]], rows[&b"two"[..]]);
                looked.fetch_add(1, Ordering::Relaxed);
            }
        });
        until("the writer has ended", || done.load(Ordering::Acquire));
        in_sync(&mut going, &source);
        end(going);
    });
    assert!(looked.into_inner() > 10);
    assert_equal(&source.rows(""), &target.rows(""));
}

#[test]
fn large_source_transaction_is_mirrored_atomically() {
    for (source, target) in pairs() {
        source.fill("a/", 3000, 0);
        source.fill("b/", 3000, 0);
        source.fill("mixed/", 400, 0);
        target.put(&[(b"a/001500x", b"mine")]);
        let mut going = mirror(&source, &target, &[]);
        let before = target.revision();
        source.delete("a/");
        // The changes do not fit into one transaction of the target, and have no adjacent deletes that could be
        // merged.
        let one = |at: usize| delete(&format!("mixed/{:06}", at * 2), false);
        let some = |from: usize| {
            let success = (from..from + 100).map(one).collect();
            pb::RequestOp::from(pb::TxnRequest { success, ..Default::default() })
        };
        source.txn(vec![some(0), some(100)]);
        in_sync(&mut going, &source);
        let mut rows = target.rows("");
        assert_eq!(
            rows.remove(&b"a/001500x"[..]).unwrap().0,
            b"mine",
            "it does not come from the source"
        );
        assert_equal(&source.rows(""), &rows);
        assert_eq!(rows.len(), 3200);
        assert_eq!(target.revision(), before + 2, "one revision for each change");
        end(going);
    }
}

#[test]
fn leased_keys_are_not_mirrored() {
    let (source, target) = (Place::ours(), Place::ours());
    let lease = source.lease(600);
    source.txn(vec![put(b"alive", b"1", lease), put(b"plain", b"1", 0), put(b"moves", b"1", 0)]);
    let mut going = mirror(&source, &target, &[]);
    // The program that owns `alive` has already switched to the target. Changes of the key at the source must not
    // delete the key at the target.
    target.put(&[(b"alive", b"here")]);
    source.txn(vec![put(b"alive", b"2", lease), put(b"moves", b"2", lease)]);
    // The program that owns `later` has switched to the target before its key existed at the source.
    target.put(&[(b"later", b"here")]);
    source.txn(vec![put(b"later", b"1", lease), put(b"plain", b"2", 0)]);
    in_sync(&mut going, &source);
    assert_eq!(target.get("alive").as_deref(), Some("here"));
    assert_eq!(target.get("later").as_deref(), Some("here"));
    assert_eq!(target.get("moves"), None);
    assert_eq!(target.get("plain").as_deref(), Some("2"));
    source.revoke(lease);
    source.put(&[(b"moves", b"3")]);
    in_sync(&mut going, &source);
    for key in ["alive", "later"] {
        assert_eq!(target.get(key).as_deref(), Some("here"), "{key}");
    }
    assert_eq!(target.get("moves").as_deref(), Some("3"));
    end(going);
}

#[test]
fn prefix_is_mirrored_under_another_prefix() {
    for (source, target) in pairs() {
        source.put(&[(b"app/a", b"1"), (b"other", b"1")]);
        let mut going = mirror(&source, &target, &["--prefix", "app/", "--dest-prefix", "new/"]);
        source.put(&[(b"app/b", b"2"), (b"other", b"2")]);
        source.put(&[(b"other", b"3")]);
        in_sync(&mut going, &source);
        assert_eq!(target.get("new/b").as_deref(), Some("2"));
        source.delete("app/a");
        for _ in 0..3 {
            source.put(&[(b"other", b"4")]);
        }
        in_sync(&mut going, &source);
        assert_eq!(target.rows("").len(), 1);
        end(going);
    }
}

#[test]
fn foreign_writes_to_the_target_are_detected() {
    let (source, target) = (Place::ours(), Place::ours());
    source.put(&[(b"k", b"1")]);
    let mut command = import(&source, &target, &["--mirror"]);
    command.stderr(Stdio::piped());
    let mut going = Going::start(command);
    received(&mut going, "verified ");
    target.put(&[(b"k", b"mine")]);
    source.put(&[(b"k", b"2")]);
    received(&mut going, "mirrored up to revision ");
    assert_eq!(going.child.wait().unwrap().code(), Some(1));
    let mut err = String::new();
    let from = going.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut { from }, &mut err).unwrap();
    assert!(err.contains("another client has written \"k\" at the target"), "{err}");
    assert_eq!(
        target.get("k").as_deref(),
        Some("mine"),
        "another client's write must not be overwritten"
    );
}

#[test]
fn restored_or_replaced_cluster_ends_the_mirror() {
    for replaced in ["source", "target"] {
        let (mut source, mut target) = (Place::ours(), Place::ours());
        for at in 0..50u8 {
            source.put(&[(b"k", &[at])]);
            target.put(&[(b"other", &[at])]);
        }
        let mut command = import(&source, &target, &["--mirror"]);
        command.stderr(Stdio::piped());
        let mut going = Going::start(command);
        received(&mut going, "verified ");
        in_sync(&mut going, &source);
        match replaced {
            "source" => source.replace(),
            _ => target.replace(),
        }
        if replaced == "target" {
            source.put(&[(b"k", b"new")]);
        }
        received(&mut going, "mirrored up to revision ");
        assert_eq!(going.child.wait().unwrap().code(), Some(1));
        let mut err = String::new();
        let from = going.child.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut { from }, &mut err).unwrap();
        let printed = ["has gone back: it was at revision ", "is another cluster now: "];
        assert!(
            printed.iter().any(|printed| err.contains(&format!("the {replaced} {printed}"))),
            "{err}"
        );
    }
}

/// Suspends a mirror while the source changes, compacts its history and restarts.
fn left_behind(going: &Going, source: &mut Place) {
    let pid = Pid::from_child(&going.child);
    kill_process(pid, Signal::STOP).unwrap();
    source.kill();
    source.start();
    source.txn(vec![put(b"k/1", b"new", 0), delete("k/2", false), put(b"k/9", b"new", 0)]);
    source.put(&[(b"k/9", b"newer")]);
    source.compact();
    kill_process(pid, Signal::CONT).unwrap();
}

#[test]
fn mirror_behind_a_compaction_reports_it_and_recopies_on_request() {
    for (mut source, target) in pairs() {
        let rows = |place: &Place| place.rows("k/");
        source.put(&[(b"k/1", b"1"), (b"k/2", b"2"), (b"k/3", b"3")]);
        let mut going = mirror(&source, &target, &[]);
        left_behind(&going, &mut source);
        received(&mut going, "mirrored up to revision ");
        assert_eq!(going.child.wait().unwrap().code(), Some(1));

        // Without the flags nothing is overwritten.
        assert_eq!(imported(&source, &target, &[]).code, 1);
        let mut going = mirror(&source, &target, &["--overwrite", "--delete"]);
        assert_equal(&rows(&source), &rows(&target));
        left_behind(&going, &mut source);
        received(&mut going, "verified ");
        source.put(&[(b"k/9", b"last")]);
        in_sync(&mut going, &source);
        assert_equal(&rows(&source), &rows(&target));
        end(going);
    }
}

#[test]
fn mirror_resumes_at_its_revision_and_can_end_when_in_sync() {
    let (source, target) = (Place::ours(), Place::ours());
    source.fill("k/", 700, 0);
    let going = mirror(&source, &target, &[]);
    source.put(&[(b"k/000001", b"2")]);
    until("the change is mirrored", || target.get("k/000001").as_deref() == Some("2"));
    let line = end(going);
    let revision = line.split([' ', ':']).nth(4).unwrap().to_owned();
    source.txn(vec![put(b"k/000001", b"3", 0), delete("k/000002", false)]);
    let before = target.revision();
    let more = ["--mirror", "--until-caught-up", "--rev", &revision, "-w", "json"];
    let printed = imported(&source, &target, &more).done();
    let lines: Vec<_> = printed.lines().collect();
    assert!(
        lines[0].contains("\"what\":\"copied\"") && lines[0].contains("\"written\":0,"),
        "{printed}"
    );
    assert!(lines[lines.len() - 2].starts_with("{\"what\":\"mirrored\","), "{printed}");
    let verified = lines[lines.len() - 1];
    assert!(verified.contains(&format!("\"revision\":{},", source.revision())), "{printed}");
    assert_eq!(target.revision(), before + 1);
    assert_equal(&source.rows(""), &target.rows(""));
    let equal = imported(&source, &target, &["--dry-run", "--rev", &source.revision().to_string()]);
    assert!(equal.done().contains("to write   0 keys\n"));
}

#[test]
fn mirror_with_limited_read_access_covers_only_its_prefix() {
    let (source, target) = (Place::ours(), Place::ours());
    let own = |line: &str| {
        let mut command = command_at(&source.address());
        command.args(line.split(' '));
        run(command, b"").done()
    };
    for line in ["put a/k v", "put b/k v", "put c/k v", "user add root:rp", "user add ann:ap"] {
        own(line);
    }
    for line in ["role add r", "role grant-permission r read a/ --prefix"] {
        own(line);
    }
    for line in ["role grant-permission r read c/ --prefix", "user grant-role ann r", "auth enable"]
    {
        own(line);
    }
    let as_ann = ["--from-user", "ann:ap", "--prefix", "a/"];
    let refused =
        imported(&source, &target, &[&as_ann[..], &["--mirror", "--prefix", "c/"]].concat());
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("permission denied: the keys between"), "{refused:?}");
    assert_eq!(target.revision(), 1, "nothing was copied");
    let mut mirror = mirror(&source, &target, &as_ann);
    received(&mut mirror, "in sync at revision ");
    own("--user root:rp put a/k w");
    received(&mut mirror, "in sync at revision ");
    let mut get = command_at(&target.address());
    get.args(["get", "a/k", "--print-value-only"]);
    assert_eq!(run(get, b"").done(), "w\n");
    end(mirror);
}
