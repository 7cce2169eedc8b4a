//! Versions that a cluster goes through: raised when every member understands, and never lowered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline::testing::ClusterOptions;
use bowline::{Config, Role, Wait};

/// Builds of the next version pass for it; there is only one so far.
const NEXT: bowline::model::ClusterVersion = bowline::model::ClusterVersion(2);
const FIRST: bowline::model::ClusterVersion = bowline::model::ClusterVersion(1);

#[test]
fn a_rolling_upgrade_raises_the_version_at_its_end_costs_no_write_and_cannot_be_undone() {
    async {
        // Members from this number on are started as the newer build.
        let upgraded = Arc::new(AtomicU64::new(u64::MAX));
        let speaks = {
            let upgraded = Arc::clone(&upgraded);
            move |config: Config| {
                let newer = upgraded.load(Ordering::Relaxed) != u64::MAX;
                config.speaks(if newer { NEXT } else { FIRST })
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

        // Back to the older build: it says so and touches nothing.
        let back = (leader + 1) % 3;
        cluster.shutdown(back).await;
        upgraded.store(u64::MAX, Ordering::Relaxed);
        let said = match cluster.restart(back).await {
            Err(error) => error.to_string(),
            // Its log did not say yet that the raising is committed; it hears of it from the leader.
            Ok(()) => cluster.node(back).stopped().await.to_string(),
        };
        assert!(said.contains("upgrade"), "{said}");
        cluster.kill(back).await;
        upgraded.store(0, Ordering::Relaxed);
        cluster.restart(back).await.unwrap();
        cluster.node(back).wait_for(|status| status.role == Role::Follower).await;
        cluster.node(back).client().put("after", "1").await.unwrap();
    }
    .wait();
}
