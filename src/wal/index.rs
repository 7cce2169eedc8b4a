//! The in-memory index of the log: it finds the position and the term of an entry, and uses much
//! less memory than one item per entry.
//!
//! The index stores one sample for about 64 KiB of log. A sample is the index of an entry, its
//! position, and the chain before the entry, so that a reader can verify the bytes that it reads.
//! Between two samples, the entries follow each other in the file in the order of their indexes.
//! Therefore a new sample is stored wherever an entry replaced earlier ones and wherever a segment
//! begins. Terms are stored as runs: the first index and the term of each sequence of entries with
//! the same term.
//!
//! The floor is the entry before the first entry of the log. The floor itself is not in the log,
//! but its term is known.
//!
//! Invariant: the index accesses no files and contains only durable entries.

use super::Base;
use super::format::Position;
use crate::model::{LogIndex, Term};

/// Minimum number of bytes of log between two samples.
const SAMPLE_BYTES: u32 = 64 << 10;

/// A sampled entry and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct IndexSample {
    pub(super) index: LogIndex,
    pub(super) position: Position,
    /// The chain of the record before this one.
    pub(super) chain: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IndexChange {
    /// An entry at its position. The new entry replaces the entry with the same index and all later
    /// entries.
    Entry(IndexSample, Term),
    /// Discards the entries up to this one, which the log has with this term.
    Keep(Base),
    /// Discards all entries. The log continues after this base.
    Reset(Base),
}

/// The positions and terms of the entries of the log.
#[derive(Clone, Debug)]
pub(super) struct SegmentIndex {
    /// In ascending order of index.
    samples: Vec<IndexSample>,
    /// First index and term of each run. Both ascend. The first run begins with the floor.
    runs: Vec<(LogIndex, Term)>,
    last: LogIndex,
}

impl SegmentIndex {
    /// Returns an index without entries.
    pub(super) fn new(floor: Base) -> Self {
        Self { samples: Vec::new(), runs: vec![(floor.index, floor.term)], last: floor.index }
    }

    /// Creates an index that knows the terms from the first run up to `last`, but no positions.
    /// Returns `None` if no log can have these terms.
    pub(super) fn of_terms(runs: Vec<(LogIndex, Term)>, last: LogIndex) -> Option<Self> {
        let rise = runs.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1);
        (rise && runs.last()?.0 <= last).then_some(Self { samples: Vec::new(), runs, last })
    }

    /// Returns the terms from an entry on, as runs.
    pub(super) fn terms_from(&self, index: LogIndex) -> Vec<(LogIndex, Term)> {
        let run = self.runs.partition_point(|(first, _)| *first <= index) - 1;
        let mut runs = self.runs[run..].to_vec();
        runs[0].0 = index;
        runs
    }

    /// Returns the last entry before the log, whose term is known.
    pub(super) fn floor(&self) -> Base {
        let (index, term) = self.runs[0];
        Base { index, term }
    }

    /// Returns whether every entry after the floor has a position.
    pub(super) fn is_complete(&self) -> bool {
        let first = self.samples.first().map_or(self.last.next(), |sample| sample.index);
        first <= self.floor().index.next()
    }

    pub(super) fn last(&self) -> LogIndex {
        self.last
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        if index < self.floor().index || index > self.last {
            return None;
        }
        let run = self.runs.partition_point(|(first, _)| *first <= index) - 1;
        Some(self.runs[run].1)
    }

    /// Checks whether this entry may be appended to a log that is committed up to `committed`.
    pub(super) fn follows(
        &self,
        index: LogIndex,
        term: Term,
        committed: LogIndex,
    ) -> Result<(), &'static str> {
        if index <= committed {
            return Err("an entry would replace a committed one");
        }
        if index > self.last.next() {
            return Err("there is a gap before an entry");
        }
        match self.term(LogIndex(index.get() - 1)) {
            Some(before) if before <= term => Ok(()),
            _ => Err("an entry's term is lower than that of the entry before it"),
        }
    }

    pub(super) fn apply(&mut self, change: IndexChange) {
        match change {
            IndexChange::Entry(sample, term) => self.insert(sample, term),
            IndexChange::Keep(base) => self.keep(base),
            IndexChange::Reset(base) => *self = Self::new(base),
        }
    }

    fn keep(&mut self, base: Base) {
        assert_eq!(self.term(base.index), Some(base.term), "{base:?} is not in the log");
        self.runs = self.terms_from(base.index);
        let passed = if base.index == self.last {
            self.samples.len()
        } else {
            self.samples.partition_point(|s| s.index <= base.index.next()).saturating_sub(1)
        };
        self.samples.drain(..passed);
    }

    /// Returns the first segment that is needed for the entries after `up_to` (`current` if there
    /// are no such entries). Also returns the index before the first entry in this segment or a
    /// later one.
    pub(super) fn needed_behind(&self, up_to: LogIndex, current: u32) -> (u32, LogIndex) {
        let needed = if up_to < self.last {
            let at = self.samples.partition_point(|s| s.index <= up_to.next()) - 1;
            self.samples[at].position.segment
        } else {
            current
        };
        let first = self.samples.partition_point(|s| s.position.segment < needed);
        let before = self.samples.get(first).map_or(up_to, |s| LogIndex(s.index.get() - 1));
        (needed, before)
    }

    fn insert(&mut self, sample: IndexSample, term: Term) {
        let index = sample.index;
        assert!(index > self.floor().index && index <= self.last.next(), "a gap before {index:?}");
        let replaces = index <= self.last;
        if replaces {
            self.samples.truncate(self.samples.partition_point(|s| s.index < index));
            self.runs.truncate(self.runs.partition_point(|(first, _)| *first < index));
        }
        let far = self.samples.last().is_none_or(|last| {
            last.position.segment != sample.position.segment
                || sample.position.offset - last.position.offset >= SAMPLE_BYTES
        });
        if replaces || far {
            self.samples.push(sample);
        }
        if self.runs.last().is_none_or(|(_, last)| *last != term) {
            self.runs.push((index, term));
        }
        self.last = index;
    }

    /// Returns the samples from which the entries `from..to` can be read; the entry `from` must
    /// exist. Returns at most `max` samples, and the index after the last entry that they cover.
    pub(super) fn samples_between(
        &self,
        from: LogIndex,
        to: LogIndex,
        max: usize,
    ) -> (Vec<IndexSample>, LogIndex) {
        let start = self.samples.partition_point(|s| s.index <= from) - 1;
        let end = self.samples.partition_point(|s| s.index < to).min(start + max);
        let until = self.samples.get(end).map_or(self.last.next(), |next| next.index);
        (self.samples[start..end].to_vec(), until.min(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(index: u64, segment: u32, offset: u32) -> IndexSample {
        IndexSample { index: LogIndex(index), position: Position { segment, offset }, chain: 0 }
    }

    #[test]
    fn term_runs_follow_a_replaced_suffix() {
        let mut index = SegmentIndex::new(Base::default());
        for (i, term) in [(2, 1), (3, 2), (4, 2), (5, 4)] {
            index.insert(sample(i, 1, i as u32 * 100), Term(term));
        }
        assert_eq!(
            (1..=6).map(|i| index.term(LogIndex(i)).map(Term::get)).collect::<Vec<_>>(),
            [Some(1), Some(1), Some(2), Some(2), Some(4), None]
        );
        assert_eq!(index.term(LogIndex(0)), None);
        index.insert(sample(4, 1, 900), Term(5));
        assert_eq!(index.last(), LogIndex(4));
        assert_eq!(index.term(LogIndex(3)), Some(Term(2)));
        assert_eq!(index.term(LogIndex(4)), Some(Term(5)));
        assert_eq!(index.term(LogIndex(5)), None);
    }

    #[test]
    fn index_samples_are_sparse_and_restart_at_segments_and_replacements() {
        let mut index = SegmentIndex::new(Base::default());
        for i in 2..1000 {
            index.insert(sample(i, 1, i as u32 * 1024), Term(1));
        }
        assert_eq!(index.samples.len(), 16);
        index.insert(sample(1000, 2, 72), Term(1));
        assert_eq!(index.samples.last(), Some(&sample(1000, 2, 72)));
        index.insert(sample(500, 2, 172), Term(2));
        assert_eq!(index.samples.last(), Some(&sample(500, 2, 172)));
        let (samples, until) = index.samples_between(LogIndex(499), LogIndex(501), 10);
        assert_eq!(samples.len(), 2);
        assert!(samples[0].index <= LogIndex(499) && samples[1].index == LogIndex(500));
        assert_eq!(until, LogIndex(501));
        assert_eq!(index.samples_between(LogIndex(2), LogIndex(501), 1).1, LogIndex(66));
    }

    fn base(index: u64, term: u64) -> Base {
        Base { index: LogIndex(index), term: Term(term) }
    }

    #[test]
    fn terms_are_known_after_a_base() {
        let mut index = SegmentIndex::new(Base::default());
        for i in 2..1000 {
            index.apply(IndexChange::Entry(sample(i, 1, i as u32 * 1024), Term(i / 100)));
        }
        index.apply(IndexChange::Keep(base(450, 4)));
        assert_eq!(index.floor(), base(450, 4));
        assert_eq!(index.term(LogIndex(449)), None);
        assert_eq!(index.term(LogIndex(450)), Some(Term(4)));
        assert_eq!(index.term(LogIndex(500)), Some(Term(5)));
        assert!(index.is_complete());
        let (samples, _) = index.samples_between(LogIndex(451), LogIndex(452), 9);
        assert!(samples.len() == 1 && samples[0].index <= LogIndex(451));
        index.apply(IndexChange::Keep(base(999, 9)));
        assert!(index.is_complete() && index.samples.is_empty());
        assert_eq!(index.last(), LogIndex(999));
        index.apply(IndexChange::Reset(base(2000, 10)));
        assert_eq!((index.floor(), index.last()), (base(2000, 10), LogIndex(2000)));
        index.apply(IndexChange::Entry(sample(2001, 3, 72), Term(10)));
        assert_eq!(index.term(LogIndex(2001)), Some(Term(10)));
    }

    #[test]
    fn segment_is_needed_while_it_holds_a_later_entry() {
        let mut index = SegmentIndex::new(Base::default());
        for i in 2..=30 {
            index.insert(sample(i, i as u32 / 10 + 1, i as u32 % 10 * 100), Term(1));
        }
        let needed = |index: &SegmentIndex, up_to| {
            let (segment, before) = index.needed_behind(LogIndex(up_to), 9);
            (segment, before.get())
        };
        assert_eq!(needed(&index, 1), (1, 1));
        assert_eq!(needed(&index, 8), (1, 1));
        assert_eq!(needed(&index, 9), (2, 9));
        assert_eq!(needed(&index, 25), (3, 19));
        assert_eq!(needed(&index, 30), (9, 30));
        index.insert(sample(15, 5, 72), Term(2));
        assert_eq!(needed(&index, 14), (5, 14));
        assert_eq!(needed(&index, 13), (2, 9));
    }
}
