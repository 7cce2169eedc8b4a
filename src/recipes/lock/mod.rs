//! Locks.
//!
//! A lock is a queue of keys below its name. A task that wants the lock puts a key there, attached
//! to its session. The order of the keys' create revisions and the lock [mode](core::mode) of each
//! entry decide who holds the lock. This is the recipe of etcd and ZooKeeper, with etcd's own key
//! names, so that clients that use etcd's concurrency packages join the same queue. Unlike in etcd
//! and ZooKeeper, no client watches keys over a network, and one log entry is enough to enqueue a
//! request. When the local replica applies a change, the [lock table](core::lock_table) notifies
//! exactly the waiters that have become holders. The log has no special commands for locks.
//!
//! However an acquisition ends (deadline, loss of the session, dropped future), its key is deleted.
//! The deletion is proposed once the outcome of the put is known, and is retried until it succeeds.
//!
//! ```text
//!   mutex, rw_lock, semaphore, multi_lock   the locks that a program uses
//!   lock_call, acquire                      a lock request with its options, and its future
//!   guard, hold, guard_txn, upgrade         guards, their common part, transactions under a lock
//!   owner                                   re-entrant holds and deadlock detection
//!   fence, stored_fence                     checks of tokens at a resource
//!   admin                                   what operators see, and their requests to holders
//!   resume, saved_hold                      resuming a hold after a restart of the program
//!   core                                    the lock table and its queue entries
//! ```

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod core;
pub(crate) mod fence;
pub(crate) mod guard;
pub(crate) mod guard_txn;
pub(crate) mod hold;
pub(crate) mod lock_call;
pub(crate) mod multi_lock;
pub(crate) mod mutex;
pub(crate) mod owner;
pub(crate) mod resume;
pub(crate) mod rw_lock;
pub(crate) mod saved_hold;
pub(crate) mod semaphore;
pub(crate) mod stored_fence;
pub(crate) mod upgrade;
