//! One version of one key in memory.
//!
//! A million small rows must not need much more memory than their bytes. Therefore a row is a
//! single reference-counted allocation that contains all fields. The index (as a version of a key),
//! the history (as a change of a revision) and readers share this allocation.
//!
//! ```text
//!   0       4          12         16         17
//!   +-------+----------+----------+----------+----------------------------+-----+-------+
//!   | crc32 | mod      | key      | head     | since create, version,     | key | value |
//!   | of the| revision | bytes    | bytes    | lease: variable-length     |     |       |
//!   | rest  |          |          |          | numbers                    |     |       |
//!   +-------+----------+----------+----------+----------------------------+-----+-------+
//!   |<------------------------ head bytes ------------------------------->|
//! ```
//!
//! Numbers are little-endian. A deletion is a row too, a tombstone: version 0, no lease, no value.
//! A value of [`SHARED_VALUE_BYTES`] or more is a separate allocation, which readers share. Key and
//! value are copied from the input, so that a row never keeps a whole log entry or message in
//! memory.
//!
//! The layout of rows is internal to a running process and never written to a disk or the network.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use super::digest::mix;
use crate::model::{Event, EventKind, KeyValue, LeaseId, Revision};

/// Values of at least this length are not copied for readers.
pub(super) const SHARED_VALUE_BYTES: usize = 1 << 10;

/// Estimated memory in bytes of a version in addition to its own bytes: the reference counts, and
/// its positions in the index and in the history.
pub(super) const ROW_BYTES: u64 = 48;

const REVISION_AT: usize = 4;
const KEY_BYTES_AT: usize = 12;
const HEAD_BYTES_AT: usize = 16;
const NUMBERS_AT: usize = 17;

/// The metadata of a row: everything except key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Meta {
    pub(super) create: Revision,
    pub(super) modified: Revision,
    /// The version of the key: the number of puts since its creation; 0 for a tombstone.
    pub(super) version: u64,
    pub(super) lease: Option<LeaseId>,
}

/// One version of one key.
#[derive(Clone, Debug)]
pub(super) enum StoredRow {
    /// Key and value in one allocation.
    Packed(Arc<[u8]>),
    /// A large value in a separate allocation.
    RowSplit(Arc<RowSplit>),
}

#[derive(Debug)]
pub(super) struct RowSplit {
    /// The row in the layout of the module page, without the value.
    pub(super) head: Bytes,
    pub(super) value: Bytes,
}

impl StoredRow {
    /// Builds a row. `scratch` is a reusable buffer.
    pub(super) fn new(scratch: &mut Vec<u8>, key: &[u8], value: &[u8], meta: Meta) -> Self {
        assert!(meta.create <= meta.modified, "created after it was modified: {meta:?}");
        scratch.clear();
        scratch.extend_from_slice(&[0; REVISION_AT]);
        scratch.extend_from_slice(&meta.modified.get().to_le_bytes());
        let key_bytes = u32::try_from(key.len()).expect("a key is shorter than a log entry");
        scratch.extend_from_slice(&key_bytes.to_le_bytes());
        scratch.push(0);
        put_number(scratch, meta.modified.get() - meta.create.get());
        put_number(scratch, meta.version);
        put_number(scratch, meta.lease.map_or(0, LeaseId::get));
        scratch[HEAD_BYTES_AT] = scratch.len() as u8; // 17 and three numbers of at most 10 bytes.
        scratch.extend_from_slice(key);
        let shared = value.len() >= SHARED_VALUE_BYTES;
        if !shared {
            scratch.extend_from_slice(value);
        }
        let sum = checksum(scratch, if shared { value } else { &[] });
        scratch[..REVISION_AT].copy_from_slice(&sum.to_le_bytes());
        if shared {
            let head = Bytes::copy_from_slice(scratch);
            StoredRow::RowSplit(Arc::new(RowSplit { head, value: Bytes::copy_from_slice(value) }))
        } else {
            StoredRow::Packed(Arc::from(&scratch[..]))
        }
    }

    /// Builds the tombstone that records the deletion of `key`.
    pub(super) fn tombstone(scratch: &mut Vec<u8>, key: &[u8], modified: Revision) -> Self {
        let meta = Meta { create: modified, modified, version: 0, lease: None };
        Self::new(scratch, key, &Bytes::new(), meta)
    }

    pub(super) fn view(&self) -> RowRef<'_> {
        match self {
            StoredRow::Packed(row) => RowRef::Packed(row),
            StoredRow::RowSplit(row) => RowRef::RowSplit(row),
        }
    }
}

/// A borrowed row.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowRef<'a> {
    Packed(&'a Arc<[u8]>),
    RowSplit(&'a Arc<RowSplit>),
}

impl<'a> RowRef<'a> {
    pub(super) fn to_row(self) -> StoredRow {
        match self {
            RowRef::Packed(row) => StoredRow::Packed(Arc::clone(row)),
            RowRef::RowSplit(row) => StoredRow::RowSplit(Arc::clone(row)),
        }
    }

    fn head(self) -> &'a [u8] {
        match self {
            RowRef::Packed(row) => row,
            RowRef::RowSplit(row) => &row.head,
        }
    }

    fn head_bytes(self) -> usize {
        usize::from(self.head()[HEAD_BYTES_AT])
    }

    fn key_end(self) -> usize {
        let bytes = self.head()[KEY_BYTES_AT..HEAD_BYTES_AT].try_into().expect("four bytes");
        self.head_bytes() + u32::from_le_bytes(bytes) as usize
    }

    pub(super) fn key(self) -> &'a [u8] {
        &self.head()[self.head_bytes()..self.key_end()]
    }

    pub(super) fn value(self) -> &'a [u8] {
        match self {
            RowRef::Packed(row) => &row[self.key_end()..],
            RowRef::RowSplit(row) => &row.value,
        }
    }

    pub(super) fn modified(self) -> Revision {
        let bytes = self.head()[REVISION_AT..KEY_BYTES_AT].try_into().expect("eight bytes");
        Revision(u64::from_le_bytes(bytes))
    }

    pub(super) fn meta(self) -> Meta {
        let mut numbers = &self.head()[NUMBERS_AT..];
        let modified = self.modified();
        let create = Revision(modified.get() - take_number(&mut numbers));
        let version = take_number(&mut numbers);
        let lease = LeaseId::new(take_number(&mut numbers));
        Meta { create, modified, version, lease }
    }

    pub(super) fn is_tombstone(self) -> bool {
        // Only a tombstone has version 0, and all its numbers are 0.
        self.head()[NUMBERS_AT..][..3] == [0; 3]
    }

    /// Returns whether there is no other reference to the row than this one.
    pub(super) fn is_unique(self) -> bool {
        match self {
            RowRef::Packed(row) => Arc::strong_count(row) == 1,
            RowRef::RowSplit(row) => Arc::strong_count(row) == 1,
        }
    }

    /// Returns the memory that the version takes.
    pub(super) fn bytes(self) -> u64 {
        let value = match self {
            RowRef::Packed(_) => 0,
            RowRef::RowSplit(row) => row.value.len(),
        };
        (self.head().len() + value) as u64 + ROW_BYTES
    }

    /// Returns the value in the form that the rows of a reply contain.
    pub(super) fn shared_value(self) -> Bytes {
        match self {
            RowRef::Packed(row) => {
                Bytes::from_owner(Arc::clone(row)).slice(self.key_end()..row.len())
            }
            RowRef::RowSplit(row) => row.value.clone(),
        }
    }

    pub(super) fn key_value(self) -> KeyValue {
        let keys = self.head_bytes()..self.key_end();
        let (key, value) = match self {
            RowRef::Packed(row) => {
                let whole = Bytes::from_owner(Arc::clone(row));
                (whole.slice(keys.clone()), whole.slice(keys.end..))
            }
            RowRef::RowSplit(row) => (row.head.slice(keys), row.value.clone()),
        };
        let Meta { create, modified, version, lease } = self.meta();
        KeyValue { key, value, create_revision: create, mod_revision: modified, version, lease }
    }

    /// Returns the change that created this row, with `prev` as the previous row.
    pub(super) fn event(self, prev: Option<KeyValue>) -> Event {
        let mut kv = self.key_value();
        let kind = if self.is_tombstone() {
            kv.create_revision = Revision(0);
            EventKind::Delete
        } else {
            EventKind::Put
        };
        Event { kind, kv, prev }
    }

    fn stored_checksum(self) -> u32 {
        let bytes = self.head()[..REVISION_AT].try_into().expect("four bytes");
        u32::from_le_bytes(bytes)
    }

    /// Returns whether the checksum matches.
    pub(super) fn is_intact(self) -> bool {
        let beside = match self {
            RowRef::Packed(_) => &[][..],
            RowRef::RowSplit(row) => &row.value,
        };
        checksum(self.head(), beside) == self.stored_checksum()
    }

    /// Returns the contribution of the row to the digest.
    pub(super) fn fingerprint(self) -> u64 {
        mix(u64::from(self.stored_checksum()) << 32 ^ self.modified().get())
    }
}

/// Returns the checksum of a row with this head and a separate `value`.
fn checksum(head: &[u8], value: &[u8]) -> u32 {
    // For most rows, which are short, detecting the processor's features would take longer than the
    // checksum.
    static EMPTY: LazyLock<crc32fast::Hasher> = LazyLock::new(crc32fast::Hasher::new);
    let mut hasher = EMPTY.clone();
    hasher.update(&head[REVISION_AT..]);
    if !value.is_empty() {
        hasher.update(value);
    }
    hasher.finalize()
}

fn put_number(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn take_number(from: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = from[0];
        *from = &from[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

/// The changes of one revision, in the order of writing. Most revisions have a single small row,
/// which needs only the sixteen bytes of this type.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "a list in place would make every revision 24 bytes")]
pub(super) enum StoredRows {
    /// One packed row.
    One(Arc<[u8]>),
    /// Any number of rows of any kind. The list is empty only for the first revision of a store
    /// that was restored from a backup.
    Many(Box<Vec<StoredRow>>),
}

impl StoredRows {
    pub(super) fn one(row: StoredRow) -> Self {
        match row {
            StoredRow::Packed(row) => StoredRows::One(row),
            StoredRow::RowSplit(_) => StoredRows::Many(Box::new(vec![row])),
        }
    }

    pub(super) fn collect(mut rows: Vec<StoredRow>) -> Self {
        if rows.len() == 1 {
            return Self::one(rows.remove(0));
        }
        StoredRows::Many(Box::new(rows))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            StoredRows::One(_) => 1,
            StoredRows::Many(rows) => rows.len(),
        }
    }

    pub(super) fn get(&self, at: usize) -> RowRef<'_> {
        match self {
            StoredRows::One(row) => {
                assert!(at == 0, "row {at} of one");
                RowRef::Packed(row)
            }
            StoredRows::Many(rows) => rows[at].view(),
        }
    }
}

/// The versions of one key, oldest first, at least one. The newest version is stored in place,
/// because a search compares its key, and most requests need only this version.
#[derive(Debug)]
#[allow(clippy::box_collection, reason = "a deque in place would make every key 48 bytes")]
pub(super) struct Versions {
    newest: StoredRow,
    /// `None` if there are no older versions.
    older: Option<Box<VecDeque<StoredRow>>>,
}

impl Versions {
    pub(super) fn one(row: StoredRow) -> Self {
        Self { newest: row, older: None }
    }

    pub(super) fn push(&mut self, row: StoredRow) {
        let before = std::mem::replace(&mut self.newest, row);
        let older = self.older.get_or_insert_with(|| Box::new(VecDeque::with_capacity(1)));
        older.push_back(before);
    }

    pub(super) fn len(&self) -> usize {
        self.older.as_ref().map_or(0, |older| older.len()) + 1
    }

    pub(super) fn get(&self, at: usize) -> RowRef<'_> {
        match self.older.as_ref().and_then(|older| older.get(at)) {
            Some(older) => older.view(),
            None => {
                assert!(at + 1 == self.len(), "version {at} of {}", self.len());
                self.newest()
            }
        }
    }

    pub(super) fn newest(&self) -> RowRef<'_> {
        self.newest.view()
    }

    /// Replaces the newest version by another one, for tests of damaged memory.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn replace_newest(&mut self, with: impl FnOnce(&StoredRow) -> StoredRow) {
        self.newest = with(&self.newest);
    }

    /// Returns the number of versions that are not newer than `revision`.
    pub(super) fn until(&self, revision: Revision) -> usize {
        if self.newest().modified() <= revision {
            return self.len();
        }
        let older = self.older.as_ref();
        older.map_or(0, |older| older.partition_point(|row| row.view().modified() <= revision))
    }

    /// Returns the version that a read at `revision` sees, unless it is a tombstone.
    pub(super) fn live(&self, revision: Revision) -> Option<RowRef<'_>> {
        let row = match self.newest() {
            newest if newest.modified() <= revision => newest,
            _ => self.get(self.until(revision).checked_sub(1)?),
        };
        (!row.is_tombstone()).then_some(row)
    }

    /// Removes the versions that no read at or after `revision` can see, and moves them to
    /// `forgotten`. Returns true if the newest version is one of them. It is a tombstone then, and
    /// the caller removes the key.
    pub(super) fn prune(&mut self, revision: Revision, forgotten: &mut Vec<StoredRow>) -> bool {
        if self.newest().modified() <= revision {
            forgotten.extend(self.older.take().into_iter().flat_map(|older| *older));
            if self.newest().is_tombstone() {
                forgotten.push(self.newest.clone());
                return true;
            }
            return false;
        }
        let seen = self.until(revision);
        let Some(older) = &mut self.older else { return false };
        forgotten.extend(older.drain(..seen.saturating_sub(1)));
        if seen > 0 && older[0].view().is_tombstone() {
            forgotten.extend(older.pop_front());
        }
        if older.is_empty() {
            self.older = None;
        } else if older.capacity() > 4 * older.len() {
            older.shrink_to(2 * older.len());
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, value: &[u8], meta: Meta) -> StoredRow {
        StoredRow::new(&mut Vec::new(), key.as_bytes(), value, meta)
    }

    #[test]
    fn row_round_trips_its_fields() {
        let metas = [
            Meta { create: Revision(2), modified: Revision(2), version: 1, lease: None },
            Meta {
                create: Revision(1),
                modified: Revision(u64::MAX),
                version: u64::MAX,
                lease: LeaseId::new(u64::MAX),
            },
            Meta {
                create: Revision(300),
                modified: Revision(70_000),
                version: 128,
                lease: LeaseId::new(0x1234),
            },
        ];
        for meta in metas {
            for bytes in [0, 1, SHARED_VALUE_BYTES - 1, SHARED_VALUE_BYTES, 70_000] {
                let value = vec![0xa5; bytes];
                let row = row("some/key", &value, meta);
                assert_eq!(matches!(row, StoredRow::RowSplit(_)), bytes >= SHARED_VALUE_BYTES);
                let view = row.view();
                assert_eq!(view.meta(), meta);
                assert_eq!(view.key(), b"some/key");
                assert_eq!(view.value(), &value[..]);
                assert_eq!(view.shared_value(), value);
                assert!(view.is_intact() && !view.is_tombstone());
                let kv = view.key_value();
                assert_eq!((&kv.key[..], &kv.value[..]), (&b"some/key"[..], &value[..]));
            }
        }
    }

    #[test]
    fn tombstone_has_only_its_key_and_revision() {
        let row = StoredRow::tombstone(&mut Vec::new(), b"k", Revision(9));
        assert!(row.view().is_tombstone());
        let event = row.view().event(None);
        assert_eq!(event.kind, EventKind::Delete);
        assert_eq!(&event.kv.key[..], b"k");
        assert_eq!(event.kv.mod_revision, Revision(9));
        assert_eq!(event.kv.create_revision, Revision(0));
        assert_eq!((event.kv.version, event.kv.value.len(), event.kv.lease), (0, 0, None));
    }

    #[test]
    fn flipped_bit_in_a_row_is_detected() {
        let meta = Meta { create: Revision(2), modified: Revision(3), version: 2, lease: None };
        for bytes in [0, 10, SHARED_VALUE_BYTES] {
            let row = row("k", &vec![7; bytes], meta);
            assert!(!row.rotten().view().is_intact(), "{bytes}");
        }
        let StoredRow::Packed(sound) = row("key", b"value", meta) else { panic!("small") };
        for at in 0..sound.len() {
            let mut bytes = sound.to_vec();
            bytes[at] ^= 0x10;
            // A damaged head length would make the row unreadable. Only the checksum itself is
            // tested here.
            let stored = u32::from_le_bytes(bytes[..REVISION_AT].try_into().unwrap());
            assert_ne!(checksum(&bytes, &[]), stored, "byte {at}");
        }
    }

    #[test]
    fn rows_and_lists_of_them_are_small() {
        assert_eq!(size_of::<StoredRow>(), 16);
        assert_eq!(size_of::<StoredRows>(), 16);
        assert_eq!(size_of::<Versions>(), 24);
    }

    #[test]
    fn a_value_does_not_keep_the_buffer_it_came_in() {
        let entry = Bytes::from(vec![1; 100_000]);
        let meta = Meta { create: Revision(2), modified: Revision(2), version: 1, lease: None };
        let row = |bytes| StoredRow::new(&mut Vec::new(), &entry[..4], &entry.slice(..bytes), meta);
        let rows = [100, SHARED_VALUE_BYTES, entry.len()].map(row);
        assert!(entry.is_unique());
        drop(rows);
    }

    #[test]
    fn pruning_keeps_the_version_visible_at_the_revision() {
        let version = |modified, version| {
            let meta =
                Meta { create: Revision(2), modified: Revision(modified), version, lease: None };
            row("k", b"v", meta)
        };
        let mut rows = Versions::one(version(2, 1));
        rows.push(version(5, 2));
        rows.push(StoredRow::tombstone(&mut Vec::new(), b"k", Revision(7)));
        let prune = |rows: &mut Versions, at| {
            let mut forgotten = Vec::new();
            let empty = rows.prune(Revision(at), &mut forgotten);
            (empty, forgotten.len())
        };
        assert_eq!(prune(&mut rows, 1), (false, 0));
        assert_eq!(rows.len(), 3);
        assert_eq!(prune(&mut rows, 6), (false, 1));
        assert_eq!(rows.len(), 2);
        assert_eq!(rows.live(Revision(6)).unwrap().modified(), Revision(5));
        assert!(rows.live(Revision(7)).is_none());
        assert_eq!(prune(&mut rows, 7), (true, 2), "only a tombstone was left");
    }
}
