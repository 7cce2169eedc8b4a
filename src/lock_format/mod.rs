//! The stored form of locks: keys and values of queue entries and of admin requests, and the
//! decision which entries hold the lock. `bowline-client` does not depend on the library and has a
//! parser of its own. A test of that crate compares the two parsers.
//!
//! ```text
//!   NAME/694d7f3a5c1e2b08             key of an entry: name of the lock, and lease id in hexadecimal
//!   NAME/694d7f3a5c1e2b08.7           further entries of the same lease
//!   NAME/694d7f3a5c1e2b08/order       an admin request to that entry
//! ```
//!
//! The value of an entry's key is its [metadata](EntryMetadata), or belongs to another client. The
//! order of the create revisions is the order of the queue.

use bytes::Bytes;

use crate::model::{KeyValue, LeaseId};

mod admin_request;
mod metadata;
mod mode;
mod queue;

pub use admin_request::ReleaseRequest;
pub(crate) use admin_request::{
    AdminAction, AdminRequest, admin_request_key, admin_request_target,
};
pub(crate) use metadata::{EntryMetadata, MARK};
pub use mode::LockKind;
pub(crate) use mode::LockMode;
pub(crate) use queue::{LockQueue, QueueMismatch, QueuePosition};

/// Returns the prefix of the keys of a lock's queue.
pub(crate) fn prefix_of(name: &[u8]) -> Bytes {
    [name, b"/"].concat().into()
}

/// Returns the prefix of which a key is a direct child, including the slash.
pub(crate) fn parent(key: &[u8]) -> Option<&[u8]> {
    key.iter().rposition(|byte| *byte == b'/').map(|slash| &key[..=slash])
}

/// Returns the name of the lock to whose queue a key belongs.
pub(crate) fn lock_of(key: &Bytes) -> Bytes {
    let prefix = parent(key).unwrap_or_default();
    key.slice(..prefix.len().saturating_sub(1))
}

/// Reports whether a row below a lock's prefix is an entry of its queue.
pub(crate) fn is_entry(row: &KeyValue, prefix: &[u8]) -> bool {
    row.lease.is_some() && parent(&row.key) == Some(prefix)
}

/// Returns the key of a lease in a queue: the name that etcd uses, or that name with a number.
pub(crate) fn entry_key(prefix: &[u8], lease: LeaseId, number: Option<u64>) -> Bytes {
    let number = number.map(|number| format!(".{number}")).unwrap_or_default();
    [prefix, lease.to_string().as_bytes(), number.as_bytes()].concat().into()
}

/// Returns the number in a lease's key, or `None` if the key is not of that lease or has no number.
pub(crate) fn entry_number(prefix: &[u8], lease: LeaseId, key: &[u8]) -> Option<u64> {
    let digits = key.strip_prefix(prefix)?.strip_prefix(lease.to_string().as_bytes())?;
    let digits = std::str::from_utf8(digits.strip_prefix(b".")?).ok()?;
    let number: u64 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}
