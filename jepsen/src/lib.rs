//! The harness that runs real processes, breaks them, and judges what they kept.
//!
//! A node is a process of its own, with a real data directory and real sockets on loopback. It takes orders on its
//! standard input and answers on its standard output, a line each ([`wire`]). There are two ways to use it.
//!
//! **Runs** (`bowline-jepsen run`, `all`, `matrix`): clients of a [`workload`] ask, a [`nemesis`] breaks, checkers judge,
//! a [`report`] is left.
//!
//! ```text
//!   Workload ─▶ Caller ─▶ Fleet ══ stdin/stdout ══ node ◀── doors: its disk, its clock
//!      │          │         ▲                       ║
//!      ▼          ▼         │ kill, pause, start   proxy ◀── links: cut, slow, lossy
//!    Books     Ledger    Nemesis ───────────────────╨──────────┘
//!      └─▶ judge   └─▶ progress, plots
//! ```
//!
//! **Crash tests** (`jepsen/tests`): a node is told to kill itself at the n-th reach of a named point of its own code, which
//! is how a crash is put where it hurts most, or loses its power, or its disk is full. The same fleet, with a load that
//! is one write after the other.
//!
//! ```text
//!   Load ──write──▶ Fleet ══ stdin/stdout ══ jepsen-node ── Node ── log
//!     │               ▲                          ╳ SIGKILL, from inside or outside
//!     ▼               │ start again
//!   History ◀─rows─ Cluster
//!     └─▶ judge: acknowledged writes once, unknown ones at most once, nothing else
//! ```
//!
//! Members may be servers instead (`bowline serve`), and clients speak etcd's protocol with them: [`over`] says which, and
//! what can be done one way only.
//!
//! Data directories may stand on file systems of their own ([`volume`]), which lose their power or fill up.
//!
//! Beside the library's public API this uses its hidden `env`, the doors to the world with the names of the crash points, and
//! `mutant` with the feature `mutants`. Nothing else of its inside is known here.

/// The protocol's messages and clients: the server's own.
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
