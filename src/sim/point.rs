//! The named points of the code, where a simulated machine may lose power.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::env::{Point, Points};

/// What unwinds a turn that a crash has cut off. Not a panic: no hook is called, nothing is printed.
pub(crate) struct CutOff;

/// Cuts a turn off at the point that is armed, and counts how often each was reached. Nothing is locked, since a world
/// has one thread.
#[derive(Debug)]
pub(crate) struct SimPoints {
    /// The armed point, as below; [`NONE`] if none is.
    armed: AtomicUsize,
    /// By the place in [`Point::ALL`].
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
    /// The next time that the code comes to `point`, the turn is cut off.
    pub(crate) fn arm(&self, point: Point) {
        self.armed.store(point as usize, Ordering::Relaxed);
    }

    /// Nothing is armed any more.
    pub(crate) fn disarm(&self) {
        self.armed.store(NONE, Ordering::Relaxed);
    }

    /// How often each point was reached.
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
