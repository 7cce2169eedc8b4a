//! The state that the single writer and the readers share, and its locks.
//!
//! Every read happens at one revision, and versions are immutable. Therefore a reader may release
//! the lock between any two keys. Versions that the reader must not see have a higher revision than
//! the read. `published` is raised only after a whole batch of entries is applied. A reader that
//! locks several times for one read registers its revision. The sweep frees no version that a
//! registered revision can still see.
//!
//! # Installs
//! A replica that fell behind receives the complete state of a later index, which replaces its own.
//! The old and the new state belong to the same history, but the new state may lack revisions that
//! a reader is using. Therefore, each time a reader locks the state again, it compares the
//! generation of the state ([`MachineState::generation`]) with the generation at the start of the
//! read. If the generation has changed, the reader repeats the read ([`Replaced`]).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use super::history::EventHistory;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{RowRef, StoredRow, Versions};
use crate::model::{Access, Alarms, KeyRange, LeaseId, Members, RangeEnd, Revision};

/// Number of keys that a reader or the sweep visits at most before it releases the lock.
pub(super) const HOLD_KEYS: usize = 512;

/// Number of rows that the writer writes at most before it releases the lock.
const HOLD_ROWS: usize = 32;

/// After releasing the lock, the writer checks at most this many times whether readers still wait
/// for it. The checks take about ten microseconds, the time that a sleeping reader needs to wake
/// up.
const YIELD_CHECKS: usize = 1000;

/// The revisions that readers may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Published {
    pub(super) revision: Revision,
    /// `None` until the first compaction.
    pub(super) compacted: Option<Revision>,
}

pub(super) struct MachineState {
    pub(super) index: Index,
    pub(super) history: EventHistory,
    pub(super) published: Published,
    /// Memory of the versions in the index, in bytes.
    pub(super) bytes: u64,
    /// The newest versions of the existing keys.
    pub(super) live: Live,
    /// Number of installs.
    generation: u64,
}

/// The existing keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Live {
    pub(super) keys: u64,
    /// Memory of the newest versions of the existing keys, in bytes.
    pub(super) bytes: u64,
}

impl Live {
    fn of(index: &Index, at: Revision) -> Self {
        let rows = index.iter().filter_map(|rows| rows.live(at));
        rows.fold(Self::default(), |sum, row| Self {
            keys: sum.keys + 1,
            bytes: sum.bytes + row.bytes(),
        })
    }

    /// Replaces a version by another one. Either version may be absent.
    pub(super) fn replace(&mut self, before: Option<u64>, now: Option<u64>) {
        self.keys = self.keys + u64::from(now.is_some()) - u64::from(before.is_some());
        self.bytes = self.bytes + now.unwrap_or(0) - before.unwrap_or(0);
    }
}

/// The error of a read during which an install has replaced the state. Rows that were read before
/// and after the install do not belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replaced;

/// The state that the writer and all readers share.
pub(super) struct MachineShared {
    state: RwLock<MachineState>,
    leases: RwLock<LeaseTable>,
    /// As of the last applied entry.
    members: RwLock<Arc<Members>>,
    /// Users and roles as of the last applied entry. Users and roles are never older than the
    /// published state.
    access: RwLock<Arc<Access>>,
    /// As of the last applied entry.
    alarms: RwLock<Arc<Alarms>>,
    /// The revision in `published`, readable without the lock.
    revision: AtomicU64,
    /// The registered revisions, each with the number of its readers. Readers that lock the state
    /// several times for one read register their revision.
    reading: Mutex<BTreeMap<Revision, usize>>,
    /// Number of readers that wait for the lock. Without this count, the writer, which takes the
    /// lock again and again, would starve readers.
    waiting: AtomicUsize,
}

// A lock is poisoned when a thread panics while it holds the lock. If the writer panics, its node
// stops. The state that was published before is intact and stays readable.
impl MachineShared {
    pub(super) fn new(
        index: Index,
        history: EventHistory,
        published: Published,
        bytes: u64,
    ) -> Self {
        Self {
            state: RwLock::new(MachineState {
                live: Live::of(&index, published.revision),
                index,
                history,
                published,
                bytes,
                generation: 0,
            }),
            leases: RwLock::default(),
            members: RwLock::default(),
            access: RwLock::default(),
            alarms: RwLock::default(),
            revision: AtomicU64::new(published.revision.get()),
            reading: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, MachineState> {
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

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, MachineState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives waiting readers time to take the lock, after the writer has released it.
    pub(super) fn yield_to_readers(&self) {
        for _ in 0..YIELD_CHECKS {
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

    pub(super) fn members(&self) -> Arc<Members> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_members(&self, members: Arc<Members>) {
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    pub(super) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_access(&self, access: Arc<Access>) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
    }

    pub(super) fn alarms(&self) -> Arc<Alarms> {
        Arc::clone(&self.alarms.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_alarms(&self, alarms: Arc<Alarms>) {
        *self.alarms.write().unwrap_or_else(PoisonError::into_inner) = alarms;
    }

    /// Returns the number of keys that a scan of `range` visits, counted up to `max`. Deleted keys
    /// that are not swept yet count too.
    pub(super) fn width(&self, range: &KeyRange, max: usize) -> usize {
        let (mut passed, mut last) = (0, None::<Vec<u8>>);
        loop {
            let state = self.state();
            let want = HOLD_KEYS.min(max - passed);
            let (mut some, mut key) = (0, None);
            for rows in state.keys(range, last.as_deref()).take(want) {
                (some, key) = (some + 1, Some(rows.newest().key()));
            }
            passed += some;
            match key {
                Some(key) if some == HOLD_KEYS => last = Some(key.to_vec()),
                _ => return passed,
            }
        }
    }

    /// Swaps the contents with `other`, which has no readers. The new contents are published.
    pub(super) fn swap(&self, other: &MachineShared) {
        let (mut ours, mut theirs) = (self.state_mut(), other.state_mut());
        let members = self.members();
        self.set_members(other.members());
        other.set_members(members);
        let access = self.access();
        self.set_access(other.access());
        other.set_access(access);
        let alarms = self.alarms();
        self.set_alarms(other.alarms());
        other.set_alarms(alarms);
        // Swap the leases after users and roles. A caller that sees the new leases is then checked
        // by the new table.
        std::mem::swap(&mut *self.leases_mut(), &mut *other.leases_mut());
        std::mem::swap(&mut *ours, &mut *theirs);
        ours.generation = theirs.generation + 1;
        self.revision.store(ours.published.revision.get(), Ordering::Release);
    }

    pub(super) fn reading(&self) -> MutexGuard<'_, BTreeMap<Revision, usize>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, published: Published) {
        let mut state = self.state_mut();
        state.published = published;
        // Set the revision under the lock, so that it always equals the one in `published`.
        self.revision.store(published.revision.get(), Ordering::Release);
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Registers a reader: until the registration is dropped, the sweep frees neither the versions
    /// that a read at `revision` sees nor the history from `revision` on. The caller must hold the
    /// lock of the state, and must have checked that `revision` is not compacted.
    pub(super) fn register(
        self: &Arc<Self>,
        _state: &MachineState,
        revision: Revision,
    ) -> Registration {
        *self.reading().entry(revision).or_insert(0) += 1;
        Registration { shared: Arc::clone(self), revision }
    }
}

impl MachineState {
    /// Returns the generation of the state, which increases with each install.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns all existing and deleted keys of `range` after `last`, in order.
    fn keys<'s>(
        &'s self,
        range: &'s KeyRange,
        last: Option<&'s [u8]>,
    ) -> impl Iterator<Item = &'s Versions> {
        let from = last.map_or(Bound::Included(&range.start()[..]), Bound::Excluded);
        let is_in = |rows: &&Versions| match range.end() {
            RangeEnd::Before(end) => rows.newest().key() < &end[..],
            RangeEnd::Single | RangeEnd::Unbounded => true,
        };
        self.index.iter_from(from).take_while(is_in)
    }

    /// Checks that the state was not replaced since the caller began to read.
    pub(super) fn expect(&self, generation: u64) -> Result<(), Replaced> {
        if self.generation == generation { Ok(()) } else { Err(Replaced) }
    }
}

/// A registered revision. See [`MachineShared::register`].
pub(super) struct Registration {
    shared: Arc<MachineShared>,
    revision: Revision,
}

impl Drop for Registration {
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

/// Whether a scan continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scan {
    On,
    Enough,
}

/// The keys as of one revision.
///
/// The creator must make sure that the sweep does not free versions of this revision. The writer
/// runs the sweep itself. Readers register the revision, or hold the lock as long as the snapshot
/// exists.
#[derive(Clone, Copy)]
pub(super) struct Snapshot<'a> {
    shared: &'a MachineShared,
    /// The state, if the creator holds the lock.
    held: Option<&'a MachineState>,
    /// The generation of the state. `None` for the writer's own snapshots, because only the writer
    /// replaces the state.
    generation: Option<u64>,
    at: Revision,
}

impl<'a> Snapshot<'a> {
    /// Creates the snapshot of a reader that has registered and released the lock.
    pub(super) fn new(shared: &'a MachineShared, generation: u64, at: Revision) -> Self {
        Self { shared, held: None, generation: Some(generation), at }
    }

    /// Returns the snapshot at another revision.
    pub(super) fn at(self, at: Revision) -> Self {
        Self { at, ..self }
    }

    pub(super) fn has_lease(&self, id: LeaseId) -> bool {
        self.shared.leases().contains(id)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<StoredRow>, Replaced> {
        let row = |state: &MachineState| Some(state.index.get(key)?.live(self.at)?.to_row());
        match self.held {
            Some(state) => Ok(row(state)),
            None => Ok(row(&*self.hold()?)),
        }
    }

    fn hold(&self) -> Result<RwLockReadGuard<'a, MachineState>, Replaced> {
        let state = self.shared.state();
        if let Some(generation) = self.generation {
            state.expect(generation)?;
        }
        Ok(state)
    }

    /// Passes every row of `range` to `visit` in key order. `visit` runs under the lock and must be
    /// short.
    pub(super) fn scan(
        &self,
        range: &KeyRange,
        mut visit: impl FnMut(RowRef<'_>) -> Scan,
    ) -> Result<(), Replaced> {
        if let Some(state) = self.held {
            self.scan_some(state, range, None, usize::MAX, &mut visit);
            return Ok(());
        }
        let mut last = None;
        loop {
            let state = self.hold()?;
            last = self.scan_some(&state, range, last, HOLD_KEYS, &mut visit);
            if last.is_none() {
                return Ok(());
            }
        }
    }

    /// Passes at most `keys` keys after `last` to the visitor. Returns the last visited key if
    /// there may be more keys.
    fn scan_some(
        &self,
        state: &MachineState,
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
        for (number, rows) in state.keys(range, last.as_deref()).enumerate() {
            if let Some(row) = rows.live(self.at)
                && visit(row) == Scan::Enough
            {
                return None;
            }
            if number + 1 == keys {
                return Some(rows.newest().key().to_vec());
            }
        }
        None
    }
}

/// The writer's use of the lock. Taking the lock costs as much as writing a row, and much more with
/// concurrent readers. Holding the lock makes readers wait. Therefore the writer holds the lock for
/// a number of rows, of one or several requests, and releases it while a request scans many keys.
pub(super) struct ReadHold<'a> {
    shared: &'a MachineShared,
    state: Option<RwLockWriteGuard<'a, MachineState>>,
    /// Number of rows that were written since the lock was last taken.
    rows: usize,
    /// Whether the current request scans ranges of keys.
    wide: bool,
}

impl<'a> ReadHold<'a> {
    pub(super) fn new(shared: &'a MachineShared) -> Self {
        Self { shared, state: None, rows: 0, wide: false }
    }

    /// Begins a request. A wide request scans ranges of keys.
    pub(super) fn begin(&mut self, wide: bool) {
        self.wide = wide;
        if wide {
            self.release_lock();
        }
    }

    /// Returns the keys as of the revision `at`, which need not be visible to readers yet.
    pub(super) fn snapshot(&mut self, at: Revision) -> Snapshot<'_> {
        let shared = self.shared;
        if self.wide {
            // Release the lock, because a wide snapshot takes the lock itself.
            self.release_lock();
            return Snapshot { shared, held: None, generation: None, at };
        }
        Snapshot { shared, held: Some(self.take()), generation: None, at }
    }

    pub(super) fn take(&mut self) -> &mut MachineState {
        self.state.get_or_insert_with(|| self.shared.state_mut())
    }

    /// Records that a row was written. After a number of rows, releases the lock for waiting
    /// readers.
    pub(super) fn wrote(&mut self) {
        self.rows += 1;
        if self.wide || self.rows >= HOLD_ROWS {
            self.release_lock();
        }
    }

    fn release_lock(&mut self) {
        if self.state.take().is_some() {
            self.shared.yield_to_readers();
        }
        self.rows = 0;
    }
}
