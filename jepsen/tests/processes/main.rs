//! Tests with whole clusters of real processes: killed, isolated, full, without power, restarted; and tests of the
//! runner that does this and checks the results.
//!
//! They are one program, because they wait more than they compute and run well in parallel. Tests that measure
//! durations are in a separate program.

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
