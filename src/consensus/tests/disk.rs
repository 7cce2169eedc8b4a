//! An in-memory log: the contents of a member's disk, and what a crash leaves of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use super::machine::Machine;
use crate::consensus::store::OlderEntries;
use crate::model::{LogIndex, SnapshotId, Term};
use crate::wal;

/// A disk that survives its member. Clones share it.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<Platter>>);

#[derive(Default)]
pub(super) struct Platter {
    /// A snapshot covers everything up to the base.
    pub(super) base: wal::Base,
    pub(super) entries: Vec<wal::Entry>,
    pub(super) hard_state: wal::HardState,
    /// Complete, verified and synced snapshots.
    pub(super) files: BTreeMap<SnapshotId, Machine>,
    /// Groups that were handed over but are not synced.
    pub(super) queued: VecDeque<wal::Group>,
    /// Whether reads of entries fail.
    pub(super) broken: bool,
    /// Maximum number of entries per read.
    pub(super) read_max: usize,
    /// Number of reads so far.
    pub(super) reads: usize,
}

impl Disk {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Platter { read_max: usize::MAX, ..Platter::default() })))
    }

    /// Locks the disk and returns its contents.
    pub(super) fn look(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }
}

impl Platter {
    pub(super) fn last(&self) -> LogIndex {
        LogIndex(self.base.index.get() + self.entries.len() as u64)
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        self.entries.get(self.place(index)?).map(|entry| entry.term)
    }

    fn place(&self, index: LogIndex) -> Option<usize> {
        Some(index.get().checked_sub(self.base.index.get() + 1)? as usize)
    }

    /// Returns whether the disk contains an entry, in the log or in a snapshot.
    pub(super) fn holds(&self, index: LogIndex, term: Term) -> bool {
        index < self.base.index || self.term(index) == Some(term)
    }

    /// Truncates the front of the log.
    pub(super) fn cut(&mut self, up_to: LogIndex) {
        let Some(term) = self.term(up_to) else { return };
        assert!(self.files.keys().any(|id| id.index >= up_to && id.term >= term), "S-PURGE");
        let count = self.place(up_to.next()).unwrap();
        self.entries.drain(..count);
        self.base = wal::Base { index: up_to, term };
    }

    /// Syncs the oldest queued group and returns its number.
    pub(super) fn sync(&mut self) -> Option<u64> {
        let group = self.queued.pop_front()?;
        if let Some(base) = group.base
            && !self.holds(base.index, base.term)
        {
            let is_covered =
                self.files.keys().any(|id| (id.index, id.term) == (base.index, base.term));
            assert!(is_covered, "S-PURGE: the log begins again behind what is in no file");
            (self.base, self.entries) = (base, Vec::new());
        }
        if let Some(first) = group.entries.first() {
            assert!(
                first.index > self.base.index && first.index <= self.last().next(),
                "a gap in the log"
            );
            let keep = self.place(first.index).unwrap();
            self.entries.truncate(keep);
            self.entries.extend(group.entries);
        }
        if let Some(hard_state) = group.hard_state {
            let before = &self.hard_state;
            assert!(hard_state.term >= before.term, "R-TERM");
            assert!(hard_state.commit >= before.commit, "R-COMMIT");
            if hard_state.term == before.term {
                assert!(before.vote.is_none() || before.vote == hard_state.vote, "R-VOTE");
            }
            self.hard_state = hard_state;
        }
        Some(group.number)
    }
}

impl OlderEntries for Disk {
    fn entries(
        &self,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<wal::Entry>, Box<dyn std::error::Error + Send + Sync>> {
        let mut platter = self.look();
        platter.reads += 1;
        if platter.broken {
            return Err("the disk is broken".into());
        }
        let (Some(from), Some(to)) = (platter.place(from), platter.place(to)) else {
            return Err("the log begins later".into());
        };
        let mut bytes = 0;
        let entries = platter.entries[from..to].iter().take(platter.read_max).take_while(|entry| {
            bytes += entry.data.len();
            bytes == entry.data.len() || bytes <= bytes_max
        });
        Ok(entries.cloned().collect())
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        self.look().term(index)
    }

    fn first(&self) -> LogIndex {
        self.look().base.index.next()
    }

    fn last(&self) -> LogIndex {
        self.look().last()
    }
}
