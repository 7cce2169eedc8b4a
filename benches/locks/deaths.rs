//! Measures how long the next holder waits after the previous holder was killed, or after its
//! program has ended normally.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::bench::{At, Bench};
use crate::report::Row;
use crate::site::{Site, number};
use bowline_testkit::crew::{Cluster, Measured, Shape};

/// Time limit for a waiter to be queued.
const ENTERED: Duration = Duration::from_secs(10);

const NAME: &str = "deaths";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Killed,
    KilledAndRestarted,
    Ended,
}

const ROWS: &[(&str, At, Way)] = &[
    ("holder killed, a follower", At::Follower, Way::Killed),
    ("holder killed, the leader", At::Leader, Way::Killed),
    ("holder killed, a follower, restarted at once", At::Follower, Way::KilledAndRestarted),
    ("holder ended in good order, a follower", At::Follower, Way::Ended),
    ("holder ended in good order, the leader", At::Leader, Way::Ended),
];

/// Runs the rows of this module.
pub(crate) fn next_grants(bench: &mut Bench) -> Result<(), String> {
    let rows: Vec<_> = ROWS.iter().filter(|(name, ..)| bench.wants(name)).collect();
    let Shape { members, in_process, .. } = bench.options.shape;
    if rows.is_empty() || members == 1 || in_process {
        return Ok(());
    }
    let shape = Shape { session_ttl: bench.options.ttl, ..bench.options.shape.clone() };
    let mut cluster = Cluster::start::<Site>(&shape)?;
    for (name, at, way) in rows {
        let mut all = Measured::new(Duration::ZERO);
        for _ in 0..bench.options.times {
            all.add(next_grant(&mut cluster, *at, *way)?);
        }
        let numbers = vec![
            ("shortest ms", all.micros(0.0) / 1e3),
            ("median ms", all.micros(0.5) / 1e3),
            ("longest ms", all.micros(1.0) / 1e3),
            ("TTL of the holder's session ms", shape.session_ttl.as_secs_f64() * 1e3),
            ("times", all.count() as f64),
        ];
        let words = "the holder's process is killed with -9, or told to end, while somebody on another \
                     member waits; how long is from just before until that one runs with the lock";
        bench.row(&Row { name, words, numbers });
    }
    cluster.end();
    Ok(())
}

/// Lets one member hold the lock and another member wait, ends the first member, and restarts it.
fn next_grant(cluster: &mut Cluster, at: At, way: Way) -> Result<Duration, String> {
    let leader = cluster.leader()?;
    let holder = at.member(cluster, leader);
    cluster.members[holder].ask(&format!("keep {NAME}"));
    let count = cluster.members.len();
    let (waiter, third) = ((holder + 1) % count, (holder + 2) % count);
    cluster.members[waiter].ask("session");
    cluster.members[waiter].send(&format!("await {NAME}"));
    let begun = Instant::now();
    while cluster.members[third].ask(&format!("length {NAME}")) != "2" {
        if begun.elapsed() > ENTERED {
            return Err("nobody waits".to_owned());
        }
        sleep(Duration::from_millis(1));
    }
    let now: u64 = number(&cluster.members[third].ask("now"));
    let (member, plan) = cluster.take(holder);
    match way {
        Way::Ended => member.end(),
        Way::Killed | Way::KilledAndRestarted => member.kill(),
    }
    let waiter = if waiter > holder { waiter - 1 } else { waiter };
    if way == Way::KilledAndRestarted {
        cluster.restart(plan.clone())?;
    }
    let granted: u64 = number(&cluster.members[waiter].answer());
    if way != Way::KilledAndRestarted {
        cluster.restart(plan)?;
    }
    Ok(Duration::from_nanos(granted.saturating_sub(now)))
}
