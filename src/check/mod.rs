//! Checkers: given what was called, when, and what came back, could a correct system have said so?
//!
//! They know nothing of Bowline and judge anybody's histories: those of your own program in a test, and those in
//! a file (`bowline check`). They read no clock, open nothing, and say the same every time.
//!
//! ```text
//! Recorder ─┐
//! lines    ─┴─▶ History ─▶ linear::check ─▶ Verdict: ok, violation (and why), undecided
//!                              ▲
//!                            Model: Register, Mutex, Semaphore, Queue, Kv, or your own
//! ```
//!
//! Where it stands: [`history`] and its [`lines`] are what goes in, [`verdict`] what comes out; [`linear`] judges
//! by a [`Model`], of which [`models`] has some.

pub mod history;
pub mod linear;
pub mod lines;
mod model;
pub mod models;
mod value;
pub mod verdict;

#[cfg(test)]
mod tests;

pub use history::{At, Begun, History, Index, Operation, Outcome, Process, Recorder};
pub use linear::Budget;
pub use model::{Model, Needs};
pub use models::{
    Kv, KvCall, KvReply, KvState, Mutex, MutexCall, MutexReply, MutexState, Queue, QueueCall,
    QueueReply, Register, RegisterCall, RegisterReply, Semaphore, SemaphoreCall, SemaphoreReply,
};
pub use value::Value;
pub use verdict::{Counterexample, Undecided, Verdict};
