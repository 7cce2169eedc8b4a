//! An image is a consistent snapshot of the whole state in memory, as of one log entry. Taking an
//! image is fast; its contents are read later, while the state continues to change.
//!
//! Versions of rows are immutable. Therefore an image copies only the mutable parts (leases, the
//! dedup table, members, a few numbers). The rows that are live at the compacted revision and the
//! later history are read from the shared state, page by page, on any thread. Reading a page holds
//! the lock of the state. Between two pages, entries are applied and compactions continue. The
//! sweep does not free data that an image has not read yet.
//!
//! For an image, the writer must copy the mutable parts. While an image exists, data that is
//! compacted after the image was taken is not freed. The reader must read the image to its end or
//! drop it. If the reader hangs, another thread can release the image ([`ImageRelease`]).

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, RwLockReadGuard, Weak};

use thiserror::Error;

use super::dedup_table::AnswerRow;
use super::lease::LeaseRecord;
use super::recount::Recount;
use super::row::{RowRef, StoredRow};
use super::shared::{MachineShared, MachineState, Registration, Replaced};
use super::store::expect_sound;
use crate::model::{
    EventKind, Fault, KeyValue, LifeRow, Revision, RowChange, SnapshotRecord, StateHead,
};

/// Number of rows visited while the lock is held. The number is lower than for other readers,
/// because an image is not urgent and reads everything.
const HOLD_ROWS: usize = 128;

/// Size in bytes that a lease, or a reply without rows, counts in a piece.
const PART_BYTES: usize = 64;

/// The image. See the module page.
pub struct Image {
    head: StateHead,
    shared: Arc<MachineShared>,
    generation: u64,
    kept: Option<Kept>,
    next: ImageNext,
    leases: VecDeque<LeaseRecord>,
    lives: VecDeque<LifeRow>,
    dedup: VecDeque<AnswerRow>,
    /// `None` if only a part of the state is read.
    recount: Option<Recount>,
}

/// The registration that holds back the sweep until the image is dropped or released.
type Kept = Arc<Mutex<Option<Registration>>>;

/// A handle that releases an image from another thread than the one that reads it.
pub struct ImageRelease(Weak<Mutex<Option<Registration>>>);

impl ImageRelease {
    /// Releases the image. The sweep no longer waits for the image, and the image cannot be read
    /// any further.
    pub fn release_image(&self) {
        if let Some(kept) = self.0.upgrade() {
            kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

/// The start of the next piece.
enum ImageNext {
    /// The first key after `after`, at revision `at`.
    StoredRow { after: Option<Box<[u8]>>, at: Revision },
    /// The change with this number of this revision.
    Change { revision: Revision, number: usize },
    /// The parts that were copied when the image was taken.
    Rest,
}

/// The reason why an image cannot be read to its end.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ImageError {
    /// The state was replaced by a later one. Take a new image.
    #[error("the state was replaced by an installed snapshot while it was being copied")]
    Replaced,
    /// Reading took too long, and the image was released. Take a new image.
    #[error("the copy of the state took too long and was released")]
    LetGo,
    /// The state in memory is damaged, so a copy of it would be damaged too.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<Replaced> for ImageError {
    fn from(_: Replaced) -> Self {
        ImageError::Replaced
    }
}

impl Image {
    pub(super) fn new(
        head: StateHead,
        shared: &Arc<MachineShared>,
        leases: VecDeque<LeaseRecord>,
        (lives, dedup): (VecDeque<LifeRow>, VecDeque<AnswerRow>),
    ) -> Self {
        let state = shared.state();
        let kept = shared.register(&state, head.compacted.unwrap_or(Revision::FIRST));
        let generation = state.generation();
        drop(state);
        // If there was no compaction yet, the pieces contain no rows. The rows are still visited,
        // because they count for the digest.
        let next = ImageNext::StoredRow { after: None, at: head.compacted.unwrap_or_default() };
        let shared = Arc::clone(shared);
        let kept = Some(Arc::new(Mutex::new(Some(kept))));
        let recount = Some(Recount::default());
        Self { head, shared, generation, kept, next, leases, lives, dedup, recount }
    }

    /// Returns a handle that can release the image while another thread hangs.
    pub fn release(&self) -> ImageRelease {
        ImageRelease(self.kept.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// Returns the head, whose values are known before the image is read.
    pub fn head(&self) -> &StateHead {
        &self.head
    }

    /// Removes the rows and changes from the image, so that the sweep no longer waits for the
    /// image.
    #[must_use]
    pub fn without_rows(mut self) -> Self {
        self.next = ImageNext::Rest;
        (self.kept, self.recount) = (None, None);
        self
    }

    /// Returns the next piece: about `bytes_max` bytes, but at least one row. After the last piece,
    /// verifies the digest of all pieces and returns `None`.
    ///
    /// # Errors
    /// Fails if the state no longer exists, or its memory was corrupted.
    pub fn next(&mut self, bytes_max: usize) -> Result<Option<SnapshotRecord>, ImageError> {
        if let ImageNext::StoredRow { .. } = self.next {
            let rows = self.rows(bytes_max)?;
            if !rows.is_empty() {
                return Ok(Some(SnapshotRecord::Rows(rows)));
            }
        }
        if let ImageNext::Change { .. } = self.next {
            let changes = self.changes(bytes_max)?;
            if !changes.is_empty() {
                return Ok(Some(SnapshotRecord::Changes(changes)));
            }
        }
        let parts = (bytes_max / PART_BYTES).max(1);
        if !self.leases.is_empty() {
            let some = self.leases.drain(..parts.min(self.leases.len()));
            let counted =
                some.inspect(|lease| self.recount.iter_mut().for_each(|r| r.lease(lease)));
            return Ok(Some(SnapshotRecord::Leases(counted.map(LeaseRecord::into_row).collect())));
        }
        if !self.lives.is_empty() {
            let some = self.lives.drain(..parts.min(self.lives.len()));
            let counted = some.inspect(|life| self.recount.iter_mut().for_each(|r| r.life(life)));
            return Ok(Some(SnapshotRecord::Lives(counted.collect())));
        }
        let (mut some, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max.max(1)
            && let Some(answer) = self.dedup.pop_front()
        {
            self.recount.iter_mut().for_each(|recount| recount.answer(&answer));
            bytes += PART_BYTES + answer.bytes;
            some.push((answer.id, answer.outcome));
        }
        if some.is_empty() {
            self.expect_sound()?;
            return Ok(None);
        }
        Ok(Some(SnapshotRecord::DedupTable(some)))
    }

    /// Checks that the returned pieces have the digest of the state.
    fn expect_sound(&self) -> Result<(), Fault> {
        let expected = self.head.digest;
        match self.recount.as_ref().map(|recount| recount.digest(&self.head)) {
            Some(found) if found != expected => Err(Fault::Drifted { expected, found }),
            _ => Ok(()),
        }
    }

    fn rows(&mut self, bytes_max: usize) -> Result<Vec<KeyValue>, ImageError> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max.max(1)
            && let ImageNext::StoredRow { after, at } = &mut self.next
        {
            let state = image_state(&self.shared, self.generation, self.kept.as_ref())?;
            let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let mut rows: Vec<StoredRow> = Vec::with_capacity(HOLD_ROWS);
            let (mut last, mut looked) = (None, 0);
            for versions in state.index.iter_from(from).take(HOLD_ROWS) {
                looked += 1;
                last = Some(versions.newest());
                if let (Some(recount), Some(row)) =
                    (&mut self.recount, versions.live(self.head.revision))
                {
                    recount.row(row);
                }
                if let Some(row) = versions.live(*at) {
                    bytes += row.key().len() + row.value().len() + PART_BYTES;
                    rows.push(row.to_row());
                    if bytes >= bytes_max {
                        break;
                    }
                }
            }
            let last = last.map(|row| row.key().into());
            let more = looked == HOLD_ROWS || bytes >= bytes_max;
            drop(state);
            self.next = match last {
                Some(_) if more => ImageNext::StoredRow { after: last, at: *at },
                _ => first_change(*at),
            };
            for row in rows {
                expect_sound(row.view())?;
                found.push(row.view().key_value());
            }
        }
        Ok(found)
    }

    fn changes(&mut self, bytes_max: usize) -> Result<Vec<RowChange>, ImageError> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max.max(1)
            && let ImageNext::Change { revision, number } = &mut self.next
        {
            let state = image_state(&self.shared, self.generation, self.kept.as_ref())?;
            let mut rows: Vec<StoredRow> = Vec::with_capacity(HOLD_ROWS);
            while *revision <= self.head.revision && rows.len() < HOLD_ROWS && bytes < bytes_max {
                let changes = state.history.get(*revision).expect("kept from the sweep");
                if *number == changes.len() {
                    (*revision, *number) = (revision.next(), 0);
                    continue;
                }
                let row = changes.get(*number);
                bytes += row.key().len() + row.value().len() + PART_BYTES;
                rows.push(row.to_row());
                *number += 1;
            }
            let done = *revision > self.head.revision;
            drop(state);
            if done {
                self.next = ImageNext::Rest;
            }
            for row in rows {
                expect_sound(row.view())?;
                found.push(change(row.view()));
            }
        }
        Ok(found)
    }
}

/// Returns the state of an image, if it still exists. While the returned guard is held, nothing is
/// swept.
fn image_state<'a>(
    shared: &'a MachineShared,
    generation: u64,
    kept: Option<&Kept>,
) -> Result<RwLockReadGuard<'a, MachineState>, ImageError> {
    let state = shared.state();
    state.expect(generation)?;
    let is_kept = |kept: &Kept| kept.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    kept.is_some_and(is_kept).then_some(state).ok_or(ImageError::LetGo)
}

/// Returns the position of the first change. Revision 1 is the empty store, which has no changes.
fn first_change(compacted: Revision) -> ImageNext {
    let revision = compacted.max(Revision::FIRST.next());
    ImageNext::Change { revision, number: 0 }
}

pub(super) fn change(row: RowRef<'_>) -> RowChange {
    let event = row.event(None);
    match event.kind {
        EventKind::Put => RowChange::Put(event.kv),
        EventKind::Delete => {
            RowChange::Delete { revision: event.kv.mod_revision, key: event.kv.key }
        }
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("index", &self.head.index).finish_non_exhaustive()
    }
}
