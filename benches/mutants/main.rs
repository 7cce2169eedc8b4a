//! Determines which seed of the simulator detects which mutant (`bowline::mutant`), and so proves that the checks of
//! the simulator can fail.
//!
//! ```text
//! export RUSTFLAGS="--cfg bowline_mutants" CARGO_TARGET_DIR=target/mutants
//! cargo bench --bench mutants                                 all of them
//! BOWLINE_MUTANT=M07,B03 cargo bench --bench mutants          these
//! BOWLINE_MUTANT=M07 BOWLINE_SEED=10 cargo bench ..           one seed with one of them, with its trace
//! BOWLINE_MUTANT=none BOWLINE_SEEDS=100 cargo bench ..        no mutant: every seed must pass
//! ```
//!
//! Each mutant runs over the seeds from 1 on all cores, until a seed fails or `BOWLINE_SEEDS`
//! (default 2,000) seeds have passed. Then the mutant's row in `docs/assurance/mutants.md` is
//! replaced. The rows of the other mutants stay, so that an interrupted run loses no results. Each
//! mutant runs in a separate process, because it may corrupt that process. The benchmark fails if
//! no seed detects one of the mutants.

#![allow(clippy::print_stdout, reason = "a benchmark prints its report")]
#![allow(clippy::exit, reason = "a seed in an endless loop cannot be ended otherwise")]

#[cfg(bowline_mutants)]
mod search;

#[cfg(bowline_mutants)]
fn main() -> std::process::ExitCode {
    search::main()
}

#[cfg(not(bowline_mutants))]
fn main() {
    println!("built without mutants: set RUSTFLAGS=\"--cfg bowline_mutants\"");
}
