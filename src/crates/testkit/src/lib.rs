//! Code that several tests and benchmarks share. This crate is not published.
//!
//! Feature `process`: [`process`] runs servers of Bowline and etcd as processes.
//!
//! Feature `crew`: [`crew`] runs the members that a benchmark measures.
//!
//! Feature `served`: [`served`] runs clusters of `bowline serve` or etcd, and the clients that measure them.
//!
//! Feature `versus`: [`versus`] compares Bowline, etcd and Redis in one benchmark.
//!
//! Feature `model`: [`naive`] is a simple model of the state machine, [`subject`] the interface that both have, and
//! [`histories`] generates requests for them. [`fuzz`] runs fuzz targets as tests, and has those targets that need
//! more than the library.

#![allow(missing_docs, reason = "for tests only")]

#[cfg(feature = "crew")]
pub mod crew;
#[cfg(feature = "model")]
pub mod fuzz;
#[cfg(feature = "model")]
pub mod histories;
#[cfg(feature = "model")]
pub mod naive;
pub mod ports;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "served")]
pub mod served;
#[cfg(feature = "model")]
pub mod subject;
#[cfg(feature = "versus")]
pub mod versus;
