//! What was called, when, by whom, and what came back: the only thing that a checker is given. A history
//! comes from a [`Recorder`], from a file (see [`lines`](super::lines)), or is put together by hand.

use std::sync::{Arc, Mutex, PoisonError};

/// A moment in a history: any clock that all its processes share, in any unit.
///
/// Only the order counts. An operation came before another if it completed at a *lower* moment than the other
/// was invoked at; at equal moments they were concurrent, so that a coarse clock accuses nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct At(pub u64);

/// Who calls: a client, a thread. For people; no verdict depends on it but that of
/// [`Level::SessionSerializable`](super::Level::SessionSerializable), where it is a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Process(pub u64);

/// What is known of an operation's end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome<R> {
    /// It took effect once, between the call and this moment, and this came back.
    Ok {
        /// When the reply was there.
        at: At,
        /// What it said.
        reply: R,
    },
    /// It certainly never takes effect.
    Failed {
        /// When that was known.
        at: Option<At>,
    },
    /// It took effect at some moment after the call, takes effect later, or never does: a timeout, a
    /// connection that broke, a process that died.
    Unknown {
        /// When the caller gave up. Its effect may come later than that.
        at: Option<At>,
    },
}

/// One operation: a call and what is known of its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation<C, R> {
    /// Who called.
    pub process: Process,
    /// On which object: each is judged by itself. Empty where there is one.
    pub object: Arc<str>,
    /// When it was called: no effect is earlier.
    pub invoked: At,
    /// What was asked for.
    pub call: C,
    /// How it ended.
    pub outcome: Outcome<R>,
}

impl<C, R> Operation<C, R> {
    /// An operation of process 0 on the one object, that ended `Ok`.
    pub fn ok(invoked: u64, at: u64, call: C, reply: R) -> Self {
        Self::new(invoked, call, Outcome::Ok { at: At(at), reply })
    }

    /// An operation of process 0 on the one object, of which nobody knows whether it took effect.
    pub fn unknown(invoked: u64, call: C) -> Self {
        Self::new(invoked, call, Outcome::Unknown { at: None })
    }

    /// An operation of process 0 on the one object, that certainly never takes effect.
    pub fn failed(invoked: u64, call: C) -> Self {
        Self::new(invoked, call, Outcome::Failed { at: None })
    }

    fn new(invoked: u64, call: C, outcome: Outcome<R>) -> Self {
        Self { process: Process(0), object: "".into(), invoked: At(invoked), call, outcome }
    }

    /// The same by another process.
    #[must_use]
    pub fn by(self, process: u64) -> Self {
        Self { process: Process(process), ..self }
    }

    /// The same on another object.
    #[must_use]
    pub fn on(self, object: &str) -> Self {
        Self { object: object.into(), ..self }
    }

    /// When its caller knew of its end, if it did.
    pub fn ended(&self) -> Option<At> {
        match self.outcome {
            Outcome::Ok { at, .. } => Some(at),
            Outcome::Failed { at } | Outcome::Unknown { at } => at,
        }
    }
}

/// Operations, in any order. A verdict names them by their place here, from 0.
pub type History<C, R> = Vec<Operation<C, R>>;

/// The place of an operation in its [`History`], from 0.
pub type Index = usize;

/// An operation that was begun in a [`Recorder`] and has not ended. Dropped, it stays unknown.
#[derive(Debug)]
#[must_use]
pub struct Begun(Index);

/// Takes down what a running program calls and what comes back. For any number of threads.
///
/// Moments are counted by the recorder itself, one each call, so that no clock is needed. Begin an operation
/// *before* it is called, and end it *after* its reply is there: an operation that seems longer than it
/// was hides violations, one that seems shorter invents them.
///
/// ```
/// use bowline::check::{Budget, Recorder, Register, RegisterCall, RegisterReply, linear};
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
    book: Mutex<Book<C, R>>,
}

#[derive(Debug)]
struct Book<C, R> {
    now: u64,
    operations: History<C, R>,
}

impl<C, R> Book<C, R> {
    fn tick(&mut self) -> At {
        self.now += 1;
        At(self.now)
    }
}

impl<C, R> Default for Recorder<C, R> {
    fn default() -> Self {
        Self { book: Mutex::new(Book { now: 0, operations: Vec::new() }) }
    }
}

impl<C, R> Recorder<C, R> {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Just before the call. Until it has ended it is unknown.
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

    /// Just after the reply.
    pub fn ok(&self, begun: Begun, reply: R) {
        self.end(begun, |at| Outcome::Ok { at, reply });
    }

    /// It certainly did not take effect, and will not.
    pub fn failed(&self, begun: Begun) {
        self.end(begun, |at| Outcome::Failed { at: Some(at) });
    }

    /// Nobody knows whether it took effect, or will.
    pub fn unknown(&self, begun: Begun) {
        self.end(begun, |at| Outcome::Unknown { at: Some(at) });
    }

    fn end(&self, begun: Begun, outcome: impl FnOnce(At) -> Outcome<R>) {
        let mut book = self.book();
        let at = book.tick();
        book.operations[begun.0].outcome = outcome(at);
    }

    /// A caller that panicked between two lines leaves a whole book.
    fn book(&self) -> std::sync::MutexGuard<'_, Book<C, R>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clone, R: Clone> Recorder<C, R> {
    /// What was taken down until now.
    pub fn history(&self) -> History<C, R> {
        self.book().operations.clone()
    }
}
