//! [`QueueWorker`]: takes items and runs a handler for each.
//!
//! ```text
//!   n slots, each:  take ──▶ handler ──▶ acknowledge or fail ──▶ take ...
//!                    ▲          │
//!                    └──────────┴ item lost, handler dropped
//!
//!   phases:  Taking ── stop ──▶ Finishing ── grace ──▶ Over ──▶ session closed
//! ```
//!
//! All slots share one session of the worker. If it ends, the next take opens another one. The slots
//! run in the task of the worker, so a dropped worker drops its handlers.

use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::api::{Client, Effect, Error, Node, OwnSession};
use crate::model::IntoBytes;
use crate::node::Shared;
use crate::recipes::{LostReason, call::pause};

use super::slots::Slots;
use super::work_item::Retry;
use super::{Delivery, QueueError, QueueTaker, WorkFailure, WorkItem};

/// Default of [`QueueWorker::retry_after`]. Also the pause after an outcome that was not applied.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why an item fails if a condition of [`WorkItem::when`] does not hold.
const CONDITION_FAILED: &str = "the condition of the acknowledgement does not hold";

/// Time that a stopped worker has to settle its items and to close its session, if its grace period
/// is shorter.
const SETTLE_WAIT_MIN: Duration = Duration::from_secs(1);

/// A loop that takes items from a queue and runs a handler for each. Created by
/// [`Node::queue_worker`]. Each clone is a separate worker.
///
/// The handler is an async closure that takes a [`WorkItem`], or a function that returns a future.
/// Each item is given to a clone of it, so what it captures must implement [`Clone`]. The handler
/// decides what happens to the item:
///
/// | handler | item |
/// |---|---|
/// | returns `Ok` | acknowledged, together with the operations of [`WorkItem::then`] |
/// | returns `Ok`, but a condition of [`WorkItem::when`] does not hold | as after an error |
/// | returns an error | retried after the delay of the error or of [`QueueWorker::retry_after`]. On the last attempt ([`QueueWorker::attempts_max`]), and with [`WorkFailure::dead_letter`], moved to the dead letters with the reason |
/// | panics | like an error, with the text of the panic as its reason |
/// | is dropped after the grace period | released at once; the delivery counts as an attempt |
/// | loses its item | belongs to another taker; nothing is changed |
///
/// Guarantees:
///
/// - No item is lost. A worker that crashes, loses its session or is dropped returns its items:
///   delivery is at-least-once, see [`Delivery`].
/// - The handler is polled only while the item belongs to this worker, which is checked at every
///   poll with this machine's clock. After a loss, for example because the session was not renewed
///   in time, the handler is dropped before anything else happens, and its result is not used.
/// - If the item is released or the session expires, another taker gets the item only after the
///   handler has ended or was dropped. This also holds if the future of the worker is dropped.
///   A shutdown of the node, a revoked lease and a deleted claim free the item at once. Then the
///   handler is dropped as soon as the task of the worker is polled. A handler that blocks its thread
///   cannot be dropped. After a pause such a handler may continue although another taker has the
///   item. It should pass [`Delivery::token`] to the resource that it changes.
/// - The worker outlives its session. If the cluster had no quorum for longer than the TTL, or the
///   program was paused, the worker opens a new session, and retries until this succeeds.
///
/// The handlers run in the task of the worker. A handler that computes for long delays the others:
/// move such work to another thread, for example with `tokio::task::spawn_blocking`. Tasks that the
/// handler has spawned are not dropped with it.
///
/// ```
/// # use std::time::Duration;
/// # use bowline::{Blocking, Config, Node};
/// use bowline::queue::{WorkFailure, WorkItem};
///
/// async fn send(mail: WorkItem) -> Result<(), WorkFailure> {
///     let address = mail.text()?;
///     println!("to {address}, attempt {}", mail.attempt());
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).await?;
/// let mails = node.client().queue("mails");
/// mails.put_many(["ann", "bob"]).await?;
///
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let worker = node.queue_worker("mails").concurrency(4).attempts_max(5);
/// let worker = tokio::spawn(worker.run_until(stopped, Duration::from_secs(10), send));
/// # while !mails.is_empty().await? {
/// #     tokio::task::yield_now().await;
/// # }
/// drop(stop); // when the program ends
/// worker.await??;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the worker does nothing until it is run"]
pub struct QueueWorker {
    client: Client,
    name: Bytes,
    concurrency: usize,
    attempts_max: Option<u64>,
    retry_delay: RetryDelay,
    may_finish: bool,
}

impl Node {
    /// Creates a worker for the queue `name`, which lasts as long as this node runs: it takes items,
    /// runs a handler for each, and acknowledges them. The worker opens its own session with
    /// [`Config::session_ttl`](crate::Config::session_ttl), and another one after a loss. The name
    /// is that of [`Session::queue`](crate::Session::queue). For items of your own types, see
    /// [`TypedQueue::worker`](crate::typed::TypedQueue::worker).
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # use std::time::Duration;
    /// use bowline::queue::WorkFailure;
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let jobs = node.client().queue("jobs");
    /// jobs.put_many(["1.png", "2.txt"]).block()?;
    ///
    /// let (ended, mut all_ended) = tokio::sync::mpsc::channel(2);
    /// let stop = async { (all_ended.recv().await, all_ended.recv().await) };
    /// let worker = node.queue_worker("jobs").attempts_max(3);
    /// worker
    ///     .run_until(stop, Duration::from_secs(10), async |job| {
    ///         ended.try_send(())?;
    ///         match job.text()?.ends_with(".png") {
    ///             true => Ok(()),
    ///             false => Err(WorkFailure::dead_letter("not an image")),
    ///         }
    ///     })
    ///     .block()?;
    /// assert!(jobs.is_empty().block()?);
    /// let letter = jobs.dead_letters().items().block()?.remove(0);
    /// assert_eq!(letter.dead_letter.unwrap().reason, "not an image");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue_worker(&self, name: impl IntoBytes) -> QueueWorker {
        QueueWorker::on(self.client(), name.into_bytes())
    }
}

impl QueueWorker {
    /// Creates a worker on the client's node.
    pub(crate) fn on(client: Client, name: Bytes) -> Self {
        Self {
            client,
            name,
            concurrency: 1,
            attempts_max: None,
            retry_delay: RetryDelay::constant(RETRY_AFTER),
            may_finish: false,
        }
    }

    /// Sets how many items the worker has at a time, and so how many handlers run concurrently. The
    /// minimum is 1. Default 1.
    pub fn concurrency(mut self, items: usize) -> Self {
        self.concurrency = items.max(1);
        self
    }

    /// Limits delivery attempts; see [`QueueTaker::attempts_max`]. Use the same limit for all takers
    /// of a queue. Default: no limit, so an item that always fails is retried without end. An item
    /// that is being claimed when the worker stops is released, and has used an attempt.
    pub fn attempts_max(mut self, attempts: u64) -> Self {
        self.attempts_max = Some(attempts);
        self
    }

    /// Sets the delay before a failed item is delivered again, unless the handler chooses one
    /// ([`WorkFailure::retry_after`]). Default 1 s.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_delay = RetryDelay::constant(delay);
        self
    }

    /// Computes the delay of [`QueueWorker::retry_after`] from the number of the failed attempt, 1
    /// for the first one. This delay doubles from 1 s up to 1,024 s:
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let worker = node.queue_worker("mails").attempts_max(20);
    /// let worker = worker.retry_with(|attempt| Duration::from_secs(1 << (attempt - 1).min(10)));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "backoff")]
    pub fn retry_with(mut self, delay: impl Fn(u64) -> Duration + Send + Sync + 'static) -> Self {
        self.retry_delay = RetryDelay(Arc::new(delay));
        self
    }

    /// Does not drop a handler whose item was lost. The handler must notice the loss itself
    /// ([`Delivery::lost`]) and may run while another taker, or another handler of this worker, has
    /// the item. Use this option for work that needs an orderly cleanup. The result of the handler
    /// is dropped: an item that was lost is not acknowledged. If the node stops, its handlers are
    /// dropped at once.
    pub fn finish_after_loss(mut self) -> Self {
        self.may_finish = true;
        self
    }

    /// Runs `handler` for each item until the node stops. Returns only with an error.
    ///
    /// # Errors
    /// See [`QueueWorker::run_until`].
    pub async fn run(
        self,
        handler: impl AsyncFnOnce(WorkItem) -> Result<(), WorkFailure> + Clone,
    ) -> Result<(), QueueError> {
        self.run_until(pending::<()>(), Duration::ZERO, handler).await
    }

    /// Runs `handler` for each item until the future `stop` completes. Then the worker takes no more
    /// items. Running handlers are notified ([`WorkItem::stopping`]), and are dropped after `grace`.
    /// Their items are released. Afterwards the worker closes its session, and waits until this and
    /// the acknowledgements are durable, at most for another `grace` or a second, whichever is
    /// longer: without a quorum they cannot become durable, and the node keeps trying until it
    /// stops. If the node stops, the handlers are dropped without a grace period.
    ///
    /// The worker retries after temporary errors: no quorum, a full disk, an alarm. If the future of
    /// the worker is dropped, its handlers are dropped, and its items are released in the
    /// background. Then an acknowledgement that was sent may still be applied.
    ///
    /// # Errors
    /// Returns an error if the worker can take no more items, usually [`QueueError::Store`] with
    /// [`Error::Stopped`] because the node has stopped. The handlers have then ended or were
    /// dropped, as after `stop`.
    pub async fn run_until(
        self,
        stop: impl Future,
        grace: Duration,
        handler: impl AsyncFnOnce(WorkItem) -> Result<(), WorkFailure> + Clone,
    ) -> Result<(), QueueError> {
        let run = WorkerRun::new(self);
        let working = async {
            let slots = (0..run.worker.concurrency).map(|_| run.slot(handler.clone()));
            Slots::new(slots).all_ended().await;
            run.close().await;
        };
        let stopping = async {
            tokio::select! {
                biased;
                _ = stop => run.enter(WorkerPhase::Finishing),
                () = run.has_reached(WorkerPhase::Finishing) => {}
            }
            let shared = run.shared();
            shared.sleep_until(shared.now() + grace).await;
            run.enter(WorkerPhase::Over);
            shared.sleep_until(shared.now() + grace.max(SETTLE_WAIT_MIN)).await;
        };
        // Check for the stop first, so that a stopped worker takes no item.
        tokio::select! {
            biased;
            () = stopping => {}
            () = working => {}
        }
        match run.failed().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// The delay before a failed item is delivered again, by the number of the failed attempt.
#[derive(Clone)]
struct RetryDelay(Arc<dyn Fn(u64) -> Duration + Send + Sync>);

impl RetryDelay {
    fn constant(delay: Duration) -> Self {
        Self(Arc::new(move |_| delay))
    }

    fn after(&self, item: &Delivery) -> Duration {
        (self.0)(item.attempt())
    }
}

impl std::fmt::Debug for RetryDelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetryDelay").finish_non_exhaustive()
    }
}

/// Phase of a worker. Later phases are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WorkerPhase {
    Taking,
    /// No more items are taken. Handlers may end.
    Finishing,
    /// Handlers are dropped. Their results may be settled.
    Over,
}

/// A running worker.
struct WorkerRun {
    worker: QueueWorker,
    session: Arc<OwnSession>,
    /// The taker of the current session, which the slots share.
    taker: Mutex<Option<QueueTaker>>,
    phase: watch::Sender<WorkerPhase>,
    /// Why no more items can be taken.
    failed: Mutex<Option<QueueError>>,
}

impl WorkerRun {
    fn new(worker: QueueWorker) -> Self {
        let session = OwnSession::of(worker.client.clone());
        let (taker, failed) = (Mutex::default(), Mutex::default());
        Self { worker, session, taker, phase: watch::Sender::new(WorkerPhase::Taking), failed }
    }

    fn shared(&self) -> &Shared {
        self.session.shared()
    }

    fn failed(&self) -> MutexGuard<'_, Option<QueueError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_taker(&self) -> MutexGuard<'_, Option<QueueTaker>> {
        self.taker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, phase: WorkerPhase) {
        self.phase.send_modify(|now| *now = phase.max(*now));
    }

    async fn has_reached(&self, phase: WorkerPhase) {
        let mut phases = self.phase.subscribe();
        // The sender lives as long as this value.
        drop(phases.wait_for(|now| *now >= phase).await);
    }

    /// Takes items and works on them, one at a time, until no more items are taken.
    async fn slot<H>(&self, handler: H)
    where
        H: AsyncFnOnce(WorkItem) -> Result<(), WorkFailure> + Clone,
    {
        while let Some(delivery) = self.next_item().await {
            self.work(delivery, handler.clone()).await;
        }
    }

    /// Waits for an item. Retries after temporary errors. Returns `None` if no more items are taken.
    async fn next_item(&self) -> Option<Delivery> {
        loop {
            let taken = tokio::select! {
                biased;
                () = self.has_reached(WorkerPhase::Finishing) => return None,
                taken = self.take() => taken,
            };
            match taken {
                Ok(delivery) => return Some(delivery),
                Err(error) if error.is_retryable() => {
                    tracing::debug!(queue = %self.name(), %error, "worker took no item, retrying");
                }
                Err(error) => {
                    self.give_up(error);
                    return None;
                }
            }
            self.rest(pause(self.shared())).await;
        }
    }

    /// Takes no more items, because of a permanent error.
    fn give_up(&self, error: QueueError) {
        self.failed().get_or_insert(error);
        self.enter(WorkerPhase::Finishing);
    }

    async fn take(&self) -> Result<Delivery, QueueError> {
        self.taker().await?.take().await
    }

    /// Returns a taker of the current session, or of a new one if the session has ended.
    async fn taker(&self) -> Result<QueueTaker, Error> {
        let session = self.session.get().await?;
        let is_current = |taker: &&QueueTaker| taker.session().lease() == session.lease();
        if let Some(taker) = self.kept_taker().as_ref().filter(is_current) {
            return Ok(taker.clone());
        }
        let mut taker = session.queue(self.worker.name.clone());
        if let Some(attempts) = self.worker.attempts_max {
            taker = taker.attempts_max(attempts);
        }
        // Drop the old taker without the lock.
        let old = self.kept_taker().replace(taker.clone());
        drop(old);
        Ok(taker)
    }

    /// Runs the handler for an item and settles the item.
    async fn work<H>(&self, delivery: Delivery, handler: H)
    where
        H: AsyncFnOnce(WorkItem) -> Result<(), WorkFailure>,
    {
        let item = WorkItem::new(&delivery, self.phase.subscribe());
        let lost = async {
            // A stopping node has ended its sessions. Another take would open a new one.
            if let LostReason::NodeStopped(reason) = delivery.lost().await {
                let effect = Effect::NotApplied;
                self.give_up(QueueError::Store(Error::Stopped { reason, effect }));
            }
            if self.worker.may_finish {
                pending::<()>().await;
            }
        };
        // Check for the loss first at every poll, so that outdated work is not polled again. The
        // handler is dropped before the delivery, which releases the item.
        let outcome = tokio::select! {
            biased;
            () = lost => None,
            () = self.has_reached(WorkerPhase::Over) => return,
            outcome = caught(async { handler(item.clone()).await }) => Some(outcome),
        };
        let Some(outcome) = outcome.filter(|_| delivery.is_claimed()) else {
            return tracing::warn!(
                queue = %self.name(),
                item = %delivery.id(),
                attempt = delivery.attempt(),
                "worker lost an item before its handler had ended"
            );
        };
        let settled = match outcome {
            Ok(()) => self.acknowledge(delivery, &item).await,
            Err(failure) => self.fail(delivery, failure).await,
        };
        match settled {
            Ok(()) => {}
            Err(error) if error.effect() == Effect::Applied => {}
            Err(QueueError::ClaimLost) => {
                tracing::warn!(queue = %self.name(), item = %item.id(), "worker lost a handled item");
            }
            Err(error) => {
                tracing::warn!(
                    queue = %self.name(),
                    item = %item.id(),
                    %error,
                    "worker could not settle a handled item"
                );
                // The item may be available again at once, so do not repeat the work at full speed.
                let shared = self.shared();
                self.rest(shared.sleep_until(shared.now() + RETRY_AFTER)).await;
            }
        }
    }

    async fn acknowledge(&self, mut item: Delivery, work: &WorkItem) -> Result<(), QueueError> {
        match item.acknowledge(work.take_effects()).await {
            Err(error) if !item.is_open() || error.effect() != Effect::NotApplied => Err(error),
            Err(error) if error.is_retryable() => {
                let delay = self.worker.retry_delay.after(&item);
                let released = item.nack_after(delay).await;
                released.and(Err(error))
            }
            // The effects were rejected, so another attempt needs other effects.
            Err(error) => self.fail(item, WorkFailure::from(error)).await,
            Ok(None) => self.fail(item, WorkFailure::new(CONDITION_FAILED)).await,
            Ok(Some(_)) => Ok(()),
        }
    }

    async fn fail(&self, delivery: Delivery, failure: WorkFailure) -> Result<(), QueueError> {
        let WorkFailure { reason, retry } = failure;
        let delay = match retry {
            Retry::Default => Some(self.worker.retry_delay.after(&delivery)),
            Retry::After(delay) => Some(delay),
            Retry::Never => None,
        };
        let retry_in = delay.filter(|_| !delivery.is_last_attempt());
        let next = if retry_in.is_some() { "it is retried" } else { "it becomes a dead letter" };
        tracing::warn!(
            queue = %self.name(),
            item = %delivery.id(),
            attempt = delivery.attempt(),
            reason,
            retry_in = retry_in.map(tracing::field::debug),
            "handler of an item failed: {next}"
        );
        match delay {
            Some(delay) => delivery.fail(reason).retry_after(delay).await.map(drop),
            None => delivery.dead_letter(reason).await,
        }
    }

    /// Waits for the end of a pause, or until no more items are taken.
    async fn rest(&self, pause: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = self.has_reached(WorkerPhase::Finishing) => {}
            () = pause => {}
        }
    }

    /// Closes the session, which releases all items.
    async fn close(&self) {
        let taker = self.kept_taker().take();
        if let Some(taker) = taker {
            // The keys of a session that cannot be closed are deleted with its lease.
            drop(taker.session().close().await);
        }
    }

    /// Name of the queue in log lines.
    fn name(&self) -> impl std::fmt::Display {
        self.worker.name.escape_ascii()
    }
}

/// Runs the future, and returns a panic as a failure.
async fn caught(work: impl Future<Output = Result<(), WorkFailure>>) -> Result<(), WorkFailure> {
    let mut work = pin!(work);
    poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let text = text.unwrap_or_else(|| "no text".to_owned());
            Poll::Ready(Err(WorkFailure::new(format!("the handler panicked: {text}"))))
        })
    })
    .await
}
