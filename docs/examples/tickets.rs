//! A program of your own in the simulated world: a shop that sells seats, on every node, and must sell none
//! twice. `cargo run --release --example tickets --features sim`, and with `-- careless` the same shop with a
//! mistake, which the simulated world finds, makes small and explains.
//!
//! The shop takes a lock, looks which seat is the next one, waits until the customer has paid, and writes the
//! sale. The careless one writes it with a plain put: between the look and the put the process may have
//! stood still, lost the lock, and somebody else have sold the seat. The careful one writes it under guard.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use bowline::sim::{Host, Rows, Scenario};
use bowline::{KeyRange, Op};

/// Runs on every node, from each start of its process to its end.
async fn shop(host: Host, is_careful: bool) {
    while !host.is_closing() {
        host.sleep(Duration::from_millis(host.random(400))).await;
        // Whatever fails, the next customer comes.
        let Ok(session) = host.session().await else { continue };
        let wish = session.mutex("desk").lock().deadline(Duration::from_secs(5));
        let Ok(guard) = wish.await else { continue };
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

/// A seat stays with whoever has bought it. Looked at after every change of the store.
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

/// The desk is not left behind locked.
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
    // A mistake takes a seed in which somebody stands still just then: the first one ends it.
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
