//! Reconstructs the lock queues and who may hold each lock. This module reads only the history and shares no code
//! with the recipes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::truth::Truth;
use crate::model::{Event, EventKind, KeyRange, KeyValue, LeaseId, Revision};

/// The share of a lock that a hold takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryShare {
    /// The whole lock: no other hold is allowed.
    All,
    /// A read share: other readers are allowed.
    Read,
    /// This number of permits.
    Permits(u32),
    /// Any share of the lock. It is only checked that the key is in the lock queue.
    Any,
}

/// The content of the row of a queue entry.
enum Says {
    Reads,
    Wants { limit: u64, permits: u64 },
    Else,
}

/// The first entry of a lock queue and the content of its row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) key: Bytes,
    pub(crate) since: Revision,
    pub(crate) value: Bytes,
    pub(crate) lease: LeaseId,
}

/// A lock queue, followed from change to change.
pub(super) struct Line {
    /// The queue entries, in order.
    pub(super) places: BTreeMap<(Revision, Bytes), Head>,
    /// The revision at which each key was created.
    since: BTreeMap<Bytes, Revision>,
    /// The head of the queue from each revision on.
    pub(super) heads: Vec<(Revision, Option<Head>)>,
}

/// All lock queues, and the keys that were created together.
#[derive(Default)]
pub(super) struct LockQueueJudge {
    /// The queues, by the name of the lock and a slash.
    lines: BTreeMap<Bytes, Line>,
    /// The keys of requests that are in several queues, by each key and its revision of creation.
    together: BTreeMap<(Bytes, Revision), Vec<Bytes>>,
    /// The sessions that are resuming a queue entry of an earlier session.
    pub(super) takers: BTreeSet<(Bytes, Revision, LeaseId)>,
    /// For each hold that was just transferred, the name of the counter to increment.
    pub(super) handed_over: Vec<&'static str>,
}

impl EntryShare {
    pub(super) fn permits(self) -> u64 {
        match self {
            EntryShare::Permits(permits) => permits.into(),
            EntryShare::All | EntryShare::Read | EntryShare::Any => 0,
        }
    }

    /// Returns the condition of a guarded write. Held permits remain held if the limit is reduced below them.
    pub(super) fn when_writing(self) -> Self {
        match self {
            EntryShare::Permits(_) => EntryShare::Any,
            other => other,
        }
    }

    /// Checks that the queue entry of this key may hold this share at a revision. The error describes the entries
    /// before it.
    pub(super) fn may_hold(
        self,
        truth: &Truth,
        lock: &str,
        key: &Bytes,
        since: Revision,
        at: Revision,
    ) -> Result<(), String> {
        let places = entries_at(truth, lock, at);
        let mine = |row: &&KeyValue| row.key == *key && row.create_revision == since;
        let Some(mine) = places.iter().position(mine) else {
            return Err(format!("it is not among {places:?}"));
        };
        let fits = match self {
            EntryShare::All => mine == 0,
            EntryShare::Read => places[..mine].iter().all(|row| matches!(says(row), Says::Reads)),
            EntryShare::Permits(_) => {
                let (least, sum) = permits(&places[..=mine]);
                sum <= least
            }
            EntryShare::Any => true,
        };
        if fits { Ok(()) } else { Err(format!("before it is {:?}", &places[..mine])) }
    }
}

/// Returns the smallest limit of these entries and the sum of their permits. An entry that does not belong to a
/// semaphore leaves no permits.
fn permits(places: &[&KeyValue]) -> (u64, u64) {
    places.iter().fold((u64::MAX, 0), |(least, sum), row| match says(row) {
        Says::Wants { limit, permits } => (least.min(limit), sum + permits),
        Says::Reads | Says::Else => (0, sum),
    })
}

/// Returns the permit limit for the queue entry of this key at a revision.
pub(super) fn limit_at(truth: &Truth, lock: &str, key: &Bytes, at: Revision) -> u64 {
    let places = entries_at(truth, lock, at);
    let mine = places.iter().position(|row| row.key == *key).map_or(0, |mine| mine + 1);
    permits(&places[..mine]).0
}

/// Returns the entries of a lock queue at a revision, in order.
fn entries_at<'a>(truth: &'a Truth, lock: &str, at: Revision) -> Vec<&'a KeyValue> {
    let prefix = format!("{lock}/");
    let mut rows = truth.rows_at(&KeyRange::prefix(prefix.clone()), at);
    rows.retain(|row| row.lease.is_some() && !row.key[prefix.len()..].contains(&b'/'));
    rows.sort_by_key(|row| (row.create_revision, &row.key));
    rows
}

fn says(row: &KeyValue) -> Says {
    let value = String::from_utf8_lossy(&row.value);
    let mut words = value.lines().next().unwrap_or_default().split(' ');
    if words.next() != Some("bowline:1") {
        return Says::Else;
    }
    match (words.next(), words.next(), words.next()) {
        (Some("read"), ..) => Says::Reads,
        (Some("semaphore"), Some(limit), Some(permits)) => {
            let number = |word: &str| word.parse().unwrap_or_default();
            Says::Wants { limit: number(limit), permits: number(permits) }
        }
        _ => Says::Else,
    }
}

impl LockQueueJudge {
    /// Returns the queue of a lock, if it ever had an entry.
    pub(super) fn of(&self, lock: &str) -> Option<&Line> {
        self.lines.get(format!("{lock}/").as_bytes())
    }

    /// Checks that this key is the first in the lock queue at a revision. The error describes the first entry.
    pub(super) fn is_first(
        &self,
        lock: &str,
        key: &Bytes,
        since: Revision,
        at: Revision,
    ) -> Result<(), String> {
        let first = self.of(lock).and_then(|line| line.head_at(at));
        let is_it = first.is_some_and(|head| head.key == *key && head.since == since);
        if is_it { Ok(()) } else { Err(format!("first is {first:?}")) }
    }

    /// Follows the changes below `lock/`. Keys that were created together in several queues must be deleted together.
    /// A hold may only be transferred to a request in the same queue, which gives up its own entry.
    ///
    /// # Errors
    /// Returns the broken invariant and a description.
    pub(super) fn follow(
        &mut self,
        revision: Revision,
        events: &[Event],
    ) -> Result<(), (&'static str, String)> {
        let events: Vec<&Event> =
            events.iter().filter(|event| event.kv.key.starts_with(b"lock/")).collect();
        let left = self.handed(&events).map_err(|what| ("K-TRANSFER", what));
        let left = left.and(self.parted(&events).map_err(|what| ("K-ALL", what)));
        self.record_joint_keys(revision, &events);
        let mut touched = BTreeSet::new();
        for event in events {
            let key = &event.kv.key;
            let prefix = prefix_of(key);
            let line = self.lines.entry(prefix.clone()).or_insert_with(Line::new);
            if let Some(since) = line.since.remove(key) {
                line.places.remove(&(since, key.clone()));
            }
            if let (EventKind::Put, Some(lease)) = (event.kind, event.kv.lease) {
                let (since, value) = (event.kv.create_revision, event.kv.value.clone());
                let head = Head { key: key.clone(), since, value, lease };
                line.since.insert(key.clone(), since);
                line.places.insert((since, key.clone()), head);
            }
            touched.insert(prefix);
        }
        for prefix in touched {
            let Some(line) = self.lines.get_mut(&prefix) else { continue };
            let head = line.places.first_key_value().map(|(_, head)| head.clone());
            if line.heads.last().map(|(_, head)| head) != Some(&head) {
                line.heads.push((revision, head));
            }
        }
        left
    }

    /// Records which keys one revision has created in several queues.
    fn record_joint_keys(&mut self, revision: Revision, events: &[&Event]) {
        let is_new =
            |event: &&&Event| event.kind == EventKind::Put && event.kv.create_revision == revision;
        let keys: Vec<Bytes> =
            events.iter().filter(is_new).map(|event| event.kv.key.clone()).collect();
        let prefixes: BTreeSet<Bytes> = keys.iter().map(prefix_of).collect();
        if prefixes.len() > 1 {
            for key in &keys {
                self.together.insert((key.clone(), revision), keys.clone());
            }
        }
    }

    /// Checks that the new holder of a queue entry had an entry of its own in that queue until now, or resumes the
    /// hold of an earlier session of its node.
    fn handed(&mut self, events: &[&Event]) -> Result<(), String> {
        for event in events.iter().filter(|event| event.kind == EventKind::Put) {
            let (key, prefix) = (&event.kv.key, prefix_of(&event.kv.key));
            // The keys below a queue entry are operator requests, which are not entries.
            let is_line = prefix.iter().filter(|byte| **byte == b'/').count() == 2;
            let Some(line) = self.lines.get(&prefix).filter(|_| is_line) else { continue };
            let Some(before) = line.place(key) else { continue };
            let is_left = |other: &&Event| {
                let place = line.place(&other.kv.key);
                other.kind == EventKind::Delete
                    && prefix_of(&other.kv.key) == prefix
                    && place.map(|place| place.lease) == event.kv.lease
            };
            let successor = event.kv.lease.filter(|lease| *lease != before.lease);
            let is_resumption =
                |successor: LeaseId| self.takers.contains(&(key.clone(), before.since, successor));
            if let Some(successor) = successor
                .filter(|successor| !events.iter().any(is_left) && !is_resumption(*successor))
            {
                return Err(format!(
                    "{key:?} of {before:?} goes to {successor:?}, who does not wait"
                ));
            }
            if successor.is_some_and(|successor| !is_resumption(successor)) {
                self.handed_over.push(match says(&event.kv) {
                    Says::Reads => "read lock handed over",
                    Says::Wants { .. } => "permit handed over",
                    Says::Else => "other hold handed over",
                });
            }
        }
        Ok(())
    }

    fn parted(&mut self, events: &[&Event]) -> Result<(), String> {
        let gone = |key: &Bytes| {
            events.iter().any(|event| event.kind == EventKind::Delete && event.kv.key == *key)
        };
        for event in events.iter().filter(|event| event.kind == EventKind::Delete) {
            let key = &event.kv.key;
            let since = self.lines.get(&prefix_of(key)).and_then(|line| line.since.get(key));
            let Some(since) = since.copied() else { continue };
            let Some(keys) = self.together.remove(&(key.clone(), since)) else { continue };
            if let Some(left) = keys.iter().find(|key| !gone(key)) {
                return Err(format!("{key:?} of {since:?} is gone, and {left:?} is not"));
            }
        }
        Ok(())
    }
}

fn prefix_of(key: &Bytes) -> Bytes {
    let slash = key.iter().rposition(|byte| *byte == b'/').expect("it begins with `lock/`");
    key.slice(..=slash)
}

impl Line {
    /// Returns an empty queue.
    pub(super) fn new() -> Self {
        Self { places: BTreeMap::new(), since: BTreeMap::new(), heads: vec![(Revision(0), None)] }
    }

    /// Returns the entry of a key, if it is in the queue.
    fn place(&self, key: &Bytes) -> Option<&Head> {
        self.places.get(&(*self.since.get(key)?, key.clone()))
    }

    /// Returns the head right after a revision.
    pub(super) fn head_at(&self, at: Revision) -> Option<&Head> {
        let known = self.heads.partition_point(|(since, _)| *since <= at);
        self.heads.get(known.checked_sub(1)?)?.1.as_ref()
    }

    /// Returns every change of the queue's head after the revision `after`.
    pub(super) fn heads_after(&self, after: Revision) -> &[(Revision, Option<Head>)] {
        &self.heads[self.heads.partition_point(|(since, _)| *since <= after)..]
    }
}
