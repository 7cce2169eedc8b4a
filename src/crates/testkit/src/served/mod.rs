//! Clusters of `bowline serve` or etcd, and the clients that measure them by etcd's protocol.

mod bed;
mod clients;
mod connection;

pub use bed::{Bed, System};
pub use clients::{Load, Work, fill, next_write, run, trace};
