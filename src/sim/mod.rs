//! A deterministic simulator: a whole cluster on one thread, with its machines and network, driven by a seed.
//!
//! The nodes run the production code. Their environment is simulated: [`clock`] (time, which advances only from event
//! to event), [`disk`] (files with partial writes after a power cut), [`rot`] (bit rot), [`net`] (message loss,
//! duplication, delay and reordering), [`point`] (crashes at named points of the code), [`rng`] (all randomness).
//! [`world`] runs the events in order; [`process`] is one incarnation of one node; [`executor`] runs the tasks of the
//! programs in which the nodes are embedded.
//!
//! [`workload`] defines the programs, with [`watching`], [`locking`] and [`keeping`]; they call their node through
//! [`caller`]. The seed draws a [`plan`] of faults. [`truth`] is the real history, and [`plain`] defines the meaning of
//! a request. [`judge`] checks the nodes against both and reports a broken invariant as a [`Violation`]. [`run`] runs
//! one seed from start to end, and [`trace`] compares two runs of it. `docs/assurance/simulator.md` is the guide for
//! users.
//!
//! [`quota`] wraps any disk, real or simulated, with a size limit.
//!
//! Invariant: uses no thread, socket, file or clock other than its own.

mod cancellation;
mod minimise;
mod plan;
mod run;
mod scenario;
mod script;
#[cfg(test)]
mod stories;

mod caller;
mod keeping;
mod locking;
mod watching;
mod workload;

mod judge;
#[doc(hidden)]
pub mod plain;
mod trace;
mod truth;
mod violation;

mod process;
mod world;

mod clock;
mod disk;
mod executor;
mod net;
mod point;
mod quota;
mod rng;
mod rot;

pub use cancellation::{Break, Cancellation, Endings, LockAttemptKind, run_cancellation};
pub use disk::SimDisk;
pub use minimise::minimise;
pub use quota::QuotaDisk;
pub use rng::Rng;
pub use run::{Failure, Report, parts_of_seed, run_seed, run_seed_without, run_steady};
pub use scenario::{Host, Rows, Scenario};
pub use script::{FaultTarget, ScriptedFault};
pub use violation::Violation;
