//! Locks and elections, run directly against this node's own replica.
//!
//! A lock is a line of keys below its name: who wants it puts a key there, bound to its session, and
//! whose turn it is follows from the order of the keys' create revisions and a [`rule`] for each kind.
//! That is the recipe of etcd and ZooKeeper, with etcd's own key names, so that programs that use etcd's
//! concurrency packages stand in the same line. But nothing here is watched over a network: one
//! proposal puts the key there, and then the node's own apply, through [`line`], tells exactly those
//! whose turn it is. There are no lock commands in the log.
//!
//! Whatever ends a wish for a lock (the deadline, the loss of the session, a dropped future, at any
//! point) ends with its key deleted: never before it is known whether the key was put there, and for as
//! long as it takes.
//!
//! ```text
//!   mutex, rw_lock, ...       what a program asks for                 LockCall, Guard
//!   election, leading         a mutex with a value; work that runs while it leads
//!   wish, hold, guard_txn     the future, what every guard has, and transactions under it
//!   place                     a key in a line, and the tasks of this process that share it
//!   line, book                all lines of this node; follows the replica
//!   head_count                how many hold and wait, for the metrics
//!   rule, stance              whose turn it is; what a row says of itself
//!   owner                     who may hold twice, and who must not wait for itself
//!   operate, order            what operators see, and ask of holders
//!   resume, ticket            a hold that is taken up in the program's next life
//! ```
//!
//! The toolbox of coordination beside it ([`queue`], counters, latches, barriers, groups, [`cached`] views
//! and so on) stands on clients, sessions, watches and transactions alone. What it is made of:
//!
//! ```text
//!   call                      a call with a deadline, which may be dropped
//!   look                      waiting until what is stored says what one waits for
//!   following                 what is below a prefix, and every change of it
//!   deed                      what is taken back when nobody waits for it any more
//!   chain                     a transaction that guesses what others will have done by then
//!   digits                    numbers as rows have them
//! ```

mod guard;
mod guard_txn;
mod lock_call;

mod multi_lock;
mod mutex;
mod rw_lock;
mod semaphore;
mod upgrade;

mod candidacy;
mod election;
mod leader_task;
mod observe;
mod operate;

mod acquire;
mod book;
mod error;
mod fence;
mod head_count;
mod hold;
mod line;
mod order;
mod owner;
mod place;
mod resume;
mod rule;
mod saved_hold;
mod stance;
mod token;
mod view;

mod cached;
mod queue;

mod call;
mod chain;
mod deed;
mod digits;
mod following;
mod look;

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
pub use barrier::{Barrier, BarrierError, BarrierHold};
pub use cached::{Cached, CachedCall, View};
pub use call::Call;
pub use candidacy::Candidacy;
pub use cell::{Cell, CellValue};
pub use conditional::{CasOutcome, CompareAndSet, Expected, PutIfAbsent};
pub use counter::{Counter, CounterError};
pub use double_barrier::{BarrierParticipant, DoubleBarrier, DoubleBarrierError};
pub use election::{Campaign, Election, Leadership};
pub use error::{LockError, LostReason, WaitsFor};
pub use fence::{Fence, StaleToken};
pub use group::{Group, GroupError, GroupEvent, GroupMember, GroupWatch, Membership};
pub use guard_txn::{GuardError, GuardTxn};
pub use hold::{Hold, LockState, Released};
pub use latch::{Latch, LatchError};
pub use leader_task::{LeadError, LeaderTask};
pub use lock_call::LockCall;
pub use multi_lock::MultiGuard;
pub use mutex::{Guard, Mutex};
pub use observe::{Leader, LeaderEvent, Observe};
pub use operate::{LockAdminError, LockInfo, Locks};
pub use order::ReleaseRequest;
pub use owner::Owner;
#[cfg(any(test, feature = "sim"))]
pub(crate) use place::PASSES_MAX;
pub use queue::{
    Delivery, ItemId, ItemState, PutItem, PutMany, Queue, QueueError, QueueTaker, QueuedItem,
    TakeCall,
};
pub use resume::ResumeError;
pub use rule::LockKind;
pub use run_once::{RunOnce, RunOnceError, RunOutcome};
pub use rw_lock::{DowngradeError, ReadGuard, RwLock, WriteGuard};
pub use saved_hold::{ParseSavedHoldError, SavedHold};
pub use semaphore::{Permit, Semaphore, Slot};
pub use sequence::{Sequence, SequenceError, SequentialKey};
pub use token::{ParseTokenError, Token};
pub use upgrade::{Upgrade, UpgradeError};
pub use view::LockEntry;
