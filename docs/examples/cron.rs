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
use bowline::{LeadError, Leadership, Op, Session};
use tokio::sync::mpsc;

/// How many instances are inside the job, for as long as it is there: a job that is dropped in the
/// middle is inside no more.
struct Inside(Arc<AtomicUsize>);

impl Inside {
    fn enter(running: &Arc<AtomicUsize>) -> Self {
        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two instances run the job");
        Self(Arc::clone(running))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One instance: runs the job while it leads, and stands again when it has lost. Ends with its session.
async fn instance(
    session: Session,
    name: usize,
    running: Arc<AtomicUsize>,
    ran: mpsc::UnboundedSender<usize>,
) -> Result<(), LeadError> {
    let election = session.election("cron/leader");
    let work = async |leadership: Arc<Leadership>| {
        println!("instance {name} leads, token {}", leadership.token());
        let mut clock = tokio::time::interval(Duration::from_millis(100));
        loop {
            clock.tick().await;
            let inside = Inside::enter(&running);
            // The job's result is written only if this instance still leads.
            let job = leadership.txn().then(Op::put("cron/last", name.to_string())).commit().await;
            drop(inside);
            match job {
                Ok(_) if ran.send(name).is_err() => return,
                Ok(_) => {}
                Err(error) => println!("instance {name}: the job failed: {error}"),
            }
        }
    };
    election.run_while_leader(name.to_string(), work).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cluster: Cluster = ClusterOptions::new(3)
        .configure(|config| config.session_ttl(Duration::from_secs(4)))
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
