#![doc = include_str!("../README.md")]
//!
//! # In async programs
//!
//! Everything that is `.block()`ed in the examples is a call that can be awaited. [`Blocking::block`] blocks its
//! thread: it is for programs without async, and must not be called on an executor's threads.
//!
//! ```
//! use bowline::{Config, Node};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #   let dir = tempfile::tempdir()?;
//! #   let data = dir.path();
//!     let node = Node::start(Config::new(data, "n1")).await?;
//!     let session = node.session().await?;
//!     let mutex = session.mutex("locks/orders/42");
//!     let task = tokio::spawn(async move {
//!         let guard = mutex.lock().await?;
//!         Ok::<_, bowline::LockError>(guard.token())
//!     });
//!     println!("it was held with token {}", task.await??);
//!     node.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # Keys and values
//!
//! Keys and values are bytes ([`Bytes`]), and what takes them takes `impl Into<Bytes>`: text that lives as long
//! as the program (`"jobs/1"`), a `String` (`format!("jobs/{n}")`), a `Vec<u8>`, [`Bytes`]. What is borrowed
//! for a shorter time is given as a copy: `name.to_owned()`, `name.clone()`, `bytes.to_vec()`. What comes out
//! is [`Bytes`]: it compares with text (`row.value == "paid"`), and is read as text by
//! `std::str::from_utf8(&row.value)`.
//!
//! # One key, or a prefix
//!
//! A string is one key, in every call: `kv.range("jobs/")`, `kv.watch("jobs/")` and `kv.delete("jobs/")` concern
//! the key `jobs/` and no other. A prefix is always [`KeyRange::prefix`], or the argument of a method with `prefix`
//! in its name:
//!
//! | one key, or a [`KeyRange`] | all keys that begin with a string |
//! |---|---|
//! | [`Client::get`], [`Client::range`] | [`Client::get_prefix`] |
//! | [`Client::watch`] | [`Client::watch_prefix`] |
//! | [`Client::delete`] | [`Client::delete_prefix`] |
//! | [`Locks::of`]: the lock of that name | [`Locks::list_prefix`]: all locks whose names begin with it |
//! | | [`Client::cached_prefix`], [`Client::cached_prefix_with`] |
//! | | [`Client::sequential_prefix`]: numbered keys |
//! | | [`Client::with_prefix`]: a client for the keys below a prefix |
//!
//! The name of a lock, election, queue, group or another of the recipes is a name: `session.mutex("jobs")` and
//! `session.mutex("jobs/1")` are two locks.
//!
//! # The house
//!
//! Modules stand in the order in which a request travels. `docs/architecture.md` is the map.

mod api;
pub mod backup;
mod node;

mod consensus;
mod snapshot;
mod transport;
mod wal;
mod warm;

// `machine`, `model` and `env` are public, and not for users: tests in `tests` and benchmarks ask the state machine by
// itself, and the harness stands at the doors to the world. `watch` is like them; nothing outside names it today. What
// users need of the four is named below.
#[doc(hidden)]
pub mod machine;
#[doc(hidden)]
pub mod watch;

mod codec;
#[doc(hidden)]
pub mod env;
mod metrics;
#[doc(hidden)]
pub mod model;

#[cfg(feature = "check")]
pub mod check;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "mutants")]
pub mod mutant;
#[cfg(not(feature = "mutants"))]
mod mutant;
mod recipes;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use bytes::Bytes;

pub use api::{
    AlarmReply, Blocking, Client, Config, ConfigError, DeleteCall, Effect, Error, GetCall,
    GrantCall, JoinErrorKind, Lease, LeaseInfoCall, LeaseStatus, Node, OpenSession, PutCall,
    RangeCall, ReadyCall, ResumeSession, Session, SessionStatus, Shutdown, StartError, TxnCall,
    UserClient, Watch, WatchCall,
};
pub use metrics::{
    ByLabel, Ending, Histogram, Metrics, MetricsSnapshot, PeerLag, PeerLink, PeerQueue, Refused,
    RequestKind, Stage,
};
pub use model::{
    Access, AccessChange, AccessGrant, AccessRole, AuthError, Caller, ROOT, Rights, Secret, User,
};
pub use model::{Alarm, AlarmChange, AlarmKind, Alarms};
pub use model::{
    ClusterId, ClusterVersion, Compare, CompareBuilder, CompareOp, CompareTarget, Delete,
    DeleteReply, DiskId, Event, EventKind, Incarnation, KeyRange, KeyValue, LeaseId, Limits,
    LogIndex, Member, MemberRole, Members, MembershipError, Moment, NodeId, Op, ParseLeaseIdError,
    Put, PutLease, PutReply, PutValue, Range, RangeEnd, RangeReply, Rejection, Revision,
    RevisionBounds, RevokeReply, SnapshotId, Sort, SortOrder, SortTarget, Term, Txn, TxnReply,
    TxnResult,
};
pub use node::{
    DIGEST_EVERY, DataErrorKind, Health, HealthStatus, History, MemberStatus, NodeStatus, Progress,
    ResumeSessionError, Role, SessionEndReason, SessionState, StopReason,
};
pub use recipes::{
    Acquire, Guard, GuardError, GuardTxn, Hold, LockCall, LockEntry, LockError, LockFuture,
    LockKind, LockState, LostReason, MultiGuard, Mutex, Owner, ParseTokenError, ReleaseRequest,
    Released, Token, WaitsFor,
};
pub use recipes::{Barrier, BarrierError, BarrierHold};
pub use recipes::{BarrierParticipant, DoubleBarrier, DoubleBarrierError};
pub use recipes::{Cached, CachedCall, View};
pub use recipes::{Call, CasOutcome, CompareAndSet, Expected, PutIfAbsent};
pub use recipes::{
    Campaign, Candidacy, Election, LeadError, Leader, LeaderEvent, LeaderTask, Leadership, Observe,
};
pub use recipes::{Cell, CellValue};
pub use recipes::{Counter, CounterError};
pub use recipes::{
    Delivery, ItemId, ItemState, PutItem, PutMany, Queue, QueueError, QueueTaker, QueuedItem,
    TakeCall,
};
pub use recipes::{DowngradeError, ReadGuard, RwLock, Upgrade, UpgradeError, WriteGuard};
pub use recipes::{Fence, StaleToken};
pub use recipes::{Group, GroupError, GroupEvent, GroupMember, GroupWatch, Membership};
pub use recipes::{Latch, LatchError};
pub use recipes::{LockAdminError, LockInfo, Locks};
pub use recipes::{ParseSavedHoldError, ResumeError, SavedHold};
pub use recipes::{Permit, Semaphore, Slot};
pub use recipes::{RunOnce, RunOnceError, RunOutcome};
pub use recipes::{Sequence, SequenceError, SequentialKey};
pub use transport::TransportError;
#[cfg(feature = "tls")]
pub use transport::{MemberUri, PeerProof, PeerTls};
pub use watch::{Filter, WatchBatch, WatchError};

/// The pages of `docs` with programs in them, which run with the documentation's tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/coming-from/chubby-consul.md")]
    struct ChubbyConsul;
    #[doc = include_str!("../docs/coming-from/etcd.md")]
    struct Etcd;
    #[doc = include_str!("../docs/coming-from/hazelcast.md")]
    struct Hazelcast;
    #[doc = include_str!("../docs/coming-from/kubernetes.md")]
    struct Kubernetes;
    #[doc = include_str!("../docs/coming-from/python-etcd.md")]
    struct PythonEtcd;
    #[doc = include_str!("../docs/coming-from/redis.md")]
    struct Redis;
    #[doc = include_str!("../docs/coming-from/sql.md")]
    struct Sql;
    #[doc = include_str!("../docs/coming-from/zookeeper.md")]
    struct ZooKeeper;
    #[doc = include_str!("../docs/errors.md")]
    struct Errors;
    #[doc = include_str!("../docs/operating/members.md")]
    struct Members;
    #[doc = include_str!("../docs/operating/sizes.md")]
    struct Sizes;
    #[doc = include_str!("../docs/operating/upgrade.md")]
    struct Upgrade;
    #[doc = include_str!("../docs/assurance/checkers.md")]
    struct Testing;
}
