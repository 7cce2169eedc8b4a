//! The values of all metrics at one moment, as a struct for programs.

use super::cell::{BUCKETS, Buckets, bound};

/// A histogram since the start of the node.
///
/// The bounds are fixed: 1 and 1.5 times the powers of two. Therefore histograms of several nodes,
/// and of one node at two moments, can be added and subtracted bucket by bucket.
#[derive(Clone, PartialEq, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: u64,
    first: u32,
    /// Number of recorded units in one unit of the results. For example, durations are recorded in
    /// microseconds and returned in seconds, so the factor is 1,000,000.
    unit: f64,
}

impl Histogram {
    pub(super) fn read(buckets: &Buckets, first: u32, unit: f64) -> Self {
        let (counts, sum) = buckets.read();
        Self { counts, sum, first, unit }
    }

    /// Returns the values added since an `earlier` snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let counts = std::array::from_fn(|at| self.counts[at].saturating_sub(earlier.counts[at]));
        Self { counts, sum: self.sum.saturating_sub(earlier.sum), ..*self }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the values, in seconds for a histogram of durations.
    pub fn sum(&self) -> f64 {
        self.sum as f64 / self.unit
    }

    /// Returns, for each bound in ascending order, the number of values at or below it. The last
    /// bound is infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.counts.iter().enumerate().scan(0, |sum, (at, count)| {
            *sum += count;
            let bound = bound(at, self.first);
            Some((bound.map_or(f64::INFINITY, |bound| bound as f64 / self.unit), *sum))
        })
    }

    /// Returns the quantile `share` (between 0 and 1), rounded up to the bound of its bucket. The
    /// result is at most 50 % too high. Returns `None` if there are no values.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        self.cumulative().find(|(_, below)| *below >= wanted).map(|(bound, _)| bound)
    }
}

/// The replication lag of one other member, as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PeerLag {
    /// Name of the member.
    pub peer: String,
    /// Number of entries of the leader's log that the member has not acknowledged.
    pub entries: u64,
    /// Whether the leader received a message from the member within an election timeout.
    pub active: bool,
}

/// The send queue to another member.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PeerQueue {
    /// Name of the member.
    pub peer: String,
    /// Number of bytes queued.
    pub bytes: u64,
}

/// The state of the connection to another member.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PeerLink {
    /// Name of the member.
    pub peer: String,
    /// Whether a connection is open, in either direction.
    pub connected: bool,
}
