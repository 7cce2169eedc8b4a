//! The log storage for raft: the newest entries from memory, older ones from the log on disk.
//!
//! ```text
//!   base │ ............ first ................... last
//!        └─ log reader ─┘└──────── cache ────────┘
//!             (disk)         (some not on disk yet)
//! ```
//!
//! The base is the entry before the oldest entry in the log. A snapshot covers all entries up to
//! the base. The base moves when the front of the log is truncated, and when a snapshot of another
//! member replaces the log. A replacement changes the base in memory before the log on disk.
//!
//! The raft crate treats an error as fatal (it panics) or as a reason to send a snapshot. Therefore
//! a disk error is recorded here as a fault, which stops the member at its next turn. Raft only
//! gets the reply that the entries are *temporarily* unavailable. In calls where raft does not
//! accept this reply, the entries are loaded before the call: see [`RaftStore::prefetch`].

use std::cell::{Cell, RefCell};

use raft::eraftpb::{self, ConfState, EntryType};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::model::{LogIndex, NodeId, SnapshotId, Term};
use crate::wal;

use super::cache::{Cache, entry_bytes};
use super::fault::ConsensusFault;
use super::membership::Configuration;
use super::snapshot;

/// The entries on disk: the log's reader, or its in-memory counterpart in tests.
pub(crate) trait OlderEntries: Send {
    /// Returns consecutive entries from `from` to `to` (exclusive), as many as fit into `bytes_max`
    /// bytes, but at least one.
    ///
    /// # Errors
    /// Returns the reason why the entries cannot be read.
    fn entries(
        &self,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<wal::Entry>, Box<dyn std::error::Error + Send + Sync>>;

    /// Returns the term of an entry from memory, or `None` if there is no such entry.
    fn term(&self, index: LogIndex) -> Option<Term>;

    /// Returns the index of the oldest entry, or the next index if there are no entries.
    /// [`term`](Self::term) also returns the term of the index before this one.
    fn first(&self) -> LogIndex;

    /// Returns the index of the newest entry, or the index before the first one if there are no
    /// entries.
    fn last(&self) -> LogIndex;
}

impl OlderEntries for wal::LogReader {
    fn entries(
        &self,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<wal::Entry>, Box<dyn std::error::Error + Send + Sync>> {
        wal::LogReader::entries(self, from, to, bytes_max).map_err(Into::into)
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        wal::LogReader::term(self, index)
    }

    fn first(&self) -> LogIndex {
        wal::LogReader::first(self)
    }

    fn last(&self) -> LogIndex {
        wal::LogReader::last(self)
    }
}

/// Converts an entry for raft. Its data is shared, not copied.
pub(super) fn to_raft(entry: wal::Entry) -> eraftpb::Entry {
    let entry_type = match entry.kind {
        wal::EntryKind::Data => EntryType::EntryNormal,
        wal::EntryKind::Membership => EntryType::EntryConfChangeV2,
    };
    eraftpb::Entry {
        entry_type,
        term: entry.term.get(),
        index: entry.index.get(),
        data: entry.data,
        ..eraftpb::Entry::default()
    }
}

/// Converts an entry for the log. Its data is shared, not copied.
pub(super) fn to_wal(entry: eraftpb::Entry) -> wal::Entry {
    let kind = match entry.entry_type {
        EntryType::EntryNormal => wal::EntryKind::Data,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => wal::EntryKind::Membership,
    };
    wal::Entry { index: LogIndex(entry.index), term: Term(entry.term), kind, data: entry.data }
}

/// The log storage for raft. See the module page.
pub(super) struct RaftStore {
    older: Box<dyn OlderEntries>,
    /// The entry before the oldest one that raft may request.
    base: wal::Base,
    cache: Cache,
    /// Entries older than the cache that raft is about to request.
    prefetched: Vec<eraftpb::Entry>,
    start: RaftState,
    /// The snapshot for followers that need entries which the log no longer contains.
    offered: Option<(SnapshotId, Configuration)>,
    /// Whether a follower needs another snapshot.
    is_wanted: Cell<bool>,
    /// Maximum number of bytes of one read from disk.
    read_bytes_max: usize,
    fault: RefCell<Option<ConsensusFault>>,
}

impl RaftStore {
    /// Creates the storage.
    ///
    /// # Errors
    /// Fails if the log does not know its base.
    pub(super) fn new(
        older: Box<dyn OlderEntries>,
        hard_state: eraftpb::HardState,
        members: ConfState,
        read_bytes_max: u64,
    ) -> Result<Self, ConsensusFault> {
        Ok(Self {
            base: base_of(&*older)?,
            cache: Cache::new(older.last().get() + 1),
            older,
            prefetched: Vec::new(),
            start: RaftState::new(hard_state, members),
            offered: None,
            is_wanted: Cell::new(false),
            read_bytes_max: usize::try_from(read_bytes_max).unwrap_or(usize::MAX),
            fault: RefCell::new(None),
        })
    }

    /// Updates the base after the front of the log was truncated, or after the log was restarted
    /// from a snapshot. Raft will not request the removed entries, so they are dropped from memory
    /// too.
    ///
    /// # Errors
    /// Fails if the log does not know its base.
    pub(super) fn cut(&mut self) -> Result<(), ConsensusFault> {
        let base = base_of(&*self.older)?;
        if base.index > self.base.index {
            self.base = base;
            self.cache.evict(base.index.get(), 0);
        }
        Ok(())
    }

    /// Returns the entry before the oldest one.
    pub(super) fn base(&self) -> wal::Base {
        self.base
    }

    /// Replaces the log by a snapshot: it restarts after `base`.
    pub(super) fn begin_again(&mut self, base: wal::Base) {
        assert!(base.index > self.base.index, "the log goes back to {}", base.index);
        self.base = base;
        self.cache = Cache::new(base.index.get() + 1);
        self.prefetched.clear();
    }

    /// Sets the snapshot for followers that need entries which the log no longer contains.
    pub(super) fn offer(&mut self, offered: Option<(SnapshotId, Configuration)>) {
        self.offered = offered;
        self.is_wanted.set(false);
    }

    /// Returns whether raft has requested a snapshot since the last offer and could not use the
    /// offered one.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.get()
    }

    /// Adds entries to the cache while they are being written to disk.
    pub(super) fn append(&mut self, entries: &[eraftpb::Entry]) {
        self.cache.append(entries);
    }

    /// Evicts the oldest entries until at most `bytes_max` bytes remain. Entries after `up_to` stay
    /// in memory. Entries up to `up_to` must be on disk and applied.
    pub(super) fn evict(&mut self, up_to: LogIndex, bytes_max: usize) {
        self.cache.evict(up_to.get(), bytes_max);
    }

    /// Returns whether the entries from this one on are in memory.
    pub(super) fn is_cached(&self, from: LogIndex) -> bool {
        self.cache.first() <= from.get()
    }

    /// Returns the memory of the cached entries in bytes.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Loads the uncached entries from `from` to `to` (exclusive), which raft will request next,
    /// with at most one read from disk.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub(super) fn prefetch(&mut self, from: LogIndex, to: LogIndex) -> Result<(), ConsensusFault> {
        self.prefetched.clear();
        let to = to.get().min(self.cache.first());
        if from.get() < to {
            self.prefetched = self.read(from.get(), to, self.read_bytes_max)?;
        }
        Ok(())
    }

    /// Loads entries from `from` to `to` (exclusive) into memory, with at most one read from disk.
    /// Returns the index of the last entry that is now in memory.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub(super) fn fetch(
        &mut self,
        from: LogIndex,
        to: LogIndex,
    ) -> Result<LogIndex, ConsensusFault> {
        self.prefetch(from, to)?;
        match self.prefetched.last() {
            Some(last) if last.index + 1 < self.cache.first() => Ok(LogIndex(last.index)),
            _ => Ok(LogIndex(to.get() - 1)),
        }
    }

    /// Returns the fault that was recorded while raft was reading.
    pub(super) fn take_fault(&mut self) -> Option<ConsensusFault> {
        self.fault.get_mut().take()
    }

    /// Reads once from disk. Returns the requested entries, or a fault if the log does not return
    /// all of them. A short result is never taken for the end of the log.
    fn read(
        &self,
        from: u64,
        to: u64,
        bytes_max: usize,
    ) -> Result<Vec<eraftpb::Entry>, ConsensusFault> {
        let entries =
            self.older.entries(LogIndex(from), LogIndex(to), bytes_max).map_err(|error| {
                ConsensusFault::Unreadable { index: LogIndex(from), why: error.to_string() }
            })?;
        if entries.is_empty() {
            return Err(ConsensusFault::OutOfOrder { asked: LogIndex(from), found: None });
        }
        for (entry, index) in entries.iter().zip(from..) {
            if entry.index.get() != index || index >= to {
                let found = Some(entry.index);
                return Err(ConsensusFault::OutOfOrder { asked: LogIndex(index), found });
            }
        }
        Ok(entries.into_iter().map(to_raft).collect())
    }

    /// Returns entries older than the cache, either prefetched or read from disk.
    fn read_older(
        &self,
        from: u64,
        to: u64,
        bytes_max: Option<u64>,
    ) -> Result<Vec<eraftpb::Entry>, ConsensusFault> {
        if let Some(first) = self.prefetched.first()
            && let Some(skip) = from.checked_sub(first.index)
            && (skip as usize) < self.prefetched.len()
        {
            let mut bytes = 0;
            let fits = |entry: &&eraftpb::Entry| {
                let first = bytes == 0;
                bytes += entry_bytes(entry) as u64;
                entry.index < to && (first || bytes_max.is_none_or(|max| bytes <= max))
            };
            let found: Vec<_> =
                self.prefetched[skip as usize..].iter().take_while(fits).cloned().collect();
            if bytes_max.is_some() || found.len() as u64 == to - from {
                return Ok(found);
            }
        }
        let Some(bytes_max) = bytes_max else {
            // Raft needs all entries of this range, and would take a shorter result for the
            // complete one. Therefore the reads are repeated until the range is complete.
            let mut all = Vec::new();
            while from + (all.len() as u64) < to {
                all.extend(self.read(from + all.len() as u64, to, self.read_bytes_max)?);
            }
            return Ok(all);
        };
        self.read(from, to, usize::try_from(bytes_max).unwrap_or(usize::MAX))
    }

    fn note(&self, fault: ConsensusFault) {
        self.fault.borrow_mut().get_or_insert(fault);
    }
}

impl Storage for RaftStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.start.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        let max_size = max_size.into();
        if low <= self.base.index.get() {
            return Err(StorageError::Compacted.into());
        }
        if high > self.cache.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        if low >= high {
            return Ok(Vec::new());
        }
        if low >= self.cache.first() {
            return Ok(self.cache.range(low, high, max_size.unwrap_or(u64::MAX)));
        }
        let from_disk = high.min(self.cache.first());
        match self.read_older(low, from_disk, max_size) {
            Ok(mut entries) => {
                if max_size.is_none() && from_disk < high {
                    entries.extend(self.cache.range(from_disk, high, u64::MAX));
                }
                Ok(entries)
            }
            // The read failed because the log was truncated at the same time.
            Err(_) if low < self.older.first().get() => Err(StorageError::Compacted.into()),
            Err(fault) => {
                let text = fault.to_string();
                self.note(fault);
                Err(if context.can_async() {
                    StorageError::LogTemporarilyUnavailable.into()
                } else {
                    StorageError::Other(text.into()).into()
                })
            }
        }
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base.index.get() {
            return Ok(self.base.term.get());
        }
        if index < self.base.index.get() {
            return Err(StorageError::Compacted.into());
        }
        if let Some(entry) = self.cache.get(index) {
            return Ok(entry.term);
        }
        if index > self.cache.last() {
            return Err(StorageError::Unavailable.into());
        }
        match self.older.term(LogIndex(index)) {
            Some(term) => Ok(term.get()),
            // The log was truncated, and raft has not been informed yet.
            None if index < self.older.first().get() => Err(StorageError::Compacted.into()),
            None => {
                self.note(ConsensusFault::OutOfOrder { asked: LogIndex(index), found: None });
                Err(StorageError::Unavailable.into())
            }
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.index.get() + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.cache.last())
    }

    /// Returns the offered snapshot if the log contains all entries after it and the follower is
    /// one of its members. Otherwise raft asks again later. Raft does not install a snapshot on a
    /// member that the snapshot does not contain.
    fn snapshot(&self, _: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        match &self.offered {
            Some((id, configuration))
                if id.index >= self.base.index
                    && NodeId::new(to).is_some_and(|to| configuration.contains(to)) =>
            {
                Ok(snapshot::to_raft(*id, configuration))
            }
            _ => {
                self.is_wanted.set(true);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}

/// Returns the entry before the oldest one. Another thread may truncate the log meanwhile.
fn base_of(older: &dyn OlderEntries) -> Result<wal::Base, ConsensusFault> {
    loop {
        let first = older.first();
        let index = LogIndex(first.get() - 1);
        match older.term(index) {
            Some(term) => return Ok(wal::Base { index, term }),
            None if older.first() == first => {
                return Err(ConsensusFault::OutOfOrder { asked: index, found: None });
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Entries 2 to 11, at most three per read. The counter is the first index of the log.
    struct Pieces(Arc<AtomicU64>);

    impl OlderEntries for Pieces {
        fn entries(
            &self,
            from: LogIndex,
            to: LogIndex,
            _: usize,
        ) -> Result<Vec<wal::Entry>, Box<dyn std::error::Error + Send + Sync>> {
            let entry = |index| to_wal(eraftpb::Entry { index, term: 1, ..Default::default() });
            Ok((from.get()..to.get()).take(3).map(entry).collect())
        }

        fn term(&self, index: LogIndex) -> Option<Term> {
            (self.first().get() - 1..=13).contains(&index.get()).then_some(Term(1))
        }

        fn first(&self) -> LogIndex {
            LogIndex(self.0.load(Ordering::Relaxed))
        }

        fn last(&self) -> LogIndex {
            LogIndex(11)
        }
    }

    fn store_behind(first: &Arc<AtomicU64>) -> RaftStore {
        let pieces = Box::new(Pieces(Arc::clone(first)));
        let mut store =
            RaftStore::new(pieces, Default::default(), Default::default(), u64::MAX).unwrap();
        let new = |index| eraftpb::Entry { index, term: 2, ..Default::default() };
        store.append(&[new(12), new(13)]);
        store
    }

    fn store() -> RaftStore {
        store_behind(&Arc::new(AtomicU64::new(2)))
    }

    fn indices(low: u64, high: u64, max: Option<u64>) -> Vec<u64> {
        let entries = store().entries(low, high, max, GetEntriesContext::empty(false)).unwrap();
        entries.iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn unlimited_read_returns_every_entry() {
        assert_eq!(indices(2, 14, None), (2..14).collect::<Vec<_>>());
        assert_eq!(indices(5, 9, None), (5..9).collect::<Vec<_>>());
    }

    #[test]
    fn limited_read_takes_one_disk_read_and_has_no_gap() {
        assert_eq!(indices(2, 14, Some(u64::MAX)), [2, 3, 4]);
        assert_eq!(indices(11, 14, Some(u64::MAX)), [11]);
        assert_eq!(indices(12, 14, Some(u64::MAX)), [12, 13]);
    }

    #[test]
    fn indices_outside_the_log_are_compacted_or_unavailable() {
        let get = |low, high| store().entries(low, high, None, GetEntriesContext::empty(false));
        assert_eq!(get(1, 3).unwrap_err(), StorageError::Compacted.into());
        assert_eq!(get(12, 15).unwrap_err(), StorageError::Unavailable.into());
        assert_eq!(store().term(0).unwrap_err(), StorageError::Compacted.into());
        assert_eq!(store().term(14).unwrap_err(), StorageError::Unavailable.into());
        let terms = [1, 2, 11, 12, 13].map(|index| store().term(index).unwrap());
        assert_eq!(terms, [1, 1, 1, 2, 2]);
    }

    #[test]
    fn truncated_entries_leave_the_cache() {
        let first = Arc::new(AtomicU64::new(2));
        let mut store = store_behind(&first);
        store.cut().unwrap();
        assert!(store.is_cached(LogIndex(12)), "nothing was cut");
        let both = store.cached_bytes();
        first.store(13, Ordering::Relaxed);
        store.cut().unwrap();
        assert!(!store.is_cached(LogIndex(12)));
        assert_eq!(store.cached_bytes(), both / 2);
        let get = |low| store.entries(low, 14, None, GetEntriesContext::empty(false));
        assert_eq!(get(12).unwrap_err(), StorageError::Compacted.into());
        assert_eq!(get(13).unwrap()[0].index, 13);
    }

    #[test]
    fn entries_fetched_ahead_are_not_read_again() {
        let mut store = store();
        store.prefetch(LogIndex(2), LogIndex(9)).unwrap();
        assert_eq!(store.prefetched.len(), 3);
        let get = |low, max| store.entries(low, 9, max, GetEntriesContext::empty(false)).unwrap();
        assert_eq!(get(3, Some(u64::MAX)).len(), 2);
        assert_eq!(get(3, Some(0)).len(), 1);
        assert_eq!(get(2, None).len(), 7, "all, if all were asked for");
        store.prefetch(LogIndex(12), LogIndex(14)).unwrap();
        assert!(store.prefetched.is_empty(), "in the cache");
    }
}
