//! What a program that embeds Bowline sees: a [`Node`] that is one member of the cluster, a [`Client`]
//! that reads, writes and watches through it, leases and [`Session`]s.
//!
//! A call is built, and does nothing until it is awaited (or until [`Blocking::block`] blocks on it):
//! `kv.put("k", "v").prev_kv().await`. Every call has a deadline but a backup: its own, where
//! it can be given one, or [`Config::call_deadline`]. Dropping a call's future gives up the waiting, not the change: a
//! put whose future was dropped may still be applied, once. Of two changes that are under way at the same time either
//! may come first, also on one client: await the one before the other begins, or put both into a transaction.

mod alarms;
mod blocking;
mod call;
mod checked;
mod client;
mod config;
mod error;
mod lease;
mod node;
mod own_session;
mod ready;
mod scope;
mod session;
mod txn;
mod user_client;
mod watch;

pub use alarms::AlarmReply;
pub use blocking::Blocking;
pub use call::{DeleteCall, GetCall, PutCall, RangeCall};
pub(crate) use checked::Beginning;
pub use client::Client;
pub use config::{Config, ConfigError};
pub(crate) use error::stopped;
pub use error::{Effect, Error, JoinErrorKind, StartError};
pub use lease::{GrantCall, Lease, LeaseInfoCall, LeaseStatus, SessionStatus};
pub use node::{Node, Shutdown};
pub(crate) use own_session::OwnSession;
pub use ready::ReadyCall;
pub use session::{OpenSession, ResumeSession, Session};
pub use txn::TxnCall;
pub use user_client::UserClient;
pub use watch::{Watch, WatchCall};
