//! Comparison and deliberate corruption of a state, for the simulation and tests alone.

use std::sync::Arc;

use super::Machine;
use super::reader::Reader;
use super::row::{RowSplit, StoredRow};

impl Reader {
    /// Returns a fingerprint of the leases and their attached keys. If the leases or keys change,
    /// the fingerprint almost certainly changes too.
    pub(crate) fn leases_fingerprint(&self) -> [u64; 2] {
        self.shared().leases().fingerprint()
    }
}

impl Machine {
    /// Flips one bit of the newest version of `key` in memory, as failing memory would. Returns
    /// true if the key exists.
    pub(crate) fn rot(&mut self, key: &[u8]) -> bool {
        let mut state = self.store.shared().state_mut();
        let rows = state.index.get_mut(key);
        rows.map(|rows| rows.replace_newest(StoredRow::rotten)).is_some()
    }
}

impl StoredRow {
    /// Returns the row with one bit of its value flipped (of its key, if the value is empty), and
    /// an unchanged checksum.
    pub(super) fn rotten(&self) -> Self {
        let flip = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            *bytes.last_mut().expect("a row is not empty") ^= 1;
            bytes
        };
        match self {
            StoredRow::Packed(row) => StoredRow::Packed(flip(row).into()),
            StoredRow::RowSplit(row) => StoredRow::RowSplit(Arc::new(RowSplit {
                head: row.head.clone(),
                value: flip(&row.value).into(),
            })),
        }
    }
}
