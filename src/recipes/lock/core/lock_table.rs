//! The lock table: all lock queues that contain requests of this node.
//!
//! A queue is read from the replica once, when the first local entry in it is confirmed. Afterwards
//! every change that the replica applies updates the queue, so that finding its head takes
//! logarithmic time. The driver's thread advances an entry when it handles the outcome of its
//! enqueue, applied changes, and ticks. Any thread may hand a lock off inside the node or cancel a
//! request at any time.
//!
//! The lock order is: the table, an entry, a waiter. Proposals and notifications are collected as
//! [`DeferredActions`] and run when none of these locks is held.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use crate::lock_format::{LockKind, QueuePosition, ReleaseRequest, prefix_of};
use crate::machine::Change;
use crate::model::{
    Command, Compare, LeaseId, Moment, Op, Put, Rejection, Reply, Revision, Txn, TxnReply,
    TxnResult,
};
use crate::node::{
    CallError, CallResult, Follower, ReplyTo, SessionEndReason, Shared, SharedSession, StopReason,
};
use crate::watch::waking;

use super::bound::{BoundKey, Load, delete_bound};
use super::entry::{Action, DeferredActions, EntryEvent, Phase, QueueEntry};
use super::error::{LockError, LostReason};
use super::release_plan::{ReleasePlan, still_mine};
use super::request::LockRequest;
use super::table_state::{LockTableState, QueuedWaiter};
use super::token::Token;
use super::waiter::Waiter;
use super::waiter_counts::WaiterRole;

/// All lock queues that tasks of this node are in.
pub(crate) struct LockTable {
    shared: Weak<Shared>,
    state: Mutex<LockTableState>,
}

impl LockTable {
    /// Returns the lock table of a node. The first call creates the table.
    pub(crate) fn of(shared: &Arc<Shared>) -> Arc<LockTable> {
        let follower: Arc<dyn Follower> = Arc::clone(shared.follower.get_or_init(|| {
            Arc::new(LockTable { shared: Arc::downgrade(shared), state: Mutex::default() })
        }));
        let any: Arc<dyn Any + Send + Sync> = follower;
        any.downcast().expect("the lock table is the only follower of a node's replica")
    }

    pub(crate) fn upgrade(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LockTableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that is unique on this node.
    pub(crate) fn number(&self) -> u64 {
        self.lock().number()
    }

    /// Enqueues a request.
    ///
    /// # Errors
    /// Returns errors that are known immediately.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        request: &LockRequest,
    ) -> Result<QueuedWaiter, LockError> {
        let Some(shared) = self.shared.upgrade() else {
            return Err(LockError::NodeStopped(StopReason::Shutdown));
        };
        if let Some(reason) = shared.stop_reason() {
            return Err(LockError::NodeStopped(reason));
        }
        if let Some(end) = request.session.shared_session().end(shared.now()) {
            return Err(LockError::SessionEnded(end));
        }
        let max = shared.settings.lock_waiters_max;
        let (entry, waiter) = {
            let mut state = self.lock();
            if let Some(found) = state.share(&shared, request, max)? {
                return Ok(found);
            }
            let entry = state.new_entry(&shared, request, max)?;
            let options = state.options(request);
            let waiter = entry.add_waiter(options);
            state.keep_timer(options.deadline, &entry, &waiter);
            (entry, waiter)
        };
        let keys = entry.keys();
        let command = Command::Txn(enqueue_txn(&entry, &keys, None));
        let (table, enqueued) = (Arc::clone(self), Arc::clone(&entry));
        let known = Arc::clone(&keys);
        let reply =
            ReplyTo::Call(Box::new(move |outcome| table.entered(&enqueued, &known, outcome)));
        if let Err(error) = shared.propose_admitted_until_applied(command, reply) {
            let why = LockError::Store(error.into());
            self.deferring(|actions| self.lock().enqueue_failed(&entry, &keys, why, actions));
        }
        Ok((entry, waiter))
    }

    pub(crate) fn cancel(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        waiter: &Arc<Waiter>,
        why: LockError,
    ) {
        let event = EntryEvent::Cancelled { waiter: Arc::clone(waiter), why };
        self.deferring(|actions| entry.apply(event, actions));
        self.forget_deadline(waiter);
        self.forget_cap(waiter);
    }

    /// Lets the session check the clock, so that it notices if it was lost.
    fn check_clock(&self, entry: &QueueEntry) {
        if let Some(shared) = self.upgrade() {
            entry.session.end(shared.now());
        }
    }

    /// Releases a hold. Returns `false` if it has already ended. `reply` is sent when the lock is
    /// free.
    pub(crate) fn release(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        waiter: &Arc<Waiter>,
        why: LostReason,
        reply: ReplyTo<Reply>,
    ) -> bool {
        self.check_clock(entry);
        let was_held = self.deferring(|actions| entry.release(waiter, why, reply, actions));
        self.forget_cap(waiter);
        was_held
    }

    /// Delivers a release request to the local holder.
    pub(crate) fn request_release(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        waiter: &Arc<Waiter>,
        request: ReleaseRequest,
    ) {
        self.deferring(|actions| entry.request_release(waiter, request, actions));
    }

    /// Releases the hold with this token in a queue, if a task of this session has it.
    pub(crate) fn release_by_token(
        self: &Arc<Self>,
        name: &Bytes,
        session: &Arc<SharedSession>,
        token: Token,
        reply: ReplyTo<Reply>,
    ) -> bool {
        let found = self.lock().holder_of(&prefix_of(name), session, token);
        found.is_some_and(|(entry, waiter)| {
            self.release(&entry, &waiter, LostReason::Released, reply)
        })
    }

    /// Transfers a hold to the entry at this queue position, or releases the lock if that entry is
    /// not waiting any more. Returns `false` if the hold has already ended.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        waiter: &Arc<Waiter>,
        successor: QueuePosition,
        reply: ReplyTo<Reply>,
    ) -> bool {
        self.check_clock(entry);
        let was_held = self.deferring(|actions| entry.transfer(waiter, successor, reply, actions));
        self.forget_cap(waiter);
        was_held
    }

    /// Hands a hold to the next waiter of the entry. Returns `false` if there is none, or if the
    /// release needs a log entry.
    pub(crate) fn hand_off(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        waiter: &Arc<Waiter>,
    ) -> bool {
        self.deferring(|actions| entry.hand_off(waiter, actions))
    }

    /// Handles the end of a transaction under a hold. The outcome of the transaction may be unknown
    /// forever.
    pub(crate) fn end_txn(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        binds: Load,
        is_known: bool,
        bound: Vec<BoundKey>,
    ) {
        let event = EntryEvent::TxnEnded { binds, is_known, bound };
        self.deferring(|actions| entry.apply(event, actions));
    }

    /// Reports whether a local entry was given up although its key still exists.
    pub(crate) fn is_given_up(&self, QueuePosition { since, key }: &QueuePosition) -> bool {
        self.lock().local(key).is_some_and(|entry| entry.is_given_up(*since))
    }

    /// Reports whether a local task holds the lock but has not received its guard yet.
    pub(crate) fn is_undelivered(&self, QueuePosition { since, key }: &QueuePosition) -> bool {
        self.lock().local(key).is_some_and(|entry| {
            entry.phase() == Phase::Held(*since)
                && entry.holder().is_some_and(|waiter| !waiter.is_delivered())
        })
    }

    /// Reports whether a task of this node holds the lock with this prefix at the time `now`.
    pub(crate) fn is_held_here(&self, prefix: &Bytes, now: Moment) -> bool {
        self.held_here(prefix, now).is_some()
    }

    /// Returns the conditions under which a task of this node still holds the mutex with this prefix,
    /// or `None` if none holds it at the time `now`. The lock is no longer handed off within the
    /// node, because it is not known when the transaction with the conditions ends.
    pub(crate) fn still_held_here(&self, prefix: &Bytes, now: Moment) -> Option<Vec<Compare>> {
        let (entry, waiter) = self.held_here(prefix, now)?;
        // If a writer became a reader, these conditions would still be satisfied, although the hold
        // would no longer be exclusive. Therefore only a mutex has such conditions.
        if entry.requested != LockKind::Mutex {
            return None;
        }
        let Phase::Held(since) = entry.phase() else { return None };
        let lease = entry.session.lease;
        let conditions = |key: &Bytes| still_mine(key, since, lease);
        let conditions = entry.keys().iter().flat_map(conditions).collect();
        entry.prevent_handoff(&waiter).then_some(conditions)
    }

    fn held_here(&self, prefix: &Bytes, now: Moment) -> Option<QueuedWaiter> {
        let (entry, waiter) = self.lock().holder_here(prefix)?;
        let is_held = waiter.loss().is_none()
            && entry.session.end(now).is_none()
            && waiter.until().is_none_or(|until| now < until);
        is_held.then_some((entry, waiter))
    }

    /// Returns the number of requests ahead of a waiter: in the queue according to the replica, and
    /// inside this node.
    pub(crate) fn before(&self, entry: &Arc<QueueEntry>, waiter: &Waiter) -> Option<usize> {
        self.lock().before(entry, waiter)
    }

    /// Cancels the deadline timer of a waiter.
    pub(crate) fn forget_deadline(&self, waiter: &Waiter) {
        if let Some(deadline) = waiter.deadline {
            self.lock().forget_timer(deadline);
        }
    }

    /// Cancels the hold-time timer of a waiter.
    fn forget_cap(&self, waiter: &Waiter) {
        if let Some(until) = waiter.set_until(None) {
            self.lock().forget_timer(until);
        }
    }

    /// Calls `work`, and then runs the actions that it has deferred. No lock may be held.
    pub(crate) fn deferring<R>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut DeferredActions) -> R,
    ) -> R {
        let mut actions = DeferredActions::default();
        let result = work(&mut actions);
        self.run(actions);
        result
    }

    /// Runs deferred actions. No lock may be held.
    pub(crate) fn run(self: &Arc<Self>, actions: DeferredActions) {
        self.run_since(None, actions);
    }

    /// Like [`LockTable::run`], for changes that this node learnt of at the time `known` (default:
    /// now).
    fn run_since(self: &Arc<Self>, known: Option<Moment>, actions: DeferredActions) {
        for (entry, action) in actions {
            match action {
                Action::RecordHandoff(waiter) => {
                    if let Some(at) = known.or_else(|| Some(self.shared.upgrade()?.now())) {
                        waiter.hand(at);
                    }
                }
                Action::Wake(waker) => _ = waking(|| waker.wake()),
                Action::Reply(reply) => reply.send(Ok(handed_off_reply())),
                Action::Release { plan, reply } => self.run_release(&entry, &plan, reply),
                Action::Requeue { plan, reply } => self.requeue(&entry, plan.as_ref(), reply),
                Action::Notify(waiter) => _ = waking(|| waiter.changed.notify_waiters()),
                Action::DeleteBound(bound) => {
                    if let Some(shared) = self.shared.upgrade() {
                        let success = delete_bound(entry.session.lease, &bound);
                        let txn = Txn { success, ..Txn::default() };
                        shared.propose_until_applied(Command::Txn(txn), ReplyTo::Discard);
                    }
                }
            }
        }
    }

    /// Deletes the remaining keys of an enqueue whose outcome is unknown, or some of whose keys are
    /// gone.
    fn undo(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        why: LockError,
    ) {
        let (lease, value) = (entry.session.lease, entry.value());
        let delete_mine = |key: &Bytes| {
            let has_lease = Compare::lease(key.clone()).eq(lease.get());
            let has_value = Compare::value(key.clone()).eq(value.clone());
            Op::Txn(Txn::if_all([has_lease, has_value], [Op::delete(key.clone())]))
        };
        let success = keys.iter().map(delete_mine).collect();
        let txn = Txn { success, ..Txn::default() };
        let (table, entry, keys) = (Arc::clone(self), Arc::clone(entry), Arc::clone(keys));
        let reply = ReplyTo::Call(Box::new(move |_| {
            table.deferring(|actions| {
                let (mut state, shared) = (table.lock(), table.shared.upgrade());
                let receive_transfer =
                    shared.is_some_and(|shared| state.find_transfer(&shared, &entry, actions));
                if !receive_transfer {
                    state.enqueue_failed(&entry, &keys, why, actions);
                }
            });
        }));
        shared.propose_until_applied(Command::Txn(txn), reply);
    }

    fn run_release(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        plan: &ReleasePlan,
        reply: ReplyTo<Reply>,
    ) {
        let Some(shared) = self.shared.upgrade() else { return };
        let lease = entry.session.lease;
        self.record_transferred(plan, lease);
        let command = Command::Txn(plan.to_txn(&shared, lease));
        let Some(successor) = &plan.successor else {
            return shared.propose_until_applied(command, reply);
        };
        // A transfer writes, so it may be rejected for lack of space or because of an alarm. If the
        // transfer is rejected, delete the keys instead: deletions are not rejected for these
        // reasons.
        let (leaving, table) = (plan.leaving(lease), Arc::clone(self));
        let reports_failure = successor.reports_failure;
        let tried = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            match (outcome, table.shared.upgrade()) {
                (Err(error), Some(shared)) if !matches!(error, CallError::Stopped { .. }) => {
                    let left = ReplyTo::Call(Box::new(move |left: CallResult<Reply>| {
                        reply.send(if reports_failure { left.and(Err(error)) } else { left });
                    }));
                    shared.propose_until_applied(Command::Txn(leaving), left);
                }
                (outcome, _) => reply.send(outcome),
            }
        }));
        shared.propose_until_applied(command, tried);
    }

    /// Records, before the proposal, keys that are transferred away and may be transferred back.
    fn record_transferred(&self, plan: &ReleasePlan, lease: LeaseId) {
        if plan.has_late_txns && plan.successor.is_some() {
            self.lock().record_transferred(lease, &plan.keys, plan.since);
        }
    }

    /// Re-enqueues an entry whose hold has ended and that still has waiters.
    fn requeue(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        plan: Option<&ReleasePlan>,
        released: ReplyTo<Reply>,
    ) {
        let Some(shared) = self.shared.upgrade() else { return };
        let keys = self.lock().rename(&shared, entry);
        let lease = entry.session.lease;
        if let Some(plan) = plan {
            self.record_transferred(plan, lease);
        }
        let before = plan.map(|plan| plan.to_txn(&shared, lease));
        let leaving = plan.map(|plan| plan.leaving(lease));
        let command = Command::Txn(enqueue_txn(entry, &keys, before));
        let (table, entry) = (Arc::clone(self), Arc::clone(entry));
        let old = plan.map(|plan| (Arc::clone(&plan.keys), plan.since));
        let reply = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            match (&outcome, leaving, table.shared.upgrade()) {
                // The new key was rejected, for example for lack of space. Delete the old key in a
                // separate proposal.
                (Err(error), Some(leaving), Some(shared))
                    if !matches!(error, CallError::Stopped { .. }) =>
                {
                    shared.propose_until_applied(Command::Txn(leaving), released);
                }
                (Ok(Reply::Txn(txn)), ..) => released.send(Ok(release_reply(txn))),
                _ => released.send(outcome.clone()),
            }
            table.entered(&entry, &keys, outcome);
            if let Some((old, since)) = old {
                table.lock().forget_absent(&entry, &old, since);
            }
        }));
        shared.propose_until_applied(command, reply);
    }

    /// Handles the outcome of an enqueue, on the driver's thread, where it is applied.
    fn entered(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        keys: &Arc<[Bytes]>,
        outcome: CallResult<Reply>,
    ) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut actions = DeferredActions::default();
        let error = match outcome {
            Ok(Reply::Txn(reply)) if reply.succeeded => {
                self.lock().enqueued(&shared, entry, keys, reply.revision, &mut actions);
                return self.run(actions);
            }
            // The enqueue was applied while this node was disconnected, and its reply was lost. The
            // current rows show the outcome.
            Ok(Reply::AppliedBefore { revision }) => {
                let (row, _) = shared.reader.get(&keys[0]);
                let is_mine = row.is_some_and(|row| {
                    row.create_revision == revision && row.lease == Some(entry.session.lease)
                });
                if is_mine {
                    self.lock().enqueued(&shared, entry, keys, revision, &mut actions);
                    return self.run(actions);
                }
                if self.lock().find_transfer(&shared, entry, &mut actions) {
                    return self.run(actions);
                }
                return self.undo(&shared, entry, keys, LockError::Evicted);
            }
            // Another request had already created a key with this name: try another name.
            Ok(_) => {
                let plan = Some(ReleasePlan::of_lost(keys, Revision(0)));
                actions.push(entry, Action::Requeue { plan, reply: ReplyTo::Discard });
                return self.run(actions);
            }
            Err(CallError::Rejected(Rejection::LeaseNotFound(_))) => {
                LockError::SessionEnded(SessionEndReason::LeaseEnded)
            }
            Err(CallError::Stopped { reason, .. }) => LockError::NodeStopped(reason),
            Err(error) => {
                if matches!(error, CallError::Deadline { maybe_applied: true }) {
                    // Delete the keys that were created. Their names are not reused before the
                    // deletion is confirmed.
                    return self.undo(&shared, entry, keys, LockError::Store(error.into()));
                }
                LockError::Store(error.into())
            }
        };
        self.lock().enqueue_failed(entry, keys, error, &mut actions);
        self.run(actions);
    }
}

impl Follower for LockTable {
    fn applied(self: Arc<Self>, changes: &[Change], _visible: Revision, came: Moment) {
        let mut actions = DeferredActions::default();
        {
            let mut state = self.lock();
            if state.is_empty() {
                return;
            }
            let Some(shared) = self.shared.upgrade() else { return };
            let (mut touched, mut requests) = (BTreeSet::new(), Vec::new());
            for change in changes {
                state.follow(change, &mut touched, &mut requests, &mut actions);
            }
            for prefix in touched {
                state.grant_waiting(&shared, &prefix, &mut actions);
            }
            // The change that grants a lock and the request to release it may be applied in one
            // batch. The requester has already seen the entry as the holder, so deliver the request
            // after the grant.
            for (order, then) in requests {
                state.follow_request(order, then, &mut actions);
            }
        }
        self.run_since(Some(came), actions);
    }

    fn installed(self: Arc<Self>, _visible: Revision) {
        let Some(shared) = self.shared.upgrade() else { return };
        self.deferring(|actions| self.lock().rebuild(&shared, actions));
    }

    fn tick(self: Arc<Self>, now: Moment) {
        let held_too_long = self.deferring(|actions| {
            let mut state = self.lock();
            state.end_sessions(now, actions);
            state.fire_timers(now, actions)
        });
        for (entry, waiter) in held_too_long {
            self.release(&entry, &waiter, LostReason::HeldTooLong, ReplyTo::Discard);
        }
        if let Some(shared) = self.shared.upgrade() {
            let count = Arc::clone(self.lock().waiter_count());
            shared.meters.locks_held.set(count.count(WaiterRole::Holds));
            shared.meters.lock_waiters.set(count.count(WaiterRole::Waits));
        }
    }

    fn stopped(self: Arc<Self>, reason: &StopReason) {
        let entries = self.lock().close();
        self.deferring(|actions| {
            for entry in entries {
                let (loss, why) = (reason.clone(), reason.clone());
                let (loss, why) = (LostReason::NodeStopped(loss), LockError::NodeStopped(why));
                entry.apply(EntryEvent::Ended { loss, why }, actions);
            }
        });
    }
}

/// Returns the transaction that creates the keys of an entry if none of them exists. `before` is
/// applied in either case.
fn enqueue_txn(entry: &QueueEntry, keys: &[Bytes], before: Option<Txn>) -> Txn {
    let (lease, value) = (entry.session.lease, entry.value());
    let put = |key: &Bytes| Op::Put(Put::new(key.clone(), value.clone()).lease(lease));
    Txn {
        compares: keys.iter().map(|key| Compare::missing(key.clone())).collect(),
        success: before.clone().map(Op::Txn).into_iter().chain(keys.iter().map(put)).collect(),
        failure: before.map(Op::Txn).into_iter().collect(),
    }
}

/// Extracts the reply of the release that was part of an enqueue.
fn release_reply(reply: &TxnReply) -> Reply {
    match reply.results.first() {
        Some(TxnResult::Txn(plan)) => Reply::Txn(plan.clone()),
        _ => Reply::Txn(reply.clone()),
    }
}

/// Returns the reply to a release that was completed inside the node.
fn handed_off_reply() -> Reply {
    Reply::Txn(TxnReply { revision: Revision(0), succeeded: true, results: Vec::new() })
}
