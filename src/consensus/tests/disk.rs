//! The log's twin in memory: what a member has on disk, and what a crash leaves of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::consensus::store::OlderEntries;
use crate::model::{LogIndex, Term};
use crate::wal;

/// A disk that survives its member. Clones share it.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<Platter>>);

#[derive(Default)]
pub(super) struct Platter {
    /// Entries from index 2 on.
    pub(super) entries: Vec<wal::Entry>,
    pub(super) hard_state: wal::HardState,
    /// Groups that were handed over and are not synced.
    pub(super) queued: VecDeque<wal::Group>,
    /// Reading entries fails.
    pub(super) broken: bool,
    /// The most entries that one read brings.
    pub(super) read_max: usize,
    /// Reads so far.
    pub(super) reads: usize,
}

impl Disk {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Platter { read_max: usize::MAX, ..Platter::default() })))
    }

    /// What is on it.
    pub(super) fn look(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }
}

impl Platter {
    pub(super) fn last(&self) -> LogIndex {
        LogIndex(self.entries.len() as u64 + 1)
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        match index.get() {
            0 => None,
            1 => Some(Term(1)),
            index => self.entries.get(index as usize - 2).map(|entry| entry.term),
        }
    }

    /// Syncs the oldest queued group and returns its number.
    pub(super) fn sync(&mut self) -> Option<u64> {
        let group = self.queued.pop_front()?;
        if let Some(first) = group.entries.first() {
            assert!(
                first.index.get() >= 2 && first.index <= self.last().next(),
                "a gap in the log"
            );
            self.entries.truncate(first.index.get() as usize - 2);
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
        let (from, to) = (from.get() as usize - 2, to.get() as usize - 2);
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
        LogIndex(2)
    }

    fn last(&self) -> LogIndex {
        self.look().last()
    }
}
