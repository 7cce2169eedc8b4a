//! [`Stream`]: a watch or the changes of an election, read item by item.
//!
//! An item moves from the stream to the buffer, and from there to Python. So a cancelled `fill`
//! loses nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline::election::Observe;
use bowline::{LeaderEvent, Watch};
use pyo3::{IntoPyObjectExt, Py, PyAny, PyResult, Python, pyclass, pymethods};
use tokio::sync::watch;

use crate::call::Call;
use crate::errors::Failure;
use crate::process::Owned;
use crate::rows::{Event, bytes};

/// A stream of changes.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Stream {
    shared: Owned<Arc<SharedStream>>,
    created_revision: Option<u64>,
}

struct SharedStream {
    /// `None` after the stream was closed or has ended.
    source: tokio::sync::Mutex<Option<Source>>,
    buffer: Mutex<VecDeque<Item>>,
    closed: watch::Sender<bool>,
}

enum Source {
    Watch(Box<Watch>),
    Observe(Box<Observe>),
}

enum Item {
    Event(Box<bowline::Event>),
    Leader(LeaderEvent),
}

impl SharedStream {
    fn buffer(&self) -> MutexGuard<'_, VecDeque<Item>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the buffer has an item. Returns `false` if the stream has ended.
    async fn fill(&self) -> Result<bool, Failure> {
        let mut closed = self.closed.subscribe();
        loop {
            if *closed.borrow_and_update() {
                *self.source.lock().await = None;
                return Ok(false);
            }
            if !self.buffer().is_empty() {
                return Ok(true);
            }
            tokio::select! {
                biased;
                // The channel lives as long as the stream.
                _ = closed.changed() => {}
                is_open = self.read() => if !is_open? {
                    return Ok(false);
                },
            }
        }
    }

    /// Reads the next items into the buffer. Returns `false` if the stream has ended.
    async fn read(&self) -> Result<bool, Failure> {
        let mut source = self.source.lock().await;
        // Another thread may have filled the buffer meanwhile.
        if !self.buffer().is_empty() {
            return Ok(true);
        }
        let items: Option<Result<Vec<Item>, Failure>> = match &mut *source {
            None => return Ok(false),
            Some(Source::Watch(watch)) => watch.next().await.map(|batch| match batch {
                Ok(batch) => Ok(batch.events.into_iter().map(Box::new).map(Item::Event).collect()),
                Err(error) => Err(error.into()),
            }),
            Some(Source::Observe(observe)) => observe.next().await.map(|event| match event {
                Ok(event) => Ok(vec![Item::Leader(event)]),
                Err(error) => Err(error.into()),
            }),
        };
        let Some(items) = items else {
            *source = None;
            return Ok(false);
        };
        self.buffer().extend(items?);
        Ok(true)
    }
}

impl Stream {
    pub(crate) fn of_watch(watch: Watch) -> Self {
        let created = watch.created_at().get();
        Self::new(Source::Watch(Box::new(watch)), Some(created))
    }

    pub(crate) fn of_election(observe: Observe) -> Self {
        Self::new(Source::Observe(Box::new(observe)), None)
    }

    fn new(source: Source, created_revision: Option<u64>) -> Self {
        let shared = SharedStream {
            source: tokio::sync::Mutex::new(Some(source)),
            buffer: Mutex::default(),
            closed: watch::Sender::new(false),
        };
        Self { shared: Owned::new(Arc::new(shared)), created_revision }
    }
}

#[pymethods]
impl Stream {
    /// The revision at which a watch was created.
    #[getter]
    fn created_revision(&self) -> Option<u64> {
        self.created_revision
    }

    /// Waits until there is an item. The result is `False` if the stream has ended.
    fn fill(&self) -> PyResult<Call> {
        let shared = Arc::clone(self.shared.get()?);
        Ok(Call::new(async move { shared.fill().await }))
    }

    /// Returns the next item, in a list of one, or an empty list.
    fn pop(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let item = self.shared.get()?.buffer().pop_front();
        let item = item.map(|item| match item {
            Item::Event(event) => Event::new(py, *event)?.into_py_any(py),
            Item::Leader(LeaderEvent::Leads(leader)) => leader_parts(py, &leader),
            Item::Leader(_) => Ok(py.None()),
        });
        item.into_iter().collect()
    }

    /// Ends the stream. A call that waits for an item returns.
    fn close(&self) -> PyResult<()> {
        let shared = self.shared.get()?;
        shared.closed.send_replace(true);
        shared.buffer().clear();
        if let Ok(mut source) = shared.source.try_lock() {
            *source = None;
        }
        Ok(())
    }
}

/// Returns a leader as a tuple. The Python class is a named tuple with these fields.
pub(crate) fn leader_parts(
    py: Python<'_>,
    leader: &bowline::election::Leader,
) -> PyResult<Py<PyAny>> {
    let (key, value) = (bytes(py, &leader.key), bytes(py, &leader.value));
    (key, value, leader.since.get(), leader.lease.get()).into_py_any(py)
}
