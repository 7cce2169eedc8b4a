//! Measures the cost of locks that are held and not used, in CPU time and memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::bench::{Bench, Meter, counts};
use crate::report::Row;
use crate::site::Site;
use bowline_testkit::crew::{Cluster, Measured, together};

/// Number of callers that acquire the locks.
const TAKERS: u64 = 256;

/// Pause after the acquisitions, until the background work that they have caused is done.
const CALM: Duration = Duration::from_secs(2);

/// In a member: acquires the locks with these numbers and holds them.
pub(crate) async fn hold(site: &Arc<Site>, names: Range<u64>) {
    let session = site.session().await.clone();
    let next = Arc::new(AtomicU64::new(names.start));
    let taken = together(TAKERS, |_| {
        let (site, session, next) = (Arc::clone(site), session.clone(), Arc::clone(&next));
        async move {
            loop {
                let name = next.fetch_add(1, Ordering::Relaxed);
                if name >= names.end {
                    return Measured::new(Duration::ZERO);
                }
                let guard = session.mutex(format!("idle/{name:07}")).lock().await;
                site.idle().push(guard.expect("a lock"));
            }
        }
    });
    let _ = taken.await;
}

/// Runs the rows of this module.
pub(crate) fn cost(bench: &mut Bench) -> Result<(), String> {
    let (held, long) = (bench.options.held, bench.options.long);
    let names = ["idle, no locks held".to_owned(), format!("idle, {held} locks held")];
    if !names.iter().any(|name| bench.wants(name)) {
        return Ok(());
    }
    let mut cluster = Cluster::start::<Site>(&bench.options.shape)?;
    let leader = cluster.leader()?;
    // Open the sessions for both rows, so that they are not part of the difference.
    for member in &mut cluster.members {
        member.ask("session");
        member.ask("hold 0 0");
    }
    let mut before = counts(&mut cluster, leader).resident_bytes;
    for (round, name) in names.iter().enumerate() {
        if round == 1 {
            before = counts(&mut cluster, leader).resident_bytes;
            let mut from = 0;
            for (member, share) in cluster.shares(leader, held) {
                cluster.members[member].send(&format!("hold {from} {}", from + share));
                from += share;
            }
            for member in &mut cluster.members {
                member.answer();
            }
        }
        if bench.options.long > CALM {
            sleep(CALM);
        }
        let meter = Meter::start(&mut cluster, leader);
        sleep(long);
        let spent = meter.stop(&mut cluster);
        let seconds = long.as_secs_f64();
        let now = counts(&mut cluster, leader);
        let grown = now.resident_bytes.saturating_sub(before);
        let numbers = vec![
            ("log bytes a second", spent.log_bytes as f64 / seconds),
            ("entries a second", spent.entries as f64 / seconds),
            ("CPU ms a second", spent.cpu.as_secs_f64() * 1e3 / seconds),
            ("rounds of proof a second", spent.rounds as f64 / seconds),
            ("memory bytes a lock", grown as f64 / held as f64),
        ];
        if round == 1 {
            assert!(now.keys >= held, "all are held");
        }
        let words = "nobody does anything, while the sessions of all members hold a share of the locks \
                     each; the CPU is that of all members, the memory that of the leader";
        bench.row(&Row { name, words, numbers });
    }
    cluster.end();
    Ok(())
}
