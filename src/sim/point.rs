//! The named points of the code, where a simulated machine may lose power.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use crate::env::{Point, Points};

/// What unwinds a turn that a crash has cut off. Not a panic: no hook is called, nothing is printed.
pub(crate) struct CutOff;

/// Cuts a turn off at the point that is armed, and counts how often each was reached.
#[derive(Debug, Default)]
pub(crate) struct SimPoints {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    armed: Option<Point>,
    /// By the place in [`Point::ALL`].
    reached: [u64; Point::ALL.len()],
}

impl SimPoints {
    /// The next time that the code comes to `point`, the turn is cut off.
    pub(crate) fn arm(&self, point: Point) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).armed = Some(point);
    }

    /// Nothing is armed any more.
    pub(crate) fn disarm(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).armed = None;
    }

    /// How often each point was reached.
    pub(crate) fn reached(&self) -> BTreeMap<Point, u64> {
        let reached = self.state.lock().unwrap_or_else(PoisonError::into_inner).reached;
        Point::ALL.into_iter().zip(reached).filter(|(_, times)| *times > 0).collect()
    }
}

impl Points for SimPoints {
    fn reach(&self, point: Point) {
        let struck = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.reached[point as usize] += 1;
            let struck = state.armed == Some(point);
            if struck {
                state.armed = None;
            }
            struck
        };
        if struck {
            resume_unwind(Box::new(CutOff));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_counted_as_itself() {
        let points = SimPoints::default();
        for (times, point) in (1..).zip(Point::ALL) {
            (0..times).for_each(|_| points.reach(point));
        }
        assert_eq!(points.reached(), Point::ALL.into_iter().zip(1..).collect());
        assert_eq!(SimPoints::default().reached(), BTreeMap::new());
    }
}
