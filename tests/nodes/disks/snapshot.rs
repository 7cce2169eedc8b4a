//! Tests of snapshots that are deleted, truncated, flipped, overwritten and replaced by older copies, when the log
//! before them has been truncated. One member of three fetches the state from another member. A single node refuses
//! to start and leaves its files unchanged. Running members write a new snapshot for the peers that need one.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use bowline::testing::{self, Cluster};
use bowline::{
    Blocking, Client, Config, Error, Node, StartError,
    cluster::{DataErrorKind, History},
};

use super::files::{
    Files, SEGMENT_BYTES, SOON, config, count, has_everything, name_of, three_with,
};
use super::say;
use crate::loopback;

/// Growth of the log after which a snapshot is taken: the minimum.
const SNAPSHOT_LOG_BYTES: u64 = 64 << 10;

/// A number of values that suffices for two snapshots and a truncation of the log.
const VALUES_MAX: usize = 5_000;

fn snapping(config: Config) -> Config {
    config.snapshot_log_bytes(SNAPSHOT_LOG_BYTES)
}

/// Returns the newest snapshot in a directory. Names are in the order of the log.
fn newest(files: &Files) -> Option<(&String, &Vec<u8>)> {
    files.0.iter().rfind(|(name, _)| name.ends_with(".snapshot"))
}

/// Writes until the first segment of a member's log is removed. Returns the files of its directory at the time of its
/// first snapshot.
fn until_cut(kv: &Client, dir: &Path, keys: &mut usize) -> Files {
    let (mut older, begun, first) = (None, Instant::now(), *keys);
    while *keys - first < VALUES_MAX || begun.elapsed() < SOON {
        kv.put(format!("k{keys:04}"), vec![b'v'; 500]).block().unwrap();
        *keys += 1;
        if !keys.is_multiple_of(10) {
            continue;
        }
        let names = Files::names(dir);
        if older.is_none() && names.iter().any(|name| name.ends_with(".snapshot")) {
            older = Some(Files::of(dir));
        }
        if let Some(files) = &older
            && let Some((name, _)) = newest(files)
            && !names.contains(name)
            && !names.contains(&name_of(1))
        {
            return older.unwrap();
        }
    }
    panic!("the log is never cut");
}

/// Returns the damaged variants of the newest snapshot. `every` is the distance between flipped bytes.
fn damages(files: &Files, older: &Files, every: usize) -> Vec<(String, Files)> {
    let (name, bytes) = newest(files).expect("there is one");
    let with = |what: String, bytes: Option<Vec<u8>>| {
        let mut damaged = files.clone();
        match bytes {
            Some(bytes) => drop(damaged.0.insert(name.clone(), bytes)),
            None => drop(damaged.0.remove(name)),
        }
        (what, damaged)
    };
    let mut all = vec![with("deleted".to_owned(), None)];
    for length in [0, 1, 40, bytes.len() / 2, bytes.len() - 1] {
        all.push(with(format!("cut to {length} bytes"), Some(bytes[..length].to_vec())));
    }
    let ends = (0..80).chain(bytes.len() - 80..bytes.len());
    for at in ends.step_by(every.div_ceil(100)).chain((80..bytes.len() - 80).step_by(every)) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        all.push(with(format!("flipped at {at}"), Some(flipped)));
    }
    let mut zeroed = bytes.clone();
    zeroed[bytes.len() / 3..][..512].fill(0);
    all.push(with("with zeros".to_owned(), Some(zeroed)));
    let (older_name, older_bytes) = newest(older).expect("there was one");
    all.push(with("an older one under its name".to_owned(), Some(older_bytes.clone())));
    let (_, mut replaced) = with(String::new(), None);
    replaced.0.insert(older_name.clone(), older_bytes.clone());
    all.push(("an older one under its own name".to_owned(), replaced));
    all
}

#[test]
fn single_node_starts_only_with_an_intact_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Node::start(snapping(config(dir.path()))).block();
    let node = start().unwrap();
    let mut keys = 0;
    let older = until_cut(&node.client(), dir.path(), &mut keys);
    assert!(testing::shutdown(node).block().hanging.is_empty());
    let files = Files::of(dir.path());
    let damages = damages(&files, &older, 2_000);
    for (what, damaged) in &damages {
        damaged.put(dir.path());
        match start() {
            Err(StartError::Data { kind: DataErrorKind::StateLost, why }) => {
                for words in ["no readable snapshot covers it", "restore"] {
                    assert!(why.contains(words), "{what}: {why:?} lacks {words:?}");
                }
            }
            other => panic!("its snapshot is {what}: {other:?}"),
        }
        let snapshots = |files: &Files| -> BTreeMap<String, Vec<u8>> {
            let snapshots = files.0.iter().filter(|(name, _)| name.ends_with(".snapshot"));
            snapshots.map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
        };
        let left = snapshots(&Files::of(dir.path()));
        assert!(left == snapshots(damaged), "{what}: it has changed what it refused");
    }
    files.put(dir.path());
    let node = start().expect("without any of it, it starts");
    assert_eq!(count(&node), keys as u64);
    say(&format!("{} snapshots refused", damages.len()));
}

#[test]
fn member_of_three_fetches_a_replacement_for_a_damaged_snapshot() {
    let mut cluster = three_with(snapping);
    let (victim, mut keys) = (1, 0);
    let dir = cluster.data_dir(victim);
    let older = until_cut(&cluster.node(victim).client(), &dir, &mut keys);
    cluster.kill(victim).block();
    let many = damages(&Files::of(&dir), &older, 60_000).len();
    for number in 0..many {
        // Damage the member's current files, because its log has grown with the cluster.
        let (what, damaged) = damages(&Files::of(&dir), &older, 60_000).swap_remove(number);
        damaged.put(&dir);
        cluster.restart(victim).block().unwrap();
        has_everything(&cluster, 0..3, &mut keys, &format!("its snapshot was {what}"));
        cluster.kill(victim).block();
    }
    cluster.restart(victim).block().unwrap();
    has_everything(&cluster, 0..3, &mut keys, "it was left alone");
    say(&format!("{many} snapshots fetched"));
}

/// Writes to one member while another member is away, until the remaining members have truncated
/// the entries that the absent member lacks.
fn until_away_too_long(kv: &Client, dir: &Path) {
    let newest = || Files::names(dir).into_iter().rfind(|name| name.ends_with(".snapshot"));
    for _ in 0..3 {
        let (before, begun, mut written) = (newest(), Instant::now(), 0);
        while newest() == before {
            let late = written > VALUES_MAX && begun.elapsed() > SOON;
            assert!(!late, "no further snapshot is taken");
            kv.put("k0000", vec![b'v'; 500]).block().unwrap();
            written += 1;
        }
    }
}

/// The leader detects the damage by itself, although nothing more is written.
#[test]
fn snapshot_damaged_at_runtime_is_rewritten() {
    // The state stays small, so that snapshots are frequent.
    let history = History::default().revisions_max(100);
    let mut cluster = three_with(move |config| snapping(config).history(history.clone()));
    let (writer, away) = (0, 2);
    let (mut keys, mut found) = (0, 0);
    let dirs = [0, 1].map(|member| cluster.data_dir(member));
    let older = until_cut(&cluster.node(writer).client(), &dirs[0], &mut keys);
    let many = damages(&Files::of(&dirs[0]), &older, 30_000).len();
    for number in 0..many {
        cluster.kill(away).block();
        until_away_too_long(&cluster.node(writer).client(), &dirs[0]);
        let revision = cluster.node(writer).status().revision;
        cluster.all_at(revision).block().unwrap();
        let mut what = String::new();
        for dir in &dirs {
            let before = Files::of(dir);
            let (name, _) = newest(&before).expect("there is one");
            let (words, damaged) = damages(&before, &older, 30_000).swap_remove(number);
            match damaged.0.get(name) {
                Some(bytes) => std::fs::write(dir.join(name), bytes).unwrap(),
                // A newer snapshot may just have replaced this file.
                None => match std::fs::remove_file(dir.join(name)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
                    _ => {}
                },
            }
            what = words;
        }
        let unsound = |cluster: &Cluster| -> u64 {
            let members = [0, 1].map(|member| cluster.node(member).metrics().snapshot());
            members.iter().map(|metrics| metrics.snapshots_unsound_total).sum()
        };
        let before = unsound(&cluster);
        cluster.restart(away).block().unwrap();
        let caught_up = cluster.all_at(revision).block();
        assert!(caught_up.is_ok(), "while the snapshots of the others were {what}: {caught_up:?}");
        found += unsound(&cluster) - before;
        has_everything(&cluster, 0..3, &mut keys, &format!("snapshots were {what}"));
    }
    // A snapshot that was being written at the time may be complete before it is needed.
    assert!(found >= many as u64 / 2, "{found} of {many} found");
    for member in 0..3 {
        cluster.kill(member).block();
        cluster.restart(member).block().unwrap();
    }
    has_everything(&cluster, 0..3, &mut keys, "all have started again");
    say(&format!("{many} damaged, {found} found by the leader"));
}

/// The founder is always started without a list of other members.
#[test]
fn founder_with_lost_data_fetches_it_from_later_members() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = [(); 3].map(|()| loopback::address());
    let names = ["one", "two", "three"];
    let configured = |at: usize| {
        let config = Config::new(dir.path().join(names[at]), names[at])
            .heartbeat(Duration::from_millis(20))
            .election_timeout(Duration::from_millis(150))
            .call_deadline(SOON)
            .log_segment_bytes(SEGMENT_BYTES as u64)
            .advertise(&addresses[at]);
        snapping(config)
    };
    let start = |at: usize| match at {
        0 => Node::start(configured(0)).block(),
        _ => Node::start(configured(at).join([&addresses[0]])).block(),
    };
    let mut nodes = [0, 1, 2].map(|at| {
        let node = start(at).unwrap();
        while let Err(error) = node.promote(node.status().id).block() {
            assert!(matches!(error, Error::Members(_)), "{error}");
            node.client().put("nudge", "").block().unwrap();
        }
        node
    });
    let (own, mut keys) = (dir.path().join(names[0]), 0);
    until_cut(&nodes[0].client(), &own, &mut keys);
    for is_gone in [false, true] {
        // The founder stops last, without a possible successor.
        for node in nodes.into_iter().rev() {
            assert!(testing::shutdown(node).block().hanging.is_empty());
        }
        let files = Files::of(&own);
        let (name, bytes) = newest(&files).expect("there is one");
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 1;
        std::fs::write(own.join(name), flipped).unwrap();
        if is_gone {
            for name in files.0.keys().filter(|name| name.ends_with(".snapshot")) {
                std::fs::remove_file(own.join(name)).unwrap();
            }
        }
        let others = [1, 2].map(|at| start(at).unwrap());
        let founder = match start(0) {
            Ok(node) => node,
            // The founder's disk contains no other member, unless the founder has voted for one.
            Err(StartError::Data { kind: DataErrorKind::StateLost, why }) if is_gone => {
                assert!(why.contains("with one of them to join"), "{why}");
                Node::start(configured(0).join([&addresses[1]])).block().unwrap()
            }
            Err(error) => panic!("{error}"),
        };
        let put = others[0].client().put("after", "").block().unwrap();
        founder.wait_for(|status| status.revision >= put.revision).block();
        assert_eq!(count(&founder), count(&others[1]), "its snapshot is gone: {is_gone}");
        let [second, third] = others;
        nodes = [founder, second, third];
    }
}
