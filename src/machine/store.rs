//! The multi-version key store, as the single writer sees it.
//!
//! ```text
//!     writer                      shared, under one lock held for moments        readers
//!   ---------                   ------------------------------------------      ---------
//!   put, delete  ------------>   index    key -> its versions         <-------   get, range
//!   commit       ------------>   history  revision -> its changes     <-------   events
//!   publish      ------------>   published  (revision, compacted)     <-------   every one, first
//!   sweep        ------------>   frees what `published.compacted` allows
//! ```
//!
//! A compaction only sets the compacted revision, which is part of the replicated state. The sweep
//! then frees the memory of older versions gradually. The progress of the sweep is not visible to
//! clients and not part of the replicated state.

use std::sync::Arc;

use bytes::Bytes;

use super::change::{Change, WrittenRow};
use super::digest::mix;
use super::history::EventHistory;
use super::index::Index;
use super::row::{Meta, RowRef, StoredRow};
use super::shared::{HOLD_KEYS, MachineShared, MachineState, Published, ReadHold};
use crate::model::{Fault, LeaseId, Revision};

/// The changes of one request, which will become one revision.
pub(super) struct Mutation {
    revision: Revision,
    /// `None` if nothing has changed yet.
    change: Option<Change>,
}

impl Mutation {
    /// Returns the revision that the changes of this request will have.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    fn is_empty(&self) -> bool {
        self.change.is_none()
    }

    fn push(&mut self, written: WrittenRow) {
        match &mut self.change {
            None => self.change = Some(Change::of_row(self.revision, written)),
            Some(change) => change.push(written),
        }
    }

    fn last(&self) -> Option<&WrittenRow> {
        self.change.as_ref().map(Change::last)
    }
}

/// The writer's side of the store.
pub(super) struct RowStore {
    shared: Arc<MachineShared>,
    revision: Revision,
    compacted: Option<Revision>,
    /// The sweep has processed every revision up to this one.
    swept: Revision,
    /// Number of rows of the revision after `swept` that the sweep has processed.
    swept_rows: usize,
    /// The compacted revision up to which the sweep is complete.
    swept_for: Option<Revision>,
    published: Published,
    /// Sum of the fingerprints of the newest version of each key.
    live: u64,
    /// Chain of the fingerprints of every version ever written.
    past: u64,
    /// The position at which the scrub continues.
    scrub_at: (Vec<u8>, Revision),
    scratch: Vec<u8>,
}

impl RowStore {
    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(MachineShared::new(
                Index::default(),
                EventHistory::new(),
                Published { revision: Revision::FIRST, compacted: None },
                0,
            )),
            revision: Revision::FIRST,
            compacted: None,
            swept: Revision::FIRST,
            swept_rows: 0,
            swept_for: None,
            published: Published { revision: Revision::FIRST, compacted: None },
            live: 0,
            past: 0,
            scrub_at: (Vec::new(), Revision(0)),
            scratch: Vec::new(),
        }
    }

    /// Creates a store at the revisions in `published` with everything swept.
    pub(super) fn restored(
        index: Index,
        history: EventHistory,
        published: Published,
        bytes: u64,
        (live, past): (u64, u64),
    ) -> Self {
        let Published { revision, compacted } = published;
        assert_eq!(history.next(), revision.next(), "history reaches up to the newest revision");
        Self {
            shared: Arc::new(MachineShared::new(index, history, published, bytes)),
            revision,
            compacted,
            swept: compacted.unwrap_or_default().max(Revision::FIRST),
            swept_rows: 0,
            swept_for: compacted,
            published,
            live,
            past,
            scrub_at: (Vec::new(), Revision(0)),
            scratch: Vec::new(),
        }
    }

    /// Swaps everything except the readers with `other`.
    pub(super) fn swap(&mut self, other: &mut Self) {
        self.shared.swap(&other.shared);
        std::mem::swap(self, other);
        std::mem::swap(&mut self.shared, &mut other.shared);
    }

    /// Returns the chain of everything ever written.
    pub(super) fn past(&self) -> u64 {
        self.past
    }

    pub(super) fn shared(&self) -> &Arc<MachineShared> {
        &self.shared
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn compacted(&self) -> Option<Revision> {
        self.compacted
    }

    /// Returns the store's revision as a request sees it after the changes in `mutation` so far.
    pub(super) fn revision_in(&self, mutation: &Mutation) -> Revision {
        if mutation.is_empty() { self.revision } else { mutation.revision }
    }

    pub(super) fn begin(&self) -> Mutation {
        Mutation { revision: self.revision.next(), change: None }
    }

    /// Writes a key and returns the row.
    pub(super) fn put<'m>(
        &mut self,
        hold: &mut ReadHold<'_>,
        mutation: &'m mut Mutation,
        key: &[u8],
        value: &Bytes,
        lease: Option<LeaseId>,
    ) -> Result<&'m WrittenRow, Fault> {
        let modified = mutation.revision;
        self.write(hold, mutation, key, |scratch, prev| {
            let (create, version) = prev.map_or((modified, 1), |row| {
                let meta = row.meta();
                (meta.create, meta.version.saturating_add(1))
            });
            Some(StoredRow::new(scratch, key, value, Meta { create, modified, version, lease }))
        })?;
        Ok(mutation.last().expect("a put is a change"))
    }

    /// Deletes a key and returns the tombstone, if the key existed.
    pub(super) fn delete<'m>(
        &mut self,
        hold: &mut ReadHold<'_>,
        mutation: &'m mut Mutation,
        key: &[u8],
    ) -> Result<Option<&'m WrittenRow>, Fault> {
        let modified = mutation.revision;
        let wrote = self.write(hold, mutation, key, |scratch, prev| {
            prev.map(|_| StoredRow::tombstone(scratch, key, modified))
        })?;
        Ok(if wrote { mutation.last() } else { None })
    }

    fn write(
        &mut self,
        hold: &mut ReadHold<'_>,
        mutation: &mut Mutation,
        key: &[u8],
        next: impl FnOnce(&mut Vec<u8>, Option<RowRef<'_>>) -> Option<StoredRow>,
    ) -> Result<bool, Fault> {
        let state = hold.take();
        let versions = state.index.get_mut(key);
        let before = versions.as_ref().and_then(|rows| rows.live(mutation.revision));
        if let Some(row) = before {
            expect_sound(row)?;
        }
        let Some(row) = next(&mut self.scratch, before) else { return Ok(false) };
        if let Some(row) = before {
            self.live = self.live.wrapping_sub(row.fingerprint());
        }
        let prev = before.map(RowRef::to_row);
        let bytes_before = before.map(RowRef::bytes);
        match versions {
            Some(rows) => rows.push(row.clone()),
            None => state.index.push(row.clone()),
        }
        let bytes = row.view().bytes();
        state.bytes += bytes;
        state.live.replace(bytes_before, (!row.view().is_tombstone()).then_some(bytes));
        hold.wrote();
        let fingerprint = row.view().fingerprint();
        if !row.view().is_tombstone() {
            self.live = self.live.wrapping_add(fingerprint);
        }
        self.past = mix(self.past.wrapping_add(fingerprint));
        mutation.push(WrittenRow { row, prev });
        Ok(true)
    }

    /// Makes the changes the next revision, if there are any.
    pub(super) fn commit(&mut self, hold: &mut ReadHold<'_>, mutation: Mutation) -> Option<Change> {
        assert_eq!(mutation.revision, self.revision.next(), "one request at a time");
        let Mutation { revision, change } = mutation;
        let change = change?;
        hold.take().history.push(revision, change.stored_rows());
        self.revision = revision;
        Some(change)
    }

    /// Compacts at `revision`, which the caller has checked.
    pub(super) fn compact(&mut self, revision: Revision) {
        assert!(revision <= self.revision, "a future revision");
        assert!(self.compacted.is_none_or(|before| before < revision), "compaction goes forward");
        self.compacted = Some(revision);
    }

    /// Makes all applied changes visible to readers.
    pub(super) fn publish(&mut self) {
        self.published = Published { revision: self.revision, compacted: self.compacted };
        self.shared.publish(self.published);
    }

    /// Frees the memory of about `rows` versions that no read can see any more. Returns true if
    /// more could be freed at once.
    pub(super) fn sweep(&mut self, mut rows: usize) -> bool {
        while rows > 0 && self.swept_for != self.published.compacted {
            let hold = rows.min(HOLD_KEYS);
            rows -= hold;
            if !self.sweep_once(hold) {
                return false;
            }
            self.shared.yield_to_readers();
        }
        self.swept_for != self.published.compacted
    }

    /// Runs a part of the sweep while holding the lock once. Returns false if there is nothing more
    /// to free for now.
    fn sweep_once(&mut self, hold: usize) -> bool {
        // Freeing large values takes time. These lists are declared before the lock is taken, so
        // they are dropped after it is released.
        let (mut changes_forgotten, mut versions_forgotten) = (Vec::new(), Vec::new());
        let mut state = self.shared.state_mut();
        let MachineState { index, history, bytes, .. } = &mut *state;
        let Some(compacted) = self.published.compacted else { return false };
        let oldest_read = self.shared.reading().keys().next().copied();
        let target = oldest_read.map_or(compacted, |read| read.min(compacted));
        for _ in 0..hold {
            // The changes of the target revision itself are kept, because reads of the history may
            // start at the compacted revision.
            if history.first() <= self.swept && history.first() < target {
                changes_forgotten.extend(history.pop_front());
                continue;
            }
            let revision = self.swept.next();
            if revision > target {
                self.swept_for = Some(compacted).filter(|_| target == compacted);
                return false;
            }
            let changes = history.get(revision).expect("every revision not forgotten");
            let row = changes.get(self.swept_rows);
            // The first version of a key replaces nothing, or a tombstone, whose own row was swept
            // before. A row that only the history contains was removed from the index before, and
            // so were the older versions of its key.
            if row.meta().version != 1 && !row.is_unique() {
                let before = versions_forgotten.len();
                // A key may have millions of versions, so only those of the next revisions go too.
                let until = target.min(Revision(revision.get().saturating_add(HOLD_KEYS as u64)));
                index.prune(row.key(), until, &mut versions_forgotten);
                let forgotten = versions_forgotten[before..].iter();
                *bytes -= forgotten.map(|row| row.view().bytes()).sum::<u64>();
            }
            self.swept_rows += 1;
            if self.swept_rows == changes.len() {
                self.swept = revision;
                self.swept_rows = 0;
            }
        }
        true
    }

    /// Returns whether all memory of compacted versions is freed.
    pub(super) fn is_swept(&self) -> bool {
        self.swept_for == self.published.compacted
    }

    /// Verifies the next `rows` versions. After the last version, begins again with the first.
    pub(super) fn scrub(&mut self, mut rows: usize) -> Result<(), Fault> {
        while rows > 0 {
            let hold = rows.min(HOLD_KEYS);
            rows -= hold;
            let state = self.shared.state();
            let (key, revision) = &self.scrub_at;
            let mut looked = 0;
            let mut next = (Vec::new(), Revision(0));
            for row in state.index.rows_from(key, *revision).take(hold) {
                expect_sound(row)?;
                looked += 1;
                if looked == hold {
                    next = (row.key().to_vec(), row.modified().next());
                }
            }
            self.scrub_at = next;
            if looked < hold {
                return Ok(()); // One full cycle.
            }
        }
        Ok(())
    }

    /// Returns the contribution of the rows to the digest.
    pub(super) fn fingerprint(&self) -> [u64; 2] {
        [self.live, self.past]
    }
}

/// Checks that a row has not changed.
pub(super) fn expect_sound(row: RowRef<'_>) -> Result<(), Fault> {
    if row.is_intact() {
        return Ok(());
    }
    Err(Fault::Rotten { key: Bytes::copy_from_slice(row.key()), revision: row.modified() })
}
