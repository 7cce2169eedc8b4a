//! Lets many tasks on all nodes increment counters under one lock. Checks that the counts are
//! exact, and measures the share of the holds of each node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::{Client, Op};

use crate::bench::{Bench, Meter};
use crate::report::{Row, rates};
use crate::site::{Site, number};
use bowline_testkit::crew::{Measured, Trade, together};

/// Number of tasks on each node.
const TASKS: u64 = 64;

/// A counter that only guarded transactions change.
const GUARDED: &str = "shares/guarded";

/// A counter that holders read and put, protected only by the lock.
const PLAIN: &str = "shares/plain";

/// In a member: tasks increment both counters under the lock, until `time` has passed. Measures the
/// waits for the lock.
pub(crate) async fn count_up(site: &Arc<Site>, tasks: u64, time: Duration) -> String {
    let mutex = site.session().await.mutex("shares/lock");
    let begun = Instant::now();
    let measured = together(tasks, |_| {
        let (mutex, client) = (mutex.clone(), site.node().client());
        async move {
            let mut waits = Measured::new(Duration::ZERO);
            while begun.elapsed() < time {
                let called = Instant::now();
                let guard = mutex.lock().await.expect("a lock");
                waits.add(called.elapsed());
                // A local get is sufficient: when the lock is granted, this node has applied the writes of earlier
                // holders.
                let seen = client.get(GUARDED).local().await.expect("a local get");
                let put = Op::put(GUARDED, (count_in(seen) + 1).to_string());
                guard.txn().then(put).commit().await.expect("a guarded transaction");
                let count = read(&client, PLAIN).await;
                client.put(PLAIN, (count + 1).to_string()).await.expect("a put");
                let _ = guard.release().await.expect("a release");
            }
            waits
        }
    })
    .await;
    measured.to_words()
}

/// In a member: returns both counters.
pub(crate) async fn ledger(site: &Arc<Site>) -> String {
    let client = site.node().client();
    format!("{} {}", read(&client, GUARDED).await, read(&client, PLAIN).await)
}

async fn read(client: &Client, key: &'static str) -> u64 {
    count_in(client.get(key).await.expect("a get"))
}

fn count_in(row: Option<bowline::KeyValue>) -> u64 {
    row.map_or(0, |row| number(std::str::from_utf8(&row.value).expect("digits")))
}

/// Runs the row of this module.
pub(crate) fn ledgers(bench: &mut Bench) -> Result<(), String> {
    let name = format!("shares, {TASKS} tasks on each node count under one lock");
    if !bench.wants(&name) {
        return Ok(());
    }
    let millis = bench.options.long.as_millis();
    let (cluster, leader) = bench.cluster()?;
    for member in &mut cluster.members {
        member.ask("session");
    }
    let ledger = |words: String| {
        let (guarded, plain) = words.split_once(' ').expect("two counts");
        (number::<u64>(guarded), number::<u64>(plain))
    };
    let before = ledger(cluster.members[leader].ask("ledger"));
    let meter = Meter::start(cluster, leader);
    for member in &mut cluster.members {
        member.send(&format!("share {TASKS} {millis}"));
    }
    let (mut all, mut counts) = (Measured::new(Duration::ZERO), Vec::new());
    for member in &mut cluster.members {
        let measured = member.measured();
        counts.push(measured.count());
        all.merge(&measured);
    }
    let spent = meter.stop(cluster);
    let after = ledger(cluster.members[leader].ask("ledger"));
    let grants = all.count();
    assert_eq!(after.0 - before.0, grants, "the guarded counter is exact");
    assert_eq!(after.1 - before.1, grants, "the counter under the lock is exact");
    let percent = |count: Option<&u64>| *count.unwrap_or(&0) as f64 * 100.0 / grants.max(1) as f64;
    let mut numbers = rates(&all);
    numbers.extend(spent.each(grants));
    numbers.extend([
        ("smallest share percent", percent(counts.iter().min())),
        ("the leader's share percent", percent(counts.get(leader))),
        ("largest share percent", percent(counts.iter().max())),
        ("longest wait ms", all.micros(1.0) / 1e3),
        ("grants", grants as f64),
        ("guarded counter", (after.0 - before.0) as f64),
        ("counter under the lock", (after.1 - before.1) as f64),
    ]);
    let words = "a task gets the lock, raises one counter by a guarded transaction and another by a get \
                 and a put, and releases; how long is the wait";
    bench.row(&Row { name: &name, words, numbers });
    Ok(())
}
