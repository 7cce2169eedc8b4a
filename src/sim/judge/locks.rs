//! Judges the locks: which programs believe that they hold a lock, in true time, and how long others wait.
//! [`lines`](super::lines) reconstructs the queues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use super::lines::{EntryShare, Line, LockQueueJudge, limit_at};
use super::observers::{Observer, ObserverId};
use crate::model::{KeyRange, KeyValue, LeaseId, NodeId, Revision};
use crate::recipes::{HANDOFFS_MAX, LostReason, Token};

/// In the calm phase, maximum time to acquire a lock that no program believes it holds: the remaining TTL of the last
/// holder (2.5 s and the drift of two clocks), an election that restarts all leases, and a retry.
const LIVE_MAX: Duration = Duration::from_secs(9);

/// In the calm phase, maximum time until a deadlock is reported.
const CIRCLE_MAX: Duration = Duration::from_secs(4);

/// The id of a piece of work that takes several locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WorkId(u64);

/// A hold of a lock as its holder sees it.
pub(crate) struct ReportedHold {
    pub(crate) lock: &'static str,
    /// The share of the lock.
    pub(crate) share: EntryShare,
    pub(crate) node: NodeId,
    /// The key of the holder in the lock queue, and its revision of creation.
    pub(crate) key: Bytes,
    pub(crate) since: Revision,
    pub(crate) token: Token,
    /// The lease of the hold, and the time for which the lease outlives the hold if the holder did not give it up.
    pub(crate) lease: LeaseId,
    pub(crate) delay: Duration,
    /// The piece of work that the hold belongs to.
    pub(crate) work: Option<WorkId>,
    /// Returns why the holder no longer considers the lock held.
    pub(crate) loss: Box<dyn Fn() -> Option<LostReason>>,
}

/// A hold and what the judge recorded with it.
struct Holder {
    reported_hold: ReportedHold,
    /// The permit limit when it was granted.
    limit: u64,
    /// The slots that were reported to the holder.
    slots: Vec<u32>,
}

impl Holder {
    fn record_hold(&self) -> bool {
        (self.reported_hold.loss)().is_none()
    }

    /// Returns whether the lock is free for the next holder at once, that is, whether it was not lost with its
    /// session.
    fn was_released(&self) -> bool {
        !matches!(
            (self.reported_hold.loss)(),
            Some(LostReason::SessionEnded(_) | LostReason::NodeStopped(_))
        )
    }
}

/// The id of a hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct HolderId(u64);

/// The id of a waiter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct AttemptId(u64);

/// A program that waits for a lock.
struct LockAttempt {
    lock: &'static str,
    /// Locks that this waiter may indirectly depend on. While any of them is held, the wait does not count as too long.
    group: &'static [&'static str],
    node: NodeId,
    work: Option<WorkId>,
    since: Duration,
}

/// The last holder of a lock, and how often the lock was passed on within its node since others began to wait.
#[derive(Default)]
struct Turns {
    of: Option<(Bytes, Revision)>,
    passes: u32,
}

/// The highest tokens of a lock so far.
#[derive(Default)]
struct Tokens {
    /// The highest token of an exclusive hold.
    alone: Option<Token>,
    /// The highest token of any hold.
    any: Option<Token>,
}

/// The state of the judge for locks.
#[derive(Default)]
pub(super) struct LockJudge {
    holders: BTreeMap<&'static str, BTreeMap<HolderId, Holder>>,
    tokens: BTreeMap<&'static str, Tokens>,
    /// The last token of each slot, by lock and slot number.
    slot_tokens: BTreeMap<(&'static str, u32), Token>,
    turns: BTreeMap<&'static str, Turns>,
    attempts: BTreeMap<AttemptId, LockAttempt>,
    /// The last time at which a program believed that it held the lock.
    believed: BTreeMap<&'static str, Duration>,
    /// Lock delays: the lost lease, and the time before which no other may acquire the lock.
    reserved: BTreeMap<&'static str, (LeaseId, Duration)>,
    /// Nodes in a graceful shutdown. A holder on such a node loses its hold and gives it up in one step.
    pub(super) stopping: BTreeSet<NodeId>,
    pub(super) lines: LockQueueJudge,
    pub(super) observers: BTreeMap<ObserverId, Observer>,
    pub(super) calm_since: Option<Duration>,
}

impl LockJudge {
    /// Forgets the holders and waiters of a process that has ended.
    pub(super) fn ended(&mut self, node: NodeId) {
        self.stopping.remove(&node);
        for holders in self.holders.values_mut() {
            holders.retain(|_, holder| holder.reported_hold.node != node);
        }
        self.attempts.retain(|_, attempt| attempt.node != node);
        self.observers.retain(|_, observer| observer.node != node);
    }
}

impl Judge {
    pub(super) fn line(&self, lock: &str) -> Option<&Line> {
        self.locks.lines.of(lock)
    }

    /// Records that a lock was granted, and checks the grant. From now on its holder believes in it.
    pub(crate) fn record_hold(
        &mut self,
        what: &'static str,
        reported_hold: ReportedHold,
    ) -> HolderId {
        let (lock, node, token) = (reported_hold.lock, reported_hold.node, reported_hold.token);
        self.token_rises(lock, reported_hold.share, token);
        if let Some(loss) = (reported_hold.loss)() {
            self.broken("K-HELD", || {
                format!("{lock} is granted to {node:?} with {token:?}, and is not held: {loss}")
            });
        }
        self.keeps_the_delay(&reported_hold);
        let (share, key, since) =
            (reported_hold.share, reported_hold.key.clone(), reported_hold.since);
        self.check_queue_position(lock, share, &key, since, token.revision());
        if share == EntryShare::All {
            self.passes_on(&reported_hold);
        }
        self.done(what);
        self.count(what);
        *self.tally.grants.entry(lock).or_default() += 1;
        self.record_continued_hold(reported_hold)
    }

    /// Records that an earlier hold continues, possibly with another share of the lock.
    pub(crate) fn record_continued_hold(&mut self, reported_hold: ReportedHold) -> HolderId {
        let id = HolderId(self.next);
        self.next += 1;
        let limit = match reported_hold.share {
            EntryShare::Permits(_) => limit_at(
                &self.truth,
                reported_hold.lock,
                &reported_hold.key,
                reported_hold.token.revision(),
            ),
            _ => 0,
        };
        let holders = self.locks.holders.entry(reported_hold.lock).or_default();
        holders.insert(id, Holder { reported_hold, limit, slots: Vec::new() });
        self.check_holders();
        id
    }

    /// Checks the lock delay: after a hold with a lock delay is lost, no other session may acquire the lock until the
    /// delay has passed.
    fn keeps_the_delay(&mut self, reported_hold: &ReportedHold) {
        let (lock, now) = (reported_hold.lock, self.timeline.now());
        let Some((lease, until)) = self.locks.reserved.remove(lock) else { return };
        self.count("lock delay");
        if lease != reported_hold.lease && now < until {
            let node = reported_hold.node;
            self.broken("K-DELAY", || {
                format!("{lock} is granted to {node:?}; {lease:?} keeps it until {until:?}")
            });
        }
    }

    /// Checks that a token is higher than those of all earlier holds that exclude this one.
    fn token_rises(&mut self, lock: &'static str, share: EntryShare, token: Token) {
        let Tokens { alone, any } = self.locks.tokens.entry(lock).or_default();
        let last = match share {
            EntryShare::All => *any,
            EntryShare::Read => *alone,
            EntryShare::Permits(_) | EntryShare::Any => None,
        };
        *any = (*any).max(Some(token));
        if share == EntryShare::All {
            *alone = (*alone).max(Some(token));
        }
        if last.is_some_and(|last| token <= last) {
            self.broken("K-TOKEN", || format!("{lock}: {token:?} is granted after {last:?}"));
        }
    }

    /// Records the slots of a holder of permits. No other holder may have the same slot, and the token of a slot must
    /// rise.
    pub(crate) fn has_slots(&mut self, lock: &'static str, id: HolderId, slots: &[(u32, Token)]) {
        let Some(holder) = self.locks.holders.get_mut(lock).and_then(|all| all.get_mut(&id)) else {
            return;
        };
        let known =
            std::mem::replace(&mut holder.slots, slots.iter().map(|(number, _)| *number).collect());
        let fits = slots.len() as u64 == holder.reported_hold.share.permits();
        let is_same = known.is_empty() || known == holder.slots;
        self.expect(fits && is_same, "K-SLOT", || {
            format!("{slots:?} of {lock} are told, where there were {known:?}")
        });
        for &(number, token) in slots {
            let last = self.locks.slot_tokens.insert((lock, number), token);
            let rises = last.is_none_or(|last| token > last || !known.is_empty());
            self.expect(rises, "K-TOKEN", || {
                format!("slot {number} of {lock}: {token:?} is told after {last:?}")
            });
        }
        self.count("slots claimed");
        self.check_holders();
    }

    /// Checks that a lock is passed on within one node only a limited number of times while other nodes wait.
    fn passes_on(&mut self, reported_hold: &ReportedHold) {
        let known = self.seen[place(reported_hold.node)].revision;
        let is_passed = |line: &Line| {
            let mut after = line.places.range((reported_hold.since.next(), Bytes::new())..);
            after.any(|((since, _), other)| *since <= known && other.key != reported_hold.key)
        };
        let is_passed = self.line(reported_hold.lock).is_some_and(is_passed);
        let Turns { of, passes } = self.locks.turns.entry(reported_hold.lock).or_default();
        let is_same = *of == Some((reported_hold.key.clone(), reported_hold.since));
        // A hold that was transferred has the same key as well.
        let is_handoff = is_same && reported_hold.token.handoff() > 0;
        *of = Some((reported_hold.key.clone(), reported_hold.since));
        *passes = if is_handoff && is_passed { *passes + 1 } else { 0 };
        let passes = *passes;
        self.tally.passes_max = self.tally.passes_max.max(passes);
        if is_handoff {
            self.count("lock passed between tasks of a node");
        }
        if passes > HANDOFFS_MAX {
            let (lock, key) = (reported_hold.lock, reported_hold.key.clone());
            self.broken("K-FAIR", || {
                format!("{key:?} of {lock} was passed on {passes} times while others waited")
            });
        }
    }

    /// Records that the holder releases the lock, or knows that it has lost it.
    pub(crate) fn record_end_of_hold(&mut self, lock: &'static str, id: HolderId) {
        self.check_holders();
        let LockJudge { holders, reserved, .. } = &mut self.locks;
        let Some(holder) = holders.get_mut(lock).and_then(|holders| holders.remove(&id)) else {
            return;
        };
        let is_its = |(lease, _): &(LeaseId, Duration)| *lease == holder.reported_hold.lease;
        if holder.was_released() && reserved.get(lock).is_some_and(is_its) {
            reserved.remove(lock);
        }
    }

    /// Checks that the position of this key in the lock queue allows it to hold this share at this revision.
    pub(crate) fn check_queue_position(
        &mut self,
        lock: &'static str,
        share: EntryShare,
        key: &Bytes,
        since: Revision,
        at: Revision,
    ) {
        let found = match share {
            EntryShare::All => self.locks.lines.is_first(lock, key, since, at),
            _ => share.may_hold(&self.truth, lock, key, since, at),
        };
        if let Err(found) = found {
            self.broken("K-FIFO", || {
                format!("{key:?} of {since:?} is said to hold {lock} at {at:?}; {found}")
            });
        }
    }

    /// Checks a write under these locks that was applied at `at`: the writer could hold the locks at that revision,
    /// and the row of `key`, read under them, was unchanged.
    pub(crate) fn wrote_under_lock(
        &mut self,
        held: &[(&'static str, HolderId)],
        key: &Bytes,
        read: Option<&KeyValue>,
        at: Revision,
    ) {
        let before = Revision(at.get() - 1);
        for &(lock, id) in held {
            let Some(holder) = self.locks.holders.get(lock).and_then(|all| all.get(&id)) else {
                continue;
            };
            let ReportedHold { share, key, since, .. } = &holder.reported_hold;
            let (share, key, since) = (share.when_writing(), key.clone(), *since);
            self.check_queue_position(lock, share, &key, since, before);
        }
        let row = self.truth.row_at(key, before).cloned();
        if row.as_ref() != read {
            let read = read.cloned();
            self.broken("K-UPDATE", || {
                let held: Vec<&str> = held.iter().map(|(lock, _)| *lock).collect();
                format!(
                    "the holder of {held:?} has read {read:?} under it; when its write was applied \
                     at {at:?} it was {row:?}"
                )
            });
        }
    }

    /// Checks an acknowledged release: the key created at `since` is gone, or belongs to another session.
    pub(crate) fn check_release(&mut self, key: &Bytes, since: Revision, lease: LeaseId) {
        if let Some(row) = self.unchanged_row(key, since, lease) {
            self.broken("K-LEAK", || format!("{key:?} was released and is still there: {row:?}"));
        }
    }

    /// Records that this session is about to resume a hold of an earlier one.
    pub(crate) fn record_resumption(&mut self, key: &Bytes, since: Revision, by: LeaseId) {
        self.locks.lines.takers.insert((key.clone(), since, by));
    }

    /// Checks the reply that a hold to be resumed has ended.
    pub(crate) fn is_over(&mut self, key: &Bytes, since: Revision, lease: LeaseId) {
        if let Some(row) = self.unchanged_row(key, since, lease) {
            self.broken("K-RESUME", || format!("{key:?} is said to be over, and there is {row:?}"));
        }
    }

    /// Returns the row of a queue entry if it exists and still belongs to the same session.
    fn unchanged_row(&self, key: &Bytes, since: Revision, lease: LeaseId) -> Option<KeyValue> {
        let row = self.truth.row_at(key, self.truth.newest());
        row.filter(|row| row.create_revision == since && row.lease == Some(lease)).cloned()
    }

    /// Checks the reply of `try_lock` that the lock is taken. The attempt began after `floor` and was the only one
    /// ever made with `lease`. Another request must have been in the queue in the meantime.
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

    /// Returns a row that is left below the name of a lock.
    pub(crate) fn line_left(&self, lock: &str) -> Option<KeyValue> {
        let line = KeyRange::prefix(format!("{lock}/"));
        self.truth.rows_at(&line, self.truth.newest()).first().copied().cloned()
    }

    /// Returns a node on which a program believes that it holds a lock.
    pub(crate) fn some_holder(&self) -> Option<NodeId> {
        let mut all = self.locks.holders.values().flat_map(BTreeMap::values);
        all.find(|holder| holder.record_hold()).map(|holder| holder.reported_hold.node)
    }

    /// Checks that all current holders are compatible, and that each still has its key: no program of the world
    /// deletes the key of another.
    pub(super) fn check_holders(&mut self) {
        let now = self.timeline.now();
        let (mut together, mut robbed) = (None, None);
        let LockJudge { holders, believed, reserved, stopping, .. } = &mut self.locks;
        for (lock, holders) in holders {
            let mut believers = Vec::new();
            for holder in holders.values() {
                let ReportedHold { lease, delay, .. } = holder.reported_hold;
                match (holder.reported_hold.loss)() {
                    None => {
                        believers.push(holder);
                        if !delay.is_zero() {
                            reserved.insert(lock, (lease, now + delay));
                        }
                    }
                    Some(LostReason::KeyDeleted) => {
                        let ReportedHold { node, key, since, .. } = &holder.reported_hold;
                        robbed = Some((*lock, *node, key.clone(), *since));
                    }
                    Some(LostReason::SessionEnded(_) | LostReason::NodeStopped(_))
                        if !stopping.contains(&holder.reported_hold.node) => {}
                    Some(_) => {
                        reserved.retain(|of, (other, _)| of != lock || *other != lease);
                    }
                }
            }
            if !believers.is_empty() {
                believed.insert(lock, now);
            }
            if let Some(invariant) = conflict_of(&believers) {
                let believers = believers.iter().map(|holder| {
                    let ReportedHold { node, share, token, .. } = &holder.reported_hold;
                    (*node, *share, *token, holder.limit, holder.slots.clone())
                });
                together = Some((invariant, *lock, believers.collect::<Vec<_>>()));
            }
        }
        if let Some((invariant, lock, believers)) = together {
            self.broken(invariant, || format!("{lock} is held by {believers:?} at once"));
        }
        if let Some((lock, node, key, since)) = robbed {
            self.broken("K-ROBBED", || {
                format!("{node:?} has lost {lock}: somebody has deleted {key:?} of {since:?}")
            });
        }
    }

    // ---- waiting ---------------------------------------------------------------------------

    /// Records that a program on a node waits for a lock. While a lock of `group` is held, the wait does not count as
    /// too long.
    pub(crate) fn attempts(
        &mut self,
        lock: &'static str,
        group: &'static [&'static str],
        node: NodeId,
        work: Option<WorkId>,
    ) -> AttemptId {
        let id = AttemptId(self.next);
        self.next += 1;
        let since = self.timeline.now();
        self.locks.attempts.insert(id, LockAttempt { lock, group, node, work, since });
        id
    }

    /// Records that the wait has ended.
    pub(crate) fn gives_up(&mut self, id: AttemptId) {
        self.locks.attempts.remove(&id);
    }

    /// Records that no faults occur from now on, except the crash of a holder.
    pub(crate) fn calm(&mut self) {
        self.locks.calm_since = Some(self.timeline.now());
    }

    /// Returns the id of a new piece of work.
    pub(crate) fn next_work_id(&mut self) -> WorkId {
        self.next += 1;
        WorkId(self.next)
    }

    /// Checks that in the calm phase no deadlock lasts long.
    fn check_circles(&mut self, calm: Duration) {
        let now = self.timeline.now();
        let LockJudge { attempts, holders, .. } = &self.locks;
        let long = |attempt: &&LockAttempt| now - attempt.since.max(calm) > CIRCLE_MAX;
        // The piece of work that holds the lock for which `work` waits.
        let next = |work: WorkId| {
            let attempt =
                attempts.values().filter(long).find(|attempt| attempt.work == Some(work))?;
            holders
                .get(attempt.lock)?
                .values()
                .find(|holder| holder.record_hold())?
                .reported_hold
                .work
        };
        for start in attempts.values().filter(long).filter_map(|attempt| attempt.work) {
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

    /// Checks that in the calm phase no program waits long for a lock that no program believes it holds.
    pub(super) fn check_attempts(&mut self) {
        let Some(calm) = self.locks.calm_since else { return };
        self.check_holders();
        self.check_circles(calm);
        self.check_takers(calm);
        let now = self.timeline.now();
        let LockJudge { attempts, believed, .. } = &self.locks;
        let idle = |attempt: &LockAttempt| {
            let believed = attempt.group.iter().filter_map(|lock| believed.get(lock)).max();
            now - attempt.since.max(calm).max(believed.copied().unwrap_or_default())
        };
        let Some(attempt) = attempts.values().max_by_key(|attempt| idle(attempt)) else { return };
        let (idle, lock, node) = (idle(attempt), attempt.lock, attempt.node);
        self.tally.idle_max = self.tally.idle_max.max(idle);
        if idle > LIVE_MAX {
            let first = self.line(lock).and_then(|line| line.head_at(self.truth.newest())).cloned();
            self.broken("K-LIVE", || {
                format!("for {idle:?} nobody has {lock}, and {node:?} waits; first is {first:?}")
            });
        }
    }
}

/// Returns the conflict between these holders of one lock, if there is one.
fn conflict_of(believers: &[&Holder]) -> Option<&'static str> {
    let is_alone = believers.iter().any(|holder| holder.reported_hold.share == EntryShare::All);
    if is_alone && believers.len() > 1 {
        return Some("K-LOCAL");
    }
    // The last holder was admitted while all others held the lock.
    let last = believers
        .iter()
        .max_by_key(|holder| (holder.reported_hold.since, &holder.reported_hold.key));
    let permits: u64 = believers.iter().map(|holder| holder.reported_hold.share.permits()).sum();
    if last.is_some_and(|last| permits > last.limit) {
        return Some("K-PERMITS");
    }
    let slots: BTreeSet<u32> = believers.iter().flat_map(|holder| &holder.slots).copied().collect();
    let told: usize = believers.iter().map(|holder| holder.slots.len()).sum();
    (slots.len() < told).then_some("K-SLOT")
}
