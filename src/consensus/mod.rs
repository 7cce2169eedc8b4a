//! One log on several members: raft, and everything that is known about the raft crate.
//!
//! This folder alone knows the crates `raft` and `protobuf`. It takes messages, ticks, proposals and
//! questions, and says what is to be done: what to send, what to make durable, what to apply. It knows
//! no clock, no thread, no socket, and nothing of what the entries mean.
//!
//! ```text
//!            step tick propose read_round
//!                      │
//!   peer bytes ─▶ gate ─▶ raft ─▶ turn ─┬─▶ send      messages that promise nothing new
//!                          ▲            ├─▶ persist ─▶ log ─▶ Durable ─┐
//!                          │            ├─▶ commit ──▶ machine         │
//!                          │            ├─▶ install ─▶ machine         │
//!                          │            └─▶ rounds                     │
//!                          └──────────── persisted ◀───────────────────┘
//!                                            └─▶ send  messages that waited under seal
//! ```
//!
//! Writing to disk is asynchronous: the driver goes on with heartbeats, reads and messages while the
//! log works. Three rules keep that safe.
//!
//! - A message that speaks of state is [sealed](seal) with the number of the group that carries this
//!   state to disk, and only the log's own proof opens it.
//! - A leader's messages do not wait for its own disk, but for its term to be on it. Where it is the
//!   only voter, nobody else would keep it from leading one term twice.
//! - A member campaigns only while none of its entries is on its way to the disk.
//!
//! Who the members are is part of the replicated state. An entry that changes them is judged by the
//! state machine when it is applied, and takes effect then, one change at a time.
//!
//! Invariant: no message of a peer reaches raft except through the [gate].
//!
//! Invariant: nothing here depends on anything but its inputs and one number drawn at the start, so
//! a seed replays a run. See [timeout].

mod config;
mod engine;
mod fault;
mod gate;
mod membership;
mod round;
mod snapshot;
mod status;
#[cfg(any(test, feature = "sim"))]
mod vote;

mod cache;
mod drain;
mod seal;
mod store;
mod timeout;
mod wire;

pub(crate) use config::{ConsensusConfig, ENTRY_BYTES_MAX};
pub(crate) use engine::{Consensus, Outbound};
pub(crate) use membership::member_change;
pub(crate) use round::RoundId;
pub(crate) use snapshot::{Offer, Stepped, Taken};
pub(crate) use status::{PeerState, PeerStatus, Role};
#[cfg(any(test, feature = "sim"))]
pub(crate) use vote::{Durable, Vote};

#[cfg(feature = "fuzzing")]
pub(crate) use tests::fuzz;

#[cfg(any(test, feature = "fuzzing"))]
mod tests;
