//! The cluster that a benchmark measures: starts members, sends them commands, kills them, and merges their
//! latencies.
//!
//! Each member process runs the benchmark's own program. The benchmark defines the commands of a member: see
//! [`Trade`].

mod cluster;
mod measured;
pub mod member;

pub use cluster::{Cluster, Shape};
pub use measured::{Form, Measured};
pub use member::{Plan, Trade, live, together};
