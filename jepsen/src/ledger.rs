//! The clock of a run, and a list of all operations of the run with kind, client, times and outcome. The plots and the
//! minimum-progress rules use this list. Workloads record calls and replies for the checkers in their own [`Book`]s.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_check::{At, History, Index, Operation, Outcome, Process};
use serde::Serialize;

use crate::calls::Reply;
use crate::moment;

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The operation took effect.
    Ok,
    /// The operation certainly had no effect and will have none.
    Failed,
    /// The outcome of the operation is unknown.
    Unknown,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Number of the client.
    pub client: u64,
    /// The member that was called.
    pub member: usize,
    /// The kind shown in the report.
    pub kind: &'static str,
    /// Time at which the operation was sent, in microseconds of the clock of the run.
    pub invoked: u64,
    /// Time at which the outcome of the operation was known, in microseconds of the clock of the run.
    pub ended: u64,
    /// The outcome.
    pub end: End,
    /// The reason of a failure.
    pub why: Option<Arc<str>>,
}

/// The operations of a run.
#[derive(Debug)]
pub struct Ledger {
    /// Start of the run, on the clock of the machine.
    begun: u64,
    entries: Mutex<Vec<Entry>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { begun: moment::now(), entries: Mutex::default() }
    }
}

impl Ledger {
    /// Returns the time since the start of the run, in microseconds.
    pub fn now(&self) -> u64 {
        self.of(moment::now())
    }

    /// Converts a time on the clock of the machine to a time on the clock of the run.
    pub(crate) fn of(&self, moment: u64) -> u64 {
        moment.saturating_sub(self.begun)
    }

    /// Returns the last time at which the holder considered its hold valid, according to the reply.
    pub fn seen(&self, said: &Reply) -> Option<u64> {
        match said {
            Reply::Held { at: Some(at), .. } => Some(self.of(*at)),
            _ => None,
        }
    }

    /// Records an operation that has ended.
    pub fn enter(&self, entry: Entry) {
        self.lock().push(entry);
    }

    /// Returns the operations recorded so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calls and replies of one workload.
#[derive(Debug)]
pub struct Book<C, R>(Mutex<History<C, R>>);

impl<C, R> Default for Book<C, R> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<C, R> Book<C, R> {
    /// Returns a book with an existing history.
    #[cfg(test)]
    pub(crate) fn of(history: History<C, R>) -> Self {
        Self(Mutex::new(history))
    }

    /// Records an operation that is about to be sent. The outcome of the operation is unknown until [`end`](Self::end)
    /// is called.
    pub fn begin(&self, client: u64, object: &str, invoked: u64, call: C) -> Index {
        let mut history = self.lock();
        history.push(Operation {
            process: Process(client),
            object: object.into(),
            invoked: At(invoked),
            call,
            outcome: Outcome::Unknown { at: None },
        });
        history.len() - 1
    }

    /// Records the outcome of an operation.
    pub fn end(&self, operation: Index, outcome: Outcome<R>) {
        self.lock()[operation].outcome = outcome;
    }

    fn lock(&self) -> MutexGuard<'_, History<C, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clone, R: Clone> Book<C, R> {
    /// Returns the whole history.
    pub fn history(&self) -> History<C, R> {
        self.lock().clone()
    }
}

/// Formats a history as JSON lines with `call` and `result`, for models that have no line format of their own.
pub fn lines<C: Serialize, R: Serialize>(history: &History<C, R>) -> String {
    let line = |operation: &Operation<C, R>| {
        let (outcome, result) = match &operation.outcome {
            Outcome::Ok { reply, .. } => ("ok", serde_json::to_value(reply).ok()),
            Outcome::Failed { .. } => ("failed", None),
            Outcome::Unknown { .. } => ("unknown", None),
        };
        let line = serde_json::json!({
            "process": operation.process.0, "object": &*operation.object,
            "invoke": operation.invoked.0, "complete": operation.ended().map(|at| at.0),
            "outcome": outcome, "call": operation.call, "result": result,
        });
        format!("{line}\n")
    };
    history.iter().map(line).collect()
}
