//! The write load of the crash tests: one writer per process, with a few concurrent writes, until the process dies or
//! the load ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::history::{Fate, History};
use crate::process::{HarnessError, LIMIT, Process};
use crate::wire::{Answer, Order};

/// Maximum number of concurrent writes of one writer.
const OPEN: usize = 4;

/// The write load.
#[derive(Default)]
pub struct Load {
    shared: Arc<Shared>,
    writers: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    history: Mutex<History>,
    progress: Condvar,
    ending: AtomicBool,
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, writer: usize, process: &Process) {
        let mut open: VecDeque<(String, mpsc::Receiver<Answer>)> = VecDeque::new();
        loop {
            let continues = !self.ending.load(Ordering::Relaxed) && !process.is_over();
            while continues && open.len() < OPEN {
                let key = self.history().begin(writer);
                let answer = process.ask(&Order::Write(key.clone()));
                open.push_back((key, answer));
            }
            let Some((key, answer)) = open.pop_front() else { return };
            let fate = match answer.recv_timeout(LIMIT) {
                Ok(Answer::Done(revision)) => Fate::Done(revision),
                Ok(Answer::Applied(_)) => Fate::Applied,
                Ok(Answer::Refused(_)) => Fate::Refused,
                // The outcome is unknown. `begin` has already recorded this outcome.
                _ => continue,
            };
            self.history().end(&key, fate);
            self.progress.notify_all();
        }
    }
}

impl Load {
    /// Returns the history of all writes so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.shared.history()
    }

    /// Starts a writer that writes to a process until the process ends.
    pub fn write_to(&self, writer: usize, process: &Arc<Process>) {
        let (shared, process) = (Arc::clone(&self.shared), Arc::clone(process));
        let thread = thread::spawn(move || shared.write(writer, &process));
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Makes one additional write and returns the answer. Returns `None` if the process ends before it answers, or
    /// takes longer than `limit`.
    pub fn once(&self, writer: usize, process: &Process, limit: Duration) -> Option<Answer> {
        let key = self.history().begin(writer);
        let answer = process.ask(&Order::Write(key.clone())).recv_timeout(limit).ok()?;
        match answer {
            Answer::Done(revision) => self.history().end(&key, Fate::Done(revision)),
            Answer::Applied(_) => self.history().end(&key, Fate::Applied),
            Answer::Refused(_) => self.history().end(&key, Fate::Refused),
            // The outcome is unknown. The history already records every write as unknown when it begins.
            _ => {}
        }
        Some(answer)
    }

    /// Waits until `writes` more writes have been acknowledged.
    ///
    /// # Errors
    ///
    /// Returns an error if that takes too long.
    pub fn more(&self, writes: u64) -> Result<(), HarnessError> {
        let history = self.history();
        let wanted = history.done() + writes;
        let (history, late) = self
            .shared
            .progress
            .wait_timeout_while(history, LIMIT, |history| history.done() < wanted)
            .unwrap_or_else(PoisonError::into_inner);
        drop(history);
        if late.timed_out() {
            return Err(HarnessError::TooLate(format!(
                "fewer than {writes} more writes were acknowledged"
            )));
        }
        Ok(())
    }

    /// Ends the load and waits for the replies to open writes.
    pub fn end(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        for writer in writers.drain(..) {
            assert!(writer.join().is_ok(), "a writer panicked");
        }
    }
}
