//! Writers: one for each process, a few writes at a time, until it dies or the load ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::history::{Fate, History};
use crate::process::{HarnessError, LIMIT, Process};
use crate::wire::{Answer, Order};

/// How many writes of one writer are without an answer.
const OPEN: usize = 4;

/// See the module.
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
            let goes_on = !self.ending.load(Ordering::Relaxed) && !process.is_over();
            while goes_on && open.len() < OPEN {
                let key = self.history().begin(writer);
                let answer = process.ask(&Order::Write(key.clone()));
                open.push_back((key, answer));
            }
            let Some((key, answer)) = open.pop_front() else { return };
            let fate = match answer.recv_timeout(LIMIT) {
                Ok(Answer::Done(revision)) => Fate::Done(revision),
                Ok(Answer::Applied(_)) => Fate::Applied,
                Ok(Answer::Refused(_)) => Fate::Refused,
                // It begins as unknown, and stays so.
                _ => continue,
            };
            self.history().end(&key, fate);
            self.progress.notify_all();
        }
    }
}

impl Load {
    /// What was written so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.shared.history()
    }

    /// Writes to a process until it ends.
    pub fn write_to(&self, writer: usize, process: &Arc<Process>) {
        let (shared, process) = (Arc::clone(&self.shared), Arc::clone(process));
        let thread = thread::spawn(move || shared.write(writer, &process));
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// One write to a process, beside the others; what it answers. `None` if it ends before, or takes longer.
    pub fn once(&self, writer: usize, process: &Process, limit: Duration) -> Option<Answer> {
        let key = self.history().begin(writer);
        let answer = process.ask(&Order::Write(key.clone())).recv_timeout(limit).ok()?;
        match answer {
            Answer::Done(revision) => self.history().end(&key, Fate::Done(revision)),
            Answer::Applied(_) => self.history().end(&key, Fate::Applied),
            Answer::Refused(_) => self.history().end(&key, Fate::Refused),
            // It begins as unknown, and stays so.
            _ => {}
        }
        Some(answer)
    }

    /// Waits until so many more writes have been acknowledged.
    ///
    /// # Errors
    /// They are not, in time.
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
                "not {writes} more writes are acknowledged"
            )));
        }
        Ok(())
    }

    /// No more writes; waits for the answers to those that are open.
    pub fn end(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        for writer in writers.drain(..) {
            assert!(writer.join().is_ok(), "a writer has fallen");
        }
    }
}
