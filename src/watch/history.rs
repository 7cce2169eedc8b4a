//! The interface through which a watcher that is behind reads past changes. It is a trait so that
//! tests can interfere during a read.

use crate::machine::{HistoryPage, Reader};
use crate::model::{KeyRange, Rejection, Revision};

/// The changes that the replica remembers. It shows a revision before the hub publishes it.
pub trait WatchHistory: Send + Sync + 'static {
    /// Returns the newest revision that can be read. It never decreases.
    fn revision(&self) -> Revision;

    /// Returns the changes of `range` from revision `from` on: complete revisions, about
    /// `bytes_max` bytes of them, but at least one revision.
    ///
    /// # Errors
    /// Fails if `from` is older than the remembered history.
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
