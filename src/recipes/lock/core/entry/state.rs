//! The state machine of a queue entry: one function, [`EntryState::apply`], takes a state and an
//! event, and returns the next state and the actions. The scripts in `tests/scripts/locks` test it.
//!
//! ```text
//!   Entering ──▶ Waiting ──▶ Held ──▶ Gone        the step to Gone deletes the key, or, from
//!      ▲  └─────────┴─────────│───────▲           Entering, the handler of the outcome
//!      └──────────────────────┘
//!        waiters are left, but other nodes are due:
//!        one log entry deletes the old key and creates a new one
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use super::super::bound::{BoundKey, Load};
use super::super::error::{LockError, LostReason};
use super::super::release_plan::{ReleasePlan, Successor};
use super::super::token::Token;
use super::super::waiter::{Grant, Waiter, WaiterOptions, WaiterStage};
use super::super::waiter_counts::WaiterCounts;
use crate::lock_format::{AdminAction, AdminRequest, QueuePosition};
use crate::model::{Rejection, Reply, Revision};
use crate::node::{ReplyTo, SessionEndReason};

/// Maximum number of handoffs inside a node while other nodes wait for the lock.
pub(crate) const HANDOFFS_MAX: u32 = 16;

/// The state of a queue entry.
pub(crate) enum EntryState {
    /// The key is proposed, and the outcome is not known.
    Entering {
        /// Create revision of the keys that the entry had before it was re-enqueued, or 0.
        left: Revision,
    },
    /// The key exists, and other entries are ahead.
    Waiting {
        /// Create revision of the key.
        since: Revision,
    },
    /// The entry holds the lock.
    Held(HeldState),
    /// The entry has no key in the queue, or the key is being deleted.
    Gone,
}

/// The state of an entry that holds the lock.
#[derive(Default)]
pub(crate) struct HeldState {
    /// Create revision of the key.
    since: Revision,
    /// Revision that the local replica had applied when the lock was granted.
    granted: Revision,
    /// The waiter that holds the lock. `None` while the release waits for open transactions.
    holder: Option<Arc<Waiter>>,
    /// Number of handoffs since the grant.
    handoff: u64,
    /// Number of handoffs while other nodes waited.
    passes: u32,
    /// Reply for the releasing task, kept while transactions are open.
    releasing: Option<ReplyTo<Reply>>,
    /// The entry to which the hold will be transferred.
    successor: Option<Successor>,
}

/// A copy of an entry's state, for the lock table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The key is proposed, and the outcome is not known.
    Entering,
    /// The key of this create revision exists, and other entries are ahead.
    Waiting(Revision),
    /// The entry holds the lock with the key of this create revision.
    Held(Revision),
    /// The entry has no key in the queue, or the key is being deleted.
    Gone,
}

/// The part of an entry that outlives its states.
pub(crate) struct EntryData {
    /// Keys of the entry, one for each queue.
    pub(super) keys: Arc<[Bytes]>,
    /// Value of the rows with these keys.
    pub(super) value: Bytes,
    pub(super) waiters: EntryWaiters,
    pub(super) txns: OpenTxns,
    /// Keys that are deleted with the current hold.
    pub(super) bound: Vec<BoundKey>,
    /// Admin requests that arrived before the position of the entry was known.
    pending: Vec<AdminRow>,
}

/// The waiters of an entry in order of arrival.
pub(crate) struct EntryWaiters {
    by_number: BTreeMap<u64, Arc<Waiter>>,
    next_number: u64,
    counts: WaiterCounts,
}

/// Transactions under the hold of an entry.
#[derive(Default)]
pub(crate) struct OpenTxns {
    /// Number of transactions whose outcome is not known.
    open: u32,
    /// Keys that these transactions will attach to the hold.
    binding: Load,
    /// A transaction of the last holder may still be applied, so the hold must not be handed off
    /// inside the node.
    pub(super) may_come_late: bool,
}

/// An admin request to the entry with this key, and the key of the request's row.
pub(crate) struct AdminRow {
    pub(crate) request: AdminRequest,
    pub(crate) key: Bytes,
    pub(crate) row: Bytes,
}

/// The outcome of a successful enqueue.
pub(crate) enum Enqueued {
    /// No entry is ahead: the entry may hold the lock, as of this applied revision.
    MayHold(Revision),
    /// Other entries are ahead.
    MustWait,
    /// The entry is not allowed in its queue.
    NotAllowed(LockError),
    /// Another client has changed the keys since. `TransferReceived` or `KeyLost` follows.
    Overtaken,
}

/// An input of the state machine.
pub(crate) enum EntryEvent {
    /// The keys were created.
    Enqueued { since: Revision, outcome: Enqueued },
    /// The keys were not created.
    EnqueueFailed(LockError),
    /// The position of the entry is known: the pending admin requests are due.
    PositionKnown,
    /// The entry that was created at this revision may hold the lock, as of this applied revision.
    MayHold { since: Revision, granted: Revision },
    /// A holder of another session has transferred its key to this entry.
    TransferReceived { key: Bytes, since: Revision, is_unusable: bool },
    /// Another client has deleted a key of the entry, or attached it to another lease.
    KeyLost { since: Revision },
    /// The session or the node has ended.
    Ended { loss: LostReason, why: LockError },
    /// The deadline of a waiter has passed, or its request has failed.
    WaiterFailed { number: u64, why: LockError },
    /// All waiters have failed.
    WaitersFailed(LockError),
    /// The task of a waiter has stopped waiting.
    Cancelled { waiter: Arc<Waiter>, why: LockError },
    /// The holder's hold ends. The reply is due once the lock is free or has another holder.
    Released { waiter: Arc<Waiter>, why: LostReason, reply: ReplyTo<Reply> },
    /// The holder hands off to the next waiter of the entry, unless the release needs a log entry.
    HandedOff { waiter: Arc<Waiter> },
    /// Like `Released`, but the hold is transferred to another entry if that entry still waits.
    Transferred { waiter: Arc<Waiter>, successor: QueuePosition, reply: ReplyTo<Reply> },
    /// An operator's request.
    Admin(AdminRow),
    /// A transaction under the hold has ended. Its outcome may be unknown forever. `bound` are the
    /// keys that it has attached.
    TxnEnded { binds: Load, is_known: bool, bound: Vec<BoundKey> },
}

/// An output of the state machine: a proposal or a notification.
pub(crate) enum Action {
    /// Release these keys if they still belong to the entry.
    Release { plan: ReleasePlan, reply: ReplyTo<Reply> },
    /// Create new keys, and release the old keys in the same log entry.
    Requeue { plan: Option<ReleasePlan>, reply: ReplyTo<Reply> },
    /// Delete keys attached to a hold that has ended, and admin requests to it.
    DeleteBound(Vec<BoundKey>),
    /// Record the time at which the waiter became the holder after others.
    RecordHandoff(Arc<Waiter>),
    /// Notify tasks that wait for changes of a hold.
    Notify(Arc<Waiter>),
    /// The release was completed inside the node: reply without a proposal.
    Reply(ReplyTo<Reply>),
    /// Wake a task.
    Wake(Waker),
}

/// Facts beyond the entry itself that the state machine uses.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    /// Why the session has ended, if it has.
    pub(crate) ended: Option<SessionEndReason>,
    /// Whether a lost session keeps its locks for a lock delay.
    pub(crate) has_lock_delay: bool,
    /// Whether other nodes have entries after this one.
    pub(crate) is_contended: bool,
}

impl Facts {
    /// Reports whether the session was detached. The keys then stay, so that the next run of the
    /// program can resume the hold.
    fn is_detached(&self) -> bool {
        self.ended == Some(SessionEndReason::Detached)
    }

    /// Reports whether no task has the hold, although its key may live on with a resumed lease.
    /// This is the case if the session was detached, or was lost without a lock delay.
    fn is_abandoned(&self) -> bool {
        let is_lost = self.ended == Some(SessionEndReason::NotRenewed);
        self.is_detached() || (is_lost && !self.has_lock_delay)
    }

    /// Reports whether the session was lost. From then on the keys belong to the lease alone, which
    /// keeps the lock for the lock delay, even if local tasks have not been notified yet.
    pub(super) fn is_left_to_its_lease(&self) -> bool {
        self.ended == Some(SessionEndReason::NotRenewed) && !mutant!(B32)
    }
}

impl EntryState {
    /// Returns the next state and the actions that the transition requires. An event that does not
    /// fit the state is ignored: another thread has changed the entry meanwhile.
    pub(crate) fn apply(
        self,
        event: EntryEvent,
        data: &mut EntryData,
        facts: Facts,
    ) -> (EntryState, Vec<Action>) {
        let mut step = EntryStep { data, facts, actions: Vec::new() };
        let next = step.take(self, event);
        (next, step.actions)
    }

    /// Returns the create revision of the entry's keys, if the keys are in their queues.
    pub(super) fn since(&self) -> Option<Revision> {
        match self {
            EntryState::Waiting { since } | EntryState::Held(HeldState { since, .. }) => {
                Some(*since)
            }
            EntryState::Entering { .. } | EntryState::Gone => None,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self {
            EntryState::Entering { .. } => Phase::Entering,
            EntryState::Waiting { since } => Phase::Waiting(*since),
            EntryState::Held(held) => Phase::Held(held.since),
            EntryState::Gone => Phase::Gone,
        }
    }

    pub(super) fn holder(&self) -> Option<&Arc<Waiter>> {
        match self {
            EntryState::Held(held) => held.holder.as_ref(),
            _ => None,
        }
    }

    pub(super) fn is_held_by(&self, waiter: &Arc<Waiter>) -> bool {
        self.holder().is_some_and(|holder| Arc::ptr_eq(holder, waiter))
    }

    /// Reports whether the key of this revision has no holder and no waiters, and will never have
    /// any.
    pub(super) fn is_given_up(&self, since: Revision, data: &EntryData) -> bool {
        match self {
            EntryState::Entering { .. } | EntryState::Waiting { .. } => data.waiters.is_empty(),
            EntryState::Held(held) => held.since == since && held.holder.is_none(),
            EntryState::Gone => true,
        }
    }
}

/// One transition.
struct EntryStep<'a> {
    data: &'a mut EntryData,
    facts: Facts,
    actions: Vec<Action>,
}

impl EntryStep<'_> {
    fn take(&mut self, state: EntryState, event: EntryEvent) -> EntryState {
        match (state, event) {
            (EntryState::Entering { .. }, EntryEvent::Enqueued { since, outcome }) => {
                self.enqueued(since, outcome)
            }
            (EntryState::Entering { .. }, EntryEvent::EnqueueFailed(why)) => {
                self.fail_waiters(&why);
                EntryState::Gone
            }
            (state @ EntryState::Entering { .. }, EntryEvent::PositionKnown) => state,
            (mut state, EntryEvent::PositionKnown) => {
                for row in std::mem::take(&mut self.data.pending) {
                    state = self.admin(state, row);
                }
                state
            }
            (EntryState::Waiting { since }, EntryEvent::MayHold { since: due, granted })
                if since == due =>
            {
                self.grant(since, granted)
            }
            (state, EntryEvent::TransferReceived { key, since, is_unusable }) => {
                self.transfer_received(state, key, since, is_unusable)
            }
            (state, EntryEvent::KeyLost { since }) if state.since() == Some(since) => {
                self.key_lost(state, since)
            }
            (state, EntryEvent::Ended { loss, why }) => self.ended(state, loss, &why),
            (state, EntryEvent::WaiterFailed { number, why }) => {
                let Some(waiter) = self.data.waiters.remove(number) else { return state };
                self.settle(&waiter, WaiterStage::Failed(why));
                self.advance(state, ReplyTo::Discard)
            }
            (state, EntryEvent::WaitersFailed(why)) => {
                if self.data.waiters.is_empty() {
                    return state;
                }
                self.fail_waiters(&why);
                self.advance(state, ReplyTo::Discard)
            }
            (state, EntryEvent::Cancelled { waiter, why }) => self.cancelled(state, &waiter, why),
            (EntryState::Held(held), EntryEvent::Released { waiter, why, reply })
                if held.may_be_ended_by(&waiter, self.facts) =>
            {
                self.released(held, &waiter, why, reply)
            }
            (EntryState::Held(held), EntryEvent::HandedOff { waiter }) => {
                self.hand_off(held, &waiter)
            }
            (EntryState::Held(held), EntryEvent::Transferred { waiter, successor, reply })
                if held.may_be_ended_by(&waiter, self.facts) =>
            {
                self.transferred(held, &waiter, successor, reply)
            }
            (state, EntryEvent::Admin(row)) => self.admin(state, row),
            (state, EntryEvent::TxnEnded { binds, is_known, bound }) => {
                self.txn_ended(state, binds, is_known, bound)
            }
            (
                state,
                EntryEvent::Enqueued { .. }
                | EntryEvent::EnqueueFailed(_)
                | EntryEvent::MayHold { .. }
                | EntryEvent::KeyLost { .. }
                | EntryEvent::Released { .. }
                | EntryEvent::HandedOff { .. }
                | EntryEvent::Transferred { .. },
            ) => state,
        }
    }

    fn enqueued(&mut self, since: Revision, outcome: Enqueued) -> EntryState {
        match outcome {
            // If nothing is ahead, go from Entering to Held in one step, so that a try call does
            // not see its own entry waiting.
            Enqueued::MayHold(granted) => self.grant(since, granted),
            Enqueued::MustWait => self.advance(EntryState::Waiting { since }, ReplyTo::Discard),
            Enqueued::Overtaken => EntryState::Waiting { since },
            Enqueued::NotAllowed(why) => {
                self.fail_waiters(&why);
                self.advance(EntryState::Waiting { since }, ReplyTo::Discard)
            }
        }
    }

    /// Grants the lock to the first waiter, if there is one.
    fn grant(&mut self, since: Revision, granted: Revision) -> EntryState {
        let mut held = HeldState { since, granted, ..HeldState::default() };
        match self.grant_next(&mut held) {
            true => EntryState::Held(held),
            false => self.advance(EntryState::Waiting { since }, ReplyTo::Discard),
        }
    }

    /// Makes the first waiter the holder. Returns `false` if there are no waiters.
    fn grant_next(&mut self, held: &mut HeldState) -> bool {
        let Some(waiter) = self.data.waiters.pop_first() else { return false };
        let token = Token { revision: held.granted, handoff: held.handoff };
        let (keys, value) = (Arc::clone(&self.data.keys), self.data.value.clone());
        let grant = Grant { keys, since: held.since, token, value };
        if waiter.has_waited() {
            self.actions.push(Action::RecordHandoff(Arc::clone(&waiter)));
        }
        self.settle(&waiter, WaiterStage::Granted(grant));
        held.holder = Some(waiter);
        true
    }

    /// The entry's own key is replaced by the holder's key, which is now attached to the entry's
    /// lease.
    fn transfer_received(
        &mut self,
        state: EntryState,
        key: Bytes,
        since: Revision,
        is_unusable: bool,
    ) -> EntryState {
        self.data.keys = Arc::new([key]);
        match state {
            // Two holds of one session with the same key could not be distinguished.
            EntryState::Entering { .. } | EntryState::Waiting { .. }
                if is_unusable && !self.data.waiters.is_empty() =>
            {
                let plan = Some(ReleasePlan::of_lost(&self.data.keys, since));
                self.requeue(since, plan, ReplyTo::Discard)
            }
            EntryState::Entering { .. } | EntryState::Waiting { .. } => {
                self.advance(EntryState::Waiting { since }, ReplyTo::Discard)
            }
            // Meanwhile the successor has left, or has acquired the lock with the key that is now
            // deleted.
            state @ (EntryState::Held(_) | EntryState::Gone) => {
                self.lose_hold(state);
                self.fail_waiters(&self.eviction());
                let plan = ReleasePlan::of_lost(&self.data.keys, since);
                self.actions.push(Action::Release { plan, reply: ReplyTo::Discard });
                EntryState::Gone
            }
        }
    }

    /// A hold is lost, and waiters lose their queue position. Waiters that share the entry with a
    /// holder are enqueued again.
    fn key_lost(&mut self, state: EntryState, since: Revision) -> EntryState {
        let was_held = matches!(state, EntryState::Held(_));
        self.lose_hold(state);
        if was_held && !self.data.waiters.is_empty() {
            // Only an entry with a single key has waiters in addition to a holder, so no other key
            // remains, and the name of this key can be reused.
            return self.requeue(since, None, ReplyTo::Discard);
        }
        self.fail_waiters(&self.eviction());
        if self.data.keys.len() > 1 {
            let plan = ReleasePlan::of_lost(&self.data.keys, since);
            self.actions.push(Action::Release { plan, reply: ReplyTo::Discard });
        }
        EntryState::Gone
    }

    /// Ends the entry. The keys of a hold are left to the lease.
    fn ended(&mut self, state: EntryState, loss: LostReason, why: &LockError) -> EntryState {
        self.fail_waiters(why);
        let next = match state {
            // The hold was already released. Transactions that are still in flight will find its
            // key deleted.
            EntryState::Held(mut held) if held.holder.is_none() => {
                let reply = held.releasing.take().unwrap_or(ReplyTo::Discard);
                return self.leave(held.since, held.successor, reply);
            }
            EntryState::Held(mut held) => {
                self.lose(held.holder.take(), loss);
                EntryState::Gone
            }
            waiting @ EntryState::Waiting { .. } => self.advance(waiting, ReplyTo::Discard),
            // The outcome of the enqueue decides what happens to the key.
            state @ (EntryState::Entering { .. } | EntryState::Gone) => state,
        };
        self.data.bound.clear();
        next
    }

    fn cancelled(&mut self, state: EntryState, waiter: &Arc<Waiter>, why: LockError) -> EntryState {
        if self.data.waiters.remove(waiter.number()).is_some() {
            self.settle(waiter, WaiterStage::Failed(why));
            return self.advance(state, ReplyTo::Discard);
        }
        match state {
            // The lock was granted, but the task has not received it.
            EntryState::Held(mut held) if held.is_held_by(waiter) => {
                self.lose(held.holder.take(), LostReason::Released);
                self.advance(EntryState::Held(held), ReplyTo::Discard)
            }
            state => state,
        }
    }

    fn released(
        &mut self,
        mut held: HeldState,
        waiter: &Arc<Waiter>,
        why: LostReason,
        reply: ReplyTo<Reply>,
    ) -> EntryState {
        held.holder = None;
        let is_given_up = why == LostReason::Released;
        self.lose(Some(Arc::clone(waiter)), why);
        if self.facts.is_detached() && is_given_up {
            // The session was detached so that its holds can be resumed later. So the keys stay.
            self.fail_waiters(&LockError::SessionEnded(SessionEndReason::Detached));
            self.actions.push(Action::Reply(reply));
            return EntryState::Gone;
        }
        self.advance(EntryState::Held(held), reply)
    }

    /// Hands a hold to the next waiter of the entry, unless the release needs a log entry.
    fn hand_off(&mut self, mut held: HeldState, waiter: &Arc<Waiter>) -> EntryState {
        let is_quiet = self.data.txns.open == 0 || mutant!(B24);
        let is_due = held.is_held_by(waiter) && is_quiet && !self.data.waiters.is_empty();
        let is_plain = waiter.max_hold.is_none() && self.facts.ended.is_none();
        if is_due && is_plain && self.may_hand_off(&mut held) {
            self.lose(held.holder.take(), LostReason::Released);
            held.handoff += 1;
            self.grant_next(&mut held);
        }
        EntryState::Held(held)
    }

    fn transferred(
        &mut self,
        mut held: HeldState,
        waiter: &Arc<Waiter>,
        successor: QueuePosition,
        reply: ReplyTo<Reply>,
    ) -> EntryState {
        held.holder = None;
        held.successor = Some(Successor { position: successor, reports_failure: true });
        if !mutant!(B08) {
            self.lose(Some(Arc::clone(waiter)), LostReason::HandedOver);
        }
        self.advance(EntryState::Held(held), reply)
    }

    /// Runs an admin request.
    fn admin(&mut self, state: EntryState, admin: AdminRow) -> EntryState {
        let AdminRow { request, key, row } = &admin;
        let is_forced = matches!(request.action, AdminAction::ForceRelease);
        let is_it = match &state {
            EntryState::Waiting { since } | EntryState::Held(HeldState { since, .. }) => {
                *since == request.since
            }
            // The create revision is not known here yet, but the requester has seen it.
            EntryState::Entering { left } => request.since > *left,
            // The key may still exist for a later resume, but it has no holder now.
            EntryState::Gone if self.facts.is_abandoned() => {
                if is_forced {
                    let bound = vec![BoundKey::of_key(row.clone())];
                    let keys: Arc<[Bytes]> = Arc::new([key.clone()]);
                    let plan = ReleasePlan { bound, ..ReleasePlan::of_lost(&keys, request.since) };
                    self.actions.push(Action::Release { plan, reply: ReplyTo::Discard });
                }
                return state;
            }
            EntryState::Gone => false,
        };
        if !is_it || !self.data.keys.contains(key) {
            // The addressed entry has ended, or the request addressed an earlier entry with the
            // same key.
            self.actions.push(Action::DeleteBound(vec![BoundKey::of_key(row.clone())]));
            return state;
        }
        // The requester has seen the entry in the queue, possibly as the holder, before this node
        // knows its position.
        if matches!(state, EntryState::Entering { .. }) && !is_forced {
            self.data.pending.push(admin);
            return state;
        }
        // The row of the request is deleted together with the hold.
        if !self.data.bound.iter().any(|bound| bound.key == *row) {
            self.data.bound.push(BoundKey::of_key(row.clone()));
        }
        let AdminRequest { action, request: why, .. } = admin.request;
        match (action, state) {
            (AdminAction::RequestRelease, state) => {
                if let Some(holder) = state.holder() {
                    holder.set_release_request(why);
                    self.actions.push(Action::Notify(Arc::clone(holder)));
                }
                state
            }
            (AdminAction::ForceRelease, EntryState::Held(held)) => match held.holder.clone() {
                Some(holder) if held.may_be_ended_by(&holder, self.facts) => {
                    let loss = LostReason::ForceReleased { by: why.by, reason: why.reason };
                    self.released(held, &holder, loss, ReplyTo::Discard)
                }
                // The addressed waiter has already released the lock. A hold with an attached
                // request is not handed off.
                _ => EntryState::Held(held),
            },
            (AdminAction::ForceRelease, state) => {
                self.fail_waiters(&LockError::Evicted);
                self.advance(state, ReplyTo::Discard)
            }
            (AdminAction::Transfer(successor), EntryState::Held(mut held)) => {
                match held.holder.clone() {
                    Some(holder) if held.may_be_ended_by(&holder, self.facts) => {
                        self.transferred(held, &holder, successor, ReplyTo::Discard)
                    }
                    Some(_) => EntryState::Held(held),
                    None => {
                        let reports_failure = held.successor.is_some_and(|s| s.reports_failure);
                        held.successor = Some(Successor { position: successor, reports_failure });
                        EntryState::Held(held)
                    }
                }
            }
            (AdminAction::Transfer(_), state) => state,
        }
    }

    fn txn_ended(
        &mut self,
        state: EntryState,
        binds: Load,
        is_known: bool,
        mut bound: Vec<BoundKey>,
    ) -> EntryState {
        let data = &mut *self.data;
        data.txns.open -= 1;
        data.txns.binding = data.txns.binding.without(binds);
        data.txns.may_come_late |= !is_known;
        let EntryState::Held(mut held) = state else {
            if !bound.is_empty() && !self.facts.is_left_to_its_lease() {
                // The hold to which these keys were attached has ended, so delete them.
                self.actions.push(Action::DeleteBound(bound));
            }
            return state;
        };
        // A key that is known to be attached to this hold stays known, whatever the outcome of a
        // later transaction.
        for one in &mut bound {
            one.is_sure |= data.bound.iter().any(|b| b.is_sure && b.key == one.key);
        }
        let keys: Vec<&Bytes> = bound.iter().map(|bound| &bound.key).collect();
        data.bound.retain(|before| !keys.contains(&&before.key));
        data.bound.extend(bound);
        if held.holder.is_some() || data.txns.open > 0 {
            return EntryState::Held(held);
        }
        let reply = held.releasing.take().unwrap_or(ReplyTo::Discard);
        self.advance(EntryState::Held(held), reply)
    }

    /// Advances an entry without a holder: hands it off, releases it or re-enqueues it.
    fn advance(&mut self, state: EntryState, reply: ReplyTo<Reply>) -> EntryState {
        match state {
            EntryState::Waiting { since } if self.data.waiters.is_empty() && !mutant!(B26) => {
                self.leave(since, None, reply)
            }
            // Only the releasing task waits for open transactions.
            EntryState::Held(mut held)
                if held.holder.is_none() && self.data.txns.open > 0 && !mutant!(B24) =>
            {
                held.releasing.get_or_insert(reply);
                EntryState::Held(held)
            }
            EntryState::Held(mut held) if held.holder.is_none() => {
                if self.data.waiters.is_empty() {
                    self.leave(held.since, held.successor, reply)
                } else if self.may_hand_off(&mut held) {
                    held.handoff += 1;
                    self.grant_next(&mut held);
                    self.actions.push(Action::Reply(reply));
                    EntryState::Held(held)
                } else {
                    // One log entry deletes the old key and creates the new key. Afterwards the
                    // releasing task is notified.
                    let plan = self.release_plan(held.since, held.successor);
                    self.requeue(held.since, Some(plan), reply)
                }
            }
            // Nothing to do now: the entry has a holder, or waits for other entries, or its enqueue
            // has no outcome yet. When one of these changes, this function is called again.
            state => state,
        }
    }

    fn leave(
        &mut self,
        since: Revision,
        successor: Option<Successor>,
        reply: ReplyTo<Reply>,
    ) -> EntryState {
        let plan = self.release_plan(since, successor);
        self.actions.push(Action::Release { plan, reply });
        EntryState::Gone
    }

    fn requeue(
        &mut self,
        since: Revision,
        plan: Option<ReleasePlan>,
        reply: ReplyTo<Reply>,
    ) -> EntryState {
        self.actions.push(Action::Requeue { plan, reply });
        self.data.txns.may_come_late = false;
        EntryState::Entering { left: since }
    }

    /// Returns the release plan for the entry's keys, which no longer belong to the entry.
    fn release_plan(&mut self, since: Revision, successor: Option<Successor>) -> ReleasePlan {
        let (keys, bound) = (Arc::clone(&self.data.keys), std::mem::take(&mut self.data.bound));
        let has_late_txns = self.data.txns.may_come_late;
        ReleasePlan { keys, since, bound, has_late_txns, successor }
    }

    fn may_hand_off(&self, held: &mut HeldState) -> bool {
        let data = &*self.data;
        if data.txns.may_come_late || !data.bound.is_empty() || held.successor.is_some() {
            return false;
        }
        if !self.facts.is_contended {
            held.passes = 0;
            return true;
        }
        held.passes += 1;
        held.passes <= HANDOFFS_MAX || mutant!(B25)
    }

    /// Ends a hold after a change by another client: deletes the keys attached to it, and replies
    /// to the releasing task.
    fn lose_hold(&mut self, state: EntryState) {
        let bound = std::mem::take(&mut self.data.bound);
        if !bound.is_empty() {
            self.actions.push(Action::DeleteBound(bound));
        }
        if let EntryState::Held(mut held) = state {
            self.lose(held.holder.take(), LostReason::KeyDeleted);
            self.actions.extend(held.releasing.take().map(Action::Reply));
        }
    }

    /// Returns the error of waiters whose key is gone: if the session has ended, the key was
    /// deleted with its lease.
    fn eviction(&self) -> LockError {
        self.facts.ended.map_or(LockError::Evicted, LockError::SessionEnded)
    }

    fn lose(&mut self, holder: Option<Arc<Waiter>>, why: LostReason) {
        if let Some(holder) = holder {
            holder.lose(why);
            self.actions.push(Action::Notify(holder));
        }
    }

    fn fail_waiters(&mut self, why: &LockError) {
        while let Some(waiter) = self.data.waiters.pop_first() {
            self.settle(&waiter, WaiterStage::Failed(why.clone()));
        }
    }

    fn settle(&mut self, waiter: &Waiter, stage: WaiterStage) {
        self.actions.extend(waiter.settle(stage).map(Action::Wake));
    }
}

impl HeldState {
    fn is_held_by(&self, waiter: &Arc<Waiter>) -> bool {
        self.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, waiter))
    }

    fn may_be_ended_by(&self, waiter: &Arc<Waiter>, facts: Facts) -> bool {
        self.is_held_by(waiter) && !facts.is_left_to_its_lease()
    }
}

impl EntryData {
    pub(crate) fn new(keys: Arc<[Bytes]>, value: Bytes, counts: WaiterCounts) -> Self {
        let waiters = EntryWaiters { by_number: BTreeMap::new(), next_number: 0, counts };
        let (txns, bound, pending) = (OpenTxns::default(), Vec::new(), Vec::new());
        Self { keys, value, waiters, txns, bound, pending }
    }

    /// Registers a transaction that attaches `binds` to the hold.
    ///
    /// # Errors
    /// Fails if more keys would be attached than a hold may have.
    pub(crate) fn begin_txn(&mut self, binds: Load) -> Result<(), Rejection> {
        let binding = self.txns.binding.and(binds);
        if !binds.is_empty() {
            binding.and(Load::of(&self.bound)).check()?;
        }
        self.txns.binding = binding;
        self.txns.open += 1;
        Ok(())
    }
}

impl EntryWaiters {
    pub(crate) fn add(&mut self, options: WaiterOptions, has_holder: bool) -> Arc<Waiter> {
        let number = self.next_number;
        self.next_number += 1;
        let is_behind = has_holder || !self.by_number.is_empty();
        let waiter = Arc::new(Waiter::new(number, options, is_behind, self.counts.clone()));
        self.by_number.insert(number, Arc::clone(&waiter));
        waiter
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.by_number.values()
    }

    /// Returns the number of waiters ahead of `waiter`.
    pub(crate) fn ahead_of(&self, waiter: &Waiter) -> usize {
        self.by_number.range(..waiter.number()).count()
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Waiter>> {
        self.by_number.remove(&number)
    }

    fn pop_first(&mut self) -> Option<Arc<Waiter>> {
        self.by_number.pop_first().map(|(_, waiter)| waiter)
    }
}
