//! Measures how much more a guarded transaction costs than a plain transaction.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::Op;

use crate::bench::{Bench, Meter};
use crate::report::{Row, Spent, rates};
use crate::site::Site;
use bowline_testkit::crew::{Measured, together};

const VALUE_BYTES: usize = 256;

/// Number of rounds in which the two kinds alternate, so that other load on the machine affects both.
const ROUNDS: u32 = 6;

/// The kind of transaction.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// [`bowline::Client::txn`].
    Plain,
    /// [`bowline::lock::Hold::txn`].
    Guarded,
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "plain" => Ok(Kind::Plain),
            "guarded" => Ok(Kind::Guarded),
            _ => Err(()),
        }
    }
}

/// In a member: each caller holds a lock and puts one key repeatedly.
pub(crate) async fn commit(site: &Arc<Site>, kind: Kind, callers: u64, time: Duration) -> Measured {
    let session = site.session().await.clone();
    let mut guards = Vec::new();
    for caller in 0..callers {
        let guard = session.mutex(format!("guards/{caller}")).lock().await.expect("a lock");
        guards.push(Arc::new(guard));
    }
    let measured = together(callers, |caller| {
        let guard = Arc::clone(&guards[caller as usize]);
        let site = Arc::clone(site);
        async move {
            let client = bowline_testkit::crew::Trade::node(&*site).client();
            let mut measured = Measured::new(Duration::ZERO);
            let begun = Instant::now();
            while begun.elapsed() < time {
                let called = Instant::now();
                let put = Op::put(format!("guarded/{caller}"), vec![b'v'; VALUE_BYTES]);
                match kind {
                    Kind::Plain => {
                        client.txn().then(put).commit().await.expect("a transaction");
                    }
                    Kind::Guarded => {
                        guard.txn().then(put).commit().await.expect("a guarded transaction");
                    }
                }
                measured.add(called.elapsed());
            }
            measured
        }
    })
    .await;
    for guard in guards {
        let guard = Arc::into_inner(guard).expect("its caller has gone");
        let _ = guard.release().await.expect("a release");
    }
    measured
}

/// Runs the rows of this module.
pub(crate) fn cost(bench: &mut Bench) -> Result<(), String> {
    for callers in [1, 64] {
        let names = ["a plain transaction", "a guarded transaction"]
            .map(|kind| format!("{kind}, callers: {callers}"));
        if !names.iter().any(|name| bench.wants(name)) {
            continue;
        }
        let millis = (bench.options.time * 2 / ROUNDS).as_millis();
        let (cluster, leader) = bench.cluster()?;
        let mut both =
            [(); 2].map(|()| (Measured::new(Duration::ZERO), Duration::ZERO, Spent::default()));
        for _ in 0..ROUNDS {
            for (kind, (all, elapsed, spent)) in ["plain", "guarded"].iter().zip(&mut both) {
                let meter = Meter::start(cluster, leader);
                let member = &mut cluster.members[leader];
                member.send(&format!("transactions {kind} {callers} {millis}"));
                let measured = member.measured();
                let mut used = meter.stop(cluster);
                // Subtract the entries of the acquisitions and releases, which both kinds have.
                used.entries = used.entries.saturating_sub(2 * callers);
                *spent += used;
                *elapsed += measured.elapsed;
                all.merge(&measured);
            }
        }
        for (all, elapsed, _) in &mut both {
            all.elapsed = *elapsed;
        }
        let (plain, ..) = &both[0];
        let words = "a transaction of one put of 256 bytes is committed by one of the callers in the \
                     leader's process, who hold a lock each; ratios are to the plain kind";
        for (name, (all, _, spent)) in names.iter().zip(&both) {
            let mut numbers = rates(all);
            numbers.extend(spent.each(all.count()));
            numbers.extend([
                ("ratio of rates", all.rate() / plain.rate()),
                ("ratio of medians", all.micros(0.5) / plain.micros(0.5)),
            ]);
            bench.row(&Row { name, words, numbers });
        }
    }
    Ok(())
}
