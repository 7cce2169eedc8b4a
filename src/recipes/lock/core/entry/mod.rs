//! A queue entry, and the waiters that share it.
//!
//! An entry is a key in a lock queue. The entry of a multi-lock has a key in each of its queues. A
//! waiter is the request of one task. Tasks of one session that request the same mutex without
//! options share one entry. While such an entry holds the lock, the lock is handed from waiter to
//! waiter inside the process, without contacting the cluster. All other requests have their own
//! entry with one waiter.
//!
//! ```text
//!   entry   Entering ──▶ Waiting ──▶ Held ──▶ Gone       its key is deleted by the step that makes it Gone
//!               ▲  └────────┴──────────│───────▲          or, from Entering, when the outcome is known
//!               └──────────────────────┘
//!                 waiters are left, but other nodes are due:
//!                 one log entry deletes the old key and creates a new one
//!
//!   waiter  Requested ──▶ Waiting ──▶ Granted ──▶ lost    Waiting: known to be in the queue
//!             └──────────────┴──────▶ Failed
//! ```
//!
//! The mutex of the entry protects these states. A transition may cause proposals and
//! notifications. Each of them is an [`Action`], which [`LockTable`](super::lock_table::LockTable) runs when no
//! mutex is held.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::lock_format::{AdminAction, AdminRequest, EntryMetadata, LockKind, QueuePosition};
use crate::model::{Compare, LeaseId, Op, Rejection, Reply, Revision, Txn};
use crate::node::{ReplyTo, SessionEndReason, SharedSession};

mod inner;
mod waiter;

pub(crate) use inner::EntryInner;
pub(crate) use waiter::{Grant, Share, Waiter, WaiterStage};

use super::error::{LockError, LostReason};
use super::table_state::no_more;
use super::waiter_counts::WaiterCounts;

/// Maximum number of handoffs inside a node while other nodes wait for the lock.
pub(crate) const PASSES_MAX: u32 = 16;

/// Maximum load of keys attached to one hold. The keys are deleted in one log entry, and a transfer
/// contains this deletion twice.
const BOUND_MAX: Load = Load { keys: 1_000, bytes: (3 << 19) - (64 << 10) };

/// State of a queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// The key is proposed, and the outcome is not known.
    Entering,
    /// The key exists, and other entries are ahead.
    Waiting {
        /// Create revision of the key.
        since: Revision,
    },
    /// The entry holds the lock.
    Held {
        /// Create revision of the key.
        since: Revision,
        /// Revision that the local replica had applied when the lock was granted.
        granted: Revision,
    },
    Gone,
}

/// A queue entry.
pub(crate) struct QueueEntry {
    pub(crate) id: u64,
    /// Prefixes of the queues that contain the entry.
    pub(crate) prefixes: Box<[Bytes]>,
    /// Session of the entry.
    pub(crate) session: Arc<SharedSession>,
    /// Whether other tasks of the session may share the entry.
    pub(crate) is_shared: bool,
    /// Kind of lock at the time of the request. Since then a resize may have changed the limit in
    /// the row.
    pub(crate) asked: LockKind,
    /// Whether other nodes have entries after it.
    pub(crate) is_contended: AtomicBool,
    inner: Mutex<EntryInner>,
}

/// A key that is attached to a hold.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) key: Bytes,
    /// Value that was written.
    pub(crate) value: Bytes,
    /// Whether the key is known to have been written.
    pub(crate) is_sure: bool,
}

impl Bound {
    /// Returns an attached key with any value.
    pub(crate) fn of_key(key: Bytes) -> Self {
        Self { key, value: Bytes::new(), is_sure: true }
    }
}

/// Number and size of the keys attached to a hold.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    keys: usize,
    /// Size of the operations that delete them, in bytes.
    bytes: usize,
}

impl Load {
    /// Upper bound of the size of an operation that deletes a key. Excludes the key itself, which
    /// the operation contains twice, and the value.
    const KEY_BYTES: usize = 48;

    pub(crate) fn of<'a>(bound: impl IntoIterator<Item = &'a Bound>) -> Self {
        bound.into_iter().fold(Self::default(), |load, Bound { key, value, is_sure }| {
            // If the value is compared as well, the operation contains the key three times.
            let value = if *is_sure { 0 } else { key.len() + value.len() };
            let more = Self { keys: 1, bytes: Self::KEY_BYTES + 2 * key.len() + value };
            load.and(more)
        })
    }

    fn and(self, other: Self) -> Self {
        Self { keys: self.keys + other.keys, bytes: self.bytes + other.bytes }
    }

    fn without(self, other: Self) -> Self {
        Self { keys: self.keys - other.keys, bytes: self.bytes - other.bytes }
    }

    fn check(self) -> Result<(), Rejection> {
        let Load { keys: count, bytes } = self;
        if count > BOUND_MAX.keys {
            return Err(Rejection::TooManyOps { count, max: BOUND_MAX.keys });
        }
        if bytes > BOUND_MAX.bytes {
            return Err(Rejection::RequestTooLarge { bytes, max: BOUND_MAX.bytes });
        }
        Ok(())
    }
}

/// An admin request to the entry with this key, and the key of the request's row.
struct PendingRequest {
    order: AdminRequest,
    key: Bytes,
    row: Bytes,
}

/// The release plan of a hold that has ended: states what happens to its keys and to the keys
/// attached to it.
pub(crate) struct ReleasePlan {
    pub(crate) keys: Arc<[Bytes]>,
    pub(crate) since: Revision,
    pub(crate) bound: Vec<Bound>,
    /// A transaction under the hold may still be applied.
    pub(crate) no_handoff: bool,
    /// Queue position of the successor. If the successor is not waiting any more, the keys are
    /// deleted.
    pub(crate) successor: Option<QueuePosition>,
    /// Whether the caller that waits for the reply has named the successor. This caller gets an
    /// error if the transfer is not possible.
    pub(crate) reports_failure: bool,
}

/// A deferred action: a proposal, or a notification of a task, that must run when no lock is held.
pub(crate) enum Action {
    /// Release these keys if they still belong to the entry.
    Release { entry: Arc<QueueEntry>, plan: ReleasePlan, reply: ReplyTo<Reply> },
    /// Create new keys, and release the old keys in the same log entry.
    Requeue { entry: Arc<QueueEntry>, plan: Option<ReleasePlan> },
    /// Delete keys attached to a hold that has ended, and admin requests to it.
    DeleteBound { bound: Vec<Bound>, lease: LeaseId },
    /// Record the time at which the waiter became the holder after others.
    RecordHandoff(Arc<Waiter>),
    /// Notify tasks that wait for changes of a hold.
    Notify(Arc<Waiter>),
    /// The release was completed inside the node: reply without a proposal.
    Reply(ReplyTo<Reply>),
    /// Wake a task.
    Wake(Waker),
}

/// Deferred actions.
#[derive(Default)]
#[must_use = "deferred actions must be run"]
pub(crate) struct DeferredActions(pub(crate) Vec<Action>);

impl QueueEntry {
    pub(crate) fn new(
        id: u64,
        prefixes: Box<[Bytes]>,
        keys: Arc<[Bytes]>,
        session: Arc<SharedSession>,
        value: Bytes,
        is_shared: bool,
        counts: WaiterCounts,
    ) -> Self {
        let asked = EntryMetadata::mode_of(&keys[0], &value).kind();
        let inner = EntryInner {
            keys,
            value,
            phase: Phase::Entering,
            waiters: BTreeMap::new(),
            next_waiter: 0,
            holder: None,
            handoff: 0,
            left: Revision(0),
            passes: 0,
            open_txns: 0,
            binding: Load::default(),
            no_handoff: false,
            bound: Vec::new(),
            releasing: None,
            successor: None,
            reports_failure: false,
            requests: Vec::new(),
            counts,
        };
        let (is_contended, inner) = (AtomicBool::new(false), Mutex::new(inner));
        Self { id, prefixes, session, is_shared, asked, is_contended, inner }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EntryInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails a waiter whose deadline has passed or whose request has failed. If another thread has
    /// meanwhile made the waiter the holder, it stays the holder, because its task may already have
    /// received the lock.
    pub(crate) fn wait_no_more(
        self: &Arc<Self>,
        waiter: &Waiter,
        why: LockError,
        actions: &mut DeferredActions,
    ) {
        let mut inner = self.lock();
        if inner.waiters.remove(&waiter.number).is_some() {
            waiter.advance(WaiterStage::Failed(why), actions);
            self.advance(&mut inner, ReplyTo::Nobody, actions);
        }
    }

    /// Cancels a waiter whose future was dropped or given up.
    pub(crate) fn cancel(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        why: LockError,
        actions: &mut DeferredActions,
    ) {
        let mut inner = self.lock();
        if inner.waiters.remove(&waiter.number).is_some() {
            waiter.advance(WaiterStage::Failed(why), actions);
        } else if inner.is_held_by(waiter) {
            // The lock was granted, but the task has not received it.
            inner.holder = None;
            waiter.lose(LostReason::Released, actions);
        } else {
            return;
        }
        self.advance(&mut inner, ReplyTo::Nobody, actions);
    }

    /// Ends the hold of this waiter. Returns `false` if it has already ended. `reply` is sent once
    /// the lock is free or has another holder.
    pub(crate) fn release(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        why: LostReason,
        reply: ReplyTo<Reply>,
        actions: &mut DeferredActions,
    ) -> bool {
        let mut inner = self.lock();
        if !inner.is_held_by(waiter) || self.is_left_to_its_lease() {
            return false;
        }
        inner.holder = None;
        let is_given_up = why == LostReason::Released;
        waiter.lose(why, actions);
        if self.is_left() && is_given_up {
            // The session was detached so that its holds can be resumed later. So the keys stay.
            inner.phase = Phase::Gone;
            inner.fail(&LockError::SessionEnded(SessionEndReason::Detached), actions);
            actions.0.push(Action::Reply(reply));
        } else {
            self.advance(&mut inner, reply, actions);
        }
        true
    }

    /// Like [`QueueEntry::release`], but transfers the hold to another entry if that entry is still
    /// waiting.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        waiter: &Arc<Waiter>,
        successor: QueuePosition,
        reply: ReplyTo<Reply>,
        actions: &mut DeferredActions,
    ) -> bool {
        let mut inner = self.lock();
        if !inner.is_held_by(waiter) || self.is_left_to_its_lease() {
            return false;
        }
        inner.holder = None;
        (inner.successor, inner.reports_failure) = (Some(successor), true);
        if !mutant!(B08) {
            waiter.lose(LostReason::HandedOver, actions);
        }
        self.advance(&mut inner, reply, actions);
        true
    }

    /// Runs an admin request to the entry with this key.
    pub(crate) fn apply_request(
        self: &Arc<Self>,
        order: AdminRequest,
        key: &[u8],
        row: &Bytes,
        actions: &mut DeferredActions,
    ) {
        let (holder, phase) = {
            let mut inner = self.lock();
            let is_it = match inner.phase {
                Phase::Waiting { since } | Phase::Held { since, .. } => since == order.since,
                // The create revision is not known here yet, but the requester has seen it.
                Phase::Entering => order.since > inner.left,
                // The key may still exist for a later resume, but it has no holder now.
                Phase::Gone if self.is_nobodys() => {
                    if matches!(order.action, AdminAction::ForceRelease) {
                        let keys: Arc<[Bytes]> = Arc::new([Bytes::copy_from_slice(key)]);
                        let bound = vec![Bound::of_key(row.clone())];
                        let plan = ReleasePlan { bound, ..no_more(&keys, order.since) };
                        let (entry, reply) = (Arc::clone(self), ReplyTo::Nobody);
                        actions.0.push(Action::Release { entry, plan, reply });
                    }
                    return;
                }
                Phase::Gone => false,
            };
            let is_meant = is_it && inner.keys.iter().any(|own| own == key);
            if !is_meant {
                // The addressed entry has ended, or the request addressed an earlier entry with the
                // same key.
                let (bound, lease) = (vec![Bound::of_key(row.clone())], self.session.lease);
                actions.0.push(Action::DeleteBound { bound, lease });
                return;
            }
            // The requester has seen the entry in the queue, possibly as the holder, before this
            // node knows its position.
            if inner.phase == Phase::Entering && !matches!(order.action, AdminAction::ForceRelease)
            {
                let (key, row) = (Bytes::copy_from_slice(key), row.clone());
                inner.requests.push(PendingRequest { order, key, row });
                return;
            }
            // The row of the request is deleted together with the hold.
            if !inner.bound.iter().any(|bound| bound.key == *row) {
                inner.bound.push(Bound::of_key(row.clone()));
            }
            (inner.holder.clone(), inner.phase)
        };
        let (why, nobody) = (order.request, ReplyTo::Nobody);
        match (order.action, holder, phase) {
            (AdminAction::RequestRelease, Some(waiter), _) => waiter.ask(why, actions),
            (AdminAction::RequestRelease, None, _) => {}
            (AdminAction::ForceRelease, Some(waiter), _) => {
                let loss = LostReason::ForceReleased { by: why.by, reason: why.reason };
                self.release(&waiter, loss, nobody, actions);
            }
            (AdminAction::Transfer(successor), Some(waiter), _) => {
                self.transfer(&waiter, successor, nobody, actions);
            }
            (AdminAction::ForceRelease, None, Phase::Waiting { .. } | Phase::Entering) => {
                let mut inner = self.lock();
                inner.fail(&LockError::Evicted, actions);
                self.advance(&mut inner, nobody, actions);
            }
            // The addressed waiter has already released the lock. A hold with an attached request
            // is not handed off.
            (AdminAction::ForceRelease, None, _) => {}
            (AdminAction::Transfer(successor), None, Phase::Held { .. }) => {
                self.lock().successor = Some(successor)
            }
            (AdminAction::Transfer(_), None, _) => {}
        }
    }

    /// Runs the admin requests that arrived before the position of the entry was known.
    pub(crate) fn apply_pending_requests(self: &Arc<Self>, actions: &mut DeferredActions) {
        let requests = {
            let mut inner = self.lock();
            match inner.phase {
                Phase::Entering => Vec::new(),
                _ => std::mem::take(&mut inner.requests),
            }
        };
        for PendingRequest { order, key, row } in requests {
            self.apply_request(order, &key, &row, actions);
        }
    }

    /// Ends a hold by a handoff inside the node, if nothing else is required.
    pub(crate) fn pass_on(&self, waiter: &Arc<Waiter>, actions: &mut DeferredActions) -> bool {
        let mut inner = self.lock();
        let Phase::Held { since, granted } = inner.phase else { return false };
        let is_quiet = inner.open_txns == 0 || mutant!(B24);
        let is_due = inner.is_held_by(waiter) && is_quiet && !inner.waiters.is_empty();
        let is_plain = waiter.cap.is_none() && self.session.ended().is_none();
        if !is_due || !is_plain || !self.may_pass(&mut inner) {
            return false;
        }
        waiter.lose(LostReason::Released, actions);
        inner.handoff += 1;
        inner.grant_next(since, granted, actions)
    }

    /// Reports whether the session of the entry was detached. The keys then stay, so that the next
    /// run of the program can resume the hold.
    fn is_left(&self) -> bool {
        self.session.ended() == Some(SessionEndReason::Detached)
    }

    /// Reports whether no task has the hold, although its key may live on with a resumed lease.
    /// This is the case if the session was detached, or was lost without a lock delay.
    fn is_nobodys(&self) -> bool {
        let is_lost = self.session.ended() == Some(SessionEndReason::NotRenewed);
        self.is_left() || (is_lost && self.session.delay.is_zero())
    }

    /// Reports whether the session was lost. From then on the keys belong to the lease alone, which
    /// keeps the lock for the lock delay, even if local tasks have not been notified yet.
    fn is_left_to_its_lease(&self) -> bool {
        self.session.ended() == Some(SessionEndReason::NotRenewed) && !mutant!(B32)
    }

    pub(crate) fn is_held_by(&self, waiter: &Arc<Waiter>) -> bool {
        self.lock().is_held_by(waiter)
    }

    /// Registers a transaction under the hold of this waiter. The transaction attaches `binds` to
    /// the hold. Returns `false` if the hold has ended.
    ///
    /// # Errors
    /// Fails if more keys would be attached than [`BOUND_MAX`].
    pub(crate) fn begin_txn(&self, waiter: &Arc<Waiter>, binds: Load) -> Result<bool, Rejection> {
        let mut inner = self.lock();
        let is_holder = inner.is_held_by(waiter);
        if is_holder {
            let binding = inner.binding.and(binds);
            if binds.keys > 0 {
                binding.and(Load::of(&inner.bound)).check()?;
            }
            inner.binding = binding;
            inner.open_txns += 1;
        }
        Ok(is_holder)
    }

    /// Handles the end of a transaction under the hold. The outcome may be unknown forever. `bound`
    /// are the keys that the transaction has attached.
    pub(crate) fn end_txn(
        self: &Arc<Self>,
        binds: Load,
        is_known: bool,
        mut bound: Vec<Bound>,
        actions: &mut DeferredActions,
    ) {
        let mut inner = self.lock();
        inner.open_txns -= 1;
        inner.binding = inner.binding.without(binds);
        inner.no_handoff |= !is_known;
        let is_held = matches!(inner.phase, Phase::Held { .. });
        if is_held {
            // A key that is known to be attached to this hold stays known, whatever the outcome of
            // a later transaction.
            for one in &mut bound {
                one.is_sure |= inner.bound.iter().any(|b| b.is_sure && b.key == one.key);
            }
            let keys: Vec<&Bytes> = bound.iter().map(|bound| &bound.key).collect();
            inner.bound.retain(|before| !keys.contains(&&before.key));
            inner.bound.extend(bound);
        } else if !bound.is_empty() && !self.is_left_to_its_lease() {
            // The hold to which these keys were attached has ended, so delete them.
            actions.0.push(Action::DeleteBound { bound, lease: self.session.lease });
        }
        if is_held && inner.holder.is_none() && inner.open_txns == 0 {
            let reply = inner.releasing.take().unwrap_or(ReplyTo::Nobody);
            self.advance(&mut inner, reply, actions);
        }
    }

    /// Prevents further handoffs of the hold, because a transaction whose end is not known here
    /// uses its condition. When the hold is released, its key is deleted. Returns `false` if the
    /// hold has ended.
    pub(crate) fn prevent_handoff(&self, waiter: &Arc<Waiter>) -> bool {
        let mut inner = self.lock();
        let is_holder = inner.is_held_by(waiter);
        inner.no_handoff |= is_holder;
        is_holder
    }

    /// Returns the operations that delete the keys attached to the current hold. Each key is
    /// deleted only if it is still attached.
    pub(crate) fn unbinding(&self) -> Vec<Op> {
        unbinding(self.session.lease, &self.lock().bound)
    }

    /// Advances an entry without a holder: hands it off, releases it or re-enqueues it.
    pub(crate) fn advance(
        self: &Arc<Self>,
        inner: &mut EntryInner,
        reply: ReplyTo<Reply>,
        actions: &mut DeferredActions,
    ) {
        if inner.holder.is_some() {
            return;
        }
        match inner.phase {
            // When the outcome of the enqueue arrives, this method is called again.
            Phase::Entering | Phase::Gone => {}
            Phase::Waiting { since } => {
                if inner.waiters.is_empty() && !mutant!(B26) {
                    self.leave(inner, since, reply, actions);
                }
            }
            // Only the releasing task waits for open transactions.
            Phase::Held { .. } if inner.open_txns > 0 && !mutant!(B24) => {
                inner.releasing.get_or_insert(reply);
            }
            Phase::Held { since, granted } => {
                if inner.waiters.is_empty() {
                    self.leave(inner, since, reply, actions);
                } else if self.may_pass(inner) {
                    inner.handoff += 1;
                    inner.grant_next(since, granted, actions);
                    actions.0.push(Action::Reply(reply));
                } else {
                    // One log entry deletes the old key and creates the new key. Afterwards the
                    // releasing task is notified.
                    let (entry, plan) = (Arc::clone(self), Some(inner.part(since)));
                    actions.0.push(Action::Requeue { entry, plan });
                    inner.releasing = Some(reply);
                    inner.reset_for_requeue();
                }
            }
        }
    }

    pub(crate) fn leave(
        self: &Arc<Self>,
        inner: &mut EntryInner,
        since: Revision,
        reply: ReplyTo<Reply>,
        actions: &mut DeferredActions,
    ) {
        inner.phase = Phase::Gone;
        let (entry, plan) = (Arc::clone(self), inner.part(since));
        actions.0.push(Action::Release { entry, plan, reply });
    }

    fn may_pass(&self, inner: &mut EntryInner) -> bool {
        if inner.no_handoff || !inner.bound.is_empty() || inner.successor.is_some() {
            return false;
        }
        if !self.is_contended.load(Ordering::Relaxed) {
            inner.passes = 0;
            return true;
        }
        inner.passes += 1;
        inner.passes <= PASSES_MAX || mutant!(B25)
    }
}

/// Returns the operations that delete keys attached to a hold. A key with another lease belongs to
/// another owner and stays.
pub(crate) fn unbinding(lease: LeaseId, bound: &[Bound]) -> Vec<Op> {
    let unbind = |Bound { key, value, is_sure }: &Bound| {
        let mut compares = vec![Compare::lease(key.clone()).eq(lease.get())];
        if !is_sure {
            compares.push(Compare::value(key.clone()).eq(value.clone()));
        }
        let success = vec![Op::delete(key.clone())];
        Op::Txn(Txn { compares, success, failure: Vec::new() })
    };
    bound.iter().map(unbind).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;
    use crate::lock_format::ReleaseRequest;
    use crate::model::Moment;

    /// Returns an entry shared by the tasks of a session that waits since revision 2, and a waiter
    /// for each of `TASKS` tasks.
    fn shared_by<const TASKS: usize>() -> (Arc<QueueEntry>, [Arc<Waiter>; TASKS]) {
        let key = Bytes::from_static(b"lock/5");
        let (lease, until) = (LeaseId::new(5).unwrap(), Moment::since_boot(Duration::from_secs(9)));
        let session = Arc::new(SharedSession::believed_until(lease, until));
        let prefixes: Box<[Bytes]> = [Bytes::from_static(b"lock/")].into();
        let counts = WaiterCounts::from_iter([]);
        let entry = QueueEntry::new(1, prefixes, [key].into(), session, Bytes::new(), true, counts);
        let waiters = std::array::from_fn(|_| entry.lock().add_waiter(false, None, None, false));
        entry.lock().phase = Phase::Waiting { since: Revision(2) };
        (Arc::new(entry), waiters)
    }

    fn is_granted(entry: &QueueEntry, waiter: &Arc<Waiter>) -> bool {
        matches!(waiter.stage(None), WaiterStage::Granted(_))
            && waiter.loss().is_none()
            && entry.is_held_by(waiter)
    }

    #[test]
    fn timed_out_waiter_keeps_a_lock_granted_just_before() {
        let (entry, [first, second, third]) = shared_by();
        let mut actions = DeferredActions::default();
        assert!(entry.lock().grant_next(Revision(2), Revision(2), &mut actions));
        // The timer sees that the second task waits...
        assert!(matches!(second.stage(None), WaiterStage::Requested));
        // ...then the holder hands off on another thread, and afterwards the timer fails the
        // waiter.
        assert!(entry.pass_on(&first, &mut actions));
        entry.wait_no_more(&second, LockError::TimedOut { before: 1 }, &mut actions);
        assert!(is_granted(&entry, &second) && !is_granted(&entry, &third));
        entry.wait_no_more(&third, LockError::TimedOut { before: 1 }, &mut actions);
        assert!(matches!(third.stage(None), WaiterStage::Failed(LockError::TimedOut { .. })));
        assert!(is_granted(&entry, &second));
    }

    /// Two threads: one polls while the other settles the waiter, with a slightly different delay
    /// each time.
    #[test]
    fn waiter_is_woken_when_its_poll_races_with_its_grant() {
        const ROUNDS: usize = 20_000;
        let waiters: Vec<Arc<Waiter>> =
            (0..ROUNDS).map(|_| shared_by::<1>().1[0].clone()).collect();
        let [asked, done] = [const { AtomicUsize::new(0) }; 2];
        let reaches = |counter: &AtomicUsize, round: usize| {
            for spins in 0u64.. {
                if counter.load(Ordering::Acquire) > round {
                    return;
                }
                std::hint::spin_loop();
                if spins % 1_000 == 999 {
                    std::thread::yield_now();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (round, waiter) in waiters.iter().enumerate() {
                    reaches(&asked, round);
                    (0..round % 53).for_each(|_| std::hint::spin_loop());
                    let mut actions = DeferredActions::default();
                    waiter.advance(WaiterStage::Failed(LockError::Unavailable), &mut actions);
                    for action in actions.0 {
                        if let Action::Wake(waker) = action {
                            waker.wake();
                        }
                    }
                    done.store(round + 1, Ordering::Release);
                }
            });
            for (round, waiter) in waiters.iter().enumerate() {
                let woken = Arc::new(Woken::default());
                let waker = Waker::from(Arc::clone(&woken));
                asked.store(round + 1, Ordering::Release);
                (0..round % 47).for_each(|_| std::hint::spin_loop());
                let waits = matches!(
                    waiter.stage(Some(&waker)),
                    WaiterStage::Requested | WaiterStage::Waiting(_)
                );
                reaches(&done, round);
                let is_woken = woken.0.load(Ordering::Acquire);
                assert_eq!(is_woken, waits, "round {round}: it waits, or was answered");
            }
        });
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn action_received_before_the_entry_position_is_applied_later() {
        let (entry, [waiter]) = shared_by();
        entry.lock().phase = Phase::Entering;
        let (key, row) = (Bytes::from_static(b"lock/5"), Bytes::from_static(b"lock/5/order"));
        let request = ReleaseRequest { by: "ops".to_owned(), reason: "it is due".to_owned() };
        let (action, since, mut actions) =
            (AdminAction::RequestRelease, Revision(2), DeferredActions::default());
        let order = AdminRequest { action, since, request: request.clone() };
        entry.apply_request(order, &key, &row, &mut actions);
        entry.apply_pending_requests(&mut actions);
        assert_eq!(waiter.request(), None);
        assert!(entry.lock().grant_next(since, since, &mut actions));
        entry.apply_pending_requests(&mut actions);
        assert_eq!(waiter.request(), Some(request));
        assert_eq!(entry.lock().bound.len(), 1, "the order goes with the hold that it is about");
    }
}
