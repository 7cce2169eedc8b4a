//! Leader election with the callbacks of Kubernetes' client: on start and stop of leading, and on each new leader. The
//! leader is cut off, and stops before the next one starts.
//! `cargo run --example leader_callbacks`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline::testing::{Cluster, ClusterOptions};
use bowline::{Election, LeaderEvent, Leadership, LockError};
use tokio::sync::mpsc;

/// The callbacks for one candidate.
struct Callbacks<Start, Stop> {
    on_started_leading: Start,
    on_stopped_leading: Stop,
}

/// Campaigns, and calls back when leading starts and stops.
async fn run<Start, Stop>(
    election: Election,
    identity: String,
    callbacks: Callbacks<Start, Stop>,
) -> Result<(), LockError>
where
    Start: AsyncFn(&Leadership),
    Stop: Fn(),
{
    let leadership = election.campaign(identity).await?;
    // Drops the work when leadership is lost, before another candidate can lead.
    tokio::select! {
        () = (callbacks.on_started_leading)(&leadership) => {}
        _ = leadership.lost() => {}
    }
    (callbacks.on_stopped_leading)();
    let _ = leadership.resign().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster: Cluster = ClusterOptions::new(3)
        .configure(|config| config.session_ttl(Duration::from_secs(60)))
        .start()
        .await?;
    let leader = cluster.leader().await?;
    let (first, second) = ((leader + 1) % 3, (leader + 2) % 3);
    let leading = Arc::new(AtomicUsize::new(0));
    let (sender, mut started) = mpsc::unbounded_channel();
    // The pod that will be cut off has a short session.
    for (pod, seconds) in [(first, 4), (second, 60)] {
        let session = cluster.node(pod).open_session().ttl(Duration::from_secs(seconds)).await?;
        let election = session.election("controller");
        let (leading, sender) = (Arc::clone(&leading), sender.clone());
        let callbacks = Callbacks {
            on_started_leading: {
                let leading = Arc::clone(&leading);
                async move |leadership: &Leadership| {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                    println!("pod {pod} started leading, token {}", leadership.token());
                    let _ = sender.send(pod);
                    std::future::pending::<()>().await;
                }
            },
            on_stopped_leading: move || {
                leading.fetch_sub(1, Ordering::SeqCst);
                println!("pod {pod} stopped leading");
            },
        };
        let running = run(election, format!("pod {pod}"), callbacks);
        tokio::spawn(async move {
            if let Err(error) = running.await {
                println!("pod {pod}: {error}");
            }
        });
        // The second pod campaigns after the first one leads.
        if pod == first {
            started.recv().await;
        }
    }

    let mut seen = cluster.node(leader).session().await?.election("controller").observe();
    println!("pod {first} is cut off");
    cluster.partition(&[first]);
    while let Some(event) = seen.next().await {
        match event? {
            LeaderEvent::Leads(new) if new.value == format!("pod {second}") => {
                println!("new leader: pod {second}");
                break;
            }
            _ => {}
        }
    }
    while started.recv().await != Some(second) {}
    Ok(())
}
