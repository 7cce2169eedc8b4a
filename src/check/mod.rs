//! Checkers: given what was called, when, and what came back, could a correct system have said so?
//!
//! They know nothing of Bowline and judge anybody's histories: those of your own program in a test, and those in
//! a file (`bowline check`). They read no clock, open nothing, and say the same every time.
//!
//! ```text
//! Recorder ─┐
//! lines    ─┤
//! edn      ─┴─▶ History ─┬▶ linear::check ──────▶ Verdict: ok, violation (and why), undecided
//!                        │      ▲
//!                        │    Model: Register, Mutex, Semaphore, Queue, Kv, Election, or your own
//!                        ├▶ total::check
//!                        ├▶ watch::check
//!                        ├▶ intervals::holds, intervals::leases
//!                        └▶ cycles::lists, cycles::registers             page::Page shows a violation
//! ```
//!
//! | checker | judges | of how much |
//! |---|---|---|
//! | [`linear`] | any object of which a [`Model`] says what is allowed; [`models`] has some | hundreds of operations with much at once, hundreds of thousands with little |
//! | [`total`] | a key-value store whose replies say revisions | millions of operations |
//! | [`watch`] | streams of changes | millions of events |
//! | [`cycles`] | transactions on lists and registers | hundreds of thousands of transactions |
//! | [`intervals`] | locks that can end by themselves, and leases, by the clock | millions of holds |
//!
//! Where it stands: [`history`] and its [`lines`] (or Jepsen's, [`edn`]) are what goes in, [`verdict`] what comes out, and [`page`] shows it
//! as a picture.
//!
//! All checkers have one shape, so that whoever runs them, or draws what they say, knows one thing:
//!
//! - What goes in is a [`History`] of calls and replies. Each checker says which; those that implement
//!   [`lines::Written`] can be read from a file and written to one.
//! - What comes out is a [`Verdict`]. A violation is a [`Counterexample`]: the `rule` that is broken, the
//!   `operations` that break it, by their places in the history, `why` in words that name them as `#3`, and
//!   perhaps `links`, which are arrows from one operation to another.

pub mod cycles;
pub mod edn;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub mod history;
pub mod intervals;
pub mod linear;
pub mod lines;
mod model;
pub mod models;
pub mod page;
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
    Election, ElectionCall, ElectionReply, Kv, KvCall, KvReply, KvState, ListAppend, ListTxn,
    Mutex, MutexCall, MutexReply, MutexState, Queue, QueueCall, QueueReply, Register, RegisterCall,
    RegisterReply, RegisterTxn, Seen, Semaphore, SemaphoreCall, SemaphoreReply, Step, WriteRead,
};
pub use total::Total;
pub use value::Value;
pub use verdict::{Counterexample, DeadEnd, Link, Undecided, Verdict};
