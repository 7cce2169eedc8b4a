//! A client for etcd's v3 protocol, for servers of Bowline and of etcd. Its build needs no `protoc`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use bowline_client::{Client, Error, Session};
//!
//! # async fn program() -> Result<(), Error> {
//! let client = Client::connect(["http://127.0.0.1:2379"]).await?;
//! client.put("greeting", "hello").await?;
//! let row = client.get("greeting").await?;
//! assert_eq!(row.expect("it was put").value, "hello");
//!
//! // Holds a lock while the work runs. If the session is lost, the work is dropped.
//! let session = Session::open(&client, Duration::from_secs(10)).await?;
//! let work = async {
//!     let lock = session.lock("nightly").await?;
//!     // ... the work, with `lock.compare()` in its transactions ...
//!     lock.release(&client).await
//! };
//! session.run(work).await??;
//! session.close().await
//! # }
//! ```
//!
//! - [`Client`] calls servers. It moves to another endpoint if a server fails, and repeats a call only if the call
//!   certainly was not applied or may be applied twice without harm.
//! - [`Error::effect`] reports whether a failed call changed anything.
//! - [`RangeStream`] reads a large range in chunks of one revision.
//! - [`Watch`] reconnects and continues at the right revision.
//! - [`Session`] keeps a lease alive, and reports its loss before the server can end it.
//! - [`Lock`] is a lock in the layout of etcd's `concurrency` package and of Bowline's locks.
//! - [`Link`] has all other services of the protocol; [`Client::call`] runs one call on it.

mod connect;
mod entry;
mod error;
mod into_bytes;
mod kv;
mod lock;
mod options;
mod ordered;
mod range_stream;
mod session;
mod tls;
mod verifier;
mod watch;

pub use bowline_proto as proto;
pub use proto::mvccpb::{Event, KeyValue};

pub use connect::{CallKind, Client, Link, Stamp, Wire, is_unix_socket};
pub use entry::{EntryValue, LOCK_MARK, LockMode};
pub use error::{Effect, Error, StatusMeaning, root_cause};
pub use into_bytes::IntoBytes;
pub use kv::prefix_end;
pub use lock::{Held, Lock, NotHeld, QueueEntry, queue_entries};
pub use options::{Login, Options, Tls};
pub use ordered::is_ordered;
pub use range_stream::RangeStream;
pub use session::{BootTime, Session, renewal};
pub use watch::Watch;
