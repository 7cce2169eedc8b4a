//! The past, as a watcher that is behind reads it.

use std::sync::Arc;

use crate::model::{Event, KeyRange, Revision};

/// The changes that the replica remembers. Shows a revision before the hub publishes it.
pub trait History: Send + Sync + 'static {
    /// The newest revision that can be read. Never goes back.
    fn revision(&self) -> Revision;

    /// The changes of `range` from revision `from` on: whole revisions of at most `bytes_max`
    /// together, or a single larger one.
    ///
    /// # Errors
    /// If `from` is below what is left.
    fn events(&self, range: &KeyRange, from: Revision, bytes_max: usize)
    -> Result<Page, Compacted>;
}

/// The history before this revision is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compacted(pub Revision);

/// What one revision changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The revision.
    pub revision: Revision,
    /// Its events, in the order in which the request made them.
    pub events: Arc<[Event]>,
}

/// A piece of history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The changes, oldest first, with the rows before them.
    pub events: Vec<Event>,
    /// Nothing up to here is left out. Not below the revision asked for, if that one exists.
    pub through: Revision,
}
