//! [`TypedWorker`]: a worker whose items are decoded.

use std::future::{Future, pending};
use std::marker::PhantomData;
use std::time::Duration;

use crate::api::{Node, forwarded_options};

#[cfg(feature = "json")]
use super::codec::Json;
use super::codec::{Codec, decode};
use super::queue::TypedQueue;
use crate::recipes::{QueueError, QueueWorker, WorkFailure, WorkItem};

/// A loop that takes items from a queue, like [`QueueWorker`], and runs a handler with the decoded
/// value of each. Created by [`TypedQueue::worker`].
///
/// An item that cannot be decoded is moved to the dead letters with its reason, because another
/// attempt would fail as well. [`Queue::requeue`](crate::queue::Queue::requeue) puts it back. To
/// treat such items differently, use [`Node::queue_worker`] and decode in the handler.
#[derive(Clone, Debug)]
#[must_use = "the worker does nothing until it is run"]
pub struct TypedWorker<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    worker: QueueWorker,
    codec: C,
    value: PhantomData<fn() -> T>,
}

impl<T, C: Codec<T>> TypedQueue<T, C> {
    /// Creates a worker for this queue; see [`Node::queue_worker`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let pages = node.client().queue("pages").typed::<u32>();
    /// node.client().queue("pages").put("not JSON").block()?;
    /// pages.put(7).block()?;
    ///
    /// let (printed, mut page) = tokio::sync::mpsc::channel(1);
    /// let worker = pages.worker(&node).attempts_max(3);
    /// worker
    ///     .run_until(page.recv(), Duration::from_secs(10), async |page, item| {
    ///         println!("page {page}, attempt {}", item.attempt());
    ///         printed.send(()).await?;
    ///         Ok(())
    ///     })
    ///     .block()?;
    /// assert!(pages.is_empty().block()?);
    /// assert_eq!(pages.dead_letters().len().block()?, 1);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn worker(&self, node: &Node) -> TypedWorker<T, C> {
        let (worker, codec) = (node.queue_worker(self.name()), self.codec().clone());
        TypedWorker { worker, codec, value: PhantomData }
    }
}

impl<T, C: Codec<T>> TypedWorker<T, C> {
    forwarded_options! { worker:
        /// Sets how many handlers run concurrently; see [`QueueWorker::concurrency`].
        pub fn concurrency(items: usize);

        /// Limits delivery attempts; see [`QueueWorker::attempts_max`].
        pub fn attempts_max(attempts: u64);

        /// Sets the delay before a failed item is delivered again; see [`QueueWorker::retry_after`].
        pub fn retry_after(delay: Duration);

        /// Computes the delay from the number of the failed attempt; see [`QueueWorker::retry_with`].
        pub fn retry_with(delay: impl Fn(u64) -> Duration + Send + Sync + 'static);

        /// Does not drop a handler whose item was lost; see [`QueueWorker::finish_after_loss`].
        pub fn finish_after_loss();
    }

    /// Runs `handler` for each item until the node stops; see [`QueueWorker::run`].
    ///
    /// # Errors
    /// See [`QueueWorker::run_until`].
    pub async fn run(
        self,
        handler: impl AsyncFnOnce(T, WorkItem) -> Result<(), WorkFailure> + Clone,
    ) -> Result<(), QueueError> {
        self.run_until(pending::<()>(), Duration::ZERO, handler).await
    }

    /// Runs `handler` for each item until the future `stop` completes; see
    /// [`QueueWorker::run_until`].
    ///
    /// # Errors
    /// See [`QueueWorker::run_until`].
    pub async fn run_until(
        self,
        stop: impl Future,
        grace: Duration,
        handler: impl AsyncFnOnce(T, WorkItem) -> Result<(), WorkFailure> + Clone,
    ) -> Result<(), QueueError> {
        let Self { worker, codec, .. } = self;
        let decoding = async move |item: WorkItem| match decode(&codec, &item.key(), item.value()) {
            Ok(value) => handler(value, item).await,
            Err(why) => Err(WorkFailure::dead_letter(why.to_string())),
        };
        worker.run_until(stop, grace, decoding).await
    }
}
