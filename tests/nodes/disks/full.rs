//! Tests of disks that fill up and have space again, many times. Writes that make the state grow are rejected
//! with the reason. Reads, deletions, compaction and the expiry of leases continue. No restart is needed, and no
//! acknowledged write is lost.
//!
//! The disk is a real disk with a quota. `jepsen/tests/processes/full.rs` does the same with real
//! file systems.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::env::{Env, RealDisk};
use bowline::sim::QuotaDisk;
use bowline::testing;
use bowline::{
    Blocking, Client, Config, Effect, Error, KeyRange, LeaseId, Node, NodeStatus, Revision, Role,
};

use super::files::{SEGMENT_BYTES, config, three_with};
use super::say;

/// Number of times that disks are filled and freed.
const CYCLES: usize = 40;

/// Free space on a disk when the test starts to fill it.
const ROOM: u64 = SEGMENT_BYTES as u64;

/// A number of values that exceeds the free space and the log's reserve.
const VALUES_MAX: usize = 1_000;

/// Time limit for noticing that a disk has space again.
const HEALED_WITHIN: Duration = Duration::from_secs(20);

/// Returns a disk that all members share, each within its own quota.
fn quota() -> (QuotaDisk, Env) {
    let disk = QuotaDisk::new(RealDisk);
    let env = Env { disk: Arc::new(disk.clone()), ..Env::real() };
    (disk, env)
}

fn fill_up(disk: &QuotaDisk, dir: &Path) {
    disk.limit(dir, Some(disk.used(dir) + ROOM));
}

/// Data that is written while there is space, and deleted while there is none.
struct Ballast {
    key: String,
    lease: LeaseId,
    revision: Revision,
}

/// The acknowledged keys, and the number of attempts.
#[derive(Default)]
struct Written {
    keys: BTreeSet<String>,
    next: usize,
}

impl Written {
    /// Writes one value. Returns whether there was space for it.
    fn one(&mut self, kv: &Client) -> bool {
        self.next += 1;
        let key = format!("k{:06}", self.next);
        match kv.put(key.clone(), vec![b'v'; 2_000]).block() {
            Ok(_) => self.keys.insert(key),
            Err(error @ Error::NoSpace) => {
                assert!(error.to_string().contains("the disk is full"), "{error}");
                assert_eq!(error.effect(), Effect::NotApplied);
                false
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// Writes until the disk is full. Returns the number of values.
    fn until_full(&mut self, kv: &Client) -> usize {
        let fitted = (0..VALUES_MAX).take_while(|_| self.one(kv)).count();
        assert!(fitted < VALUES_MAX, "the disk is full, and takes whatever comes");
        fitted
    }

    /// Writes until a write succeeds.
    fn until_healed(&mut self, kv: &Client) {
        let begun = Instant::now();
        while !self.one(kv) {
            assert!(begun.elapsed() < HEALED_WITHIN, "there is room, and nobody notices");
        }
    }

    fn ballast(&mut self, kv: &Client, cycle: usize) -> Ballast {
        let lease = kv.grant(Duration::from_secs(3600)).block().unwrap();
        let key = format!("ballast{cycle:04}");
        kv.put(format!("leased{cycle:04}"), "v").lease(lease.id).block().unwrap();
        let revision = kv.put(key.clone(), "v").block().unwrap().revision;
        Ballast { key, lease: lease.id, revision }
    }

    /// Checks the operations that must succeed while the disk is full. Returns whether the disk
    /// stayed full until the end: a compaction and the snapshot after it may make room.
    fn continues(&mut self, kv: &Client, ballast: &Ballast) -> bool {
        assert_eq!(self.read(kv), self.keys.len() + 2, "a linearizable read");
        assert_eq!(kv.delete(ballast.key.clone()).block().expect("a deletion").deleted, 1);
        assert_eq!(kv.revoke(ballast.lease).block().expect("a revocation").deleted, 1);
        kv.compact(ballast.revision).block().expect("a compaction");
        assert_eq!(self.read(kv), self.keys.len(), "a linearizable read after it");
        !self.one(kv)
    }

    fn read(&self, kv: &Client) -> usize {
        let keys = kv.range(KeyRange::all()).keys_only().block().unwrap();
        let there: BTreeSet<&[u8]> = keys.kvs.iter().map(|row| &row.key[..]).collect();
        for key in &self.keys {
            assert!(there.contains(key.as_bytes()), "{key} was acknowledged, and is lost");
        }
        keys.kvs.len()
    }

    /// Deletes all keys, to keep the state small.
    fn forget(&mut self, kv: &Client) {
        for key in std::mem::take(&mut self.keys) {
            kv.delete(key).block().unwrap();
        }
    }
}

#[test]
fn single_node_survives_many_full_disks() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, env) = quota();
    let configured = || config(dir.path()).env(env.clone());
    let mut node = Node::start(configured()).block().unwrap();
    let (mut written, mut fitted, mut full_to_the_end) = (Written::default(), 0, 0);
    for cycle in 0..CYCLES {
        let kv = node.client();
        let ballast = written.ballast(&kv, cycle);
        fill_up(&disk, dir.path());
        fitted += written.until_full(&kv);
        full_to_the_end += usize::from(written.continues(&kv, &ballast));
        if cycle % 10 == 3 {
            // The node also starts on a full disk, and detects that it is full.
            assert!(testing::shutdown(node).block().hanging.is_empty());
            node = Node::start(configured()).block().expect("a start on a full disk");
            let kv = node.client();
            assert_eq!(written.read(&kv), written.keys.len());
            written.until_full(&kv);
        }
        disk.limit(dir.path(), None);
        let kv = node.client();
        written.until_healed(&kv);
        written.read(&kv);
        written.forget(&kv);
    }
    say(&format!(
        "{CYCLES} times full after {fitted} values, {full_to_the_end} of them to the end"
    ));
    assert!(full_to_the_end > CYCLES / 2);
}

#[test]
fn cluster_survives_full_disks_while_a_quorum_has_space() {
    let (disk, env) = quota();
    let mut cluster = three_with(move |config: Config| config.env(env.clone()));
    let (mut written, mut handed_over, mut full_to_the_end) = (Written::default(), 0, 0);
    for cycle in 0..CYCLES {
        let leader = cluster.leader().block().unwrap();
        // Fill in turn the disk of the leader, of a follower, of a majority, and of all members.
        let full: Vec<usize> = match cycle % 4 {
            0 => vec![leader],
            1 => vec![(leader + 1) % 3],
            2 => vec![leader, (leader + 1) % 3],
            _ => vec![0, 1, 2],
        };
        let ballast = written.ballast(&cluster.node(leader).client(), cycle);
        for member in &full {
            fill_up(&disk, &cluster.data_dir(*member));
        }
        let (victim, other) = (full[0], (full[0] + 2) % 3);
        let kv = cluster.node(victim).client();
        written.until_full(&kv);
        if full.len() == 1 {
            // A member with space accepts writes, under a leader with space.
            let other = cluster.node(other).client();
            for _ in 0..20 {
                written.until_healed(&other);
            }
            handed_over += usize::from(victim == leader);
            let name = format!("m{victim}");
            let others = |all: &[NodeStatus]| {
                let mut leaders = all.iter().filter(|status| status.role == Role::Leader);
                leaders.next().is_some_and(|leader| leader.name != name) && leaders.next().is_none()
            };
            cluster.wait_until("a full member leads", others).block().unwrap();
        } else {
            written.until_full(&cluster.node(other).client());
        }
        full_to_the_end += usize::from(written.continues(&kv, &ballast));
        for member in &full {
            disk.limit(&cluster.data_dir(*member), None);
        }
        for member in 0..3 {
            written.until_healed(&cluster.node(member).client());
        }
        if cycle % 10 == 5 {
            cluster.kill(victim).block();
            cluster.restart(victim).block().unwrap();
        }
        for (_, node) in cluster.running() {
            written.read(&node.client());
        }
        written.forget(&cluster.node(other).client());
    }
    say(&format!(
        "{CYCLES} times full, {full_to_the_end} of them to the end; {handed_over} of them the leader \
         alone, which handed over"
    ));
    assert!(full_to_the_end > CYCLES / 2);
}
