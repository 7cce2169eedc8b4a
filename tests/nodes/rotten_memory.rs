//! A bit flips in one node's applied memory: the node is named and stopped within a stated number of
//! entries, and the others go on.
//!
//! Two things find it. Each applied entry has [`SCRUB_ROWS`] rows' checksums looked at, round and
//! round, as has each tick of an idle node: so a row that nobody touches is found after
//! `rows / SCRUB_ROWS + 2` entries at the latest, all versions of all keys counted. And what a
//! transaction makes of a rotten row differs from what the others make of it: the digests that members
//! tell each other every [`DIGEST_EVERY`] entries say so after twice that at the latest, however many
//! rows there are.

use std::time::{Duration, Instant};

use bowline::testing::{self, Cluster, ClusterOptions};
use bowline::{
    Blocking, Compare, Config, Error, Node, Op, Role, StopReason, cluster::DIGEST_EVERY,
};

/// As the driver has it: rows whose checksums are looked at with each applied entry.
const SCRUB_ROWS: u64 = 16;

/// With ticks so rare that it is the entries that find what is rotten.
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

/// Writes until the node has stopped, everybody at the same pace. How many entries it had applied since `before`, and
/// why it stopped.
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

/// Where a node stands that has applied everything: its status is as old as its last tick.
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
fn a_row_that_nobody_touches_is_found_before_all_rows_were_passed_once() {
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
fn a_node_that_decides_otherwise_because_of_it_is_found_by_its_digest() {
    let cluster = cluster(Duration::from_millis(200));
    let (rotten, leader) = followers(&cluster);
    // So many that the scrub would take many more entries.
    fill(cluster.node(leader), 100 * usize::try_from(SCRUB_ROWS * DIGEST_EVERY / 40).unwrap());
    let before = applied(&cluster, rotten);
    assert!(cluster.node(rotten).rot(b"row/000700").block().unwrap());
    let kv = cluster.node(leader).client();
    let txn = kv.txn().when(Compare::value("row/000700").eq("value")).then(Op::put("then", ""));
    assert!(txn.or_else(Op::put("else", "")).commit().block().unwrap().succeeded);
    let bound = 2 * DIGEST_EVERY;
    let (entries, why) = until_it_stops(&cluster, rotten, leader, before, bound);
    assert!(entries <= bound, "found after {entries} entries, {bound} are the bound");
    assert!(why.contains("this node's replica differs from the majority's"), "{why:?}");
    the_others_go_on(&cluster, rotten);
}

#[test]
fn a_leader_is_stopped_too_and_an_idle_node_by_its_ticks() {
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
    cluster.wait_until("nobody else leads", next).block().unwrap();
    the_others_go_on(&cluster, leader);
}

#[test]
fn a_single_node_stops_and_its_log_still_has_the_truth() {
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
fn a_difference_that_nobody_could_decide_is_decided_later() {
    let cluster = cluster(Duration::from_millis(50));
    let (wrong, leader) = followers(&cluster);
    let unheard = 3 - wrong - leader;
    fill(cluster.node(leader), 100 * usize::try_from(SCRUB_ROWS * DIGEST_EVERY / 40).unwrap());
    applied(&cluster, wrong);
    // The leader hears the digest of the one that is wrong, and not of the one that would outvote it.
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
        assert!(Instant::now() < limit, "writes are refused for ever: {error}");
        std::thread::sleep(moment);
    }
}
