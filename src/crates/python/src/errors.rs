//! [`Failure`]: an error on its way to Python.
//!
//! The exception classes are defined in `bowline/_errors.py`. A call fails on a thread that is not
//! attached to the interpreter, so a failure holds the name of the class and becomes an exception
//! when the result is delivered.

use bowline::cluster::{DataErrorKind, JoinErrorKind};
use bowline::queue::QueueError;
use bowline::{Effect, Error, GuardError, LockError, LostReason, StartError, WatchError};
use pyo3::types::{PyAnyMethods, PyModule};
use pyo3::{Bound, IntoPyObjectExt, Py, PyAny, PyErr, PyResult, Python};

use crate::lock::Lost;

/// An error that has not become an exception yet.
#[derive(Debug)]
pub(crate) struct Failure {
    class: &'static str,
    text: String,
    effect: Effect,
    is_transient: bool,
    attribute: Option<(&'static str, Attribute)>,
}

/// The value of an attribute that only some exceptions have.
#[derive(Debug)]
enum Attribute {
    Word(&'static str),
    Number(u64),
    Texts(Vec<String>),
    Reason(LostReason),
}

impl Failure {
    /// Returns a failure that changed nothing and that a retry does not resolve.
    pub(crate) fn new(class: &'static str, text: impl Into<String>) -> Self {
        let (text, effect) = (text.into(), Effect::NotApplied);
        Self { class, text, effect, is_transient: false, attribute: None }
    }

    /// Returns the failure of a call in a forked child process.
    pub(crate) fn forked(process: u32) -> Self {
        let text = format!(
            "not applied: the node was started in process {process} and does not run in this \
             process, which is a fork of it: start the node after the fork, or use the \
             multiprocessing start method \"spawn\""
        );
        Self::new("ForkedError", text)
    }

    /// Returns the failure of a call on a lock, a leadership or an item that is no longer held.
    pub(crate) fn lost(reason: LostReason) -> Self {
        let mut failure = Self::new("LostError", format!("not held any more: {reason}"));
        failure.attribute = Some(("reason", Attribute::Reason(reason)));
        failure
    }

    fn with(mut self, name: &'static str, value: Attribute) -> Self {
        self.attribute = Some((name, value));
        self
    }

    fn with_effect(mut self, effect: Effect, is_transient: bool) -> Self {
        (self.effect, self.is_transient) = (effect, is_transient);
        self
    }

    /// Creates the exception.
    fn raise(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let class = PyModule::import(py, "bowline._errors")?.getattr(self.class)?;
        let exception = class.call1((self.text, word(self.effect), self.is_transient))?;
        if let Some((name, value)) = self.attribute {
            exception.setattr(name, value.into_python(py)?)?;
        }
        Ok(exception)
    }
}

impl Attribute {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Attribute::Word(word) => word.into_py_any(py),
            Attribute::Number(number) => number.into_py_any(py),
            Attribute::Texts(texts) => texts.into_py_any(py),
            Attribute::Reason(reason) => Lost::from(reason).into_py_any(py),
        }
    }
}

/// Returns the name of an effect in Python.
fn word(effect: Effect) -> &'static str {
    match effect {
        Effect::NotApplied => "not_applied",
        Effect::Unknown => "unknown",
        Effect::Applied => "applied",
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| match failure.raise(py) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = match &error {
            Error::Rejected(_) | Error::LockDelay { .. } | Error::SessionTtl { .. } => {
                Self::new("RejectedError", error.to_string())
            }
            Error::Busy => Self::new("BusyError", error.to_string()),
            Error::QuotaExceeded { .. } | Error::NoSpace => {
                Self::new("NoRoomError", error.to_string())
            }
            Error::Deadline { .. } => Self::new("DeadlineError", error.to_string()),
            Error::NotFounded { waiting_for } => Self::new("NotFoundedError", error.to_string())
                .with("waiting_for", Attribute::Texts(waiting_for.clone())),
            Error::Stopped { .. } => Self::new("StoppedError", error.to_string()),
            Error::SessionEnded { .. } => Self::new("SessionEndedError", error.to_string()),
            Error::Members(_) | Error::NoTransferee => {
                Self::new("MembershipError", error.to_string())
            }
            _ => Self::new("BowlineError", error.to_string()),
        };
        failure.with_effect(error.effect(), error.is_transient())
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let class = match &error {
            LockError::WouldBlock { .. } => "LockBusyError",
            LockError::TimedOut { .. } => "LockTimeoutError",
            LockError::Unavailable => "DeadlineError",
            LockError::SessionEnded(_) => "SessionEndedError",
            LockError::NodeStopped(_) => "StoppedError",
            _ => "LockError",
        };
        let (effect, is_transient) = (error.effect(), error.is_transient());
        match error {
            LockError::Store(error) => error.into(),
            error => Self::new(class, error.to_string()).with_effect(effect, is_transient),
        }
    }
}

impl From<GuardError> for Failure {
    fn from(error: GuardError) -> Self {
        let class = match &error {
            GuardError::NotHeld | GuardError::ClaimLost => "LostError",
            _ => "RejectedError",
        };
        match error {
            GuardError::Store(error) => error.into(),
            error => Self::new(class, error.to_string()),
        }
    }
}

impl From<QueueError> for Failure {
    fn from(error: QueueError) -> Self {
        let class = match &error {
            QueueError::Full { .. } => "QueueFullError",
            QueueError::ClaimLost => "LostError",
            QueueError::SessionEnded(_) => "SessionEndedError",
            QueueError::TimedOut { .. } => "QueueEmptyError",
            _ => "RejectedError",
        };
        let (effect, is_transient) = (error.effect(), error.is_transient());
        match error {
            QueueError::Store(error) => error.into(),
            error => Self::new(class, error.to_string()).with_effect(effect, is_transient),
        }
    }
}

impl From<WatchError> for Failure {
    fn from(error: WatchError) -> Self {
        let text = error.to_string();
        match error {
            WatchError::Compacted { compacted, .. } => {
                Self::new("CompactedError", text).with("oldest", Attribute::Number(compacted.get()))
            }
            WatchError::Closed { .. } => Self::new("StoppedError", text),
            _ => Self::new("RejectedError", text),
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let text = error.to_string();
        match error {
            StartError::Config(_) => Self::new("ConfigError", text),
            StartError::Data { kind, .. } => {
                Self::new("DataError", text).with("kind", Attribute::Word(data_word(kind)))
            }
            StartError::Join { kind, .. } => {
                let (kind, effect) = match kind {
                    JoinErrorKind::TimedOut => ("timed_out", Effect::Unknown),
                    _ => ("refused", Effect::NotApplied),
                };
                Self::new("JoinError", text)
                    .with("kind", Attribute::Word(kind))
                    .with_effect(effect, false)
            }
            _ => Self::new("StartError", text),
        }
    }
}

fn data_word(kind: DataErrorKind) -> &'static str {
    match kind {
        DataErrorKind::InUse => "in_use",
        DataErrorKind::Foreign => "foreign",
        DataErrorKind::Damaged => "damaged",
        DataErrorKind::Newer => "newer",
        DataErrorKind::StateLost => "state_lost",
        DataErrorKind::HalfRestored => "half_restored",
        DataErrorKind::NoSpace => "no_space",
        DataErrorKind::Io => "io",
        _ => "other",
    }
}
