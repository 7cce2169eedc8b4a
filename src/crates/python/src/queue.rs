//! [`Queue`] and [`Item`]: the work queue, and an item that was taken from it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bowline::queue::{Delivery, ItemState, QueueError, QueueTaker, QueuedItem};
use bowline::{Bytes, LeaseId};
use pyo3::types::PyBytes;
use pyo3::{
    Bound, IntoPyObject, IntoPyObjectExt, Py, PyAny, PyErr, PyResult, Python, pyclass, pymethods,
};

use crate::args::{Data, Seconds};
use crate::call::Call;
use crate::errors::Failure;
use crate::lock::{Lost, Source, Token};
use crate::process::Owned;
use crate::rows::{Answer, Raw, bytes, text};
use crate::slot::Slot;
use crate::txn::{Step, ops};

/// A work queue.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Queue {
    source: Owned<Source>,
    name: Bytes,
    limit: Option<u64>,
    attempts_max: Option<u64>,
    taker: Arc<Mutex<Option<(LeaseId, QueueTaker)>>>,
}

impl Queue {
    pub(crate) fn new(
        source: Source,
        name: Data,
        limit: Option<u64>,
        attempts_max: Option<u64>,
    ) -> Self {
        let (source, taker) = (Owned::new(source), Arc::default());
        Self { source, name: name.0, limit, attempts_max, taker }
    }

    fn queue(&self) -> Result<bowline::queue::Queue, Failure> {
        let queue = self.source.get()?.client().queue(self.name.clone());
        Ok(self.limit.map_or(queue.clone(), |limit| queue.limit(limit)))
    }

    /// Returns a call that creates a taker for the current session. Later calls use the same taker.
    fn taker(&self) -> Result<impl Future<Output = Result<QueueTaker, Failure>> + use<>, Failure> {
        let (source, name) = (self.source.get()?.clone(), self.name.clone());
        let (kept, attempts_max) = (Arc::clone(&self.taker), self.attempts_max);
        Ok(async move {
            let session = source.session().await?;
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            match &*kept {
                Some((lease, taker)) if *lease == session.lease() => Ok(taker.clone()),
                _ => {
                    let taker = session.queue(name);
                    let taker = attempts_max.map_or(taker.clone(), |max| taker.attempts_max(max));
                    *kept = Some((session.lease(), taker.clone()));
                    Ok(taker)
                }
            }
        })
    }
}

#[pymethods]
impl Queue {
    /// Puts items at once, and returns their ids.
    fn put_many(
        &self,
        values: Vec<Data>,
        priority: i16,
        delay: Option<Seconds>,
        timeout: Option<Seconds>,
    ) -> PyResult<Call> {
        let mut call = self.queue()?.put_many(values.into_iter().map(|value| value.0));
        call = call.priority(priority);
        if let Some(Seconds(delay)) = delay {
            call = call.delay(delay);
        }
        if let Some(Seconds(timeout)) = timeout {
            call = call.deadline(timeout);
        }
        Ok(Call::new(async move {
            let ids = call.await?;
            Ok::<_, QueueError>(ids.iter().map(ToString::to_string).collect::<Vec<_>>())
        }))
    }

    /// Waits for an item.
    fn take(&self, timeout: Option<Seconds>) -> PyResult<Call> {
        let (began, taker) = (Instant::now(), self.taker()?);
        Ok(Call::new(async move {
            let mut call = taker.await?.take();
            if let Some(Seconds(timeout)) = timeout {
                call = call.deadline(timeout.saturating_sub(began.elapsed()));
            }
            Ok::<_, Failure>(Taken(call.await?))
        }))
    }

    /// Takes an item if there is one.
    fn try_take(&self) -> PyResult<Call> {
        let taker = self.taker()?;
        Ok(Call::new(async move { Ok::<_, Failure>(taker.await?.try_take().await?.map(Taken)) }))
    }

    /// Counts the items.
    fn len(&self) -> PyResult<Call> {
        let queue = self.queue()?;
        Ok(Call::new(async move { queue.len().await }))
    }

    /// Lists the items.
    fn items(&self) -> PyResult<Call> {
        let queue = self.queue()?;
        Ok(Call::new(async move {
            let items = queue.items().await?;
            Ok::<_, bowline::Error>(items.into_iter().map(Listed).collect::<Vec<_>>())
        }))
    }

    /// Returns the name of the queue of dead letters.
    fn dead_letters_name(&self) -> PyResult<Raw> {
        Ok(Raw(self.queue()?.dead_letters().name().clone()))
    }
}

/// An item of a list on its way to Python. The Python class is a named tuple with these fields.
struct Listed(QueuedItem);

impl<'py> IntoPyObject<'py> for Listed {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let item = self.0;
        let state = match item.state {
            ItemState::Free => "free",
            ItemState::Delayed => "delayed",
            _ => "taken",
        };
        let (id, value, put_at) = (item.id.to_string(), Raw(item.value), item.put_at.get());
        let letter = item.dead_letter;
        let attempts = letter.as_ref().map_or(item.attempts, |letter| letter.attempts);
        let reason = letter.map(|letter| letter.reason.to_string());
        (id, value, item.priority, put_at, attempts, state, reason).into_bound_py_any(py)
    }
}

/// A taken item on its way to Python.
struct Taken(Delivery);

impl<'py> IntoPyObject<'py> for Taken {
    type Target = Item;
    type Output = Bound<'py, Item>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Item>> {
        let delivery = self.0;
        let item = Item {
            value: bytes(py, delivery.value()),
            id: delivery.id().to_string(),
            attempt: delivery.attempt(),
            priority: delivery.priority(),
            token: delivery.token(),
            slot: Owned::new(Slot::new(delivery)),
        };
        Bound::new(py, item)
    }
}

/// A taken item that must be acknowledged. It returns to the queue at the latest when Python frees
/// the object.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Item {
    #[pyo3(get)]
    value: Py<PyBytes>,
    #[pyo3(get)]
    id: String,
    #[pyo3(get)]
    attempt: u64,
    #[pyo3(get)]
    priority: i16,
    token: bowline::Token,
    slot: Owned<Arc<Slot<Delivery>>>,
}

impl Item {
    pub(crate) fn slot(&self) -> Result<Arc<Slot<Delivery>>, Failure> {
        self.slot.get().map(Arc::clone)
    }
}

#[pymethods]
impl Item {
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        text(py, &self.value)
    }

    #[getter]
    fn token(&self) -> Token {
        Token(self.token)
    }

    /// Reports whether the item still belongs to this taker. Never blocks.
    fn is_claimed(&self) -> PyResult<bool> {
        Ok(self.slot()?.borrow().is_ok_and(|delivery| delivery.is_claimed()))
    }

    /// Reports whether the item was neither acknowledged nor returned by the program.
    fn is_open(&self) -> PyResult<bool> {
        Ok(self.slot()?.borrow().is_ok())
    }

    /// Waits until the item no longer belongs to this taker.
    fn wait_lost(&self) -> PyResult<Call> {
        let slot = self.slot()?;
        Ok(Call::new(async move {
            let lost = slot.until_lost(async |delivery: &Delivery| delivery.lost().await).await;
            Ok::<_, Failure>(Lost::from(lost))
        }))
    }

    /// Acknowledges the item, and applies operations in the same transaction.
    fn ack(&self, then: Vec<Step>) -> PyResult<Call> {
        let (slot, ops) = (self.slot()?, ops(then));
        Ok(Call::new(async move {
            let delivery = slot.take().await?;
            Ok::<_, Failure>(match ops.is_empty() {
                true => {
                    delivery.ack().await?;
                    None
                }
                false => Some(Answer::Txn(delivery.ack_with(ops).await?)),
            })
        }))
    }

    /// Moves the item to the dead letters.
    fn dead_letter(&self, reason: String) -> PyResult<Call> {
        let slot = self.slot()?;
        Ok(Call::new(async move {
            slot.take().await?.dead_letter(reason).await?;
            Ok::<_, Failure>(())
        }))
    }

    /// Returns the item to the queue, at once or after a delay.
    fn nack(&self, delay: Option<Seconds>) -> PyResult<Call> {
        let slot = self.slot()?;
        Ok(Call::new(async move {
            let delivery = slot.take().await?;
            match delay {
                Some(Seconds(delay)) => delivery.nack_after(delay).await?,
                None => delivery.nack().await?,
            }
            Ok::<_, Failure>(())
        }))
    }
}
