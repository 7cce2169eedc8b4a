//! The interface through which a watcher reads past changes. The interface is a trait so that a
//! test can change the state in the middle of a read.

use crate::machine::{HistoryPage, Reader};
use crate::model::{KeyRange, Rejection, Revision};

/// The changes that the replica still stores. A revision is in the history before the hub publishes
/// it.
pub trait WatchHistory: Send + Sync + 'static {
    /// Returns the newest revision that can be read. This revision never decreases.
    fn revision(&self) -> Revision;

    /// Returns the changes of `range` from revision `from` on. The result consists of complete
    /// revisions, about `bytes_max` bytes in total, but at least one revision.
    ///
    /// # Errors
    /// Fails if the history no longer contains the revision `from`.
    fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Compacted>;
}

/// The history before this revision is compacted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compacted(pub Revision);

impl WatchHistory for Reader {
    fn revision(&self) -> Revision {
        Reader::revision(self)
    }

    fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Compacted> {
        Reader::events(self, range, from, bytes_max).map_err(|rejection| match rejection {
            Rejection::Compacted { compacted, .. } => Compacted(compacted),
            other => unreachable!("history is refused only where it is compacted: {other}"),
        })
    }
}
