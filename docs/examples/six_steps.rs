//! The six steps of a lock, first by hand on the public API, then with the mutex.
//! `cargo run --example six_steps`
//!
//! Four sessions enqueue in the order 2, 3, 1, 4 and are served in that order. Each release wakes exactly one.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{Client, EventKind, KeyRange, PutReply, SortOrder, SortTarget};

/// Steps 1 to 3: puts a key below the prefix, bound to a lease. Its create revision is its position in the queue.
async fn enter(kv: &Client, name: &str) -> Result<(String, PutReply), bowline::Error> {
    let lease = kv.grant(Duration::from_secs(15)).await?;
    let key = format!("lock/mylock/{name}");
    let put = kv.put(key.clone(), "").lease(lease.id).await?;
    Ok((key, put))
}

/// Steps 4 and 5: the lowest create revision holds the lock. Every other waiter waits until the key before its own is
/// deleted.
async fn wait_for_turn(kv: &Client, key: &str, mine: &PutReply) -> Result<(), bowline::Error> {
    loop {
        let line = kv
            .range(KeyRange::prefix("lock/mylock/"))
            .sort(SortTarget::Create, SortOrder::Ascend)
            .await?;
        let place = line.kvs.iter().position(|row| row.key == key);
        let Some(before) = place.and_then(|place| place.checked_sub(1)) else {
            return Ok(());
        };
        let before = &line.kvs[before];
        assert!(before.create_revision < mine.revision);
        let mut changes =
            kv.watch(before.key.clone()).from(bowline::Revision(line.revision.get() + 1)).await?;
        while let Some(Ok(batch)) = changes.next().await {
            if batch.events.iter().any(|event| event.kind == EventKind::Delete) {
                break;
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::start(3).await?;

    println!("by hand:");
    let kv = cluster.node(0).client();
    let mut waiting = Vec::new();
    for name in ["2", "3", "1", "4"] {
        let (key, put) = enter(&kv, name).await?;
        println!("  session {name} entered at revision {}", put.revision);
        let kv = cluster.node(waiting.len() % 3).client();
        waiting.push(tokio::spawn(async move {
            wait_for_turn(&kv, &key, &put).await?;
            // Step 6: work, then delete the key. If the process dies, the lease deletes it.
            let deleted = kv.delete(key.clone()).await?;
            Ok::<_, bowline::Error>((key, deleted.revision))
        }));
    }
    let mut served = Vec::new();
    for task in waiting {
        served.push(task.await??);
    }
    served.sort_by_key(|(_, revision)| *revision);
    let order: Vec<&str> = served.iter().map(|(key, _)| &key["lock/mylock/".len()..]).collect();
    println!("  served as {order:?}");
    assert_eq!(order, ["2", "3", "1", "4"]);

    println!("with the mutex:");
    let mut sessions = Vec::new();
    for i in 0..4 {
        sessions.push(cluster.node(i % 3).open_session().label(format!("{}", i + 1)).await?);
    }
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    let kv = cluster.node(0).client();
    // A separate session, because tasks of one session share one key.
    let other = cluster.node(0).open_session().await?;
    let gate = other.mutex("lock/other").lock().await?;
    for (place, session) in [2, 3, 1, 4].into_iter().map(|i| (i, sessions[i - 1].clone())) {
        let before = kv.range(KeyRange::prefix("lock/other/")).count_only().await?.count;
        let done = done.clone();
        tokio::spawn(async move {
            let guard = session.mutex("lock/other").lock().await;
            let _ = done.send(place);
            drop(guard);
        });
        // Start the next one after this one is in the queue.
        let mut line = kv.watch(KeyRange::prefix("lock/other/")).await?;
        while kv.range(KeyRange::prefix("lock/other/")).count_only().await?.count == before {
            line.next().await;
        }
    }
    gate.release().await?;
    for expected in [2, 3, 1, 4] {
        assert_eq!(order.recv().await, Some(expected));
        println!("  session {expected} held the lock");
    }
    Ok(())
}
