//! The core of all locks: the lock table, which follows the replica, and the state of each queue
//! entry of this node.

pub(crate) mod bound;
pub(crate) mod entry;
pub(crate) mod error;
pub(crate) mod holding;
pub(crate) mod lock_table;
pub(crate) mod release_plan;
pub(crate) mod request;
pub(crate) mod table_state;
#[cfg(test)]
mod tests;
pub(crate) mod token;
pub(crate) mod view;
pub(crate) mod waiter;
pub(crate) mod waiter_counts;
