//! The parameters of a watch, and the items that it yields.

use std::sync::Arc;

use thiserror::Error;

use crate::model::{Event, EventKind, KeyRange, Revision};

/// The parameters of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchRequest {
    /// The keys to watch.
    pub range: KeyRange,
    /// The first revision to yield, past or future. `None` yields changes from now on.
    pub from: Option<Revision>,
    /// Whether events include the previous row, if it is still available.
    pub prev_kv: bool,
    /// The kinds of changes to yield.
    pub filter: Filter,
}

impl WatchRequest {
    /// Watches every change of `range` from now on, without previous rows.
    pub fn new(range: impl Into<KeyRange>) -> Self {
        Self { range: range.into(), from: None, prev_kv: false, filter: Filter::All }
    }
}

/// A filter on the kinds of changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Filter {
    /// Yields all changes.
    #[default]
    All,
    /// Yields no puts.
    NoPut,
    /// Yields no deletions.
    NoDelete,
}

impl Filter {
    /// Returns whether an event of this kind passes the filter.
    pub fn passes(self, kind: EventKind) -> bool {
        match self {
            Filter::All => true,
            Filter::NoPut => kind != EventKind::Put,
            Filter::NoDelete => kind != EventKind::Delete,
        }
    }
}

/// Some complete revisions of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WatchBatch {
    /// The changes, oldest first. All changes of one revision are in the same batch, in the order
    /// of the operations of the request. A batch is empty only if it is the reply to
    /// [`request_progress`](super::Watcher::request_progress).
    pub events: Vec<Event>,
    /// Every event of the watch up to this revision was yielded, in this batch or an earlier one.
    /// The value is at least the revision of the last event, and never lower than in the previous
    /// batch.
    pub revision: Revision,
}

/// The reason why a watch ended. All earlier changes were yielded without a gap.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The watch needs changes that were compacted, because it started at an old revision or fell
    /// too far behind. Read the state again, and start a new watch from the revision of that read.
    #[error("required revision {asked} has been compacted; the oldest left is {compacted}")]
    Compacted {
        /// The first revision that could not be yielded.
        asked: Revision,
        /// The oldest revision that a watch can start from.
        compacted: Revision,
    },
    /// The user of this watch no longer has the right to read these keys.
    #[error("permission denied")]
    Denied,
    /// The node has stopped.
    #[error("the watch ended before revision {resume}: {why}")]
    Closed {
        /// The revision from which another watch can continue this one, on another node or after a
        /// restart.
        resume: Revision,
        /// The reason why the node stopped.
        why: Arc<str>,
    },
}

/// Limits on the memory that a watch keeps for a slow consumer, and on the size of one read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchLimits {
    /// Maximum number of revisions in one watcher's queue. At the limit, the watcher continues from
    /// the history after its consumer has emptied the queue. At least 1. Default: 256.
    pub queue_revisions_max: usize,
    /// Maximum size of the changes in one watcher's queue, in bytes. All keys and values of a
    /// revision count, including keys outside the watched range. A single revision may be larger
    /// than the limit. Watchers share the changes in memory, so the total memory is usually less
    /// than the sum over all watchers. Default: 256 KiB.
    pub queue_bytes_max: usize,
    /// Maximum number of bytes of history read at once. A single revision may exceed the limit.
    /// Default: 256 KiB.
    pub page_bytes_max: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self { queue_revisions_max: 256, queue_bytes_max: 256 << 10, page_bytes_max: 256 << 10 }
    }
}
