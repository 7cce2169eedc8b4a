//! The consensus: one replicated log on several members, based on the raft crate.
//!
//! Only this folder uses the crates `raft` and `protobuf`. It takes messages, ticks, proposals and
//! read rounds, and returns the work to do: messages to send, groups to persist, entries to apply.
//! It uses no clock, no thread and no socket, and does not interpret the entries.
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
//!                                            └─▶ send  messages that were sealed until then
//! ```
//!
//! Disk writes are asynchronous: the driver continues with heartbeats, reads and messages while the
//! log writes. Three rules keep this safe:
//!
//! - A message that depends on state is [sealed](seal) with the number of the group that makes this
//!   state durable, and only the log's proof opens it.
//! - A leader's messages do not wait until its entries are durable, but they wait until its term
//!   is. Otherwise a single voter could lead one term twice.
//! - A member campaigns only while none of its entries is on its way to the disk.
//!
//! The membership is part of the replicated state. The state machine validates a membership change
//! when it applies it, and the change takes effect then. Only one change is in progress at a time.
//!
//! Invariant: every message of a peer passes the [gate] before it reaches raft.
//!
//! Invariant: everything here depends only on its inputs and one random number drawn at the start,
//! so a seed replays a run. See [timeout].

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
pub(crate) use status::{PeerState, PeerStatus, RaftRole};
#[cfg(any(test, feature = "sim"))]
pub(crate) use vote::{Durable, Vote};

#[cfg(feature = "fuzzing")]
pub(crate) use tests::fuzz;

#[cfg(any(test, feature = "fuzzing"))]
mod tests;
