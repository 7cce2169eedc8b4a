//! Bowline, etcd and Redis compared: on this machine, in one run, under the same load.
//!
//! ```sh
//! cargo bench -p bowline-cli --bench versus                # all rows, some ten minutes
//! cargo bench -p bowline-cli --bench versus -- --quick     # every row briefly, to check that it runs
//! cargo bench -p bowline-cli --bench versus -- --only put --rounds 9 --seconds 3 --out results
//! cargo bench -p bowline-cli --bench versus -- --etcd /path/to/etcd --redis /path/to/redis-server
//! ```
//!
//! The systems are Bowline as a library in three processes, three `bowline serve`, three etcd and one Redis with
//! `appendfsync always`. Systems that are not installed are skipped. The benchmark prints a table, and writes
//! `versus.json` and `versus.html`. `docs/performance.md` explains the rows.
//!
//! The code is in `bowline_testkit::versus`, so that tests can call it.

#![allow(clippy::print_stdout, reason = "a benchmark reports its errors")]

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // The data must be on the same disk as the project, because the default directory may be in memory.
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    match bowline_testkit::versus::run(&args, tmp, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("versus: {why}");
            ExitCode::FAILURE
        }
    }
}
