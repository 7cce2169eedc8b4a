//! The quick start: one member, in this process. `cargo run --example quick_start`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use bowline::{Compare, Config, KeyRange, Node, Op};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = tempfile::tempdir()?;
    let node = Node::start(Config::new(data.path(), "n1")).await?;
    let kv = node.client();

    let put = kv.put("config/rate", "100").await?;
    println!("written at revision {}", put.revision);

    let mut changes = kv.watch(KeyRange::prefix("config/")).from(put.revision).await?;

    let done = kv
        .txn()
        .when(Compare::value("config/rate").eq("100"))
        .then(Op::put("config/rate", "200"))
        .or_else(Op::get("config/rate"))
        .commit()
        .await?;
    println!("the rate was 100 and is 200 now: {}", done.succeeded);

    let mut seen = 0;
    while seen < 2 {
        let Some(batch) = changes.next().await else { break };
        for event in batch?.events {
            println!("{:?} {} at {}", event.kind, utf8(&event.kv.value), event.revision());
            seen += 1;
        }
    }

    let session = node.session().await?;
    let guard = session.mutex("locks/orders/42").lock().await?;
    println!("the lock is held, token {}", guard.token());
    guard.txn().then(Op::put("orders/42/state", "paid")).commit().await?;
    guard.release().await?;

    let report = node.shutdown().await;
    println!("threads left behind: {}", report.hanging.len());
    Ok(())
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
