//! Counts of a node's tasks that hold or wait for locks: in total and per lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the tasks that hold and that wait.
#[derive(Debug, Default)]
pub(crate) struct WaiterCount {
    waiting: AtomicU64,
    holding: AtomicU64,
}

/// Whether a task counts as a holder or as a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaiterRole {
    Waits,
    Holds,
}

impl WaiterCount {
    /// Moves a task from one count to another. `None` means "not counted".
    pub(crate) fn moves(&self, from: Option<WaiterRole>, to: Option<WaiterRole>) {
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

    pub(crate) fn count(&self, part: WaiterRole) -> u64 {
        self.of(part).load(Ordering::Relaxed)
    }

    fn of(&self, part: WaiterRole) -> &AtomicU64 {
        match part {
            WaiterRole::Waits => &self.waiting,
            WaiterRole::Holds => &self.holding,
        }
    }
}

/// The counts that include a task: the count of its node, and the count of each requested lock.
#[derive(Clone, Debug)]
pub(crate) struct WaiterCounts(Arc<[Arc<WaiterCount>]>);

impl WaiterCounts {
    /// Like [`WaiterCount::moves`], for each of these counts.
    pub(crate) fn moves(&self, from: Option<WaiterRole>, to: Option<WaiterRole>) {
        self.0.iter().for_each(|count| count.moves(from, to));
    }
}

impl FromIterator<Arc<WaiterCount>> for WaiterCounts {
    fn from_iter<I: IntoIterator<Item = Arc<WaiterCount>>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}
