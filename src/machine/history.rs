//! The changes of each revision, oldest first, for watches that catch up and for the sweep.
//!
//! Revisions are consecutive, so a revision determines its position in the list. The list consists
//! of chunks of a fixed size. Therefore the list grows without being copied, and discarding the
//! oldest revisions frees their memory.

use std::collections::VecDeque;

use super::row::StoredRows;
use crate::model::Revision;

const CHUNK_REVISIONS: usize = 512;

/// The changes of the revisions from `first` to the newest.
#[derive(Debug)]
pub(super) struct EventHistory {
    first: Revision,
    /// Each chunk except the last was filled with [`CHUNK_REVISIONS`] revisions. The oldest
    /// revisions of the first chunk may have been discarded since.
    chunks: VecDeque<VecDeque<StoredRows>>,
    len: usize,
}

impl EventHistory {
    /// Creates the history of an empty store.
    pub(super) fn new() -> Self {
        Self::from(Revision::FIRST.next())
    }

    /// Creates the history of a store whose first known revision is `first`, which must be pushed
    /// next.
    pub(super) fn from(first: Revision) -> Self {
        assert!(first > Revision::FIRST, "nothing happens at revision 1");
        let mut history = Self { first, chunks: VecDeque::new(), len: 0 };
        if history.forgotten() > 0 {
            history.chunks.push_back(VecDeque::new());
        }
        history
    }

    /// Returns the oldest known revision, or the one after the newest if none is known.
    pub(super) fn first(&self) -> Revision {
        self.first
    }

    pub(super) fn next(&self) -> Revision {
        Revision(self.first.get() + self.len as u64)
    }

    pub(super) fn push(&mut self, revision: Revision, rows: StoredRows) {
        assert_eq!(revision, self.next(), "revisions are dense");
        if self.begun().is_multiple_of(CHUNK_REVISIONS) {
            self.chunks.push_back(VecDeque::with_capacity(CHUNK_REVISIONS));
        }
        self.chunks.back_mut().expect("a chunk was just begun").push_back(rows);
        self.len += 1;
    }

    pub(super) fn get(&self, revision: Revision) -> Option<&StoredRows> {
        let at = usize::try_from(revision.get().checked_sub(self.first.get())?).ok()?;
        if at >= self.len {
            return None;
        }
        let at = at + self.forgotten();
        let chunk = at / CHUNK_REVISIONS;
        let gone = if chunk == 0 { self.forgotten() } else { 0 };
        self.chunks.get(chunk)?.get(at % CHUNK_REVISIONS - gone)
    }

    /// Discards the oldest revision and returns its rows, so that the caller can drop them outside
    /// the lock.
    pub(super) fn pop_front(&mut self) -> Option<StoredRows> {
        let last_of_chunk = self.forgotten() + 1 == CHUNK_REVISIONS;
        let rows = self.chunks.front_mut()?.pop_front()?;
        self.first = self.first.next();
        self.len -= 1;
        if last_of_chunk {
            self.chunks.pop_front();
        }
        Some(rows)
    }

    /// Returns the number of discarded revisions of the first chunk. Chunks begin at revisions 2,
    /// 514, 1026, ...
    fn forgotten(&self) -> usize {
        ((self.first.get() - 2) % CHUNK_REVISIONS as u64) as usize
    }

    fn begun(&self) -> usize {
        self.forgotten() + self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::row::StoredRow;

    #[test]
    fn a_history_may_begin_at_any_revision() {
        for first in [2, 3, 300, 513, 514, 515, 1026, 1_000_000_123] {
            let mut history = EventHistory::from(Revision(first));
            assert_eq!((history.first(), history.next()), (Revision(first), Revision(first)));
            assert!(history.pop_front().is_none());
            for revision in first..first + 1200 {
                history.push(Revision(revision), rows(revision));
            }
            for revision in first..first + 1200 {
                let found = history.get(Revision(revision)).unwrap().get(0).modified();
                assert_eq!(found, Revision(revision));
            }
            for revision in first..first + 1200 {
                let rows = history.pop_front().unwrap();
                assert_eq!(rows.get(0).modified(), Revision(revision));
            }
            assert!(history.pop_front().is_none() && history.get(Revision(first)).is_none());
        }
    }

    fn rows(revision: u64) -> StoredRows {
        StoredRows::one(StoredRow::tombstone(&mut Vec::new(), b"k", Revision(revision)))
    }

    #[test]
    fn every_revision_is_found_after_compactions() {
        let mut history = EventHistory::new();
        let mut next = 2;
        for round in 0..40 {
            for _ in 0..100 {
                history.push(Revision(next), rows(next));
                next += 1;
            }
            for _ in 0..(if round % 3 == 0 { 200 } else { 37 }) {
                let first = history.first();
                match history.pop_front() {
                    Some(rows) => assert_eq!(rows.get(0).modified(), first),
                    None => assert_eq!(first, Revision(next)),
                }
            }
            assert_eq!(history.next(), Revision(next));
            assert!(history.get(Revision(next)).is_none());
            assert!(history.get(Revision(history.first().get() - 1)).is_none());
            for revision in history.first().get()..next {
                let found = history.get(Revision(revision)).unwrap().get(0).modified();
                assert_eq!(found, Revision(revision));
            }
        }
    }
}
