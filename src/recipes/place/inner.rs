//! What changes about a place, under its lock: its keys, where it stands, who has it and who waits for it.

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

/// What changes about a place.
pub(crate) struct Inner {
    /// Its keys, one a line.
    pub(crate) keys: Arc<[Bytes]>,
    /// What their rows say.
    pub(crate) value: Bytes,
    pub(crate) phase: Phase,
    /// Those who wait for it, in order.
    pub(super) turns: BTreeMap<u64, Arc<Turn>>,
    pub(super) next_turn: u64,
    /// Who has it, while it is held.
    pub(crate) holder: Option<Arc<Turn>>,
    /// The revision of the keys that it had before these.
    pub(super) left: Revision,
    /// How often it has passed on since its key was made.
    pub(super) handoff: u64,
    /// How often it has passed on while others in the cluster waited.
    pub(super) passes: u32,
    /// Transactions under the present hold whose outcome is not known.
    pub(super) open_txns: u32,
    /// What they are to bind to it.
    pub(super) binding: Load,
    /// It must not be passed on: something that the last holder did may still come true.
    pub(super) is_spent: bool,
    /// Keys that go with the present hold.
    pub(super) bound: Vec<Bound>,
    /// Who waits for the release, while transactions are open.
    pub(super) releasing: Option<ReplyTo<Reply>>,
    /// The place that the hold is to be handed to.
    pub(super) successor: Option<Rank>,
    /// Whoever waits for the release has named it.
    pub(super) is_told: bool,
    /// What it was ordered before it was known here where it stands.
    pub(super) orders: Vec<Ordered>,
    pub(super) counts: HeadCounts,
}

impl Inner {
    /// One more task wants it.
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

    /// Those who wait, in order.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.turns.values()
    }

    /// Since when its keys stand in their lines, if they do.
    pub(crate) fn since(&self) -> Option<Revision> {
        match self.phase {
            Phase::Waiting { since } | Phase::Held { since, .. } => Some(since),
            Phase::Entering | Phase::Gone => None,
        }
    }

    /// How many wait before a turn.
    pub(crate) fn before(&self, turn: &Turn) -> usize {
        self.turns.range(..turn.number).count()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.turns.len()
    }

    pub(crate) fn is_held_by(&self, turn: &Arc<Turn>) -> bool {
        self.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, turn))
    }

    /// Whether nobody has, or will have, what stands by its key of this revision.
    pub(crate) fn is_given_up(&self, since: Revision) -> bool {
        match self.phase {
            Phase::Entering | Phase::Waiting { .. } => self.turns.is_empty(),
            Phase::Held { since: held, .. } => held == since && self.holder.is_none(),
            Phase::Gone => true,
        }
    }

    /// Hands it to the first who waits; false if nobody does.
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

    /// Nobody who waits will have it.
    pub(crate) fn fail(&mut self, why: &LockError, acts: &mut Acts) {
        for turn in std::mem::take(&mut self.turns).into_values() {
            turn.advance(Stage::Failed(why.clone()), acts);
        }
    }

    /// Its key is another's, or gone: whoever has it has lost it.
    pub(crate) fn lose(&mut self, why: LostReason, acts: &mut Acts) {
        if let Some(holder) = self.holder.take() {
            holder.lose(why, acts);
        }
        self.bound.clear();
        (self.successor, self.is_told) = (None, false);
    }

    /// As [`Inner::lose`], by the doing of others: what was bound to the hold goes too, and whoever waits
    /// for its release hears of it.
    pub(crate) fn lose_all(&mut self, lease: LeaseId, acts: &mut Acts) {
        let bound = std::mem::take(&mut self.bound);
        if !bound.is_empty() {
            acts.0.push(Act::Tidy { bound, lease });
        }
        self.lose(LostReason::KeyDeleted, acts);
        acts.0.extend(self.releasing.take().map(Act::Passed));
    }

    /// By the doing of others it is over, for whoever holds and for all who wait.
    pub(crate) fn end(&mut self, why: &LockError, lease: LeaseId, acts: &mut Acts) {
        self.lose_all(lease, acts);
        self.fail(why, acts);
        self.phase = Phase::Gone;
    }

    /// It will stand in the line anew, with other keys.
    pub(crate) fn begin_anew(&mut self) {
        if let Phase::Waiting { since } | Phase::Held { since, .. } = self.phase {
            self.left = since;
        }
        self.phase = Phase::Entering;
        (self.handoff, self.passes) = (0, 0);
        self.is_spent = false;
    }

    /// What is to be done about its keys, which are its no more.
    pub(super) fn part(&mut self, since: Revision) -> Parting {
        let (bound, successor) = (std::mem::take(&mut self.bound), self.successor.take());
        let (keys, is_told) = (Arc::clone(&self.keys), std::mem::take(&mut self.is_told));
        Parting { keys, since, bound, is_spent: self.is_spent, successor, is_told }
    }

    /// Who waits to hear that the old key has gone.
    pub(crate) fn take_releasing(&mut self) -> Option<ReplyTo<Reply>> {
        self.releasing.take()
    }
}
