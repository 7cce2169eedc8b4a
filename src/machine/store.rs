//! The versioned keys: the one writer's side of them, and what it shares with the readers.
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
//! Every read is a read at one revision, and versions do not change once they are written. So the
//! lock may be let go between any two keys: what a reader must not see yet has a higher revision
//! than the one it reads at, and `published` rises only when a whole batch of entries is in. What a
//! reader still needs is kept: it registers its revision while it reads on over several holds, and
//! the sweep stays behind the oldest one registered.
//!
//! Compaction is one number that is part of the replicated state; the sweep that gives memory back
//! follows it at a pace that nobody can observe, and is no part of it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use bytes::Bytes;

use super::Change;
use super::digest::mix;
use super::history::History;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{Meta, Row, RowRef, Rows};
use crate::model::{Event, Fault, KeyRange, LeaseId, RangeEnd, Revision};

/// How many keys a reader, or the sweep, passes in one hold of the lock.
pub(super) const HOLD_KEYS: usize = 512;

/// How many rows the writer writes in one hold of the lock.
const HOLD_ROWS: usize = 16;

/// How long the writer gives way to readers between two holds, at most, in looks at whether they
/// are in: some ten microseconds, the time that a sleeping reader needs to wake up.
const GIVE_WAY_LOOKS: usize = 1000;

/// What readers may know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Published {
    pub(super) revision: Revision,
    /// `None` until the first compaction.
    pub(super) compacted: Option<Revision>,
}

pub(super) struct State {
    pub(super) index: Index,
    pub(super) history: History,
    pub(super) published: Published,
}

/// What the writer and all readers hold together.
pub(super) struct Shared {
    state: RwLock<State>,
    leases: RwLock<LeaseTable>,
    /// The revision in `published`, to be had without the lock.
    revision: AtomicU64,
    /// At which revisions readers are reading over several holds, and how many each.
    reading: Mutex<BTreeMap<Revision, usize>>,
    /// How many readers stand before the lock: the writer, who comes back to it again and again,
    /// would leave them standing.
    waiting: AtomicUsize,
}

// A lock is poisoned when the thread that held it panicked. If that was the writer, its node stops;
// what was published before is whole and stays readable.
impl Shared {
    fn new() -> Self {
        let published = Published { revision: Revision::FIRST, compacted: None };
        Self {
            state: RwLock::new(State {
                index: Index::default(),
                history: History::new(),
                published,
            }),
            leases: RwLock::default(),
            revision: AtomicU64::new(Revision::FIRST.get()),
            reading: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        match self.state.try_read() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                state
            }
        }
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between two holds of the writer: lets in whoever waits.
    fn give_way(&self) {
        for _ in 0..GIVE_WAY_LOOKS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
    }

    pub(super) fn leases(&self) -> RwLockReadGuard<'_, LeaseTable> {
        self.leases.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leases_mut(&self) -> RwLockWriteGuard<'_, LeaseTable> {
        self.leases.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self) -> MutexGuard<'_, BTreeMap<Revision, usize>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Keeps what a read at `revision` sees until the registration is dropped. The caller holds the
    /// state and has seen that `revision` is not compacted.
    pub(super) fn register(&self, _state: &State, revision: Revision) -> Registration<'_> {
        *self.reading().entry(revision).or_insert(0) += 1;
        Registration { shared: self, revision }
    }
}

/// See [`Shared::register`].
pub(super) struct Registration<'a> {
    shared: &'a Shared,
    revision: Revision,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut reading = self.shared.reading();
        if let Some(count) = reading.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                reading.remove(&self.revision);
            }
        }
    }
}

/// Whether a scan goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scan {
    On,
    Enough,
}

/// The keys as of one revision.
///
/// Whoever makes one sees to it that the revision is not swept away: the writer does the sweeping,
/// and readers register, or stay within one hold.
#[derive(Clone, Copy)]
pub(super) struct Snapshot<'a> {
    shared: &'a Shared,
    /// The state, if its maker holds the lock.
    held: Option<&'a State>,
    at: Revision,
}

impl<'a> Snapshot<'a> {
    /// Of one who does not hold the lock.
    pub(super) fn new(shared: &'a Shared, at: Revision) -> Self {
        Self { shared, held: None, at }
    }

    /// The same at another revision.
    pub(super) fn at(self, at: Revision) -> Self {
        Self { at, ..self }
    }

    pub(super) fn has_lease(&self, id: LeaseId) -> bool {
        self.shared.leases().contains(id)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Row> {
        let row = |state: &State| Some(state.index.get(key)?.live(self.at)?.to_row());
        match self.held {
            Some(state) => row(state),
            None => row(&self.shared.state()),
        }
    }

    /// Shows every row of `range` in key order. `visit` runs under the lock and must be short.
    pub(super) fn scan(&self, range: &KeyRange, mut visit: impl FnMut(RowRef<'_>) -> Scan) {
        if let Some(state) = self.held {
            self.scan_some(state, range, None, usize::MAX, &mut visit);
            return;
        }
        let mut last = None;
        loop {
            let state = self.shared.state();
            last = self.scan_some(&state, range, last, HOLD_KEYS, &mut visit);
            if last.is_none() {
                return;
            }
        }
    }

    /// Shows at most `keys` keys after `last`. Tells the last one, if there may be more.
    fn scan_some(
        &self,
        state: &State,
        range: &KeyRange,
        last: Option<Vec<u8>>,
        keys: usize,
        visit: &mut impl FnMut(RowRef<'_>) -> Scan,
    ) -> Option<Vec<u8>> {
        if let Some(key) = range.as_single() {
            if let Some(row) = state.index.get(key).and_then(|rows| rows.live(self.at)) {
                visit(row);
            }
            return None;
        }
        let from = match &last {
            None => Bound::Included(&range.start()[..]),
            Some(key) => Bound::Excluded(&key[..]),
        };
        for (number, rows) in state.index.iter_from(from).enumerate() {
            let key = rows.newest().key();
            if matches!(range.end(), RangeEnd::Before(end) if key >= &end[..]) {
                return None;
            }
            if let Some(row) = rows.live(self.at)
                && visit(row) == Scan::Enough
            {
                return None;
            }
            if number + 1 == keys {
                return Some(key.to_vec());
            }
        }
        None
    }
}

/// The writer's hold of the lock. Taking it costs as much as writing a row, and much more when
/// readers are about; keeping it makes them wait. So it is kept over some rows, of one request or of
/// several, and let go while a request looks at many keys.
pub(super) struct Hold<'a> {
    shared: &'a Shared,
    state: Option<RwLockWriteGuard<'a, State>>,
    /// How many rows have been written in it.
    rows: usize,
    /// Whether the request at hand looks at ranges of keys.
    wide: bool,
}

impl<'a> Hold<'a> {
    pub(super) fn new(shared: &'a Shared) -> Self {
        Self { shared, state: None, rows: 0, wide: false }
    }

    /// Begins a request. A wide one looks at ranges of keys.
    pub(super) fn begin(&mut self, wide: bool) {
        self.wide = wide;
        if wide {
            self.let_go();
        }
    }

    /// The keys as of `at`, published or not.
    pub(super) fn snapshot(&mut self, at: Revision) -> Snapshot<'_> {
        let shared = self.shared;
        if self.wide {
            // It takes the lock by itself.
            self.let_go();
            return Snapshot::new(shared, at);
        }
        Snapshot { shared, held: Some(self.take()), at }
    }

    fn take(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| self.shared.state_mut())
    }

    fn wrote(&mut self) {
        self.rows += 1;
        if self.wide || self.rows >= HOLD_ROWS {
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        if self.state.take().is_some() {
            self.shared.give_way();
        }
        self.rows = 0;
    }
}

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
            shared: Arc::new(Shared::new()),
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
        match versions {
            Some(rows) => rows.push(row.clone()),
            None => state.index.push(row.clone()),
        }
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
        hold.wrote();
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
        let mut state = self.shared.state_mut();
        state.published = self.published;
        // Under the lock, so that the two never run apart.
        self.shared.revision.store(self.revision.get(), Ordering::Release);
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
        let State { index, history, .. } = &mut *state;
        let Some(compacted) = self.published.compacted else { return false };
        let oldest_read = self.shared.reading().keys().next().copied();
        let target = oldest_read.map_or(compacted, |read| read.min(compacted));
        for _ in 0..hold {
            if history.first() <= self.swept && history.first() < compacted {
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
            index.prune(key, revision, &mut versions_forgotten);
            self.swept_rows += 1;
            if self.swept_rows == changes.len() {
                self.swept = revision;
                self.swept_rows = 0;
            }
        }
        true
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

    /// What the rows and the counters add to the digest.
    pub(super) fn fingerprint(&self) -> [u64; 4] {
        let compacted = self.compacted.map_or(u64::MAX, Revision::get);
        [self.live, self.past, self.revision.get(), compacted]
    }

    /// Flips a bit of the newest version of `key`. True if there is one.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn rot(&mut self, key: &[u8]) -> bool {
        let mut state = self.shared.state_mut();
        let rows = state.index.get_mut(key);
        rows.map(Rows::rot_newest).is_some()
    }
}

fn expect_sound(row: RowRef<'_>) -> Result<(), Fault> {
    if row.is_sound() {
        return Ok(());
    }
    Err(Fault::Rotten { key: Bytes::copy_from_slice(row.key()), revision: row.modified() })
}
