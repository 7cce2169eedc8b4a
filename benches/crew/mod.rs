//! The cluster that a benchmark measures: starts members, sends them commands, kills them, and merges their
//! latencies.
//!
//! Each member process runs the benchmark's own program. The benchmark defines the commands of a member: see
//! [`Trade`].

mod cluster;
mod measured;
pub(crate) mod member;

pub(crate) use cluster::{Cluster, Shape};
pub(crate) use measured::{Form, Measured};
pub(crate) use member::{Plan, Trade, live, together};
