//! What the measurements were at one moment, for programs.

use super::cell::{BUCKETS, Buckets, bound};

/// How often a quantity fell between which bounds, since the node started.
///
/// Bounds are fixed: 1 and 1.5 times the powers of two. So the snapshots of several nodes, and of one
/// node at two moments, can be added and subtracted bound by bound.
#[derive(Clone, PartialEq, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: u64,
    first: u32,
    /// How many of the counted numbers make one in the unit of the answers.
    unit: f64,
}

impl Histogram {
    pub(super) fn read(buckets: &Buckets, first: u32, unit: f64) -> Self {
        let (counts, sum) = buckets.read();
        Self { counts, sum, first, unit }
    }

    /// What has come since an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let counts = std::array::from_fn(|at| self.counts[at].saturating_sub(earlier.counts[at]));
        Self { counts, sum: self.sum.saturating_sub(earlier.sum), ..*self }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum: seconds, or whatever was counted.
    pub fn sum(&self) -> f64 {
        self.sum as f64 / self.unit
    }

    /// For each bound, in rising order, how many were not above it. Infinity comes last.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.counts.iter().enumerate().scan(0, |sum, (at, count)| {
            *sum += count;
            let bound = bound(at, self.first);
            Some((bound.map_or(f64::INFINITY, |bound| bound as f64 / self.unit), *sum))
        })
    }

    /// The bound below which a share of all lies: `quantile(0.99)` is too high by a half at most. `None`
    /// if there were none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        self.cumulative().find(|(_, below)| *below >= wanted).map(|(bound, _)| bound)
    }
}

/// How one other member stands, as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerLag {
    /// Its name.
    pub peer: String,
    /// How many entries of the leader's log it has not said to have.
    pub entries: u64,
    /// Whether it was heard of within an election timeout.
    pub active: bool,
}

/// What waits on its way to another member.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerQueue {
    /// Its name.
    pub peer: String,
    /// How many bytes wait.
    pub bytes: u64,
}

/// Whether there is a connection with another member.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerLink {
    /// Its name.
    pub peer: String,
    /// Whether one is up, whoever of the two has dialed.
    pub connected: bool,
}
