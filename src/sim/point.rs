//! The named points of the code at which a simulated machine may lose power.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::env::{Point, Points};

/// The payload that unwinds a turn at a crash point. It is not a panic: no hook is called and nothing is printed.
pub(crate) struct CutOff;

/// Ends a turn at the armed point and counts how often each point was reached. It needs no mutex because a world has
/// one thread.
#[derive(Debug)]
pub(crate) struct SimPoints {
    /// Index of the armed point, or [`NONE`].
    armed: AtomicUsize,
    /// Number of times that each point was reached, in the order of [`Point::ALL`].
    reached: [AtomicU64; Point::ALL.len()],
}

/// No point is armed.
const NONE: usize = Point::ALL.len();

impl Default for SimPoints {
    fn default() -> Self {
        Self { armed: AtomicUsize::new(NONE), reached: Default::default() }
    }
}

impl SimPoints {
    /// Arms a point: the next turn that reaches `point` is cut off there.
    pub(crate) fn arm(&self, point: Point) {
        self.armed.store(point as usize, Ordering::Relaxed);
    }

    /// Disarms the point.
    pub(crate) fn disarm(&self) {
        self.armed.store(NONE, Ordering::Relaxed);
    }

    /// Returns how often each point was reached.
    pub(crate) fn reached(&self) -> BTreeMap<Point, u64> {
        let reached = self.reached.iter().map(|times| times.load(Ordering::Relaxed));
        Point::ALL.into_iter().zip(reached).filter(|(_, times)| *times > 0).collect()
    }
}

impl Points for SimPoints {
    fn reach(&self, point: Point) {
        let times = &self.reached[point as usize];
        times.store(times.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if self.armed.load(Ordering::Relaxed) == point as usize {
            self.disarm();
            resume_unwind(Box::new(CutOff));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crash_point_is_counted_separately() {
        let points = SimPoints::default();
        for (times, point) in (1..).zip(Point::ALL) {
            (0..times).for_each(|_| points.reach(point));
        }
        assert_eq!(points.reached(), Point::ALL.into_iter().zip(1..).collect());
        assert_eq!(SimPoints::default().reached(), BTreeMap::new());
    }
}
