//! Locks and elections, run directly against this node's own replica.
//!
//! A lock is a line of keys below its name: who wants it puts a key there, bound to its session, and
//! the key with the lowest create revision holds. That is the recipe of etcd and ZooKeeper, with
//! etcd's own key names, so that programs that use etcd's concurrency packages stand in the same line.
//! But nothing here is watched over a network: one proposal puts the key there, and then the node's own
//! apply, through [`line`](self), tells exactly the one whose turn it is.
//!
//! Whatever ends a wish for a lock (the deadline, the loss of the session, a dropped future, at any
//! point) ends with its key deleted: never before it is known whether the key was put there, and for as
//! long as it takes.

mod cached;
mod election;
mod line;
mod mutex;
mod queue;

mod call;
mod chain;
mod deed;
mod look;

mod conditional;

mod cell;
mod counter;
mod sequence;

mod barrier;
mod group;
mod latch;

pub use barrier::{Barrier, BarrierError, BarrierHold};
pub use cached::{Cached, CachedCall, View};
pub use call::Call;
pub use cell::{Cell, CellValue};
pub use conditional::{Expected, PutIfAbsent, Swap};
pub use counter::{Counter, CounterError};
pub use election::{Campaign, Election, Leader, LeaderEvent, Leadership, Observe};
pub use group::{Group, GroupError, GroupEvent, GroupMember, GroupWatch, Membership};
pub use latch::{Latch, LatchError};
pub use line::Loss;
pub use mutex::{
    Guard, GuardError, GuardTxn, Holder, LockCall, LockError, LockState, Mutex, Released, Token,
};
pub use queue::{
    Delivery, ItemId, ItemState, PutItem, PutMany, Queue, QueueError, QueueTaker, QueuedItem,
    TakeCall,
};
pub use sequence::{Sequence, SequenceError, SequentialKey};
