//! The taking end of a queue.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Client, Session};
use crate::node::SessionEndReason;

use super::board::{Board, Taken};
use super::{Delivery, Keys, Queue, QueueError};

impl Session {
    /// The queue of this name, to take from (and all that [`Client::queue`] gives). What is taken is
    /// claimed under this session, until it is acknowledged.
    ///
    /// Make it once and clone it: all takers of one handle and its clones wait in one line, and share
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
    pub fn queue(&self, name: impl Into<Bytes>) -> QueueTaker {
        QueueTaker::new(self.clone(), name.into(), None)
    }
}

/// The taking end of a queue. Made by [`Session::queue`]; cheap to clone.
///
/// - First in, first out, within a priority, by the order in which the puts came to the log. Takers
///   that take at the same time on several nodes may be handed their items a few places out of it;
///   one taker alone never is. Items that were given back stand where they stood.
/// - Takers on one node get items in the order in which they came; nodes with takers that wait take
///   turns. A node that is paused or cut off holds up what was meant for it for 50 ms.
/// - The first take, and one after a long time without any, reads the keys of the queue: a second for
///   a million of them. What is free is then known here, and a take costs one transaction, which it shares
///   with those that wait beside it.
/// - An item is with one taker at a time, as long as sessions do not end: see [`Delivery`].
#[derive(Clone)]
pub struct QueueTaker {
    queue: Queue,
    attempts_max: Option<u64>,
    inner: Arc<Inner>,
}

struct Inner {
    board: Arc<Board>,
    tickets: AtomicU64,
}

impl QueueTaker {
    fn new(session: Session, name: Bytes, attempts_max: Option<u64>) -> Self {
        let queue = Client::new(Arc::clone(session.shared())).queue(name.clone());
        let board = Board::new(session, Keys { name }, attempts_max);
        Self { queue, attempts_max, inner: Arc::new(Inner { board, tickets: AtomicU64::new(0) }) }
    }

    /// The same queue, but items that were taken so often without being acknowledged are not taken
    /// again: they are moved to the queue [`Queue::dead`] as they come to their turn. At least 1. It is a
    /// matter of this handle: give all takers of a queue the same.
    #[must_use]
    pub fn attempts_max(&self, attempts: u64) -> Self {
        let session = self.inner.board.session().clone();
        Self::new(session, self.queue.name().clone(), Some(attempts.max(1)))
    }

    /// Waits for an item and takes it. Ends when the session does. Dropping the future leaves nothing
    /// behind: an item that was on its way is given back.
    #[doc(alias = "pop", alias = "receive")]
    pub fn take(&self) -> TakeCall {
        TakeCall { taker: self.clone(), deadline: None }
    }

    /// Takes an item, if there is one that is free: one that was put, anywhere, before this call.
    /// May find none where somebody else was faster.
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

    async fn wait(&self, only_try: bool, deadline: Option<crate::Moment>) -> Taken {
        let board = &self.inner.board;
        let ticket = self.inner.tickets.fetch_add(1, Ordering::Relaxed);
        let mut place = Place { board, ticket, waits: true };
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
                    // Won, and lost before its task has looked; or the board was dropped with its node.
                    (Ok(Ok(_)) | Err(_), end) => {
                        Err(QueueError::ended(end.unwrap_or(SessionEndReason::NodeStopped), shared))
                    }
                    (Ok(Err(error)), _) => Err(error),
                }
            }
            end = session.ended() => Err(QueueError::ended(end, shared)),
            () = late => Err(QueueError::TimedOut),
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

/// Waits for an item; see [`QueueTaker::take`].
#[derive(Debug)]
#[must_use = "nothing is taken until this is awaited"]
pub struct TakeCall {
    taker: QueueTaker,
    deadline: Option<Duration>,
}

impl TakeCall {
    /// Gives up after this long. Without it, waits as long as the session lives. Looked at by the node at
    /// its ticks, as a lock's: [`LockCall::deadline`](crate::lock::LockCall::deadline). An item that has come by then
    /// is delivered. A deadline of zero is not a try: for that there is [`QueueTaker::try_take`].
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for TakeCall {
    type Output = Result<Delivery, QueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { taker, deadline: timeout } = self;
            taker.queue.check()?;
            let deadline =
                timeout.map(|timeout| taker.inner.board.session().shared().now() + timeout);
            let taken = taker.wait(false, deadline).await?;
            Ok(taken.expect("only who tries is told that there is nothing"))
        })
    }
}

/// A place on the board, left when this is dropped.
struct Place<'a> {
    board: &'a Arc<Board>,
    ticket: u64,
    waits: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.board.leave(self.ticket);
        }
    }
}
