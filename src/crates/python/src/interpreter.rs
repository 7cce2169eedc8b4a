//! [`InterpreterGate`]: keeps threads out of the interpreter while it shuts down.
//!
//! Before Python 3.14, a thread that acquires the interpreter lock during finalization is ended by `pthread_exit`. If
//! Rust code called the interpreter, `pthread_exit` unwinds through this code, drops Python objects without the lock,
//! and the process crashes. So a thread enters the gate before it attaches to the interpreter. An `atexit` function
//! closes the gate before the finalization begins, and waits until the threads inside have left.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, Python};

use crate::process::PerProcess;

/// The gate of this process.
pub(crate) struct InterpreterGate {
    state: Mutex<GateState>,
    left: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Number of threads that are attached to the interpreter, or will attach.
    inside: usize,
    /// The thread that shuts down the interpreter. It may use the interpreter until the end.
    closed_by: Option<ThreadId>,
}

/// Lets a thread use the interpreter. The thread leaves the gate with the drop.
pub(crate) struct AttachPermit {
    gate: Arc<InterpreterGate>,
}

impl InterpreterGate {
    /// Returns the gate of this process. The caller is attached to the interpreter.
    pub(crate) fn of_process() -> Arc<Self> {
        static GATE: PerProcess<InterpreterGate> = PerProcess::new();
        let gate = || Self { state: Mutex::default(), left: Condvar::new() };
        GATE.get_or_init(gate)
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if another thread has closed the gate.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<AttachPermit> {
        let mut state = self.state();
        if state.is_closed_for_this_thread() {
            return None;
        }
        state.inside += 1;
        Some(AttachPermit { gate: Arc::clone(self) })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed_by.is_some()
    }

    /// Closes the gate, and waits until all threads have left.
    pub(crate) fn close(&self, py: Python<'_>) {
        // A thread inside needs the interpreter lock before it can leave.
        py.detach(|| {
            let mut state = self.state();
            state.closed_by = Some(thread::current().id());
            let empty = self.left.wait_while(state, |state| state.inside > 0);
            drop(empty.unwrap_or_else(PoisonError::into_inner));
        });
    }
}

impl GateState {
    fn is_closed_for_this_thread(&self) -> bool {
        self.closed_by.is_some_and(|thread| thread != thread::current().id())
    }
}

impl AttachPermit {
    /// Returns whether another thread waits for this thread to leave.
    pub(crate) fn must_leave(&self) -> bool {
        self.gate.state().is_closed_for_this_thread()
    }
}

impl Drop for AttachPermit {
    fn drop(&mut self) {
        self.gate.state().inside -= 1;
        self.gate.left.notify_all();
    }
}

/// Returns the exception of a call that is cancelled by the shutdown of the interpreter.
///
/// An exception class of Python code would run Python code outside the gate.
pub(crate) fn shutting_down() -> PyErr {
    PyRuntimeError::new_err("call cancelled: the interpreter is shutting down")
}
