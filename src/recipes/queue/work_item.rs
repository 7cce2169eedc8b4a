//! [`WorkItem`] and [`WorkFailure`]: what the handler of a worker receives, and how it fails.

use std::fmt::Display;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::model::{Compare, Op, Txn};

use super::Delivery;
use super::worker::WorkerPhase;

/// An item that the handler of a [`QueueWorker`](super::QueueWorker) works on. Has the methods of
/// [`Delivery`] that read, for example [`Delivery::value`], [`Delivery::attempt`] and
/// [`Delivery::lost`]. The worker acknowledges the item when the handler returns `Ok`. Cheap to
/// clone. A clone that outlives the handler does not keep the item, but it keeps the session of a
/// worker that was dropped.
#[derive(Clone)]
pub struct WorkItem {
    inner: Arc<WorkItemInner>,
}

struct WorkItemInner {
    /// Does not own the item.
    delivery: Delivery,
    /// The operations that are applied with the acknowledgement, and its conditions.
    effects: Mutex<Txn>,
    phase: watch::Receiver<WorkerPhase>,
}

impl WorkItem {
    pub(super) fn new(delivery: &Delivery, phase: watch::Receiver<WorkerPhase>) -> Self {
        let inner = WorkItemInner { delivery: delivery.view(), effects: Mutex::default(), phase };
        Self { inner: Arc::new(inner) }
    }

    /// Adds an operation that is applied in the same transaction as the acknowledgement, as with
    /// [`Delivery::ack_with`]. So it is applied once, however often the item is delivered. If the
    /// handler fails or the item is lost, the operation is not applied. No client
    /// [prefix](crate::Client::with_prefix) is added to its keys.
    ///
    /// A lock in the handler does not protect the operation: its guard is dropped when the handler
    /// returns, before the acknowledgement. If the operation depends on what the handler has read,
    /// add a condition with [`WorkItem::when`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let (stop, mut stopped) = tokio::sync::mpsc::channel(1);
    /// # let (stopped, grace) = (stopped.recv(), Duration::from_secs(10));
    /// node.client().queue("jobs").put("1.png").block()?;
    /// let worker = node.queue_worker("jobs");
    /// worker
    ///     .run_until(stopped, grace, async |image| {
    ///         image.then(Op::put(format!("sizes/{}", image.text()?), "640"));
    /// #       stop.try_send(())?;
    ///         Ok(())
    ///     })
    ///     .block()?;
    /// assert_eq!(node.client().get("sizes/1.png").block()?.unwrap().value, "640");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn then(&self, op: impl Into<Op>) {
        self.effects().success.push(op.into());
    }

    /// Adds a condition of the acknowledgement. If the condition does not hold, no operation of
    /// [`WorkItem::then`] is applied, and the item fails as if the handler had returned an error: it
    /// is retried after the delay of the worker, and the attempt counts. No client
    /// [prefix](crate::Client::with_prefix) is added to the keys.
    ///
    /// With the revision of what the handler has read, a change that depends on it is applied
    /// exactly once. This sum is exact, however many workers add to it:
    ///
    /// ```
    /// # use bowline::{Blocking, Compare, Config, Node, Op, Revision};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let (stop, mut stopped) = tokio::sync::mpsc::channel(1);
    /// # let (stopped, grace) = (stopped.recv(), Duration::from_secs(10));
    /// let kv = node.client();
    /// kv.queue("payments").put("7").block()?;
    /// let worker = node.queue_worker("payments").retry_with(|_| Duration::from_millis(10));
    /// worker
    ///     .run_until(stopped, grace, async |payment| {
    ///         let row = kv.get("sum").await?;
    ///         let seen = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
    ///         let sum = row.map_or(Ok(0), |row| row.parse::<u64>())?;
    ///         payment.when(Compare::mod_revision("sum").eq(seen));
    ///         payment.then(Op::put("sum", (sum + payment.parse::<u64>()?).to_string()));
    /// #       stop.try_send(())?;
    ///         Ok(())
    ///     })
    ///     .block()?;
    /// assert_eq!(kv.get("sum").block()?.unwrap().value, "7");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn when(&self, compare: Compare) {
        self.when_all([compare]);
    }

    /// Adds several conditions, for example those of a lock or a leadership that the program holds
    /// for longer than the handler runs ([`Hold::still_held`](crate::lock::Hold::still_held)).
    pub fn when_all(&self, compares: impl IntoIterator<Item = Compare>) {
        let compares: Vec<Compare> = compares.into_iter().collect();
        self.effects().compares.extend(compares);
    }

    /// Waits until the worker stops, and takes no more items. The handler is dropped after the grace
    /// period of [`QueueWorker::run_until`](super::QueueWorker::run_until). Use this method to end
    /// long work in order before that.
    pub async fn stopping(&self) {
        let mut phase = self.inner.phase.clone();
        // The sender is gone if the future of the worker was dropped.
        drop(phase.wait_for(|phase| *phase >= WorkerPhase::Finishing).await);
    }

    pub(super) fn take_effects(&self) -> Txn {
        std::mem::take(&mut self.effects())
    }

    fn effects(&self) -> MutexGuard<'_, Txn> {
        self.inner.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for WorkItem {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.inner.delivery
    }
}

impl std::fmt::Debug for WorkItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WorkItem").field(&self.inner.delivery).finish()
    }
}

/// Why the handler of a [`QueueWorker`](super::QueueWorker) has failed, and whether its item is
/// retried. Every error that can be displayed converts into a failure that is retried, so handlers
/// can use `?`.
///
/// ```
/// # use std::time::Duration;
/// # use bowline::queue::{WorkFailure, WorkItem};
/// # async fn send(_: &str) -> Result<(), std::io::Error> { Ok(()) }
/// async fn handler(mail: WorkItem) -> Result<(), WorkFailure> {
///     let Ok(address) = mail.text() else {
///         return Err(WorkFailure::dead_letter("not UTF-8"));
///     };
///     send(address).await?; // retried after the delay of the worker
///     if address.ends_with("@slow.example") {
///         let delay = Duration::from_secs(60);
///         return Err(WorkFailure::new("mailbox busy").retry_after(delay));
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkFailure {
    pub(super) reason: String,
    pub(super) retry: Retry,
}

/// Whether and when a failed item is delivered again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Retry {
    /// After the delay of the worker.
    Default,
    After(Duration),
    Never,
}

impl WorkFailure {
    /// Creates a failure whose item is retried like after [`Delivery::fail`], with the delay of the
    /// worker ([`QueueWorker::retry_after`](super::QueueWorker::retry_after)).
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: Retry::Default }
    }

    /// Creates a failure whose item is moved to the dead-letter queue at once, because another
    /// attempt would fail as well; see [`Delivery::dead_letter`].
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), retry: Retry::Never }
    }

    /// Delays the next attempt, if there is one; see [`Delivery::nack_after`]. The delay replaces
    /// that of the worker.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry = Retry::After(delay);
        self
    }
}

/// The failure does not implement [`Display`] itself, so that it does not convert into itself.
impl<E: Display> From<E> for WorkFailure {
    fn from(error: E) -> Self {
        // The alternate form of some errors includes their causes.
        Self::new(format!("{error:#}"))
    }
}
