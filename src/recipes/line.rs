//! The lock table: all lock queues that contain requests of this node.
//!
//! A queue is read from the replica once, when the first local entry in it is confirmed. Afterwards
//! every change that the replica applies updates the queue, so that finding its head takes
//! logarithmic time. The driver's thread advances an entry when it handles the outcome of its
//! enqueue, applied changes, and ticks. Any thread may hand a lock off inside the node or cancel a
//! request at any time.
//!
//! The lock order is: the table, an entry, a waiter. Proposals and notifications are collected as
//! [`Acts`] and run when none of these locks is held.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;

use crate::machine::Change;
use crate::model::{
    Command, Compare, KeyRange, KeyValue, LeaseId, Moment, Op, Put, PutLease, PutValue, Rejection,
    Reply, Revision, Txn, TxnReply, TxnResult,
};
use crate::node::{
    CallError, CallResult, Follower, ReplyTo, SessionEndReason, Shared, SharedSession, StopReason,
};
use crate::watch::waking;

use super::book::{Book, end_place, no_more};
use super::error::{LockError, LostReason};
use super::head_count::Part;
use super::order::ReleaseRequest;
use super::place::{Act, Acts, Bound, Load, Parting, Phase, Place, Turn, unbinding};
use super::rule::{LockQueue, Rank, Rule};
use super::stance::Stance;
use super::token::Token;
use super::view;

/// Maximum number of other semaphore entries that a transfer of permits may depend on. The transfer
/// is applied only if none of these entries has changed.
const PASSED_MAX: usize = 64;

/// A lock request, as passed to the lock table.
pub(crate) struct Ask<'a> {
    /// Names of the locks without a trailing slash; not empty, without duplicates.
    pub(crate) names: &'a [Bytes],
    pub(crate) session: &'a Arc<SharedSession>,
    /// Creates the row's value. Called only if the request needs a new row.
    pub(crate) value: &'a dyn Fn() -> Bytes,
    /// Whether the task may share an entry with other tasks of its session. This is the case for a
    /// mutex without options.
    pub(crate) is_shared: bool,
    pub(crate) only_try: bool,
    pub(crate) deadline: Option<Moment>,
    /// Maximum hold time.
    pub(crate) cap: Option<Duration>,
    /// Whether the request belongs to an owner, which looks for deadlocks.
    pub(crate) is_owned: bool,
}

/// All lock queues that tasks of this node are in.
pub(crate) struct Lines {
    shared: Weak<Shared>,
    book: Mutex<Book>,
}

impl Lines {
    /// Returns the lock table of a node. The first call creates the table.
    pub(crate) fn of(shared: &Arc<Shared>) -> Arc<Lines> {
        let follower: Arc<dyn Follower> = Arc::clone(shared.follower.get_or_init(|| {
            Arc::new(Lines { shared: Arc::downgrade(shared), book: Mutex::default() })
        }));
        let any: Arc<dyn Any + Send + Sync> = follower;
        any.downcast().expect("the lock table is the only follower of a node's replica")
    }

    pub(super) fn upgrade(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that is unique on this node.
    pub(crate) fn number(&self) -> u64 {
        self.lock().number()
    }

    /// Enqueues a request.
    ///
    /// # Errors
    /// Returns errors that are known immediately.
    pub(crate) fn enter(
        self: &Arc<Self>,
        ask: &Ask<'_>,
    ) -> Result<(Arc<Place>, Arc<Turn>), LockError> {
        let Some(shared) = self.shared.upgrade() else {
            return Err(LockError::NodeStopped(StopReason::Shutdown));
        };
        if let Some(reason) = shared.stop_reason() {
            return Err(LockError::NodeStopped(reason));
        }
        if let Some(end) = ask.session.end(shared.now()) {
            return Err(LockError::SessionEnded(end));
        }
        let max = shared.settings.lock_waiters_max;
        let (place, turn) = {
            let mut book = self.lock();
            if let Some(found) = book.share(&shared, ask, max)? {
                return Ok(found);
            }
            let place = book.new_place(&shared, ask, max)?;
            let deadline = ask.deadline.map(|deadline| (deadline, book.number()));
            let turn = place.lock().queue(ask.only_try, deadline, ask.cap, ask.is_owned);
            book.keep_timer(deadline, &place, &turn);
            (place, turn)
        };
        let keys = Arc::clone(&place.lock().keys);
        let command = Command::Txn(entering(&place, &keys, None));
        let (lines, entering) = (Arc::clone(self), Arc::clone(&place));
        let known = Arc::clone(&keys);
        let reply =
            ReplyTo::Call(Box::new(move |outcome| lines.entered(&entering, &known, outcome)));
        if let Err(error) = shared.insist_admitted(command, reply) {
            let mut acts = Acts::default();
            self.lock().not_entered(&place, &keys, &LockError::Store(error.into()), &mut acts);
            self.perform(acts);
        }
        Ok((place, turn))
    }

    /// Cancels a waiter.
    pub(crate) fn withdraw(self: &Arc<Self>, place: &Arc<Place>, turn: &Arc<Turn>, why: LockError) {
        let mut acts = Acts::default();
        place.withdraw(turn, why, &mut acts);
        self.perform(acts);
        self.forget_deadline(turn);
        self.forget_cap(turn);
    }

    /// Lets the session check the clock, so that it notices if it was lost.
    fn look_at_the_clock(&self, place: &Place) {
        if let Some(shared) = self.upgrade() {
            place.session.end(shared.now());
        }
    }

    /// Releases a hold. Returns `false` if it has already ended. `reply` is sent when the lock is
    /// free.
    pub(crate) fn release(
        self: &Arc<Self>,
        place: &Arc<Place>,
        turn: &Arc<Turn>,
        why: LostReason,
        reply: ReplyTo<Reply>,
    ) -> bool {
        self.look_at_the_clock(place);
        let mut acts = Acts::default();
        let was_held = place.release(turn, why, reply, &mut acts);
        self.perform(acts);
        self.forget_cap(turn);
        was_held
    }

    /// Delivers a release request to the local holder.
    pub(crate) fn ask(self: &Arc<Self>, turn: &Arc<Turn>, request: ReleaseRequest) {
        let mut acts = Acts::default();
        turn.ask(request, &mut acts);
        self.perform(acts);
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
        found.is_some_and(|(place, turn)| self.release(&place, &turn, LostReason::Released, reply))
    }

    /// Transfers a hold to the entry at this queue position, or releases the lock if that entry is
    /// not waiting any more. Returns `false` if the hold has already ended.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        place: &Arc<Place>,
        turn: &Arc<Turn>,
        successor: Rank,
        reply: ReplyTo<Reply>,
    ) -> bool {
        self.look_at_the_clock(place);
        let mut acts = Acts::default();
        let was_held = place.transfer(turn, successor, reply, &mut acts);
        self.perform(acts);
        self.forget_cap(turn);
        was_held
    }

    /// Hands a hold off to the next waiter of this process if nothing else is required. Returns
    /// `false` otherwise.
    pub(crate) fn pass_on(self: &Arc<Self>, place: &Place, turn: &Arc<Turn>) -> bool {
        let mut acts = Acts::default();
        let has_passed = place.pass_on(turn, &mut acts);
        self.perform(acts);
        has_passed
    }

    /// Handles the end of a transaction under a hold. The outcome of the transaction may be unknown
    /// forever.
    pub(crate) fn end_txn(
        self: &Arc<Self>,
        place: &Arc<Place>,
        binds: Load,
        is_known: bool,
        bound: Vec<Bound>,
    ) {
        let mut acts = Acts::default();
        place.end_txn(binds, is_known, bound, &mut acts);
        self.perform(acts);
    }

    /// Reports whether a local entry was given up although its key still exists.
    pub(super) fn is_given_up(&self, (since, key): &Rank) -> bool {
        let book = self.lock();
        book.local(key).is_some_and(|place| place.lock().is_given_up(*since))
    }

    /// Reports whether a local task holds the lock but has not received its guard yet.
    pub(super) fn is_undelivered(&self, (since, key): &Rank) -> bool {
        let book = self.lock();
        book.local(key).is_some_and(|place| {
            let inner = place.lock();
            let is_it = matches!(inner.phase, Phase::Held { since: held, .. } if held == *since);
            is_it && inner.holder.as_ref().is_some_and(|turn| !turn.is_delivered())
        })
    }

    /// Returns the number of requests ahead of a waiter: in the queue according to the replica, and
    /// inside this node.
    pub(crate) fn before(&self, place: &Arc<Place>, turn: &Turn) -> Option<usize> {
        self.lock().before(place, turn)
    }

    /// Cancels the deadline timer of a waiter.
    pub(crate) fn forget_deadline(&self, turn: &Turn) {
        if let Some(deadline) = turn.deadline {
            self.lock().forget_timer(deadline);
        }
    }

    /// Cancels the hold-time timer of a waiter.
    fn forget_cap(&self, turn: &Turn) {
        if let Some(until) = turn.set_until(None) {
            self.lock().forget_timer(until);
        }
    }

    /// Runs deferred actions. No lock may be held.
    pub(super) fn perform(self: &Arc<Self>, acts: Acts) {
        self.perform_since(None, acts);
    }

    /// Like [`Lines::perform`], for changes that this node learnt of at the time `known` (default:
    /// now).
    fn perform_since(self: &Arc<Self>, known: Option<Moment>, acts: Acts) {
        for act in acts.0 {
            match act {
                Act::Handed(turn) => {
                    if let Some(at) = known.or_else(|| Some(self.shared.upgrade()?.now())) {
                        turn.hand(at);
                    }
                }
                Act::Wake(waker) => _ = waking(|| waker.wake()),
                Act::Passed(reply) => reply.send(Ok(passed())),
                Act::Part { place, parting, reply } => self.part(&place, &parting, reply),
                Act::EnterAgain { place, parting } => self.enter_again(&place, parting.as_ref()),
                Act::Notify(turn) => _ = waking(|| turn.changed.notify_waiters()),
                Act::Tidy { bound, lease } => {
                    if let Some(shared) = self.shared.upgrade() {
                        let success = unbinding(lease, &bound);
                        let txn = Txn { success, ..Txn::default() };
                        shared.insist(Command::Txn(txn), ReplyTo::Nobody);
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
        place: &Arc<Place>,
        keys: &Arc<[Bytes]>,
        why: &LockError,
    ) {
        let (lease, value) = (place.session.lease, place.lock().value.clone());
        let mine = |key: &Bytes| Txn {
            compares: vec![
                Compare::lease(key.clone()).eq(lease.get()),
                Compare::value(key.clone()).eq(value.clone()),
            ],
            success: vec![Op::delete(key.clone())],
            failure: Vec::new(),
        };
        let success = keys.iter().map(|key| Op::Txn(mine(key))).collect();
        let txn = Txn { success, ..Txn::default() };
        let (lines, place, keys, why) =
            (Arc::clone(self), Arc::clone(place), Arc::clone(keys), why.clone());
        let reply = ReplyTo::Call(Box::new(move |_| {
            let mut acts = Acts::default();
            {
                let (mut book, shared) = (lines.lock(), lines.shared.upgrade());
                let is_handed =
                    shared.is_some_and(|shared| book.find_handed(&shared, &place, &mut acts));
                if !is_handed {
                    book.not_entered(&place, &keys, &why, &mut acts);
                }
            }
            lines.perform(acts);
        }));
        shared.insist(Command::Txn(txn), reply);
    }

    /// Runs a release plan.
    fn part(self: &Arc<Self>, place: &Arc<Place>, parting: &Parting, reply: ReplyTo<Reply>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let lease = place.session.lease;
        self.keep_spent(parting, lease);
        let command = Command::Txn(parting.to_txn(&shared, lease));
        if parting.successor.is_none() {
            return shared.insist(command, reply);
        }
        // A transfer writes, so it may be rejected for lack of space or because of an alarm. If the
        // transfer is rejected, delete the keys instead: deletions are not rejected for these
        // reasons.
        let (leaving, lines) = (parting.leaving(lease), Arc::clone(self));
        let is_told = parting.is_told;
        let tried = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            match (outcome, lines.shared.upgrade()) {
                (Err(error), Some(shared)) if !matches!(error, CallError::Stopped { .. }) => {
                    let left = ReplyTo::Call(Box::new(move |left: CallResult<Reply>| {
                        reply.send(if is_told { left.and(Err(error)) } else { left });
                    }));
                    shared.insist(Command::Txn(leaving), left);
                }
                (outcome, _) => reply.send(outcome),
            }
        }));
        shared.insist(command, tried);
    }

    /// Records, before the proposal, keys that are transferred away and may be transferred back.
    fn keep_spent(&self, parting: &Parting, lease: LeaseId) {
        if parting.is_spent && parting.successor.is_some() {
            self.lock().keep_spent(lease, &parting.keys, parting.since);
        }
    }

    /// Re-enqueues an entry whose hold has ended and that still has waiters.
    fn enter_again(self: &Arc<Self>, place: &Arc<Place>, parting: Option<&Parting>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let keys = self.lock().rename(&shared, place);
        let lease = place.session.lease;
        if let Some(parting) = parting {
            self.keep_spent(parting, lease);
        }
        let before = parting.map(|parting| parting.to_txn(&shared, lease));
        let leaving = parting.map(|parting| parting.leaving(lease));
        let command = Command::Txn(entering(place, &keys, before));
        let (lines, place) = (Arc::clone(self), Arc::clone(place));
        let old = parting.map(|parting| (Arc::clone(&parting.keys), parting.since));
        let reply = ReplyTo::Call(Box::new(move |outcome: CallResult<Reply>| {
            let reply = place.lock().take_releasing().unwrap_or(ReplyTo::Nobody);
            match (&outcome, leaving, lines.shared.upgrade()) {
                // The new key was rejected, for example for lack of space. Delete the old key in a
                // separate proposal.
                (Err(error), Some(leaving), Some(shared))
                    if !matches!(error, CallError::Stopped { .. }) =>
                {
                    shared.insist(Command::Txn(leaving), reply);
                }
                (Ok(Reply::Txn(txn)), ..) => reply.send(Ok(parted(txn))),
                _ => reply.send(outcome.clone()),
            }
            lines.entered(&place, &keys, outcome);
            if let Some((old, since)) = old {
                lines.lock().forget_absent(&place, &old, since);
            }
        }));
        shared.insist(command, reply);
    }

    /// Handles the outcome of an enqueue, on the driver's thread, where it is applied.
    fn entered(
        self: &Arc<Self>,
        place: &Arc<Place>,
        keys: &Arc<[Bytes]>,
        outcome: CallResult<Reply>,
    ) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut acts = Acts::default();
        let error = match outcome {
            Ok(Reply::Txn(reply)) if reply.succeeded => {
                self.lock().has_entered(&shared, place, keys, reply.revision, &mut acts);
                return self.perform(acts);
            }
            // The enqueue was applied while this node was disconnected, and its reply was lost. The
            // current rows show the outcome.
            Ok(Reply::AppliedBefore { revision }) => {
                let (row, _) = shared.reader.get(&keys[0]);
                let is_mine = row.is_some_and(|row| {
                    row.create_revision == revision && row.lease == Some(place.session.lease)
                });
                if is_mine {
                    self.lock().has_entered(&shared, place, keys, revision, &mut acts);
                    return self.perform(acts);
                }
                if self.lock().find_handed(&shared, place, &mut acts) {
                    return self.perform(acts);
                }
                return self.undo(&shared, place, keys, &LockError::Evicted);
            }
            // Another request had already created a key with this name: try another name.
            Ok(_) => {
                let (place, parting) = (Arc::clone(place), Some(no_more(keys, Revision(0))));
                acts.0.push(Act::EnterAgain { place, parting });
                return self.perform(acts);
            }
            Err(CallError::Rejected(Rejection::LeaseNotFound(_))) => {
                LockError::SessionEnded(SessionEndReason::LeaseEnded)
            }
            Err(CallError::Stopped { reason, .. }) => LockError::NodeStopped(reason),
            Err(error) => {
                if matches!(error, CallError::Deadline { maybe_applied: true }) {
                    // Delete the keys that were created. Their names are not reused before the
                    // deletion is confirmed.
                    return self.undo(&shared, place, keys, &LockError::Store(error.into()));
                }
                LockError::Store(error.into())
            }
        };
        self.lock().not_entered(place, keys, &error, &mut acts);
        self.perform(acts);
    }
}

impl Follower for Lines {
    fn applied(self: Arc<Self>, changes: &[Change], _visible: Revision, came: Moment) {
        let mut acts = Acts::default();
        {
            let mut book = self.lock();
            if book.is_empty() {
                return;
            }
            let Some(shared) = self.shared.upgrade() else { return };
            let (mut touched, mut orders) = (BTreeSet::new(), Vec::new());
            for change in changes {
                book.follow(change, &mut touched, &mut orders, &mut acts);
            }
            for prefix in touched {
                book.grant_waiting(&shared, &prefix, &mut acts);
            }
            // The change that grants a lock and the request to release it may be applied in one
            // batch. The requester has already seen the entry as the holder, so deliver the request
            // after the grant.
            for (order, then) in orders {
                book.follow_order(order, then, &mut acts);
            }
        }
        self.perform_since(Some(came), acts);
    }

    fn installed(self: Arc<Self>, _visible: Revision) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut acts = Acts::default();
        self.lock().is_replaced(&shared, &mut acts);
        self.perform(acts);
    }

    fn tick(self: Arc<Self>, now: Moment) {
        let mut acts = Acts::default();
        let held_too_long = {
            let mut book = self.lock();
            book.end_sessions(now, &mut acts);
            book.ring(now, &mut acts)
        };
        self.perform(acts);
        for (place, turn) in held_too_long {
            self.release(&place, &turn, LostReason::HeldTooLong, ReplyTo::Nobody);
        }
        if let Some(shared) = self.shared.upgrade() {
            let count = Arc::clone(self.lock().head_count());
            shared.meters.locks_held.set(count.count(Part::Holds));
            shared.meters.lock_waiters.set(count.count(Part::Waits));
        }
    }

    fn stopped(self: Arc<Self>, reason: &StopReason) {
        let mut acts = Acts::default();
        let places = self.lock().close();
        for place in places {
            let (loss, why) =
                (LostReason::NodeStopped(reason.clone()), LockError::NodeStopped(reason.clone()));
            end_place(&place, loss, &why, &mut acts);
        }
        self.perform(acts);
    }
}

/// Returns the key prefix of a lock's queue.
pub(crate) fn prefix_of(name: &Bytes) -> Bytes {
    [&name[..], b"/"].concat().into()
}

/// Returns the prefix of which a key is a direct child, including the slash.
pub(crate) fn parent(key: &[u8]) -> Option<&[u8]> {
    key.iter().rposition(|byte| *byte == b'/').map(|slash| &key[..=slash])
}

/// Returns the name of the lock to whose queue a key belongs.
pub(crate) fn lock_of(key: &Bytes) -> Bytes {
    let prefix = parent(key).unwrap_or_default();
    key.slice(..prefix.len().saturating_sub(1))
}

/// Reports whether a row below a lock's prefix is an entry of its queue.
pub(crate) fn is_place(row: &KeyValue, prefix: &[u8]) -> bool {
    row.lease.is_some() && parent(&row.key) == Some(prefix)
}

/// Returns the transaction that creates the keys of an entry if none of them exists. `before` is
/// applied in either case.
fn entering(place: &Place, keys: &[Bytes], before: Option<Txn>) -> Txn {
    let value = place.lock().value.clone();
    let put = |key: &Bytes| {
        Op::Put(Put {
            key: key.clone(),
            value: PutValue::Set(value.clone()),
            lease: PutLease::Attach(place.session.lease),
            prev_kv: false,
        })
    };
    Txn {
        compares: keys.iter().map(|key| Compare::missing(key.clone())).collect(),
        success: before.clone().map(Op::Txn).into_iter().chain(keys.iter().map(put)).collect(),
        failure: before.map(Op::Txn).into_iter().collect(),
    }
}

impl Parting {
    /// Returns the transaction of the release plan.
    fn to_txn(&self, shared: &Shared, lease: LeaseId) -> Txn {
        let leaving = self.leaving(lease);
        let ([key], Some((since, successor))) = (&*self.keys, &self.successor) else {
            return leaving;
        };
        let row = shared.reader.get(successor).0.filter(|row| row.create_revision == *since);
        let Some(row) = row else { return leaving };
        let Some(successor_lease) = row.lease.filter(|successor| *successor != lease) else {
            return leaving;
        };
        // A reader's hold cannot be transferred to a writer: other readers may hold at the same
        // time.
        let (Some(held), _) = shared.reader.get(key) else { return leaving };
        let rule = Stance::rule_of(&held.key, &held.value);
        if !rule.covers(&Stance::rule_of(successor, &row.value)) && !mutant!(B65) {
            return leaving;
        }
        let mut compares = still_mine(key, self.since, lease).to_vec();
        let Some(barred) = kept_waiting(shared, &row) else { return leaving };
        // This decision is based on the local replica. A downgrade of the row may be in flight. A
        // downgrade changes neither lease nor create revision, so the transaction must also compare
        // the row's revision.
        if !mutant!(B34) {
            compares.push(Compare::mod_revision(key.clone()).eq(held.mod_revision));
        }
        if !mutant!(B19) {
            compares.extend(still_mine(successor, row.create_revision, successor_lease));
            compares.push(Compare::mod_revision(successor.clone()).eq(row.mod_revision));
        }
        if !mutant!(B66) {
            compares.extend(barred);
        }
        let taken = Put {
            key: key.clone(),
            value: PutValue::Set(row.value),
            lease: PutLease::Attach(successor_lease),
            prev_kv: false,
        };
        let mut success = vec![Op::Put(taken), Op::delete(successor.clone())];
        success.extend(unbinding(lease, &self.bound));
        Txn { compares, success, failure: vec![Op::Txn(leaving)] }
    }

    /// Returns the transaction that deletes each key that still belongs to the entry, and the keys
    /// attached to its hold.
    fn leaving(&self, lease: LeaseId) -> Txn {
        let mut parts: Vec<Txn> = self
            .keys
            .iter()
            .take(if mutant!(B07) { 1 } else { self.keys.len() })
            .map(|key| Txn {
                compares: still_mine(key, self.since, lease).to_vec(),
                success: vec![match mutant!(M26) {
                    false => Op::delete(key.clone()),
                    true => Op::delete(KeyRange::prefix(parent(key).unwrap_or_default().to_vec())),
                }],
                failure: Vec::new(),
            })
            .collect();
        // Delete only keys with the lease of the hold. A key with another lease belongs to another
        // owner.
        parts[0].success.extend(unbinding(lease, &self.bound));
        if parts.len() == 1 {
            return parts.remove(0);
        }
        Txn { success: parts.into_iter().map(Op::Txn).collect(), ..Txn::default() }
    }
}

/// Returns the conditions under which a successor still waits, apart from the holder's own entry. A
/// successor that has meanwhile become a holder by itself must not lose that hold together with its
/// key. Returns `None` if the successor already holds, or if there would be too many conditions.
fn kept_waiting(shared: &Shared, successor: &KeyValue) -> Option<Vec<Compare>> {
    let line = Bytes::copy_from_slice(parent(&successor.key)?);
    let (rows, mut queue) = (view::rows(shared, &line), LockQueue::default());
    for row in &rows {
        let rank = (row.create_revision, row.key.clone());
        queue.insert(rank, Stance::rule_in_line(&row.key, &row.value));
    }
    let rank = (successor.create_revision, successor.key.clone());
    if queue.may_hold(&rank) {
        return None;
    }
    let before = rows.iter().take_while(|row| row.key != successor.key);
    let as_it_is = |row: &KeyValue| Compare::mod_revision(row.key.clone()).eq(row.mod_revision);
    match queue.rule(&rank)? {
        // Only the transferring holder holds the lock, so no further conditions are needed.
        Rule::Alone | Rule::Write | Rule::Upgrade(_) => Some(Vec::new()),
        Rule::Read => {
            let bars = |row: &&KeyValue| Stance::rule_of(&row.key, &row.value) != Rule::Read;
            Some(before.clone().find(bars).map(as_it_is).into_iter().collect())
        }
        Rule::Foreign => None,
        Rule::Permits { limit, .. } => {
            // Permits stay held when the limit is reduced, and a row does not show whether its
            // permits are held. But if the limits that apply to a waiter were never higher than
            // now, the waiter has never held its permits.
            let has_less = |row: &KeyValue| match Stance::rule_of(&row.key, &row.value) {
                Rule::Permits { limit: other, .. } => other < *limit,
                _ => false,
            };
            if successor.version > 1 || before.clone().any(has_less) {
                return None;
            }
            let all: Vec<Compare> = before.map(as_it_is).collect();
            (all.len() <= PASSED_MAX).then_some(all)
        }
    }
}

/// Returns the conditions under which a key still belongs to an entry.
pub(crate) fn still_mine(key: &Bytes, since: Revision, lease: LeaseId) -> [Compare; 2] {
    [Compare::create_revision(key.clone()).eq(since), Compare::lease(key.clone()).eq(lease.get())]
}

/// Extracts the reply of the release that was part of an enqueue.
fn parted(reply: &TxnReply) -> Reply {
    match reply.results.first() {
        Some(TxnResult::Txn(parting)) => Reply::Txn(parting.clone()),
        _ => Reply::Txn(reply.clone()),
    }
}

/// Returns the reply to a release that was completed inside the node.
fn passed() -> Reply {
    Reply::Txn(TxnReply { revision: Revision(0), succeeded: true, results: Vec::new() })
}
