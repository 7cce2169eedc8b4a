//! Reads for a background copy of the state.
//!
//! A background copy may lag for hours, so the sweep (which frees compacted versions) does not wait
//! for it. Therefore the copy must expect that the data that it reads was freed already:
//!
//! - If the changes since a revision are no longer available, [`Reader::changes`] returns `None`.
//! - The rows that are live at a compacted revision can be read page by page. A row may be missing
//!   because it was superseded and freed between two pages. If a row is missing, its newer version
//!   is among the changes since the compacted revision.

use std::ops::Bound;

use super::image::change;
use super::reader::Reader;
use super::row::{RowRef, StoredRow};
use super::store::expect_sound;
use crate::model::{Fault, KeyValue, Revision, RowChange};

/// Number of keys or changes that are visited while the lock is held.
const HOLD_ROWS: usize = 128;

/// Number of bytes that a row or a change adds to the size of a page, in addition to its own bytes.
const PART_BYTES: usize = 64;

/// A page of rows, in key order; see [`Reader::rows_behind`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowsPage {
    /// The rows.
    pub rows: Vec<KeyValue>,
    /// The key after which the next page begins, or `None` after the last page.
    pub after: Option<Box<[u8]>>,
}

/// A page of changes, in the order in which they were made; see [`Reader::changes`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangesPage {
    /// The changes. All changes of one revision are in the same page.
    pub changes: Vec<RowChange>,
    /// The first revision of the next page.
    pub next: Revision,
    /// Whether the revision `next` is already published, so that another page is available.
    pub more: bool,
}

impl Reader {
    /// Returns a page of the rows that are live at `at` and not freed yet, starting after the key
    /// `after`. The page has about `bytes_max` bytes, but at least one key.
    ///
    /// # Errors
    /// Fails if the memory of a row was corrupted, so that its checksum does not match.
    pub fn rows_behind(
        &self,
        after: Option<&[u8]>,
        at: Revision,
        bytes_max: usize,
    ) -> Result<RowsPage, Fault> {
        let mut page = RowsPage { rows: Vec::new(), after: after.map(Into::into) };
        let mut bytes = 0;
        while bytes < bytes_max.max(1) {
            let mut found: Vec<StoredRow> = Vec::with_capacity(HOLD_ROWS);
            let (mut last, mut looked) = (None, 0);
            let state = self.shared().state();
            let from = page.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            for versions in state.index.iter_from(from).take(HOLD_ROWS) {
                looked += 1;
                last = Some(versions.newest());
                if let Some(row) = versions.live(at) {
                    bytes += bytes_of(row);
                    found.push(row.to_row());
                    if bytes >= bytes_max {
                        break;
                    }
                }
            }
            let more = looked == HOLD_ROWS || bytes >= bytes_max;
            page.after = last.filter(|_| more).map(|row| row.key().into());
            drop(state);
            for row in found {
                expect_sound(row.view())?;
                page.rows.push(row.view().key_value());
            }
            if page.after.is_none() {
                break;
            }
        }
        Ok(page)
    }

    /// Returns a page of the changes of the published revisions from `from` on. The page consists
    /// of complete revisions, about `bytes_max` bytes in total, but at least one revision. Returns
    /// `None` if the changes from `from` on are no longer available.
    ///
    /// # Errors
    /// Fails if the memory of a row was corrupted, so that its checksum does not match.
    pub fn changes(&self, from: Revision, bytes_max: usize) -> Result<Option<ChangesPage>, Fault> {
        // Revision 1 is the empty store, which has no changes.
        let next = from.max(Revision::FIRST.next());
        let mut page = ChangesPage { changes: Vec::new(), next, more: true };
        let mut bytes = 0;
        while page.more && bytes < bytes_max.max(1) {
            let mut found: Vec<StoredRow> = Vec::with_capacity(HOLD_ROWS);
            let state = self.shared().state();
            if page.next < state.history.first() {
                return Ok(None);
            }
            let newest = state.published.revision;
            while page.next <= newest && found.len() < HOLD_ROWS && bytes < bytes_max.max(1) {
                let rows = state.history.get(page.next).expect("published, and not forgotten");
                for row in (0..rows.len()).map(|at| rows.get(at)) {
                    bytes += bytes_of(row);
                    found.push(row.to_row());
                }
                page.next = page.next.next();
            }
            drop(state);
            page.more = page.next <= newest;
            for row in found {
                expect_sound(row.view())?;
                page.changes.push(change(row.view()));
            }
        }
        Ok(Some(page))
    }
}

fn bytes_of(row: RowRef<'_>) -> usize {
    row.key().len() + row.value().len() + PART_BYTES
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::{Machine, MachineOptions};
    use crate::model::{
        AckWindow, Command, Delete, Incarnation, Item, KeyRange, NodeId, Proposal, Put, Term,
    };

    fn run(machine: &mut Machine, command: Command) {
        let seq = machine.applied().get();
        let proposal = Proposal {
            node: NodeId::new(1).unwrap(),
            incarnation: Incarnation(1),
            window: AckWindow::default(),
            requests: vec![(seq, command)],
        };
        let index = machine.applied().next();
        machine.apply(index, Term(1), vec![Item::Proposal(proposal)]).unwrap();
        machine.publish();
    }

    fn put(machine: &mut Machine, number: u64) {
        run(machine, Command::Put(Put::new(format!("k{number:03}"), "v".repeat(number as usize))));
    }

    #[test]
    fn change_pages_are_contiguous_until_compaction() {
        let mut machine = Machine::new(MachineOptions::default());
        for number in 0..300 {
            put(&mut machine, number % 70);
        }
        run(&mut machine, Command::Delete(Delete { range: KeyRange::all(), prev_kv: false }));
        let reader = machine.reader();
        for bytes_max in [0, 100, 5000, 1 << 20] {
            let (mut next, mut found) = (Revision(0), Vec::new());
            loop {
                let page = reader.changes(next, bytes_max).unwrap().unwrap();
                found.extend(page.changes.iter().map(RowChange::revision));
                next = page.next;
                if !page.more {
                    break;
                }
            }
            let deletions = std::iter::repeat_n(302, 70);
            let want: Vec<Revision> = (2..302).chain(deletions).map(Revision).collect();
            assert_eq!(found, want);
            assert_eq!(next, Revision(303));
            let page = reader.changes(next, bytes_max).unwrap().unwrap();
            assert_eq!((page.changes.len(), page.next, page.more), (0, next, false));
        }
        run(&mut machine, Command::Compact(Revision(200)));
        while machine.sweep(1000) {}
        assert_eq!(reader.changes(Revision(199), 100).unwrap(), None);
        assert!(reader.changes(Revision(200), 100).unwrap().is_some());
    }

    #[test]
    fn row_pages_hold_every_live_key_once() {
        let mut machine = Machine::new(MachineOptions::default());
        for number in 0..400 {
            put(&mut machine, number);
        }
        let at = machine.revision();
        run(&mut machine, Command::Compact(at));
        let reader = machine.reader();
        let all = |bytes_max: usize| {
            let (mut after, mut rows) = (None::<Box<[u8]>>, Vec::new());
            loop {
                let page = reader.rows_behind(after.as_deref(), at, bytes_max).unwrap();
                rows.extend(page.rows);
                after = page.after;
                if after.is_none() {
                    return rows;
                }
            }
        };
        let keys: Vec<_> = (0..400).map(|number| format!("k{number:03}")).collect();
        for bytes_max in [0, 1000, 50_000, 1 << 20] {
            let rows: BTreeMap<_, _> = all(bytes_max).into_iter().map(|kv| (kv.key, ())).collect();
            assert_eq!(rows.keys().cloned().collect::<Vec<_>>(), keys);
            assert_eq!(all(bytes_max).len(), 400);
        }
        // The old row is superseded but still stored. After the compaction, the row is swept.
        put(&mut machine, 7);
        assert_eq!(all(1000).len(), 400);
        let newest = machine.revision();
        run(&mut machine, Command::Compact(newest));
        while machine.sweep(1000) {}
        assert_eq!(all(1000).len(), 399);
    }
}
