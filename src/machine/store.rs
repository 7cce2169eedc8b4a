//! The versioned keys: the one writer's side of them.
//!
//! ```text
//!     writer                      shared, under one lock held for moments        readers
//!   ---------                   ------------------------------------------      ---------
//!   put, delete  ------------>   index    key -> its versions         <-------   get, range
//!   commit       ------------>   history  revision -> its changes     <-------   events
//!   publish      ------------>   published  (revision, compacted)     <-------   every one, first
//!   sweep        ------------>   forgets what `published.compacted` allows
//! ```
//!
//! Compaction is one number that is part of the replicated state; the sweep that gives memory back
//! follows it at a pace that nobody can observe, and is no part of it.

use std::sync::Arc;

use bytes::Bytes;

use super::Change;
use super::digest::mix;
use super::history::History;
use super::index::Index;
use super::row::{Meta, Row, RowRef, Rows};
use super::shared::{HOLD_KEYS, Hold, Published, Shared, State};
use crate::model::{Event, Fault, LeaseId, Revision};

/// The changes of one request, on their way to become one revision.
pub(super) struct Mutation {
    revision: Revision,
    rows: Vec<Row>,
    events: Vec<Event>,
}

impl Mutation {
    /// The revision that its changes take, and at which its request sees them.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The writer's side.
pub(super) struct Store {
    shared: Arc<Shared>,
    revision: Revision,
    compacted: Option<Revision>,
    /// Every revision up to this one has been swept, as far as it may be.
    swept: Revision,
    /// How many rows of the revision after `swept` have been swept.
    swept_rows: usize,
    /// The published compaction, once nothing is left to sweep for it.
    swept_for: Option<Revision>,
    published: Published,
    /// The sum of the fingerprints of the newest version of each key.
    live: u64,
    /// A chain of the fingerprints of every version ever written.
    past: u64,
    /// Where the scrub goes on.
    scrub_at: (Vec<u8>, Revision),
    scratch: Vec<u8>,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            shared: Arc::new(Shared::new(
                Index::default(),
                History::new(),
                Published { revision: Revision::FIRST, compacted: None },
                0,
            )),
            revision: Revision::FIRST,
            compacted: None,
            swept: Revision::FIRST,
            swept_rows: 0,
            swept_for: None,
            published: Published { revision: Revision::FIRST, compacted: None },
            live: 0,
            past: 0,
            scrub_at: (Vec::new(), Revision(0)),
            scratch: Vec::new(),
        }
    }

    /// A store that has come to where `published` says, and has swept everything that it may.
    pub(super) fn restored(
        index: Index,
        history: History,
        published: Published,
        bytes: u64,
        (live, past): (u64, u64),
    ) -> Self {
        let Published { revision, compacted } = published;
        assert_eq!(history.next(), revision.next(), "history reaches up to the newest revision");
        Self {
            shared: Arc::new(Shared::new(index, history, published, bytes)),
            revision,
            compacted,
            swept: compacted.unwrap_or_default().max(Revision::FIRST),
            swept_rows: 0,
            swept_for: compacted,
            published,
            live,
            past,
            scrub_at: (Vec::new(), Revision(0)),
            scratch: Vec::new(),
        }
    }

    /// Changes everything but the readers with `other`.
    pub(super) fn swap(&mut self, other: &mut Self) {
        self.shared.swap(&other.shared);
        std::mem::swap(self, other);
        std::mem::swap(&mut self.shared, &mut other.shared);
    }

    /// The chain of everything ever written.
    pub(super) fn past(&self) -> u64 {
        self.past
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn compacted(&self) -> Option<Revision> {
        self.compacted
    }

    /// The store's revision as a request in the middle of `mutation` tells it.
    pub(super) fn revision_in(&self, mutation: &Mutation) -> Revision {
        if mutation.is_empty() { self.revision } else { mutation.revision }
    }

    pub(super) fn begin(&self) -> Mutation {
        Mutation { revision: self.revision.next(), rows: Vec::new(), events: Vec::new() }
    }

    /// Writes a key and tells the change.
    pub(super) fn put<'m>(
        &mut self,
        hold: &mut Hold<'_>,
        mutation: &'m mut Mutation,
        key: &[u8],
        value: &Bytes,
        lease: Option<LeaseId>,
    ) -> Result<&'m Event, Fault> {
        let modified = mutation.revision;
        self.write(hold, mutation, key, |scratch, prev| {
            let (create, version) = prev.map_or((modified, 1), |row| {
                let meta = row.meta();
                (meta.create, meta.version.saturating_add(1))
            });
            Some(Row::new(scratch, key, value, Meta { create, modified, version, lease }))
        })?;
        Ok(mutation.events.last().expect("a put is a change"))
    }

    /// Deletes a key and tells the change, if the key was there.
    pub(super) fn delete<'m>(
        &mut self,
        hold: &mut Hold<'_>,
        mutation: &'m mut Mutation,
        key: &[u8],
    ) -> Result<Option<&'m Event>, Fault> {
        let modified = mutation.revision;
        let wrote = self.write(hold, mutation, key, |scratch, prev| {
            prev.map(|_| Row::tombstone(scratch, key, modified))
        })?;
        Ok(if wrote { mutation.events.last() } else { None })
    }

    fn write(
        &mut self,
        hold: &mut Hold<'_>,
        mutation: &mut Mutation,
        key: &[u8],
        next: impl FnOnce(&mut Vec<u8>, Option<RowRef<'_>>) -> Option<Row>,
    ) -> Result<bool, Fault> {
        let state = hold.take();
        let versions = state.index.get_mut(key);
        let before = versions.as_ref().and_then(|rows| rows.live(mutation.revision));
        if let Some(row) = before {
            expect_sound(row)?;
        }
        let Some(row) = next(&mut self.scratch, before) else { return Ok(false) };
        if let Some(row) = before {
            self.live = self.live.wrapping_sub(row.fingerprint());
        }
        let prev = before.map(RowRef::to_row);
        let bytes_before = before.map(RowRef::bytes);
        match versions {
            Some(rows) => rows.push(row.clone()),
            None => state.index.push(row.clone()),
        }
        let bytes = row.view().bytes();
        state.bytes += bytes;
        state.live.replace(bytes_before, (!row.view().is_tombstone()).then_some(bytes));
        hold.wrote();
        let fingerprint = row.view().fingerprint();
        if !row.view().is_tombstone() {
            self.live = self.live.wrapping_add(fingerprint);
        }
        self.past = mix(self.past.wrapping_add(fingerprint));
        mutation.events.push(row.view().event(prev.map(|row| row.view().key_value())));
        mutation.rows.push(row);
        Ok(true)
    }

    /// Makes the changes the next revision, if there are any.
    pub(super) fn commit(&mut self, hold: &mut Hold<'_>, mutation: Mutation) -> Option<Change> {
        assert_eq!(mutation.revision, self.revision.next(), "one request at a time");
        if mutation.rows.is_empty() {
            return None;
        }
        let revision = mutation.revision;
        hold.take().history.push(revision, Rows::collect(mutation.rows));
        self.revision = revision;
        Some(Change { revision, events: mutation.events.into() })
    }

    /// The caller has judged `revision`.
    pub(super) fn compact(&mut self, revision: Revision) {
        assert!(revision <= self.revision, "a future revision");
        assert!(self.compacted.is_none_or(|before| before < revision), "compaction goes forward");
        self.compacted = Some(revision);
    }

    /// Shows readers everything up to here.
    pub(super) fn publish(&mut self) {
        self.published = Published { revision: self.revision, compacted: self.compacted };
        self.shared.publish(self.published);
    }

    /// Gives back the memory of about `rows` versions that nobody can read any more. True if more
    /// could be done at once.
    pub(super) fn sweep(&mut self, mut rows: usize) -> bool {
        while rows > 0 && self.swept_for != self.published.compacted {
            let hold = rows.min(HOLD_KEYS);
            rows -= hold;
            if !self.sweep_hold(hold) {
                return false;
            }
            self.shared.give_way();
        }
        self.swept_for != self.published.compacted
    }

    /// False if nothing more can be done for now.
    fn sweep_hold(&mut self, hold: usize) -> bool {
        // Large values take their time to go: these outlive the lock, which is taken after them.
        let (mut changes_forgotten, mut versions_forgotten) = (Vec::new(), Vec::new());
        let mut state = self.shared.state_mut();
        let State { index, history, bytes, .. } = &mut *state;
        let Some(compacted) = self.published.compacted else { return false };
        let oldest_read = self.shared.reading().keys().next().copied();
        let target = oldest_read.map_or(compacted, |read| read.min(compacted));
        for _ in 0..hold {
            // What was changed at the target itself stays, as after a compaction at it.
            if history.first() <= self.swept && history.first() < target {
                changes_forgotten.extend(history.pop_front());
                continue;
            }
            let revision = self.swept.next();
            if revision > target {
                self.swept_for = Some(compacted).filter(|_| target == compacted);
                return false;
            }
            let changes = history.get(revision).expect("every revision not forgotten");
            let key = changes.get(self.swept_rows).key();
            let before = versions_forgotten.len();
            index.prune(key, revision, &mut versions_forgotten);
            *bytes -=
                versions_forgotten[before..].iter().map(|row| row.view().bytes()).sum::<u64>();
            self.swept_rows += 1;
            if self.swept_rows == changes.len() {
                self.swept = revision;
                self.swept_rows = 0;
            }
        }
        true
    }

    /// Whether all memory of compacted versions has been given back.
    pub(super) fn is_swept(&self) -> bool {
        self.swept_for == self.published.compacted
    }

    /// Checks the next `rows` versions, round and round.
    pub(super) fn scrub(&mut self, mut rows: usize) -> Result<(), Fault> {
        while rows > 0 {
            let hold = rows.min(HOLD_KEYS);
            rows -= hold;
            let state = self.shared.state();
            let (key, revision) = &self.scrub_at;
            let mut looked = 0;
            let mut next = (Vec::new(), Revision(0));
            for row in state.index.rows_from(key, *revision).take(hold) {
                expect_sound(row)?;
                looked += 1;
                if looked == hold {
                    next = (row.key().to_vec(), row.modified().next());
                }
            }
            self.scrub_at = next;
            if looked < hold {
                return Ok(()); // Once around.
            }
        }
        Ok(())
    }

    /// What the rows add to the digest.
    pub(super) fn fingerprint(&self) -> [u64; 2] {
        [self.live, self.past]
    }

    /// Flips a bit of the newest version of `key`. True if there is one.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn rot(&mut self, key: &[u8]) -> bool {
        let mut state = self.shared.state_mut();
        let rows = state.index.get_mut(key);
        rows.map(Rows::rot_newest).is_some()
    }
}

/// Sees to it that a row is what was written.
pub(super) fn expect_sound(row: RowRef<'_>) -> Result<(), Fault> {
    if row.is_sound() {
        return Ok(());
    }
    Err(Fault::Rotten { key: Bytes::copy_from_slice(row.key()), revision: row.modified() })
}
