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
const NEWCOMERS_MAX: usize = 512;

/// Maximum number of logged rejections per interval, and the interval.
const COMPLAINTS_MAX: u32 = 20;
const COMPLAIN_EVERY: Duration = Duration::from_secs(1);

/// The pending connections of a server.
#[derive(Default)]
pub(super) struct Newcomers {
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    next: u64,
    waiting: BTreeMap<u64, Arc<Notify>>,
    complaining: Option<Instant>,
    complaints: u32,
    withheld: u64,
}

/// A pending connection, until dropped.
pub(super) struct Newcomer {
    newcomers: Arc<Newcomers>,
    number: u64,
    too_many: Arc<Notify>,
}

impl Newcomers {
    /// Adds a connection.
    pub(super) fn enter(self: &Arc<Self>) -> Newcomer {
        let too_many = Arc::new(Notify::new());
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.waiting.insert(number, Arc::clone(&too_many));
        if line.waiting.len() > NEWCOMERS_MAX
            && let Some((_, oldest)) = line.waiting.pop_first()
        {
            oldest.notify_one();
        }
        Newcomer { newcomers: Arc::clone(self), number, too_many }
    }

    /// Closes the oldest pending connection to free its slot. Returns whether there was one.
    pub(super) fn make_room(&self) -> bool {
        let oldest = self.line().waiting.pop_first();
        if let Some((_, oldest)) = &oldest {
            oldest.notify_one();
        }
        oldest.is_some()
    }

    /// Logs a rejection, unless too many were logged just before.
    pub(super) fn complain(&self, why: &dyn fmt::Display) {
        let mut line = self.line();
        if line.complaining.is_none_or(|since| since.elapsed() >= COMPLAIN_EVERY) {
            (line.complaining, line.complaints) = (Some(Instant::now()), 0);
        }
        if line.complaints == COMPLAINTS_MAX {
            line.withheld += 1;
            return;
        }
        line.complaints += 1;
        let withheld = std::mem::take(&mut line.withheld);
        drop(line);
        match withheld {
            0 => tracing::warn!("client connection rejected: {why}"),
            more => tracing::warn!(more, "client connections rejected, most recently: {why}"),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Newcomer {
    /// Waits until this connection must be closed.
    pub(super) async fn must_go(&self) {
        self.too_many.notified().await;
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.newcomers.line().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn excess_connection_evicts_the_oldest_pending_one() {
        let newcomers = Arc::new(Newcomers::default());
        let first = newcomers.enter();
        let second = newcomers.enter();
        let others: Vec<_> = (2..NEWCOMERS_MAX).map(|_| newcomers.enter()).collect();
        drop(first);
        let _one = newcomers.enter();
        assert!(
            newcomers.line().waiting.len() == NEWCOMERS_MAX,
            "one was removed, and one was added"
        );
        let _two = newcomers.enter();
        second.must_go().await;
        drop((second, others));
        assert_eq!(newcomers.line().waiting.len(), 2);
    }
}
