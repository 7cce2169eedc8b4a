//! Owners: who may hold a lock more than once, and who must not wait for itself.
//!
//! A guard is held by whoever has it, so nothing here follows threads or tasks. A piece of work that
//! takes several locks says so by an [`Owner`]: what it holds it may take again, and a wait that would
//! close a circle of owners, each waiting for what the next one holds, is refused at once, with the
//! circle.
//!
//! Who waits for whom is in the rows of the lines, so that every node can see the whole circle: a row
//! says whose it is, and a lease knows its keys. The youngest wish of a circle is the one that closes it
//! and the one that is refused: only what entered before it is looked at, and that is there, on its
//! node, when its own entering has been applied. A semaphore's permits do not point at anybody.
//!
//! What another task of the owner was granted, and has not looked at yet, closes no circle with this one in the same
//! line: when that task has it, this one has it too, or looks again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use bytes::Bytes;

use crate::api::Session;
use crate::model::{KeyRange, LeaseId, Range, Revision};
use crate::mutant::{self, Mutant};
use crate::node::Shared;
use crate::watch::waking;

use super::error::{LockError, WaitsFor};
use super::hold::Hold;
use super::line::{Lines, is_place, parent};
use super::place::{Grant, Place, Share, Turn};
use super::rule::{Queue, Rank, Rule};
use super::stance::Stance;

/// How often an owner may hold one lock, unless it says otherwise.
const HOLDS_MAX: u32 = 1 << 16;

/// A piece of work that takes locks: made by [`Session::owner`], given to
/// [`LockCall::owner`](crate::lock::LockCall::owner) and the like. Cheap to clone; the clones are one owner.
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
    inner: Arc<Inner>,
}

struct Inner {
    /// Tells it from all others in the cluster.
    id: String,
    name: String,
    holds_max: u32,
    holds: Mutex<BTreeMap<(Bytes, Mode), Kept>>,
    waiting: Arc<Mutex<Waiting>>,
}

/// The tasks of an owner that wait.
#[derive(Default)]
struct Waiting {
    /// How often the owner has come to hold something.
    times: u64,
    /// By the addresses of their turns.
    wakers: BTreeMap<usize, Waker>,
}

/// In which way something is held.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    Alone,
    Read,
    Write,
    /// In a way that is not held again.
    Once,
}

impl Mode {
    pub(crate) fn of(rule: &Rule) -> Self {
        match rule {
            Rule::Alone => Mode::Alone,
            Rule::Read => Mode::Read,
            Rule::Write => Mode::Write,
            Rule::Upgrade(_) | Rule::Permits { .. } | Rule::Foreign => Mode::Once,
        }
    }
}

/// A hold that the owner may have.
struct Kept {
    session: Session,
    lines: Weak<Lines>,
    place: Weak<Place>,
    turn: Weak<Turn>,
    grant: Grant,
}

impl Kept {
    fn of(hold: &Hold) -> Self {
        let (lines, place, turn, grant) = hold.parts();
        Kept {
            session: hold.session().clone(),
            lines: Arc::downgrade(lines),
            place: Arc::downgrade(place),
            turn: Arc::downgrade(turn),
            grant: grant.clone(),
        }
    }
}

impl Session {
    /// Somebody who takes locks. The name is for people: in the queue of a lock, and in the report of a
    /// deadlock.
    pub fn owner(&self, name: impl Into<String>) -> Owner {
        let number = Lines::of(self.shared()).number();
        let inner = Inner {
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
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// How often it may hold one lock at the same time; at least 1, which is not at all again. Default:
    /// 65,536. For a new owner: what it holds already is forgotten.
    #[must_use]
    pub fn holds_max(self, holds: u32) -> Self {
        let Inner { id, name, waiting, .. } = &*self.inner;
        let (id, name, holds_max) = (id.clone(), name.clone(), holds.max(1));
        let (holds, waiting) = (Mutex::default(), Arc::clone(waiting));
        let inner = Inner { id, name, holds_max, holds, waiting };
        Owner { session: self.session, inner: Arc::new(inner) }
    }

    /// Whether it is one of this session's.
    pub(crate) fn is_of(&self, session: &Session) -> bool {
        Arc::ptr_eq(self.session.shared_session(), session.shared_session())
    }

    /// Writes its name into what a place says.
    pub(crate) fn sign(&self, stance: &mut Stance) {
        stance.owner.clone_from(&self.inner.id);
        stance.owner_name.clone_from(&self.inner.name);
    }

    /// What it holds already, once more: all of these at once, in this way or in one that includes it.
    pub(crate) fn again(&self, names: &[Bytes], mode: Mode) -> Result<Option<Hold>, LockError> {
        let Some((first, others)) = names.split_first() else { return Ok(None) };
        let ways: &[Mode] = match mode {
            Mode::Alone => &[Mode::Alone],
            Mode::Read => &[Mode::Read, Mode::Write],
            Mode::Write => &[Mode::Write],
            Mode::Once => &[],
        };
        let holds = self.lock();
        for mode in ways {
            let held = |name: &Bytes| holds.get(&(name.clone(), *mode));
            let Some(kept) = held(first) else { continue };
            let is_same = |other: &Kept| Weak::ptr_eq(&other.turn, &kept.turn);
            if !others.iter().all(|name| held(name).is_some_and(is_same)) {
                continue;
            }
            let (Some(lines), Some(place), Some(turn)) =
                (kept.lines.upgrade(), kept.place.upgrade(), kept.turn.upgrade())
            else {
                continue;
            };
            let limit = self.inner.holds_max;
            match turn.share(limit) {
                Share::Over => {}
                Share::TooMany => return Err(LockError::HoldLimit { limit }),
                Share::Again => {
                    let (session, grant) = (kept.session.clone(), kept.grant.clone());
                    let again = Hold::new(session, lines, place, turn, grant, Some(self.clone()));
                    if again.is_held() {
                        return Ok(Some(again));
                    }
                }
            }
        }
        Ok(None)
    }

    /// It holds these now.
    pub(crate) fn keep(&self, names: &[Bytes], mode: Mode, hold: &Hold) {
        let mut holds = self.lock();
        holds.retain(|_, kept| kept.turn.strong_count() > 0);
        for name in names {
            holds.insert((name.clone(), mode), Kept::of(hold));
        }
        drop(holds);
        // Another of its tasks may wait for just that: it has it by this, or would wait for itself.
        let mut waiting = self.waiting();
        waiting.times += 1;
        let wakers = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        for waker in wakers.into_values() {
            _ = waking(|| waker.wake());
        }
    }

    /// A task waits, and wants to know when the owner comes to hold something. Answers with how often it has.
    pub(crate) fn wait(&self, turn: &Arc<Turn>, waker: &Waker) -> u64 {
        let mut waiting = self.waiting();
        let before = waiting.wakers.insert(Arc::as_ptr(turn).addr(), waker.clone());
        let times = waiting.times;
        drop(waiting);
        // With the last of its wakers a task may go, and whatever it holds.
        drop(before);
        times
    }

    /// A task waits no more.
    pub(crate) fn waits_no_more(&self, turn: &Arc<Turn>) {
        let before = self.waiting().wakers.remove(&Arc::as_ptr(turn).addr());
        drop(before);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.inner.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has this hold by for writing too, if it has.
    pub(crate) fn writes(&self, name: &Bytes, hold: &Hold) -> Option<Grant> {
        let turn = Arc::downgrade(hold.parts().2);
        let holds = self.lock();
        let kept = holds.get(&(name.clone(), Mode::Write)).filter(|kept| kept.turn.ptr_eq(&turn));
        kept.map(|kept| kept.grant.clone())
    }

    /// It will only read what it holds for writing; false if it has other guards for that.
    pub(crate) fn only_read(&self, name: &Bytes, hold: &mut Hold) -> bool {
        let mut holds = self.lock();
        let is_only = hold.parts().2.is_single();
        if is_only {
            hold.only_reads();
            holds.remove(&(name.clone(), Mode::Write));
            holds.insert((name.clone(), Mode::Read), Kept::of(hold));
        }
        is_only
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Bytes, Mode), Kept>> {
        self.inner.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The circle that a wish of this owner has closed, if it has, from this owner on.
    pub(crate) fn deadlock(&self, place: &Place, since: Revision) -> Option<Vec<WaitsFor>> {
        if mutant::is(Mutant::B30) {
            return None;
        }
        let keys = Arc::clone(&place.lock().keys);
        let shared = self.session.shared();
        let mut search = Search {
            shared,
            at: shared.reader.revision(),
            until: since,
            target: &self.inner.id,
            seen: BTreeSet::new(),
            passed: BTreeSet::new(),
            lines: BTreeMap::new(),
        };
        place.prefixes.iter().zip(keys.iter()).find_map(|(prefix, key)| {
            let lock = name_of(prefix);
            let mut cycle = search.from(prefix, &(since, key.clone()), 0)?;
            cycle.push(WaitsFor { owner: self.inner.name.clone(), lock });
            cycle.reverse();
            Some(cycle)
        })
    }
}

/// The longest circle that is looked for.
const CYCLE_MAX: usize = 64;

/// One whose leaving a place waits for.
struct Blocker {
    rank: Rank,
    stance: Stance,
    lease: LeaseId,
    /// Whether it holds, rather than waits itself.
    holds: bool,
}

/// Follows who waits for whom.
struct Search<'a> {
    shared: &'a Arc<Shared>,
    /// The revision that is looked at.
    at: Revision,
    /// What entered later does not count.
    until: Revision,
    target: &'a str,
    seen: BTreeSet<String>,
    /// The places of the target that only wait and from which nothing leads to it, or is being looked for.
    passed: BTreeSet<(Bytes, Rank)>,
    /// The lines that were read.
    lines: BTreeMap<Bytes, Rc<Line>>,
}

/// A line as it was: what decides who may hold, and everybody in it, in order.
struct Line {
    queue: Queue,
    places: Vec<(Rank, Stance, LeaseId)>,
}

impl Search<'_> {
    /// The steps from a waiting place to the target, backwards, without its own.
    fn from(&mut self, prefix: &Bytes, rank: &Rank, depth: usize) -> Option<Vec<WaitsFor>> {
        if depth > CYCLE_MAX {
            return None;
        }
        for Blocker { rank, stance, lease, holds } in self.blockers(prefix, rank) {
            if stance.owner == self.target {
                // Another of its tasks holds what this waits for, and does not know it yet: when it does, this is told.
                if holds && depth == 0 && Lines::of(self.shared).is_undelivered(&rank) {
                    continue;
                }
                if holds {
                    return Some(Vec::new());
                }
                // Another of its tasks that only waits will have its turn and go: unless whoever it waits
                // for waits for the target.
                if depth == 0 || !self.passed.insert((prefix.clone(), rank.clone())) {
                    continue;
                }
                if let Some(mut steps) = self.from(prefix, &rank, depth + 1) {
                    steps.push(WaitsFor { owner: stance.owner_name, lock: name_of(prefix) });
                    return Some(steps);
                }
                continue;
            }
            if stance.owner.is_empty() || !self.seen.insert(stance.owner.clone()) {
                continue;
            }
            for (prefix, rank) in self.waits_of(&stance.owner, lease) {
                if let Some(mut steps) = self.from(&prefix, &rank, depth + 1) {
                    let owner = stance.owner_name.clone();
                    steps.push(WaitsFor { owner, lock: name_of(&prefix) });
                    return Some(steps);
                }
            }
        }
        None
    }

    /// The line as it was, without what entered later.
    fn line(&mut self, prefix: &Bytes) -> Rc<Line> {
        if let Some(line) = self.lines.get(prefix) {
            return Rc::clone(line);
        }
        let line = Rc::new(self.read_line(prefix));
        self.lines.insert(prefix.clone(), Rc::clone(&line));
        line
    }

    fn read_line(&self, prefix: &Bytes) -> Line {
        let mut range = Range::new(KeyRange::prefix(prefix.clone()));
        range.revision = Some(self.at);
        // If that is compacted already, nobody can say: then it is waited, as without an owner.
        let rows = self.shared.reader.range(&range).map(|reply| reply.kvs).unwrap_or_default();
        let (mut queue, mut places) = (Queue::default(), Vec::new());
        for row in rows {
            let Some(lease) = row.lease.filter(|_| is_place(&row, prefix)) else { continue };
            if row.create_revision > self.until {
                continue;
            }
            let rank = (row.create_revision, row.key.clone());
            let rule = Stance::rule_of(&row.key, &row.value);
            queue.insert(rank.clone(), rule.clone());
            let stance = Stance::parse(&row.key, &row.value)
                .unwrap_or_else(|| Stance::new(rule, String::new()));
            places.push((rank, stance, lease));
        }
        places.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        Line { queue, places }
    }

    /// Those whose leaving a place waits for, and whether they hold.
    fn blockers(&mut self, prefix: &Bytes, rank: &Rank) -> Vec<Blocker> {
        let line = self.line(prefix);
        let Line { queue, places } = &*line;
        let Some(rule) = queue.rule(rank).cloned() else { return Vec::new() };
        if queue.may_hold(rank) {
            return Vec::new();
        }
        let lines = Lines::of(self.shared);
        let blocks = |other: &Rank, stance: &Stance| match &rule {
            // It may be another's permit that comes free first.
            Rule::Permits { .. } | Rule::Foreign => false,
            Rule::Alone | Rule::Write => true,
            Rule::Read => stance.rule != Rule::Read,
            // It waits for the other readers that hold, and for nobody else.
            Rule::Upgrade(of) => {
                other.1 != *of && stance.rule == Rule::Read && queue.may_hold(other)
            }
        };
        places
            .iter()
            .filter(|(other, stance, _)| other < rank && blocks(other, stance))
            .filter(|(other, ..)| !lines.is_given_up(other))
            .map(|(rank, stance, lease)| {
                let holds = queue.may_hold(rank);
                Blocker { rank: rank.clone(), stance: stance.clone(), lease: *lease, holds }
            })
            .collect()
    }

    /// The places at which an owner waits.
    fn waits_of(&mut self, owner: &str, lease: LeaseId) -> Vec<(Bytes, Rank)> {
        let Some(info) = self.shared.reader.lease(lease) else { return Vec::new() };
        let mut waits = Vec::new();
        for key in info.keys {
            let Some(prefix) = parent(&key).map(|prefix| key.slice_ref(prefix)) else { continue };
            let mut range = Range::new(KeyRange::key(key));
            range.revision = Some(self.at);
            let row = self.shared.reader.range(&range).ok().and_then(|mut reply| reply.kvs.pop());
            let Some(row) = row.filter(|row| row.create_revision <= self.until) else { continue };
            let is_owners = Stance::parse(&row.key, &row.value).is_some_and(|s| s.owner == owner);
            let rank = (row.create_revision, row.key);
            let waits_on = !self.line(&prefix).queue.may_hold(&rank)
                && !Lines::of(self.shared).is_given_up(&rank);
            if is_owners && waits_on {
                waits.push((prefix, rank));
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
