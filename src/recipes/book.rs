//! What is known of the lines that tasks of this node stand in, and how it follows the replica.
//!
//! All of it runs under the book's lock, most of it on the driver's thread. Nothing is said to anybody
//! from here: that is collected in [`Acts`].

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::machine::Change;
use crate::model::{Event, EventKind, KeyValue, LeaseId, Moment, Revision};
use crate::mutant::{self, Mutant};
use crate::node::{ReplyTo, SessionState, Shared};

use super::error::{LockError, Loss};
use super::head_count::HeadCount;
use super::line::{Ask, parent, prefix_of};
use super::order::{self, Order};
use super::place::{Act, Acts, Inner, Parting, Phase, Place, Stage, Turn};
use super::rule::{Misfit, Queue, Rank, Rule};
use super::stance::Stance;
use super::token::Token;
use super::view;

/// A task's turn, and the place that it is a turn of.
pub(super) type Standing = (Arc<Place>, Arc<Turn>);

/// See the module.
#[derive(Default)]
pub(super) struct Book {
    /// By prefix.
    lines: BTreeMap<Bytes, Line>,
    /// The places that live with each lease, by their numbers. A lease that was resumed has places of
    /// two sessions.
    sessions: BTreeMap<LeaseId, BTreeMap<u64, Arc<Place>>>,
    timers: BTreeMap<(Moment, u64), Standing>,
    /// Keys that a session has handed away, by its lease, the key and the revision that made it, under
    /// which something may still come true: the session must not come to hold by them again.
    spent: BTreeSet<(LeaseId, Bytes, Revision)>,
    /// Numbers places, timers and keys.
    counter: u64,
    head_count: Arc<HeadCount>,
}

#[derive(Default)]
struct Line {
    /// Everybody's places; `None` until the outcome of the first local entering is known.
    queue: Option<Queue>,
    /// This node's places, by key, until their keys are known to be gone.
    local: BTreeMap<Bytes, Arc<Place>>,
    /// Those of them that wait, in order, and perhaps some that have gone.
    waiting: BTreeMap<Rank, Arc<Place>>,
    /// Those that other tasks of the session may share.
    open: BTreeMap<LeaseId, Arc<Place>>,
    /// Those of the waiting that are upgrades: they may pass others.
    upgrades: BTreeSet<Rank>,
}

impl Book {
    pub(super) fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Whoever hands these keys away has left something behind that may come true while its session has
    /// them.
    pub(super) fn keep_spent(&mut self, lease: LeaseId, keys: &[Bytes], since: Revision) {
        self.spent.extend(keys.iter().map(|key| (lease, key.clone(), since)));
    }

    /// How many of this node's tasks hold and wait.
    pub(super) fn head_count(&self) -> &Arc<HeadCount> {
        &self.head_count
    }

    pub(super) fn keep_timer(
        &mut self,
        timer: Option<(Moment, u64)>,
        place: &Arc<Place>,
        turn: &Arc<Turn>,
    ) {
        if let Some(timer) = timer {
            self.timers.insert(timer, (Arc::clone(place), Arc::clone(turn)));
        }
    }

    /// A turn in the place that other tasks of the session have in this line, if there is one.
    pub(super) fn share(
        &mut self,
        shared: &Shared,
        ask: &Ask<'_>,
        max: usize,
    ) -> Result<Option<Standing>, LockError> {
        let [name] = ask.names else { return Ok(None) };
        if !ask.is_shared {
            return Ok(None);
        }
        let prefix = prefix_of(name);
        let open = self.lines.get(&prefix).and_then(|line| line.open.get(&ask.session.lease));
        let Some(place) = open.cloned() else { return Ok(None) };
        if !Arc::ptr_eq(&place.session, ask.session) {
            return Ok(None);
        }
        if let Some(end) = place.session.ended() {
            return Err(LockError::SessionEnded(end));
        }
        let mut inner = place.lock();
        if inner.phase == Phase::Gone {
            return Ok(None);
        }
        if ask.only_try
            && (inner.holder.is_some() || inner.waiting() > 0 || inner.phase != Phase::Entering)
        {
            drop(inner);
            let holder = view::first_in(shared, &prefix).map(Box::new);
            return Err(LockError::WouldBlock { holder });
        }
        if inner.waiting() >= max {
            return Err(LockError::QueueFull { max });
        }
        let deadline = ask.deadline.map(|deadline| (deadline, self.number()));
        let turn = inner.queue(ask.only_try, deadline, ask.cap, ask.is_owned);
        drop(inner);
        self.keep_timer(deadline, &place, &turn);
        Ok(Some((place, turn)))
    }

    pub(super) fn new_place(&mut self, ask: &Ask<'_>, max: usize) -> Result<Arc<Place>, LockError> {
        let prefixes: Box<[Bytes]> = ask.names.iter().map(prefix_of).collect();
        let waits = |prefix| self.lines.get(prefix).map_or(0, |line: &Line| line.local.len());
        if prefixes.iter().any(|prefix| waits(prefix) >= max) {
            return Err(LockError::QueueFull { max });
        }
        let keys = prefixes.iter().map(|prefix| self.new_key(prefix, ask.session.lease)).collect();
        let (id, session) = (self.number(), Arc::clone(ask.session));
        let value = (ask.value)();
        let count = Arc::clone(&self.head_count);
        let place = Place::new(id, prefixes, keys, session, value, ask.is_shared, count);
        let place = Arc::new(place);
        self.welcome(&place);
        Ok(place)
    }

    /// A place is new here.
    pub(super) fn welcome(&mut self, place: &Arc<Place>) {
        self.keep(place);
        let kept = self.sessions.entry(place.session.lease).or_default();
        kept.insert(place.id, Arc::clone(place));
    }

    /// This node's place of this key.
    pub(super) fn local(&self, key: &[u8]) -> Option<&Arc<Place>> {
        self.lines.get(parent(key)?)?.local.get(key)
    }

    /// A key in a line that no place of this node has: etcd's own name if that is free, and one that
    /// cannot collide with it for the next. A name is free again only when its key is known to be gone.
    fn new_key(&mut self, prefix: &Bytes, lease: LeaseId) -> Bytes {
        let plain: Bytes = [&prefix[..], lease.to_string().as_bytes()].concat().into();
        let is_taken = self.lines.get(prefix).is_some_and(|line| line.local.contains_key(&plain));
        if !is_taken {
            return plain;
        }
        [&plain[..], format!(".{}", self.number()).as_bytes()].concat().into()
    }

    /// The place's keys are to be looked for in their lines.
    fn keep(&mut self, place: &Arc<Place>) {
        let keys = Arc::clone(&place.lock().keys);
        for (prefix, key) in place.prefixes.iter().zip(keys.iter()) {
            let line = self.lines.entry(prefix.clone()).or_default();
            line.local.insert(key.clone(), Arc::clone(place));
            if place.is_shared {
                line.open.insert(place.session.lease, Arc::clone(place));
            }
        }
    }

    /// New keys for a place that will stand in line anew.
    pub(super) fn rename(&mut self, place: &Arc<Place>) -> Arc<[Bytes]> {
        let lease = place.session.lease;
        let keys: Arc<[Bytes]> =
            place.prefixes.iter().map(|prefix| self.new_key(prefix, lease)).collect();
        place.lock().keys = Arc::clone(&keys);
        self.keep(place);
        keys
    }

    /// A key is known to be gone.
    fn forget(&mut self, place: &Arc<Place>, prefix: &Bytes, key: &Bytes) {
        let Some(line) = self.lines.get_mut(prefix) else { return };
        // The name may be another place's by now.
        if line.local.get(key).is_some_and(|known| Arc::ptr_eq(known, place)) {
            line.local.remove(key);
        }
        if place.lock().phase == Phase::Gone {
            let lease = place.session.lease;
            if line.open.get(&lease).is_some_and(|open| Arc::ptr_eq(open, place)) {
                line.open.remove(&lease);
            }
            if let Some(kept) = self.sessions.get_mut(&lease) {
                kept.remove(&place.id);
                if kept.is_empty() {
                    self.sessions.remove(&lease);
                }
            }
        }
        if line.local.is_empty() {
            self.lines.remove(prefix);
        }
    }

    /// A place has other keys now: those of before that are gone are not looked for any more.
    pub(super) fn forget_absent(&mut self, place: &Arc<Place>, keys: &[Bytes], since: Revision) {
        for (prefix, key) in place.prefixes.iter().zip(keys) {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            if queue.is_none_or(|queue| !queue.contains(&(since, key.clone()))) {
                self.forget(place, prefix, key);
            }
        }
    }

    /// The keys of a place are in the log: finds where it stands, and follows what it was ordered
    /// meanwhile.
    pub(super) fn has_entered(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        acts: &mut Acts,
    ) {
        self.find_place(shared, place, keys, since, acts);
        place.obey_kept(acts);
    }

    /// Judges whether the keys of a place may be there, and whether it is its turn.
    fn find_place(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        acts: &mut Acts,
    ) {
        if !Arc::ptr_eq(&place.lock().keys, keys) {
            // It was handed a hold in the same turn.
            return;
        }
        for (prefix, key) in place.prefixes.iter().zip(keys.iter()) {
            let Some(line) = self.lines.get_mut(prefix) else { return };
            if line.queue.is_none() {
                let rows = view::rows(shared, prefix);
                // What was rewritten since it entered, nobody has followed here.
                let mine = |row: &&KeyValue| row.key == *key && row.create_revision == since;
                if let Some(row) = rows.iter().find(mine) {
                    says_anew(place, key, &row.value, acts);
                }
                line.queue = Some(queue_of(rows));
            }
            let rank = (since, key.clone());
            if !line.queue.as_ref().is_some_and(|queue| queue.contains(&rank)) {
                // Deleted by somebody else already, in the same turn.
                if !self.find_handed(shared, place, acts) {
                    {
                        let mut inner = place.lock();
                        if inner.phase == Phase::Entering && Arc::ptr_eq(&inner.keys, keys) {
                            inner.phase = Phase::Waiting { since };
                        }
                    }
                    self.is_evicted(place, keys, since, Some(key), acts);
                }
                return;
            }
        }
        let mut inner = place.lock();
        if inner.phase != Phase::Entering || !Arc::ptr_eq(&inner.keys, keys) {
            return;
        }
        inner.phase = Phase::Waiting { since };
        if let Err(why) = self.judge(place, keys, since) {
            inner.fail(&why, acts);
        }
        if inner.waiting() == 0 {
            return place.rest(&mut inner, ReplyTo::Nobody, acts);
        }
        // One step from Entering to Held, where nobody is before: who only tries must not see itself
        // waiting.
        let end = place.session.end(shared.now());
        if self.is_its_turn(place, keys, since) && end.is_none() {
            return self.grant(shared, place, &mut inner, since, acts);
        }
        for (prefix, key) in place.prefixes.iter().zip(keys.iter()) {
            let line = self.lines.get_mut(prefix).expect("it was just looked at");
            line.waiting.insert((since, key.clone()), Arc::clone(place));
            let queue = line.queue.as_ref().expect("it was just looked at");
            let rank = (since, key.clone());
            if queue.rule(&rank).is_some_and(Rule::is_upgrade) {
                line.upgrades.insert(rank);
            }
        }
        let turns: Vec<Arc<Turn>> = inner.turns().cloned().collect();
        drop(inner);
        for turn in turns {
            if turn.only_try {
                // With an ended session it has nobody before it, perhaps, and does not hold all the same.
                let why = match end {
                    Some(end) => LockError::SessionEnded(end),
                    None => {
                        let holder = view::first_in(shared, &place.prefixes[0]).map(Box::new);
                        LockError::WouldBlock { holder }
                    }
                };
                place.wait_no_more(&turn, why, acts);
            } else {
                turn.stands(since, acts);
            }
        }
    }

    fn judge(&self, place: &Place, keys: &[Bytes], since: Revision) -> Result<(), LockError> {
        for (prefix, key) in place.prefixes.iter().zip(keys) {
            let rank = (since, key.clone());
            let Some(queue) = self.lines.get(prefix).and_then(|line| line.queue.as_ref()) else {
                continue;
            };
            queue.judge(&rank, place.asked).map_err(|misfit| match misfit {
                Misfit::SecondUpgrade => LockError::UpgradeTaken,
                Misfit::NoRead => LockError::Evicted,
                Misfit::Kind { stored, asked } => LockError::mismatch(stored, asked),
            })?;
        }
        Ok(())
    }

    fn is_its_turn(&self, place: &Place, keys: &[Bytes], since: Revision) -> bool {
        let locks = if mutant::is(Mutant::B06) { 1 } else { keys.len() };
        place.prefixes.iter().zip(keys).take(locks).all(|(prefix, key)| {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            queue.is_some_and(|queue| queue.may_hold(&(since, key.clone())))
        })
    }

    fn grant(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        inner: &mut Inner,
        since: Revision,
        acts: &mut Acts,
    ) {
        let granted = match mutant::is(Mutant::M25) {
            false => shared.reader.revision(),
            true => Revision(place.session.lease.get()),
        };
        let is_contended = place.prefixes.iter().any(|prefix| {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            queue.is_some_and(|queue| queue.len() > 1)
        });
        place.is_contended.store(is_contended, Ordering::Relaxed);
        if !inner.give(since, granted, acts) {
            return place.rest(inner, ReplyTo::Nobody, acts);
        }
        let turn = Arc::clone(inner.holder.as_ref().expect("it was just given"));
        if let Some(cap) = turn.cap {
            let until = (shared.now() + cap, self.number());
            turn.set_until(Some(until));
            self.keep_timer(Some(until), place, &turn);
        }
    }

    /// There are no keys of this place.
    pub(super) fn not_entered(
        &mut self,
        place: &Arc<Place>,
        keys: &[Bytes],
        why: &LockError,
        acts: &mut Acts,
    ) {
        {
            let mut inner = place.lock();
            inner.phase = Phase::Gone;
            inner.fail(why, acts);
        }
        for (prefix, key) in place.prefixes.iter().zip(keys) {
            self.forget(place, prefix, key);
        }
    }

    /// A key of a place was deleted, or taken away, by somebody else. A hold is lost then, and so is
    /// the place of those who wait; but the tasks behind a holder step into line again. What other threads
    /// have made of the place since it was looked at stays.
    fn is_evicted(
        &mut self,
        place: &Arc<Place>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        gone: Option<&Bytes>,
        acts: &mut Acts,
    ) {
        {
            let mut inner = place.lock();
            let was_held = matches!(inner.phase, Phase::Held { .. });
            let is_over = match inner.phase {
                Phase::Waiting { since: now } | Phase::Held { since: now, .. } if now == since => {
                    false
                }
                // Given up meanwhile: nobody else will say that its key is gone.
                Phase::Gone => true,
                // It stands in line anew: the outcome of that looks after the old keys.
                _ => return,
            };
            if is_over {
            } else if was_held && inner.waiting() > 0 {
                inner.lose_all(place.session.lease, acts);
                inner.begin_anew();
                // Only a line of its own has tasks behind a holder: no other key is left, and the name of
                // this one is free for the next.
                acts.0.push(Act::EnterAnew { place: Arc::clone(place), parting: None });
            } else {
                // The end of the session takes the keys along.
                let session = place.session.ended().map(LockError::SessionEnded);
                inner.end(&session.unwrap_or(LockError::Evicted), place.session.lease, acts);
                if keys.len() > 1 {
                    let (place, parting) = (Arc::clone(place), no_more(keys, since));
                    acts.0.push(Act::Part { place, parting, reply: ReplyTo::Nobody });
                }
            }
        }
        // Of those that are there still it will be heard when they go.
        self.forget_absent(place, keys, since);
        let prefix = place.prefixes.iter().zip(keys.iter()).find(|(_, key)| Some(*key) == gone);
        if let (Some((prefix, _)), Some(key)) = (prefix, gone) {
            self.forget(place, prefix, key);
        }
    }
}

impl Book {
    /// The hold of another was handed to a waiting place: its key, with this session's lease now, in
    /// exchange for the place's own.
    fn is_handed(&mut self, place: &Arc<Place>, key: &Bytes, since: Revision, acts: &mut Acts) {
        let prefix = &place.prefixes[0];
        let mut is_spent = false;
        let old = {
            let mut inner = place.lock();
            let old = std::mem::replace(&mut inner.keys, Arc::new([key.clone()]));
            if matches!(inner.phase, Phase::Entering | Phase::Waiting { .. }) {
                inner.phase = Phase::Waiting { since };
                is_spent = self.spent.contains(&(place.session.lease, key.clone(), since));
                if is_spent && inner.waiting() > 0 {
                    // Of two holds of one session by one key, nobody could tell the later.
                    let (place, parting) = (Arc::clone(place), Some(no_more(&inner.keys, since)));
                    acts.0.push(Act::EnterAnew { place, parting });
                    inner.begin_anew();
                } else {
                    place.rest(&mut inner, ReplyTo::Nobody, acts);
                }
            } else {
                // Whoever wanted it has gone meanwhile, or has come to hold by the key that is gone now.
                let session = place.session.ended().map(LockError::SessionEnded);
                inner.end(&session.unwrap_or(LockError::Evicted), place.session.lease, acts);
                let parting = no_more(&inner.keys, since);
                let (place, reply) = (Arc::clone(place), ReplyTo::Nobody);
                acts.0.push(Act::Part { place, parting, reply });
            }
            old
        };
        let before = self.lines.get(prefix).and_then(|line| line.local.get(key)).cloned();
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, place)) {
            // That of the one who has handed it over, on this node too.
            self.forget(&before, prefix, key);
        }
        if let Some(line) = self.lines.get_mut(prefix) {
            line.local.remove(&old[0]);
            line.local.insert(key.clone(), Arc::clone(place));
            line.waiting.retain(|_, waiting| !Arc::ptr_eq(waiting, place));
            if !is_spent {
                line.waiting.insert((since, key.clone()), Arc::clone(place));
            }
        }
    }

    /// The key of a waiting place is gone: looks for a hold that was handed to it.
    pub(super) fn find_handed(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        acts: &mut Acts,
    ) -> bool {
        let [prefix] = &*place.prefixes else { return false };
        let Some(line) = self.lines.get(prefix) else { return false };
        let (rows, value) = (view::rows(shared, prefix), place.lock().value.clone());
        let handed = rows.into_iter().find(|row| {
            // What was handed was put anew, with what the heir's own row said.
            row.lease == Some(place.session.lease)
                && row.version > 1
                && row.value == value
                && !line.local.contains_key(&row.key)
        });
        let Some(row) = handed else { return false };
        self.is_handed(place, &row.key, row.create_revision, acts);
        self.grant_waiting(shared, prefix, acts);
        // Nobody knew whose place that is when this came.
        if let Some(order) = shared.reader.get(&order::key_for(&row.key)).0 {
            self.follow_order(&order, None, acts);
        }
        true
    }

    /// Whether nobody stands in any line.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// All places.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Arc<Place>> + use<> {
        let lines = std::mem::take(self).lines;
        lines.into_values().flat_map(|line| line.local.into_values())
    }

    /// The task of this session that holds with this token in a line.
    pub(super) fn holder_of(
        &self,
        prefix: &Bytes,
        session: &Arc<SessionState>,
        token: Token,
    ) -> Option<Standing> {
        let line = self.lines.get(prefix)?;
        line.local.values().filter(|place| Arc::ptr_eq(&place.session, session)).find_map(|place| {
            let holder = place.lock().holder.clone()?;
            let is_it = matches!(holder.stage(None), Stage::Holds(grant) if grant.token == token);
            is_it.then(|| (Arc::clone(place), holder))
        })
    }

    /// A timer that is not needed any more.
    pub(super) fn forget_timer(&mut self, timer: (Moment, u64)) {
        self.timers.remove(&timer);
    }

    /// Follows one change of the store. What may be an order is only collected, with the local place that has its key
    /// by now: at the end of the changes it may have gone.
    pub(super) fn follow<'a>(
        &mut self,
        change: &'a Change,
        touched: &mut BTreeSet<Bytes>,
        orders: &mut Vec<(&'a KeyValue, Option<Arc<Place>>)>,
        acts: &mut Acts,
    ) {
        // Looked for once, and only where a place's key goes: with a session many go in one change.
        let handed = OnceCell::new();
        for event in change.events.iter() {
            if event.kind == EventKind::Delete && !self.spent.is_empty() {
                self.spent.retain(|(_, key, _)| *key != event.kv.key);
            }
            let Some(prefix) = parent(&event.kv.key) else { continue };
            let Some(line) = self.lines.get_mut(prefix) else {
                if event.kind == EventKind::Put
                    && let Some(key) = order::addressee(&event.kv.key)
                {
                    match mutant::is(Mutant::B35) {
                        false => orders.push((&event.kv, self.local(key).cloned())),
                        true => self.follow_order(&event.kv, None, acts),
                    }
                }
                continue;
            };
            let Some(queue) = &mut line.queue else { continue };
            let key = &event.kv.key;
            let is_place = event.kind == EventKind::Put && event.kv.lease.is_some();
            if let Some(before) = &event.prev {
                let rank = (before.create_revision, key.clone());
                queue.remove(&rank);
                if !is_place {
                    line.waiting.remove(&rank);
                    line.upgrades.remove(&rank);
                }
            }
            if is_place {
                let rule = Stance::rule_of(key, &event.kv.value);
                queue.insert((event.kv.create_revision, key.clone()), rule);
            }
            touched.insert(Bytes::copy_from_slice(prefix));
            let Some(place) = line.local.get(key).cloned() else { continue };
            if !is_place || event.kv.lease != Some(place.session.lease) {
                let handed = handed.get_or_init(|| handed_in(change));
                self.has_gone(handed, event, &place, acts);
            } else {
                says_anew(&place, key, &event.kv.value, acts);
            }
        }
    }

    /// Somebody may order something of the holder of a local place: the one that has the key, or had it when the order
    /// came.
    pub(super) fn follow_order(&self, row: &KeyValue, then: Option<Arc<Place>>, acts: &mut Acts) {
        let (Some(key), Some(order)) = (order::addressee(&row.key), Order::parse(&row.value))
        else {
            return;
        };
        let is_meant = |place: &&Arc<Place>| row.lease == Some(place.session.lease);
        if let Some(place) = self.local(key).into_iter().chain(&then).find(is_meant) {
            place.obey(order, key, &row.key, acts);
        }
    }

    /// A key of a local place was deleted, detached or given to another lease.
    /// Other keys may have been `handed` to somebody in the same change.
    fn has_gone(&mut self, handed: &[&Event], event: &Event, place: &Arc<Place>, acts: &mut Acts) {
        let key = &event.kv.key;
        let (phase, keys) = {
            let inner = place.lock();
            (inner.phase, Arc::clone(&inner.keys))
        };
        let Some(prefix) =
            place.prefixes.iter().find(|prefix| parent(key) == Some(prefix)).cloned()
        else {
            return;
        };
        if !keys.contains(key) {
            // One that it had before.
            return self.forget(place, &prefix, key);
        }
        let line = self.lines.get(&prefix);
        let is_own = |key: &Bytes| {
            let known = line.and_then(|line| line.local.get(key));
            known.is_some_and(|known| known.session.lease == place.session.lease)
        };
        let is_handed = |other: &&&Event| {
            other.kv.lease == Some(place.session.lease)
                && parent(&other.kv.key) == Some(&prefix)
                && !is_own(&other.kv.key)
        };
        if let Some(other) = handed.iter().find(is_handed) {
            let (handed, since) = (other.kv.key.clone(), other.kv.create_revision);
            if keys.len() == 1 {
                return self.is_handed(place, &handed, since, acts);
            }
            // One lock is no use to who wants several: it is given back, and the wish has lost its place.
            let handed: Arc<[Bytes]> = Arc::new([handed]);
            let (place, parting) = (Arc::clone(place), no_more(&handed, since));
            acts.0.push(Act::Part { place, parting, reply: ReplyTo::Nobody });
        }
        match phase {
            // The outcome of its entering comes after this, and finds the key gone.
            Phase::Entering => {}
            Phase::Waiting { since } | Phase::Held { since, .. } => {
                self.is_evicted(place, &keys, since, Some(key), acts);
            }
            Phase::Gone => self.forget(place, &prefix, key),
        }
    }

    /// Gives this node's waiting places in a line what is theirs.
    pub(super) fn grant_waiting(&mut self, shared: &Shared, prefix: &Bytes, acts: &mut Acts) {
        let (mut due, mut bereft) = (Vec::new(), Vec::new());
        {
            let Some(line) = self.lines.get(prefix) else { return };
            let Some(queue) = &line.queue else { return };
            if let Some((_, key)) = queue.first().map(|(rank, _)| rank)
                && let Some(place) = line.local.get(key)
            {
                place.is_contended.store(queue.len() > 1, Ordering::Relaxed);
            }
            for (rank, place) in &line.waiting {
                if line.upgrades.contains(rank)
                    && queue.judge(rank, place.asked) == Err(Misfit::NoRead)
                {
                    bereft.push(Arc::clone(place));
                } else if queue.may_hold(rank) {
                    due.push((rank.clone(), Arc::clone(place)));
                } else if queue.contains(rank) && line.upgrades.is_empty() {
                    break;
                }
            }
        }
        // The read that was to become a write has gone.
        for place in bereft {
            fail_all(&place, &LockError::Evicted, acts);
        }
        for ((since, key), place) in due {
            let mut inner = place.lock();
            let keys = Arc::clone(&inner.keys);
            if inner.phase != (Phase::Waiting { since }) || !keys.contains(&key) {
                drop(inner);
                self.wait_no_more(prefix, &(since, key));
                continue;
            }
            // A grant is delivered only while the session is believed in.
            if !self.is_its_turn(&place, &keys, since) || place.session.end(shared.now()).is_some()
            {
                continue;
            }
            self.grant(shared, &place, &mut inner, since, acts);
            drop(inner);
            for (prefix, key) in place.prefixes.iter().zip(keys.iter()) {
                self.wait_no_more(prefix, &(since, key.clone()));
            }
        }
    }

    fn wait_no_more(&mut self, prefix: &Bytes, rank: &Rank) {
        let Some(line) = self.lines.get_mut(prefix) else { return };
        line.waiting.remove(rank);
        line.upgrades.remove(rank);
    }

    pub(super) fn before(&self, place: &Arc<Place>, turn: &Turn) -> Option<usize> {
        let inner = place.lock();
        let since = match inner.phase {
            Phase::Waiting { since } | Phase::Held { since, .. } => since,
            Phase::Entering | Phase::Gone => return None,
        };
        let in_line = place.prefixes.iter().zip(inner.keys.iter()).map(|(prefix, key)| {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            queue.map_or(0, |queue| queue.before(&(since, key.clone())))
        });
        let holder = usize::from(inner.holder.is_some());
        Some(in_line.max().unwrap_or_default() + holder + inner.before(turn))
    }

    /// The replica was replaced by a later state.
    pub(super) fn is_replaced(&mut self, shared: &Shared, acts: &mut Acts) {
        let prefixes: Vec<Bytes> = self.lines.keys().cloned().collect();
        for prefix in &prefixes {
            let Some(line) = self.lines.get_mut(prefix) else { continue };
            if line.queue.is_none() {
                continue;
            }
            let queue = queue_of(view::rows(shared, prefix));
            let places: Vec<(Bytes, Arc<Place>)> =
                line.local.iter().map(|(key, place)| (key.clone(), Arc::clone(place))).collect();
            let keys: BTreeSet<Bytes> = queue.iter().map(|((_, key), _)| key.clone()).collect();
            line.waiting.retain(|rank, _| queue.contains(rank));
            line.upgrades.retain(|rank| queue.contains(rank));
            line.queue = Some(queue);
            for (key, place) in places {
                let (phase, now) = {
                    let inner = place.lock();
                    (inner.phase, Arc::clone(&inner.keys))
                };
                let row = shared.reader.get(&key).0;
                let row = row.filter(|row| row.lease == Some(place.session.lease));
                let is_there =
                    |since: Revision| row.as_ref().is_some_and(|row| row.create_revision == since);
                // What was rewritten meanwhile, nobody has followed.
                if let Some(row) = row.as_ref().filter(|row| now.contains(&row.key)) {
                    says_anew(&place, &key, &row.value, acts);
                }
                match phase {
                    // One that it had before, whose deletion may be in what was passed over.
                    _ if !now.contains(&key) => {
                        if !keys.contains(&key) {
                            self.forget(&place, prefix, &key);
                        }
                    }
                    // The outcome of its entering comes after this.
                    Phase::Entering => {}
                    Phase::Waiting { since } | Phase::Held { since, .. } => {
                        if !is_there(since) && !self.find_handed(shared, &place, acts) {
                            self.is_evicted(&place, &now, since, Some(&key), acts);
                        }
                    }
                    Phase::Gone => {
                        if !keys.contains(&key) {
                            self.forget(&place, prefix, &key);
                        }
                    }
                }
            }
        }
        for prefix in &prefixes {
            self.grant_waiting(shared, prefix, acts);
            for row in order::rows(shared, prefix) {
                self.follow_order(&row, None, acts);
            }
        }
    }

    /// Ends what has waited, or was held, for too long. Answers with the holds to end.
    pub(super) fn ring(&mut self, now: Moment, acts: &mut Acts) -> Vec<Standing> {
        let mut held_too_long = Vec::new();
        while let Some(timer) = self.timers.first_entry() {
            if timer.key().0 > now {
                break;
            }
            let (place, turn) = timer.remove();
            let why = match turn.stage(None) {
                Stage::Holds(_) => {
                    if turn.until().is_some_and(|until| until <= now) {
                        held_too_long.push((place, turn));
                    }
                    continue;
                }
                Stage::Failed(_) => continue,
                Stage::Asked | Stage::Stands(_) => match self.before(&place, &turn) {
                    Some(before) => LockError::TimedOut { before },
                    None => LockError::Unavailable,
                },
            };
            place.wait_no_more(&turn, why, acts);
        }
        held_too_long
    }

    /// Ends what lived with sessions that have ended. Their leases take the keys along; but whoever only
    /// waited for a lease that may live on is taken out of the line.
    pub(super) fn end_sessions(&mut self, now: Moment, acts: &mut Acts) {
        let mut ended = Vec::new();
        for places in self.sessions.values() {
            let mut last = None;
            for place in places.values() {
                // Mostly they are all of one session, which is asked once.
                if !last.is_some_and(|(session, _)| Arc::ptr_eq(session, &place.session)) {
                    last = Some((&place.session, place.session.end(now)));
                }
                if let Some((_, Some(end))) = last {
                    ended.push((Arc::clone(place), end));
                }
            }
        }
        for (place, end) in ended {
            let lease = place.session.lease;
            self.spent.retain(|(spent, ..)| *spent != lease);
            if let Some(places) = self.sessions.get_mut(&lease) {
                places.remove(&place.id);
                if places.is_empty() {
                    self.sessions.remove(&lease);
                }
            }
            end_place(&place, Loss::SessionEnded(end), &LockError::SessionEnded(end), acts);
        }
    }
}

/// The rows of a change that may have been given to another lease: those that were there before.
fn handed_in(change: &Change) -> Vec<&Event> {
    let is_kept = |event: &&Event| {
        event.kind == EventKind::Put
            && event.kv.lease.is_some()
            && event.kv.create_revision < event.kv.mod_revision
    };
    change.events.iter().filter(is_kept).collect()
}

/// What was lost: those of the keys that are left go.
pub(super) fn no_more(keys: &Arc<[Bytes]>, since: Revision) -> Parting {
    Parting { keys: Arc::clone(keys), since, bound: Vec::new(), is_spent: false, heir: None }
}

/// Somebody, perhaps the place itself, has put another value into its row.
fn says_anew(place: &Arc<Place>, key: &Bytes, value: &Bytes, acts: &mut Acts) {
    place.lock().value = value.clone();
    if let Rule::Permits { limit, wants: asked } = Stance::rule_of(key, value)
        && asked > limit
    {
        // If it holds already it goes on.
        fail_all(place, &LockError::TooManyPermits { asked, limit }, acts);
    }
}

/// Nobody who waits for this place will have it.
fn fail_all(place: &Arc<Place>, why: &LockError, acts: &mut Acts) {
    let turns: Vec<Arc<Turn>> = place.lock().turns().cloned().collect();
    for turn in turns {
        place.wait_no_more(&turn, why.clone(), acts);
    }
}

/// A place ends with its session, or its node. What it held is left to the lease.
pub(super) fn end_place(place: &Arc<Place>, loss: Loss, why: &LockError, acts: &mut Acts) {
    let mut inner = place.lock();
    inner.fail(why, acts);
    match inner.phase {
        // Released already: its transactions that are under way find the key gone.
        Phase::Held { since, .. } if inner.holder.is_none() => {
            let reply = inner.take_releasing().unwrap_or(ReplyTo::Nobody);
            return place.leave(&mut inner, since, reply, acts);
        }
        Phase::Held { .. } => inner.phase = Phase::Gone,
        Phase::Waiting { .. } => place.rest(&mut inner, ReplyTo::Nobody, acts),
        // The outcome will say what becomes of the key.
        Phase::Entering | Phase::Gone => {}
    }
    inner.lose(loss, acts);
}

/// The line of these places.
fn queue_of(rows: Vec<KeyValue>) -> Queue {
    let mut queue = Queue::default();
    for row in rows {
        let rule = Stance::rule_of(&row.key, &row.value);
        queue.insert((row.create_revision, row.key), rule);
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::SessionEnd;
    use crate::recipes::place::Bound;

    const SINCE: Revision = Revision(2);

    /// A book with one place in it, which holds since revision 2, with a turn of each of so many tasks.
    fn held<const TASKS: usize>() -> (Book, Arc<Place>, [Arc<Turn>; TASKS]) {
        let (prefix, key) = (Bytes::from_static(b"lock/"), Bytes::from_static(b"lock/5"));
        let (lease, until) =
            (LeaseId::new(5).unwrap(), Moment::since_boot(std::time::Duration::from_secs(9)));
        let session = Arc::new(SessionState::believed_until(lease, until));
        let mut book = Book::default();
        let count = Arc::clone(book.head_count());
        let (prefixes, keys) = ([prefix.clone()].into(), [key.clone()].into());
        let place = Arc::new(Place::new(1, prefixes, keys, session, Bytes::new(), true, count));
        let turns = std::array::from_fn(|_| place.lock().queue(false, None, None, false));
        let mut acts = Acts::default();
        assert!(place.lock().give(SINCE, SINCE, &mut acts));
        book.welcome(&place);
        // The key is gone: deleted by hand, or with the lease.
        book.lines.get_mut(&prefix).unwrap().queue = Some(Queue::default());
        (book, place, turns)
    }

    fn evict(book: &mut Book, place: &Arc<Place>, keys: &Arc<[Bytes]>, acts: &mut Acts) {
        book.is_evicted(place, keys, SINCE, Some(&keys[0]), acts);
    }

    #[test]
    fn a_place_that_is_given_up_while_its_key_is_seen_to_go_is_forgotten() {
        let (mut book, place, [turn]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        // It was seen to hold; then its task releases, on another thread; then that its key went is judged.
        assert!(place.release(&turn, Loss::Released, ReplyTo::Nobody, &mut acts));
        assert_eq!(place.lock().phase, Phase::Gone);
        evict(&mut book, &place, &keys, &mut acts);
        assert!(
            book.is_empty() && book.sessions.is_empty(),
            "nobody will ever say that it is gone"
        );
    }

    #[test]
    fn a_place_that_stands_anew_while_its_old_key_is_seen_to_go_keeps_its_tasks() {
        let (mut book, place, [first, second]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        assert!(place.spend(&first));
        assert!(place.release(&first, Loss::Released, ReplyTo::Nobody, &mut acts));
        assert_eq!(place.lock().phase, Phase::Entering);
        evict(&mut book, &place, &keys, &mut acts);
        assert_eq!(place.lock().phase, Phase::Entering);
        assert!(matches!(second.stage(None), Stage::Asked), "its new key would stay for ever");
    }

    #[test]
    fn of_a_hold_whose_key_goes_the_tasks_behind_it_stand_anew_once() {
        let (mut book, place, [first, second]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        evict(&mut book, &place, &keys, &mut acts);
        assert_eq!(first.loss(), Some(Loss::KeyDeleted));
        assert_eq!(place.lock().phase, Phase::Entering);
        evict(&mut book, &place, &keys, &mut acts);
        assert!(matches!(second.stage(None), Stage::Asked));
        let anew = |act: &&Act| matches!(act, Act::EnterAnew { .. });
        assert_eq!(acts.0.iter().filter(anew).count(), 1);
    }

    #[test]
    fn what_a_late_write_has_bound_to_the_hold_of_a_lost_session_is_left_to_its_lease() {
        let (_, place, [turn]) = held();
        let mut acts = Acts::default();
        assert!(place.begin_txn(&turn));
        place.session.end(Moment::since_boot(std::time::Duration::from_secs(9)));
        let end = SessionEnd::NotRenewed;
        end_place(&place, Loss::SessionEnded(end), &LockError::SessionEnded(end), &mut acts);
        place.end_txn(true, vec![Bound::of_key(Bytes::from_static(b"bound"))], &mut acts);
        let tidies = |act: &Act| matches!(act, Act::Tidy { .. } | Act::Part { .. });
        assert!(
            !acts.0.iter().any(tidies),
            "it goes with the lock's own key, after the lock delay"
        );
    }
}
