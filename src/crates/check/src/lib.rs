//! Checkers: given the calls, their times and their replies, could a correct system have produced this history?
//!
//! The checkers know nothing of Bowline. They accept histories from any source: a test of your own program,
//! or a file (`bowline check`). The checkers are deterministic, read no clock and open no files.
//!
//! ```text
//! Recorder ─┐
//! lines    ─┤
//! edn      ─┴─▶ History ─┬▶ linear::check ──────▶ Verdict: ok, violation (and why), undecided
//!                        │      ▲
//!                        │    Model: Register, MutexModel, SemaphoreModel, QueueModel, Kv, ElectionModel, or your own
//!                        ├▶ total::check
//!                        ├▶ watch::check
//!                        ├▶ intervals::holds, intervals::leases
//!                        └▶ cycles::lists, cycles::registers             page::Page shows a violation
//! ```
//!
//! | checker | checks | scales to |
//! |---|---|---|
//! | [`linear`] | any object described by a [`Model`]; [`models`] has some | hundreds of operations with high concurrency, hundreds of thousands with little |
//! | [`total`] | a key-value store whose replies contain revisions | millions of operations |
//! | [`watch`] | watch streams | millions of events |
//! | [`cycles`] | transactions on lists and registers | hundreds of thousands of transactions |
//! | [`intervals`] | locks whose holds may expire, and leases, by the clock | millions of holds |
//!
//! [`history`] and [`lines`] (or [`edn`] for Jepsen's format) define the input, [`verdict`] the result, and [`page`]
//! draws a violation.
//!
//! All checkers have the same interface:
//!
//! - The input is a [`History`] of calls and replies. Each checker has its own types for calls and replies. Types
//!   that implement [`lines::Written`] can be read from a file and written to one.
//! - The result is a [`Verdict`]. A violation is a [`Counterexample`]. It contains the broken `rule`, the indices of
//!   the `operations` that break it, and a sentence `why` that refers to an operation as `#3`. It may contain `links`,
//!   which are arrows from one operation to another. As text, a verdict also shows the calls and replies, one operation
//!   a line. The text is bounded, even if the counterexample is large.

pub mod cycles;
pub mod edn;
pub mod history;
pub mod intervals;
pub mod linear;
pub mod lines;
mod model;
pub mod models;
pub mod page;
mod table;
pub mod total;
mod value;
pub mod verdict;
pub mod watch;

#[cfg(test)]
mod tests;

pub use cycles::Level;
pub use history::{At, Begun, History, Index, Operation, Outcome, Process, Recorder};
pub use linear::Budget;
pub use model::{Model, Needs};
pub use models::{
    ElectionCall, ElectionModel, ElectionReply, Kv, KvCall, KvReply, KvState, ListAppend, ListTxn,
    MutexCall, MutexModel, MutexReply, MutexState, QueueCall, QueueModel, QueueReply, Register,
    RegisterCall, RegisterReply, RegisterTxn, Seen, SemaphoreCall, SemaphoreModel, SemaphoreReply,
    TxnStep, WriteRead,
};
pub use table::{OPERATIONS_SHOWN, OperationText};
pub use total::Total;
pub use value::Value;
pub use verdict::{Counterexample, DeadEnd, Link, Undecided, Verdict};

/// The page of the checkers. The documentation tests run its programs.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/assurance/checkers.md")]
struct Checkers;
