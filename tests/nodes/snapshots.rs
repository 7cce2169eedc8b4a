//! Tests of snapshots: nodes start from them, followers that were away receive them, and locks and waiters continue.

use std::time::Duration;

use bowline::testing::{self, Cluster, ClusterOptions};
use bowline::{Blocking, Config, KeyRange, LockError, LostReason, Node, Revision, Role};

use crate::stage::{Begun, until_places};

/// Configures a node that truncates its log every few hundred writes.
fn small(config: Config) -> Config {
    let config = config.snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10);
    config.call_deadline(Duration::from_secs(20))
}

async fn three() -> Cluster {
    ClusterOptions::new(3).configure(small).start().await.unwrap()
}

/// Puts many values and returns the last revision.
async fn put_many(node: &Node, from: usize, to: usize) -> Revision {
    let client = node.client();
    let mut last = Revision::FIRST;
    for n in from..to {
        let put = client.put(format!("key/{:04}", n % 50), format!("{n}:{}", "v".repeat(900)));
        last = put.await.unwrap().revision;
    }
    last
}

fn files(cluster: &Cluster, member: usize, ending: &str) -> Vec<String> {
    let names = std::fs::read_dir(cluster.data_dir(member)).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    names
}

#[test]
fn restarted_node_loads_its_snapshot_and_has_all_data() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Node::start(small(Config::new(dir.path(), "solo"))).block().unwrap();
    let node = start();
    let client = node.client();
    let lease = client.grant(Duration::from_secs(3600)).block().unwrap();
    client.put("bound", "x").lease(lease.id).block().unwrap();
    let revision = put_many(&node, 0, 1200).block();
    assert!(testing::shutdown(node).block().hanging.is_empty());
    let names = || std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
    let has = |ending: &str| names().any(|name| name.to_str().unwrap().ends_with(ending));
    assert!(has(".snapshot"), "{:?}", names().collect::<Vec<_>>());
    assert!(!dir.path().join("0000000001.log").exists(), "{:?}", names().collect::<Vec<_>>());

    let node = start();
    let client = node.client();
    assert_eq!(client.get("key/0049").block().unwrap().unwrap().value[..5], b"1199:"[..]);
    assert_eq!(client.get("bound").block().unwrap().unwrap().lease, Some(lease.id));
    node.wait_for(|status| status.revision >= revision).block();
    client.revoke(lease.id).block().unwrap();
    assert_eq!(client.get("bound").block().unwrap(), None);
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

#[test]
fn follower_behind_the_truncated_log_gets_a_snapshot() {
    let run = async {
        let mut cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let away = (leader + 1) % 3;
        put_many(cluster.node(leader), 0, 100).await;
        cluster.kill(away).await;
        let revision = put_many(cluster.node(leader), 100, 1500).await;
        assert!(!files(&cluster, leader, ".log").contains(&"0000000001.log".to_owned()));
        cluster.restart(away).await.unwrap();
        cluster.all_at(revision).await.unwrap();
        let row = cluster.node(away).client().get("key/0049").local().await.unwrap().unwrap();
        assert_eq!(row.value[..5], b"1499:"[..]);
        // The follower takes part again: without the other follower, it is needed for the quorum.
        let other = 3 - leader - away;
        cluster.kill(other).await;
        let writer = cluster.leader().await.unwrap();
        put_many(cluster.node(writer), 1500, 1510).await;
    };
    run.block();
}

#[test]
fn waiters_on_a_node_that_installs_a_snapshot_are_answered() {
    let run = async {
        let cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let cut = (leader + 1) % 3;
        let (near, far) = (cluster.node(leader), cluster.node(cut));
        put_many(near, 0, 10).await;
        let held = near.session().await.unwrap().mutex("door").lock().await.unwrap();
        let session = far.open_session().ttl(Duration::from_secs(600)).await.unwrap();
        let waiting = tokio::spawn(async move { session.mutex("door").lock().await });
        let mut watch = far.client().watch(bowline::KeyRange::prefix("key/")).await.unwrap();
        far.wait_for(|status| status.open_requests == 0).await;
        let queued = |rows: usize| rows == 2;
        while !queued(
            near.client().range(bowline::KeyRange::prefix("door/")).await.unwrap().kvs.len(),
        ) {}

        cluster.partition(&[cut]);
        let revision = put_many(near, 10, 1500).await;
        held.release().await.unwrap();
        cluster.heal();
        cluster.all_at(revision).await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        assert!(guard.is_held());

        // The watch delivers every event or reports a compaction. It never skips an event.
        let mut next = 10;
        while next < 1500 {
            match watch.next().await.unwrap() {
                Ok(batch) => {
                    for event in batch.events {
                        let value = String::from_utf8(event.kv.value.to_vec()).unwrap();
                        assert_eq!(value.split(':').next(), Some(&*next.to_string()));
                        next += 1;
                    }
                }
                Err(bowline::WatchError::Compacted { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::runtime::Runtime::new().unwrap().block_on(run);
}

#[test]
fn item_owner_is_notified_of_a_loss_found_in_a_snapshot() {
    let run = async {
        let cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let cut = (leader + 1) % 3;
        let (near, far) = (cluster.node(leader), cluster.node(cut));
        let session = far.open_session().ttl(Duration::from_secs(600)).await.unwrap();
        let jobs = session.queue("jobs");
        jobs.put("x").await.unwrap();
        let item = jobs.take().await.unwrap();
        let lost = tokio::spawn(async move { item.lost().await });
        far.wait_for(|status| status.open_requests == 0).await;

        cluster.partition(&[cut]);
        near.client().delete(KeyRange::prefix("jobs/claim/")).await.unwrap();
        let revision = put_many(near, 0, 1).await;
        near.client().compact(revision).await.unwrap();
        put_many(near, 1, 1500).await;
        cluster.heal();
        let lost = tokio::time::timeout(Duration::from_secs(20), lost).await;
        assert_eq!(lost.expect("it is told").unwrap(), LostReason::KeyDeleted);
    };
    tokio::runtime::Runtime::new().unwrap().block_on(run);
}

#[test]
fn waiter_above_a_limit_lowered_in_a_snapshot_is_rejected() {
    let run = async {
        let cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let cut = (leader + 1) % 3;
        let (near, far) = (cluster.node(leader), cluster.node(cut));
        let downloads = near.session().await.unwrap().semaphore("downloads", 3);
        let held = downloads.acquire().await.unwrap();
        let session = far.open_session().ttl(Duration::from_secs(600)).await.unwrap();
        let acquire = session.semaphore("downloads", 3).acquire_many(3);
        let waiting = tokio::spawn(acquire.deadline(Duration::from_secs(30)).into_future());
        let line = || async {
            near.client().range(KeyRange::prefix("downloads/")).await.unwrap().kvs.len()
        };
        while line().await < 2 {}
        far.wait_for(|status| status.open_requests == 0).await;

        cluster.partition(&[cut]);
        downloads.resize(2).await.unwrap();
        let revision = put_many(near, 0, 1500).await;
        cluster.heal();
        cluster.all_at(revision).await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error, LockError::TooManyPermits { asked: 3, limit: 2 });
        assert!(held.is_held());
        // Wait until no request waits behind the holder.
        while line().await > 1 {}
    };
    tokio::runtime::Runtime::new().unwrap().block_on(run);
}

#[test]
fn hold_returned_within_a_skipped_snapshot_belongs_to_its_successor() {
    // The node misses the log entries of both transfers (to the other session and back), or only of the first.
    for misses_all in [true, false] {
        let cluster = three().block();
        let leader = cluster.leader().block().unwrap();
        let cut = (leader + 1) % 3;
        let (near, far) = (cluster.node(leader), cluster.node(cut));
        put_many(near, 0, 10).block();
        let lasting = |node: &Node| node.open_session().ttl(Duration::from_secs(600)).block();
        let (mine, other) = (lasting(far).unwrap().mutex("door"), lasting(near).unwrap());
        let first = mine.lock().block().unwrap();
        let again = Begun::new(mine.lock().reason("another task"));
        until_places(near, "door", 2);
        let between = Begun::new(other.mutex("door").lock());
        until_places(far, "door", 3);
        let line = mine.queue().unwrap();

        // The request arrives, but no answer comes back. While the node is paused, it cannot notice the cut before it
        // has sent the request.
        cluster.pause(cut);
        let away = Begun::new(async move { first.transfer(&line[2]).await });
        cluster.cut(leader, cut);
        cluster.cut(3 - leader - cut, cut);
        cluster.resume(cut);
        let between = between.finish().unwrap();
        let successor = other.mutex("door").queue().unwrap()[1].clone();
        let mut back = Box::pin(async move { between.transfer(&successor).await.unwrap() });
        if misses_all {
            back.as_mut().block();
        }
        // From now on the node receives no log entries.
        cluster.partition(&[cut]);
        let mut revision = put_many(near, 10, 1000).block();
        while files(&cluster, leader, ".log").contains(&"0000000001.log".to_owned()) {
            revision = put_many(near, 0, 100).block();
        }
        cluster.heal();
        cluster.all_at(revision).block().unwrap();
        assert!(far.metrics().snapshot().snapshots_installed_total > 0);
        away.finish().unwrap();
        if !misses_all {
            back.block();
        }
        let again = again.finish().unwrap();
        assert!(again.is_held());
        again.release().block().unwrap();
        until_places(near, "door", 0);
    }
}

#[test]
fn member_without_snapshots_fetches_one_and_a_single_node_fails() {
    let run = async {
        let mut cluster = three().await;
        let leader = cluster.leader().await.unwrap();
        let revision = put_many(cluster.node(leader), 0, 1200).await;
        cluster.all_at(revision).await.unwrap();
        let victim = (leader + 1) % 3;
        cluster.shutdown(victim).await;
        for name in files(&cluster, victim, ".snapshot") {
            std::fs::remove_file(cluster.data_dir(victim).join(name)).unwrap();
        }
        cluster.restart(victim).await.unwrap();
        cluster.node(victim).wait_for(|status| status.role == Role::Follower).await;
        cluster.all_at(revision).await.unwrap();
        let row = cluster.node(victim).client().get("key/0049").local().await.unwrap().unwrap();
        assert_eq!(row.value[..5], b"1199:"[..]);
    };
    run.block();

    let dir = tempfile::tempdir().unwrap();
    let start = || Node::start(small(Config::new(dir.path(), "solo"))).block();
    let node = start().unwrap();
    put_many(&node, 0, 1200).block();
    assert!(testing::shutdown(node).block().hanging.is_empty());
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "snapshot") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let error = start().unwrap_err().to_string();
    assert!(error.contains("restore this node from a backup"), "{error}");
}
