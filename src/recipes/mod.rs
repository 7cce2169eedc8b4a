//! Locks, elections and other coordination recipes, which run against this node's own replica.
//!
//! A lock is a queue of keys below its name. A task that wants the lock puts a key there, attached
//! to its session. The order of the keys' create revisions and the lock [`mode`] of each entry decide
//! who holds the lock. This is the recipe of etcd and ZooKeeper, with etcd's own key names, so that
//! clients that use etcd's concurrency packages join the same queue. Unlike in etcd and ZooKeeper,
//! no client watches keys over a network: one proposal puts the key, and when the local replica
//! applies a change, [`lock_table`] notifies exactly the waiters that have become holders. The log has no
//! special commands for locks.
//!
//! However an acquisition ends (deadline, loss of the session, dropped future), its key is deleted.
//! The deletion is proposed once the outcome of the put is known, and is retried until it succeeds.
//!
//! ```text
//!   mutex, rw_lock, ...        the locks that a program uses                    LockCall, Guard
//!   election, leader_task      a mutex with a value; work that runs while this node leads
//!   acquire, hold, guard_txn   the future, the common part of all guards, and guarded transactions
//!   entry                      a queue entry: one key, and the waiters of this process that share it
//!   lock_table, table          the lock table: all lock queues of this node, following the replica
//!   waiter_counts              numbers of holders and waiters, for the metrics
//!   mode, metadata             lock modes: who may hold; the metadata in an entry's value
//!   owner                      re-entrant holds and deadlock detection
//!   admin, admin_request       what operators see, and their requests to holders
//!   resume, saved_hold         resuming a hold after a restart of the program
//! ```
//!
//! The other recipes ([`queue`], counters, latches, barriers, groups, [`cached`] views and so on)
//! use only clients, sessions, watches and transactions. These recipes share the following modules:
//!
//! ```text
//!   call                       a call with a deadline that may be dropped
//!   wait_until                 waits until stored data meets a condition
//!   prefix_watch               a stream over a key prefix: a snapshot, then every change
//!   undo_on_drop               a change that is undone if its caller stops waiting
//!   cas_branches               a transaction with several alternatives, for compare-and-set under contention
//!   decimal                    the decimal encoding of integers in values
//! ```

mod guard;
mod guard_txn;
mod lock_call;

mod multi_lock;
mod mutex;
mod rw_lock;
mod semaphore;
mod upgrade;

mod admin;
mod candidacy;
mod election;
mod leader_task;
mod observe;

mod acquire;
mod admin_request;
mod entry;
mod error;
mod fence;
mod hold;
mod lock_table;
mod metadata;
mod mode;
mod owner;
mod resume;
mod saved_hold;
mod table;
mod token;
mod view;
mod waiter_counts;

mod cached;
mod queue;

mod call;
mod cas_branches;
mod decimal;
mod prefix_watch;
mod undo_on_drop;
mod wait_until;

mod conditional;

mod cell;
mod counter;
mod sequence;

mod barrier;
mod double_barrier;
mod group;
mod latch;
mod run_once;

pub use acquire::{Acquire, LockFuture};
pub use admin::{LockAdminError, LockInfo, Locks};
pub use admin_request::ReleaseRequest;
pub use barrier::{Barrier, BarrierError, BarrierHold};
pub use cached::{Cached, CachedCall, View};
pub use call::Call;
pub use candidacy::Candidacy;
pub use cell::{Cell, CellValue};
pub use conditional::{CasOutcome, CompareAndSet, Expected, PutIfAbsent};
pub use counter::{Counter, CounterError};
pub use double_barrier::{BarrierParticipant, DoubleBarrier, DoubleBarrierError};
pub use election::{Campaign, Election, Leadership};
#[cfg(any(test, feature = "sim"))]
pub(crate) use entry::PASSES_MAX;
pub use error::{LockError, LostReason, WaitsFor};
pub use fence::{Fence, StaleToken};
pub use group::{Group, GroupError, GroupEvent, GroupMember, GroupWatch, Membership};
pub use guard_txn::{GuardError, GuardTxn};
pub use hold::{Hold, LockState, Released};
pub use latch::{Latch, LatchError};
pub use leader_task::{LeadError, LeaderTask};
pub use lock_call::LockCall;
pub use mode::LockKind;
pub use multi_lock::MultiGuard;
pub use mutex::{Guard, Mutex};
pub use observe::{Leader, LeaderEvent, Observe};
pub use owner::Owner;
pub use queue::{
    Delivery, ItemId, ItemState, PutItem, PutMany, Queue, QueueError, QueueTaker, QueuedItem,
    TakeCall,
};
pub use resume::ResumeError;
pub use run_once::{RunOnce, RunOnceError, RunOutcome};
pub use rw_lock::{DowngradeError, ReadGuard, RwLock, WriteGuard};
pub use saved_hold::{ParseSavedHoldError, SavedHold};
pub use semaphore::{Permit, Semaphore, Slot};
pub use sequence::{Sequence, SequenceError, SequentialKey};
pub use token::{ParseTokenError, Token};
pub use upgrade::{Upgrade, UpgradeError};
pub use view::LockEntry;
