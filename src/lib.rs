//! A replicated, strongly consistent key-value store inside your own processes, with distributed
//! locks and leader election. Three processes form a Raft cluster, without separate servers.
//!
//! ```
//! use bowline::{Config, Node, Op};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #   let dir = tempfile::tempdir()?;
//! #   let data = dir.path();
//!     let node = Node::start(Config::new(data, "n1")).await?; // a cluster of one member
//!     node.ready().await?;
//!     let kv = node.client();
//!     kv.put("config/rate", "100").await?;
//!     assert_eq!(kv.get("config/rate").await?.unwrap().value, "100");
//!
//!     let session = node.session().await?;
//!     let guard = session.mutex("locks/orders/42").lock().await?;
//!     guard.txn().then(Op::put("orders/42/state", "paid")).commit().await?;
//!     guard.release().await?;
//!
//!     node.shutdown().await;
//!     Ok(())
//! }
//! ```
//!
//! # Where to begin
//!
//! | task | begin with |
//! |---|---|
//! | start a member, shut it down | [`Config`], [`Node::start`], [`Node::ready`], [`Node::shutdown`] |
//! | read, write, transactions | [`Node::client`], [`Client::get`], [`Client::put`], [`Client::txn`] |
//! | react to changes | [`Client::watch`], [`Client::cached_prefix`] |
//! | keys that expire | [`kv::PutCall::ttl`], [`Client::grant`], [`Session::lease`] |
//! | locks | [`Node::session`], [`Session::mutex`], [`Session::rw_lock`], [`Session::semaphore`] |
//! | one leader among processes | [`Node::leader_task`], [`Session::election`] |
//! | queues and other coordination | [`queue`], [`coordination`] |
//! | errors | [`Error::effect`]: whether a failed call was applied |
//! | operate | [`Node::health`], [`Node::metrics`], [`cluster`], [`backup`] |
//! | tests | `testing` and `sim`, behind features of the same names |
//!
//! Calls are futures that work on any executor, because a node runs on its own threads. Programs
//! without async code call [`.block()`](Blocking::block) on these futures, as most examples here
//! do.
//!
//! Logs go to [`tracing`](https://docs.rs/tracing). Install a subscriber to see the log lines.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `warm` (default) | [`Config::warm_copy`], with sled |
//! | `config` | settings from TOML and JSON: `Config::from_file` |
//! | `clap` | settings as flags: [`config::PartialConfig`] |
//! | `tls` | mutual TLS between members: `Config::peer_tls` |
//! | `testing` | clusters inside one process for tests (`testing-tls`: with certificates) |
//! | `json` | values of your own types: `Client::typed`; includes `serde` |
//! | `serde` | `Serialize` for rows, replies, health, status, metrics and locks, `Deserialize` for rows, replies and ids |
//! | `metrics` | metrics for recorders of the crate `metrics`: `Metrics::export_to` |
//! | `tower` | layers that admit requests on the leader, and that check fencing tokens: `bowline::tower` |
//! | `sim` | a simulator that runs your program in a cluster with injected faults, from a seed |
//!
//! # Keys and values
//!
//! Keys and values are bytes ([`Bytes`]). Calls accept keys and values in the form that the program
//! has ([`IntoBytes`]): `"jobs/1"`, `&name`, `format!("jobs/{n}")`, `vec![1, 2]`, `b"raw"`,
//! `&bytes`. Calls return [`Bytes`], which can be compared with text (`row.value == "paid"`). The
//! value of a row as text is [`row.text()?`](KeyValue::text), and as a number
//! [`row.parse::<u64>()?`](KeyValue::parse). Errors name the key. The module [`typed`] reads and
//! writes values of your own types.
//!
//! # One key or a prefix
//!
//! In every call a string means one key: `kv.range("jobs/")`, `kv.watch("jobs/")` and
//! `kv.delete("jobs/")` concern only the key `jobs/`. To select all keys with a prefix, use
//! [`KeyRange::prefix`] or a method with `prefix` in its name:
//!
//! | one key, or a [`KeyRange`] | all keys that begin with a string |
//! |---|---|
//! | [`Client::get`], [`Client::range`] | [`Client::get_prefix`] |
//! | [`Client::watch`] | [`Client::watch_prefix`] |
//! | [`Client::delete`] | [`Client::delete_prefix`] |
//! | [`Locks::of`](lock::Locks::of): the lock with that name | [`Locks::list_prefix`](lock::Locks::list_prefix): all locks whose names begin with the prefix |
//! | | [`Client::cached_prefix`], [`Client::cached_prefix_with`] |
//! | | [`Client::sequential_prefix`]: numbered keys |
//! | | [`Client::with_prefix`]: a client for the keys below a prefix |
//!
//! The name of a lock, an election, a queue, a group or another recipe is never a prefix:
//! `session.mutex("jobs")` and `session.mutex("jobs/1")` are two different locks.
//!
//! # Source layout
//!
//! The source file lists the modules in the order in which a request passes through them.
//! `docs/architecture.md` describes the modules.

// This module is first because the modules below use its macro `mutant!`.
#[cfg(not(bowline_mutants))]
#[macro_use]
mod mutant;
#[cfg(bowline_mutants)]
#[macro_use]
pub mod mutant;

mod api;
pub mod backup;
mod node;

mod consensus;
mod snapshot;
mod transport;
mod wal;
mod warm;

// `machine`, `model`, `env` and `watch` are public but hidden, because integration tests,
// benchmarks and the test harness use them. These modules are not part of the public API. The types
// that users need are re-exported below.
#[doc(hidden)]
pub mod machine;
#[doc(hidden)]
pub mod watch;

mod codec;
#[doc(hidden)]
pub mod env;
pub mod metrics;
#[doc(hidden)]
pub mod model;

#[cfg(any(test, all(fuzzing, feature = "sim")))]
#[doc(hidden)]
pub mod fuzz;
mod lock_format;
mod recipes;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;

pub use bytes::Bytes;

// The types that most programs use. The modules below contain the other public types, by topic.
pub use api::{
    Blocking, Client, Config, ConfigError, Effect, Error, Node, Session, Shutdown, StartError,
    TxnCall, Watch,
};
pub use metrics::{Metrics, MetricsSnapshot};
pub use model::{
    Compare, Event, EventKind, IntoBytes, KeyRange, KeyValue, LeaseId, Limits, Moment, NodeId, Op,
    Put, PutReply, RangeReply, Rejection, Revision, SortOrder, SortTarget, TxnReply, TxnResult,
};
pub use node::{
    Health, HealthStatus, NodeStatus, Role, SessionEndReason, SessionState, StopReason,
};
pub use recipes::{
    Election, Guard, GuardError, LeadError, LeaderEvent, LeaderTask, Leadership, LockError,
    LockState, LostReason, Mutex, Owner, Released, RwLock, Semaphore, Token,
};
pub use watch::{Filter, WatchBatch, WatchError};

/// Users, roles and permissions.
pub mod auth {
    pub use crate::api::UserClient;
    pub use crate::model::{
        Access, AccessChange, AccessGrant, AccessRole, AuthError, Caller, ROOT, Rights, Secret,
        User,
    };
}

/// Members of the cluster, their status, and alarms.
pub mod cluster {
    pub use crate::api::{AlarmReply, JoinErrorKind, MemberList, ParseMemberListError, ReadyCall};
    pub use crate::model::{
        Alarm, AlarmChange, AlarmKind, Alarms, ClusterId, ClusterVersion, DiskId, Incarnation,
        LogIndex, Member, MemberRole, Members, MembershipError, SnapshotId, Term,
    };
    pub use crate::node::{DIGEST_INTERVAL, DataErrorKind, History, MemberStatus, Progress};
    pub use crate::transport::TransportError;
    #[cfg(feature = "tls")]
    pub use crate::transport::{MemberUri, PeerCertificates, PeerPem, PeerProof, PeerTls};
}

/// Settings from files, environment variables and the command line.
pub mod config {
    pub use crate::api::PartialConfig;
}

/// Coordination among processes other than locks: barriers, latches, counters, groups, sequences,
/// and cached prefixes.
pub mod coordination {
    pub use crate::recipes::{
        Barrier, BarrierError, BarrierHold, BarrierParticipant, Cached, CachedCall, Call,
        CasOutcome, Cell, CellUpdate, CellValue, CompareAndSet, Counter, CounterError,
        DoubleBarrier, DoubleBarrierError, Expected, Group, GroupError, GroupEvent, GroupMember,
        GroupWatch, Latch, LatchError, Membership, PutIfAbsent, RunOnce, RunOnceError, RunOutcome,
        Sequence, SequenceError, SequentialKey, View,
    };
}

/// Types for elections. [`Election`] and [`LeaderTask`] are at the root of the crate.
pub mod election {
    pub use crate::recipes::{Campaign, Candidacy, ElectionView, Leader, Observe};
}

/// Types of requests to the store and of their replies. [`Client`] and the most used types are at
/// the root of the crate.
pub mod kv {
    pub use crate::api::{DeleteCall, GetCall, PutCall, RangeCall, WatchCall};
    pub use crate::model::{
        CompareBuilder, CompareOp, CompareTarget, CompareWith, DecodeError, Delete, DeleteReply,
        PutLease, PutValue, Range, RangeEnd, RevisionBounds, RevokeReply, Sort, Txn,
    };
}

/// Leases, and the sessions that renew them.
pub mod lease {
    pub use crate::api::{
        GrantCall, Lease, LeaseInfoCall, LeaseStatus, OpenSession, ResumeSession, SessionStatus,
    };
    pub use crate::model::ParseLeaseIdError;
    pub use crate::node::ResumeSessionError;
}

/// Types for locks. [`Mutex`], [`RwLock`], [`Semaphore`] and [`Guard`] are at the root of the
/// crate.
pub mod lock {
    pub use crate::recipes::{
        Acquire, DowngradeError, Fence, FenceError, GuardTxn, Hold, LockAdminError, LockCall,
        LockEntry, LockFuture, LockInfo, LockKind, Locks, MultiGuard, ParseSavedHoldError,
        ParseTokenError, Permit, ReadGuard, ReleaseRequest, ResumeError, SavedHold, Slot,
        StaleToken, StoredFence, Upgrade, UpgradeError, WaitsFor, WriteGuard,
    };
}

/// A work queue: each item is delivered to one taker at a time, until that taker acknowledges the
/// item.
///
/// | to | call |
/// |---|---|
/// | put items, with a priority or a delay | [`Queue::put`](queue::Queue::put), [`Queue::put_many`](queue::Queue::put_many); in your own transaction, without a delay, [`Queue::put_op`](queue::Queue::put_op) |
/// | run a handler for each item | [`Node::queue_worker`], which takes, acknowledges and retries. The handler adds effects and conditions: [`WorkItem::then`](queue::WorkItem::then), [`WorkItem::when`](queue::WorkItem::when) |
/// | take an item yourself | [`QueueTaker::take`](queue::QueueTaker::take) of a session, which waits for an item, or [`QueueTaker::try_take`](queue::QueueTaker::try_take) |
/// | finish it | [`Delivery::ack`](queue::Delivery::ack), or [`Delivery::ack_with`](queue::Delivery::ack_with) together with the result |
/// | try again later | [`Delivery::fail`](queue::Delivery::fail), [`Delivery::nack`](queue::Delivery::nack), [`Delivery::nack_after`](queue::Delivery::nack_after) |
/// | limit the attempts | [`QueueTaker::attempts_max`](queue::QueueTaker::attempts_max) |
/// | give up at once | [`Delivery::dead_letter`](queue::Delivery::dead_letter) |
/// | inspect | [`Queue::items`](queue::Queue::items), [`Queue::dead_letters`](queue::Queue::dead_letters) |
/// | put a dead letter back | [`Queue::requeue`](queue::Queue::requeue) |
/// | delete a dead letter or a waiting item | [`Queue::remove`](queue::Queue::remove) |
///
/// A worker with retries and dead letters:
///
/// ```
/// # use bowline::{Blocking, Config, Node};
/// use bowline::{Op, queue::QueueError};
/// use std::time::Duration;
///
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let work = |name: &str| if name.ends_with(".png") { Ok("640") } else { Err("not an image") };
/// let jobs = node.client().queue("jobs");
/// jobs.put_many(["1.png", "2.txt"]).block()?;
///
/// let taker = node.session().block()?.queue("jobs").attempts_max(3);
/// while !jobs.is_empty().block()? {
///     let job = taker.take().block()?; // waits for an item
///     let name = String::from_utf8_lossy(job.value()).into_owned();
///     let settled = match work(&name) {
///         // The result and the acknowledgement, or neither.
///         Ok(size) => job.ack_with([Op::put(format!("sizes/{name}"), size)]).block().map(drop),
///         Err(why) => {
///             let pause = Duration::from_millis(10) * u32::try_from(job.attempt())?;
///             job.fail(why).retry_after(pause).block().map(drop)
///         }
///     };
///     match settled {
///         Err(QueueError::ClaimLost) => {} // another taker has the item, or will get it
///         settled => settled?,
///     }
/// }
///
/// // An operator looks at the dead letters, and puts one back.
/// let letter = jobs.dead_letters().items().block()?.remove(0);
/// assert_eq!(letter.dead_letter.unwrap().reason, "not an image");
/// assert!(jobs.requeue(&letter.id).block()?);
/// # assert_eq!((jobs.len().block()?, jobs.dead_letters().len().block()?), (1, 0));
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - **Delivery is at-least-once.** If a taker crashes or loses its session, another taker gets the
///   item. An effect is applied exactly once if it is in the same transaction as the
///   acknowledgement: `ack_with`, `WorkItem::then`, or [`GuardTxn::ack`](lock::GuardTxn::ack) under
///   a lock. For effects outside the store, use [`Delivery::token`](queue::Delivery::token) as a fencing token.
/// - **A put that must happen once** is a transaction: a marker key that must be missing, the put of
///   that key, and [`Queue::put_op`](queue::Queue::put_op).
/// - **A claim is never extended.** The item belongs to its taker as long as the session lives,
///   however long the work takes.
/// - **Each delivery is an attempt, even if the taker crashes.** If a program is restarted
///   while it has an item, the item has used an attempt. So let a worker finish its items before a
///   rolling restart, or choose a limit that leaves room for restarts.
/// - **A dead letter** is an item in another queue, `jobs.dead_letters()`. The reason of a dead
///   letter is that of the last attempt. If that attempt ended without a call of `fail`, for example
///   with a crash, the item is moved with a general reason when it would be delivered again.
/// - **A delay is a lower bound.** After its delay, an item waits for its turn like all others, so a
///   backlog delays it further. A change of the leader restarts the delay.
///
/// For items of your own types, see [`Queue::typed_with`](queue::Queue::typed_with), and
/// `Queue::typed` for JSON (crate feature `json`).
pub mod queue {
    pub use crate::recipes::{
        DeadLetter, Delivery, FailCall, FailOutcome, ItemId, ItemState, ParseItemIdError, PutItem,
        PutMany, Queue, QueueError, QueueTaker, QueueWorker, QueuedItem, TakeCall, WorkFailure,
        WorkItem,
    };
}

/// Values of the program's own types in place of bytes, as JSON (crate feature `json`) or in another
/// format: [`Client::typed_with`].
///
/// Typed calls add nothing to what is stored: a value is the bytes that its [`Codec`](typed::Codec)
/// produces, and clients in other languages can read it. A row that cannot be decoded is an error
/// with its key and its bytes ([`kv::DecodeError`]), and never ends a stream.
pub mod typed {
    #[cfg(feature = "json")]
    pub use crate::recipes::Json;
    pub use crate::recipes::{
        Codec, Typed, TypedBatch, TypedCached, TypedCachedCall, TypedCell, TypedCellValue,
        TypedDelivery, TypedEvent, TypedGetCall, TypedQueue, TypedQueuedItem, TypedRange,
        TypedRangeCall, TypedRow, TypedTakeCall, TypedTaker, TypedView, TypedWatch, TypedWatchCall,
        TypedWorker,
    };
}

/// Pages of `docs` that contain programs. The documentation tests run these programs.
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
}
