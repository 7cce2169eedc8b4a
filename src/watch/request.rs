//! What one asks of a watch, and what it yields.

use std::sync::Arc;

use thiserror::Error;

use crate::model::{Event, EventKind, KeyRange, Revision};

/// Which changes to yield, and from when on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchRequest {
    /// Of which keys.
    pub range: KeyRange,
    /// The first revision to yield, past or future; `None` is what happens from now on.
    pub from: Option<Revision>,
    /// Whether events carry the row before the change, where it is still known.
    pub prev_kv: bool,
    /// Of which kind.
    pub filter: Filter,
}

impl WatchRequest {
    /// Every change of `range` that happens from now on, without the rows before.
    pub fn new(range: impl Into<KeyRange>) -> Self {
        Self { range: range.into(), from: None, prev_kv: false, filter: Filter::All }
    }
}

/// Which kinds of changes a watch yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Filter {
    /// All.
    #[default]
    All,
    /// All but puts.
    NoPut,
    /// All but deletions.
    NoDelete,
}

impl Filter {
    /// Whether an event of this kind passes.
    pub fn passes(self, kind: EventKind) -> bool {
        match self {
            Filter::All => true,
            Filter::NoPut => kind != EventKind::Put,
            Filter::NoDelete => kind != EventKind::Delete,
        }
    }
}

/// Some whole revisions of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WatchBatch {
    /// The changes, oldest first; those of one revision are together, in the order in which the
    /// request made them. Empty only as the answer to
    /// [`request_progress`](super::Watcher::request_progress).
    pub events: Vec<Event>,
    /// Every event of the watch up to this revision has been yielded, with this batch or before it.
    /// At or above the revision of the last event. Never less than in the batch before.
    pub revision: Revision,
}

/// Why a watch ended. Everything before was yielded without a gap.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The watch started, or fell behind, below what the history still has. Read the state again,
    /// and watch from there.
    #[error("required revision {asked} has been compacted; the oldest left is {compacted}")]
    Compacted {
        /// The first revision that could not be yielded.
        asked: Revision,
        /// The oldest revision that a watch can start from.
        compacted: Revision,
    },
    /// For whom this was watched may not read these keys any more.
    #[error("permission denied")]
    Denied,
    /// The node has stopped.
    #[error("the watch ended before revision {resume}: {why}")]
    Closed {
        /// Where to continue, on another node or after a restart.
        resume: Revision,
        /// Why the node stopped.
        why: Arc<str>,
    },
}

/// How much a watch may keep in memory for a consumer that does not keep up, and how much it reads
/// at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchLimits {
    /// The most revisions that wait in one watcher's queue. At the limit, the watcher continues from
    /// the history when its consumer has emptied the queue. At least 1. Default 256.
    pub queue_revisions_max: usize,
    /// The most bytes that the changes in one watcher's queue hold, all keys and values counted, also
    /// those of other keys changed by the same request. A single revision may be larger. Watchers
    /// share the changes, so the sum over all is a bound and not a cost. Default 256 KiB.
    pub queue_bytes_max: usize,
    /// The most bytes of history read at once, unless a single revision is larger. Default 256 KiB.
    pub page_bytes_max: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self { queue_revisions_max: 256, queue_bytes_max: 256 << 10, page_bytes_max: 256 << 10 }
    }
}
