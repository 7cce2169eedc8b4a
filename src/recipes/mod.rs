//! Locks, elections and other coordination recipes, which run against this node's own replica.
//!
//! ```text
//!   lock/           mutex, read/write lock, semaphore, several locks at once; owners, guards, operators
//!     core/         the lock table: all lock queues of this node, and who holds
//!   election/       a mutex with a value; work that runs while this node leads
//!   coordination/   counters, latches, barriers, groups, sequences, cached views, ...
//!   queue/          the work queue
//!   typed/          values of the program's own types
//!   call            a call with a deadline that may be dropped
//!   decimal         the decimal encoding of integers in values
//! ```

mod call;
mod coordination;
mod decimal;
mod election;
mod lock;
mod queue;
mod typed;

pub use crate::lock_format::{LockKind, ReleaseRequest};
pub use call::Call;
pub use coordination::barrier::{Barrier, BarrierError, BarrierHold};
pub use coordination::cached::{Cached, CachedCall, View};
pub use coordination::cell::{Cell, CellUpdate, CellValue};
pub use coordination::conditional::{CasOutcome, CompareAndSet, Expected, PutIfAbsent};
pub use coordination::counter::{Counter, CounterError};
pub use coordination::double_barrier::{BarrierParticipant, DoubleBarrier, DoubleBarrierError};
pub use coordination::group::{Group, GroupError, GroupEvent, GroupMember, GroupWatch, Membership};
pub use coordination::latch::{Latch, LatchError};
pub use coordination::run_once::{RunOnce, RunOnceError, RunOutcome};
pub use coordination::sequence::{Sequence, SequenceError, SequentialKey};
pub use election::candidacy::Candidacy;
pub use election::election_view::ElectionView;
pub use election::leader_task::{LeadError, LeaderTask};
pub use election::observe::{Leader, LeaderEvent, Observe};
pub use election::{Campaign, Election, Leadership};
pub use lock::acquire::{Acquire, LockFuture};
pub use lock::admin::{LockAdminError, LockInfo, Locks};
#[cfg(any(test, feature = "sim"))]
pub(crate) use lock::core::entry::HANDOFFS_MAX;
pub use lock::core::error::{LockError, LostReason, WaitsFor};
pub use lock::core::token::{ParseTokenError, Token};
pub use lock::core::view::LockEntry;
pub use lock::fence::{Fence, StaleToken};
pub use lock::guard::{Guard, ReadGuard, WriteGuard};
pub use lock::guard_txn::{GuardError, GuardTxn};
pub use lock::hold::{Hold, LockState, Released};
pub use lock::lock_call::LockCall;
pub use lock::multi_lock::MultiGuard;
pub use lock::mutex::Mutex;
pub use lock::owner::Owner;
pub use lock::resume::ResumeError;
pub use lock::rw_lock::{DowngradeError, RwLock};
pub use lock::saved_hold::{ParseSavedHoldError, SavedHold};
pub use lock::semaphore::{Permit, Semaphore, Slot};
pub use lock::stored_fence::{FenceError, StoredFence};
pub use lock::upgrade::{Upgrade, UpgradeError};
pub use queue::{
    DeadLetter, Delivery, FailCall, FailOutcome, ItemId, ItemState, ParseItemIdError, PutItem,
    PutMany, Queue, QueueError, QueueTaker, QueueWorker, QueuedItem, TakeCall, WorkFailure,
    WorkItem,
};
pub use typed::cached::{TypedCached, TypedCachedCall, TypedView};
pub use typed::cell::{TypedCell, TypedCellValue};
pub use typed::codec::Codec;
#[cfg(feature = "json")]
pub use typed::codec::Json;
pub use typed::keys::{Typed, TypedGetCall, TypedRange, TypedRangeCall, TypedRow};
pub use typed::queue::{TypedDelivery, TypedQueue, TypedQueuedItem, TypedTakeCall, TypedTaker};
pub use typed::watch::{TypedBatch, TypedEvent, TypedWatch, TypedWatchCall};
pub use typed::worker::TypedWorker;
