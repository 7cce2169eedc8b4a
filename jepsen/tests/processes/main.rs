//! Tests with clusters of real processes, which are killed, isolated, deprived of disk space or power, and restarted.
//! Also tests of the runner, which injects these faults and checks the results.
//!
//! All these tests are in one test binary, because they wait more than they compute and run well in parallel. Tests
//! that measure durations are in a separate binary.

mod crash;
mod faults;
mod full;
mod over_server;
mod power;
mod rolling;
mod runner;

mod beside;
mod trial;

/// The program that embeds a member.
const NODE: &str = env!("CARGO_BIN_EXE_jepsen-node");

/// The command line of the harness.
const HARNESS: &str = env!("CARGO_BIN_EXE_bowline-jepsen");
