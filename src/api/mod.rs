//! The API for programs that embed Bowline. A [`Node`] is one member of the cluster, and a
//! [`Client`] reads, writes and watches through it. Leases and [`Session`]s tie the existence of
//! keys to their owner.
//!
//! A call is a builder and does nothing until it is awaited or passed to [`Blocking::block`]:
//! `kv.put("k", "v").prev_kv().await`. Every call except a backup has a deadline. The default is
//! [`Config::call_deadline`]. Dropping the future of a call stops the wait, but does not cancel the
//! operation: a put whose future was dropped may still be applied, at most once. Two changes that
//! are in flight at the same time may be applied in either order, even if they come from one
//! client. To order them, await the first before starting the second, or put both into one
//! transaction.

mod alarms;
mod blocking;
mod call;
mod checked;
mod client;
mod config;
mod error;
mod granted;
mod lease;
mod member_list;
mod node;
mod own_session;
mod ready;
mod scope;
mod session;
mod settings;
mod txn;
mod undo_on_drop;
mod until;
mod user_client;
mod watch;

pub use alarms::AlarmReply;
pub use blocking::Blocking;
#[cfg(any(test, feature = "sim"))]
pub(crate) use blocking::simulate;
pub use call::{DeleteCall, GetCall, PutCall, RangeCall};
pub(crate) use call::{awaited, deadline_option, forwarded_options, timeout_option};
pub(crate) use checked::StartMode;
pub use client::Client;
pub use config::{Config, ConfigError};
pub(crate) use error::stopped;
pub use error::{Effect, Error, JoinErrorKind, StartError};
pub(crate) use granted::Granted;
pub use lease::{GrantCall, Lease, LeaseInfoCall, LeaseStatus, SessionStatus};
pub use member_list::{MemberList, ParseMemberListError};
pub use node::{Node, Shutdown};
pub(crate) use own_session::OwnSession;
pub use ready::ReadyCall;
pub(crate) use scope::Scope;
pub use session::{OpenSession, ResumeSession, Session};
pub use settings::PartialConfig;
pub use txn::TxnCall;
pub(crate) use undo_on_drop::UndoOnDrop;
pub(crate) use until::{Until, after_pause, pause};
pub use user_client::UserClient;
pub use watch::{Watch, WatchCall};
