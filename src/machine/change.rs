//! The changes of one revision, as the writer hands them to watchers and locks.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::row::{StoredRow, StoredRows};
use crate::model::{Event, LeaseId, Revision};

/// The changes of one revision.
///
/// The rows are turned into events only when the events are needed: not on a node without live
/// watchers, and not for keys that belong to no lock of the node.
#[derive(Clone)]
pub struct Change {
    revision: Revision,
    rows: Rows,
    events: OnceLock<Arc<[Event]>>,
}

#[derive(Clone)]
enum Rows {
    /// The usual request writes one row.
    One(WrittenRow),
    Many(Vec<WrittenRow>),
    /// The change was created from its events.
    Events,
}

/// A row that was written, and the row before it.
#[derive(Clone)]
pub(super) struct WrittenRow {
    pub(super) row: StoredRow,
    /// `None` if the key did not exist.
    pub(super) prev: Option<StoredRow>,
}

impl WrittenRow {
    /// Returns the lease of the row before.
    pub(super) fn lease_before(&self) -> Option<LeaseId> {
        self.prev.as_ref().and_then(|prev| prev.view().meta().lease)
    }

    fn event(&self) -> Event {
        self.row.view().event(self.prev.as_ref().map(|prev| prev.view().key_value()))
    }
}

impl Change {
    /// Creates a change from its events, which are in the order of the operations of the request.
    pub fn of_events(revision: Revision, events: Arc<[Event]>) -> Self {
        Self { revision, rows: Rows::Events, events: events.into() }
    }

    pub(super) fn of_row(revision: Revision, row: WrittenRow) -> Self {
        Self { revision, rows: Rows::One(row), events: OnceLock::new() }
    }

    /// Adds the next row of the same revision.
    pub(super) fn push(&mut self, row: WrittenRow) {
        self.rows = match std::mem::replace(&mut self.rows, Rows::Events) {
            Rows::One(first) => Rows::Many(vec![first, row]),
            Rows::Many(mut rows) => {
                rows.push(row);
                Rows::Many(rows)
            }
            Rows::Events => unreachable!("the writer adds rows to rows"),
        };
    }

    pub(super) fn last(&self) -> &WrittenRow {
        match &self.rows {
            Rows::One(row) => row,
            Rows::Many(rows) => rows.last().expect("two rows at least"),
            Rows::Events => unreachable!("the writer asks for its rows"),
        }
    }

    /// Returns the rows as the history stores them.
    pub(super) fn stored_rows(&self) -> StoredRows {
        match &self.rows {
            Rows::One(row) => StoredRows::one(row.row.clone()),
            Rows::Many(rows) => {
                StoredRows::collect(rows.iter().map(|row| row.row.clone()).collect())
            }
            Rows::Events => unreachable!("the writer asks for its rows"),
        }
    }

    /// Returns the revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the number of written rows.
    pub(super) fn row_count(&self) -> usize {
        match &self.rows {
            Rows::One(_) => 1,
            Rows::Many(rows) => rows.len(),
            Rows::Events => self.events().len(),
        }
    }

    /// Returns whether any of the changed keys fulfills a condition.
    pub fn any_key(&self, mut is_wanted: impl FnMut(&[u8]) -> bool) -> bool {
        match &self.rows {
            Rows::One(row) => is_wanted(row.row.view().key()),
            Rows::Many(rows) => rows.iter().any(|row| is_wanted(row.row.view().key())),
            Rows::Events => self.events().iter().any(|event| is_wanted(&event.kv.key)),
        }
    }

    /// Returns the events in the order of the operations of the request, with the previous rows.
    pub fn events(&self) -> &Arc<[Event]> {
        self.events.get_or_init(|| match &self.rows {
            Rows::One(row) => Arc::new([row.event()]),
            Rows::Many(rows) => rows.iter().map(WrittenRow::event).collect(),
            Rows::Events => unreachable!("created with events"),
        })
    }
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        self.revision == other.revision && self.events() == other.events()
    }
}

impl Eq for Change {}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change")
            .field("revision", &self.revision)
            .field("events", self.events())
            .finish()
    }
}
