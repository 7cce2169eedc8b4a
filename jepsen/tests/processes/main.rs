//! Real processes, whole clusters of them: killed, cut off, filled up, without power, restarted; and the runner that does
//! such things and judges what came of it.
//!
//! One program: these tests wait more than they compute, so that they do well side by side. What measures how long something
//! takes is a program beside.

mod crash;
mod faults;
mod full;
mod over_server;
mod power;
mod rolling;
mod runner;

mod beside;
mod trial;

/// A member, as a program that embeds it.
const NODE: &str = env!("CARGO_BIN_EXE_jepsen-node");

/// The harness' command line.
const HARNESS: &str = env!("CARGO_BIN_EXE_bowline-jepsen");
