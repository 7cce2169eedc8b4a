//! Owners: re-entrant holds, and deadlock detection.
//!
//! Guards are not tied to threads or tasks. Work that acquires several locks identifies itself with
//! an [`Owner`]. An owner can acquire a lock that it already holds. A wait that would close a cycle
//! of owners, in which each waits for a lock of the next, is rejected immediately, and the error
//! contains the cycle.
//!
//! Every node can see the whole cycle, because the rows of the queues show who waits for whom: a
//! row names its owner, and a lease lists its keys. The youngest request of a cycle is the one that
//! closes it, and is rejected. The search for a cycle considers only entries that were enqueued
//! before the request. All of those are in the local replica when the node has applied the
//! request's own enqueue. Requests for permits of a semaphore do not wait for a particular owner,
//! so they are ignored.
//!
//! Suppose that a lock was granted to another task of the owner, but not delivered yet. A request
//! of the owner in the same queue then closes no cycle: once the lock is delivered, the request
//! acquires it again or repeats its search.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use bytes::Bytes;

use crate::api::Session;
use crate::lock_format::{EntryMetadata, LockMode, LockQueue, QueuePosition, is_entry, parent};
use crate::model::{KeyRange, LeaseId, Range, Revision};
use crate::node::Shared;
use crate::watch::waking;

use super::core::entry::QueueEntry;
use super::core::holding::Holding;
use super::core::request::OwnerTag;
use super::core::waiter::{Grant, Share, Waiter};
use crate::recipes::lock::core::error::{LockError, WaitsFor};
use crate::recipes::lock::core::lock_table::LockTable;

/// Default for how often an owner may hold one lock.
const HOLDS_MAX: u32 = 1 << 16;

/// Identifies a piece of work that acquires locks. Created by [`Session::owner`] and passed to
/// [`LockCall::owner`](crate::lock::LockCall::owner). An owner is cheap to clone, and all clones
/// are the same owner.
///
/// ```
/// # use bowline::{Blocking, Config, LockError, Node, Released};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let session = node.session().block()?;
/// let transfer = session.owner("transfer 7");
/// let account = session.mutex("accounts/7");
/// let once = account.lock().owner(&transfer).block()?;
/// let twice = account.lock().owner(&transfer).block()?;
/// assert_eq!(once.token(), twice.token());
/// assert_eq!(once.release().block()?, Released::StillHeld { times: 1 });
/// assert_eq!(twice.release().block()?, Released::Now);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Owner {
    session: Session,
    inner: Arc<OwnerInner>,
}

struct OwnerInner {
    /// Cluster-wide unique id.
    id: String,
    name: String,
    holds_max: u32,
    holds: Mutex<BTreeMap<(Bytes, OwnerMode), OwnerHold>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// The waiting tasks of an owner.
#[derive(Default)]
struct Waiting {
    /// How often the owner has acquired a lock.
    times: u64,
    /// Wakers by the address of their waiter.
    wakers: BTreeMap<usize, Waker>,
}

/// The mode in which an owner holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum OwnerMode {
    Alone,
    Read,
    Write,
    /// Any other mode. The owner cannot acquire the lock again in this mode.
    Once,
}

impl OwnerMode {
    pub(crate) fn of(mode: &LockMode) -> Self {
        match mode {
            LockMode::Mutex => OwnerMode::Alone,
            LockMode::Read => OwnerMode::Read,
            LockMode::Write => OwnerMode::Write,
            LockMode::Upgrade(_) | LockMode::Permits { .. } | LockMode::Foreign => OwnerMode::Once,
        }
    }
}

/// A hold that the owner may have.
struct OwnerHold {
    session: Session,
    table: Weak<LockTable>,
    entry: Weak<QueueEntry>,
    waiter: Weak<Waiter>,
    grant: Grant,
}

impl OwnerHold {
    fn of(holding: &Holding) -> Self {
        let Holding { session, table, entry, waiter, grant } = holding;
        OwnerHold {
            session: session.clone(),
            table: Arc::downgrade(table),
            entry: Arc::downgrade(entry),
            waiter: Arc::downgrade(waiter),
            grant: grant.clone(),
        }
    }
}

impl Session {
    /// Creates an owner. The name is shown in lock queues and in deadlock errors.
    pub fn owner(&self, name: impl Into<String>) -> Owner {
        let number = LockTable::of(self.shared()).number();
        let inner = OwnerInner {
            id: format!("{}.{number}", self.lease()),
            name: name.into(),
            holds_max: HOLDS_MAX,
            holds: Mutex::default(),
            waiting: Arc::default(),
        };
        Owner { session: self.clone(), inner: Arc::new(inner) }
    }
}

impl Owner {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Limits how often the owner may hold one lock at the same time. The minimum is 1, which
    /// allows no second hold. Default: 65,536. Returns a new owner, which holds none of the locks
    /// that this owner holds.
    #[must_use]
    pub fn holds_max(self, holds: u32) -> Self {
        let OwnerInner { id, name, waiting, .. } = &*self.inner;
        let (id, name, holds_max) = (id.clone(), name.clone(), holds.max(1));
        let (holds, waiting) = (Mutex::default(), Arc::clone(waiting));
        let inner = OwnerInner { id, name, holds_max, holds, waiting };
        Owner { session: self.session, inner: Arc::new(inner) }
    }

    /// Reports whether the owner belongs to this session.
    pub(crate) fn is_of(&self, session: &Session) -> bool {
        Arc::ptr_eq(self.session.shared_session(), session.shared_session())
    }

    /// Returns the id and the name for the rows of requests.
    pub(crate) fn tag(&self) -> OwnerTag {
        OwnerTag { id: self.inner.id.clone(), name: self.inner.name.clone() }
    }

    /// If the owner holds all these locks with one hold, in this mode or a mode that includes it,
    /// acquires them once more.
    pub(crate) fn again(
        &self,
        names: &[Bytes],
        mode: OwnerMode,
    ) -> Result<Option<Holding>, LockError> {
        let Some((first, others)) = names.split_first() else { return Ok(None) };
        let ways: &[OwnerMode] = match mode {
            OwnerMode::Alone => &[OwnerMode::Alone],
            OwnerMode::Read => &[OwnerMode::Read, OwnerMode::Write],
            OwnerMode::Write => &[OwnerMode::Write],
            OwnerMode::Once => &[],
        };
        let holds = self.lock();
        for mode in ways {
            let held = |name: &Bytes| holds.get(&(name.clone(), *mode));
            let Some(kept) = held(first) else { continue };
            let is_same = |other: &OwnerHold| Weak::ptr_eq(&other.waiter, &kept.waiter);
            if !others.iter().all(|name| held(name).is_some_and(is_same)) {
                continue;
            }
            let (Some(table), Some(entry), Some(waiter)) =
                (kept.table.upgrade(), kept.entry.upgrade(), kept.waiter.upgrade())
            else {
                continue;
            };
            let limit = self.inner.holds_max;
            match waiter.share(limit) {
                Share::Over => {}
                Share::TooMany => return Err(LockError::HoldLimit { limit }),
                Share::Again => {
                    let (session, grant) = (kept.session.clone(), kept.grant.clone());
                    let again = Holding { session, table, entry, waiter, grant };
                    if again.loss(again.session.shared().now()).is_none() {
                        return Ok(Some(again));
                    }
                    again.drop_share();
                }
            }
        }
        Ok(None)
    }

    /// Records a new hold.
    pub(crate) fn keep(&self, names: &[Bytes], mode: OwnerMode, holding: &Holding) {
        let mut holds = self.lock();
        holds.retain(|_, kept| kept.waiter.strong_count() > 0);
        for name in names {
            holds.insert((name.clone(), mode), OwnerHold::of(holding));
        }
        drop(holds);
        // Another task of the owner may wait for this lock. Wake that task: it can now acquire the
        // lock again, or its wait closes a cycle and is rejected.
        let mut waiting = self.waiting();
        waiting.times += 1;
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        for waker in wakers.into_values() {
            _ = waking(|| waker.wake());
        }
    }

    /// Registers a waiting task, to be woken when the owner acquires a lock. Returns how many locks
    /// the owner has acquired so far.
    pub(crate) fn wait(&self, waiter: &Arc<Waiter>, waker: &Waker) -> u64 {
        let mut waiting = self.waiting();
        let before = waiting.wakers.insert(Arc::as_ptr(waiter).addr(), waker.clone());
        let times = waiting.times;
        drop(waiting);
        // Drop the waker after the lock is released: dropping the last waker may drop a task and
        // everything that the task holds.
        drop(before);
        times
    }

    pub(crate) fn remove_waiter(&self, waiter: &Arc<Waiter>) {
        let before = self.waiting().wakers.remove(&Arc::as_ptr(waiter).addr());
        drop(before);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If the owner holds this lock for writing, returns the grant.
    pub(crate) fn writes(&self, name: &Bytes, holding: &Holding) -> Option<Grant> {
        let waiter = Arc::downgrade(&holding.waiter);
        let holds = self.lock();
        let kept =
            holds.get(&(name.clone(), OwnerMode::Write)).filter(|kept| kept.waiter.ptr_eq(&waiter));
        kept.map(|kept| kept.grant.clone())
    }

    /// Records that a hold is downgraded to reading by `downgrade`. Returns `false` if the owner has
    /// other guards for writing.
    pub(crate) fn only_read(
        &self,
        name: &Bytes,
        holding: &mut Holding,
        downgrade: impl FnOnce(&mut Holding),
    ) -> bool {
        let mut holds = self.lock();
        let is_only = holding.waiter.is_single();
        if is_only {
            downgrade(holding);
            holds.remove(&(name.clone(), OwnerMode::Write));
            holds.insert((name.clone(), OwnerMode::Read), OwnerHold::of(holding));
        }
        is_only
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Bytes, OwnerMode), OwnerHold>> {
        self.inner.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cycle that a request of this owner has closed, if any, starting with this owner.
    pub(crate) fn deadlock(&self, entry: &QueueEntry, since: Revision) -> Option<Vec<WaitsFor>> {
        mutant!(B30, return None);
        let keys = entry.keys();
        let shared = self.session.shared();
        let mut search = Search {
            shared,
            at: shared.reader.revision(),
            until: since,
            target: &self.inner.id,
            seen: BTreeSet::new(),
            visited: BTreeSet::new(),
            queues: BTreeMap::new(),
        };
        entry.prefixes.iter().zip(keys.iter()).find_map(|(prefix, key)| {
            let lock = name_of(prefix);
            let mut cycle = search.from(prefix, &QueuePosition::new(since, key.clone()), 0)?;
            cycle.push(WaitsFor { owner: self.inner.name.clone(), lock });
            cycle.reverse();
            Some(cycle)
        })
    }
}

/// Maximum length of a cycle that is searched.
const CYCLE_MAX: usize = 64;

/// An entry that another entry waits for.
struct Blocker {
    position: QueuePosition,
    metadata: EntryMetadata,
    lease: LeaseId,
    /// Whether the entry holds the lock. Otherwise it waits.
    holds: bool,
}

/// A search for a cycle of owners that wait for each other.
struct Search<'a> {
    shared: &'a Arc<Shared>,
    /// The revision at which rows are read.
    at: Revision,
    /// Entries with a later create revision are ignored.
    until: Revision,
    target: &'a str,
    seen: BTreeSet<String>,
    /// Waiting entries of the target from which no path leads back to it, or from which the search
    /// is in progress.
    visited: BTreeSet<(Bytes, QueuePosition)>,
    /// Cache of the queues that were read.
    queues: BTreeMap<Bytes, Rc<OwnerWaits>>,
}

/// A lock queue at that revision.
struct OwnerWaits {
    queue: LockQueue,
    entries: Vec<(QueuePosition, EntryMetadata, LeaseId)>,
}

impl Search<'_> {
    /// Returns the path from a waiting entry to the target, in reverse and without the entry's own
    /// step.
    fn from(
        &mut self,
        prefix: &Bytes,
        position: &QueuePosition,
        depth: usize,
    ) -> Option<Vec<WaitsFor>> {
        if depth > CYCLE_MAX {
            return None;
        }
        for Blocker { position, metadata, lease, holds } in self.blockers(prefix, position) {
            if metadata.owner == self.target {
                // Another task of the owner holds this lock and has not received its guard yet.
                // When it receives the guard, this task is woken.
                if holds && depth == 0 && LockTable::of(self.shared).is_undelivered(&position) {
                    continue;
                }
                if holds {
                    return Some(Vec::new());
                }
                // An entry of the target owner that only waits does not close a cycle by itself:
                // its task will get the lock and release it, unless the entries ahead of it wait
                // for the target.
                if depth == 0 || !self.visited.insert((prefix.clone(), position.clone())) {
                    continue;
                }
                if let Some(mut steps) = self.from(prefix, &position, depth + 1) {
                    steps.push(WaitsFor { owner: metadata.owner_name, lock: name_of(prefix) });
                    return Some(steps);
                }
                continue;
            }
            if metadata.owner.is_empty() || !self.seen.insert(metadata.owner.clone()) {
                continue;
            }
            for (prefix, position) in self.waits_of(&metadata.owner, lease) {
                if let Some(mut steps) = self.from(&prefix, &position, depth + 1) {
                    let owner = metadata.owner_name.clone();
                    steps.push(WaitsFor { owner, lock: name_of(&prefix) });
                    return Some(steps);
                }
            }
        }
        None
    }

    /// Returns a queue as of the search revision.
    fn queue(&mut self, prefix: &Bytes) -> Rc<OwnerWaits> {
        if let Some(queue) = self.queues.get(prefix) {
            return Rc::clone(queue);
        }
        let queue = Rc::new(self.read_queue(prefix));
        self.queues.insert(prefix.clone(), Rc::clone(&queue));
        queue
    }

    fn read_queue(&self, prefix: &Bytes) -> OwnerWaits {
        let mut range = Range::new(KeyRange::prefix(prefix.clone()));
        range.revision = Some(self.at);
        // If that revision is compacted, the search finds nothing, and the request waits as without
        // an owner.
        let rows = self.shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
        let (mut queue, mut entries) = (LockQueue::default(), Vec::new());
        for row in rows {
            let Some(lease) = row.lease.filter(|_| is_entry(&row, prefix)) else { continue };
            if row.create_revision > self.until {
                continue;
            }
            let position = QueuePosition::new(row.create_revision, row.key.clone());
            let mode = EntryMetadata::mode_of(&row.key, &row.value);
            queue.insert(position.clone(), mode.clone());
            let metadata = EntryMetadata::parse(&row.key, &row.value)
                .unwrap_or_else(|| EntryMetadata::new(mode, String::new()));
            entries.push((position, metadata, lease));
        }
        entries.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        OwnerWaits { queue, entries }
    }

    /// Returns the entries that an entry waits for, and whether they hold.
    fn blockers(&mut self, prefix: &Bytes, position: &QueuePosition) -> Vec<Blocker> {
        let read = self.queue(prefix);
        let OwnerWaits { queue, entries } = &*read;
        let Some(mode) = queue.mode(position).cloned() else { return Vec::new() };
        if queue.may_hold(position) {
            return Vec::new();
        }
        let table = LockTable::of(self.shared);
        let blocks = |other: &QueuePosition, metadata: &EntryMetadata| match &mode {
            // A permit of any other holder may be released first.
            LockMode::Permits { .. } | LockMode::Foreign => false,
            LockMode::Mutex | LockMode::Write => true,
            LockMode::Read => metadata.mode != LockMode::Read,
            // An upgrade waits only for the other readers that hold.
            LockMode::Upgrade(of) => {
                other.key != *of && metadata.mode == LockMode::Read && queue.may_hold(other)
            }
        };
        entries
            .iter()
            .filter(|(other, metadata, _)| other < position && blocks(other, metadata))
            .filter(|(other, ..)| !table.is_given_up(other))
            .map(|(position, metadata, lease)| {
                let holds = queue.may_hold(position);
                Blocker {
                    position: position.clone(),
                    metadata: metadata.clone(),
                    lease: *lease,
                    holds,
                }
            })
            .collect()
    }

    /// Returns the waiting entries of an owner.
    fn waits_of(&mut self, owner: &str, lease: LeaseId) -> Vec<(Bytes, QueuePosition)> {
        let Some(info) = self.shared.reader.lease(lease) else { return Vec::new() };
        let mut waits = Vec::new();
        for key in info.keys {
            let Some(prefix) = parent(&key).map(|prefix| key.slice_ref(prefix)) else { continue };
            let mut range = Range::new(KeyRange::key(key));
            range.revision = Some(self.at);
            let row = self.shared.reader.range(&range).ok().and_then(|mut reply| reply.kvs.pop());
            let Some(row) = row.filter(|row| row.create_revision <= self.until) else { continue };
            let is_owners =
                EntryMetadata::parse(&row.key, &row.value).is_some_and(|s| s.owner == owner);
            let position = QueuePosition::new(row.create_revision, row.key);
            let waits_on = !self.queue(&prefix).queue.may_hold(&position)
                && !LockTable::of(self.shared).is_given_up(&position);
            if is_owners && waits_on {
                waits.push((prefix, position));
            }
        }
        waits
    }
}

fn name_of(prefix: &Bytes) -> Bytes {
    prefix.slice(..prefix.len() - 1)
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("name", &self.inner.name).finish_non_exhaustive()
    }
}
