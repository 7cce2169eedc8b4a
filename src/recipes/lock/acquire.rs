//! [`Acquire`]: a queued lock request, the future that resolves to a guard.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::api::{Effect, Error, Session};
use crate::model::Revision;

use super::core::entry::QueueEntry;
use super::core::holding::Holding;
use super::core::request::LockRequest;
use super::core::table_state::QueuedWaiter;
use super::core::waiter::{Waiter, WaiterStage};
use super::guard::OfHold;
use super::hold::Hold;
use super::owner::{Owner, OwnerMode};
use crate::recipes::call::after_pause;
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::core::lock_table::LockTable;

/// A queued lock request. Resolves to a guard when awaited. Dropping the future cancels the request
/// and removes its queue entry.
#[must_use = "dropping this leaves the queue"]
pub struct Acquire<G> {
    inner: AcquireInner,
    guard: PhantomData<fn() -> G>,
}

enum AcquireInner {
    /// The owner already held the lock.
    Held(Option<Hold>),
    Waits(Waits),
}

struct Waits {
    session: Session,
    table: Arc<LockTable>,
    entry: Arc<QueueEntry>,
    waiter: Arc<Waiter>,
    owner: Option<(Owner, Vec<Bytes>, OwnerMode)>,
    /// State of the last deadlock search: the create revision of the entry, and the owner's
    /// acquisition count at that time.
    searched: Option<(Revision, u64)>,
    /// The request is settled: nothing is left to cancel.
    is_over: bool,
}

impl<G: OfHold> Acquire<G> {
    /// Returns a request that is already granted.
    pub(crate) fn granted(hold: Hold) -> Self {
        Self { inner: AcquireInner::Held(Some(hold)), guard: PhantomData }
    }

    /// Returns a request for an entry that is already queued.
    pub(crate) fn of(
        session: &Session,
        table: Arc<LockTable>,
        (entry, waiter): QueuedWaiter,
        owner: Option<(Owner, Vec<Bytes>, OwnerMode)>,
    ) -> Self {
        let (session, searched, is_over) = (session.clone(), None, false);
        let waits = Waits { session, table, entry, waiter, owner, searched, is_over };
        Self { inner: AcquireInner::Waits(waits), guard: PhantomData }
    }

    /// Enqueues a request, for an owner if there is one.
    pub(crate) fn enqueue(
        mut request: LockRequest,
        owner: Option<Owner>,
    ) -> Result<Self, LockError> {
        request.check_names()?;
        request.owner = owner.as_ref().map(Owner::tag);
        let session = request.session.clone();
        let table = LockTable::of(session.shared());
        let queued = table.enqueue(&request).map_err(|why| why.into_public(session.shared()))?;
        let mode = OwnerMode::of(request.mode());
        let owner = owner.map(|owner| (owner, request.names, mode));
        Ok(Self::of(&session, table, queued, owner))
    }
}

impl<G> Acquire<G> {
    /// Returns how many requests are ahead of this one, in the cluster's queue and in this process,
    /// as known to this node. The value 0 means that the request is next or is already granted.
    /// Returns `None` while the position is not known yet, and after the request has been settled.
    pub fn position(&self) -> Option<usize> {
        match &self.inner {
            AcquireInner::Held(_) => None,
            AcquireInner::Waits(waits) => match waits.waiter.stage(None) {
                WaiterStage::Requested | WaiterStage::Waiting(_) => {
                    waits.table.before(&waits.entry, &waits.waiter)
                }
                WaiterStage::Granted(_) | WaiterStage::Failed(_) => None,
            },
        }
    }
}

impl<G> Acquire<G> {
    /// Cancels the request, and waits until it has no key in the queue and will not get one.
    pub(crate) async fn leave(mut self) -> Result<(), Error> {
        match &mut self.inner {
            AcquireInner::Held(hold) => match hold.take() {
                Some(hold) => hold.release().await.map(drop),
                None => Ok(()),
            },
            AcquireInner::Waits(waits) => {
                waits.give_up(LockError::Evicted);
                waits.gone().await
            }
        }
    }
}

impl Waits {
    /// Waits until this node has applied the deletion of all keys of the entry. No notification
    /// exists for the deletion. So this method checks after each applied revision, and after a
    /// pause in case the key was never created.
    async fn gone(&self) -> Result<(), Error> {
        let shared = self.session.shared();
        let (deadline, effect) = (shared.deadline(None), Effect::Unknown);
        let mut next = shared.reader.revision();
        loop {
            // Once the replica has reached a revision, the lock table has processed that revision
            // as well.
            let is_reached = shared.reach(next, deadline.min(after_pause(shared))).await.is_ok();
            let is_there = self.has_keys();
            // A stopped node has cleared its lock table, so check this before the result.
            if let Some(reason) = shared.stop_reason() {
                return Err(Error::Stopped { reason, effect });
            }
            if !is_there {
                return Ok(());
            }
            if shared.now() >= deadline {
                return Err(Error::Deadline { effect });
            }
            next = Revision(next.get() + u64::from(is_reached));
        }
    }

    /// Reports whether the entry has a key in a queue, or may still get one.
    fn has_keys(&self) -> bool {
        let state = self.table.lock();
        let keys = self.entry.keys();
        keys.iter().any(|key| state.local(key).is_some_and(|known| Arc::ptr_eq(known, &self.entry)))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Hold, LockError>> {
        if self.is_over {
            return Poll::Pending;
        }
        let stage = self.waiter.stage(Some(context.waker()));
        match stage {
            WaiterStage::Failed(why) => {
                self.is_over = true;
                if let Some((owner, ..)) = &self.owner {
                    owner.remove_waiter(&self.waiter);
                }
                self.table.forget_deadline(&self.waiter);
                // The key was deleted because the session ended: report that instead.
                let ended = self.session.shared_session().end(self.session.shared().now());
                let why = match (why, ended) {
                    (LockError::Evicted, Some(end)) => LockError::SessionEnded(end),
                    (why, _) => why,
                };
                return Poll::Ready(Err(why.into_public(self.session.shared())));
            }
            WaiterStage::Requested => {}
            WaiterStage::Waiting(_) | WaiterStage::Granted(_) => {
                // A grant is delivered only while the session is valid.
                let now = self.session.shared().now();
                if let Some(end) = self.session.shared_session().end(now)
                    && !mutant!(M24)
                {
                    let why = LockError::SessionEnded(end).into_public(self.session.shared());
                    self.give_up(why.clone());
                    return Poll::Ready(Err(why));
                }
            }
        }
        match stage {
            WaiterStage::Granted(grant) => {
                if let Some(why) = self.missed() {
                    self.give_up(why.clone());
                    return Poll::Ready(Err(why.into_public(self.session.shared())));
                }
                self.is_over = true;
                self.table.forget_deadline(&self.waiter);
                if let Some(handed) = self.waiter.handed() {
                    let shared = self.session.shared();
                    shared.meters.lock_handoff_seconds.add(shared.now().since(handed));
                }
                let (session, table) = (self.session.clone(), Arc::clone(&self.table));
                let (entry, waiter) = (Arc::clone(&self.entry), Arc::clone(&self.waiter));
                let holding = Holding { session, table, entry, waiter, grant };
                let owner = self.owner.as_ref().map(|(owner, ..)| owner.clone());
                self.waiter.delivered();
                let hold = Hold::new(holding, owner);
                if let Some((owner, names, owner_mode)) = self.owner.take() {
                    owner.remove_waiter(&self.waiter);
                    owner.keep(&names, owner_mode, hold.holding());
                }
                Poll::Ready(Ok(hold))
            }
            WaiterStage::Waiting(since) => match self.look(since, context.waker()) {
                Ok(None) => Poll::Pending,
                settled => {
                    self.give_up(LockError::Evicted);
                    Poll::Ready(settled.map(|hold| hold.expect("a settled wait has a hold")))
                }
            },
            WaiterStage::Requested | WaiterStage::Failed(_) => Poll::Pending,
        }
    }

    /// Checks whether another task of the owner has acquired the lock meanwhile, and whether this
    /// wait closes a deadlock.
    fn look(&mut self, since: Revision, waker: &Waker) -> Result<Option<Hold>, LockError> {
        let Some((owner, names, owner_mode)) = &self.owner else { return Ok(None) };
        // Register first, so that later acquisitions of the owner wake this task.
        let now = Some((since, owner.wait(&self.waiter, waker)));
        if std::mem::replace(&mut self.searched, now) == now {
            return Ok(None);
        }
        if let Some(again) = owner.again(names, *owner_mode)? {
            return Ok(Some(Hold::new(again, Some(owner.clone()))));
        }
        match owner.deadlock(&self.entry, since) {
            Some(cycle) => Err(LockError::Deadlock { cycle }),
            None => Ok(None),
        }
    }

    /// If a granted lock was lost before the task was polled, returns the error for that loss.
    fn missed(&self) -> Option<LockError> {
        let now = self.session.shared().now();
        let is_late = || self.waiter.until().is_some_and(|until| until <= now);
        let loss = self.waiter.loss().or_else(|| is_late().then_some(LostReason::HeldTooLong))?;
        match loss {
            LostReason::SessionEnded(_) if mutant!(M24) => None,
            LostReason::SessionEnded(end) => Some(LockError::SessionEnded(end)),
            LostReason::NodeStopped(reason) => Some(LockError::NodeStopped(reason)),
            // Released by an admin request, or the key was deleted by another client.
            LostReason::ForceReleased { .. } | LostReason::HandedOver | LostReason::KeyDeleted => {
                Some(LockError::Evicted)
            }
            loss => Some(LockError::LostBeforeDelivery(loss)),
        }
    }

    fn give_up(&mut self, why: LockError) {
        if !std::mem::replace(&mut self.is_over, true) {
            if let Some((owner, ..)) = &self.owner {
                owner.remove_waiter(&self.waiter);
            }
            self.table.cancel(&self.entry, &self.waiter, why);
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.give_up(LockError::Evicted);
    }
}

impl<G: OfHold> Future for Acquire<G> {
    type Output = Result<G, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.inner {
            AcquireInner::Held(hold) => match hold.take() {
                Some(hold) => Poll::Ready(Ok(G::of(hold))),
                None => Poll::Pending,
            },
            AcquireInner::Waits(waits) => waits.poll(context).map_ok(G::of),
        }
    }
}

impl<G> std::fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquire").field("before", &self.position()).finish_non_exhaustive()
    }
}

/// A call that enqueues its lock request when it is first polled.
pub trait Enqueue {
    /// The guard that the request resolves to.
    type Guard: OfHold;

    /// Enqueues the request.
    ///
    /// # Errors
    /// Returns errors that are known immediately, such as an empty name or an ended session.
    fn enqueue(self) -> Result<Acquire<Self::Guard>, LockError>;
}

/// The future of a lock call.
#[must_use = "the lock is not acquired until this is awaited"]
pub struct LockFuture<C: Enqueue>(AcquireState<C>);

enum AcquireState<C: Enqueue> {
    Call(Option<C>),
    Acquire(Acquire<C::Guard>),
}

impl<C: Enqueue> LockFuture<C> {
    pub(crate) fn of(call: C) -> Self {
        Self(AcquireState::Call(Some(call)))
    }
}

impl<C: Enqueue + Unpin> Future for LockFuture<C> {
    type Output = Result<C::Guard, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let AcquireState::Call(call) = &mut self.0 {
            // A completed future stays pending if it is polled again.
            let Some(call) = call.take() else { return Poll::Pending };
            match call.enqueue() {
                Ok(acquire) => self.0 = AcquireState::Acquire(acquire),
                Err(why) => return Poll::Ready(Err(why)),
            }
        }
        match &mut self.0 {
            AcquireState::Acquire(acquire) => Pin::new(acquire).poll(context),
            AcquireState::Call(_) => Poll::Pending,
        }
    }
}

impl<C: Enqueue> std::fmt::Debug for LockFuture<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockFuture").finish_non_exhaustive()
    }
}
