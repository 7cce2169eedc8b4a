//! Keys that are attached to a hold, and deleted together with it.

use bytes::Bytes;

use crate::model::{Compare, LeaseId, Op, Rejection, Txn};

/// Maximum load of keys attached to one hold. The keys are deleted in one log entry, and a transfer
/// contains this deletion twice.
const BOUND_MAX: Load = Load { keys: 1_000, bytes: (3 << 19) - (64 << 10) };

/// A key that is attached to a hold.
#[derive(Clone, Debug)]
pub(crate) struct BoundKey {
    pub(crate) key: Bytes,
    /// Value that was written.
    pub(crate) value: Bytes,
    /// Whether the key is known to have been written.
    pub(crate) is_sure: bool,
}

impl BoundKey {
    /// Returns an attached key that is deleted regardless of its value.
    pub(crate) fn of_key(key: Bytes) -> Self {
        Self { key, value: Bytes::new(), is_sure: true }
    }
}

/// Number and size of the keys attached to a hold.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    keys: usize,
    /// Size of the operations that delete them, in bytes.
    bytes: usize,
}

impl Load {
    /// Upper bound of the size of an operation that deletes a key. Excludes the key itself, which
    /// the operation contains twice, and the value.
    const KEY_BYTES: usize = 48;

    pub(crate) fn of<'a>(bound: impl IntoIterator<Item = &'a BoundKey>) -> Self {
        bound.into_iter().fold(Self::default(), |load, BoundKey { key, value, is_sure }| {
            // If the value is compared as well, the operation contains the key three times.
            let value = if *is_sure { 0 } else { key.len() + value.len() };
            let more = Self { keys: 1, bytes: Self::KEY_BYTES + 2 * key.len() + value };
            load.and(more)
        })
    }

    pub(crate) fn is_empty(self) -> bool {
        self.keys == 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self { keys: self.keys + other.keys, bytes: self.bytes + other.bytes }
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self { keys: self.keys - other.keys, bytes: self.bytes - other.bytes }
    }

    pub(crate) fn check(self) -> Result<(), Rejection> {
        let Load { keys: count, bytes } = self;
        if count > BOUND_MAX.keys {
            return Err(Rejection::TooManyOps { count, max: BOUND_MAX.keys });
        }
        if bytes > BOUND_MAX.bytes {
            return Err(Rejection::RequestTooLarge { bytes, max: BOUND_MAX.bytes });
        }
        Ok(())
    }
}

/// Returns the operations that delete keys attached to a hold. A key with another lease belongs to
/// another owner and stays.
pub(crate) fn delete_bound(lease: LeaseId, bound: &[BoundKey]) -> Vec<Op> {
    let unbind = |BoundKey { key, value, is_sure }: &BoundKey| {
        let mut compares = vec![Compare::lease(key.clone()).eq(lease.get())];
        if !is_sure {
            compares.push(Compare::value(key.clone()).eq(value.clone()));
        }
        Op::Txn(Txn::if_all(compares, [Op::delete(key.clone())]))
    };
    bound.iter().map(unbind).collect()
}
