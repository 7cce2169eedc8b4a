//! The mutable state of a queue entry: keys, phase, holder and waiters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::error::{LockError, LostReason};
use super::super::head_count::HeadCounts;
use super::super::rule::Rank;
use super::super::token::Token;
use super::{Act, Acts, Bound, Grant, Load, Ordered, Parting, Phase, Stage, Turn};
use crate::model::{LeaseId, Moment, Reply, Revision};
use crate::node::ReplyTo;

/// The mutable state of a queue entry, protected by its lock.
pub(crate) struct EntryInner {
    /// Keys of the entry, one for each queue.
    pub(crate) keys: Arc<[Bytes]>,
    /// Value of the rows with these keys.
    pub(crate) value: Bytes,
    pub(crate) phase: Phase,
    /// Waiters in order of arrival.
    pub(super) turns: BTreeMap<u64, Arc<Turn>>,
    pub(super) next_turn: u64,
    /// The waiter that holds the lock.
    pub(crate) holder: Option<Arc<Turn>>,
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
    pub(super) is_spent: bool,
    /// Keys attached to the current hold.
    pub(super) bound: Vec<Bound>,
    /// Reply for the releasing task, kept while transactions are open.
    pub(super) releasing: Option<ReplyTo<Reply>>,
    /// Queue position of the entry to which the hold will be transferred.
    pub(super) successor: Option<Rank>,
    /// Whether the releasing task has named the successor itself.
    pub(super) is_told: bool,
    /// Admin requests that arrived before the position of the entry was known.
    pub(super) orders: Vec<Ordered>,
    pub(super) counts: HeadCounts,
}

impl EntryInner {
    /// Adds a waiter.
    pub(crate) fn queue(
        &mut self,
        only_try: bool,
        deadline: Option<(Moment, u64)>,
        cap: Option<Duration>,
        is_owned: bool,
    ) -> Arc<Turn> {
        let number = self.next_turn;
        self.next_turn += 1;
        let is_behind = self.holder.is_some() || !self.turns.is_empty();
        let counts = self.counts.clone();
        let turn = Turn::new(number, only_try, deadline, cap, is_owned, is_behind, counts);
        let turn = Arc::new(turn);
        self.turns.insert(number, Arc::clone(&turn));
        turn
    }

    /// Returns the waiters in order.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.turns.values()
    }

    /// Returns the create revision of the entry's keys, if the keys are in their queues.
    pub(crate) fn since(&self) -> Option<Revision> {
        match self.phase {
            Phase::Waiting { since } | Phase::Held { since, .. } => Some(since),
            Phase::Entering | Phase::Gone => None,
        }
    }

    /// Returns the number of waiters ahead of `turn`.
    pub(crate) fn before(&self, turn: &Turn) -> usize {
        self.turns.range(..turn.number).count()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.turns.len()
    }

    pub(crate) fn is_held_by(&self, turn: &Arc<Turn>) -> bool {
        self.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, turn))
    }

    /// Reports whether the key of this revision has no holder and no waiters, and will never have
    /// any.
    pub(crate) fn is_given_up(&self, since: Revision) -> bool {
        match self.phase {
            Phase::Entering | Phase::Waiting { .. } => self.turns.is_empty(),
            Phase::Held { since: held, .. } => held == since && self.holder.is_none(),
            Phase::Gone => true,
        }
    }

    /// Grants the lock to the first waiter. Returns `false` if there are no waiters.
    pub(crate) fn give(&mut self, since: Revision, granted: Revision, acts: &mut Acts) -> bool {
        let Some((_, turn)) = self.turns.pop_first() else { return false };
        self.phase = Phase::Held { since, granted };
        let token = Token { revision: granted, handoff: self.handoff };
        let (keys, value) = (Arc::clone(&self.keys), self.value.clone());
        let grant = Grant { keys, since, token, value };
        if turn.has_waited() {
            acts.0.push(Act::Handed(Arc::clone(&turn)));
        }
        turn.advance(Stage::Holds(grant), acts);
        self.holder = Some(turn);
        true
    }

    /// Fails all waiters.
    pub(crate) fn fail(&mut self, why: &LockError, acts: &mut Acts) {
        for turn in std::mem::take(&mut self.turns).into_values() {
            turn.advance(Stage::Failed(why.clone()), acts);
        }
    }

    /// Records that the key is gone or belongs to another session, and that the hold is lost.
    pub(crate) fn lose(&mut self, why: LostReason, acts: &mut Acts) {
        if let Some(holder) = self.holder.take() {
            holder.lose(why, acts);
        }
        self.bound.clear();
        (self.successor, self.is_told) = (None, false);
    }

    /// Like [`EntryInner::lose`], after a change by another client: also deletes the keys attached to
    /// the hold, and replies to the releasing task.
    pub(crate) fn lose_all(&mut self, lease: LeaseId, acts: &mut Acts) {
        let bound = std::mem::take(&mut self.bound);
        if !bound.is_empty() {
            acts.0.push(Act::Tidy { bound, lease });
        }
        self.lose(LostReason::KeyDeleted, acts);
        acts.0.extend(self.releasing.take().map(Act::Passed));
    }

    /// Ends the entry after a change by another client, for the holder and all waiters.
    pub(crate) fn end(&mut self, why: &LockError, lease: LeaseId, acts: &mut Acts) {
        self.lose_all(lease, acts);
        self.fail(why, acts);
        self.phase = Phase::Gone;
    }

    /// Prepares the entry for being enqueued again with other keys.
    pub(crate) fn begin_again(&mut self) {
        if let Phase::Waiting { since } | Phase::Held { since, .. } = self.phase {
            self.left = since;
        }
        self.phase = Phase::Entering;
        (self.handoff, self.passes) = (0, 0);
        self.is_spent = false;
    }

    /// Returns the release plan for the entry's keys, which no longer belong to the entry.
    pub(super) fn part(&mut self, since: Revision) -> Parting {
        let (bound, successor) = (std::mem::take(&mut self.bound), self.successor.take());
        let (keys, is_told) = (Arc::clone(&self.keys), std::mem::take(&mut self.is_told));
        Parting { keys, since, bound, is_spent: self.is_spent, successor, is_told }
    }

    /// Takes the reply for the task that waits until the old key is deleted.
    pub(crate) fn take_releasing(&mut self) -> Option<ReplyTo<Reply>> {
        self.releasing.take()
    }
}
