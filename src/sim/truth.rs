//! What really happened: the history of the store, revision by revision, put together from what the
//! replicas apply. The first replica to apply a revision teaches it, every other one must agree, and
//! every answer that a caller gets is held against it. It is a fold over events and nothing more: it
//! shares no code with the state machine.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;

use super::violation::Violation;
use crate::model::{Event, EventKind, KeyRange, KeyValue, LeaseId, Revision};

/// What became of a key at a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fact {
    pub(crate) kind: EventKind,
    pub(crate) kv: KeyValue,
}

impl Fact {
    /// The row that there is since then, if there is one.
    pub(crate) fn row(&self) -> Option<&KeyValue> {
        (self.kind == EventKind::Put).then_some(&self.kv)
    }

    pub(crate) fn is(&self, event: &Event) -> bool {
        (self.kind, &self.kv) == (event.kind, &event.kv)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Truth {
    /// All that has happened, in order.
    facts: Vec<Fact>,
    /// How many facts there were after each revision, from 2 on.
    ends: Vec<usize>,
    /// The facts about each key, by when and by their places. Asked for single keys only, as all that is hashed here: no
    /// order decides anything.
    history: HashMap<Bytes, Vec<(Revision, usize)>>,
    /// Every value that was ever put, with the revision of its put. The workload never puts a value
    /// twice, so a second one is a request that was applied twice.
    put_at: HashMap<Bytes, Revision>,
    /// Values of requests whose callers were told that nothing was applied.
    refused: HashSet<Bytes>,
    /// Keys that nobody has asked to delete any more, and the promise that is broken if one is deleted.
    stay: HashMap<Bytes, &'static str>,
    /// Whether values may be put more than once, by a program that is not ours.
    repeats: bool,
    /// Leases that have ended, and at which revision at the latest.
    ended: BTreeMap<LeaseId, Revision>,
    /// The keys that are there at the newest revision, with the places of the facts that say so.
    alive: BTreeMap<Bytes, usize>,
    /// The keys that were ever put with a lease.
    leased: BTreeMap<LeaseId, BTreeSet<Bytes>>,
}

impl Truth {
    /// From now on a value may be put more than once.
    pub(crate) fn values_repeat(&mut self) {
        self.repeats = true;
    }

    /// The newest revision that any replica has applied.
    pub(crate) fn newest(&self) -> Revision {
        Revision(self.ends.len() as u64 + 1)
    }

    /// A replica has applied a revision with these events.
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
        // What the recipes put is not ours to judge by value.
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

    /// An event, wherever it is told, tells the row that was there before it. It may tell none where there was one only
    /// if that is older than what was `compacted` last, at the most: then it may be gone.
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

    /// A caller was told that its request was not applied; this value must never appear.
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

    /// A caller was told that its deletion of this key, which was there, was not applied, and nobody else deletes it:
    /// it stays for ever.
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

    /// The one deletion of a key that anybody asks for was made: when it is put again it stays.
    pub(crate) fn deleted_once(&mut self, key: &Bytes) {
        self.stay.insert(key.clone(), "X-ONCE");
    }

    /// From now on somebody asks for the deletion of this key.
    pub(crate) fn may_go(&mut self, key: &Bytes) {
        self.stay.remove(key);
    }

    /// A lease ended, no later than at `revision`: no row has it there or later.
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

    /// When a value was put, if it was.
    pub(crate) fn put_at(&self, value: &Bytes) -> Option<Revision> {
        self.put_at.get(value).copied()
    }

    /// When a key changed, and what it became.
    pub(crate) fn changes(
        &self,
        key: &[u8],
    ) -> impl DoubleEndedIterator<Item = (Revision, Option<&KeyValue>)> {
        let facts = self.history.get(key).into_iter().flatten();
        facts.map(|(at, place)| (*at, self.facts[*place].row()))
    }

    /// Whether a key was deleted after a revision.
    pub(crate) fn went_after(&self, key: &[u8], revision: Revision) -> bool {
        self.changes(key).any(|(at, row)| at > revision && row.is_none())
    }

    /// The row of a key at a revision.
    pub(crate) fn row_at(&self, key: &[u8], revision: Revision) -> Option<&KeyValue> {
        let facts = self.history.get(key)?;
        let (_, place) = facts[last_at(facts, revision)?];
        self.facts[place].row()
    }

    /// The rows of a range at a revision, by key.
    pub(crate) fn rows_at(&self, range: &KeyRange, revision: Revision) -> Vec<&KeyValue> {
        let alive = self.alive.range(range.start().clone()..);
        let alive = alive.take_while(|(key, _)| range.contains(key));
        let alive = alive.map(|(_, place)| &self.facts[*place].kv);
        // Whoever was there then is there now, or has changed since.
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

    /// What happened in a range after one revision, up to and with another.
    pub(crate) fn events(
        &self,
        range: &KeyRange,
        after: Revision,
        to: Revision,
    ) -> impl Iterator<Item = &Fact> {
        self.between(after, to).iter().filter(|fact| range.contains(&fact.kv.key))
    }

    /// Whether these are the events of a range after one revision, up to and with another.
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

/// Which of the facts about a key is the last one at a revision. What is asked for is nearly always about now.
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
