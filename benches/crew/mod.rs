//! The members that a benchmark measures: how they are started, told what to do, asked how they stand,
//! killed; and latencies, which are counted by them and added up by whoever asked.
//!
//! Each process is the benchmark's own program again. What a member does for its living is the
//! benchmark's: see [`Trade`].

mod cluster;
mod measured;
pub(crate) mod member;

pub(crate) use cluster::{Cluster, Shape};
pub(crate) use measured::{Form, Measured};
pub(crate) use member::{Plan, Trade, live, together};
