//! Measures the cost of locks, as seen by a program that embeds a member: three processes on loopback, whose logs are
//! synced on a majority of the disks before anything is acknowledged.
//!
//! ```sh
//! cargo bench --bench locks                    # all rows; some minutes
//! cargo bench --bench locks -- --quick         # every row for a moment, to check that it runs
//! cargo bench --bench locks -- --only "inside a process" --seconds 5 --json
//! cargo bench --bench locks -- --only uncontended --in-process
//! ```
//!
//! `--only` selects rows by a part of their names. `--waiters`, `--names` and `--held` limit the number of waiters,
//! names and held locks. `--long-seconds` sets the duration of the rows about shares and idle locks, `--times` the
//! number of holders that are killed, and `--ttl-ms` the TTL of their sessions. Callers run inside members, in the
//! leader's process unless a row says otherwise. `docs/performance.md` has results.

#![allow(clippy::print_stdout, reason = "a benchmark prints its report")]

mod bench;
mod deaths;
mod guarded;
mod handoff;
mod idle;
mod inside;
mod names;
mod report;
mod shares;
mod site;

use bench::{Bench, Options};
use bowline_testkit::crew::{Plan, live};
use site::Site;

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == Plan::WORD) {
        let plan = Plan::from_args(&args).ok_or("a member's arguments are not its own")?;
        live::<Site>(&plan, std::io::stdin().lock(), std::io::stdout().lock());
        return Ok(());
    }
    let options = Options::from_args(&args)?;
    let mut bench = Bench::new(options);
    names::uncontended(&mut bench)?;
    handoff::drain(&mut bench)?;
    handoff::again(&mut bench)?;
    inside::queue(&mut bench)?;
    guarded::cost(&mut bench)?;
    shares::ledgers(&mut bench)?;
    // The following rows need separate clusters.
    bench.end_cluster();
    names::many(&mut bench)?;
    idle::cost(&mut bench)?;
    deaths::next_grants(&mut bench)
}
