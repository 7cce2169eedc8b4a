//! The set of open request numbers of one node. The numbers come from a growing sequence.
//!
//! Every number below the frontier is closed (completed), unless it is in one of the open spans.
//! Numbers at and above the frontier were not used yet. A closed number is never opened again:
//! after merging two sets, a number is closed if it was closed in either of them. Therefore merging
//! an old set that arrives late reopens no number.

use std::ops::Range as Span;

/// A set of open numbers. See the module page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OpenSet {
    frontier: u64,
    /// The open spans: sorted, disjoint, not adjacent, not empty, and all below `frontier`.
    open: Vec<Span<u64>>,
}

impl OpenSet {
    /// Creates a set from untrusted parts. The spans may be in any order and may overlap.
    pub(super) fn new(frontier: u64, open: &[Span<u64>]) -> Self {
        let mut spans: Vec<Span<u64>> = open
            .iter()
            .map(|span| span.start..span.end.min(frontier))
            .filter(|span| span.start < span.end)
            .collect();
        spans.sort_by_key(|span| span.start);
        let mut set = Self { frontier, open: Vec::new() };
        spans.into_iter().for_each(|span| set.push(span));
        set
    }

    /// Appends a span, or merges it into the last one.
    fn push(&mut self, span: Span<u64>) {
        match self.open.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => self.open.push(span),
        }
    }

    /// Returns the spans below the given `frontier` that are not closed. Numbers above the frontier
    /// of this set count as open.
    fn not_closed(&self, frontier: u64) -> impl Iterator<Item = Span<u64>> {
        let rest = Some(self.frontier..frontier).filter(|rest| rest.start < rest.end);
        self.open.iter().cloned().chain(rest)
    }

    pub(super) fn is_closed(&self, number: u64) -> bool {
        if number >= self.frontier {
            return false;
        }
        let after = self.open.partition_point(|span| span.start <= number);
        !after.checked_sub(1).is_some_and(|at| self.open[at].contains(&number))
    }

    /// Closes all numbers that are closed in `other`.
    pub(super) fn merge(&mut self, other: &OpenSet) {
        *self = self.with(other);
    }

    fn with(&self, other: &OpenSet) -> Self {
        let frontier = self.frontier.max(other.frontier);
        let mut both = Self { frontier, open: Vec::new() };
        let mut ours = self.not_closed(frontier).peekable();
        let mut theirs = other.not_closed(frontier).peekable();
        while let (Some(a), Some(b)) = (ours.peek(), theirs.peek()) {
            let common = a.start.max(b.start)..a.end.min(b.end);
            if a.end < b.end {
                ours.next();
            } else {
                theirs.next();
            }
            if common.start < common.end {
                both.push(common);
            }
        }
        both
    }

    /// Closes every number below `floor`.
    pub(super) fn close_below(&mut self, floor: u64) {
        if self.lowest_open() < floor {
            self.merge(&OpenSet { frontier: floor, open: Vec::new() });
        }
    }

    /// Returns the lowest number that is not closed.
    pub(super) fn lowest_open(&self) -> u64 {
        self.open.first().map_or(self.frontier, |span| span.start)
    }

    pub(super) fn frontier(&self) -> u64 {
        self.frontier
    }

    pub(super) fn open(&self) -> &[Span<u64>] {
        &self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(bits: u64, frontier: u64) -> Vec<Span<u64>> {
        (0..frontier).filter(|n| bits >> n & 1 == 1).map(|n| n..n + 1).collect()
    }

    #[test]
    fn merged_set_is_the_union_of_closed_numbers() {
        // Checks every pair of sets over six numbers.
        for (a_frontier, b_frontier) in (0..=6).flat_map(|a| (0..=6).map(move |b| (a, b))) {
            for a_bits in 0..1 << a_frontier {
                for b_bits in 0..1 << b_frontier {
                    let a = OpenSet::new(a_frontier, &spans(a_bits, a_frontier));
                    let b = OpenSet::new(b_frontier, &spans(b_bits, b_frontier));
                    let mut both = a.clone();
                    both.merge(&b);
                    for n in 0..8 {
                        let want = a.is_closed(n) || b.is_closed(n);
                        assert_eq!(both.is_closed(n), want, "{n} in {a:?} and {b:?}: {both:?}");
                    }
                    assert!(both.open.windows(2).all(|pair| pair[0].end < pair[1].start));
                    assert!(both.open.iter().all(|span| span.end <= both.frontier));
                }
            }
        }
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges, reason = "what a damaged peer could send")]
    fn unordered_spans_are_normalized() {
        let set = OpenSet::new(10, &[7..20, 3..3, 5..2, 1..4, 2..5]);
        assert_eq!(set.open(), [1..5, 7..10]);
        let open = (0..12).filter(|&n| !set.is_closed(n));
        assert_eq!(open.collect::<Vec<_>>(), [1, 2, 3, 4, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn close_below_completes_all_lower_numbers() {
        let mut set = OpenSet::new(10, &[2..5, 7..9]);
        set.close_below(3);
        assert_eq!((set.frontier(), set.open()), (10, &[3..5, 7..9][..]));
        set.close_below(20);
        assert_eq!((set.frontier(), set.lowest_open()), (20, 20));
        set.close_below(5);
        assert_eq!(set.lowest_open(), 20);
        set.close_below(u64::MAX);
        assert!(set.is_closed(u64::MAX - 1) && !set.is_closed(u64::MAX));
    }
}
