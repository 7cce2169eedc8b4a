//! Counts of a node's tasks that hold or wait for locks: in total and per lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the tasks that hold and that wait.
#[derive(Debug, Default)]
pub(crate) struct HeadCount {
    waiting: AtomicU64,
    holding: AtomicU64,
}

/// Whether a task counts as a holder or as a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Waits,
    Holds,
}

impl HeadCount {
    /// Moves a task from one count to another. `None` means "not counted".
    pub(crate) fn moves(&self, from: Option<Part>, to: Option<Part>) {
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.of(from).fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(to) = to {
            self.of(to).fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a count.
    pub(crate) fn count(&self, part: Part) -> u64 {
        self.of(part).load(Ordering::Relaxed)
    }

    fn of(&self, part: Part) -> &AtomicU64 {
        match part {
            Part::Waits => &self.waiting,
            Part::Holds => &self.holding,
        }
    }
}

/// The counts that include a task: the count of its node, and the count of each requested lock.
#[derive(Clone, Debug)]
pub(crate) struct HeadCounts(Arc<[Arc<HeadCount>]>);

impl HeadCounts {
    /// Like [`HeadCount::moves`], for each of these counts.
    pub(crate) fn moves(&self, from: Option<Part>, to: Option<Part>) {
        self.0.iter().for_each(|count| count.moves(from, to));
    }
}

impl FromIterator<Arc<HeadCount>> for HeadCounts {
    fn from_iter<I: IntoIterator<Item = Arc<HeadCount>>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}
