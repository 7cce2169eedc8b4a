//! [`Upgrade`]: a reader that becomes the writer.
//!
//! The reader joins the queue a second time, with an upgrade entry, and waits until it is the only
//! reader that holds. Then one log entry changes the first row to the write mode and deletes the
//! second row:
//!
//! ```text
//!   r1  w  r2  u(r1)       r1 reads; w waits for r1, r2 waits for w; u may proceed: r1 is the only reader that holds
//!   W1  w  r2              r1 has become the writer at its position; the others wait as before
//! ```
//!
//! In between, only the entry w keeps r2 from reading, and w may leave at any time. Therefore the
//! transaction is applied only if the first queue entry that blocks readers is unchanged. Otherwise
//! the upgrade is enqueued again.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error as ThisError;
use tokio::sync::oneshot;

use crate::api::{Effect, timeout_option};
use crate::lock_format::{EntryMetadata, LockMode, LockQueue, QueuePosition, lock_of, prefix_of};
use crate::model::{Command, Compare, IntoBytes, KeyValue, Moment, Op, Reply, Revision, Txn};
use crate::node::{CallError, CallResult, ReplyTo, Shared};
use crate::watch::waking;

use super::acquire::Acquire;
use super::core::request::{LockRequest, WaitLimit, deadline_of};
use super::guard::{OfHold, ReadGuard, WriteGuard};
use super::hold::Hold;
use super::owner::OwnerMode;
use crate::recipes::lock::core::error::LockError;
use crate::recipes::lock::core::view;

/// A call that upgrades a reader to the writer; see [`ReadGuard::upgrade`]. Dropping the call also
/// releases the reader. [`Upgrade::give_up`] returns the reader.
#[must_use = "the lock is not upgraded until this is awaited"]
pub struct Upgrade {
    /// The reader, until the call has completed.
    read: Option<Hold>,
    caller: &'static Location<'static>,
    only_try: bool,
    /// How long to wait.
    wait: WaitLimit,
    reason: Option<Bytes>,
    /// End of the wait, counted from the first poll.
    until: Option<Moment>,
    step: UpgradeStep,
}

enum UpgradeStep {
    Begins,
    /// A change of the row to the read mode is in flight. The row still states the write mode, so
    /// an upgrade entry would wait for its own read entry.
    Reads(Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>),
    /// The upgrade entry is queued.
    Waits(Acquire<Hold>),
    /// This is the only reader that holds, and the change to the write mode is in flight. The
    /// second row is kept until the outcome of the change is known.
    Writes {
        answer: oneshot::Receiver<CallResult<Reply>>,
        /// Completes at the deadline.
        late: Pin<Box<dyn Future<Output = ()> + Send>>,
        _second: Hold,
    },
}

/// The error of a failed upgrade. The guard still holds the lock for reading, unless the lock is
/// lost.
#[derive(Debug, ThisError)]
#[error("{why}")]
#[non_exhaustive]
pub struct UpgradeError {
    /// The guard of the reader.
    pub guard: ReadGuard,
    /// The cause: [`LockError::UpgradeTaken`], [`LockError::Lost`] if the reader is lost, or any
    /// error of a lock request.
    pub why: LockError,
}

impl UpgradeError {
    /// Returns whether anything was changed permanently. If the effect is unknown, the row may
    /// state the write mode, so that other readers wait until the guard is released or upgraded.
    pub fn effect(&self) -> Effect {
        self.why.effect()
    }

    /// Reports whether the upgrade may succeed later without intervention, for example because
    /// there were other readers or the cluster had no quorum.
    pub fn is_transient(&self) -> bool {
        self.why.is_transient()
    }
}

impl ReadGuard {
    /// Upgrades to a writer, once all other readers that hold the lock have released it. The read
    /// lock is kept meanwhile. The upgrade overtakes waiting writers, which wait for this reader
    /// anyway. Only one reader can upgrade at a time, because two upgrading readers would wait for
    /// each other. A second upgrade fails immediately with
    /// [`UpgradeTaken`](crate::LockError::UpgradeTaken). The second reader should release the lock
    /// and request it for writing.
    ///
    /// The writer keeps the reader's key and queue position, and gets a new token. An upgrade costs
    /// two commits.
    #[track_caller]
    pub fn upgrade(self) -> Upgrade {
        Upgrade::new(self.0, Location::caller(), false)
    }

    /// Like [`ReadGuard::upgrade`], but fails if the upgrade would have to wait for another reader.
    ///
    /// # Errors
    /// Fails with [`LockError::WouldBlock`](crate::LockError::WouldBlock). The error
    /// contains the read guard.
    #[track_caller]
    pub fn try_upgrade(self) -> Upgrade {
        Upgrade::new(self.0, Location::caller(), true)
    }
}

impl Upgrade {
    pub(crate) fn new(read: Hold, caller: &'static Location<'static>, only_try: bool) -> Self {
        let (wait, reason, until, step) = (WaitLimit::Session, None, None, UpgradeStep::Begins);
        Self { read: Some(read), caller, only_try, wait, reason, until, step }
    }

    /// Limits the wait. By default the upgrade waits as long as the session lives.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.wait = WaitLimit::For(timeout);
        self
    }

    timeout_option!();

    /// Attaches a reason, shown to operators who list the lock.
    pub fn reason(mut self, reason: impl IntoBytes) -> Self {
        self.reason = Some(reason.into_bytes());
        self
    }

    /// Cancels the upgrade and returns the reader. If the future has already completed, it has
    /// returned the guard, so this method returns `None`.
    pub fn give_up(mut self) -> Option<ReadGuard> {
        self.revert();
        self.read.take().map(ReadGuard::of)
    }

    /// Undoes a change of the row that is in flight.
    fn revert(&mut self) {
        let (Some(read), UpgradeStep::Writes { answer, .. }) = (&self.read, &mut self.step) else {
            return;
        };
        answer.close();
        // If the reply arrives later, its handler finds the channel closed and undoes the change.
        if let Ok(outcome) = answer.try_recv() {
            revert(read.session().shared(), read.mode_change(LockMode::Read), &outcome);
        }
    }

    fn acquire(&mut self, read: &Hold) -> Result<Acquire<Hold>, LockError> {
        let mode = LockMode::Upgrade(read.key().clone());
        let names = vec![lock_of(read.key())];
        let mut request = LockRequest::new(read.session(), names, mode, self.caller);
        if let Some(reason) = &self.reason {
            request.set_reason(reason.clone());
        }
        request.only_try = self.only_try;
        request.wait = self.until.map_or(WaitLimit::Session, WaitLimit::Until);
        Acquire::enqueue(request, read.owner().cloned())
    }

    /// Proposes the change to the write mode. Returns `None` if this is not the only reader that
    /// holds any more.
    fn propose_write(read: &Hold, second: Hold, until: Option<Moment>) -> Option<UpgradeStep> {
        let bar = bar(read, &second)?;
        let mut txn = read.mode_change(LockMode::Write);
        txn.compares.extend(second.conditions());
        if !mutant!(B20) {
            txn.compares.push(Compare::mod_revision(bar.key).eq(bar.mod_revision));
        }
        txn.success.push(Op::delete(second.key().clone()));
        let back = read.mode_change(LockMode::Read);
        let (sender, answer) = oneshot::channel();
        let shared = read.session().shared();
        let weak = std::sync::Arc::downgrade(shared);
        let reply = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            if let Some(Err(outcome)) = waking(|| sender.send(outcome))
                && let Some(shared) = weak.upgrade()
            {
                // The upgrade was cancelled.
                revert(&shared, back, &outcome);
            }
        }));
        shared.propose_until_applied(Command::Txn(txn), reply);
        let late = Box::pin(late(Arc::clone(shared), until));
        Some(UpgradeStep::Writes { answer, late, _second: second })
    }

    /// Proposes the change of a reader's row to the read mode.
    fn propose_read_mode(read: &Hold, until: Option<Moment>) -> UpgradeStep {
        let (sender, answer) = oneshot::channel();
        let session = read.session().clone();
        let shared = Arc::clone(session.shared());
        shared.propose_until_applied(Command::Txn(read.downgrading()), ReplyTo::Waiting(sender));
        UpgradeStep::Reads(Box::pin(async move {
            tokio::select! {
                biased;
                answer = answer => applied(answer.ok()).map(drop),
                end = session.ended() => Err(LockError::SessionEnded(end)),
                () = late(shared, until) => Err(LockError::Unavailable),
            }
        }))
    }

    /// Evaluates the reply. Returns the revision since which the caller is the writer, or
    /// `Ok(None)` if the queue had changed.
    fn write_outcome(
        read: &Hold,
        outcome: Option<CallResult<Reply>>,
    ) -> Result<Option<Revision>, LockError> {
        match applied(outcome)? {
            Reply::Txn(reply) if reply.succeeded => Ok(Some(reply.revision)),
            // The change was applied while this node was disconnected, and its reply was lost. The
            // current row shows the outcome.
            Reply::AppliedBefore { revision } => {
                let (row, _) = read.session().shared().reader.get(read.key());
                let writes = row.is_some_and(|row| {
                    row.mod_revision == revision
                        && EntryMetadata::mode_of(&row.key, &row.value) == LockMode::Write
                });
                Ok(writes.then_some(revision))
            }
            _ => Ok(None),
        }
    }

    /// Advances the upgrade by one step. `None` means that it should be polled again at once.
    fn advance(
        &mut self,
        read: &mut Hold,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(), LockError>>> {
        let lost = |read: &Hold| read.is_lost().map(LockError::Lost);
        match &mut self.step {
            UpgradeStep::Begins => {
                if let Some(why) = lost(read) {
                    return Poll::Ready(Some(Err(why)));
                }
                // Do not use the mode in the row: a change back to the read mode may be in flight.
                // The owner records whether it holds the lock for writing.
                let name = lock_of(read.key());
                if let Some(grant) =
                    read.owner().and_then(|owner| owner.writes(&name, read.holding()))
                {
                    read.holds_by(grant);
                    return Poll::Ready(Some(Ok(())));
                }
                // The change to the read mode was rejected or is still in flight. If the owner has
                // other guards of the hold, one of them may be a writer that has not been polled
                // yet.
                if read.mode() == LockMode::Write && read.holding().waiter.is_single() {
                    self.step = Self::propose_read_mode(read, self.until);
                    return Poll::Ready(None);
                }
                self.step = UpgradeStep::Waits(match self.acquire(read) {
                    Ok(acquire) => acquire,
                    Err(why) => return Poll::Ready(Some(Err(why))),
                });
                Poll::Ready(None)
            }
            UpgradeStep::Reads(reading) => {
                let answer = ready!(reading.as_mut().poll(context));
                self.step = UpgradeStep::Begins;
                Poll::Ready(answer.err().map(|why| Err(lost(read).unwrap_or(why))))
            }
            UpgradeStep::Waits(acquire) => {
                let answer = ready!(Pin::new(acquire).poll(context));
                let second = match answer {
                    Ok(second) => second,
                    Err(why) => return Poll::Ready(Some(Err(lost(read).unwrap_or(why)))),
                };
                self.step =
                    Self::propose_write(read, second, self.until).unwrap_or(UpgradeStep::Begins);
                Poll::Ready(None)
            }
            UpgradeStep::Writes { answer, late, .. } => {
                let outcome = match Pin::new(&mut *answer).poll(context) {
                    Poll::Ready(outcome) => outcome.ok(),
                    Poll::Pending => {
                        ready!(late.as_mut().poll(context));
                        // If the reply arrives later, its handler finds the channel closed and
                        // undoes the change.
                        answer.close();
                        let Ok(outcome) = answer.try_recv() else {
                            self.step = UpgradeStep::Begins;
                            let why = LockError::Unavailable;
                            return Poll::Ready(Some(Err(lost(read).unwrap_or(why))));
                        };
                        Some(outcome)
                    }
                };
                self.step = UpgradeStep::Begins;
                match Self::write_outcome(read, outcome) {
                    Err(why) => Poll::Ready(Some(Err(why))),
                    Ok(None) => Poll::Ready(None),
                    Ok(Some(_)) if read.is_lost().is_some() => Poll::Ready(None),
                    Ok(Some(revision)) => {
                        read.writes_since(revision);
                        Poll::Ready(Some(Ok(())))
                    }
                }
            }
        }
    }
}

/// Completes at the deadline.
async fn late(shared: Arc<Shared>, until: Option<Moment>) {
    match until {
        Some(until) => shared.sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Returns the reply to a proposal, or an error if there is none.
fn applied(outcome: Option<CallResult<Reply>>) -> Result<Reply, LockError> {
    match outcome {
        Some(Ok(reply)) => Ok(reply),
        Some(Err(CallError::Stopped { reason, .. })) => Err(LockError::NodeStopped(reason)),
        Some(Err(error)) => Err(LockError::Store(error.into())),
        None => Err(LockError::Unavailable),
    }
}

/// Undoes the change to the write mode if it was applied and the row has not changed since.
fn revert(shared: &Shared, mut back: Txn, outcome: &CallResult<Reply>) {
    let revision = match outcome {
        Ok(Reply::Txn(reply)) if reply.succeeded => reply.revision,
        Ok(Reply::AppliedBefore { revision }) => *revision,
        _ => return,
    };
    let Some(Op::Put(put)) = back.success.first() else { return };
    back.compares.push(Compare::mod_revision(put.key.clone()).eq(revision));
    shared.propose_until_applied(Command::Txn(back), ReplyTo::Discard);
}

/// Returns the first row after a reader, if that row keeps all other readers from holding the lock
/// until the reader's second entry is granted. Reads the local replica.
fn bar(read: &Hold, second: &Hold) -> Option<KeyValue> {
    let shared = read.session().shared();
    let rows = view::rows(shared, &prefix_of(&lock_of(read.key())));
    let mut queue = LockQueue::default();
    for row in &rows {
        let mode = EntryMetadata::mode_of(&row.key, &row.value);
        queue.insert(QueuePosition::new(row.create_revision, row.key.clone()), mode);
    }
    let may_write = queue.may_hold(&QueuePosition::new(second.since(), second.key().clone()));
    rows.into_iter().nth(1).filter(|_| may_write)
}

impl Future for Upgrade {
    type Output = Result<WriteGuard, UpgradeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A completed future stays pending if it is polled again.
        let Some(mut read) = self.read.take() else { return Poll::Pending };
        if self.until.is_none() {
            self.until = deadline_of(read.session(), self.wait, self.only_try);
        }
        loop {
            match self.advance(&mut read, context) {
                Poll::Pending => {
                    self.read = Some(read);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {}
                Poll::Ready(Some(Ok(()))) => {
                    if let Some(owner) = read.owner() {
                        let names = [lock_of(read.key())];
                        owner.keep(&names, OwnerMode::Write, read.holding());
                        owner.keep(&names, OwnerMode::Read, read.holding());
                    }
                    return Poll::Ready(Ok(WriteGuard::of(read)));
                }
                Poll::Ready(Some(Err(why))) => {
                    let guard = ReadGuard::of(read);
                    return Poll::Ready(Err(UpgradeError { guard, why }));
                }
            }
        }
    }
}

impl Drop for Upgrade {
    /// Undoes a change of the row to the write mode that is in flight. If other guards share the
    /// read lock, the row must not keep blocking other readers.
    fn drop(&mut self) {
        self.revert();
    }
}

impl std::fmt::Debug for Upgrade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upgrade").field("read", &self.read).finish_non_exhaustive()
    }
}
