//! What is known of the lines that tasks of this node stand in, and how it follows the replica.
//!
//! All of it runs under the book's lock, most of it on the driver's thread. Nothing is said to anybody
//! from here: that is collected in [`Acts`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::model::{KeyValue, LeaseId, Moment, Revision};
use crate::node::{ReplyTo, Shared, SharedSession};

mod follow;
mod grant;

use follow::says_anew;

use super::digits::number_in;
use super::error::{LockError, LostReason};
use super::head_count::{HeadCount, HeadCounts, Part};
use super::line::{Ask, parent, prefix_of};
use super::place::{Acts, Parting, Phase, Place, Stage, Turn};
use super::rule::{Queue, Rank};
use super::stance::Stance;
use super::token::Token;
use super::view;

/// A task's turn, and the place that it is a turn of.
pub(super) type QueuedWaiter = (Arc<Place>, Arc<Turn>);

/// See the module.
#[derive(Default)]
pub(super) struct Book {
    /// By prefix.
    lines: BTreeMap<Bytes, Line>,
    /// The places that live with each lease, by their numbers. A lease that was resumed has places of
    /// two sessions.
    sessions: BTreeMap<LeaseId, BTreeMap<u64, Arc<Place>>>,
    timers: BTreeMap<(Moment, u64), QueuedWaiter>,
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
    /// The numbers of the keys that this node had here and has seen to be deleted, by their leases.
    free: BTreeMap<LeaseId, BTreeSet<u64>>,
    /// This node's tasks that ask for this lock.
    head_count: Arc<HeadCount>,
}

/// Of so many leases a line remembers which numbers are free: of the others they are not used again.
const LEASES_WITH_FREE_NAMES_MAX: usize = 64;

impl Line {
    /// Whether one of this node's places has this key now, or will when its entering has come true. Of a place that is
    /// over, or has stepped into line anew, the key may be another's by now.
    fn has(&self, key: &Bytes) -> bool {
        self.local.get(key).is_some_and(|place| {
            let inner = place.lock();
            inner.phase != Phase::Gone && inner.keys.contains(key)
        })
    }

    /// The key of a place of this lease was deleted: its name is free. Names are used again because each that was ever
    /// used takes room in the store until that is compacted, and is passed over by whoever reads the line.
    ///
    /// Only here: what is otherwise known to be no key of this node may be another's, who was handed it and may hand it
    /// back. Whatever may still come of the place that had it names the revision that had made the key, too.
    fn is_deleted(&mut self, prefix: &[u8], key: &[u8], lease: LeaseId) {
        let plain = [prefix, lease.to_string().as_bytes(), b"."].concat();
        let Some(number) = key.strip_prefix(&plain[..]).and_then(number_in::<u64>) else { return };
        if self.free.len() >= LEASES_WITH_FREE_NAMES_MAX && !self.free.contains_key(&lease) {
            self.free.clear();
        }
        self.free.entry(lease).or_default().insert(number);
    }
}

/// A key in a line: as etcd names it, or a further one of the same lease.
fn numbered(prefix: &Bytes, lease: LeaseId, number: Option<u64>) -> Bytes {
    let number = number.map(|number| format!(".{number}")).unwrap_or_default();
    [&prefix[..], lease.to_string().as_bytes(), number.as_bytes()].concat().into()
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
    ) -> Result<Option<QueuedWaiter>, LockError> {
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
            let queue = self.lines.get(&prefix).and_then(|line| line.queue.as_ref());
            let first = queue.and_then(|queue| Some((queue, queue.first()?.0)));
            let holder = first.and_then(|(queue, first)| view::at(shared, queue, first));
            return Err(LockError::WouldBlock { holder: holder.map(Box::new) });
        }
        if self.is_full(&prefix, max) {
            return Err(LockError::QueueFull { max });
        }
        let deadline = ask.deadline.map(|deadline| (deadline, self.number()));
        let turn = inner.queue(ask.only_try, deadline, ask.cap, ask.is_owned);
        drop(inner);
        self.keep_timer(deadline, &place, &turn);
        Ok(Some((place, turn)))
    }

    pub(super) fn new_place(
        &mut self,
        shared: &Shared,
        ask: &Ask<'_>,
        max: usize,
    ) -> Result<Arc<Place>, LockError> {
        let prefixes: Box<[Bytes]> = ask.names.iter().map(prefix_of).collect();
        if prefixes.iter().any(|prefix| self.is_full(prefix, max)) {
            return Err(LockError::QueueFull { max });
        }
        let keys = self.new_keys(shared, &prefixes, ask.session.lease);
        let (id, session) = (self.number(), Arc::clone(ask.session));
        let value = (ask.value)();
        let counts = self.counts(&prefixes);
        let place = Place::new(id, prefixes, keys, session, value, ask.is_shared, counts);
        let place = Arc::new(place);
        self.welcome(&place);
        Ok(place)
    }

    /// Reports whether as many tasks of this node wait for a lock as may.
    fn is_full(&self, prefix: &Bytes, max: usize) -> bool {
        let waiting = self.lines.get(prefix).map_or(0, |line| line.head_count.count(Part::Waits));
        waiting >= max as u64
    }

    /// The counts of a place in these lines.
    pub(super) fn counts(&mut self, prefixes: &[Bytes]) -> HeadCounts {
        let lines = prefixes
            .iter()
            .map(|prefix| Arc::clone(&self.lines.entry(prefix.clone()).or_default().head_count));
        [Arc::clone(&self.head_count)].into_iter().chain(lines).collect()
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

    /// New keys in these lines, for a place of this lease.
    fn new_keys(&mut self, shared: &Shared, prefixes: &[Bytes], lease: LeaseId) -> Arc<[Bytes]> {
        let stands = |key: &Bytes| shared.reader.get(key).0.is_some();
        prefixes.iter().map(|prefix| self.new_key(prefix, lease, stands)).collect()
    }

    /// A key in a line that no place of this node has, and that does not stand there: etcd's own name if that is free,
    /// and one that cannot collide with it for the next. A name is free again only when its key is known to be gone.
    /// One that stands and is nobody's here was handed to another, who may hand it back while what is asked for now is
    /// under way: then nobody could tell which of two places has it.
    fn new_key(
        &mut self,
        prefix: &Bytes,
        lease: LeaseId,
        stands: impl Fn(&Bytes) -> bool,
    ) -> Bytes {
        let mut name = numbered(prefix, lease, None);
        while self.local(&name).is_some() || stands(&name) {
            let line = self.lines.get_mut(prefix);
            let free = line.and_then(|line| line.free.get_mut(&lease)?.pop_first());
            let number = free.unwrap_or_else(|| self.number());
            name = numbered(prefix, lease, Some(number));
        }
        name
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
    pub(super) fn rename(&mut self, shared: &Shared, place: &Arc<Place>) -> Arc<[Bytes]> {
        let keys = self.new_keys(shared, &place.prefixes, place.session.lease);
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
        session: &Arc<SharedSession>,
        token: Token,
    ) -> Option<QueuedWaiter> {
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

    pub(super) fn before(&self, place: &Arc<Place>, turn: &Turn) -> Option<usize> {
        before(place, turn, &self.before_each([place]))
    }

    /// How many are before each of these places in its lines, by its ranks there.
    fn before_each<'a>(
        &self,
        places: impl IntoIterator<Item = &'a Arc<Place>>,
    ) -> BTreeMap<Rank, usize> {
        let mut ranks: BTreeMap<&Bytes, BTreeSet<Rank>> = BTreeMap::new();
        for place in places {
            let inner = place.lock();
            if let Some(since) = inner.since() {
                for (prefix, key) in place.prefixes.iter().zip(inner.keys.iter()) {
                    ranks.entry(prefix).or_default().insert((since, key.clone()));
                }
            }
        }
        let in_line = |(prefix, ranks)| {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            queue.map(|queue| queue.before_each(ranks)).unwrap_or_default()
        };
        ranks.into_iter().flat_map(in_line).collect()
    }

    /// Ends what has waited, or was held, for too long. Answers with the holds to end.
    pub(super) fn ring(&mut self, now: Moment, acts: &mut Acts) -> Vec<QueuedWaiter> {
        let (mut held_too_long, mut late) = (Vec::new(), Vec::new());
        while let Some(timer) = self.timers.first_entry() {
            if timer.key().0 > now {
                break;
            }
            let (place, turn) = timer.remove();
            match turn.stage(None) {
                Stage::Holds(_) => {
                    if turn.until().is_some_and(|until| until <= now) {
                        held_too_long.push((place, turn));
                    }
                }
                Stage::Failed(_) => {}
                Stage::Asked | Stage::Stands(_) => late.push((place, turn)),
            }
        }
        // Where many are late at once, each line is passed over once.
        let in_line = self.before_each(late.iter().map(|(place, _)| place));
        for (place, turn) in late {
            let why = match before(&place, &turn, &in_line) {
                Some(before) => LockError::TimedOut { before },
                None => LockError::Unavailable,
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
            end_place(&place, LostReason::SessionEnded(end), &LockError::SessionEnded(end), acts);
        }
    }
}

/// How many are before a turn, with so many before its place `in_line`.
fn before(place: &Place, turn: &Turn, in_line: &BTreeMap<Rank, usize>) -> Option<usize> {
    let inner = place.lock();
    let since = inner.since()?;
    let in_line = inner.keys.iter().filter_map(|key| in_line.get(&(since, key.clone())));
    let holder = usize::from(inner.holder.is_some());
    Some(in_line.max().copied().unwrap_or_default() + holder + inner.before(turn))
}

/// What was lost: those of the keys that are left go.
pub(super) fn no_more(keys: &Arc<[Bytes]>, since: Revision) -> Parting {
    let (keys, bound) = (Arc::clone(keys), Vec::new());
    Parting { keys, since, bound, is_spent: false, successor: None, is_told: false }
}

/// Nobody who waits for this place will have it.
fn fail_all(place: &Arc<Place>, why: &LockError, acts: &mut Acts) {
    let turns: Vec<Arc<Turn>> = place.lock().turns().cloned().collect();
    for turn in turns {
        place.wait_no_more(&turn, why.clone(), acts);
    }
}

/// A place ends with its session, or its node. What it held is left to the lease.
pub(super) fn end_place(place: &Arc<Place>, loss: LostReason, why: &LockError, acts: &mut Acts) {
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
        let rule = Stance::rule_in_line(&row.key, &row.value);
        queue.insert((row.create_revision, row.key), rule);
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Change;
    use crate::model::{Event, EventKind};
    use crate::node::SessionEndReason;
    use crate::recipes::place::{Act, Bound, Load};

    const SINCE: Revision = Revision(2);

    /// A book with one place in it, which holds since revision 2, with a turn of each of so many tasks.
    fn held<const TASKS: usize>() -> (Book, Arc<Place>, [Arc<Turn>; TASKS]) {
        let (prefix, key) = (Bytes::from_static(b"lock/"), Bytes::from_static(b"lock/5"));
        let (lease, until) =
            (LeaseId::new(5).unwrap(), Moment::since_boot(std::time::Duration::from_secs(9)));
        let session = Arc::new(SharedSession::believed_until(lease, until));
        let mut book = Book::default();
        let counts = book.counts(std::slice::from_ref(&prefix));
        let (prefixes, keys) = ([prefix.clone()].into(), [key.clone()].into());
        let place = Arc::new(Place::new(1, prefixes, keys, session, Bytes::new(), true, counts));
        let turns = std::array::from_fn(|_| place.lock().queue(false, None, None, false));
        let mut acts = Acts::default();
        assert!(place.lock().give(SINCE, SINCE, &mut acts));
        book.welcome(&place);
        // The key is gone: deleted by hand, or with the lease.
        book.lines.get_mut(&prefix).unwrap().queue = Some(Queue::default());
        (book, place, turns)
    }

    #[test]
    fn a_name_is_used_again_when_its_key_is_known_to_be_gone_and_not_before() {
        let (mut book, place, [_turn]) = held();
        let lease = place.session.lease;
        let [prefix, plain] = ["lock/", "lock/5"].map(Bytes::from);
        let stand = |book: &mut Book| {
            let (id, key) = (book.number(), book.new_key(&prefix, lease, |_| false));
            let (session, counts) =
                (Arc::clone(&place.session), book.counts(std::slice::from_ref(&prefix)));
            let (prefixes, keys) = ([prefix.clone()].into(), [key.clone()].into());
            let next = Place::new(id, prefixes, keys, session, Bytes::new(), false, counts);
            let next = Arc::new(next);
            book.welcome(&next);
            (next, key)
        };
        let [one, two, three] = [(); 3].map(|()| stand(&mut book));
        assert!(one.1 != two.1 && two.1 != three.1 && three.1 != one.1);
        // Given up, its key may be there still; or it is not this node's any more, and another's.
        two.0.lock().phase = Phase::Gone;
        book.forget(&one.0, &prefix, &one.1);
        let four = stand(&mut book);
        assert!([&one.1, &two.1, &three.1].iter().all(|name| **name != four.1));
        let mut is_deleted = |(place, key): &(Arc<Place>, Bytes)| {
            book.forget(place, &prefix, key);
            book.lines.get_mut(&prefix).unwrap().is_deleted(&prefix, key, lease);
        };
        is_deleted(&two);
        is_deleted(&four);
        let again = BTreeSet::from([stand(&mut book).1, stand(&mut book).1]);
        assert_eq!(again, BTreeSet::from([two.1, four.1]));
        book.forget(&place, &prefix, &plain);
        // It was handed to another, and stands.
        let other = book.new_key(&prefix, lease, |name| *name == plain);
        assert_ne!(other, plain);
        assert_eq!(stand(&mut book).1, plain, "etcd's own name first");
    }

    /// A change: by each key, the lease that had its row and the one that has it now, since revision 2 always.
    fn change(rows: &[(&'static str, Option<u64>, Option<u64>)]) -> Change {
        let row = |key: &'static str, lease: u64, modified| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(b"of the successor"),
            create_revision: SINCE,
            mod_revision: modified,
            version: 2,
            lease: LeaseId::new(lease),
        };
        let event = |&(key, before, now): &(_, Option<u64>, Option<u64>)| Event {
            kind: if now.is_some() { EventKind::Put } else { EventKind::Delete },
            kv: row(key, now.unwrap_or_default(), Revision(9)),
            prev: before.map(|lease| row(key, lease, Revision(8))),
        };
        Change { revision: Revision(9), events: rows.iter().map(event).collect() }
    }

    fn follow(book: &mut Book, rows: &[(&'static str, Option<u64>, Option<u64>)]) {
        let change = change(rows);
        let (mut touched, mut orders, mut acts) = Default::default();
        book.follow(&change, &mut touched, &mut orders, &mut acts);
    }

    #[test]
    fn what_is_handed_back_is_its_heirs_though_who_had_it_before_is_not_forgotten() {
        // That the key was another's meanwhile this node has not followed.
        let (mut book, before, [_turn]) = held();
        before.lock().phase = Phase::Gone;
        let (prefix, counts) = (before.prefixes[0].clone(), book.counts(&before.prefixes));
        let key = book.new_key(&prefix, before.session.lease, |_| false);
        let (prefixes, keys, session) = ([prefix].into(), [key].into(), &before.session);
        let successor =
            Place::new(2, prefixes, keys, Arc::clone(session), Bytes::new(), false, counts);
        let successor = Arc::new(successor);
        book.welcome(&successor);
        let turn = successor.lock().queue(false, None, None, false);
        successor.lock().phase = Phase::Waiting { since: SINCE };
        follow(&mut book, &[("lock/5", Some(7), Some(5)), ("lock/5.1", Some(5), None)]);
        assert!(matches!(turn.stage(None), Stage::Asked));
        assert_eq!(successor.lock().keys[..], ["lock/5"]);
        assert!(book.local(b"lock/5").is_some_and(|place| Arc::ptr_eq(place, &successor)));
        assert!(book.local(b"lock/5.1").is_none());
    }

    #[test]
    fn what_a_row_says_that_changes_hands_is_not_said_by_who_asks_for_its_name() {
        let (mut book, place, [_turn]) = held();
        place.lock().phase = Phase::Entering;
        follow(&mut book, &[("lock/5", Some(7), Some(5))]);
        assert_eq!(place.lock().value, "");
        follow(&mut book, &[("lock/5", Some(5), Some(5))]);
        assert_eq!(place.lock().value, "of the successor");
    }

    fn evict(book: &mut Book, place: &Arc<Place>, keys: &Arc<[Bytes]>, acts: &mut Acts) {
        book.is_evicted(place, keys, SINCE, Some(&keys[0]), acts);
    }

    #[test]
    fn a_place_that_is_given_up_while_its_key_is_seen_to_go_is_forgotten() {
        let (mut book, place, [turn]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        // It was seen to hold; then its task releases, on another thread; then that its key went is judged.
        assert!(place.release(&turn, LostReason::Released, ReplyTo::Nobody, &mut acts));
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
        assert!(place.release(&first, LostReason::Released, ReplyTo::Nobody, &mut acts));
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
        assert_eq!(first.loss(), Some(LostReason::KeyDeleted));
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
        let bound = vec![Bound::of_key(Bytes::from_static(b"bound"))];
        let binds = Load::of(&bound);
        assert_eq!(place.begin_txn(&turn, binds), Ok(true));
        place.session.end(Moment::since_boot(std::time::Duration::from_secs(9)));
        let end = SessionEndReason::NotRenewed;
        end_place(&place, LostReason::SessionEnded(end), &LockError::SessionEnded(end), &mut acts);
        place.end_txn(binds, true, bound, &mut acts);
        let tidies = |act: &Act| matches!(act, Act::Tidy { .. } | Act::Part { .. });
        assert!(
            !acts.0.iter().any(tidies),
            "it goes with the lock's own key, after the lock delay"
        );
    }
}
