//! Lock-free counters, gauges and histograms.
//!
//! A histogram has two buckets for each power of two, at fixed bounds. Therefore adding a value
//! takes one shift and one addition, and histograms of several nodes can be summed. The relative
//! error of a quantile is at most 50 %.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of buckets of a histogram. The last bucket has no upper bound.
pub(super) const BUCKETS: usize = 46;

/// A counter, which only increases.
#[derive(Default)]
pub(crate) struct CounterCell(AtomicU64);

impl CounterCell {
    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Raises the counter to `now`, if it is lower. Used for values that another part of the node
    /// counts.
    pub(crate) fn reach(&self, now: u64) {
        self.0.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A gauge, which can increase and decrease.
#[derive(Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    /// Sets the gauge to a length or another in-memory count.
    pub(crate) fn count(&self, now: usize) {
        self.set(now as u64);
    }

    /// Raises the gauge to `seen` if it is lower.
    pub(crate) fn at_least(&self, seen: usize) {
        self.0.fetch_max(seen as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Histogram buckets with the sum of all values.
pub(super) struct Buckets {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    /// The first bound is 2 to this power.
    first: u32,
}

impl Buckets {
    pub(super) fn new(first: u32) -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0), first }
    }

    pub(super) fn add(&self, number: u64) {
        self.counts[place(number, self.first)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(number, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> ([u64; BUCKETS], u64) {
        let counts = std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed));
        (counts, self.sum.load(Ordering::Relaxed))
    }
}

/// Returns the first bucket whose bound is at least `number`.
fn place(number: u64, first: u32) -> usize {
    // Bounds are 1 and 1.5 times the powers of two. The bit after the leading bit selects the lower
    // or the upper half of the power of two. The subtraction of 1 puts a value that equals a bound
    // into the bucket of this bound.
    let above = number.saturating_sub(1) >> (first - 1);
    if above < 2 {
        return 0;
    }
    let power = above.ilog2();
    let upper_half = (above >> (power - 1)) & 1;
    ((power as usize - 1) * 2 + upper_half as usize + 1).min(BUCKETS - 1)
}

/// Returns the inclusive upper bound of a bucket, or `None` for the last bucket.
pub(super) fn bound(at: usize, first: u32) -> Option<u64> {
    if at + 1 == BUCKETS {
        return None;
    }
    let power = 1 << (first as usize + at / 2);
    Some(if at.is_multiple_of(2) { power } else { power / 2 * 3 })
}

/// A histogram of durations.
pub(crate) struct Seconds(pub(super) Buckets);

/// Durations are counted in microseconds; the first bound is 16 µs.
pub(super) const SECONDS_FIRST: u32 = 4;

impl Default for Seconds {
    fn default() -> Self {
        Self(Buckets::new(SECONDS_FIRST))
    }
}

impl Seconds {
    pub(crate) fn add(&self, took: Duration) {
        self.0.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
}

/// A histogram of counts or sizes.
pub(crate) struct Sizes(pub(super) Buckets);

/// The first bound is 2.
pub(super) const SIZES_FIRST: u32 = 1;

impl Default for Sizes {
    fn default() -> Self {
        Self(Buckets::new(SIZES_FIRST))
    }
}

impl Sizes {
    pub(crate) fn add(&self, size: usize) {
        self.0.add(size as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_falls_into_the_first_bucket_that_covers_it() {
        for first in [SIZES_FIRST, SECONDS_FIRST] {
            for at in 0..BUCKETS {
                let Some(bound) = bound(at, first) else { continue };
                assert_eq!(place(bound, first), at, "the bound {bound} itself");
                assert_eq!(place(bound + 1, first), at + 1, "one above {bound}");
            }
            assert_eq!(place(0, first), 0);
            assert_eq!(place(u64::MAX, first), BUCKETS - 1);
        }
    }

    #[test]
    fn bounds_range_from_microseconds_to_a_minute() {
        let bounds: Vec<u64> = (0..BUCKETS).filter_map(|at| bound(at, SECONDS_FIRST)).collect();
        assert!(bounds.is_sorted_by(|a, b| a < b));
        assert_eq!(bounds[..4], [16, 24, 32, 48]);
        assert!(*bounds.last().unwrap() > 60_000_000);
    }
}
