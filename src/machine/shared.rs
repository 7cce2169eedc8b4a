//! What the one writer and the readers hold together, and the ways to hold it.
//!
//! Every read is a read at one revision, and versions do not change once they are written. So the
//! lock may be let go between any two keys: what a reader must not see yet has a higher revision
//! than the one it reads at, and `published` rises only when a whole batch of entries is in. What a
//! reader still needs is kept: it registers its revision while it reads on over several holds, and
//! the sweep stays behind the oldest one registered.
//!
//! # Installs
//! A replica that was left behind gets the state of a later index all at once, in place of what it
//! had. Both are states of one history, but the new one may have forgotten what a reader was in the
//! middle of. So whoever reads over several holds compares, in each, which content it reads
//! ([`State::generation`]), and begins anew if that is another one: [`Replaced`].

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use super::history::History;
use super::index::Index;
use super::lease::LeaseTable;
use super::row::{Row, RowRef, Rows};
use crate::model::{Access, Alarms, KeyRange, LeaseId, Members, RangeEnd, Revision};

/// How many keys a reader, or the sweep, passes in one hold of the lock.
pub(super) const HOLD_KEYS: usize = 512;

/// How many rows the writer writes in one hold of the lock.
const HOLD_ROWS: usize = 32;

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
    /// What the versions in the index take, in bytes.
    pub(super) bytes: u64,
    /// What the newest versions take, of keys that exist.
    pub(super) live: Live,
    /// Counts the installs.
    generation: u64,
}

/// The keys that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Live {
    pub(super) keys: u64,
    /// What their newest versions take.
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

    /// A version takes another's place; either may be none.
    pub(super) fn replace(&mut self, before: Option<u64>, now: Option<u64>) {
        self.keys = self.keys + u64::from(now.is_some()) - u64::from(before.is_some());
        self.bytes = self.bytes + now.unwrap_or(0) - before.unwrap_or(0);
    }
}

/// The content was replaced by an install while it was being read: what was read so far, and what
/// would be read next, do not belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Replaced;

/// What the writer and all readers hold together.
pub(super) struct Shared {
    state: RwLock<State>,
    leases: RwLock<LeaseTable>,
    /// As of the last entry applied.
    members: RwLock<Arc<Members>>,
    /// As of the last entry applied: never older than what is published.
    access: RwLock<Arc<Access>>,
    /// The same.
    alarms: RwLock<Arc<Alarms>>,
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
    pub(super) fn new(index: Index, history: History, published: Published, bytes: u64) -> Self {
        Self {
            state: RwLock::new(State {
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

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between two holds of the writer: lets in whoever waits.
    pub(super) fn give_way(&self) {
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

    /// How many keys a look at all of `range` passes over, also dead ones that are not swept yet, counted up to `max`.
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

    /// Changes content with `other`, of which there are no readers. What is swapped in is published.
    pub(super) fn swap(&self, other: &Shared) {
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
        // Behind the users: whoever asks for a lease's keys is judged by what is of the same time, or later.
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
        // Under the lock, so that the two never run apart.
        self.revision.store(published.revision.get(), Ordering::Release);
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Keeps what a read at `revision` sees, and the history from it on, until the registration is
    /// dropped. The caller holds the state and has seen that `revision` is not compacted.
    pub(super) fn register(self: &Arc<Self>, _state: &State, revision: Revision) -> Registration {
        *self.reading().entry(revision).or_insert(0) += 1;
        Registration { shared: Arc::clone(self), revision }
    }
}

impl State {
    /// Which content this is: rises with each install.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// All keys of `range` behind `last` that are there or were, in order.
    fn keys<'s>(
        &'s self,
        range: &'s KeyRange,
        last: Option<&'s [u8]>,
    ) -> impl Iterator<Item = &'s Rows> {
        let from = last.map_or(Bound::Included(&range.start()[..]), Bound::Excluded);
        let is_in = |rows: &&Rows| match range.end() {
            RangeEnd::Before(end) => rows.newest().key() < &end[..],
            RangeEnd::Single | RangeEnd::Unbounded => true,
        };
        self.index.iter_from(from).take_while(is_in)
    }

    /// Sees to it that this is still the content that the caller began to read.
    pub(super) fn expect(&self, generation: u64) -> Result<(), Replaced> {
        if self.generation == generation { Ok(()) } else { Err(Replaced) }
    }
}

/// See [`Shared::register`].
pub(super) struct Registration {
    shared: Arc<Shared>,
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
    /// Which content it is of. `None` if its maker is the writer, who alone could replace it.
    generation: Option<u64>,
    at: Revision,
}

impl<'a> Snapshot<'a> {
    /// Of a reader that does not hold the lock any more, and has registered when it did.
    pub(super) fn new(shared: &'a Shared, generation: u64, at: Revision) -> Self {
        Self { shared, held: None, generation: Some(generation), at }
    }

    /// The same at another revision.
    pub(super) fn at(self, at: Revision) -> Self {
        Self { at, ..self }
    }

    pub(super) fn has_lease(&self, id: LeaseId) -> bool {
        self.shared.leases().contains(id)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Row>, Replaced> {
        let row = |state: &State| Some(state.index.get(key)?.live(self.at)?.to_row());
        match self.held {
            Some(state) => Ok(row(state)),
            None => Ok(row(&*self.hold()?)),
        }
    }

    fn hold(&self) -> Result<RwLockReadGuard<'a, State>, Replaced> {
        let state = self.shared.state();
        if let Some(generation) = self.generation {
            state.expect(generation)?;
        }
        Ok(state)
    }

    /// Shows every row of `range` in key order. `visit` runs under the lock and must be short.
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
            return Snapshot { shared, held: None, generation: None, at };
        }
        Snapshot { shared, held: Some(self.take()), generation: None, at }
    }

    pub(super) fn take(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| self.shared.state_mut())
    }

    /// Tells that a row was written: after some, readers get their turn.
    pub(super) fn wrote(&mut self) {
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
