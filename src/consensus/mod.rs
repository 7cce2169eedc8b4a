//! The consensus: one replicated log on several members, based on the raft crate.
//!
//! Only this folder uses the crates `raft` and `protobuf`. The consensus takes messages, ticks,
//! proposals and read rounds as input. The output is the work to do: messages to send, groups to
//! persist, and entries to apply. The consensus uses no clock, no thread and no socket, and does
//! not interpret the entries.
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
//! Disk writes are asynchronous: while the log writes, the driver thread continues to handle
//! heartbeats, reads and messages. Three rules keep this safe:
//!
//! - A message that depends on state that is not durable yet is [sealed](seal). A sealed message
//!   cannot be sent before the log has proven that the writes with this state are durable.
//! - A leader may send its entries before they are durable on its own disk. But a new leader sends
//!   nothing before its term is durable, because a single voter that crashes could otherwise become
//!   the leader of the same term twice.
//! - A member starts a campaign only when all its entries are durable.
//!
//! The membership is part of the replicated state. The state machine validates a membership change
//! when it applies it, and the change takes effect then. Only one change is in progress at a time.
//!
//! Invariant: every message of a peer passes the [gate] before it reaches raft.
//!
//! Invariant: the behavior depends only on the inputs and on one random number that is drawn at the
//! start. Therefore a simulated run can be replayed from its seed. See [timeout].

mod config;
mod contacts;
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
pub(crate) use vote::{Durable, TermStatement, Vote};

#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) use tests::fuzz;

#[cfg(any(test, fuzzing))]
mod tests;
