//! A cluster of three processes. Run in three terminals:
//!
//! ```sh
//! cargo run --example three_processes -- /tmp/bowline n1
//! cargo run --example three_processes -- /tmp/bowline n2
//! cargo run --example three_processes -- /tmp/bowline n3
//! ```
//!
//! Each process acquires the same lock five times and increments a counter while it holds it. Kill one with `kill -9` and
//! start it again: no count is lost or made twice. The optional third and fourth arguments are the number of times and the
//! first of three ports.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use bowline::{Config, Node, Op};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, name, rest @ ..] = args.as_slice() else {
        return Err("usage: three_processes <directory> <n1|n2|n3> [times] [first port]".into());
    };
    let times: u32 = rest.first().map_or(Ok(5), |times| times.parse())?;
    let port: u16 = rest.get(1).map_or(Ok(7400), |port| port.parse())?;

    let members = (0..3).map(|i| (format!("n{}", i + 1), format!("127.0.0.1:{}", port + i)));
    let config = Config::new(std::path::Path::new(dir).join(name), name).members(members);
    let node = Node::start(config).await?;
    println!("{name} runs; it waits for the others");
    let status = node.wait_for(|status| status.leader.is_some()).await;
    println!("member {:?} leads term {}", status.leader, status.term);

    let kv = node.client();
    let session = node.session().await?;
    for _ in 0..times {
        let guard = session.mutex("demo/lock").lock().await?;
        let count = match kv.get("demo/count").await? {
            Some(row) => std::str::from_utf8(&row.value)?.parse::<u64>()?,
            None => 0,
        };
        let next = (count + 1).to_string();
        // Applied only if the lock is still held.
        guard.txn().then(Op::put("demo/count", next.clone())).commit().await?;
        println!("{name} counted to {next} with token {}", guard.token());
        guard.release().await?;
    }

    println!("done; the member runs until you press Enter");
    std::io::stdin().read_line(&mut String::new())?;
    node.shutdown().await;
    Ok(())
}
