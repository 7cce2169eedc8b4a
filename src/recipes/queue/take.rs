//! [`QueueTaker`]: takes items from a queue.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Session, awaited, deadline_option};
use crate::model::IntoBytes;
use crate::node::SessionEndReason;

use super::board::{Board, Taken};
use super::{Delivery, Queue, QueueError, QueueKeys};

impl Session {
    /// Returns the queue with this name, to take items. The handle also has all methods of
    /// [`Queue`]. A taken item is claimed by this session until the item is acknowledged.
    ///
    /// Create the handle once and clone it: a handle and its clones share one queue of waiters and
    /// one watch.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let mails = node.client().queue("mails");
    /// mails.put("to: ann").block()?;
    /// mails.put("to: bob").priority(-1).block()?;
    ///
    /// let taker = node.session().block()?.queue("mails");
    /// let mail = taker.take().block()?;
    /// assert_eq!((mail.value(), mail.attempt()), (&"to: bob".into(), 1));
    /// mail.ack().block()?;
    ///
    /// let mail = taker.take().block()?;
    /// mail.ack_with([Op::put("sent/ann", "")]).block()?; // both, or nothing
    /// assert!(taker.try_take().block()?.is_none());
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue(&self, name: impl IntoBytes) -> QueueTaker {
        QueueTaker::new(self.clone(), name.into_bytes(), None)
    }
}

/// A handle to take items from a queue. Created by [`Session::queue`]; cheap to clone.
///
/// - Within a priority, items are delivered first in, first out, in the order in which the puts
///   were logged. Concurrent takers on several nodes may receive items a few positions out of
///   order. A single taker receives them in order. Released items keep their position.
/// - Takers on one node receive items in the order of their calls. Nodes with waiting takers take
///   turns. If a node is paused or partitioned, items that are meant for it are taken by other
///   nodes after 50 ms.
/// - The first take, and a take after a long time without takes, reads all keys of the queue, which
///   takes about one second per million items. Afterwards the node keeps the list of available
///   items in memory. A take then costs one transaction, which it shares with the other waiting
///   takers of this handle.
/// - As long as sessions do not end, only one taker at a time has an item: see [`Delivery`].
#[derive(Clone)]
pub struct QueueTaker {
    queue: Queue,
    attempts_max: Option<u64>,
    inner: Arc<TakerInner>,
}

struct TakerInner {
    board: Arc<Board>,
    tickets: AtomicU64,
    /// Tickets of the waiting takers.
    waiting: Mutex<BTreeSet<u64>>,
}

impl QueueTaker {
    fn new(session: Session, name: Bytes, attempts_max: Option<u64>) -> Self {
        let queue = session.client().queue(name.clone());
        let board = Board::new(session, QueueKeys { name }, attempts_max);
        Self {
            queue,
            attempts_max,
            inner: Arc::new(TakerInner {
                board,
                tickets: AtomicU64::new(0),
                waiting: Mutex::default(),
            }),
        }
    }

    /// Returns a handle that limits delivery attempts: an item that was taken this many times
    /// without being acknowledged is moved to the dead-letter queue [`Queue::dead_letters`] when it
    /// is next in order. The minimum is 1. [`Delivery::fail`] moves the item at once, after its last
    /// attempt.
    /// Deliveries that end with a crash of the taker, or with a restart of its program, count as
    /// attempts too. The limit applies only to this handle, so use the same limit for
    /// all takers of a queue.
    #[must_use]
    pub fn attempts_max(&self, attempts: u64) -> Self {
        let session = self.inner.board.session().clone();
        Self::new(session, self.queue.name().clone(), Some(attempts.max(1)))
    }

    /// Waits for an item and takes it. Fails when the session ends. If the future is dropped while
    /// an item is being claimed, the item is released.
    #[doc(alias = "pop", alias = "receive")]
    pub fn take(&self) -> TakeCall {
        TakeCall { taker: self.clone(), deadline: None }
    }

    /// Takes an available item, without waiting for later puts. Considers every item whose put has
    /// returned, on any node, before this call. May return `None` if another taker was faster.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn try_take(&self) -> Result<Option<Delivery>, QueueError> {
        self.queue.check()?;
        let shared = self.inner.board.session().shared();
        let deadline = shared.deadline(None);
        shared.read_barrier(deadline).await.map_err(crate::Error::from)?;
        self.wait(true, Some(deadline)).await
    }

    pub(super) fn session(&self) -> &Session {
        self.inner.board.session()
    }

    async fn wait(&self, only_try: bool, deadline: Option<crate::Moment>) -> Taken {
        let board = &self.inner.board;
        let ticket = self.inner.tickets.fetch_add(1, Ordering::Relaxed);
        let mut place = TakerEntry::new(&self.inner, ticket);
        let reply = board.enter(ticket, only_try);
        let (session, shared) = (board.session(), board.session().shared());
        let late = async {
            match deadline {
                Some(deadline) => shared.sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            taken = reply => {
                place.waits = false;
                match (taken, session.end()) {
                    (Ok(taken), None) => taken,
                    // The item was claimed and lost before the task was polled, or the board was
                    // dropped with its node.
                    (Ok(Ok(_)) | Err(_), end) => {
                        Err(QueueError::ended(end.unwrap_or(SessionEndReason::NodeStopped), shared))
                    }
                    (Ok(Err(error)), _) => Err(error),
                }
            }
            end = session.ended() => Err(QueueError::ended(end, shared)),
            () = late => Err(QueueError::TimedOut { before: place.before() }),
        }
    }
}

impl Deref for QueueTaker {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl std::fmt::Debug for QueueTaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueTaker")
            .field("name", self.queue.name())
            .field("attempts_max", &self.attempts_max)
            .finish_non_exhaustive()
    }
}

/// A call that waits for an item; see [`QueueTaker::take`].
#[derive(Clone, Debug)]
#[must_use = "nothing is taken until this is awaited"]
pub struct TakeCall {
    taker: QueueTaker,
    deadline: Option<Duration>,
}

impl TakeCall {
    deadline_option! {
        /// Limits the wait. By default the call waits as long as the session lives. The node checks
        /// deadlines at its ticks, like [`LockCall::deadline`](crate::lock::LockCall::deadline). If an
        /// item arrives before the check, the call returns it. For a call that does not wait, use
        /// [`QueueTaker::try_take`] and not a deadline of zero.
    }

    async fn run(self) -> Result<Delivery, QueueError> {
        let Self { taker, deadline: timeout } = self;
        taker.queue.check()?;
        let deadline = timeout.map(|timeout| taker.inner.board.session().shared().now() + timeout);
        let taken = taker.wait(false, deadline).await?;
        Ok(taken.expect("only a try returns no item"))
    }
}

awaited!(TakeCall -> Result<Delivery, QueueError>);

/// The registration of a taker at the board. Dropping this value removes the registration.
struct TakerEntry<'a> {
    inner: &'a TakerInner,
    ticket: u64,
    waits: bool,
}

impl<'a> TakerEntry<'a> {
    fn new(inner: &'a TakerInner, ticket: u64) -> Self {
        inner.waiting().insert(ticket);
        Self { inner, ticket, waits: true }
    }

    /// Returns the number of takers that wait for longer than this one.
    fn before(&self) -> usize {
        self.inner.waiting().range(..self.ticket).count()
    }
}

impl Drop for TakerEntry<'_> {
    fn drop(&mut self) {
        self.inner.waiting().remove(&self.ticket);
        if self.waits {
            self.inner.board.leave(self.ticket);
        }
    }
}

impl TakerInner {
    fn waiting(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
