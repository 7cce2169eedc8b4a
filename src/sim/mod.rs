//! A deterministic world: a whole cluster on one thread, with its machines and its network, driven by
//! a seed.
//!
//! The nodes are the real ones. What they stand on is simulated: [`clock`] (time, which goes on only
//! when something happens), [`disk`] (files that a power cut tears), [`rot`] (and that rot), [`net`] (messages that are lost,
//! doubled, late and overtaken), [`point`] (crashes at named places of the code), [`rng`] (all that is
//! random). [`world`] makes things happen, one after the other; [`process`] is one life of one node in
//! it; [`executor`] runs the tasks of the programs that the nodes are embedded in.
//!
//! What the programs do is [`workload`], with [`watching`], [`locking`] and [`keeping`], through [`caller`].
//! What goes wrong is the [`plan`] that a seed draws. What really happened is [`truth`], and what a request means is [`plain`]; [`judge`] holds
//! everything against them, and names what is broken, a [`Violation`]. [`run`] is one seed from beginning to end, and
//! [`trace`] is how two runs of it are compared. `docs/assurance/simulator.md` is the page for who uses it.
//!
//! Beside it stands [`quota`]: so much room and no more, on any disk, also a real one.
//!
//! Invariant: knows no thread, no socket, no file and no clock but its own.

mod cancellation;
mod minimise;
mod plan;
mod run;
mod scenario;
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
#[cfg(test)]
mod hooked;
mod net;
mod point;
mod quota;
mod rng;
mod rot;

pub use cancellation::{Break, Cancellation, Endings, LockAttemptKind, run_cancellation};
pub use disk::SimDisk;
#[cfg(test)]
pub(crate) use hooked::HookedDisk;
pub use minimise::minimise;
pub use quota::QuotaDisk;
pub use rng::Rng;
pub use run::{Failure, Report, parts_of_seed, run_seed, run_seed_without, run_steady};
pub use scenario::{Host, Rows, Scenario};
pub use violation::Violation;
