//! Tests of cluster versions: the version is raised when every member supports a newer version, and
//! is never lowered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline::testing::{self, ClusterOptions};
use bowline::{Blocking, Config, Node, Revision, Role};

/// A stand-in for a future cluster version, because only one version exists so far.
const NEXT: bowline::model::ClusterVersion = bowline::model::ClusterVersion(2);
const FIRST: bowline::model::ClusterVersion = bowline::model::ClusterVersion(1);

#[test]
fn rolling_upgrade_raises_the_version_at_its_end_without_lost_writes() {
    async {
        // Members are started as the newer build once this is set.
        let upgraded = Arc::new(AtomicU64::new(u64::MAX));
        let speaks = {
            let upgraded = Arc::clone(&upgraded);
            move |config: Config| {
                let newer = upgraded.load(Ordering::Relaxed) != u64::MAX;
                let config = config.supported_version(if newer { NEXT } else { FIRST });
                // A long timeout, so that a busy machine causes no election.
                config
                    .election_timeout(Duration::from_secs(4))
                    .call_deadline(Duration::from_secs(30))
            }
        };
        let mut cluster = ClusterOptions::new(3).configure(speaks).start().await.unwrap();
        cluster.leader().await.unwrap();
        let mut acknowledged = 0u64;
        let mut terms = Vec::new();
        upgraded.store(0, Ordering::Relaxed);
        for member in 0..3 {
            let leader = cluster.leader().await.unwrap();
            terms.push(cluster.node(leader).status().term.get());
            let client = cluster.node((member + 1) % 3).client();
            for _ in 0..20 {
                acknowledged += 1;
                client.put("count", acknowledged.to_string()).await.unwrap();
            }
            let version = cluster.node(leader).status().version;
            assert_eq!(version, FIRST, "raised before member {member} was upgraded");
            cluster.shutdown(member).await;
            cluster.restart(member).await.unwrap();
            cluster.node(member).wait_for(|status| status.leader.is_some()).await;
        }
        let leader = cluster.leader().await.unwrap();
        terms.push(cluster.node(leader).status().term.get());
        for pair in terms.windows(2) {
            assert!(pair[1] <= pair[0] + 1, "more than one election for a restart: {terms:?}");
        }
        cluster
            .wait_until("the version was not raised", |all| all.iter().all(|s| s.version == NEXT))
            .await
            .unwrap();
        let row = cluster.node(leader).client().get("count").await.unwrap().unwrap();
        assert_eq!(row.value, acknowledged.to_string());

        // A downgraded member stops with an error, and changes nothing.
        let back = (leader + 1) % 3;
        cluster.shutdown(back).await;
        upgraded.store(u64::MAX, Ordering::Relaxed);
        let said = match cluster.restart(back).await {
            Err(error) => error.to_string(),
            // The member starts if its own log does not show that the new version is committed. It learns this from the
            // leader, and then stops.
            Ok(()) => cluster.node(back).stopped().await.to_string(),
        };
        assert!(said.contains("upgrade"), "{said}");
        cluster.kill(back).await;
        upgraded.store(0, Ordering::Relaxed);
        cluster.restart(back).await.unwrap();
        cluster.node(back).wait_for(|status| status.role == Role::Follower).await;
        cluster.node(back).client().put("after", "1").await.unwrap();
    }
    .block();
}

#[test]
fn a_member_that_installs_a_snapshot_knows_the_cluster_version() {
    async {
        let small = |config: Config| {
            config.supported_version(NEXT).snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10)
        };
        let mut cluster = ClusterOptions::new(1).configure(small).start().await.unwrap();
        cluster
            .wait_until("the version was not raised", |all| all.iter().all(|s| s.version == NEXT))
            .await
            .unwrap();
        let client = cluster.node(0).client();
        let mut revision = Revision(1);
        for n in 0..400 {
            revision =
                client.put(format!("key/{}", n % 10), vec![b'v'; 900]).await.unwrap().revision;
        }
        let joined = cluster.join().await.unwrap();
        cluster.all_at(revision).await.unwrap();
        let node = cluster.node(joined);
        assert!(node.metrics().snapshot().snapshots_installed_total > 0, "it replayed the log");
        assert_eq!(node.status().version, NEXT);
    }
    .block();
}

/// Creates a directory under `tests/fixtures`. Run this with the release after which the directory
/// is named: `BOWLINE_FIXTURE=tests/fixtures/NAME cargo test --workspace --test nodes upgrades::directories`.
fn make_fixture(dir: &std::path::Path) {
    let node = Node::start(fixture(dir)).block().unwrap();
    let client = node.client();
    let lease = client.grant(Duration::from_secs(3600)).block().unwrap().id;
    client.put("leased", "x").lease(lease).block().unwrap();
    client.put("gone", "x").block().unwrap();
    client.delete("gone").block().unwrap();
    for n in 0..150 {
        client.put(format!("key/{}", n % 10), format!("{n}:{}", "v".repeat(900))).block().unwrap();
    }
    let newest = client.put("late", "1").block().unwrap().revision;
    client.compact(Revision(newest.get() - 20)).block().unwrap();
    client.put("late", "2").block().unwrap();
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

fn fixture(dir: &std::path::Path) -> Config {
    Config::new(dir, "solo").snapshot_log_bytes(64 << 10).log_segment_bytes(64 << 10)
}

#[test]
fn directories_of_earlier_versions_open_with_all_data() {
    if let Some(dir) = std::env::var_os("BOWLINE_FIXTURE") {
        make_fixture(std::path::Path::new(&dir));
    }
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut opened = 0;
    for entry in std::fs::read_dir(fixtures).unwrap() {
        let (kept, copy) = (entry.unwrap().path(), tempfile::tempdir().unwrap());
        for file in std::fs::read_dir(&kept).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let node = Node::start(fixture(copy.path())).block().unwrap();
        let client = node.client();
        for n in 140..150 {
            let row = client.get(format!("key/{}", n % 10)).block().unwrap().unwrap();
            assert!(row.value.starts_with(format!("{n}:").as_bytes()), "{kept:?}: {row:?}");
        }
        let late = client.get("late").block().unwrap().unwrap();
        assert_eq!((late.value.as_ref(), late.version), (&b"2"[..], 2), "{kept:?}");
        assert_eq!(client.get("gone").block().unwrap(), None);
        let leased = client.get("leased").block().unwrap().unwrap();
        client.revoke(leased.lease.unwrap()).block().unwrap();
        assert_eq!(client.get("leased").block().unwrap(), None);
        let past = client.get("late").revision(Revision(2)).block().unwrap_err().to_string();
        assert!(past.contains("compacted"), "{past}");
        assert!(testing::shutdown(node).block().hanging.is_empty());
        opened += 1;
    }
    assert!(opened > 0, "no fixture was found");
}
