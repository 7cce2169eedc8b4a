//! Measures how fast a queue is drained, and how long an item takes to reach a taker that waits.
//! Three nodes with synced logs run in this process. 1, 16 or 64 takers are divided among them.
//!
//! `cargo bench --bench queues` prints a table. `-- --json` prints a line of JSON for each row.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::time::{Duration, Instant};

use bowline::testing::Cluster;
use bowline::{Op, queue::QueueTaker};
use hdrhistogram::Histogram;

const TAKERS: [usize; 3] = [1, 16, 64];
const ITEMS: usize = 6000;
const SINGLE_ITEMS: usize = 300;

struct Row {
    what: &'static str,
    takers: usize,
    items: usize,
    took: Duration,
    /// Time from the put to the taker, in microseconds.
    waits: Histogram<u64>,
    entries: u64,
    /// Number of items that each node took.
    shares: [usize; 3],
}

impl Row {
    fn print(&self, json: bool) {
        let Self { what, takers, items, took, entries, shares, .. } = self;
        let rate = *items as f64 / took.as_secs_f64();
        let each = *entries as f64 / *items as f64;
        let (median, high) =
            (self.waits.value_at_quantile(0.5), self.waits.value_at_quantile(0.99));
        if json {
            println!(
                r#"{{"bench":"queues","what":"{what}","takers":{takers},"items":{items},"per_second":{rate:.0},"entries_per_item":{each:.2},"wait_us_p50":{median},"wait_us_p99":{high},"shares":{shares:?}}}"#
            );
        } else {
            let waits = match self.waits.is_empty() {
                true => String::new(),
                false => format!("  in hand after {median} us, 99 of 100 after {high} us"),
            };
            println!(
                "{what:<35} {takers:>3} takers {rate:>6.0}/s {each:>6.2} entries an item  by node {shares:?}{waits}"
            );
        }
    }
}

fn main() {
    let json = std::env::args().any(|arg| arg == "--json");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for takers in TAKERS {
        runtime.block_on(drain(takers)).print(json);
        runtime.block_on(single(takers)).print(json);
    }
}

/// Measures takers that drain a full queue and acknowledge each item.
async fn drain(takers: usize) -> Row {
    let cluster = Cluster::start(3).await.expect("a cluster");
    let leader = cluster.leader().await.expect("a leader");
    let jobs = cluster.node(leader).client().queue("jobs");
    for _ in 0..ITEMS / 100 {
        jobs.put_many(vec!["x"; 100]).await.expect("a put");
    }
    jobs.put_many(vec![""; takers]).priority(1).await.expect("a put");
    let tasks = crew(&cluster, leader, takers).await;
    let (before, begun) = (cluster.node(leader).status().commit.get(), Instant::now());
    let tasks: Vec<_> = tasks
        .into_iter()
        .map(|(member, taker)| (member, tokio::spawn(take_until_empty(taker, begun))))
        .collect();
    let (mut shares, mut took) = ([0; 3], Duration::ZERO);
    for (member, task) in tasks {
        let (taken, ended, _) = task.await.expect("a taker");
        shares[member] += taken;
        took = took.max(ended);
    }
    let entries = cluster.node(leader).status().commit.get() - before;
    let waits = Histogram::new(3).expect("a histogram");
    Row {
        what: "a full queue, taken and acknowledged",
        takers,
        items: ITEMS,
        took,
        waits,
        entries,
        shares,
    }
}

/// Measures takers that wait, and items that are put one by one.
async fn single(takers: usize) -> Row {
    let cluster = Cluster::start(3).await.expect("a cluster");
    let leader = cluster.leader().await.expect("a leader");
    let kv = cluster.node(leader).client();
    let jobs = kv.queue("jobs");
    let tasks = crew(&cluster, leader, takers).await;
    let begun = Instant::now();
    let tasks: Vec<_> = tasks
        .into_iter()
        .map(|(member, taker)| (member, tokio::spawn(take_until_empty(taker, begun))))
        .collect();
    let before = cluster.node(leader).status().commit.get();
    let mut gone = kv.watch(bowline::KeyRange::prefix("jobs/item/"));
    gone = gone.filter(bowline::Filter::NoPut);
    let mut gone = gone.await.expect("a watch");
    for _ in 0..SINGLE_ITEMS {
        let at = begun.elapsed().as_micros();
        jobs.put(at.to_string()).await.expect("a put");
        gone.next().await.expect("a watch").expect("a change");
    }
    let (took, after) = (begun.elapsed(), cluster.node(leader).status().commit.get());
    jobs.put_many(vec![""; takers]).await.expect("a put");
    let (mut shares, mut waits) = ([0; 3], Histogram::<u64>::new(3).expect("a histogram"));
    for (member, task) in tasks {
        let (taken, _, waited) = task.await.expect("a taker");
        shares[member] += taken;
        waits.add(waited).expect("the same range");
    }
    let (items, entries) = (SINGLE_ITEMS, after - before);
    Row { what: "one at a time, to takers that wait", takers, items, took, waits, entries, shares }
}

/// Returns takers on all nodes. A single taker is not on the leader's node.
async fn crew(cluster: &Cluster, leader: usize, takers: usize) -> Vec<(usize, QueueTaker)> {
    let mut handles = Vec::new();
    for member in 0..3 {
        handles.push(cluster.node(member).session().await.expect("a session").queue("jobs"));
    }
    (0..takers)
        .map(|n| (leader + 1 + n) % 3)
        .map(|member| (member, handles[member].clone()))
        .collect()
}

async fn take_until_empty(taker: QueueTaker, begun: Instant) -> (usize, Duration, Histogram<u64>) {
    let mut waits = Histogram::new(3).expect("a histogram");
    for taken in 0.. {
        let item = taker.take().await.expect("an item");
        if let Some(put) = std::str::from_utf8(item.value()).ok().and_then(|at| at.parse().ok()) {
            let waited = begun.elapsed().as_micros().saturating_sub(put);
            waits.saturating_record(u64::try_from(waited).unwrap_or(u64::MAX));
        }
        let last = item.value().is_empty();
        item.ack_with(std::iter::empty::<Op>()).await.expect("an acknowledgement");
        if last {
            return (taken, begun.elapsed(), waits);
        }
    }
    unreachable!("it ends with the last item")
}
