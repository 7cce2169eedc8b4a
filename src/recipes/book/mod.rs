//! The state of the lock table: all lock queues with entries of this node, updated with every
//! change that the replica applies.
//!
//! All code of this module runs under the lock of the table, most of it on the driver's thread. The
//! code notifies no task and proposes nothing while the lock is held. It adds these actions to an
//! [`Acts`] value, which is run after the lock is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::model::{KeyValue, LeaseId, Moment, Revision};
use crate::node::{ReplyTo, Shared, SharedSession};

mod follow;
mod grant;

use follow::update_value;

use super::digits::number_in;
use super::error::{LockError, LostReason};
use super::head_count::{HeadCount, HeadCounts, Part};
use super::line::{Ask, parent, prefix_of};
use super::place::{Acts, Parting, Phase, Place, Stage, Turn};
use super::rule::{LockQueue, Rank};
use super::stance::Stance;
use super::token::Token;
use super::view;

/// A waiter and its queue entry.
pub(super) type QueuedWaiter = (Arc<Place>, Arc<Turn>);

/// The state of the lock table; see the module.
#[derive(Default)]
pub(super) struct Book {
    /// Lock queues by key prefix.
    lines: BTreeMap<Bytes, Line>,
    /// The entries of each lease, by number. A resumed lease may have entries of two sessions.
    sessions: BTreeMap<LeaseId, BTreeMap<u64, Arc<Place>>>,
    timers: BTreeMap<(Moment, u64), QueuedWaiter>,
    /// Keys that a session has transferred away while transactions under the old hold may still be
    /// applied, by lease, key and create revision. The session must not hold a lock with these keys
    /// again.
    spent: BTreeSet<(LeaseId, Bytes, Revision)>,
    /// Source of numbers for entries, timers and keys.
    counter: u64,
    head_count: Arc<HeadCount>,
}

#[derive(Default)]
struct Line {
    /// Entries of all nodes. `None` until the outcome of the first local enqueue is known.
    queue: Option<LockQueue>,
    /// This node's entries by key. An entry stays until its key is known to be deleted.
    local: BTreeMap<Bytes, Arc<Place>>,
    /// This node's waiting entries in queue order. Some of them may have left the queue.
    waiting: BTreeMap<Rank, Arc<Place>>,
    /// The entries that other tasks of the same session may share.
    open: BTreeMap<LeaseId, Arc<Place>>,
    /// The waiting entries that are upgrades. An upgrade may overtake other entries.
    upgrades: BTreeSet<Rank>,
    /// Numbers of key names that can be reused, by lease: this node has seen the deletion of their
    /// keys.
    free: BTreeMap<LeaseId, BTreeSet<u64>>,
    /// Counts of this node's holders and waiters of this lock.
    head_count: Arc<HeadCount>,
}

/// Maximum number of leases per queue for which reusable key names are remembered. Names of further
/// leases are not reused.
const LEASES_WITH_FREE_NAMES_MAX: usize = 64;

impl Line {
    /// Reports whether one of this node's entries has this key, or will have it when its enqueue is
    /// applied. The key of an entry that has ended or was re-enqueued may meanwhile belong to
    /// another entry.
    fn has(&self, key: &Bytes) -> bool {
        self.local.get(key).is_some_and(|place| {
            let inner = place.lock();
            inner.phase != Phase::Gone && inner.keys.contains(key)
        })
    }

    /// Records that the key of an entry of this lease was deleted, so that its name can be reused.
    /// Reusing names saves space and time: each name that was ever used takes space until the next
    /// compaction, and every scan of the queue visits it.
    ///
    /// A name may be reused only after the deletion of its key. A key that merely does not belong
    /// to this node may have been transferred to another session, which may transfer it back.
    /// Operations of the old entry that are still in flight compare the create revision too, so
    /// they do not affect a reused name.
    fn is_deleted(&mut self, prefix: &[u8], key: &[u8], lease: LeaseId) {
        let plain = [prefix, lease.to_string().as_bytes(), b"."].concat();
        let Some(number) = key.strip_prefix(&plain[..]).and_then(number_in::<u64>) else { return };
        if self.free.len() >= LEASES_WITH_FREE_NAMES_MAX && !self.free.contains_key(&lease) {
            self.free.clear();
        }
        self.free.entry(lease).or_default().insert(number);
    }
}

/// Returns the key of a lease in a queue: the name that etcd uses, or that name with a number.
fn numbered(prefix: &Bytes, lease: LeaseId, number: Option<u64>) -> Bytes {
    let number = number.map(|number| format!(".{number}")).unwrap_or_default();
    [&prefix[..], lease.to_string().as_bytes(), number.as_bytes()].concat().into()
}

impl Book {
    pub(super) fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Records keys that were transferred away while transactions under the old hold may still be
    /// applied.
    pub(super) fn keep_spent(&mut self, lease: LeaseId, keys: &[Bytes], since: Revision) {
        self.spent.extend(keys.iter().map(|key| (lease, key.clone(), since)));
    }

    /// Returns the counts of this node's holders and waiters.
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

    /// If other tasks of the session have an entry in this queue that can be shared, adds a waiter
    /// to it.
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

    /// Reports whether this node already has the maximum number of waiters for a lock.
    fn is_full(&self, prefix: &Bytes, max: usize) -> bool {
        let waiting = self.lines.get(prefix).map_or(0, |line| line.head_count.count(Part::Waits));
        waiting >= max as u64
    }

    /// Returns the counters for an entry in these queues.
    pub(super) fn counts(&mut self, prefixes: &[Bytes]) -> HeadCounts {
        let lines = prefixes
            .iter()
            .map(|prefix| Arc::clone(&self.lines.entry(prefix.clone()).or_default().head_count));
        [Arc::clone(&self.head_count)].into_iter().chain(lines).collect()
    }

    /// Adds an entry to the table.
    pub(super) fn welcome(&mut self, place: &Arc<Place>) {
        self.keep(place);
        let kept = self.sessions.entry(place.session.lease).or_default();
        kept.insert(place.id, Arc::clone(place));
    }

    /// Returns this node's entry with this key.
    pub(super) fn local(&self, key: &[u8]) -> Option<&Arc<Place>> {
        self.lines.get(parent(key)?)?.local.get(key)
    }

    /// Returns new keys in these queues for an entry of this lease.
    fn new_keys(&mut self, shared: &Shared, prefixes: &[Bytes], lease: LeaseId) -> Arc<[Bytes]> {
        let stands = |key: &Bytes| shared.reader.get(key).0.is_some();
        prefixes.iter().map(|prefix| self.new_key(prefix, lease, stands)).collect()
    }

    /// Returns a key that no entry of this node uses and that does not exist in the queue. This is
    /// the name that etcd uses if that name is free, otherwise the name with a number. A name
    /// becomes free only when its key is known to be deleted.
    ///
    /// A key that exists without a local entry was transferred to another session. That session may
    /// transfer the key back while the new request is in flight. Two entries of this node would
    /// then claim the same key.
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

    /// Registers the entry under its keys in their queues.
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

    /// Assigns new keys to an entry that will be re-enqueued.
    pub(super) fn rename(&mut self, shared: &Shared, place: &Arc<Place>) -> Arc<[Bytes]> {
        let keys = self.new_keys(shared, &place.prefixes, place.session.lease);
        place.lock().keys = Arc::clone(&keys);
        self.keep(place);
        keys
    }

    /// Removes a key that is known to be deleted.
    fn forget(&mut self, place: &Arc<Place>, prefix: &Bytes, key: &Bytes) {
        let Some(line) = self.lines.get_mut(prefix) else { return };
        // The name may already belong to another entry.
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

    /// Removes the old keys of a re-enqueued entry that no longer exist.
    pub(super) fn forget_absent(&mut self, place: &Arc<Place>, keys: &[Bytes], since: Revision) {
        for (prefix, key) in place.prefixes.iter().zip(keys) {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            if queue.is_none_or(|queue| !queue.contains(&(since, key.clone()))) {
                self.forget(place, prefix, key);
            }
        }
    }

    /// Reports whether the table has no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Clears the table and returns all entries.
    pub(super) fn close(&mut self) -> impl Iterator<Item = Arc<Place>> + use<> {
        let lines = std::mem::take(self).lines;
        lines.into_values().flat_map(|line| line.local.into_values())
    }

    /// Returns the entry and the waiter of this session that hold the lock with this token.
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

    pub(super) fn forget_timer(&mut self, timer: (Moment, u64)) {
        self.timers.remove(&timer);
    }

    pub(super) fn before(&self, place: &Arc<Place>, turn: &Turn) -> Option<usize> {
        before(place, turn, &self.before_each([place]))
    }

    /// Returns the number of entries ahead of each of these entries, by queue position.
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

    /// Fires the timers that are due. Fails waiters whose deadline has passed, and returns the
    /// holds whose time limit has passed, so that the caller releases them.
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
        // If many deadlines pass at once, scan each queue only once.
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

    /// Ends the entries of sessions that have ended. The end of the lease deletes the keys of
    /// holds. This method deletes the keys of waiters, because the lease may live on.
    pub(super) fn end_sessions(&mut self, now: Moment, acts: &mut Acts) {
        let mut ended = Vec::new();
        for places in self.sessions.values() {
            let mut last = None;
            for place in places.values() {
                // Usually all entries belong to one session, so check that session only once.
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

/// Returns the number of requests ahead of a waiter: in the queue (`in_line`) and within its entry.
fn before(place: &Place, turn: &Turn, in_line: &BTreeMap<Rank, usize>) -> Option<usize> {
    let inner = place.lock();
    let since = inner.since()?;
    let in_line = inner.keys.iter().filter_map(|key| in_line.get(&(since, key.clone())));
    let holder = usize::from(inner.holder.is_some());
    Some(in_line.max().copied().unwrap_or_default() + holder + inner.before(turn))
}

/// Returns the release plan of a lost hold: its remaining keys are deleted.
pub(super) fn no_more(keys: &Arc<[Bytes]>, since: Revision) -> Parting {
    let (keys, bound) = (Arc::clone(keys), Vec::new());
    Parting { keys, since, bound, is_spent: false, successor: None, is_told: false }
}

/// Fails all waiters of an entry.
fn fail_all(place: &Arc<Place>, why: &LockError, acts: &mut Acts) {
    let turns: Vec<Arc<Turn>> = place.lock().turns().cloned().collect();
    for turn in turns {
        place.wait_no_more(&turn, why.clone(), acts);
    }
}

/// Ends an entry because its session or its node has ended. The keys of a hold are left to the
/// lease.
pub(super) fn end_place(place: &Arc<Place>, loss: LostReason, why: &LockError, acts: &mut Acts) {
    let mut inner = place.lock();
    inner.fail(why, acts);
    match inner.phase {
        // The hold was already released. Transactions that are still in flight will find its key
        // deleted.
        Phase::Held { since, .. } if inner.holder.is_none() => {
            let reply = inner.take_releasing().unwrap_or(ReplyTo::Nobody);
            return place.leave(&mut inner, since, reply, acts);
        }
        Phase::Held { .. } => inner.phase = Phase::Gone,
        Phase::Waiting { .. } => place.rest(&mut inner, ReplyTo::Nobody, acts),
        // The outcome of the enqueue decides what happens to the key.
        Phase::Entering | Phase::Gone => {}
    }
    inner.lose(loss, acts);
}

/// Builds a lock queue from its rows.
fn queue_of(rows: Vec<KeyValue>) -> LockQueue {
    let mut queue = LockQueue::default();
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

    /// Returns a lock table with one entry that holds since revision 2, and a waiter for each of
    /// `TASKS` tasks.
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
        // The key is missing from the queue, as after a manual deletion or an expired lease.
        book.lines.get_mut(&prefix).unwrap().queue = Some(LockQueue::default());
        (book, place, turns)
    }

    #[test]
    fn key_name_is_reused_only_after_its_known_deletion() {
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
        // The entry was given up, but its key may still exist or may meanwhile belong to another
        // session.
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
        // The key was transferred to another session and exists.
        let other = book.new_key(&prefix, lease, |name| *name == plain);
        assert_ne!(other, plain);
        assert_eq!(stand(&mut book).1, plain, "etcd's own name first");
    }

    /// Builds a change from keys with their old and new lease. Their create revision is always 2.
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
    fn returned_key_belongs_to_the_successor() {
        // This node has not applied the change in which the key belonged to another session.
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
    fn row_value_is_recorded_only_once_the_entry_owns_its_key() {
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
    fn entry_released_during_eviction_is_removed() {
        let (mut book, place, [turn]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        // The entry held. The task of the holder releases it on another thread before the deletion
        // of the key is processed.
        assert!(place.release(&turn, LostReason::Released, ReplyTo::Nobody, &mut acts));
        assert_eq!(place.lock().phase, Phase::Gone);
        evict(&mut book, &place, &keys, &mut acts);
        assert!(
            book.is_empty() && book.sessions.is_empty(),
            "nobody will ever say that it is gone"
        );
    }

    #[test]
    fn requeued_entry_keeps_its_waiters_during_eviction() {
        let (mut book, place, [first, second]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        assert!(place.spend(&first));
        assert!(place.release(&first, LostReason::Released, ReplyTo::Nobody, &mut acts));
        assert_eq!(place.lock().phase, Phase::Entering);
        evict(&mut book, &place, &keys, &mut acts);
        assert_eq!(place.lock().phase, Phase::Entering);
        assert!(matches!(second.stage(None), Stage::Asked), "its new key would stay forever");
    }

    #[test]
    fn waiters_behind_an_evicted_hold_requeue_once() {
        let (mut book, place, [first, second]) = held();
        let (keys, mut acts) = (Arc::clone(&place.lock().keys), Acts::default());
        evict(&mut book, &place, &keys, &mut acts);
        assert_eq!(first.loss(), Some(LostReason::KeyDeleted));
        assert_eq!(place.lock().phase, Phase::Entering);
        evict(&mut book, &place, &keys, &mut acts);
        assert!(matches!(second.stage(None), Stage::Asked));
        let again = |act: &&Act| matches!(act, Act::EnterAgain { .. });
        assert_eq!(acts.0.iter().filter(again).count(), 1);
    }

    #[test]
    fn keys_bound_late_are_left_to_the_lost_sessions_lease() {
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
