//! The past, as a watcher that is behind reads it. A door, so that tests can act while it is read.

use crate::machine::{HistoryPage, Reader};
use crate::model::{KeyRange, Rejection, Revision};

/// The changes that the replica remembers. Shows a revision before the hub publishes it.
pub trait History: Send + Sync + 'static {
    /// The newest revision that can be read. Never goes back.
    fn revision(&self) -> Revision;

    /// The changes of `range` from revision `from` on: whole revisions, about `bytes_max` of them
    /// and at least one.
    ///
    /// # Errors
    /// If `from` is below what is left.
    fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Compacted>;
}

/// The history before this revision is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compacted(pub Revision);

impl History for Reader {
    fn revision(&self) -> Revision {
        Reader::revision(self)
    }

    fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        bytes_max: usize,
    ) -> Result<HistoryPage, Compacted> {
        Reader::events(self, range, from, bytes_max).map_err(|refusal| match refusal {
            Rejection::Compacted { compacted, .. } => Compacted(compacted),
            other => unreachable!("history is refused only where it is compacted: {other}"),
        })
    }
}
