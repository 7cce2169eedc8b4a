//! Coordination among processes other than locks.
//!
//! ```text
//!   cell, counter, sequence, conditional   one value: a register, a counter, numbered keys, compare-and-set
//!   latch, barrier, double_barrier         waiting for each other
//!   group, run_once, cached                members, one-time work, a local view of a prefix
//!   wait_until                             waits until stored data meets a condition
//!   prefix_watch                           a stream over a key prefix: a snapshot, then every change
//!   undo_on_drop                           a change that is undone if its caller stops waiting
//!   cas_branches                           a transaction with several alternatives
//! ```

pub(crate) mod barrier;
pub(crate) mod cached;
pub(crate) mod cas_branches;
pub(crate) mod cell;
pub(crate) mod conditional;
pub(crate) mod counter;
pub(crate) mod double_barrier;
pub(crate) mod group;
pub(crate) mod latch;
pub(crate) mod prefix_watch;
pub(crate) mod run_once;
pub(crate) mod sequence;
pub(crate) mod undo_on_drop;
pub(crate) mod wait_until;
