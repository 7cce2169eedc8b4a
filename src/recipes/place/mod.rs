//! A place in a line, and the turns of the tasks that share it.
//!
//! A place is a key (for a multi-lock one in each of several lines). A turn is the wish of one task.
//! Tasks of one session that want the same mutex, and have nothing of their own to say, share one
//! place: while it holds, the lock passes from turn to turn inside the process, without a word to the
//! cluster. Everybody else has a place of their own, with one turn.
//!
//! ```text
//!   place   Entering ──▶ Waiting ──▶ Held ──▶ Gone       its key is deleted by whoever makes it Gone,
//!               ▲  └────────┴──────────│───────▲          or, while Entering, when the outcome is known
//!               └──────────────────────┘
//!                 turns are left, but others in the cluster are due:
//!                 the old key goes and a new one comes, in one entry
//!
//!   turn    Asked ──▶ Stands ──▶ Holds ──▶ Ended          Stands: it is known that it must wait
//!             └─────────┴────────────────────▲
//! ```
//!
//! Who holds it is judged here, under the place's own lock; what must then be said to the cluster is
//! an [`Act`], carried out by [`Lines`](super::line::Lines) when no lock is held.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::model::{Compare, LeaseId, Op, Rejection, Reply, Revision, Txn};
use crate::mutant::{self, Mutant};
use crate::node::{ReplyTo, SessionEndReason, SharedSession};

mod inner;
mod turn;

pub(crate) use inner::Inner;
pub(crate) use turn::{Grant, Share, Stage, Turn};

use super::book::no_more;
use super::error::{LockError, LostReason};
use super::head_count::HeadCounts;
use super::order::{Order, What};
use super::rule::{LockKind, Rank};
use super::stance::Stance;

/// How often a lock passes from task to task inside a node while others in the cluster wait for it.
pub(crate) const PASSES_MAX: u32 = 16;

/// How much may go with one hold: it all goes in one entry, and a hold that is handed over says it twice.
const BOUND_MAX: Load = Load { keys: 1_000, bytes: (3 << 19) - (64 << 10) };

/// Where a place stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Its key is proposed, the outcome is not known.
    Entering,
    /// Its key is there; others are before it.
    Waiting {
        /// The create revision of its key.
        since: Revision,
    },
    /// It is its turn.
    Held {
        /// The create revision of its key.
        since: Revision,
        /// The revision that this replica had applied when that was found.
        granted: Revision,
    },
    /// It is over.
    Gone,
}

/// See the module.
pub(crate) struct Place {
    pub(crate) id: u64,
    /// The lines that it stands in.
    pub(crate) prefixes: Box<[Bytes]>,
    /// The session that it lives with.
    pub(crate) session: Arc<SharedSession>,
    /// Whether other tasks of the session may share it.
    pub(crate) is_shared: bool,
    /// What it entered as: its row may have been given another limit since.
    pub(crate) asked: LockKind,
    /// Others in the cluster wait behind it.
    pub(crate) is_contended: AtomicBool,
    inner: Mutex<Inner>,
}

/// A key that goes with a hold.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) key: Bytes,
    /// What was put there.
    pub(crate) value: Bytes,
    /// Whether it surely was.
    pub(crate) is_sure: bool,
}

impl Bound {
    /// A key that is there, whatever it says.
    pub(crate) fn of_key(key: Bytes) -> Self {
        Self { key, value: Bytes::new(), is_sure: true }
    }
}

/// What goes with a hold, counted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Load {
    keys: usize,
    /// How large what deletes them is.
    bytes: usize,
}

impl Load {
    /// What deletes a key is no larger than this, beside the key, which it names twice, and the value.
    const KEY_BYTES: usize = 48;

    pub(crate) fn of<'a>(bound: impl IntoIterator<Item = &'a Bound>) -> Self {
        bound.into_iter().fold(Self::default(), |load, Bound { key, value, is_sure }| {
            // Three times the key, if the value is compared too.
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

/// An order, to the place of this key, in the row of that one.
struct Ordered {
    order: Order,
    key: Bytes,
    row: Bytes,
}

/// What becomes of the keys of a hold that is over, and of what is bound to it.
pub(crate) struct Parting {
    pub(crate) keys: Arc<[Bytes]>,
    pub(crate) since: Revision,
    pub(crate) bound: Vec<Bound>,
    /// Something done under the hold may still come true.
    pub(crate) is_spent: bool,
    /// Whose the hold becomes, if that one still waits; otherwise the keys are deleted.
    pub(crate) successor: Option<Rank>,
    /// Whoever waits for the reply has named the successor, and is told if it cannot be.
    pub(crate) is_told: bool,
}

/// What is to be said to the cluster, or to a task, when no lock is held.
pub(crate) enum Act {
    /// Part with the place's keys, if they are still those.
    Part { place: Arc<Place>, parting: Parting, reply: ReplyTo<Reply> },
    /// Put new keys there, and part with those of before in the same entry.
    EnterAnew { place: Arc<Place>, parting: Option<Parting> },
    /// Delete what was bound to a hold that is over, and orders to it.
    Tidy { bound: Vec<Bound>, lease: LeaseId },
    /// It became the holder after others: note when.
    Handed(Arc<Turn>),
    /// Tell whoever waits for news of a hold.
    Notify(Arc<Turn>),
    /// There is nothing to be said: the release has come true here.
    Passed(ReplyTo<Reply>),
    /// Wake a task.
    Wake(Waker),
}

/// What is to be done when no lock is held.
#[derive(Default)]
#[must_use = "they are to be carried out"]
pub(crate) struct Acts(pub(crate) Vec<Act>);

impl Place {
    pub(crate) fn new(
        id: u64,
        prefixes: Box<[Bytes]>,
        keys: Arc<[Bytes]>,
        session: Arc<SharedSession>,
        value: Bytes,
        is_shared: bool,
        counts: HeadCounts,
    ) -> Self {
        let asked = Stance::rule_of(&keys[0], &value).kind();
        let inner = Inner {
            keys,
            value,
            phase: Phase::Entering,
            turns: BTreeMap::new(),
            next_turn: 0,
            holder: None,
            handoff: 0,
            left: Revision(0),
            passes: 0,
            open_txns: 0,
            binding: Load::default(),
            is_spent: false,
            bound: Vec::new(),
            releasing: None,
            successor: None,
            is_told: false,
            orders: Vec::new(),
            counts,
        };
        let (is_contended, inner) = (AtomicBool::new(false), Mutex::new(inner));
        Self { id, prefixes, session, is_shared, asked, is_contended, inner }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn has waited for too long, or in vain, and waits no more. If it holds by now, which no lock of
    /// the caller's prevents, it goes on: its task may have looked already.
    pub(crate) fn wait_no_more(self: &Arc<Self>, turn: &Turn, why: LockError, acts: &mut Acts) {
        let mut inner = self.lock();
        if inner.turns.remove(&turn.number).is_some() {
            turn.advance(Stage::Failed(why), acts);
            self.rest(&mut inner, ReplyTo::Nobody, acts);
        }
    }

    /// A task does not want its turn any more, and will never look at it again.
    pub(crate) fn withdraw(self: &Arc<Self>, turn: &Arc<Turn>, why: LockError, acts: &mut Acts) {
        let mut inner = self.lock();
        if inner.turns.remove(&turn.number).is_some() {
            turn.advance(Stage::Failed(why), acts);
        } else if inner.is_held_by(turn) {
            // It came true, and nobody has looked.
            inner.holder = None;
            turn.lose(LostReason::Released, acts);
        } else {
            return;
        }
        self.rest(&mut inner, ReplyTo::Nobody, acts);
    }

    /// Ends a hold, if it is this turn's; false if it is over already. `reply` hears when the lock is
    /// free, or another's.
    pub(crate) fn release(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        why: LostReason,
        reply: ReplyTo<Reply>,
        acts: &mut Acts,
    ) -> bool {
        let mut inner = self.lock();
        if !inner.is_held_by(turn) || self.is_left_to_its_lease() {
            return false;
        }
        inner.holder = None;
        let is_given_up = why == LostReason::Released;
        turn.lose(why, acts);
        if self.is_left() && is_given_up {
            // Who detaches a session wants to take up later what it holds.
            inner.phase = Phase::Gone;
            inner.fail(&LockError::SessionEnded(SessionEndReason::Detached), acts);
            acts.0.push(Act::Passed(reply));
        } else {
            self.rest(&mut inner, reply, acts);
        }
        true
    }

    /// As [`Place::release`], for the good of another place: the hold becomes its, if it still waits.
    pub(crate) fn transfer(
        self: &Arc<Self>,
        turn: &Arc<Turn>,
        successor: Rank,
        reply: ReplyTo<Reply>,
        acts: &mut Acts,
    ) -> bool {
        let mut inner = self.lock();
        if !inner.is_held_by(turn) || self.is_left_to_its_lease() {
            return false;
        }
        inner.holder = None;
        (inner.successor, inner.is_told) = (Some(successor), true);
        if !mutant::is(Mutant::B08) {
            turn.lose(LostReason::HandedOver, acts);
        }
        self.rest(&mut inner, reply, acts);
        true
    }

    /// Follows an order to whoever has the place under this key.
    pub(crate) fn obey(self: &Arc<Self>, order: Order, key: &[u8], row: &Bytes, acts: &mut Acts) {
        let (holder, phase) = {
            let mut inner = self.lock();
            let is_it = match inner.phase {
                Phase::Waiting { since } | Phase::Held { since, .. } => since == order.since,
                // Its revision is not known yet; who orders has seen it.
                Phase::Entering => order.since > inner.left,
                // The key may be there still, for whoever takes it up: nobody has it.
                Phase::Gone if self.is_nobodys() => {
                    if matches!(order.what, What::Break) {
                        let keys: Arc<[Bytes]> = Arc::new([Bytes::copy_from_slice(key)]);
                        let bound = vec![Bound::of_key(row.clone())];
                        let parting = Parting { bound, ..no_more(&keys, order.since) };
                        let (place, reply) = (Arc::clone(self), ReplyTo::Nobody);
                        acts.0.push(Act::Part { place, parting, reply });
                    }
                    return;
                }
                Phase::Gone => false,
            };
            let is_meant = is_it && inner.keys.iter().any(|own| own == key);
            if !is_meant {
                // It is over, or was another of that name.
                let (bound, lease) = (vec![Bound::of_key(row.clone())], self.session.lease);
                acts.0.push(Act::Tidy { bound, lease });
                return;
            }
            // Who orders has seen it stand, and perhaps hold, where this node does not know it yet.
            if inner.phase == Phase::Entering && !matches!(order.what, What::Break) {
                let (key, row) = (Bytes::copy_from_slice(key), row.clone());
                inner.orders.push(Ordered { order, key, row });
                return;
            }
            // It goes with the hold that it is about.
            if !inner.bound.iter().any(|bound| bound.key == *row) {
                inner.bound.push(Bound::of_key(row.clone()));
            }
            (inner.holder.clone(), inner.phase)
        };
        let (why, nobody) = (order.request, ReplyTo::Nobody);
        match (order.what, holder, phase) {
            (What::Ask, Some(turn), _) => turn.ask(why, acts),
            (What::Ask, None, _) => {}
            (What::Break, Some(turn), _) => {
                let loss = LostReason::ForceReleased { by: why.by, reason: why.reason };
                self.release(&turn, loss, nobody, acts);
            }
            (What::HandOver(successor), Some(turn), _) => {
                self.transfer(&turn, successor, nobody, acts);
            }
            (What::Break, None, Phase::Waiting { .. } | Phase::Entering) => {
                let mut inner = self.lock();
                inner.fail(&LockError::Evicted, acts);
                self.rest(&mut inner, nobody, acts);
            }
            // Whoever is meant has released it; what an order is bound to is not passed on.
            (What::Break, None, _) => {}
            (What::HandOver(successor), None, Phase::Held { .. }) => {
                self.lock().successor = Some(successor)
            }
            (What::HandOver(_), None, _) => {}
        }
    }

    /// It is known where it stands: follows what it was ordered before.
    pub(crate) fn obey_kept(self: &Arc<Self>, acts: &mut Acts) {
        let orders = {
            let mut inner = self.lock();
            match inner.phase {
                Phase::Entering => Vec::new(),
                _ => std::mem::take(&mut inner.orders),
            }
        };
        for Ordered { order, key, row } in orders {
            self.obey(order, &key, &row, acts);
        }
    }

    /// Ends a turn's hold by passing it on inside the node, if that is all that is due.
    pub(crate) fn pass_on(&self, turn: &Arc<Turn>, acts: &mut Acts) -> bool {
        let mut inner = self.lock();
        let Phase::Held { since, granted } = inner.phase else { return false };
        let is_quiet = inner.open_txns == 0 || mutant::is(Mutant::B24);
        let is_due = inner.is_held_by(turn) && is_quiet && !inner.turns.is_empty();
        let is_plain = turn.cap.is_none() && self.session.ended().is_none();
        if !is_due || !is_plain || !self.may_pass(&mut inner) {
            return false;
        }
        turn.lose(LostReason::Released, acts);
        inner.handoff += 1;
        inner.give(since, granted, acts)
    }

    /// Whether its session was detached: what it holds is left for the program's next life.
    fn is_left(&self) -> bool {
        self.session.ended() == Some(SessionEndReason::Detached)
    }

    /// Whether nobody has what it held, though the key may live on with a lease that somebody resumed: its session was
    /// left or lost, and had asked for no lock delay.
    fn is_nobodys(&self) -> bool {
        let is_lost = self.session.ended() == Some(SessionEndReason::NotRenewed);
        self.is_left() || (is_lost && self.session.delay.is_zero())
    }

    /// Whether the session was lost. It may have been told nobody yet; but what it held is its lease's from then on, which
    /// keeps others away for the lock delay, whatever somebody here does about it.
    fn is_left_to_its_lease(&self) -> bool {
        self.session.ended() == Some(SessionEndReason::NotRenewed) && !mutant::is(Mutant::B32)
    }

    /// Whether this turn has it.
    pub(crate) fn is_held_by(&self, turn: &Arc<Turn>) -> bool {
        self.lock().is_held_by(turn)
    }

    /// A transaction under this turn's hold begins, which binds so much to it; false if the hold is over.
    ///
    /// # Errors
    /// That would be more than may go with one hold.
    pub(crate) fn begin_txn(&self, turn: &Arc<Turn>, binds: Load) -> Result<bool, Rejection> {
        let mut inner = self.lock();
        let is_holder = inner.is_held_by(turn);
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

    /// Its outcome is known, or will never be. `bound` is what it has bound to the hold, of what it was to bind.
    pub(crate) fn end_txn(
        self: &Arc<Self>,
        binds: Load,
        is_known: bool,
        mut bound: Vec<Bound>,
        acts: &mut Acts,
    ) {
        let mut inner = self.lock();
        inner.open_txns -= 1;
        inner.binding = inner.binding.without(binds);
        inner.is_spent |= !is_known;
        let is_held = matches!(inner.phase, Phase::Held { .. });
        if is_held {
            // A key that was surely this hold's stays so, whatever came of the later transaction.
            for one in &mut bound {
                one.is_sure |= inner.bound.iter().any(|b| b.is_sure && b.key == one.key);
            }
            let keys: Vec<&Bytes> = bound.iter().map(|bound| &bound.key).collect();
            inner.bound.retain(|before| !keys.contains(&&before.key));
            inner.bound.extend(bound);
        } else if !bound.is_empty() && !self.is_left_to_its_lease() {
            // The hold that they were to go with has gone.
            acts.0.push(Act::Tidy { bound, lease: self.session.lease });
        }
        if is_held && inner.holder.is_none() && inner.open_txns == 0 {
            let reply = inner.releasing.take().unwrap_or(ReplyTo::Nobody);
            self.rest(&mut inner, reply, acts);
        }
    }

    /// This turn's hold must end with its key: somebody has taken its condition for a transaction that
    /// is not ours to follow. False if the hold is over.
    pub(crate) fn spend(&self, turn: &Arc<Turn>) -> bool {
        let mut inner = self.lock();
        let is_holder = inner.is_held_by(turn);
        inner.is_spent |= is_holder;
        is_holder
    }

    /// What deletes the keys that go with the present hold, of those that are still bound as it is.
    pub(crate) fn unbinding(&self) -> Vec<Op> {
        unbinding(self.session.lease, &self.lock().bound)
    }

    /// Nobody has it: passes it on, leaves, or enters anew, whatever is due.
    pub(crate) fn rest(
        self: &Arc<Self>,
        inner: &mut Inner,
        reply: ReplyTo<Reply>,
        acts: &mut Acts,
    ) {
        if inner.holder.is_some() {
            return;
        }
        match inner.phase {
            // When the outcome is known it is judged again.
            Phase::Entering | Phase::Gone => {}
            Phase::Waiting { since } => {
                if inner.turns.is_empty() && !mutant::is(Mutant::B26) {
                    self.leave(inner, since, reply, acts);
                }
            }
            // Who releases it waits for that; nobody else does.
            Phase::Held { .. } if inner.open_txns > 0 && !mutant::is(Mutant::B24) => {
                inner.releasing.get_or_insert(reply);
            }
            Phase::Held { since, granted } => {
                if inner.turns.is_empty() {
                    self.leave(inner, since, reply, acts);
                } else if self.may_pass(inner) {
                    inner.handoff += 1;
                    inner.give(since, granted, acts);
                    acts.0.push(Act::Passed(reply));
                } else {
                    // The release is heard of when the old key has gone, with the new one's coming.
                    let (place, parting) = (Arc::clone(self), Some(inner.part(since)));
                    acts.0.push(Act::EnterAnew { place, parting });
                    inner.releasing = Some(reply);
                    inner.begin_anew();
                }
            }
        }
    }

    pub(crate) fn leave(
        self: &Arc<Self>,
        inner: &mut Inner,
        since: Revision,
        reply: ReplyTo<Reply>,
        acts: &mut Acts,
    ) {
        inner.phase = Phase::Gone;
        let (place, parting) = (Arc::clone(self), inner.part(since));
        acts.0.push(Act::Part { place, parting, reply });
    }

    fn may_pass(&self, inner: &mut Inner) -> bool {
        if inner.is_spent || !inner.bound.is_empty() || inner.successor.is_some() {
            return false;
        }
        if !self.is_contended.load(Ordering::Relaxed) {
            inner.passes = 0;
            return true;
        }
        inner.passes += 1;
        inner.passes <= PASSES_MAX || mutant::is(Mutant::B25)
    }
}

/// What deletes keys that are bound to a hold. What is bound to another lease is somebody else's.
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
    use crate::model::Moment;
    use crate::recipes::order::ReleaseRequest;

    /// A place that its session's tasks share, which waits since revision 2, and a turn of each of so many.
    fn shared_by<const TASKS: usize>() -> (Arc<Place>, [Arc<Turn>; TASKS]) {
        let key = Bytes::from_static(b"lock/5");
        let (lease, until) = (LeaseId::new(5).unwrap(), Moment::since_boot(Duration::from_secs(9)));
        let session = Arc::new(SharedSession::believed_until(lease, until));
        let prefixes: Box<[Bytes]> = [Bytes::from_static(b"lock/")].into();
        let counts = HeadCounts::from_iter([]);
        let place = Place::new(1, prefixes, [key].into(), session, Bytes::new(), true, counts);
        let turns = std::array::from_fn(|_| place.lock().queue(false, None, None, false));
        place.lock().phase = Phase::Waiting { since: Revision(2) };
        (Arc::new(place), turns)
    }

    fn is_granted(place: &Place, turn: &Arc<Turn>) -> bool {
        matches!(turn.stage(None), Stage::Holds(_))
            && turn.loss().is_none()
            && place.is_held_by(turn)
    }

    #[test]
    fn whose_time_is_up_when_the_lock_has_just_been_passed_to_it_keeps_it() {
        let (place, [first, second, third]) = shared_by();
        let mut acts = Acts::default();
        assert!(place.lock().give(Revision(2), Revision(2), &mut acts));
        // Whoever looks whether the time is up sees that it waits...
        assert!(matches!(second.stage(None), Stage::Asked));
        // ...the holder passes on, on another thread, and then it is withdrawn.
        assert!(place.pass_on(&first, &mut acts));
        place.wait_no_more(&second, LockError::TimedOut { before: 1 }, &mut acts);
        assert!(is_granted(&place, &second) && !is_granted(&place, &third));
        place.wait_no_more(&third, LockError::TimedOut { before: 1 }, &mut acts);
        assert!(matches!(third.stage(None), Stage::Failed(LockError::TimedOut { .. })));
        assert!(is_granted(&place, &second));
    }

    /// Two threads, one of which looks while the other one settles, each time a little earlier or later.
    #[test]
    fn a_waiter_is_woken_however_its_look_races_with_its_grant() {
        const ROUNDS: usize = 20_000;
        let turns: Vec<Arc<Turn>> = (0..ROUNDS).map(|_| shared_by::<1>().1[0].clone()).collect();
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
                for (round, turn) in turns.iter().enumerate() {
                    reaches(&asked, round);
                    (0..round % 53).for_each(|_| std::hint::spin_loop());
                    let mut acts = Acts::default();
                    turn.advance(Stage::Failed(LockError::Unavailable), &mut acts);
                    for act in acts.0 {
                        if let Act::Wake(waker) = act {
                            waker.wake();
                        }
                    }
                    done.store(round + 1, Ordering::Release);
                }
            });
            for (round, turn) in turns.iter().enumerate() {
                let woken = Arc::new(Woken::default());
                let waker = Waker::from(Arc::clone(&woken));
                asked.store(round + 1, Ordering::Release);
                (0..round % 47).for_each(|_| std::hint::spin_loop());
                let waits = matches!(turn.stage(Some(&waker)), Stage::Asked | Stage::Stands(_));
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
    fn what_a_place_is_ordered_before_its_node_knows_where_it_stands_is_followed_then() {
        let (place, [turn]) = shared_by();
        place.lock().phase = Phase::Entering;
        let (key, row) = (Bytes::from_static(b"lock/5"), Bytes::from_static(b"lock/5/order"));
        let request = ReleaseRequest { by: "ops".to_owned(), reason: "it is due".to_owned() };
        let (what, since, mut acts) = (What::Ask, Revision(2), Acts::default());
        let order = Order { what, since, request: request.clone() };
        place.obey(order, &key, &row, &mut acts);
        place.obey_kept(&mut acts);
        assert_eq!(turn.request(), None);
        assert!(place.lock().give(since, since, &mut acts));
        place.obey_kept(&mut acts);
        assert_eq!(turn.request(), Some(request));
        assert_eq!(place.lock().bound.len(), 1, "the order goes with the hold that it is about");
    }
}
