//! The interface of the simulated programs to their node: the node's handles, with every error reduced to the effect
//! of the request.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::judge::Judge;
use crate::api::{Client, Effect, Error, Session, TxnCall};
use crate::machine::Reader;
use crate::model::{
    Command, Delete, DeleteReply, KeyRange, KeyValue, LeaseId, MembershipRequest, NodeId, Range,
    RangeReply, Rejection, Reply, Revision, SessionInfo, Txn, TxnReply,
};
use crate::node::CallError;
use crate::recipes::Locks;
use crate::watch::{WatchRequest, Watcher};

/// The meaning of an error for its request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The store rejected the request. Nothing was applied.
    Refused(Rejection),
    /// Nothing was applied, and nothing will be.
    NotApplied,
    /// The request was applied, will be applied, or never will be.
    Unknown,
}

impl From<Error> for Fate {
    fn from(error: Error) -> Self {
        match (error.effect(), error) {
            (_, Error::Rejected(rejection)) => Fate::Refused(rejection),
            (Effect::NotApplied, _) => Fate::NotApplied,
            // If the request is known to be applied but the reply is lost, the outcome counts as unknown.
            (Effect::Unknown | Effect::Applied, _) => Fate::Unknown,
        }
    }
}

/// A waker that records the revision that readers see when a task is woken. On a machine with threads the task may
/// run at that moment, while the driver that woke it is still in its turn.
struct Prompt {
    reader: Reader,
    /// The revision at the last wake-up, or 0 before the first.
    seen: AtomicU64,
    task: Waker,
}

impl Wake for Prompt {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.seen.store(self.reader.revision().get(), Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

/// A handle to a node.
#[derive(Clone)]
pub(crate) struct SimCaller {
    client: Client,
    judge: Rc<RefCell<Judge>>,
}

impl SimCaller {
    pub(crate) fn new(client: Client, judge: Rc<RefCell<Judge>>) -> Self {
        Self { client, judge }
    }

    /// Waits for a reply. If the task had to wait, also returns the revision that readers saw when it was woken.
    async fn prompt<T>(&self, answer: impl Future<Output = T>) -> (T, Option<Revision>) {
        let mut answer = pin!(answer);
        let mut last: Option<Arc<Prompt>> = None;
        poll_fn(|context| {
            let known = last.take().filter(|prompt| prompt.task.will_wake(context.waker()));
            let prompt = known.unwrap_or_else(|| {
                let (reader, task) = (self.client.shared.reader.clone(), context.waker().clone());
                Arc::new(Prompt { reader, seen: AtomicU64::new(0), task })
            });
            let waker = Waker::from(Arc::clone(&prompt));
            match answer.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => {
                    let seen = prompt.seen.load(Ordering::Relaxed);
                    Poll::Ready((answer, (seen > 0).then_some(Revision(seen))))
                }
                Poll::Pending => {
                    last = Some(prompt);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Checks that readers of the node already see the revision `owed` when a caller is woken for its reply.
    fn woken(&self, seen: Option<Revision>, owed: Revision, what: &str) {
        let Some(seen) = seen else { return };
        let mut judge = self.judge.borrow_mut();
        judge.expect(seen >= owed, "X-WAKE", || {
            format!("{what} of {owed:?} is answered while readers of that node see {seen:?}")
        });
        judge.count("change visible when its caller was woken");
    }

    /// Returns the client itself.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the locks as an operator sees them.
    pub(crate) fn locks(&self) -> Locks {
        Locks::new(self.client.clone())
    }

    /// Returns the deadline of a call, by the clock of the node.
    pub(crate) fn deadline(&self) -> Duration {
        self.client.shared.settings.call_deadline
    }

    /// Sends a command and waits for its outcome.
    ///
    /// # Errors
    /// The fate of the request.
    pub(crate) async fn write(&self, command: Command) -> Result<Reply, Fate> {
        let (answer, seen) = self.prompt(self.client.propose(command, None)).await;
        let reply = answer?;
        self.woken(seen, reply.revision(), "a write");
        Ok(reply)
    }

    /// Requests a membership change and waits until it has been applied.
    ///
    /// # Errors
    /// The reason why the change was not applied, or an unknown outcome.
    pub(crate) async fn step(
        &self,
        membership_request: MembershipRequest,
    ) -> Result<NodeId, CallError> {
        let shared = &self.client.shared;
        shared.step(membership_request, shared.deadline(None)).await
    }

    /// Reads a range linearizably.
    ///
    /// # Errors
    /// The fate of the request.
    pub(crate) async fn range(&self, range: KeyRange) -> Result<RangeReply, Fate> {
        let mut call = self.client.range(range);
        mutant!(N02, call = call.local());
        let known = self.judge.borrow().floor();
        let (answer, seen) = self.prompt(call.into_future()).await;
        let reply = answer?;
        self.woken(seen, known, "a read");
        Ok(reply)
    }

    /// Reads a range with all its options, linearizably or from this replica.
    ///
    /// # Errors
    /// The fate of the request.
    pub(crate) async fn read(&self, range: Range, local: bool) -> Result<RangeReply, Fate> {
        let Range { range, revision, limit, sort, keys_only, count_only, bounds } = range;
        let mut call = self.client.range(range).sort(sort.target, sort.order).bounds(bounds);
        if let Some(revision) = revision {
            call = call.revision(revision);
        }
        if let Some(limit) = limit {
            call = call.limit(limit);
        }
        call = if keys_only { call.keys_only() } else { call };
        call = if count_only { call.count_only() } else { call };
        Ok(if local { call.local() } else { call }.await?)
    }

    /// Deletes a range.
    ///
    /// # Errors
    /// The fate of the request.
    pub(crate) async fn delete(&self, delete: Delete) -> Result<DeleteReply, Fate> {
        let call = self.client.delete(delete.range);
        Ok(if delete.prev_kv { call.prev_kv() } else { call }.await?)
    }

    /// Commits a transaction.
    ///
    /// # Errors
    /// The fate of the request.
    pub(crate) async fn transact(&self, txn: Txn) -> Result<TxnReply, Fate> {
        let call = self.client.txn().when_all(txn.compares);
        let call = txn.success.into_iter().fold(call, TxnCall::then);
        let call = txn.failure.into_iter().fold(call, TxnCall::or_else);
        Ok(call.commit().await?)
    }

    /// Reads a key from this replica. Returns `None` if the node has stopped.
    pub(crate) async fn get_local(&self, key: &[u8]) -> Option<(Option<KeyValue>, Revision)> {
        let range = KeyRange::key(key.to_vec());
        let mut reply = self.client.range(range).local().await.ok()?;
        Some((reply.kvs.pop(), reply.revision))
    }

    /// Opens a session that the node keeps alive. If the session ends without being closed, its keys exist for another
    /// `delay`. Returns `None` on failure.
    pub(crate) async fn session_with(&self, ttl: Duration, delay: Duration) -> Option<Session> {
        let info = SessionInfo { label: "simulated".to_owned(), own: false };
        let shared = &self.client.shared;
        let deadline = shared.deadline(None);
        let claim = shared.open_session(ttl, delay, info, deadline).await.ok()?;
        Some(Session::new(shared, claim))
    }

    /// Resumes a session that was opened earlier. Returns `None` on failure.
    pub(crate) async fn resume(&self, lease: LeaseId, delay: Duration) -> Option<Session> {
        let shared = &self.client.shared;
        let claim = shared.resume_session(lease, delay, shared.deadline(None)).await.ok()?;
        Some(Session::new(shared, claim))
    }

    /// Renews a lease once and returns its TTL.
    ///
    /// # Errors
    /// The fate of the request.
    pub(crate) async fn renew(&self, lease: LeaseId) -> Result<Duration, Fate> {
        Ok(self.client.renew(lease).await?)
    }

    /// Watches a range from a revision on, optionally with the previous rows.
    pub(crate) fn watch(&self, range: KeyRange, from: Revision, prev_kv: bool) -> Watcher {
        let request = WatchRequest { from: Some(from), prev_kv, ..WatchRequest::new(range) };
        self.client.shared.hub.watch(request)
    }
}
