//! The in-memory cache of the newest log entries.

use std::collections::VecDeque;

use raft::eraftpb::Entry;

/// Memory of an entry in addition to its data, in bytes.
const ENTRY_OVERHEAD: usize = std::mem::size_of::<Entry>();

/// Returns the memory that an entry takes.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + ENTRY_OVERHEAD
}

/// A contiguous run of entries that ends with the newest one.
#[derive(Debug)]
pub(super) struct Cache {
    entries: VecDeque<Entry>,
    /// Index after the newest entry.
    next: u64,
    bytes: usize,
}

impl Cache {
    /// Creates an empty cache. The log ends before `next`.
    pub(super) fn new(next: u64) -> Self {
        Self { entries: VecDeque::new(), next, bytes: 0 }
    }

    /// Returns the index of the oldest cached entry, or the next index if the cache is empty.
    pub(super) fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    /// Returns the index of the newest entry of the log.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// Returns the memory used, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the entry at `index`, if it is cached.
    pub(super) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(index.checked_sub(self.first())?).ok()?)
    }

    /// Appends entries, which replace all existing entries from the index of the first new entry
    /// on.
    pub(super) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first().map(|entry| entry.index) else { return };
        assert!(first <= self.next, "entry {first} after a log that ends before {}", self.next);
        let keep = usize::try_from(first.saturating_sub(self.first())).unwrap_or(usize::MAX);
        for cut in self.entries.drain(keep.min(self.entries.len())..) {
            self.bytes -= entry_bytes(&cut);
        }
        self.next = first;
        for entry in entries {
            assert_eq!(entry.index, self.next, "entries in order");
            self.bytes += entry_bytes(entry);
            self.entries.push_back(entry.clone());
            self.next += 1;
        }
    }

    /// Evicts the oldest entries until at most `bytes_max` bytes remain. Entries after `up_to` are
    /// never evicted.
    pub(super) fn evict(&mut self, up_to: u64, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(entry) = self.entries.front()
            && entry.index <= up_to
        {
            self.bytes -= entry_bytes(entry);
            self.entries.pop_front();
        }
    }

    /// Returns the entries from `from` to `to` (exclusive), as many as fit into `bytes_max` bytes,
    /// but at least one. All entries in this range must be cached.
    pub(super) fn range(&self, from: u64, to: u64, bytes_max: u64) -> Vec<Entry> {
        assert!(
            self.first() <= from && from < to && to <= self.next,
            "entries {from}..{to} cached"
        );
        let (skip, take) = ((from - self.first()) as usize, (to - from) as usize);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let first = bytes == 0;
            bytes += entry_bytes(entry) as u64;
            first || bytes <= bytes_max
        };
        self.entries.range(skip..skip + take).take_while(fits).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(range: std::ops::Range<u64>, term: u64) -> Vec<Entry> {
        range.map(|index| Entry { index, term, ..Entry::default() }).collect()
    }

    fn indices(entries: &[Entry]) -> Vec<(u64, u64)> {
        entries.iter().map(|entry| (entry.index, entry.term)).collect()
    }

    #[test]
    fn entries_from_an_older_index_replace_later_ones() {
        let mut cache = Cache::new(5);
        cache.append(&entries(5..9, 1));
        cache.append(&entries(7..8, 2));
        assert_eq!((cache.first(), cache.last()), (5, 7));
        assert_eq!(indices(&cache.range(5, 8, u64::MAX)), [(5, 1), (6, 1), (7, 2)]);
        assert_eq!(cache.bytes(), 3 * ENTRY_OVERHEAD);
    }

    #[test]
    fn entries_before_the_cache_replace_it() {
        let mut cache = Cache::new(5);
        cache.append(&entries(5..9, 1));
        cache.append(&entries(3..5, 2));
        assert_eq!((cache.first(), cache.last()), (3, 4));
        assert_eq!(cache.bytes(), 2 * ENTRY_OVERHEAD);
    }

    #[test]
    fn eviction_stops_at_the_byte_limit_and_the_pinned_index() {
        let mut cache = Cache::new(5);
        cache.append(&entries(5..15, 1));
        cache.evict(14, 8 * ENTRY_OVERHEAD);
        assert_eq!(cache.first(), 7);
        cache.evict(8, 0);
        assert_eq!(cache.first(), 9);
        assert!(cache.get(8).is_none());
        assert_eq!(cache.get(9).unwrap().index, 9);
        assert!(cache.get(15).is_none());
    }

    #[test]
    fn range_is_limited_by_bytes_and_never_empty() {
        let mut cache = Cache::new(5);
        cache.append(&entries(5..15, 1));
        assert_eq!(cache.range(5, 15, 3 * ENTRY_OVERHEAD as u64).len(), 3);
        assert_eq!(cache.range(5, 15, 0).len(), 1);
    }
}
