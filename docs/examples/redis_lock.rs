//! The usual Redis lock, one key with a value and a time to live, and then the fencing that it lacks.
//! `cargo run --example redis_lock`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use bowline::testing::{Cluster, ClusterOptions};
use bowline::{
    GuardError, Op, Token,
    coordination::Expected,
    lock::{Fence, StaleToken},
};

/// A service outside the store. Its fence rejects tokens lower than the highest one it has seen.
#[derive(Default)]
struct Printer {
    fence: Fence,
}

impl Printer {
    fn print(&self, token: Token, page: &str) -> Result<(), StaleToken> {
        self.fence.with(token, || println!("  printed: {page}"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster: Cluster = ClusterOptions::new(3)
        .configure(|config| config.session_ttl(Duration::from_secs(60)))
        .start()
        .await?;
    let (a, b) = (cluster.node(0).client(), cluster.node(1).client());

    println!("SET name value NX PX 30000:");
    let ttl = Duration::from_secs(30);
    println!("  a: {}", a.put_if_absent("name", "a's").ttl(ttl).await?.is_done());
    println!("  b: {}", b.put_if_absent("name", "b's").ttl(ttl).await?.is_done());
    println!("deleted by who has the value, and by nobody else:");
    println!("  b: {}", b.compare_and_delete("name", Expected::value("b's")).await?.is_done());
    println!("  a: {}", a.compare_and_delete("name", Expected::value("a's")).await?.is_done());

    println!("a holder stands still beyond its time to live:");
    let leader = cluster.leader().await?;
    let (slow, next) = ((leader + 1) % 3, (leader + 2) % 3);
    let printer = Printer::default();
    let short = cluster.node(slow).open_session().ttl(Duration::from_secs(4)).await?;
    let first = short.mutex("report").lock().await?;
    cluster.pause(slow);
    let second = cluster.node(next).session().await?.mutex("report").lock().await?;
    second.txn().then(Op::put("report", "second")).commit().await?;
    printer.print(second.token(), "second")?;
    println!("  another holds the lock, and has written");
    cluster.resume(slow);
    println!("  the first one wakes and knows: held is {}", first.is_held());
    let late = first.txn().then(Op::put("report", "late")).commit().await;
    assert_eq!(late.unwrap_err(), GuardError::NotHeld);
    println!("  what it writes into the store is refused");
    let refused = printer.print(first.token(), "late").unwrap_err();
    println!("  what it sends to others is refused: {refused}");
    Ok(())
}
