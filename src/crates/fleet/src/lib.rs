//! Runs Bowline nodes as processes of their own, and sends calls to them.
//!
//! The test harness (`bowline-jepsen`) and `bowline-demo` use this crate. The parent starts processes, kills, pauses
//! and resumes them. Each process embeds a node. It reads orders from its standard input and writes answers to its
//! standard output, one per line ([`wire`]).
//!
//! ```text
//!   parent: Process ══ orders, answers ══ node::serve ── client ── Node
//!             │                                            └─ slots: locks, leaderships, watches
//!             └─ SIGKILL, SIGSTOP, SIGCONT
//! ```
//!
//! In addition to the public API, this crate uses the library's hidden module `env`, for the names of crash points.

pub mod calls;
pub mod wire;

pub mod client;
pub mod node;
pub mod slots;

pub mod ports;
pub mod process;
pub mod signals;

pub mod dice;
pub mod moment;
pub mod patience;

pub use dice::Dice;
pub use process::{HarnessError, Process};
pub use signals::Signals;
pub use wire::{Answer, Message, Order};
