//! The mutable state of a queue entry: keys, phase, holder and waiters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    Action, Bound, DeferredActions, Grant, Load, PendingRequest, Phase, ReleasePlan, Waiter,
    WaiterStage,
};
use crate::lock_format::QueuePosition;
use crate::model::{LeaseId, Moment, Reply, Revision};
use crate::node::ReplyTo;
use crate::recipes::lock::core::error::{LockError, LostReason};
use crate::recipes::lock::core::token::Token;
use crate::recipes::lock::core::waiter_counts::WaiterCounts;

/// The mutable state of a queue entry, protected by its lock.
pub(crate) struct EntryInner {
    /// Keys of the entry, one for each queue.
    pub(crate) keys: Arc<[Bytes]>,
    /// Value of the rows with these keys.
    pub(crate) value: Bytes,
    pub(crate) phase: Phase,
    /// Waiters in order of arrival.
    pub(super) waiters: BTreeMap<u64, Arc<Waiter>>,
    pub(super) next_waiter: u64,
    /// The waiter that holds the lock.
    pub(crate) holder: Option<Arc<Waiter>>,
    /// Create revision of the keys that the entry had before it was re-enqueued.
    pub(super) left: Revision,
    /// Number of handoffs since the key was created.
    pub(super) handoff: u64,
    /// Number of handoffs while other nodes waited.
    pub(super) passes: u32,
    /// Number of transactions under the current hold whose outcome is not known.
    pub(super) open_txns: u32,
    /// Keys that these transactions will attach to the hold.
    pub(super) binding: Load,
    /// The hold must not be handed off inside the node, because a transaction of the last holder
    /// may still be applied.
    pub(super) no_handoff: bool,
    /// Keys attached to the current hold.
    pub(super) bound: Vec<Bound>,
    /// Reply for the releasing task, kept while transactions are open.
    pub(super) releasing: Option<ReplyTo<Reply>>,
    /// Queue position of the entry to which the hold will be transferred.
    pub(super) successor: Option<QueuePosition>,
    /// Whether the releasing task has named the successor itself.
    pub(super) reports_failure: bool,
    /// Admin requests that arrived before the position of the entry was known.
    pub(super) requests: Vec<PendingRequest>,
    pub(super) counts: WaiterCounts,
}

impl EntryInner {
    /// Adds a waiter.
    pub(crate) fn add_waiter(
        &mut self,
        only_try: bool,
        deadline: Option<(Moment, u64)>,
        cap: Option<Duration>,
        is_owned: bool,
    ) -> Arc<Waiter> {
        let number = self.next_waiter;
        self.next_waiter += 1;
        let is_behind = self.holder.is_some() || !self.waiters.is_empty();
        let counts = self.counts.clone();
        let waiter = Waiter::new(number, only_try, deadline, cap, is_owned, is_behind, counts);
        let waiter = Arc::new(waiter);
        self.waiters.insert(number, Arc::clone(&waiter));
        waiter
    }

    /// Returns the waiters in order.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.waiters.values()
    }

    /// Returns the create revision of the entry's keys, if the keys are in their queues.
    pub(crate) fn since(&self) -> Option<Revision> {
        match self.phase {
            Phase::Waiting { since } | Phase::Held { since, .. } => Some(since),
            Phase::Entering | Phase::Gone => None,
        }
    }

    /// Returns the number of waiters ahead of `waiter`.
    pub(crate) fn before(&self, waiter: &Waiter) -> usize {
        self.waiters.range(..waiter.number).count()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    pub(crate) fn is_held_by(&self, waiter: &Arc<Waiter>) -> bool {
        self.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, waiter))
    }

    /// Reports whether the key of this revision has no holder and no waiters, and will never have
    /// any.
    pub(crate) fn is_given_up(&self, since: Revision) -> bool {
        match self.phase {
            Phase::Entering | Phase::Waiting { .. } => self.waiters.is_empty(),
            Phase::Held { since: held, .. } => held == since && self.holder.is_none(),
            Phase::Gone => true,
        }
    }

    /// Grants the lock to the first waiter. Returns `false` if there are no waiters.
    pub(crate) fn grant_next(
        &mut self,
        since: Revision,
        granted: Revision,
        actions: &mut DeferredActions,
    ) -> bool {
        let Some((_, waiter)) = self.waiters.pop_first() else { return false };
        self.phase = Phase::Held { since, granted };
        let token = Token { revision: granted, handoff: self.handoff };
        let (keys, value) = (Arc::clone(&self.keys), self.value.clone());
        let grant = Grant { keys, since, token, value };
        if waiter.has_waited() {
            actions.0.push(Action::RecordHandoff(Arc::clone(&waiter)));
        }
        waiter.advance(WaiterStage::Granted(grant), actions);
        self.holder = Some(waiter);
        true
    }

    /// Fails all waiters.
    pub(crate) fn fail(&mut self, why: &LockError, actions: &mut DeferredActions) {
        for waiter in std::mem::take(&mut self.waiters).into_values() {
            waiter.advance(WaiterStage::Failed(why.clone()), actions);
        }
    }

    /// Records that the key is gone or belongs to another session, and that the hold is lost.
    pub(crate) fn lose(&mut self, why: LostReason, actions: &mut DeferredActions) {
        if let Some(holder) = self.holder.take() {
            holder.lose(why, actions);
        }
        self.bound.clear();
        (self.successor, self.reports_failure) = (None, false);
    }

    /// Like [`EntryInner::lose`], after a change by another client: also deletes the keys attached to
    /// the hold, and replies to the releasing task.
    pub(crate) fn lose_all(&mut self, lease: LeaseId, actions: &mut DeferredActions) {
        let bound = std::mem::take(&mut self.bound);
        if !bound.is_empty() {
            actions.0.push(Action::DeleteBound { bound, lease });
        }
        self.lose(LostReason::KeyDeleted, actions);
        actions.0.extend(self.releasing.take().map(Action::Reply));
    }

    /// Ends the entry after a change by another client, for the holder and all waiters.
    pub(crate) fn end(&mut self, why: &LockError, lease: LeaseId, actions: &mut DeferredActions) {
        self.lose_all(lease, actions);
        self.fail(why, actions);
        self.phase = Phase::Gone;
    }

    /// Prepares the entry for being enqueued again with other keys.
    pub(crate) fn reset_for_requeue(&mut self) {
        if let Phase::Waiting { since } | Phase::Held { since, .. } = self.phase {
            self.left = since;
        }
        self.phase = Phase::Entering;
        (self.handoff, self.passes) = (0, 0);
        self.no_handoff = false;
    }

    /// Returns the release plan for the entry's keys, which no longer belong to the entry.
    pub(super) fn part(&mut self, since: Revision) -> ReleasePlan {
        let (bound, successor) = (std::mem::take(&mut self.bound), self.successor.take());
        let (keys, reports_failure) =
            (Arc::clone(&self.keys), std::mem::take(&mut self.reports_failure));
        ReleasePlan { keys, since, bound, no_handoff: self.no_handoff, successor, reports_failure }
    }

    /// Takes the reply for the task that waits until the old key is deleted.
    pub(crate) fn take_releasing(&mut self) -> Option<ReplyTo<Reply>> {
        self.releasing.take()
    }
}
