//! Determines the queue positions of this node's entries, and grants the lock to those that may
//! hold it.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::super::error::LockError;
use super::super::place::{Act, Acts, EntryInner, Phase, Place, Turn};
use super::super::rule::{LockKind, Misfit, Rank, Rule};
use super::super::view::{self, LockEntry};
use super::{Book, fail_all, no_more, queue_of, update_value};
use crate::model::{KeyValue, Revision};
use crate::node::{ReplyTo, Shared};

impl Book {
    /// Handles the successful enqueue of an entry: determines its position, then runs the admin
    /// requests that arrived earlier.
    pub(in super::super) fn has_entered(
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

    /// Checks whether the entry is allowed in its queues, and grants the lock if the entry may hold
    /// it.
    pub(super) fn find_place(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        keys: &Arc<[Bytes]>,
        since: Revision,
        acts: &mut Acts,
    ) {
        if !Arc::ptr_eq(&place.lock().keys, keys) {
            // The entry received a transferred hold in the same iteration of the driver.
            return;
        }
        for (prefix, key) in place.prefixes.iter().zip(keys.iter()) {
            let Some(line) = self.lines.get_mut(prefix) else { return };
            if line.queue.is_none() {
                let rows = view::rows(shared, prefix);
                // The table has not processed rewrites of the row between the enqueue and this
                // read.
                let mine = |row: &&KeyValue| row.key == *key && row.create_revision == since;
                if let Some(row) = rows.iter().find(mine) {
                    update_value(place, key, &row.value, acts);
                }
                line.queue = Some(queue_of(rows));
            }
            let rank = (since, key.clone());
            if !line.queue.as_ref().is_some_and(|queue| queue.contains(&rank)) {
                // Another client deleted the key in the same iteration of the driver.
                {
                    let mut inner = place.lock();
                    if inner.phase == Phase::Entering && Arc::ptr_eq(&inner.keys, keys) {
                        inner.phase = Phase::Waiting { since };
                    }
                }
                if !self.find_handed(shared, place, acts) {
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
        // If nothing is ahead, go from Entering to Held in one step, so that a try call does not
        // see its own entry waiting.
        let end = place.session.end(shared.now());
        if self.is_its_turn(place, keys, since) && end.is_none() {
            return self.grant(shared, place, &mut inner, since, acts);
        }
        for (prefix, key) in place.prefixes.iter().zip(keys.iter()) {
            let line = self.lines.get_mut(prefix).expect("the queue was read above");
            line.waiting.insert((since, key.clone()), Arc::clone(place));
            let queue = line.queue.as_ref().expect("the queue was read above");
            let rank = (since, key.clone());
            if queue.rule(&rank).is_some_and(Rule::is_upgrade) {
                line.upgrades.insert(rank);
            }
        }
        let turns: Vec<Arc<Turn>> = inner.turns().cloned().collect();
        drop(inner);
        for turn in turns {
            if turn.only_try {
                // If the session has ended, the entry does not hold the lock even if nothing is
                // ahead of the entry.
                let why = match end {
                    Some(end) => LockError::SessionEnded(end),
                    None => {
                        let holder = self.in_the_way(shared, place, keys, since).map(Box::new);
                        LockError::WouldBlock { holder }
                    }
                };
                place.wait_no_more(&turn, why, acts);
            } else {
                turn.stands(since, acts);
            }
        }
    }

    /// If this entry must wait in one of its queues, returns the first other entry of that queue.
    fn in_the_way(
        &self,
        shared: &Shared,
        place: &Place,
        keys: &[Bytes],
        since: Revision,
    ) -> Option<LockEntry> {
        place.prefixes.iter().zip(keys).find_map(|(prefix, key)| {
            let queue = self.lines.get(prefix)?.queue.as_ref()?;
            let rank = (since, key.clone());
            let own = queue.rule(&rank).filter(|_| !queue.may_hold(&rank))?;
            // A reader that upgrades is not blocked by its own read entry.
            let is_own = |other: &Rank| matches!(own, Rule::Upgrade(of) if *of == other.1);
            let mut before =
                queue.iter().map(|(other, _)| other).take_while(|other| **other < rank);
            view::at(shared, queue, before.find(|other| !is_own(other))?)
        })
    }

    pub(super) fn judge(
        &self,
        place: &Place,
        keys: &[Bytes],
        since: Revision,
    ) -> Result<(), LockError> {
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

    pub(super) fn is_its_turn(&self, place: &Place, keys: &[Bytes], since: Revision) -> bool {
        let locks = if mutant!(B06) { 1 } else { keys.len() };
        place.prefixes.iter().zip(keys).take(locks).all(|(prefix, key)| {
            let queue = self.lines.get(prefix).and_then(|line| line.queue.as_ref());
            queue.is_some_and(|queue| queue.may_hold(&(since, key.clone())))
        })
    }

    pub(super) fn grant(
        &mut self,
        shared: &Shared,
        place: &Arc<Place>,
        inner: &mut EntryInner,
        since: Revision,
        acts: &mut Acts,
    ) {
        let granted = match mutant!(M25) {
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
        let turn = Arc::clone(inner.holder.as_ref().expect("the grant has set a holder"));
        if let Some(cap) = turn.cap {
            let until = (shared.now() + cap, self.number());
            turn.set_until(Some(until));
            self.keep_timer(Some(until), place, &turn);
        }
    }

    /// Handles a failed enqueue: the entry has no keys.
    pub(in super::super) fn not_entered(
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

    /// Handles the loss of an entry's key to another client. A hold is lost, and waiters lose their
    /// queue position. Waiters that share the entry with a holder are enqueued again. Changes that
    /// other threads have made to the entry since it was read are preserved.
    pub(super) fn is_evicted(
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
                // The entry was given up meanwhile. No other notification will report that its key
                // is gone.
                Phase::Gone => true,
                // The entry was re-enqueued. The handler of that enqueue's outcome handles the old
                // keys.
                _ => return,
            };
            if is_over {
            } else if was_held && inner.waiting() > 0 {
                inner.lose_all(place.session.lease, acts);
                inner.begin_again();
                // Only an entry with a single key has waiters in addition to a holder, so no other
                // key remains, and the name of this key can be reused.
                acts.0.push(Act::EnterAgain { place: Arc::clone(place), parting: None });
            } else {
                // The keys are deleted with the lease of the session.
                let session = place.session.ended().map(LockError::SessionEnded);
                inner.end(&session.unwrap_or(LockError::Evicted), place.session.lease, acts);
                if keys.len() > 1 {
                    let (place, parting) = (Arc::clone(place), no_more(keys, since));
                    acts.0.push(Act::Part { place, parting, reply: ReplyTo::Nobody });
                }
            }
        }
        // The keys that still exist are removed from the table when they are deleted.
        self.forget_absent(place, keys, since);
        let prefix = place.prefixes.iter().zip(keys.iter()).find(|(_, key)| Some(*key) == gone);
        if let (Some((prefix, _)), Some(key)) = (prefix, gone) {
            self.forget(place, prefix, key);
        }
    }

    /// Grants the lock to this node's waiting entries in a queue, as far as they may hold it.
    pub(in super::super) fn grant_waiting(
        &mut self,
        shared: &Shared,
        prefix: &Bytes,
        acts: &mut Acts,
    ) {
        let (mut due, mut bereft, mut behind_foreign) = (Vec::new(), Vec::new(), Vec::new());
        {
            let Some(line) = self.lines.get(prefix) else { return };
            let Some(queue) = &line.queue else { return };
            if let Some((_, key)) = queue.first().map(|(rank, _)| rank)
                && let Some(place) = line.local.get(key)
            {
                place.is_contended.store(queue.len() > 1, Ordering::Relaxed);
            }
            if let Some(foreign) = queue.first_foreign() {
                let behind = line.waiting.range((Bound::Excluded(foreign), Bound::Unbounded));
                behind_foreign.extend(behind.map(|(_, place)| Arc::clone(place)));
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
        // These are upgrades whose read entry is gone.
        for place in bereft {
            fail_all(&place, &LockError::Evicted, acts);
        }
        for place in behind_foreign {
            fail_all(&place, &LockError::KindMismatch { stored: LockKind::Foreign }, acts);
        }
        for ((since, key), place) in due {
            let mut inner = place.lock();
            let keys = Arc::clone(&inner.keys);
            if inner.phase != (Phase::Waiting { since }) || !keys.contains(&key) {
                drop(inner);
                self.wait_no_more(prefix, &(since, key));
                continue;
            }
            // A grant is delivered only while the session is valid.
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

    pub(super) fn wait_no_more(&mut self, prefix: &Bytes, rank: &Rank) {
        let Some(line) = self.lines.get_mut(prefix) else { return };
        line.waiting.remove(rank);
        line.upgrades.remove(rank);
    }
}
