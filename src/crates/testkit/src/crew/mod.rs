//! The cluster that a benchmark measures: starts members, sends them commands, kills them, and merges their
//! latencies.
//!
//! Each member process runs the benchmark's own program. The benchmark defines the commands of a member: see
//! [`Trade`]. [`site`] has the workloads that several benchmarks share.

mod cluster;
mod figures;
mod measured;
pub mod member;
pub mod site;
mod trace;

pub use cluster::{Cluster, Shape};
pub use figures::{Sample, Spread};
pub use measured::{Form, Measured};
pub use member::{Plan, Trade, live, resident_bytes, together};
pub use trace::Trace;
