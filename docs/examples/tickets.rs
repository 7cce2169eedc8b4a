//! A program of your own in the simulator: a shop on every node sells seats, and must sell none twice.
//! `cargo run --release --example tickets --features sim`; with `-- careless`, the shop has a bug, which the simulator
//! finds, minimizes and explains.
//!
//! The shop acquires a lock, finds the next free seat, waits for the payment, and writes the sale. The careless shop uses
//! a plain put: if its process was paused before the put, it may have lost the lock, and another shop may have sold the
//! seat. The careful shop uses a guarded transaction.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use bowline::sim::{Host, Rows, Scenario};
use bowline::{KeyRange, Op};

/// Runs on every node, from each start of its process to its end.
async fn shop(host: Host, is_careful: bool) {
    while !host.is_closing() {
        host.sleep(Duration::from_millis(host.random(400))).await;
        // After any error, serve the next customer.
        let Ok(session) = host.session().await else { continue };
        let acquire = session.mutex("desk").lock().deadline(Duration::from_secs(5));
        let Ok(guard) = acquire.await else { continue };
        if let Ok(sold) = host.client().range(KeyRange::prefix("seat/")).count_only().await {
            let seat = format!("seat/{:04}", sold.count);
            // The customer pays.
            host.sleep(Duration::from_millis(host.random(1_500))).await;
            let buyer = format!("{} #{}", host.id(), host.random(1_000_000));
            let is_sold = match is_careful {
                true => guard.txn().then(Op::put(seat, buyer)).commit().await.is_ok(),
                false => host.client().put(seat, buyer).await.is_ok(),
            };
            host.count(if is_sold { "sold" } else { "not sold" });
        }
        drop(guard.release().await);
    }
}

/// A sold seat keeps its buyer. Checked after every change of the store.
fn sold_once(rows: &Rows<'_>) -> Result<(), String> {
    for row in rows.prefix("seat/") {
        match rows.before(&row.key) {
            Some(sold) if sold.value != row.value => {
                return Err(format!(
                    "{:?} was {:?}'s, and is {:?}'s",
                    row.key, sold.value, row.value
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The lock is free in the end.
async fn the_desk_is_free(host: Host) -> Result<(), String> {
    let session = host.open_session().await.map_err(|error| error.to_string())?;
    let guard = session.mutex("desk").lock().await.map_err(|error| error.to_string())?;
    guard.release().await.map(drop).map_err(|error| error.to_string())
}

fn main() {
    let is_careful = !std::env::args().any(|word| word == "careless");
    let scenario = Scenario::new(move |host| shop(host, is_careful))
        .always("SOLD-ONCE", sold_once)
        .finally(the_desk_is_free)
        .at_least("sold", 500);
    // The bug shows only in seeds that pause a process at the wrong moment, so the careless shop gets more seeds.
    let reports = scenario.run_all(1..=if is_careful { 20 } else { 300 });
    let sum = |what| reports.iter().filter_map(|report| report.counts.get(what)).sum::<u64>();
    let crashes: u64 = reports.iter().map(|report| report.crashes).sum();
    println!(
        "{} seeds, {crashes} crashes: {} seats sold, {} sales undone in time, none sold twice",
        reports.len(),
        sum("sold"),
        sum("not sold"),
    );
}
