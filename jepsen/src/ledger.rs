//! The run's one clock, and every operation on it: which kind, by whom, when, how it ended. The plots and the rule of
//! minimum progress read it; what was asked and answered stands in the workload's own [`Book`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline::check::{At, History, Index, Operation, Outcome, Process};
use serde::Serialize;

use crate::calls::Reply;
use crate::moment;

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It took effect.
    Ok,
    /// It certainly has none.
    Failed,
    /// Nobody knows.
    Unknown,
}

/// An operation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which client.
    pub client: u64,
    /// At which member.
    pub member: usize,
    /// What it is called in the report.
    pub kind: &'static str,
    /// When it was sent, in microseconds of the run's clock.
    pub invoked: u64,
    /// When its end was known.
    pub ended: u64,
    /// How it ended.
    pub end: End,
    /// Why, if not well.
    pub why: Option<Arc<str>>,
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    /// By the machine's clock.
    begun: u64,
    entries: Mutex<Vec<Entry>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { begun: moment::now(), entries: Mutex::default() }
    }
}

impl Ledger {
    /// The moment, in microseconds since the run began.
    pub fn now(&self) -> u64 {
        self.of(moment::now())
    }

    /// A moment of the machine's clock, as one of the run's.
    pub(crate) fn of(&self, moment: u64) -> u64 {
        moment.saturating_sub(self.begun)
    }

    /// The last moment at which something was held, as far as its holder says so.
    pub fn seen(&self, said: &Reply) -> Option<u64> {
        match said {
            Reply::Held { at: Some(at), .. } => Some(self.of(*at)),
            _ => None,
        }
    }

    /// Takes down an operation that has ended.
    pub fn enter(&self, entry: Entry) {
        self.lock().push(entry);
    }

    /// What was taken down until now.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was asked and answered, in the words of one workload.
#[derive(Debug)]
pub struct Book<C, R>(Mutex<History<C, R>>);

impl<C, R> Default for Book<C, R> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<C, R> Book<C, R> {
    /// One in which this stands already.
    #[cfg(test)]
    pub(crate) fn of(history: History<C, R>) -> Self {
        Self(Mutex::new(history))
    }

    /// An operation that is about to be sent. Until it is ended it is unknown.
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

    /// Its end.
    pub fn end(&self, operation: Index, outcome: Outcome<R>) {
        self.lock()[operation].outcome = outcome;
    }

    fn lock(&self) -> MutexGuard<'_, History<C, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clone, R: Clone> Book<C, R> {
    /// All of it.
    pub fn history(&self) -> History<C, R> {
        self.lock().clone()
    }
}

/// A history whose model has no lines of its own, as JSON lines: `call` and `result` in the words of `C` and `R`.
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
