//! Where entries are, and which term they have, in memory that does not grow with each entry.
//!
//! One sample for about 64 KiB of log: the entry's index, its position, and the chain before it, so
//! that a reader can check what it reads. From a sample to the next, the entries stand in the file
//! in the order of their indexes; where an entry replaced others, and where a segment begins, a new
//! sample does. Terms are kept as runs.
//!
//! Invariant: knows nothing of files; sees only what is durable.

use super::format::Position;
use crate::model::{LogIndex, Term};

/// How many bytes of log lie between two samples, at least.
const SAMPLE_BYTES: u32 = 64 << 10;

/// The entry that a sample stands for, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sample {
    pub(super) index: LogIndex,
    pub(super) position: Position,
    /// Of the record before the entry's.
    pub(super) chain: u32,
}

/// Where the entries of the log are.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Rising in index.
    samples: Vec<Sample>,
    /// The first index of each run and its term; both rise.
    runs: Vec<(LogIndex, Term)>,
    last: LogIndex,
}

impl Index {
    /// Every log starts behind the synthetic entry: index 1, term 1.
    pub(super) fn new() -> Self {
        Self { samples: Vec::new(), runs: vec![(LogIndex(1), Term(1))], last: LogIndex(1) }
    }

    pub(super) fn last(&self) -> LogIndex {
        self.last
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        if index < LogIndex(1) || index > self.last {
            return None;
        }
        let run = self.runs.partition_point(|(first, _)| *first <= index) - 1;
        Some(self.runs[run].1)
    }

    /// Whether an entry may come next, in a log that is committed up to `committed`.
    pub(super) fn follows(
        &self,
        index: LogIndex,
        term: Term,
        committed: LogIndex,
    ) -> Result<(), &'static str> {
        if index <= committed {
            return Err("an entry would replace one that is committed");
        }
        if index > self.last.next() {
            return Err("there is a gap before an entry");
        }
        match self.term(LogIndex(index.get() - 1)) {
            Some(before) if before <= term => Ok(()),
            _ => Err("an entry's term is below that of the one before"),
        }
    }

    /// Takes an entry whose place in the file is `sample`. It replaces the entry of its index and
    /// all that follow.
    pub(super) fn insert(&mut self, sample: Sample, term: Term) {
        let index = sample.index;
        assert!(index > LogIndex(1) && index <= self.last.next(), "a gap before {index:?}");
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

    /// The samples that lead to the entries from `from` (which must be there) until `to`, at most
    /// `max`, and the index before which the last of them ends.
    pub(super) fn stretch(
        &self,
        from: LogIndex,
        to: LogIndex,
        max: usize,
    ) -> (Vec<Sample>, LogIndex) {
        let start = self.samples.partition_point(|s| s.index <= from) - 1;
        let end = self.samples.partition_point(|s| s.index < to).min(start + max);
        let until = self.samples.get(end).map_or(self.last.next(), |next| next.index);
        (self.samples[start..end].to_vec(), until.min(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(index: u64, segment: u32, offset: u32) -> Sample {
        Sample { index: LogIndex(index), position: Position { segment, offset }, chain: 0 }
    }

    #[test]
    fn terms_are_runs_and_a_replaced_suffix_takes_its_runs_along() {
        let mut index = Index::new();
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
    fn samples_are_sparse_and_start_anew_at_a_segment_and_at_a_replacement() {
        let mut index = Index::new();
        for i in 2..1000 {
            index.insert(sample(i, 1, i as u32 * 1024), Term(1));
        }
        assert_eq!(index.samples.len(), 16);
        index.insert(sample(1000, 2, 72), Term(1));
        assert_eq!(index.samples.last(), Some(&sample(1000, 2, 72)));
        index.insert(sample(500, 2, 172), Term(2));
        assert_eq!(index.samples.last(), Some(&sample(500, 2, 172)));
        let (samples, until) = index.stretch(LogIndex(499), LogIndex(501), 10);
        assert_eq!(samples.len(), 2);
        assert!(samples[0].index <= LogIndex(499) && samples[1].index == LogIndex(500));
        assert_eq!(until, LogIndex(501));
        assert_eq!(index.stretch(LogIndex(2), LogIndex(501), 1).1, LogIndex(66));
    }
}
