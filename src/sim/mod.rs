//! A deterministic simulator: runs your program on every node of a cluster, under faults that a seed draws.
//!
//! A [`Scenario`] is a program with its invariants. The program gets a [`Host`] in place of a [`Node`](crate::Node). It
//! starts on every node, whenever the process of the node starts. Your invariants are checked whenever the store changes.
//!
//! ```
//! use bowline::Op;
//! use bowline::sim::{FaultTarget, Host, Scenario, ScriptedFault};
//! use std::time::Duration;
//!
//! async fn count_up(host: Host) {
//!     while !host.is_closing() {
//!         // Sleep first: on a stopped node every call fails at once.
//!         host.sleep(Duration::from_millis(200)).await;
//!         let Ok(session) = host.session().await else { continue };
//!         let Ok(guard) = session.mutex("counter").lock().await else { continue };
//!         if let Ok(row) = host.client().get("count").await {
//!             let count = row.map_or(0, |row| row.parse::<u64>().unwrap());
//!             host.sleep(Duration::from_millis(host.random(1_000))).await;
//!             let put = Op::put("count", (count + 1).to_string());
//!             if guard.txn().then(put).commit().await.is_ok() {
//!                 host.count("counted up");
//!             }
//!         }
//!         drop(guard.release().await);
//!     }
//! }
//!
//! let kill = ScriptedFault::Kill { who: FaultTarget::Leader, down: Duration::from_secs(2) };
//! Scenario::new(count_up)
//!     .always("ONE-BY-ONE", |rows| {
//!         let Some(row) = rows.get("count") else { return Ok(()) };
//!         let (count, puts) = (row.parse::<u64>().unwrap(), row.version);
//!         if count == puts { Ok(()) } else { Err(format!("{count} after {puts} puts")) }
//!     })
//!     .at(Duration::from_secs(10), kill) // in addition to the faults that each seed draws
//!     .at_least("counted up", 20)
//!     .run_all(1..=2);
//! ```
//!
//! [`Scenario`] describes the phases of a run. If a seed fails, `run_all` minimizes the failure and panics. With
//! `host.client().put(..)` in place of `guard.txn().then(put)`, the program has a bug that seed 15 finds. The message
//! contains the end of the timeline (here shortened), the broken invariant, and the faults that the failure needs:
//!
//! ```text
//!  37.679939 fault: PauseAll { time: 3.428674473s }
//!  37.679939 n1 stands still for 3.129586256s
//!  37.679939 n2 stands still for 3.251321207s
//!  ...
//! seed 15 at 41.770779 s: ONE-BY-ONE is broken: at r119: 33 after 34 puts
//! of its faults it needs:
//!     0    6.85 s Blackout { down: 371.697416ms }
//!  ...
//!    18   10.00 s scripted Kill { who: Leader, down: 2s }
//! run it again with run_without(15, &[11, 12, 13, 14, 15, 16, 19])
//! ```
//!
//! The numbers are those of [`Scenario::parts`]. Faults of [`Scenario::at`] are listed as `scripted`. [`Host::note`]
//! writes a line of your program into the timeline.
//!
//! The invariant is one of Bowline's (`docs/assurance/invariants.md`), one of your own, or `PANIC` if your program or
//! the library has panicked. `docs/assurance/simulator.md` is the guide for users.
//! `bowline::testing::Cluster` tests a program with real nodes in real time instead.
//!
//! To check the replies that your program gets, record its calls: [`Scenario::with_state`] has an example with a
//! recorder and a checker of the crate `bowline-check`.
//!
//! # Faults
//!
//! Each seed draws faults of about two thirds of these kinds. [`Scenario::parts`] lists those of a seed.
//!
//! - Processes and machines: `Kill`, `PowerLoss`, `Blackout` (all machines lose power), `PointCrash` (power loss at a
//!   named point of the code), `Pause`, `PauseAll`, `PauseThenIsolation`, `ResumePauseThenIsolation` (while a session is
//!   resumed), `Stop` (orderly shutdown), `Rolling` (a restart of all nodes, one after the other).
//! - Network: `Partition`, `Clog` (a link delays messages), `Reset` (connections are reset and refused). Most seeds also
//!   lose, repeat, delay, reorder or damage single messages.
//! - Disks: `SlowDisk`, `SlowSnapshots`, `DiskError` (a failed sync or write), `Full`, `Rot` (a damaged log or snapshot).
//! - Clocks: each clock starts at a random value, with a rate between 0.901 and 1.099 of true time, which is within the
//!   drift bound of 10 % ([`Config::drift_percent`](crate::Config::drift_percent)). `ClockDrift` changes all rates.
//! - Leadership: `Transfer`, `ReturningLeader`.
//! - Members, in half of the seeds: `Join`, `Promote`, `Replace`, `Remove`.
//!
//! # What a program may do
//!
//! - It must sleep ([`Host::sleep`]) before it retries a call. Simulated time advances only while all programs wait. A
//!   loop without a sleep, for example of calls on a stopped node, ends the run with the violation `C-SPIN`.
//! - It must not use `tokio::spawn` or `tokio::time`, which need a runtime. Use [`Host::spawn`] and [`Host::sleep`].
//!   `tokio::join!`, channels and locks of tokio work, as does `tokio::select!` with `biased`.
//! - It must `.await` calls: [`block`](crate::Blocking::block) panics.
//! - It must take time and randomness from the host ([`Host::now`], [`Host::random`]) and start no threads. Otherwise a
//!   seed does not repeat its run.
//!
//! # Speed
//!
//! Without optimization, a run takes several times as long. Your `Cargo.toml` can optimize the library in tests:
//!
//! ```toml
//! [profile.dev.package]
//! bowline = { opt-level = 1 }
//! bowline-raft = { opt-level = 2 }
//! ```
//!
//! # Inside
//!
//! The nodes run the production code. Their environment is simulated, in modules of this folder: `clock` (time, which
//! advances only from event to event), `disk` (files with partial writes after a power cut), `rot` (bit rot), `net`
//! (message loss, duplication, delay and reordering), `point` (crashes at named points of the code), `rng` (all
//! randomness). `world` runs the events in order; `process` is one incarnation of one node; `executor` runs the tasks of
//! the programs in which the nodes are embedded.
//!
//! `workload` defines the simulator's own programs, with `watching`, `locking` and `keeping`; they call their node through
//! `caller`. [`run_seed`] runs them. The seed draws a `plan` of faults. `truth` is the real history, and `plain` defines
//! the meaning of a request. `judge` checks the nodes against both and reports a broken invariant as a [`Violation`].
//! `run` runs one seed from start to end, and `trace` compares two runs of it.
//!
//! [`QuotaDisk`] wraps any disk, real or simulated, with a size limit.
//!
//! Invariant: uses no thread, socket, file or clock other than its own.

mod cancellation;
mod host;
mod member_config;
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
pub use host::Host;
pub use minimise::minimise;
pub use quota::QuotaDisk;
pub use rng::Rng;
pub use run::{Failure, Report, parts_of_seed, run_seed, run_seed_without, run_steady};
pub use scenario::{Rows, Scenario};
pub use script::{FaultTarget, ScriptedFault};
pub use violation::Violation;
