//! Recipes of ZooKeeper and Curator: a lock from sequential keys by hand, the mutex, group membership, and a local view.
//! `cargo run --example zookeeper_recipes`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use bowline::testing::Cluster;
use bowline::{EventKind, KeyRange, Revision, Session};

/// The lock by hand: an ephemeral sequential key, and a watch on the next smaller one.
async fn by_hand(session: Session) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let kv = session.client();
    let mine = kv.sequential_prefix("by-hand/").put_bound("", &session).await?;
    loop {
        let smaller = kv.range(KeyRange::between("by-hand/", mine.key.clone())).await?;
        let Some(nearest) = smaller.kvs.last() else { break };
        let next = Revision(smaller.revision.get() + 1);
        let mut changes = kv.watch(nearest.key.clone()).from(next).await?;
        while let Some(batch) = changes.next().await {
            if batch?.events.iter().any(|event| event.kind == EventKind::Delete) {
                break;
            }
        }
    }
    println!("  number {} holds", mine.number);
    kv.delete(mine.key).await?;
    Ok(mine.number)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let cluster = Cluster::start(3).await?;

    println!("by hand:");
    let mut tasks = Vec::new();
    for member in 0..3 {
        tasks.push(tokio::spawn(by_hand(cluster.node(member).session().await?)));
    }
    for task in tasks {
        task.await??;
    }

    println!("with the mutex:");
    for member in 0..3 {
        let guard = cluster.node(member).session().await?.mutex("mutex").lock().await?;
        println!("  member {member} holds, token {}", guard.token());
        guard.release().await?;
    }

    println!("who is there:");
    let mut members = Vec::new();
    for member in 0..3 {
        let workers = cluster.node(member).session().await?.group("workers");
        members.push(workers.join(format!("worker {member}")).await?);
    }
    let workers = cluster.node(0).session().await?.group("workers");
    println!("  {} workers", workers.members().await?.len());
    members.remove(1).leave().await?;
    println!("  {} workers", workers.members().await?.len());

    println!("a local view:");
    let mut view = cluster.node(2).client().cached_prefix("config/").await?;
    let put = cluster.node(0).client().put("config/rate", "100").await?;
    while view.changed().await?.revision() < put.revision {}
    let rate = view.get("config/rate")?.expect("it was put");
    println!("  rate is {}", String::from_utf8_lossy(&rate.value));
    Ok(())
}
