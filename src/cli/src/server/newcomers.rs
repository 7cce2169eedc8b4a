//! Connections of which nothing is known yet.
//!
//! Whoever gets through to a port can open connections and say nothing, or speak TLS slowly. Those in between are
//! counted: one too many ends the one that has been there for longest, since those that mean it need milliseconds,
//! and the silent stay. So they keep nobody out and cost a bounded amount of memory. What they do wrong is said in the
//! log once in a while, however many they are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// How many there may be.
const NEWCOMERS_MAX: usize = 512;

/// How many of them are complained of at most in so much time.
const COMPLAINTS_MAX: u32 = 20;
const COMPLAIN_EVERY: Duration = Duration::from_secs(1);

/// All of a server's.
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

/// One of them, until it is dropped.
pub(super) struct Newcomer {
    newcomers: Arc<Newcomers>,
    number: u64,
    too_many: Arc<Notify>,
}

impl Newcomers {
    /// Another one.
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

    /// The one that has been there for longest has to go, if there is any: another one needs its seat.
    pub(super) fn make_room(&self) -> bool {
        let oldest = self.line().waiting.pop_first();
        if let Some((_, oldest)) = &oldest {
            oldest.notify_one();
        }
        oldest.is_some()
    }

    /// Says what is wrong with somebody, unless there was much to be said a moment ago.
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
            0 => tracing::warn!("a client was turned away: {why}"),
            more => tracing::warn!(more, "a client was turned away, and others before it: {why}"),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Newcomer {
    /// Waits until there are too many, and this is the one that has to go.
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
    async fn one_too_many_ends_the_oldest_of_those_who_are_there() {
        let newcomers = Arc::new(Newcomers::default());
        let first = newcomers.enter();
        let second = newcomers.enter();
        let others: Vec<_> = (2..NEWCOMERS_MAX).map(|_| newcomers.enter()).collect();
        drop(first);
        let _one = newcomers.enter();
        assert!(newcomers.line().waiting.len() == NEWCOMERS_MAX, "one has gone, and one has come");
        let _two = newcomers.enter();
        second.must_go().await;
        drop((second, others));
        assert_eq!(newcomers.line().waiting.len(), 2);
    }
}
