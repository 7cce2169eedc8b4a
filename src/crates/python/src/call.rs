//! [`Call`]: one call of a node, for blocking and for asyncio programs.
//!
//! Bowline's futures need no executor: the threads of the node do the work and wake the task. A blocking call polls its
//! future on the calling thread, detached from the interpreter. The futures of all asyncio calls are polled on one
//! background thread, which passes the results to Python callbacks. Only the delivery of a result attaches to the
//! interpreter, so a Python thread that does not release the interpreter delays results, but not the renewal of leases.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::{IntoPyObject, IntoPyObjectExt, Py, PyAny, PyResult, Python, pyclass, pymethods};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::args::Seconds;
use crate::errors::Failure;
use crate::interpreter::{InterpreterGate, shutting_down};
use crate::process::{Owned, PerProcess};

/// Time between two checks for signals, such as Ctrl-C, while a call blocks.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// The result of a call. The closure converts the result to a Python object.
type Outcome = Result<Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>, Failure>;

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A call that has not been made yet. It is made once, by `wait` or by `spawn`.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Call {
    running: Owned<Mutex<Option<Running>>>,
}

impl Call {
    /// Creates a call whose result becomes a Python object.
    pub(crate) fn new<T, E>(future: impl Future<Output = Result<T, E>> + Send + 'static) -> Self
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
        E: Into<Failure>,
    {
        let running: Running = Box::pin(async move {
            match future.await {
                Ok(value) => {
                    let value = AssertUnwindSafe(value);
                    let convert = move |py: Python<'_>| { value }.0.into_py_any(py);
                    Ok(Box::new(convert) as Box<dyn FnOnce(Python<'_>) -> _ + Send>)
                }
                Err(error) => Err(error.into()),
            }
        });
        Self { running: Owned::new(Mutex::new(Some(running))) }
    }

    fn take(&self) -> Result<Running, Failure> {
        let running = self.running.get()?.lock().unwrap_or_else(PoisonError::into_inner).take();
        running.ok_or_else(|| Failure::new("BowlineError", "the call was already made"))
    }
}

#[pymethods]
impl Call {
    /// Makes the call and blocks until its result is available. Returns `None` if `timeout` seconds
    /// pass first; the call is then cancelled. While another thread shuts down the interpreter, the
    /// call is cancelled too.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Option<Py<PyAny>>> {
        let permit = InterpreterGate::of_process().enter().ok_or_else(shutting_down)?;
        let mut running = self.take()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout.0));
        loop {
            let check = Instant::now() + SIGNAL_INTERVAL;
            let until = end.map_or(check, |end| end.min(check));
            let polled;
            (running, polled) = py.detach(move || {
                let polled = poll_until(&mut running, until);
                (running, polled)
            });
            if let Some(outcome) = polled {
                return outcome?(py).map(Some);
            }
            let checked = match permit.must_leave() {
                true => Err(shutting_down()),
                false => py.check_signals(),
            };
            if let Err(error) = checked {
                // The drop may take locks of the node.
                py.detach(move || drop(running));
                return Err(error);
            }
            if end.is_some_and(|end| end <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// Makes the call in the background. Calls `deliver(value, error)` from a background thread,
    /// where one of the two is `None`.
    fn spawn(&self, deliver: Py<PyAny>) -> PyResult<Task> {
        let mut running = self.take()?;
        let gate = InterpreterGate::of_process();
        if gate.is_closed() {
            return Err(shutting_down());
        }
        let runtime = runtime()?;
        let task = runtime.spawn(async move {
            let outcome = std::future::poll_fn(|context| {
                let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
                polled.unwrap_or_else(|_| {
                    Poll::Ready(Err(Failure::new("BowlineError", "internal error: panicked")))
                })
            })
            .await;
            // While the interpreter shuts down there is no program left that waits for the result.
            let Some(permit) = gate.enter() else { return };
            Python::attach(|py| {
                let delivered = match outcome.map_err(Into::into).and_then(|value| value(py)) {
                    Ok(value) => deliver.call1(py, (value, py.None())),
                    Err(error) => deliver.call1(py, (py.None(), error)),
                };
                if let Err(error) = delivered {
                    error.write_unraisable(py, None);
                }
                drop(deliver);
            });
            drop(permit);
        });
        Ok(Task { task: task.abort_handle() })
    }
}

/// A call that runs in the background.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Task {
    task: AbortHandle,
}

#[pymethods]
impl Task {
    /// Cancels the call. A change that was already sent may still be applied.
    fn cancel(&self) {
        self.task.abort();
    }
}

/// Polls a future on this thread until it is ready or `until` has passed.
fn poll_until(running: &mut Running, until: Instant) -> Option<Outcome> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(outcome) = running.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(outcome);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Returns the background runtime of this process.
fn runtime() -> Result<Arc<Runtime>, Failure> {
    static RUNTIME: PerProcess<Runtime> = PerProcess::new();
    RUNTIME.get_or_try_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("bowline-asyncio").build().map_err(|error| {
            Failure::new("BowlineError", format!("cannot start the asyncio thread: {error}"))
        })
    })
}
