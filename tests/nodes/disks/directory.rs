//! Tests of whole data directories: deleted directories, directories of other members and clusters,
//! and older copies.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use bowline::testing::{self, Cluster};
use bowline::{Blocking, Config, Error, Node, NodeStatus, StartError, cluster::DataErrorKind};

use super::files::{
    Files, HEADER_BYTES, SOON, config, count, has_everything, solo, three, three_with,
};

/// Returns a cluster of three with some keys, and counts the keys.
fn with_keys(keys: &mut usize) -> Cluster {
    let cluster = three();
    has_everything(&cluster, 0..3, keys, "the beginning");
    cluster
}

/// Removes all data of a member, as if it had a new disk.
fn wipe(cluster: &mut Cluster, member: usize) -> Files {
    cluster.kill(member).block();
    let dir = cluster.data_dir(member);
    let files = Files::of(&dir);
    fs::remove_dir_all(&dir).unwrap();
    files
}

fn start(config: Config) -> Node {
    Node::start(config).block().unwrap()
}

fn stop(node: Node) {
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

/// Waits until a member has stopped, and returns the reason.
fn last_words(cluster: &Cluster, member: usize) -> String {
    let begun = Instant::now();
    loop {
        if let Some(reason) = cluster.node(member).stop_reason() {
            return reason.to_string();
        }
        assert!(begun.elapsed() < SOON, "m{member} goes on: {:?}", cluster.node(member).status());
        thread::yield_now();
    }
}

/// Checks that a member cannot get a write acknowledged.
fn takes_nothing(cluster: &Cluster, member: usize, when: &str) {
    // The key exists already, so that the number of keys is unchanged if the write is applied later after all.
    let put = cluster.node(member).client().put("k0000", "v").deadline(Duration::from_secs(1));
    let error = put.block().expect_err(when);
    let is_late = matches!(error, Error::Deadline { .. } | Error::NotFounded { .. });
    assert!(is_late, "m{member}, {when}: {error}");
}

#[test]
fn directory_of_another_cluster_or_member_is_rejected_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, token: &str| {
        let members = [("a", "127.0.0.1:1"), ("b", "127.0.0.1:2"), ("c", "127.0.0.1:3")];
        Config::new(dir.path(), name).members(members).cluster_token(token).listen("127.0.0.1:0")
    };
    stop(start(of("a", "red")));
    let files = Files::of(dir.path());
    for (name, token) in [("b", "red"), ("a", "blue"), ("c", "blue")] {
        match Node::start(of(name, token)).block() {
            Err(StartError::Data { kind: DataErrorKind::Foreign, why }) => {
                for words in ["separate directory", dir.path().to_str().unwrap()] {
                    assert!(why.contains(words), "{why:?} lacks {words:?}");
                }
            }
            other => panic!("{name} of {token}: {other:?}"),
        }
        assert_eq!(Files::of(dir.path()), files, "{name} of {token} has changed something");
    }
    stop(start(of("a", "red")));
}

#[test]
fn members_reject_swapped_directories_unchanged() {
    let mut keys = 0;
    let mut cluster = with_keys(&mut keys);
    let dirs = [1, 2].map(|member| cluster.data_dir(member));
    for member in [1, 2] {
        cluster.kill(member).block();
    }
    let [one, two] = [&dirs[0], &dirs[1]].map(|dir| Files::of(dir));
    two.put(&dirs[0]);
    one.put(&dirs[1]);
    for member in [1, 2] {
        let error = cluster.restart(member).block().expect_err("it is another's directory");
        assert!(error.to_string().contains("a separate directory"), "m{member}: {error}");
    }
    assert!(Files::of(&dirs[0]) == two && Files::of(&dirs[1]) == one, "something has changed");
    one.put(&dirs[0]);
    two.put(&dirs[1]);
    for member in [1, 2] {
        cluster.restart(member).block().unwrap();
    }
    has_everything(&cluster, 0..3, &mut keys, "everybody has its own again");
}

/// Returns the kind of the error that keeps a node from starting, whose text must contain `words`.
fn fault(config: Config, words: &str) -> DataErrorKind {
    match Node::start(config).block() {
        Err(StartError::Data { kind, why }) => {
            assert!(why.contains(words), "{why:?} lacks {words:?}");
            kind
        }
        other => panic!("{other:?}, not {words:?}"),
    }
}

#[test]
fn directory_errors_have_distinct_kinds() {
    let (dir, files) = solo(12, 40);
    let config = || config(dir.path());
    let node = start(config());
    assert_eq!(fault(config(), "is in use by another node"), DataErrorKind::InUse);
    stop(node);
    let name = Config::new(dir.path(), "other");
    assert_eq!(fault(name, "separate directory"), DataErrorKind::Foreign);

    files.with(1, |bytes| bytes[HEADER_BYTES + 48] ^= 1).put(dir.path());
    assert_eq!(fault(config(), "replace the member"), DataErrorKind::Damaged);
    let newer = files.with(1, |bytes| {
        bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..68]);
        bytes[68..72].copy_from_slice(&checksum.to_le_bytes());
    });
    newer.put(dir.path());
    assert_eq!(fault(config(), "upgrade this node"), DataErrorKind::Newer);
    files.put(dir.path());
    fs::write(dir.path().join("RESTORING"), "").unwrap();
    assert_eq!(fault(config(), "and restore again"), DataErrorKind::HalfRestored);
    fs::remove_file(dir.path().join("RESTORING")).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(fault(super::files::config(&file), "Not a directory"), DataErrorKind::Io);
    assert_eq!(count(&start(config())), 12, "without any of it, it starts");
}

#[test]
fn directory_in_use_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(config(dir.path()));
    let error = Node::start(config(dir.path())).block().expect_err("it is in use");
    assert!(error.to_string().contains("is in use by another node"), "{error}");
    assert_eq!(count(&node), 0);
}

#[test]
fn wiped_member_of_three_does_not_return_under_its_old_id() {
    let mut keys = 0;
    let mut cluster = with_keys(&mut keys);
    let files = wipe(&mut cluster, 1);
    has_everything(&cluster, [0, 2].into_iter(), &mut keys, "one is wiped");
    cluster.restart(1).block().unwrap();
    let why = last_words(&cluster, 1);
    assert!(why.contains("a member that lost its disk cannot return"), "{why:?}");
    has_everything(&cluster, [0, 2].into_iter(), &mut keys, "it was refused");

    // The wiped member does not form a quorum with one of the other members either.
    for (alone, gone) in [(0, 2), (2, 0)] {
        for member in [1, gone] {
            cluster.kill(member).block();
        }
        cluster.restart(1).block().unwrap();
        takes_nothing(&cluster, alone, "its only company is a wiped disk");
        assert!(last_words(&cluster, 1).contains("lost its disk"));
        cluster.restart(gone).block().unwrap();
        has_everything(&cluster, [0, 2].into_iter(), &mut keys, "both are back");
    }

    cluster.kill(1).block();
    files.put(&cluster.data_dir(1));
    cluster.restart(1).block().unwrap();
    has_everything(&cluster, 0..3, &mut keys, "it has its disk again");
}

#[test]
fn wiped_member_of_three_is_replaced_by_a_new_one() {
    let mut keys = 0;
    let mut cluster = with_keys(&mut keys);
    let files = wipe(&mut cluster, 1);
    let new = cluster.replace(1).block().unwrap();
    assert_eq!(new, 3, "a new member");
    let now = [0, 2, new];
    has_everything(&cluster, now.into_iter(), &mut keys, "a wiped one is replaced");
    let replaced = |statuses: &[NodeStatus]| {
        statuses.iter().all(|status| status.members.iter().all(|member| member.id.get() != 2))
    };
    cluster.wait_until("the wiped member is a member still", replaced).block().unwrap();
    let ids: Vec<u64> =
        cluster.node(new).members().rows().keys().map(|member| member.get()).collect();
    assert_eq!(ids, [1, 3, 4], "an id is never used again");

    // If the old disk is found again, the member can neither vote nor come back with this disk.
    files.put(&cluster.data_dir(1));
    match cluster.restart(1).block() {
        Ok(()) => assert!(last_words(&cluster, 1).contains("removed"), "it must know"),
        Err(error) => assert!(error.to_string().contains("removed"), "{error}"),
    }
    has_everything(&cluster, now.into_iter(), &mut keys, "the old disk has turned up");
}

#[test]
fn two_wiped_members_of_three_never_form_a_cluster() {
    let mut keys = 0;
    let mut cluster = with_keys(&mut keys);
    cluster.kill(0).block();
    for member in [1, 2] {
        wipe(&mut cluster, member);
    }
    for member in [1, 2] {
        cluster.restart(member).block().unwrap();
    }
    for member in [1, 2] {
        takes_nothing(&cluster, member, "nobody is there who knows the cluster");
    }
    // The member that still has its data reports this to the other members, and its own data stays
    // unchanged.
    cluster.restart(0).block().unwrap();
    for member in [1, 2] {
        let why = last_words(&cluster, member);
        assert!(why.contains("lost its disk"), "m{member}: {why:?}");
    }
    takes_nothing(&cluster, 0, "it has no quorum");
    let rows = cluster.node(0).client().range(bowline::KeyRange::all()).local().block().unwrap();
    // The member may not know that the last write was committed.
    assert!(rows.kvs.len() >= keys - 1, "{} of {keys}", rows.kvs.len());
}

#[test]
fn member_of_three_without_its_log_counts_as_wiped() {
    let mut keys = 0;
    let mut cluster = with_keys(&mut keys);
    cluster.kill(2).block();
    let dir = cluster.data_dir(2);
    let mut files = Files::of(&dir);
    files.0.retain(|name, _| !name.ends_with(".log"));
    files.put(&dir);
    cluster.restart(2).block().unwrap();
    let why = last_words(&cluster, 2);
    assert!(why.contains("lost its disk"), "{why:?}");
    has_everything(&cluster, 0..2, &mut keys, "one has lost its log");
}

#[test]
fn older_copy_of_a_member_directory_is_detected_by_peers() {
    let mut keys = 0;
    // Use a long election timeout, because a new leader would not know the log of the member.
    let mut cluster = three_with(|config| config.election_timeout(Duration::from_secs(3)));
    has_everything(&cluster, 0..3, &mut keys, "the beginning");
    // First restore a copy from the current incarnation: the leader knows the log of the member.
    let leader = cluster.leader().block().unwrap();
    let victim = (leader + 1) % 3;
    let others = (0..3).filter(move |member| *member != victim);
    let dir = cluster.data_dir(victim);
    let copy = Files::of(&dir);
    for _ in 0..20 {
        has_everything(&cluster, 0..3, &mut keys, "the copy");
    }
    cluster.kill(victim).block();
    let present = Files::of(&dir);
    copy.put(&dir);
    cluster.restart(victim).block().unwrap();
    let why = last_words(&cluster, victim);
    assert!(why.contains("synced entries are lost"), "{why:?}");
    has_everything(&cluster, others.clone(), &mut keys, "a copy was found out");

    // Then restore a copy from before an earlier start: peers that have met the member since that
    // copy reject it.
    cluster.kill(victim).block();
    present.put(&dir);
    for _ in 0..2 {
        cluster.restart(victim).block().unwrap();
        has_everything(&cluster, 0..3, &mut keys, "it was started on its own directory");
        cluster.kill(victim).block();
    }
    let present = Files::of(&dir);
    copy.put(&dir);
    cluster.restart(victim).block().unwrap();
    takes_nothing(&cluster, victim, "nobody talks to it");
    has_everything(&cluster, others, &mut keys, "an old copy is ignored");

    cluster.kill(victim).block();
    present.put(&dir);
    cluster.restart(victim).block().unwrap();
    has_everything(&cluster, 0..3, &mut keys, "it has its directory again");
}

#[test]
fn single_node_cannot_detect_an_older_copy_of_its_directory() {
    let (dir, older) = solo(5, 40);
    let node = start(config(dir.path()));
    for i in 0..5 {
        node.client().put(format!("more{i}"), "v").block().unwrap();
    }
    assert_eq!(count(&node), 10);
    stop(node);
    // Restore an older copy on a single node: later writes are lost without an error. This case
    // cannot be detected.
    older.put(dir.path());
    let node = start(config(dir.path()));
    assert_eq!(count(&node), 5);
    stop(node);
    // An empty directory starts a new store on a new disk.
    fs::remove_dir_all(dir.path()).unwrap();
    let node = start(config(dir.path()));
    assert_eq!(count(&node), 0);
    stop(node);
    fs::create_dir_all(dir.path()).unwrap();
}
