//! A test harness that runs real processes, breaks them, and checks what they kept.
//!
//! A node has its own process, with a real data directory and real sockets on loopback. It reads orders from its
//! standard input and answers on its standard output, one per line ([`wire`]). There are two kinds of tests.
//!
//! **Runs** (`bowline-jepsen run`, `all`, `matrix`): the clients of a [`workload`] make calls, a [`nemesis`] injects
//! faults, checkers check the history, and a [`report`] is written.
//!
//! ```text
//!   Workload ─▶ Caller ─▶ Fleet ══ stdin/stdout ══ node ◀── doors: disk and clock faults
//!      │          │         ▲                       ║
//!      ▼          ▼         │ kill, pause, start   proxy ◀── links: cut, slow, lossy
//!    Books     Ledger    Nemesis ───────────────────╨──────────┘
//!      └─▶ judge   └─▶ progress, plots
//! ```
//!
//! **Crash tests** (`jepsen/tests`): a node kills itself at the n-th hit of a named point of its own code, so that
//! the crash happens at the most critical steps; or it loses power, or its disk is full. They use the same fleet,
//! with a simple load of writes.
//!
//! ```text
//!   Load ──write──▶ Fleet ══ stdin/stdout ══ jepsen-node ── Node ── log
//!     │               ▲                          ╳ SIGKILL, from inside or outside
//!     ▼               │ restart
//!   History ◀─rows─ Cluster
//!     └─▶ judge: acknowledged writes once, unknown ones at most once, nothing else
//! ```
//!
//! Members may also be servers (`bowline serve`), whose clients use the etcd protocol: [`over`] makes the choice and
//! lists what only one of the two supports.
//!
//! Data directories may be on separate file systems ([`volume`]) that can lose power or fill up.
//!
//! In addition to the public API, this crate uses the hidden module `env` of the library, which has the environment
//! traits and the names of the crash points, and `mutant` with the feature `mutants`. It uses no other internals.

/// Protocol messages and clients, generated from the same files as those of the server.
#[path = "../../src/cli/src/generated/mod.rs"]
mod generated;

pub mod client;
pub mod driver;
pub mod fault_injection;
pub mod slots;

pub mod calls;
pub mod moment;
pub mod ports;
pub mod process;
pub mod wire;

pub mod over;
mod server;

pub mod fleet;
pub mod links;
pub mod proxy;
pub mod volume;

pub mod cluster;
pub mod history;
pub mod load;

pub mod nemesis;

pub mod caller;
pub mod ledger;
pub mod matrix;
pub mod progress;
pub mod report;
pub mod run;
pub mod series;
mod verdict;
pub mod workload;

pub mod dice;
pub mod patience;

pub use cluster::Cluster;
pub use dice::{Dice, number_in};
pub use history::{Fate, History, Verdict};
pub use load::Load;
pub use over::{Over, Programs};
pub use process::{Death, HarnessError, Process};
pub use volume::{Medium, Switch, Volumes};
pub use wire::{Answer, Order, Row, Rows};
