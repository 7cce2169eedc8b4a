//! Tests of backups: a restore from a backup starts a new cluster that is never confused with the original one, and
//! the data of a remaining minority can be recovered.

use std::collections::BTreeMap;
use std::fs;
use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bowline::backup::{self, BackupError, RestoreOptions, Restored};
use bowline::testing::{self, Cluster, ClusterOptions};
use bowline::{
    Blocking, Config, KeyRange, Node, NodeStatus, Revision, Role, StartError, WatchError,
};
use tempfile::TempDir;

use crate::loopback;

/// Configures a node that truncates its log every few hundred writes.
fn small(config: Config) -> Config {
    let config = config.snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10);
    config.call_deadline(Duration::from_secs(30))
}

fn three() -> Cluster {
    ClusterOptions::new(3).configure(small).start().block().unwrap()
}

fn everything(node: &Node) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let rows = node.client().range(KeyRange::all()).block().unwrap();
    rows.kvs.iter().map(|kv| (kv.key.to_vec(), kv.value.to_vec())).collect()
}

fn stop(node: Node) {
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

/// Three members of a new cluster that is restored from a backup, with new addresses and
/// directories.
struct Place {
    dir: TempDir,
    addresses: Vec<(String, String)>,
}

impl Place {
    fn new() -> Self {
        let addresses = ["a", "b", "c"].map(|name| (name.to_owned(), loopback::address())).into();
        Self { dir: tempfile::tempdir().unwrap(), addresses }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the configuration of a member whose data is in the directory `data`.
    fn config(&self, name: &str, data: &str) -> Config {
        small(Config::new(self.path(data), name).members(self.addresses.clone()))
    }

    fn restore(&self, file: &Path, name: &str, data: &str) -> Restored {
        let options = RestoreOptions::default();
        backup::restore(file, &self.config(name, data), &options).unwrap()
    }

    fn start(&self, name: &str, data: &str) -> Node {
        Node::start(self.config(name, data)).block().unwrap()
    }

    fn restore_and_start(&self, file: &Path) -> Vec<Node> {
        let restored = ["a", "b", "c"].map(|name| self.restore(file, name, name));
        assert!(restored.iter().all(|one| one.cluster == restored[0].cluster));
        assert_eq!(restored.map(|one| one.member.get()), [1, 2, 3]);
        ["a", "b", "c"].map(|name| self.start(name, name)).into()
    }
}

fn wait_for(node: &Node, condition: impl FnMut(&NodeStatus) -> bool) -> NodeStatus {
    let status = node.wait_for(condition).block();
    assert_ne!(status.role, Role::Stopped, "{:?}", node.stop_reason());
    status
}

/// Returns a backup of a single node with `keys` keys.
fn some_backup(dir: &Path, name: &str, keys: usize) -> PathBuf {
    let node = Node::start(Config::new(dir.join(format!("{name}.data")), "solo")).block().unwrap();
    for key in 0..keys {
        node.client().put(format!("{name}/{key}"), "v").block().unwrap();
    }
    let file = dir.join(format!("{name}.backup"));
    node.backup(&file).block().unwrap();
    stop(node);
    file
}

#[test]
fn backup_taken_under_load_starts_a_new_cluster() {
    let place = Place::new();
    let file = place.path("backup");
    let cluster = three();
    let node = cluster.node(0);
    let client = node.client();
    for n in 0..300 {
        client.put(format!("key/{n:04}"), "v".repeat(900)).block().unwrap();
    }
    let session = node.session().block().unwrap();
    let guard = session.mutex("lock").lock().block().unwrap();
    let lease = client.grant(Duration::from_secs(600)).block().unwrap();
    client.put("leased", "v").lease(lease.id).block().unwrap();

    // A thread writes during the whole backup.
    let (done, writes) = (Arc::new(AtomicBool::new(false)), cluster.node(1).client());
    let written = Arc::new(AtomicU64::new(0));
    let writer = thread::spawn({
        let (done, written) = (Arc::clone(&done), Arc::clone(&written));
        move || {
            let mut last = Revision(0);
            for n in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                last = writes
                    .put(format!("load/{:03}", n % 200), n.to_string())
                    .block()
                    .unwrap()
                    .revision;
                written.store(last.get(), Ordering::Relaxed);
            }
            last
        }
    });
    let (early, begun) = (client.revision(), Instant::now());
    while written.load(Ordering::Relaxed) <= early.get() {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody writes");
        thread::yield_now();
    }
    let id = node.backup(&file).block().unwrap();
    done.store(true, Ordering::Relaxed);
    let last = writer.join().unwrap();
    assert!(last > early);

    let info = backup::verify(&file).unwrap();
    assert_eq!(info.id, id);
    assert_eq!(info.id.bytes, fs::metadata(&file).unwrap().len());
    assert!(info.revision >= early && info.revision <= last, "{info:?}");
    assert_eq!(info.members.rows().len(), 3);
    assert_eq!(info.leases, 2);
    // The new cluster has the state of the old cluster at this revision, without the keys that were
    // bound to leases.
    let then = client.range(KeyRange::all()).revision(info.revision).block().unwrap();
    assert_eq!(info.keys, then.kvs.len() as u64);
    let kept: BTreeMap<_, _> = then
        .kvs
        .iter()
        .filter(|kv| kv.lease.is_none())
        .map(|kv| (kv.key.to_vec(), kv.value.to_vec()))
        .collect();
    assert!(guard.is_held());
    let token = guard.token();

    let nodes = place.restore_and_start(&file);
    for node in &nodes {
        assert_eq!(everything(node), kept);
        assert_eq!(node.client().leases(), []);
    }
    assert!(guard.is_held(), "the old cluster does not notice");
    let client = nodes[2].client();
    let mut watch = client.watch(KeyRange::all()).from(info.revision).block().unwrap();
    match watch.next().block() {
        Some(Err(WatchError::Compacted { .. })) => {}
        other => panic!("the new past was taken for the old one: {other:?}"),
    }
    let put = client.put("first", "v").block().unwrap();
    assert!(put.revision.get() > last.get() + 900_000_000, "{put:?}");
    let next = nodes[1].session().block().unwrap();
    let next = next.mutex("lock").lock().deadline(Duration::from_secs(10)).block().unwrap();
    assert!(next.token() > token && next.token().revision().get() > last.get() + 900_000_000);
    next.release().block().unwrap();

    // The new cluster works like any other: it restarts after a crash, and takes snapshots.
    let begun = place.path("a/snap-0000000000000002-0000000000000001.snapshot");
    for n in 0..10_000 {
        client.put(format!("more/{:02}", n % 50), "v".repeat(900)).block().unwrap();
        if !begun.exists() {
            break;
        }
    }
    let (all, revision) = (everything(&nodes[0]), client.revision());
    for node in nodes {
        stop(node);
    }
    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    for node in &nodes {
        assert_eq!(everything(node), all);
        assert!(node.client().revision() >= revision);
    }
    assert!(!begun.exists(), "it has taken one of its own");
}

#[test]
fn restored_cluster_restarts_and_accepts_joiners_with_all_data() {
    let place = Place::new();
    let file = some_backup(place.dir.path(), "some", 20);
    for name in ["a", "b", "c"] {
        place.restore(&file, name, name);
    }
    // Two of the members wait for the third, which is not started, and are stopped.
    for name in ["a", "b"] {
        let node = place.start(name, name);
        wait_for(&node, |status| status.role == Role::Founding);
        stop(node);
    }
    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    let expected = everything(&nodes[0]);
    assert_eq!(expected.len(), 20);
    // No member has taken a snapshot, so a restart uses the restored snapshot.
    for node in nodes {
        stop(node);
    }
    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    assert_eq!(everything(&nodes[1]), expected);

    // A new member receives the restored state.
    let joiner = Config::new(place.path("d"), "d").join([&place.addresses[1].1]);
    let joiner = joiner.advertise(loopback::address());
    let joiner = Node::start(joiner).block().unwrap();
    assert_eq!(everything(&joiner), expected);
    let put = joiner.client().put("x", "y").block().unwrap();
    assert!(put.revision.get() > 1_000_000_000);
    for node in nodes.iter().chain([&joiner]) {
        assert!(!node.status().diverged, "{:?}", node.status());
        assert_eq!(everything(node).len(), 21);
    }
}

#[test]
fn member_with_damaged_restored_state_fetches_it_from_peers() {
    let place = Place::new();
    let file = some_backup(place.dir.path(), "some", 20);
    let begun = "a/snap-0000000000000002-0000000000000001.snapshot";
    let damage = || {
        let mut bytes = fs::read(place.path(begun)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(place.path(begun), bytes).unwrap();
    };
    for name in ["a", "b", "c"] {
        place.restore(&file, name, name);
    }
    // Before the member has met the other members, it has no peer to ask for the state.
    damage();
    let error = Node::start(place.config("a", "a")).block().unwrap_err().to_string();
    assert!(error.contains("is damaged at byte"), "{error}");
    damage();
    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    assert_eq!(nodes.each_ref().map(|node| everything(node).len()), [20; 3]);
    for node in nodes {
        stop(node);
    }
    damage();
    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    assert_eq!(nodes.each_ref().map(|node| everything(node).len()), [20; 3]);
}

#[test]
fn members_from_different_backups_or_jumps_never_form_a_cluster() {
    let place = Place::new();
    let one = some_backup(place.dir.path(), "one", 3);
    let two = some_backup(place.dir.path(), "two", 3);
    let of_one = place.restore(&one, "a", "a");
    let of_two = place.restore(&two, "b", "b");
    let options = RestoreOptions::default().revision_jump(7);
    let jumped = backup::restore(&one, &place.config("c", "c"), &options).unwrap();
    assert!(of_one.cluster != of_two.cluster && of_one.cluster != jumped.cluster);
    assert_eq!(jumped.revision.get() + 1_000_000_000, of_one.revision.get() + 7);
    let again = place.restore(&one, "b", "again");
    assert_eq!(again.cluster, of_one.cluster);
    assert_eq!((again.revision, again.keys, again.leases_ended), (of_one.revision, 3, 0));

    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    for node in &nodes {
        let put = node.client().put("k", "v").deadline(Duration::from_secs(2)).block();
        assert!(put.is_err(), "{}: {put:?}", node.status().name);
        assert_eq!(node.status().unreached.len(), 2, "{:?}", node.status());
    }
    for node in nodes {
        stop(node);
    }
    // Members that are restored from the same backup found a cluster.
    place.restore(&one, "c", "c-again");
    let nodes =
        [("a", "a"), ("b", "again"), ("c", "c-again")].map(|(name, data)| place.start(name, data));
    assert_eq!(everything(&nodes[2]).len(), 3);
}

#[test]
fn member_of_the_old_cluster_is_rejected_by_the_new_one() {
    let place = Place::new();
    let file = place.path("backup");
    let nodes = ["a", "b", "c"].map(|name| place.start(name, name));
    let put = nodes[0].client().put("k", "old").block().unwrap();
    nodes[2].client().get("k").at_least(put.revision).block().unwrap();
    nodes[0].backup(&file).block().unwrap();
    let [a, b, c] = nodes;
    stop(a);
    stop(b);
    // Two members are restored at the addresses of the lost ones. The third is alive and does not know of the
    // restore.
    for name in ["a", "b"] {
        place.restore(&file, name, &format!("new-{name}"));
    }
    let new = ["a", "b"].map(|name| place.start(name, &format!("new-{name}")));
    for node in new.iter().chain([&c]) {
        let put = node.client().put("k", "new").deadline(Duration::from_secs(2)).block();
        assert!(put.is_err(), "{put:?}");
    }
    assert_eq!(c.client().get("k").local().block().unwrap().unwrap().value, "old");
    stop(c);
    place.restore(&file, "c", "new-c");
    let c = place.start("c", "new-c");
    c.client().put("k", "new").deadline(Duration::from_secs(20)).block().unwrap();
    assert_eq!(everything(&new[0]), everything(&c));
}

#[test]
fn restored_directory_starts_only_with_its_own_configuration() {
    let place = Place::new();
    let file = some_backup(place.dir.path(), "some", 3);
    place.restore(&file, "a", "a");
    let refused = |config: Config, words: &str| match Node::start(config).block() {
        Err(StartError::Data { why, .. }) => {
            assert!(why.contains(words), "{why:?} lacks {words:?}")
        }
        other => panic!("{other:?}, not {words:?}"),
    };
    let config = place.config("a", "a");
    refused(config.clone().cluster_token("t"), "another token");
    refused(place.config("b", "a"), "separate directory");
    refused(
        config.clone().members(place.addresses[..2].to_vec()),
        "has not founded its cluster yet",
    );
    refused(Config::new(place.path("a"), "a"), "has not founded its cluster yet");
    fs::rename(place.path("a/RESTORED"), place.path("a/RESTORING")).unwrap();
    refused(config.clone(), "remove the directory, and restore again");
    let again = backup::restore(&file, &config, &RestoreOptions::default()).unwrap_err();
    assert!(matches!(again, BackupError::Interrupted { .. }), "{again}");
    fs::remove_file(place.path("a/RESTORING")).unwrap();
    refused(config.clone(), "has not founded its cluster yet");
    let full = backup::restore(&file, &config, &RestoreOptions::default()).unwrap_err();
    assert!(matches!(full, BackupError::NotEmpty { .. }), "{full}");

    let joins = Config::new(place.path("j"), "j").join(["h:1"]).advertise("h:2");
    let joins = backup::restore(&file, &joins, &RestoreOptions::default()).unwrap_err();
    assert!(matches!(joins, BackupError::Joins), "{joins}");
    for jump in [0, u64::MAX, i64::MAX as u64] {
        let options = RestoreOptions::default().revision_jump(jump);
        let error = backup::restore(&file, &place.config("b", "b"), &options).unwrap_err();
        assert!(matches!(error, BackupError::Jump { .. }), "{jump}: {error}");
    }
    assert!(!place.path("j").exists() && !place.path("b").exists());
}

#[test]
fn damaged_backup_is_detected_and_never_restored() {
    let place = Place::new();
    let file = some_backup(place.dir.path(), "some", 5);
    let bytes = fs::read(&file).unwrap();
    let bad = place.path("bad");
    let mut cases: Vec<Vec<u8>> = (0..bytes.len())
        .map(|at| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            bytes
        })
        .collect();
    cases.extend((0..bytes.len()).step_by(7).map(|length| bytes[..length].to_vec()));
    cases.push([&bytes[..], b"x"].concat());
    for case in cases {
        fs::write(&bad, &case).unwrap();
        let error = backup::verify(&bad).expect_err("it is not what was written");
        assert!(matches!(error, BackupError::Unreadable(_)), "{error}");
    }
    let error = backup::restore(&bad, &place.config("a", "a"), &RestoreOptions::default());
    assert!(matches!(error, Err(BackupError::Unreadable(_))), "{error:?}");
    assert!(!place.path("a").exists());
    let missing = backup::verify(place.path("nowhere")).unwrap_err();
    assert!(missing.to_string().contains("nowhere"), "{missing}");
}

#[test]
fn one_surviving_member_of_three_recovers_all_its_data() {
    let place = Place::new();
    let file = place.path("recovered");
    let mut cluster = three();
    let leader = cluster.leader().block().unwrap();
    let left = (leader + 1) % 3;
    let client = cluster.node(leader).client();
    for n in 0..200 {
        client
            .put(format!("key/{:03}", n % 60), format!("{n}:{}", "v".repeat(900)))
            .block()
            .unwrap();
    }
    let lease = client.grant(Duration::from_secs(600)).block().unwrap();
    client.put("leased", "v").lease(lease.id).block().unwrap();
    let last = client.put("last", "v").block().unwrap().revision;
    cluster.all_at(last).block().unwrap();
    let all = everything(cluster.node(left));

    let running = backup::recover(cluster.data_dir(left), &file).unwrap_err();
    assert!(running.to_string().contains("is in use by another node"), "{running}");
    for member in 0..3 {
        cluster.kill(member).block();
    }
    let dir = cluster.data_dir(left);
    let before: Vec<_> = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()).collect();
    let contents: Vec<_> = before.iter().map(|path| fs::read(path).unwrap_or_default()).collect();
    let info = backup::inspect(&dir).unwrap();
    let recovered = backup::recover(&dir, &file).unwrap();
    for (path, content) in before.iter().zip(contents) {
        assert!(fs::read(path).unwrap_or_default() == content, "{} has changed", path.display());
    }
    let warning = &recovered.warning;
    assert_eq!(warning.revision, last);
    assert_eq!(warning.name, format!("m{left}"));
    assert!(warning.committed <= warning.last && warning.committed_revision <= last);
    let words = warning.to_string();
    for part in [format!("member {}", left + 1), format!("revision {last}"), "missing".into()] {
        assert!(words.contains(&part), "{words:?} lacks {part:?}");
    }
    assert_eq!(info.member, warning.member);
    assert_eq!((info.last, info.revision, info.keys), (warning.last, Some(last), Some(62)));
    assert!(info.problems.is_empty() && info.founded && !info.snapshots.is_empty(), "{info:?}");
    assert_eq!(info.members.rows().values().filter(|m| m.name.starts_with('m')).count(), 3);
    let verified = backup::verify(&file).unwrap();
    assert_eq!((verified.id, verified.keys, verified.cluster), (recovered.id, 62, info.cluster));
    let again = backup::recover(&dir, &file).unwrap_err();
    assert!(matches!(again, BackupError::Exists { .. }), "{again}");

    let nodes = place.restore_and_start(&file);
    let mut expected = all;
    expected.remove(&b"leased"[..]);
    assert_eq!(everything(&nodes[0]), expected);
}

#[test]
fn a_joiner_without_a_state_has_nothing_to_recover() {
    let dir = tempfile::tempdir().unwrap();
    let [founder, nowhere, somewhere] = [(); 3].map(|()| loopback::address());
    let config = Config::new(dir.path().join("a"), "a").members([("a", &*founder)]);
    let a = Node::start(config).block().unwrap();
    a.client().put("k", "v").block().unwrap();
    let joins = Config::new(dir.path().join("b"), "b").join([&founder]).advertise(nowhere);
    let b = Node::start(joins.listen(somewhere)).block().unwrap();
    assert!(testing::shutdown(b).block().hanging.is_empty());
    let file = dir.path().join("recovered");
    let error = backup::recover(dir.path().join("b"), &file).unwrap_err();
    assert!(error.to_string().contains("before it received the state"), "{error}");
    assert!(!file.exists());
    let info = backup::inspect(dir.path().join("b")).unwrap();
    assert_eq!(info.revision, None);
}

#[test]
fn uncommitted_write_is_recovered_and_reported() {
    let place = Place::new();
    let file = place.path("recovered");
    let mut cluster = three();
    let leader = cluster.leader().block().unwrap();
    let client = cluster.node(leader).client();
    let agreed = client.put("agreed", "v").block().unwrap().revision;
    cluster.all_at(agreed).block().unwrap();
    // Entries that arrive while the leader is paused reach only its own log, before it can notice that it has no
    // followers.
    cluster.pause(leader);
    for other in (0..3).filter(|member| *member != leader) {
        cluster.kill(other).block();
    }
    let mut put = Box::pin(client.put("alone", "v").deadline(Duration::from_secs(3)).into_future());
    assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    cluster.resume(leader);
    let put = put.block();
    assert!(put.is_err(), "{put:?}");
    cluster.kill(leader).block();
    let recovered = backup::recover(cluster.data_dir(leader), &file).unwrap();
    let warning = recovered.warning;
    assert!(warning.committed < warning.last, "{warning:?}");
    assert_eq!((warning.committed_revision, warning.revision), (agreed, agreed.next()));
    assert!(warning.to_string().contains("received no reply or an error"), "{warning}");
    let nodes = place.restore_and_start(&file);
    assert_eq!(nodes[0].client().get("alone").block().unwrap().unwrap().value, "v");
}

#[test]
fn directory_without_a_member_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().to_owned(), dir.path().join("nowhere")] {
        let error = backup::inspect(&path).unwrap_err();
        assert!(matches!(error, BackupError::NoMember { .. }), "{error}");
        let error = backup::recover(&path, dir.path().join("out")).unwrap_err();
        assert!(matches!(error, BackupError::NoMember { .. }), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
