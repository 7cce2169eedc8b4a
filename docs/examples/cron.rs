//! A leader-elected cron job: one of three instances runs it. If the job fails, the next instance leads. If an instance
//! dies, another one takes over. After an outage of the whole cluster the job continues. On Ctrl-C the leader resigns.
//! `cargo run --example cron`
//!
//! The three instances run in one process here, so that the example can kill one. In your program each is a process with
//! its own node.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bowline::testing::{Cluster, ClusterOptions};
use bowline::{LeadError, LeaderEvent, LeaderTask, Leadership, Op};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Pause between two runs of the job.
const EVERY: Duration = Duration::from_millis(100);

/// How long a running job may continue after the program was asked to stop.
const GRACE: Duration = Duration::from_secs(1);

/// The reason why a job failed.
type Failure = Box<dyn Error + Send + Sync>;

/// The job, and what the example observes of it.
#[derive(Clone)]
struct Job {
    running: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
    ran: mpsc::UnboundedSender<usize>,
}

/// Counts an instance as running the job. Dropping it, also when the job's future is dropped, ends that.
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

impl Job {
    async fn run(&self, name: usize, leadership: &Leadership) -> Result<(), Failure> {
        let _inside = Inside::enter(&self.running);
        if self.fails.swap(false, Ordering::SeqCst) {
            return Err("the printer is on fire".into());
        }
        // The job's result is written only if this instance still leads.
        leadership.txn().then(Op::put("cron/last", name.to_string())).commit().await?;
        self.ran.send(name)?;
        Ok(())
    }
}

/// One instance: runs the job whenever it leads, for as long as its node runs, across sessions. If the job fails, the
/// instance resigns and campaigns again, after the others. Returns when `stop` becomes true.
async fn instance(
    leading: LeaderTask,
    name: usize,
    job: Job,
    mut stop: watch::Receiver<bool>,
) -> Result<(), LeadError> {
    while !*stop.borrow() {
        let work = async |leadership: Arc<Leadership>| {
            println!("instance {name} leads, token {}", leadership.token());
            loop {
                tokio::select! {
                    // The program stops, or an operator wants another instance to lead.
                    _ = leadership.asked_to_release() => return Ok::<(), Failure>(()),
                    () = tokio::time::sleep(EVERY) => {}
                }
                job.run(name, &leadership).await?;
            }
        };
        let stopped = async { stop.wait_for(|stop| *stop).await.is_ok() };
        if let Some(Err(error)) = leading.clone().run_until(stopped, GRACE, work).await? {
            println!("instance {name} has resigned: the job failed: {error}");
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut cluster: Cluster = ClusterOptions::new(3)
        .configure(|config| config.session_ttl(Duration::from_secs(4)))
        .start()
        .await?;
    let (stop, stopped) = watch::channel(false);
    let (sender, mut ran) = mpsc::unbounded_channel();
    let fails = Arc::new(AtomicBool::new(false));
    let job = Job { running: Arc::default(), fails: Arc::clone(&fails), ran: sender };
    let mut instances = JoinSet::new();
    for name in 0..3 {
        let leading = cluster.node(name).leader_task("cron/leader", name.to_string());
        let running = instance(leading, name, job.clone(), stopped.clone());
        instances.spawn(async move {
            match running.await {
                Ok(()) => println!("instance {name} has ended"),
                Err(error) => println!("instance {name}: {error}"),
            }
        });
    }
    drop(job);
    let interrupted = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.send_replace(true);
        }
    });

    // The channel is closed once all instances have ended, after Ctrl-C.
    let Some(first) = ran.recv().await else { return Ok(()) };
    fails.store(true, Ordering::SeqCst);
    let Some(second) = another(&mut ran, &[first]).await else { return Ok(()) };
    println!("instance {second} runs the job now; it is killed");
    cluster.kill(second).await;

    let Some(third) = another(&mut ran, &[second]).await else { return Ok(()) };
    println!("instance {third} runs the job now; the cluster loses its quorum");
    let rest: Vec<usize> = cluster.running().map(|(name, _)| name).collect();
    let mut sessions = Vec::new();
    for name in &rest {
        sessions.push(cluster.node(*name).session().await?);
    }
    cluster.partition(&rest[..1]);
    for session in sessions {
        session.ended().await;
    }
    // Discard the runs from before the sessions ended.
    while ran.try_recv().is_ok() {}
    cluster.heal();
    let Some(next) = ran.recv().await else { return Ok(()) };
    println!("after the outage instance {next} runs the job");

    stop.send_replace(true);
    while instances.join_next().await.is_some() {}
    // A withdrawn candidate may stay in the queue for a moment longer.
    let election = cluster.node(rest[0]).session().await?.election("cron/leader");
    let mut seen = election.observe();
    while let Some(event) = seen.next().await {
        if event? == LeaderEvent::Vacant {
            println!("they have resigned: true");
            break;
        }
    }
    Ok(())
}

/// Waits until an instance other than those in `but` runs the job.
async fn another(ran: &mut mpsc::UnboundedReceiver<usize>, but: &[usize]) -> Option<usize> {
    loop {
        let name = ran.recv().await?;
        if !but.contains(&name) {
            return Some(name);
        }
    }
}
