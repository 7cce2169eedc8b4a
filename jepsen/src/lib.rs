//! A test harness that runs nodes as real processes, injects faults, and checks that no acknowledged data was lost.
//!
//! Each node runs in its own process, with a real data directory and real sockets on loopback. The process reads
//! orders from its standard input and writes replies to its standard output, one per line ([`wire`]). The harness
//! makes two kinds of tests: runs and crash tests.
//!
//! **Runs** (`bowline-jepsen run`, `all`, `matrix`): the clients of a [`workload`] make calls, a [`nemesis`] injects
//! faults, checkers check the history, and a [`report`] is written.
//!
//! ```text
//!   Workload ─▶ Caller ─▶ Fleet ══ stdin/stdout ══ node ◀── `fault_injection`: disk and clock faults
//!      │          │         ▲                       ║
//!      ▼          ▼         │ kill, pause, start   proxy ◀── `links`: cut, slow, lossy
//!    Books     Ledger    Nemesis ───────────────────╨──────────┘
//!      └─▶ check   └─▶ progress, plots
//! ```
//!
//! **Crash tests** (`jepsen/tests`): a node kills itself at the n-th hit of a named point of its own code. Other crash
//! tests cut the power of a node or fill its disk. All crash tests use the same fleet as the runs, with a simple load
//! of writes.
//!
//! ```text
//!   Load ──write──▶ Fleet ══ stdin/stdout ══ jepsen-node ── Node ── log
//!     │               ▲                          ╳ SIGKILL, from inside or outside
//!     ▼               │ restart
//!   History ◀─rows─ Cluster
//!     └─▶ check: acknowledged writes once, unknown writes at most once, nothing else
//! ```
//!
//! The members can also be servers (`bowline serve`). Their clients then use the etcd protocol. The module [`over`]
//! selects between nodes and servers, and lists the features that only one of the two supports.
//!
//! Data directories can be on separate file systems ([`volume`]), which can lose power or fill up.
//!
//! The crate `bowline-fleet` runs the processes and defines the orders and calls, because `bowline-demo` uses them too.
//!
//! In addition to the public API, this crate uses two hidden modules of the library: `env`, with the environment
//! traits and the names of the crash points, and `mutant`, with `--cfg bowline_mutants`. The crate uses no other
//! internals.

pub mod driver;
pub mod fault_injection;

pub use bowline_fleet::{calls, client, dice, moment, patience, process, slots, wire};

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

pub use cluster::Cluster;
pub use dice::{Dice, number_in};
pub use history::{Fate, History, Verdict};
pub use load::Load;
pub use over::{Over, Programs};
pub use process::{Death, HarnessError, Process};
pub use volume::{Medium, Switch, Volumes};
pub use wire::{Answer, Order, Row, Rows};
