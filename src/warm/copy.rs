//! Writes one warm copy: which records its store contains, and in which order they are written.
//!
//! ```text
//!   base: the rows live at the revision that was compacted when the copy was begun
//!        |
//!   [r0 r1 r2 ...]   read page by page while the state changes
//!   [c0 c1 c2 ...]   every change since that revision, appended before the sweep discards it
//!        |
//!   [t0 ...  h]      the other tables, as of one log entry: from here on the copy can be loaded
//! ```
//!
//! The sweep (which frees compacted versions) does not wait until the base is read. If the sweep
//! frees a row before it was read, a newer version of that row was also compacted. This newer
//! version is among the changes. Loading a copy takes the newest version of each key up to the
//! compacted revision, so the freed row is not needed.
//!
//! Superseded rows are not removed from the store. Instead, if a copy has become much larger than
//! the state, a new copy is built in another store. The amortized cost per change is the same as
//! for removing the rows one by one.

use thiserror::Error;

use super::guard::Guarded;
use super::layout::{CopyHead, CopyKind, CopyRestoredFrom, key, seal_head, seal_piece};
use super::store::{CopyBatch, StoreError};
use crate::machine::{Image, ImageError, Reader};
use crate::model::{Fault, LogIndex, Revision, RowChange, SnapshotRecord, StateHead};

/// The sizes that control how a copy uses its store.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopySizes {
    /// Approximate size of a record of rows or changes in bytes. The cost of a store depends on the
    /// number of records: see the measurements in docs/decisions/warm-copy.md.
    pub(super) record_bytes: usize,
    /// Approximate size of a batch in bytes. The worker writes one batch per turn.
    pub(super) batch_bytes: usize,
    /// Number of bytes by which a copy may exceed twice the size of the state.
    pub(super) growth_bytes: u64,
}

impl Default for CopySizes {
    fn default() -> Self {
        Self { record_bytes: 16 << 10, batch_bytes: 256 << 10, growth_bytes: 16 << 20 }
    }
}

/// A copy with its open store.
pub(super) struct Copy {
    store: Guarded,
    sizes: CopySizes,
    origin: CopyRestoredFrom,
    base: Revision,
    rows: u64,
    changes: u64,
    tables: Vec<u32>,
    bytes: u64,
    /// The next revision to append.
    next: Revision,
    scan: CopyScan,
    /// The compacted revision when the last row of the base was read.
    settled: Revision,
    /// Index of the log entry up to which the copy can be loaded.
    applied: Option<LogIndex>,
}

/// The progress of reading the base.
enum CopyScan {
    Behind(Option<Box<[u8]>>),
    Done,
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CopyStep {
    /// Data was written, and there is more.
    More,
    /// Everything published is written.
    CaughtUp,
}

/// The reason why a copy is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum CopyError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The copy needs changes that the replica has already discarded.
    #[error(
        "the copy on disk (warm copy) needs the changes since revision {0}, which are no longer available"
    )]
    Forgotten(Revision),
    #[error(transparent)]
    State(#[from] ImageError),
}

impl From<Fault> for CopyError {
    fn from(fault: Fault) -> Self {
        Self::State(fault.into())
    }
}

impl Copy {
    /// Begins a copy in an empty store.
    pub(super) fn begin(
        store: Guarded,
        sizes: CopySizes,
        origin: CopyRestoredFrom,
        reader: &Reader,
    ) -> Self {
        // Before the first compaction, the base is 0, and every row is among the changes.
        let base = reader.compacted();
        Self {
            store,
            sizes,
            origin,
            base,
            rows: 0,
            changes: 0,
            tables: Vec::new(),
            bytes: 0,
            next: base.max(Revision::FIRST.next()),
            scan: if base == Revision(0) { CopyScan::Done } else { CopyScan::Behind(None) },
            settled: base,
            applied: None,
        }
    }

    /// Continues a copy that was loaded.
    pub(super) fn resume(store: Guarded, sizes: CopySizes, head: &CopyHead) -> Self {
        Self {
            store,
            sizes,
            origin: head.origin,
            base: head.base,
            rows: head.rows,
            changes: head.changes,
            tables: head.tables.clone(),
            bytes: head.bytes,
            next: head.next,
            scan: CopyScan::Done,
            settled: head.base,
            applied: Some(head.state.index),
        }
    }

    /// Returns the index of the log entry up to which the copy can be loaded, if any.
    pub(super) fn applied(&self) -> Option<LogIndex> {
        self.applied
    }

    /// Returns whether this can become a copy of the given state. A row that the sweep freed before
    /// it was read is missing in the copy. The copy is therefore valid only for states that have
    /// compacted this row.
    pub(super) fn suits(&self, state: &StateHead) -> bool {
        state.compacted.unwrap_or_default() >= self.settled
    }

    /// Returns whether the copy takes far more space than the state.
    pub(super) fn is_oversized(&self, state_bytes: u64) -> bool {
        self.bytes > state_bytes.saturating_mul(2).saturating_add(self.sizes.growth_bytes)
    }

    /// Writes some of the missing data in one batch.
    ///
    /// # Errors
    /// Fails if the store fails, or if the copy cannot be completed.
    pub(super) fn step(&mut self, reader: &Reader) -> Result<CopyStep, CopyError> {
        let mut batch = CopyBatch::default();
        // Changes are copied first, because the sweep does not wait for this copy and may discard
        // them soon.
        let more = self.append(reader, &mut batch)? || self.read_base(reader, &mut batch)?;
        self.write(batch)?;
        Ok(if more { CopyStep::More } else { CopyStep::CaughtUp })
    }

    /// Completes the copy of the state as of `image`, whose rows must be published. Writes the
    /// missing changes, the tables and the head in one batch. If many changes are missing, earlier
    /// batches write most of the changes.
    ///
    /// # Errors
    /// Same as [`Copy::step`].
    pub(super) fn complete(&mut self, reader: &Reader, mut image: Image) -> Result<(), CopyError> {
        assert!(matches!(self.scan, CopyScan::Done), "a head before all rows are there");
        assert!(self.suits(image.head()), "an image from before the rows were read");
        let mut batch = CopyBatch::default();
        while self.next <= image.head().revision {
            self.write(std::mem::take(&mut batch))?;
            let before = self.next;
            self.append(reader, &mut batch)?;
            assert!(self.next > before, "an image of what was not published");
        }
        let mut tables = Vec::new();
        while let Some(record) = image.next(self.sizes.record_bytes)? {
            let number = tables.len() as u64;
            let (record, sum) = seal_piece(CopyKind::Table, number, &record);
            // Leases and members rarely change, so unchanged records are not rewritten.
            if self.tables.get(tables.len()) != Some(&sum) {
                batch.set(key(CopyKind::Table, number), record);
            }
            tables.push(sum);
        }
        for number in tables.len()..self.tables.len() {
            batch.remove(key(CopyKind::Table, number as u64));
        }
        let head = CopyHead {
            origin: self.origin,
            base: self.base,
            rows: self.rows,
            changes: self.changes,
            next: self.next,
            tables,
            bytes: self.bytes,
            state: image.head().clone(),
        };
        batch.set(key(CopyKind::Head, 0), seal_head(&head));
        self.write(batch)?;
        self.store.with(|store| store.flush())?;
        self.tables = head.tables;
        self.applied = Some(head.state.index);
        Ok(())
    }

    /// Returns the space that the copy takes on the disk, in bytes.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(super) fn disk_bytes(&mut self) -> Result<u64, StoreError> {
        self.store.with(|store| store.disk_bytes())
    }

    /// Writes and syncs everything.
    ///
    /// # Errors
    /// Fails if the store fails.
    pub(super) fn close(self) -> Result<(), StoreError> {
        self.store.close()
    }

    /// Adds published changes to `batch`. Returns true if there are more.
    fn append(&mut self, reader: &Reader, batch: &mut CopyBatch) -> Result<bool, CopyError> {
        let page = reader.changes(self.next, self.sizes.batch_bytes)?;
        let page = page.ok_or(CopyError::Forgotten(self.next))?;
        self.next = page.next;
        let (mut record, mut bytes) = (Vec::new(), 0);
        for change in page.changes {
            bytes += bytes_of(&change);
            record.push(change);
            if bytes >= self.sizes.record_bytes {
                self.put_changes(std::mem::take(&mut record), batch);
                bytes = 0;
            }
        }
        if !record.is_empty() {
            self.put_changes(record, batch);
        }
        Ok(page.more)
    }

    fn put_changes(&mut self, changes: Vec<RowChange>, batch: &mut CopyBatch) {
        self.put(CopyKind::Changes, self.changes, &SnapshotRecord::Changes(changes), batch);
        self.changes += 1;
    }

    /// Adds rows of the base to `batch`. Returns true if there may be more.
    fn read_base(&mut self, reader: &Reader, batch: &mut CopyBatch) -> Result<bool, CopyError> {
        let CopySizes { record_bytes, batch_bytes, .. } = self.sizes;
        for _ in 0..batch_bytes.div_ceil(record_bytes) {
            let CopyScan::Behind(after) = &self.scan else { return Ok(false) };
            let page = reader.rows_behind(after.as_deref(), self.base, record_bytes)?;
            self.scan = match page.after {
                None => CopyScan::Done,
                after => CopyScan::Behind(after),
            };
            self.settled = reader.compacted();
            if !page.rows.is_empty() {
                self.put(CopyKind::Rows, self.rows, &SnapshotRecord::Rows(page.rows), batch);
                self.rows += 1;
            }
        }
        Ok(true)
    }

    fn put(&mut self, kind: CopyKind, number: u64, record: &SnapshotRecord, batch: &mut CopyBatch) {
        let (record, _) = seal_piece(kind, number, record);
        self.bytes += record.len() as u64;
        batch.set(key(kind, number), record);
    }

    fn write(&mut self, batch: CopyBatch) -> Result<(), CopyError> {
        if !batch.is_empty() {
            self.store.with(|store| store.apply(batch))?;
        }
        Ok(())
    }
}

fn bytes_of(change: &RowChange) -> usize {
    match change {
        RowChange::Put(kv) => kv.key.len() + kv.value.len(),
        RowChange::Delete { key, .. } => key.len(),
    }
}
