//! Tests of a bit flip in the memory of one node: the node is identified and stopped within a known
//! number of entries, and the other nodes continue.
//!
//! There are two mechanisms. With each applied entry, and with each tick of an idle node, the
//! checksums of [`SCRUB_ROWS`] rows are verified in turn. So a damaged row that is not otherwise
//! used is found after at most `rows / SCRUB_ROWS + 2` entries, where all versions of all keys
//! count as rows. Secondly, a transaction that reads a damaged row has another effect than on the
//! other replicas. The digests that members exchange every [`DIGEST_INTERVAL`] entries reveal the
//! difference after at most twice this number of entries, independent of the number of rows.

use std::time::{Duration, Instant};

use bowline::testing::{self, Cluster, ClusterOptions};
use bowline::{
    Blocking, Compare, Config, Error, Node, Op, Role, StopReason, cluster::DIGEST_INTERVAL,
};

/// Number of rows whose checksums are verified with each applied entry. Same value as in the
/// driver.
const SCRUB_ROWS: u64 = 16;

/// Starts a cluster in which ticks are so rare that the check with each entry finds the damage.
fn cluster(heartbeat: Duration) -> Cluster {
    ClusterOptions::new(3)
        .configure(move |config| config.heartbeat(heartbeat).election_timeout(heartbeat * 6))
        .start()
        .block()
        .expect("the cluster starts")
}

fn fill(node: &Node, rows: usize) {
    let keys: Vec<usize> = (0..rows).collect();
    for some in keys.chunks(100) {
        let puts = some.iter().map(|key| Op::put(format!("row/{key:06}"), "value"));
        puts.fold(node.client().txn(), |txn, put| txn.then(put)).commit().block().unwrap();
    }
}

fn followers(cluster: &Cluster) -> (usize, usize) {
    let leader = cluster.leader().block().unwrap();
    ((leader + 1) % 3, leader)
}

/// Writes until the node has stopped, with all members at the same pace. Returns the number of entries that it had
/// applied since `before`, and the reason.
fn until_it_stops(
    cluster: &Cluster,
    rotten: usize,
    writer: usize,
    before: u64,
    entries_max: u64,
) -> (u64, String) {
    let node = cluster.node(rotten);
    for i in 0..2 * entries_max {
        if node.stop_reason().is_some() {
            break;
        }
        let put = cluster.node(writer).client().put("busy", i.to_string()).block().unwrap();
        for (member, each) in cluster.running() {
            let row = each.client().get("busy").at_least(put.revision).block();
            assert!(row.is_ok() || member == rotten, "m{member}: {row:?}");
        }
    }
    let StopReason::Failed(why) = node.stopped().block() else { panic!("nobody asked it to stop") };
    (node.status().applied.get() - before, why.to_string())
}

/// Returns the applied index of a node that has applied everything. Its status is as old as its last tick.
fn applied(cluster: &Cluster, member: usize) -> u64 {
    let put = cluster.node(member).client().put("mark", "").block().unwrap();
    cluster.all_at(put.revision).block().unwrap();
    cluster.node(member).status().applied.get()
}

fn the_others_go_on(cluster: &Cluster, without: usize) {
    for (_, node) in cluster.running().filter(|(member, _)| *member != without) {
        assert_eq!(node.stop_reason(), None);
        node.client().put("after", "v").block().unwrap();
        let row = node.client().get("row/000007").block().unwrap().unwrap();
        assert_eq!(row.value, "value");
    }
}

#[test]
fn corrupted_idle_row_is_found_within_one_scrub() {
    let cluster = cluster(Duration::from_millis(200));
    let (rotten, leader) = followers(&cluster);
    let rows = 800;
    fill(cluster.node(leader), rows);
    let before = applied(&cluster, rotten);
    assert!(cluster.node(rotten).rot(b"row/000007").block().unwrap());
    let bound = (rows as u64 + 200) / SCRUB_ROWS + 2;
    let (entries, why) = until_it_stops(&cluster, rotten, leader, before, bound);
    assert!(entries <= bound, "found after {entries} entries, {bound} are the bound");
    let words = "the row of key row/000007 (revision 2) has changed in memory";
    assert!(why.contains(words), "{why:?}");
    the_others_go_on(&cluster, rotten);
}

#[test]
fn replica_diverged_by_corruption_is_stopped_by_its_digest() {
    let cluster = cluster(Duration::from_millis(200));
    let (rotten, leader) = followers(&cluster);
    // Write so many rows that the verification of checksums would need many more entries than the
    // digests.
    fill(cluster.node(leader), 100 * usize::try_from(SCRUB_ROWS * DIGEST_INTERVAL / 40).unwrap());
    let before = applied(&cluster, rotten);
    assert!(cluster.node(rotten).rot(b"row/000700").block().unwrap());
    let kv = cluster.node(leader).client();
    let txn = kv.txn().when(Compare::value("row/000700").eq("value")).then(Op::put("then", ""));
    assert!(txn.or_else(Op::put("else", "")).commit().block().unwrap().succeeded);
    let bound = 2 * DIGEST_INTERVAL;
    let (entries, why) = until_it_stops(&cluster, rotten, leader, before, bound);
    assert!(entries <= bound, "found after {entries} entries, {bound} are the bound");
    assert!(why.contains("this node's replica diverged from the majority"), "{why:?}");
    the_others_go_on(&cluster, rotten);
}

#[test]
fn corrupted_leader_and_idle_node_stop() {
    let cluster = cluster(Duration::from_millis(20));
    let (_, leader) = followers(&cluster);
    fill(cluster.node(leader), 800);
    assert!(cluster.node(leader).rot(b"row/000007").block().unwrap());
    let StopReason::Failed(why) = cluster.node(leader).stopped().block() else {
        panic!("nobody asked it to stop")
    };
    assert!(why.contains("row/000007"), "{why:?}");
    assert_eq!(cluster.node(leader).status().role, Role::Stopped);
    let next = |all: &[bowline::NodeStatus]| all.iter().any(|s| s.role == Role::Leader);
    cluster.wait_until("another member leads", next).block().unwrap();
    the_others_go_on(&cluster, leader);
}

#[test]
fn single_node_with_corrupted_memory_stops_and_recovers_from_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    let node = start();
    fill(&node, 100);
    assert!(!node.rot(b"no such key").block().unwrap());
    assert!(node.rot(b"row/000007").block().unwrap());
    let why = node.stopped().block().to_string();
    assert!(why.contains("row/000007"), "{why:?}");
    let late = node.client().get("row/000007").block().unwrap_err();
    assert!(matches!(late, Error::Stopped { .. }), "{late:?}");
    assert!(testing::shutdown(node).block().hanging.is_empty());
    let node = start();
    assert_eq!(node.client().get("row/000007").block().unwrap().unwrap().value, "value");
}

#[test]
fn undecided_divergence_is_decided_later() {
    let cluster = cluster(Duration::from_millis(50));
    let (wrong, leader) = followers(&cluster);
    let unheard = 3 - wrong - leader;
    fill(cluster.node(leader), 100 * usize::try_from(SCRUB_ROWS * DIGEST_INTERVAL / 40).unwrap());
    applied(&cluster, wrong);
    // The leader receives the digest of the wrong member, but not the digest of the member with
    // which it would have a majority.
    cluster.cut(unheard, leader);
    assert!(cluster.node(wrong).rot(b"row/000700").block().unwrap());
    let kv = cluster.node(leader).client();
    let txn = kv.txn().when(Compare::value("row/000700").eq("value")).then(Op::put("then", ""));
    txn.or_else(Op::put("else", "")).commit().block().unwrap();
    let moment = Duration::from_millis(100);
    let limit = Instant::now() + Duration::from_secs(30);
    while cluster.node(wrong).stop_reason().is_none() {
        drop(kv.put("busy", "").deadline(moment).block());
        assert!(Instant::now() < limit, "who is wrong goes on");
    }
    while kv.put("busy", "").deadline(moment).block() != Err(Error::Diverged) {
        assert!(Instant::now() < limit, "nobody refuses");
    }
    cluster.heal();
    let to = cluster.node(leader).members().named(&format!("m{leader}"));
    while cluster.leader().block().unwrap() != leader {
        drop(cluster.node(unheard).transfer_leadership(to).block());
        assert!(Instant::now() < limit, "it does not lead any more");
    }
    while let Err(error) = kv.put("after", "v").deadline(moment).block() {
        assert!(Instant::now() < limit, "writes are refused forever: {error}");
        std::thread::sleep(moment);
    }
}
