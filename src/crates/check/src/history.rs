//! Histories, the only input of a checker: which process called what, when, and which reply came back. A history
//! comes from a [`Recorder`] or a file (see [`lines`](super::lines)), or is built by hand.

use std::sync::{Arc, Mutex, PoisonError};

/// A moment in a history, by any clock that all processes share, in any unit.
///
/// Only the order of moments matters. An operation came before another if it completed at a *lower* moment than the
/// other was invoked. Operations with equal moments count as concurrent, so that a coarse clock never causes a false
/// violation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct At(pub u64);

/// The caller of an operation: a client or a thread. Reports show the process. Only the verdict at
/// [`Level::SessionSerializable`](super::Level::SessionSerializable) depends on the process: there, each process is a
/// session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Process(pub u64);

/// The outcome of an operation as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome<R> {
    /// The operation took effect once, between its call and this moment, and returned this reply.
    Ok {
        /// Time at which the reply arrived.
        at: At,
        /// The reply.
        reply: R,
    },
    /// The operation did not take effect and never will.
    Failed {
        /// Time at which the caller learned this, if known.
        at: Option<At>,
    },
    /// The operation took effect at some moment after its call, will take effect later, or never does. Examples are a
    /// timeout, a broken connection and a crashed process.
    Unknown {
        /// Time at which the caller gave up, if known. The effect may come later.
        at: Option<At>,
    },
}

/// One operation: a call and its outcome as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation<C, R> {
    /// The caller.
    pub process: Process,
    /// The object of the call. Each object is checked on its own. Empty if the history has only one
    /// object.
    pub object: Arc<str>,
    /// Time of the call. The operation takes effect at this time or later.
    pub invoked: At,
    /// The requested operation.
    pub call: C,
    /// The outcome.
    pub outcome: Outcome<R>,
}

impl<C, R> Operation<C, R> {
    /// Returns an operation of process 0 on the unnamed object that ended with `Ok`.
    pub fn ok(invoked: u64, at: u64, call: C, reply: R) -> Self {
        Self::new(invoked, call, Outcome::Ok { at: At(at), reply })
    }

    /// Returns an operation of process 0 on the unnamed object whose outcome is unknown.
    pub fn unknown(invoked: u64, call: C) -> Self {
        Self::new(invoked, call, Outcome::Unknown { at: None })
    }

    /// Returns an operation of process 0 on the unnamed object that failed.
    pub fn failed(invoked: u64, call: C) -> Self {
        Self::new(invoked, call, Outcome::Failed { at: None })
    }

    fn new(invoked: u64, call: C, outcome: Outcome<R>) -> Self {
        Self { process: Process(0), object: "".into(), invoked: At(invoked), call, outcome }
    }

    /// Returns the operation, called by this process instead.
    #[must_use]
    pub fn by(self, process: u64) -> Self {
        Self { process: Process(process), ..self }
    }

    /// Returns the operation, called on this object instead.
    #[must_use]
    pub fn on(self, object: &str) -> Self {
        Self { object: object.into(), ..self }
    }

    /// Returns whether the operation has a reply.
    pub fn is_answered(&self) -> bool {
        matches!(self.outcome, Outcome::Ok { .. })
    }

    /// Returns the time at which the caller learned the outcome or gave up.
    pub fn ended(&self) -> Option<At> {
        match self.outcome {
            Outcome::Ok { at, .. } => Some(at),
            Outcome::Failed { at } | Outcome::Unknown { at } => at,
        }
    }
}

/// Operations in any order. A verdict names an operation by its index, from 0.
pub type History<C, R> = Vec<Operation<C, R>>;

/// The index of an operation in its [`History`], from 0.
pub type Index = usize;

/// An operation that was begun in a [`Recorder`] and has not ended. If this value is dropped, the outcome
/// stays unknown.
#[derive(Debug)]
#[must_use]
pub struct Begun(Index);

/// A recorder for the calls and replies of a running program. Any number of threads may share it.
///
/// The recorder counts moments itself, one for each call, so that no clock is needed. Begin an operation *before* the
/// call and end it *after* the reply. If an operation is recorded as longer than it was, a violation may be hidden.
/// If it is recorded as shorter, a false violation may be reported.
///
/// How to record an error depends on what it says about the effect of the call:
///
/// | the call | to record |
/// |---|---|
/// | was certainly not applied, and never will be | [`failed`](Self::failed) |
/// | may have been applied, or may be applied later: a timeout, a broken connection, a dead process | [`unknown`](Self::unknown) |
/// | was applied, but its reply was lost | [`unknown`](Self::unknown); [`ok`](Self::ok) if the reply is always the same, as that of a write |
/// | only reads, and returned no result | [`failed`](Self::failed) |
///
/// A wrong `failed` causes false violations. A wrong `unknown` may hide a violation and makes the checker slower.
///
/// ```
/// use bowline_check::{Budget, Recorder, Register, RegisterCall, RegisterReply, linear};
///
/// let recorder = Recorder::new();
/// let write = recorder.begin(1, "x", RegisterCall::Write(Some(7.into())));
/// let read = recorder.begin(2, "x", RegisterCall::Read);
/// recorder.ok(read, RegisterReply::Read(Some(7.into())));
/// recorder.ok(write, RegisterReply::Written);
/// let verdict = linear::check(&Register::default(), &recorder.history(), Budget::default());
/// assert!(verdict.is_ok());
/// ```
#[derive(Debug)]
pub struct Recorder<C, R> {
    book: Mutex<HistoryBook<C, R>>,
}

#[derive(Debug)]
struct HistoryBook<C, R> {
    now: u64,
    operations: History<C, R>,
}

impl<C, R> HistoryBook<C, R> {
    fn tick(&mut self) -> At {
        self.now += 1;
        At(self.now)
    }
}

impl<C, R> Default for Recorder<C, R> {
    fn default() -> Self {
        Self { book: Mutex::new(HistoryBook { now: 0, operations: Vec::new() }) }
    }
}

impl<C, R> Recorder<C, R> {
    /// Returns an empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a call. Must be called just before the operation. The outcome is unknown until the operation is
    /// ended.
    pub fn begin(&self, process: u64, object: &str, call: C) -> Begun {
        let mut book = self.book();
        let invoked = book.tick();
        book.operations.push(Operation {
            process: Process(process),
            object: object.into(),
            invoked,
            call,
            outcome: Outcome::Unknown { at: None },
        });
        Begun(book.operations.len() - 1)
    }

    /// Records a reply. Must be called just after the reply has arrived.
    pub fn ok(&self, begun: Begun, reply: R) {
        self.end(begun, |at| Outcome::Ok { at, reply });
    }

    /// Records that the operation did not take effect and never will.
    pub fn failed(&self, begun: Begun) {
        self.end(begun, |at| Outcome::Failed { at: Some(at) });
    }

    /// Records that the outcome is unknown. This includes an operation that is known to have taken effect and whose
    /// reply was lost.
    pub fn unknown(&self, begun: Begun) {
        self.end(begun, |at| Outcome::Unknown { at: Some(at) });
    }

    fn end(&self, begun: Begun, outcome: impl FnOnce(At) -> Outcome<R>) {
        let mut book = self.book();
        let at = book.tick();
        book.operations[begun.0].outcome = outcome(at);
    }

    /// A panic of another caller cannot leave the book half-written, so a poisoned mutex is safe to use.
    fn book(&self) -> std::sync::MutexGuard<'_, HistoryBook<C, R>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clone, R: Clone> Recorder<C, R> {
    /// Returns a copy of everything recorded so far.
    pub fn history(&self) -> History<C, R> {
        self.book().operations.clone()
    }
}
