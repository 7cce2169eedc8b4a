//! A leader-elected cron: of three instances one runs the job; when it is gone, another one takes over.
//! `cargo run --example cron`
//!
//! Here the three instances live in one process, so that the example can kill one. In your program each
//! is a process with a node of its own.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline::testing::{Cluster, ClusterOptions};
use bowline::{Op, Session};
use tokio::sync::mpsc;

/// One instance: stands for election, runs the job while it leads, stands again when it has lost.
async fn instance(
    session: Session,
    name: usize,
    running: Arc<AtomicUsize>,
    ran: mpsc::UnboundedSender<usize>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    loop {
        let leadership = session.election("cron/leader").campaign(name.to_string()).await?;
        let mut clock = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                loss = leadership.lost() => {
                    println!("instance {name} leads no more: {loss}");
                    return Err(loss.into());
                }
                _ = clock.tick() => {}
            }
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two instances run the job");
            // The job's result is written only if this instance still leads.
            let job = leadership.txn().then(Op::put("cron/last", name.to_string())).commit().await;
            running.fetch_sub(1, Ordering::SeqCst);
            match job {
                Ok(_) if ran.send(name).is_err() => return Ok(()),
                Ok(_) => {}
                Err(error) => {
                    println!("instance {name}: the job failed: {error}; it resigns");
                    break;
                }
            }
        }
        let _ = leadership.resign().await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cluster: Cluster = ClusterOptions::new(3)
        .configure(|config| config.session_ttl(Duration::from_millis(1_600)))
        .start()
        .await?;
    let (sender, mut ran) = mpsc::unbounded_channel();
    let running = Arc::new(AtomicUsize::new(0));
    for name in 0..3 {
        let session = cluster.node(name).session().await?;
        let (running, sender) = (Arc::clone(&running), sender.clone());
        tokio::spawn(async move {
            match instance(session, name, running, sender).await {
                Ok(()) => {}
                Err(error) => println!("instance {name} ended: {error}"),
            }
        });
    }
    drop(sender);

    let first = ran.recv().await.ok_or("no job ran")?;
    println!("instance {first} runs the job; it is killed");
    cluster.kill(first).await;
    loop {
        let next = ran.recv().await.ok_or("no other instance took over")?;
        if next != first {
            println!("instance {next} runs the job now");
            return Ok(());
        }
    }
}
