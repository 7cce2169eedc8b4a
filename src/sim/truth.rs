//! The real history of the store, revision by revision, as the replicas apply it. The first replica that applies a
//! revision defines it, every other one must agree, and every reply is checked against it. The history is only a
//! fold over events and shares no code with the state machine.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;

use super::violation::Violation;
use crate::model::{Event, EventKind, KeyRange, KeyValue, LeaseId, Revision};

/// The change of a key at a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fact {
    pub(crate) kind: EventKind,
    pub(crate) kv: KeyValue,
}

impl Fact {
    /// Returns the row after the change, if it exists.
    pub(crate) fn row(&self) -> Option<&KeyValue> {
        (self.kind == EventKind::Put).then_some(&self.kv)
    }

    pub(crate) fn is(&self, event: &Event) -> bool {
        (self.kind, &self.kv) == (event.kind, &event.kv)
    }
}

/// The real history of the store.
#[derive(Default)]
pub(crate) struct Truth {
    /// All changes, in order.
    facts: Vec<Fact>,
    /// For each revision from 2 on, the number of facts up to and including it.
    ends: Vec<usize>,
    /// The facts about each key: their revisions and indices. The hash maps here are only used to look up single
    /// keys, so their order has no effect.
    history: HashMap<Bytes, Vec<(Revision, usize)>>,
    /// Every value that was ever put, with its revision. The workload never puts a value twice, so a second
    /// occurrence means that a request was applied twice.
    put_at: HashMap<Bytes, Revision>,
    /// Values of requests that were reported as not applied.
    refused: HashSet<Bytes>,
    /// Keys that must not be deleted, with the invariant that a deletion would break.
    stay: HashMap<Bytes, &'static str>,
    /// Whether values may be put more than once, as the program of a user's scenario may do.
    repeats: bool,
    /// Leases that have ended, with the latest possible revision of their end.
    ended: BTreeMap<LeaseId, Revision>,
    /// Existing keys at the newest revision, with the indices of their last facts.
    alive: BTreeMap<Bytes, usize>,
    /// The keys that were ever put with each lease.
    leased: BTreeMap<LeaseId, BTreeSet<Bytes>>,
}

impl Truth {
    /// Allows values to be put more than once from now on.
    pub(crate) fn values_repeat(&mut self) {
        self.repeats = true;
    }

    /// Returns the newest revision that any replica has applied.
    pub(crate) fn newest(&self) -> Revision {
        Revision(self.ends.len() as u64 + 1)
    }

    /// Adds a revision that a replica has applied with these events, or compares it.
    pub(crate) fn learn(&mut self, revision: Revision, events: &[Event]) -> Result<(), Violation> {
        if revision <= self.newest() {
            return self.compare(revision, events);
        }
        if revision != self.newest().next() {
            let newest = self.newest();
            return Violation::found("M-DENSE", format!("{revision:?} follows {newest:?}"));
        }
        if events.is_empty() {
            return Violation::found("M-DENSE", format!("{revision:?} changes nothing"));
        }
        let mut keys = BTreeSet::new();
        for event in events {
            if events.len() > 1 && !keys.insert(&event.kv.key) {
                return Violation::found(
                    "W-UNIQUE",
                    format!("{revision:?} has a key twice: {event:?}"),
                );
            }
            self.fold(revision, event)?;
        }
        self.ends.push(self.facts.len());
        Ok(())
    }

    fn compare(&self, revision: Revision, events: &[Event]) -> Result<(), Violation> {
        if revision < Revision(2) {
            return Violation::found("M-DENSE", format!("{revision:?} has events: {events:?}"));
        }
        let facts = self.between(Revision(revision.get() - 1), revision);
        if facts.len() == events.len() && facts.iter().zip(events).all(|(a, b)| a.is(b)) {
            return Ok(());
        }
        let (first, second) = (facts, events);
        Violation::found(
            "R-SM",
            format!("{revision:?} is {first:?} on one and {second:?} on another"),
        )
    }

    fn fold(&mut self, revision: Revision, event: &Event) -> Result<(), Violation> {
        let before = self.row_at(&event.kv.key, Revision(revision.get() - 1));
        let before = before.map(|row| (row.create_revision, row.version));
        if event.kv.mod_revision != revision {
            return Violation::found(
                "M-KEY",
                format!("{revision:?} has an event of another: {event:?}"),
            );
        }
        let (key, place) = (&event.kv.key, self.facts.len());
        match event.kind {
            EventKind::Put => {
                self.fold_put(revision, event, before)?;
                match self.alive.get_mut(key) {
                    Some(known) => *known = place,
                    None => drop(self.alive.insert(key.clone(), place)),
                }
                if let Some(lease) = event.kv.lease {
                    self.leased.entry(lease).or_default().insert(key.clone());
                }
            }
            EventKind::Delete if before.is_none() => {
                return Violation::found("M-KEY", format!("deleted and not there: {event:?}"));
            }
            EventKind::Delete => {
                if let Some(invariant) = self.stay.get(key) {
                    let why = format!("nobody asks for this deletion any more: {event:?}");
                    return Violation::found(invariant, why);
                }
                self.alive.remove(key);
            }
        }
        self.facts.push(Fact { kind: event.kind, kv: event.kv.clone() });
        match self.history.get_mut(key) {
            Some(known) => known.push((revision, place)),
            None => drop(self.history.insert(key.clone(), vec![(revision, place)])),
        }
        Ok(())
    }

    fn fold_put(
        &mut self,
        revision: Revision,
        event: &Event,
        before: Option<(Revision, u64)>,
    ) -> Result<(), Violation> {
        let (create, version) =
            before.map_or((revision, 1), |(create, version)| (create, version + 1));
        if (event.kv.create_revision, event.kv.version) != (create, version) {
            return Violation::found("M-KEY", format!("{event:?} after {before:?}"));
        }
        if let Some(ended) = event.kv.lease.and_then(|lease| self.ended.get(&lease)) {
            return Violation::found(
                "L-REVOKE",
                format!("{event:?}, but its lease ended by {ended:?}"),
            );
        }
        let value = &event.kv.value;
        if self.refused.contains(value) {
            return Violation::found(
                "X-UNKNOWN",
                format!("told as not applied, but applied: {event:?}"),
            );
        }
        // Values that the recipes put are not unique.
        if self.repeats || !value.starts_with(b"#") {
            return Ok(());
        }
        match self.put_at.insert(value.clone(), revision) {
            Some(earlier) if earlier != revision => {
                Violation::found("X-ONCE", format!("put at {earlier:?} and again: {event:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the previous row in an event. It may be missing only if the row is older than `compacted`, the newest
    /// revision at which a compaction was requested.
    pub(crate) fn check_prev(&self, event: &Event, compacted: Revision) -> Result<(), Violation> {
        let at = Revision(event.revision().get().saturating_sub(1));
        let before = self.row_at(&event.kv.key, at);
        if event.prev.as_ref() == before || (event.prev.is_none() && at < compacted) {
            return Ok(());
        }
        Violation::found(
            "W-PREV",
            format!("{event:?}, but it was {before:?}; {compacted:?} was compacted at the most"),
        )
    }

    /// Records that a put was reported as "not applied". The value must never appear.
    pub(crate) fn refuse(&mut self, value: &Bytes) -> Result<(), Violation> {
        self.refused.insert(value.clone());
        match self.put_at.get(value) {
            Some(revision) => {
                let value = value.escape_ascii();
                Violation::found(
                    "X-UNKNOWN",
                    format!("told as not applied, but it is at {revision:?}: {value}"),
                )
            }
            None => Ok(()),
        }
    }

    /// Records that the deletion of an existing key was reported as "not applied". No other request deletes the key,
    /// so it must stay.
    pub(crate) fn refuse_deletion(&mut self, key: &Bytes) -> Result<(), Violation> {
        self.stay.insert(key.clone(), "X-UNKNOWN");
        let gone = self.changes(key).find(|(_, row)| row.is_none());
        match gone {
            Some((at, _)) => {
                let key = key.escape_ascii();
                Violation::found(
                    "X-UNKNOWN",
                    format!(
                        "its deletion was told as not applied, but it is gone at {at:?}: {key}"
                    ),
                )
            }
            None => Ok(()),
        }
    }

    /// Records that the only requested deletion of a key was applied. If the key is put again, it must stay.
    pub(crate) fn deleted_once(&mut self, key: &Bytes) {
        self.stay.insert(key.clone(), "X-ONCE");
    }

    /// Records that the deletion of this key will be requested.
    pub(crate) fn expect_deletion(&mut self, key: &Bytes) {
        self.stay.remove(key);
    }

    /// Records that a lease ended at `revision` at the latest. No row may have it from there on.
    pub(crate) fn lease_ended(
        &mut self,
        lease: LeaseId,
        revision: Revision,
    ) -> Result<(), Violation> {
        self.ended.entry(lease).or_insert(revision);
        for key in self.leased.get(&lease).into_iter().flatten() {
            let facts = &self.history[key];
            let facts = facts[last_at(facts, revision).unwrap_or(0)..].iter();
            let alive = facts.filter_map(|(_, place)| self.facts[*place].row());
            let mut bound = alive.filter(|row| row.lease == Some(lease));
            if let Some(row) = bound.next() {
                return Violation::found(
                    "L-REVOKE",
                    format!("{lease:?} ended by {revision:?}, and yet {row:?}"),
                );
            }
        }
        Ok(())
    }

    /// Returns the revision at which a value was put, if it was.
    pub(crate) fn put_at(&self, value: &Bytes) -> Option<Revision> {
        self.put_at.get(value).copied()
    }

    /// Returns the revisions at which a key changed, with the new rows.
    pub(crate) fn changes(
        &self,
        key: &[u8],
    ) -> impl DoubleEndedIterator<Item = (Revision, Option<&KeyValue>)> {
        let facts = self.history.get(key).into_iter().flatten();
        facts.map(|(at, place)| (*at, self.facts[*place].row()))
    }

    /// Returns whether a key was deleted after a revision.
    pub(crate) fn was_deleted_after(&self, key: &[u8], revision: Revision) -> bool {
        self.changes(key).any(|(at, row)| at > revision && row.is_none())
    }

    pub(crate) fn row_at(&self, key: &[u8], revision: Revision) -> Option<&KeyValue> {
        let facts = self.history.get(key)?;
        let (_, place) = facts[last_at(facts, revision)?];
        self.facts[place].row()
    }

    /// Returns the rows of a range at a revision, sorted by key.
    pub(crate) fn rows_at(&self, range: &KeyRange, revision: Revision) -> Vec<&KeyValue> {
        let alive = self.alive.range(range.start().clone()..);
        let alive = alive.take_while(|(key, _)| range.contains(key));
        let alive = alive.map(|(_, place)| &self.facts[*place].kv);
        // A row that existed then exists now or has changed since.
        let since = self.events(range, revision, self.newest());
        let changed: BTreeSet<&Bytes> = since.map(|fact| &fact.kv.key).collect();
        if changed.is_empty() {
            return alive.collect();
        }
        let mut rows: Vec<&KeyValue> = alive.filter(|row| !changed.contains(&row.key)).collect();
        rows.extend(changed.into_iter().filter_map(|key| self.row_at(key, revision)));
        rows.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        rows
    }

    /// Returns the changes in a range after one revision, up to and including another.
    pub(crate) fn events(
        &self,
        range: &KeyRange,
        after: Revision,
        to: Revision,
    ) -> impl Iterator<Item = &Fact> {
        self.between(after, to).iter().filter(|fact| range.contains(&fact.kv.key))
    }

    /// Returns whether these are the events of a range after one revision, up to and including another.
    pub(crate) fn are_events<'a>(
        &self,
        range: &KeyRange,
        (after, to): (Revision, Revision),
        mut told: impl Iterator<Item = &'a Event>,
    ) -> bool {
        let mut facts = self.events(range, after, to);
        facts.all(|fact| told.next().is_some_and(|event| fact.is(event))) && told.next().is_none()
    }

    fn between(&self, after: Revision, to: Revision) -> &[Fact] {
        let end = |revision: Revision| {
            let revisions = usize::try_from(revision.get()).unwrap_or(usize::MAX).saturating_sub(1);
            let last = revisions.min(self.ends.len()).checked_sub(1);
            last.map_or(0, |last| self.ends[last])
        };
        self.facts.get(end(after)..end(to)).unwrap_or_default()
    }
}

/// Returns the index of the last fact about a key at a revision. It searches from the end because most queries are
/// about the newest revision.
fn last_at(facts: &[(Revision, usize)], revision: Revision) -> Option<usize> {
    facts.iter().rposition(|(of, _)| *of <= revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str, value: &'static str, create: u64, at: u64, version: u64) -> Event {
        let kv = KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: Revision(create),
            mod_revision: Revision(at),
            version,
            lease: LeaseId::new(7),
        };
        Event { kind: EventKind::Put, kv, prev: None }
    }

    fn delete(key: &'static str, at: u64) -> Event {
        let mut event = put(key, "", 0, at, 0);
        event.kind = EventKind::Delete;
        event.kv.lease = None;
        event
    }

    fn invariant(found: Result<(), Violation>) -> &'static str {
        found.expect_err("a violation").invariant
    }

    fn learn(truth: &mut Truth, event: Event) -> Result<(), Violation> {
        truth.learn(event.revision(), &[event])
    }

    #[test]
    fn correct_history_is_accepted_and_readable_at_any_revision() {
        let mut truth = Truth::default();
        for event in [put("a", "#1", 2, 2, 1), put("a", "#2", 2, 3, 2), delete("a", 4)] {
            learn(&mut truth, event.clone()).unwrap();
            learn(&mut truth, event).unwrap();
        }
        let value = |at| truth.row_at(b"a", Revision(at)).map(|row| row.value.clone());
        assert_eq!(
            [value(1), value(2), value(3), value(4)],
            [None, Some("#1".into()), Some("#2".into()), None]
        );
        assert_eq!(truth.events(&KeyRange::all(), Revision(2), Revision(4)).count(), 2);
    }

    #[test]
    fn event_has_its_previous_row_unless_compacted() {
        let mut truth = Truth::default();
        let (first, second) = (put("a", "#1", 2, 2, 1), put("a", "#2", 2, 3, 2));
        for event in [&first, &second] {
            learn(&mut truth, event.clone()).unwrap();
        }
        let told = |event: &Event, prev: Option<&Event>, compacted| {
            let event = Event { prev: prev.map(|prev| prev.kv.clone()), ..event.clone() };
            truth.check_prev(&event, Revision(compacted))
        };
        assert_eq!(told(&first, None, 0), Ok(()));
        assert_eq!(told(&second, Some(&first), 0), Ok(()));
        assert_eq!(told(&second, None, 3), Ok(()));
        assert_eq!(invariant(told(&second, None, 2)), "W-PREV");
        assert_eq!(invariant(told(&second, Some(&second), 3)), "W-PREV");
        assert_eq!(invariant(told(&first, Some(&first), 3)), "W-PREV");
    }

    #[test]
    fn each_kind_of_wrong_history_is_named() {
        let base = || {
            let mut truth = Truth::default();
            learn(&mut truth, put("a", "#1", 2, 2, 1)).unwrap();
            truth
        };
        assert_eq!(invariant(learn(&mut base(), put("a", "#2", 2, 4, 2))), "M-DENSE");
        assert_eq!(invariant(learn(&mut base(), put("a", "#2", 3, 3, 2))), "M-KEY");
        assert_eq!(invariant(learn(&mut base(), delete("b", 3))), "M-KEY");
        assert_eq!(invariant(learn(&mut base(), put("b", "#1", 2, 2, 1))), "R-SM");
        assert_eq!(invariant(learn(&mut base(), put("a", "#1", 2, 3, 2))), "X-ONCE");
        assert_eq!(invariant(base().refuse(&"#1".into())), "X-UNKNOWN");
        let mut truth = base();
        truth.refuse(&"#2".into()).unwrap();
        assert_eq!(invariant(learn(&mut truth, put("a", "#2", 2, 3, 2))), "X-UNKNOWN");
        assert_eq!(base().refuse_deletion(&"a".into()), Ok(()));
        let mut truth = base();
        truth.refuse_deletion(&"a".into()).unwrap();
        assert_eq!(invariant(learn(&mut truth, delete("a", 3))), "X-UNKNOWN");
        let mut truth = base();
        learn(&mut truth, delete("a", 3)).unwrap();
        assert_eq!(invariant(truth.refuse_deletion(&"a".into())), "X-UNKNOWN");
        let mut truth = base();
        learn(&mut truth, delete("a", 3)).unwrap();
        truth.deleted_once(&"a".into());
        learn(&mut truth, put("a", "#2", 4, 4, 1)).unwrap();
        assert_eq!(invariant(learn(&mut truth, delete("a", 5))), "X-ONCE");
        let lease = LeaseId::new(7).unwrap();
        assert_eq!(invariant(base().lease_ended(lease, Revision(2))), "L-REVOKE");
        let mut truth = base();
        learn(&mut truth, delete("a", 3)).unwrap();
        truth.lease_ended(lease, Revision(3)).unwrap();
        assert_eq!(invariant(learn(&mut truth, put("a", "#2", 4, 4, 1))), "L-REVOKE");
    }
}
