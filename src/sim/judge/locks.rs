//! The judge of the locks: who believes to hold what, in true time, and what the lines really were.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use crate::model::{Event, EventKind, KeyRange, KeyValue, LeaseId, NodeId, Revision};
use crate::recipes::{Loss, PASSES_MAX, Token};

/// In the calm, whoever wants a lock that nobody believes in gets it within this time: what the last
/// holder's lease lives on (2.5 s and the drift of two clocks), an election in which the leases start
/// anew, and what it takes to ask again.
const LIVE_MAX: Duration = Duration::from_secs(9);

/// In the calm, those who wait for each other in a circle are told after this time.
const CIRCLE_MAX: Duration = Duration::from_secs(4);

/// Names a piece of work that takes several locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WorkId(u64);

/// A hold of a lock, as its holder sees it.
pub(crate) struct Belief {
    pub(crate) lock: &'static str,
    pub(crate) node: NodeId,
    /// The key that makes it the holder, and the revision that made the key.
    pub(crate) key: Bytes,
    pub(crate) since: Revision,
    pub(crate) token: Token,
    /// For which piece of work it is.
    pub(crate) work: Option<WorkId>,
    /// Why its holder does not believe in it any more.
    pub(crate) loss: Box<dyn Fn() -> Option<Loss>>,
}

/// Names a hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct HolderId(u64);

/// Names somebody who waits for a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WishId(u64);

/// Somebody who waits for a lock.
struct Wish {
    lock: &'static str,
    node: NodeId,
    work: Option<WorkId>,
    since: Duration,
}

/// Names an observer of an election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ObserverId(u64);

/// An observer of an election, and the revision from which on what it was told last was so.
#[derive(Debug)]
struct Observer {
    node: NodeId,
    election: &'static str,
    seen: Option<Revision>,
}

/// Whoever is first in a line, and what its key says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) key: Bytes,
    pub(crate) since: Revision,
    pub(crate) value: Bytes,
    pub(crate) lease: LeaseId,
}

/// A line, followed from change to change.
struct Line {
    /// Its places, in order.
    places: BTreeMap<(Revision, Bytes), Head>,
    /// When each of its keys was made.
    since: BTreeMap<Bytes, Revision>,
    /// Who was first from which revision on, and what its key said.
    heads: Vec<(Revision, Option<Head>)>,
}

/// Whose place had the lock last, and how often it was passed on since others began to wait.
#[derive(Default)]
struct Turns {
    of: Option<(Bytes, Revision)>,
    passes: u32,
}

/// What the judge knows of locks.
#[derive(Default)]
pub(super) struct Locks {
    holders: BTreeMap<&'static str, BTreeMap<HolderId, Belief>>,
    last_token: BTreeMap<&'static str, Token>,
    turns: BTreeMap<&'static str, Turns>,
    wishes: BTreeMap<WishId, Wish>,
    /// When somebody believed in the lock last.
    believed: BTreeMap<&'static str, Duration>,
    /// By the lock's name and a slash.
    lines: BTreeMap<Bytes, Line>,
    observers: BTreeMap<ObserverId, Observer>,
    calm_since: Option<Duration>,
}

impl Locks {
    /// A process has ended: nobody on it believes in anything, or waits.
    pub(super) fn ended(&mut self, node: NodeId) {
        for holders in self.holders.values_mut() {
            holders.retain(|_, holder| holder.node != node);
        }
        self.wishes.retain(|_, wish| wish.node != node);
        self.observers.retain(|_, observer| observer.node != node);
    }

    /// Follows what happens below `lock/`.
    pub(super) fn follow(&mut self, revision: Revision, events: &[Event]) {
        let mut touched = BTreeSet::new();
        for event in events.iter().filter(|event| event.kv.key.starts_with(b"lock/")) {
            let key = &event.kv.key;
            let slash = key.iter().rposition(|byte| *byte == b'/').expect("it begins with one");
            let prefix = key.slice(..=slash);
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
    }
}

impl Line {
    /// In the beginning nobody is there.
    fn new() -> Self {
        Self { places: BTreeMap::new(), since: BTreeMap::new(), heads: vec![(Revision(0), None)] }
    }

    /// Who was first right after a revision.
    fn head_at(&self, at: Revision) -> Option<&Head> {
        let known = self.heads.partition_point(|(since, _)| *since <= at);
        self.heads.get(known.checked_sub(1)?)?.1.as_ref()
    }

    /// Who was first after `after`, change by change.
    fn heads_after(&self, after: Revision) -> &[(Revision, Option<Head>)] {
        &self.heads[self.heads.partition_point(|(since, _)| *since <= after)..]
    }
}

impl Judge {
    fn line(&self, lock: &str) -> Option<&Line> {
        self.locks.lines.get(format!("{lock}/").as_bytes())
    }

    /// A lock was granted; from now on its holder believes in it.
    pub(crate) fn believes(&mut self, what: &'static str, belief: Belief) -> HolderId {
        let (lock, node, token) = (belief.lock, belief.node, belief.token);
        if let Some(last) = self.locks.last_token.insert(lock, token)
            && token <= last
        {
            self.broken("K-TOKEN", || format!("{lock}: {token:?} is granted after {last:?}"));
        }
        if let Some(loss) = (belief.loss)() {
            self.broken("K-HELD", || {
                format!("{lock} is granted to {node:?} with {token:?}, and is not held: {loss}")
            });
        }
        self.first_in_line(lock, &belief.key, belief.since, token.revision());
        self.passes_on(&belief);
        let id = HolderId(self.next);
        self.next += 1;
        self.locks.holders.entry(lock).or_default().insert(id, belief);
        self.done(what);
        *self.tally.grants.entry(lock).or_default() += 1;
        self.check_holders();
        id
    }

    /// Where a lock goes from task to task inside a node, those who wait on other nodes are passed over
    /// only so often.
    fn passes_on(&mut self, belief: &Belief) {
        let known = self.seen[place(belief.node)].revision;
        let is_passed = |line: &Line| {
            let mut after = line.places.range((belief.since.next(), Bytes::new())..);
            after.any(|((since, _), other)| *since <= known && other.key != belief.key)
        };
        let is_passed = self.line(belief.lock).is_some_and(is_passed);
        let Turns { of, passes } = self.locks.turns.entry(belief.lock).or_default();
        let is_hop = *of == Some((belief.key.clone(), belief.since));
        *of = Some((belief.key.clone(), belief.since));
        *passes = if is_hop && is_passed { *passes + 1 } else { 0 };
        let passes = *passes;
        self.tally.passes_max = self.tally.passes_max.max(passes);
        if is_hop {
            self.count("lock passed on inside a node");
        }
        if passes > PASSES_MAX {
            let (lock, key) = (belief.lock, belief.key.clone());
            self.broken("K-FAIR", || {
                format!("{key:?} of {lock} was passed on {passes} times while others waited")
            });
        }
    }

    /// The holder lets go, or knows that it has lost the lock.
    pub(crate) fn believes_no_more(&mut self, lock: &'static str, id: HolderId) {
        self.check_holders();
        if let Some(holders) = self.locks.holders.get_mut(lock) {
            holders.remove(&id);
        }
    }

    /// This key is the oldest of the lock's line at this revision, with a lease.
    pub(crate) fn first_in_line(
        &mut self,
        lock: &'static str,
        key: &Bytes,
        since: Revision,
        at: Revision,
    ) {
        let first = self.line(lock).and_then(|line| line.head_at(at)).cloned();
        let mine = |head: &Head| head.key == *key && head.since == since;
        if !first.as_ref().is_some_and(mine) {
            self.broken("K-FIFO", || {
                format!("{key:?} of {since:?} is said to hold {lock} at {at:?}; first is {first:?}")
            });
        }
    }

    /// A write under a lock was applied at `at`: its holder was first in line then, and what it had
    /// read under the lock, the row of `key`, was still so.
    pub(crate) fn wrote_under_lock(
        &mut self,
        belief: (&'static str, &Bytes, Revision),
        key: &Bytes,
        read: Option<&KeyValue>,
        at: Revision,
    ) {
        let (lock, place, since) = belief;
        let before = Revision(at.get() - 1);
        self.first_in_line(lock, place, since, before);
        let row = self.truth.row_at(key, before).cloned();
        if row.as_ref() != read {
            let read = read.cloned();
            self.broken("K-UPDATE", || {
                format!(
                    "{place:?} of {since:?} has read {read:?} under {lock}; when its write was \
                     applied at {at:?} it was {row:?}"
                )
            });
        }
    }

    /// A release was acknowledged: the key that `since` made is gone.
    pub(crate) fn left_the_line(&mut self, key: &Bytes, since: Revision) {
        let row = self.truth.row_at(key, self.truth.newest()).cloned();
        if row.as_ref().is_some_and(|row| row.create_revision == since) {
            self.broken("K-LEAK", || format!("{key:?} was released and is still there: {row:?}"));
        }
    }

    /// Somebody who only tried was told that the lock is taken; it began when the store was at
    /// `floor`, and was the only wish that was ever made with `lease`. Somebody else was in the line in
    /// between.
    pub(crate) fn would_block(&mut self, lock: &'static str, lease: LeaseId, floor: Revision) {
        let never = Line::new();
        let line = self.line(lock).unwrap_or(&never);
        let heads = line.heads_after(floor).iter().filter_map(|(_, head)| head.as_ref());
        let mut heads = heads.chain(line.head_at(floor));
        if !heads.any(|head| head.lease != lease) {
            let heads = line.heads_after(floor).to_vec();
            self.broken("K-TRY", || {
                format!("{lock} is said to be taken; after {floor:?} there was but {heads:?}")
            });
        }
    }

    /// Whether anything is left below the locks.
    pub(crate) fn line_left(&self, lock: &str) -> Option<KeyValue> {
        let line = KeyRange::prefix(format!("{lock}/"));
        self.truth.rows_at(&line, self.truth.newest()).first().copied().cloned()
    }

    /// Somebody who believes in a lock, if anybody does.
    pub(crate) fn some_holder(&self) -> Option<NodeId> {
        let mut all = self.locks.holders.values().flat_map(BTreeMap::values);
        all.find(|holder| (holder.loss)().is_none()).map(|holder| holder.node)
    }

    /// At most one holder of each lock believes in it, now, and none has been robbed: no program of
    /// the world deletes the key of another.
    pub(super) fn check_holders(&mut self) {
        let now = self.timeline.now();
        let (mut together, mut robbed) = (None, None);
        let Locks { holders, believed, .. } = &mut self.locks;
        for (lock, holders) in holders {
            let mut believers = Vec::new();
            for holder in holders.values() {
                match (holder.loss)() {
                    None => believers.push((holder.node, holder.token)),
                    Some(Loss::KeyDeleted) => {
                        robbed = Some((*lock, holder.node, holder.key.clone(), holder.since));
                    }
                    Some(_) => {}
                }
            }
            if !believers.is_empty() {
                believed.insert(lock, now);
            }
            if believers.len() > 1 {
                together = Some((*lock, believers));
            }
        }
        if let Some((lock, believers)) = together {
            self.broken("K-LOCAL", || format!("{lock} is held by {believers:?} at once"));
        }
        if let Some((lock, node, key, since)) = robbed {
            self.broken("K-ROBBED", || {
                format!("{node:?} has lost {lock}: somebody has deleted {key:?} of {since:?}")
            });
        }
    }

    // ---- waiting ---------------------------------------------------------------------------

    /// A program on a node waits for a lock.
    pub(crate) fn wishes(
        &mut self,
        lock: &'static str,
        node: NodeId,
        work: Option<WorkId>,
    ) -> WishId {
        let id = WishId(self.next);
        self.next += 1;
        self.locks.wishes.insert(id, Wish { lock, node, work, since: self.timeline.now() });
        id
    }

    /// It waits no more.
    pub(crate) fn wishes_no_more(&mut self, id: WishId) {
        self.locks.wishes.remove(&id);
    }

    /// From now on nothing goes wrong any more, but for the death of a holder.
    pub(crate) fn calm(&mut self) {
        self.locks.calm_since = Some(self.timeline.now());
    }

    /// Names a piece of work.
    pub(crate) fn new_work(&mut self) -> WorkId {
        self.next += 1;
        WorkId(self.next)
    }

    /// In the calm nobody waits for long in a circle, each for what the next one believes to hold.
    fn check_circles(&mut self, calm: Duration) {
        let now = self.timeline.now();
        let Locks { wishes, holders, .. } = &self.locks;
        let long = |wish: &&Wish| now - wish.since.max(calm) > CIRCLE_MAX;
        // Whom a piece of work waits for: who holds what it wants.
        let next = |work: WorkId| {
            let wish = wishes.values().filter(long).find(|wish| wish.work == Some(work))?;
            let believes = |holder: &&Belief| (holder.loss)().is_none();
            holders.get(wish.lock)?.values().find(believes)?.work
        };
        for start in wishes.values().filter(long).filter_map(|wish| wish.work) {
            let mut circle = vec![start];
            while let Some(other) = circle.last().and_then(|last| next(*last)) {
                if circle.contains(&other) {
                    let detail = format!("{circle:?} have waited for each other since {calm:?}");
                    return self.broken("K-CIRCLE", || detail);
                }
                circle.push(other);
            }
        }
    }

    /// In the calm nobody waits for long for a lock that nobody believes in.
    pub(super) fn check_wishes(&mut self) {
        let Some(calm) = self.locks.calm_since else { return };
        self.check_holders();
        self.check_circles(calm);
        let now = self.timeline.now();
        let Locks { wishes, believed, .. } = &self.locks;
        let idle = |wish: &Wish| {
            let believed = believed.get(wish.lock).copied().unwrap_or_default();
            now - wish.since.max(calm).max(believed)
        };
        let Some(wish) = wishes.values().max_by_key(|wish| idle(wish)) else { return };
        let (idle, lock, node) = (idle(wish), wish.lock, wish.node);
        self.tally.idle_max = self.tally.idle_max.max(idle);
        if idle > LIVE_MAX {
            let first = self.line(lock).and_then(|line| line.head_at(self.truth.newest())).cloned();
            self.broken("K-LIVE", || {
                format!("for {idle:?} nobody has {lock}, and {node:?} waits; first is {first:?}")
            });
        }
    }

    // ---- elections -------------------------------------------------------------------------

    /// A program on a node observes an election.
    pub(crate) fn observer_begins(&mut self, node: NodeId, election: &'static str) -> ObserverId {
        let id = ObserverId(self.next);
        self.next += 1;
        self.locks.observers.insert(id, Observer { node, election, seen: None });
        id
    }

    /// An observer is told who leads: that is the next change after what it was told before, or
    /// a later one where what is between may be forgotten.
    pub(crate) fn observed(&mut self, id: ObserverId, leader: Option<(&Bytes, Revision, &Bytes)>) {
        let Some(&Observer { node, election, seen }) = self.locks.observers.get(&id) else {
            return;
        };
        let is_it = |head: &Option<Head>| {
            let head = head.as_ref();
            head.map(|head| (&head.key, head.since, &head.value)) == leader
        };
        let never = Line::new();
        let line = self.line(election).unwrap_or(&never);
        let found = match seen {
            // What was the case at some time.
            None => line.heads.iter().rev().find(|(_, head)| is_it(head)),
            Some(seen) => {
                // Who misses some of the history looks anew, however much has happened since.
                let may_skip = self.compaction_asked > seen;
                let mut next = line.heads_after(seen).iter();
                next.find(|(_, head)| is_it(head) || !may_skip).filter(|(_, head)| is_it(head))
            }
        };
        let found = found.map(|(since, _)| *since);
        if found.is_none() {
            let next: Vec<_> =
                line.heads_after(seen.unwrap_or_default()).iter().take(3).cloned().collect();
            self.broken("K-OBSERVE", || {
                format!(
                    "an observer of {election} on {node:?} that has seen {seen:?} is told of \
                     {leader:?}; then came {next:?}"
                )
            });
        }
        self.locks.observers.insert(id, Observer { node, election, seen: found });
        self.count(if leader.is_some() { "leader observed" } else { "vacancy observed" });
    }

    /// Whether an observer on one of these nodes has not been told of everything.
    pub(crate) fn observer_owes(&self, nodes: &[usize]) -> Option<String> {
        let here = |observer: &&Observer| nodes.contains(&place(observer.node));
        let mut owing = self.locks.observers.values().filter(here).filter(|observer| {
            let line = self.line(observer.election);
            let seen = observer.seen.unwrap_or_default();
            line.is_some_and(|line| !line.heads_after(seen).is_empty())
        });
        owing.next().map(|observer| format!("{observer:?}"))
    }
}
