//! The native module of the Python package `bowline`: a node of Bowline in the Python process.
//!
//! The classes that a Python program uses are in `bowline/*.py`. They use this module. Its methods
//! return a [`Call`](call::Call), for which a blocking program waits and which an asyncio program
//! awaits.
//!
//! ```text
//!   call          a call: blocking, or on the background thread with a callback
//!   interpreter   keeps threads out of the interpreter while it shuts down
//!   process       values that a forked child process must not touch
//!   slot          guards that are released while other calls use them
//!   errors        errors as Python exceptions
//!   args, txn, rows                    arguments and results
//!   node, kv, stream, lock, queue      the API
//! ```

mod args;
mod call;
mod errors;
mod interpreter;
mod kv;
mod lock;
mod node;
mod process;
mod queue;
mod rows;
mod slot;
mod stream;
mod txn;

/// The native module of the Python package `bowline`.
#[pyo3::pymodule(name = "_native")]
mod native {
    use pyo3::exceptions::PyValueError;
    use pyo3::{PyResult, Python, pyfunction};

    use crate::interpreter::InterpreterGate;

    #[pymodule_export]
    use crate::call::{Call, Task};
    #[pymodule_export]
    use crate::kv::Kv;
    #[pymodule_export]
    use crate::lock::{Election, Hold, Lock, Lost, Token};
    #[pymodule_export]
    use crate::node::{Node, Session};
    #[pymodule_export]
    use crate::queue::{Item, Queue};
    #[pymodule_export]
    use crate::rows::{Event, KeyValue};
    #[pymodule_export]
    use crate::stream::Stream;

    /// Keeps other threads out of the interpreter from now on. Cancels their calls, and waits until
    /// they have returned.
    #[pyfunction]
    fn close_interpreter(py: Python<'_>) {
        InterpreterGate::of_process().close(py);
    }

    /// Writes log lines of at least this level to standard error. The threads of a node write them
    /// without the interpreter.
    #[pyfunction]
    fn log_to_stderr(level: &str) -> PyResult<()> {
        let level: tracing::Level = level
            .parse()
            .map_err(|_| PyValueError::new_err(format!("invalid log level: {level}")))?;
        let subscriber = tracing_subscriber::fmt().with_max_level(level);
        let subscriber = subscriber.with_writer(std::io::stderr).with_ansi(false);
        subscriber.try_init().map_err(|error| PyValueError::new_err(error.to_string()))
    }
}
