//! Connections whose client has not been identified yet.
//!
//! An attacker can open connections and send nothing, or perform TLS handshakes slowly. The server limits the number
//! of unidentified connections. When the limit is exceeded, the oldest of them is closed. An honest client identifies
//! itself within milliseconds, so the oldest connection is almost certainly a silent one. Silent connections therefore
//! cannot keep honest clients out, and take a bounded amount of memory. Closed connections are logged at a limited
//! rate.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Maximum number of pending connections.
const PENDING_MAX: usize = 512;

/// Maximum number of logged rejections per interval, and the interval.
const COMPLAINTS_MAX: u32 = 20;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The pending connections of a server.
#[derive(Default)]
pub(crate) struct PendingConnections {
    state: Mutex<PendingState>,
}

#[derive(Default)]
struct PendingState {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
    complaining: Option<Instant>,
    problems: u32,
    withheld: u64,
}

/// A pending connection, until dropped.
pub(crate) struct PendingConnection {
    pending: Arc<PendingConnections>,
    number: u64,
    too_many: Arc<Notify>,
}

impl PendingConnections {
    /// Adds a connection.
    pub(crate) fn add(self: &Arc<Self>) -> PendingConnection {
        let too_many = Arc::new(Notify::new());
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, Arc::clone(&too_many));
        if state.waiting.len() > PENDING_MAX
            && let Some((_, oldest)) = state.waiting.pop_first()
        {
            oldest.notify_one();
        }
        PendingConnection { pending: Arc::clone(self), number, too_many }
    }

    /// Closes the oldest pending connection to free its slot. Returns whether there was one.
    pub(crate) fn evict_oldest(&self) -> bool {
        let oldest = self.state().waiting.pop_first();
        if let Some((_, oldest)) = &oldest {
            oldest.notify_one();
        }
        oldest.is_some()
    }

    /// Logs a rejection, unless too many were logged just before.
    pub(crate) fn log_rejection(&self, why: &dyn fmt::Display) {
        let mut state = self.state();
        if state.complaining.is_none_or(|since| since.elapsed() >= REPORT_INTERVAL) {
            (state.complaining, state.problems) = (Some(Instant::now()), 0);
        }
        if state.problems == COMPLAINTS_MAX {
            state.withheld += 1;
            return;
        }
        state.problems += 1;
        let withheld = std::mem::take(&mut state.withheld);
        drop(state);
        match withheld {
            0 => tracing::warn!("client connection rejected: {why}"),
            more => tracing::warn!(more, "client connections rejected, most recently: {why}"),
        }
    }

    fn state(&self) -> MutexGuard<'_, PendingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingConnection {
    /// Waits until this connection must be closed.
    pub(crate) async fn evicted(&self) {
        self.too_many.notified().await;
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        self.pending.state().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn excess_connection_evicts_the_oldest_pending_one() {
        let pending = Arc::new(PendingConnections::default());
        let first = pending.add();
        let second = pending.add();
        let others: Vec<_> = (2..PENDING_MAX).map(|_| pending.add()).collect();
        drop(first);
        let _one = pending.add();
        assert!(pending.state().waiting.len() == PENDING_MAX, "one was removed, and one was added");
        let _two = pending.add();
        second.evicted().await;
        drop((second, others));
        assert_eq!(pending.state().waiting.len(), 2);
    }
}
