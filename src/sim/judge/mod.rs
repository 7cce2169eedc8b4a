//! Asserts the invariants as things happen. It sees what no node sees: true time, every replica, and
//! every answer that any caller got. `docs/simulator.md` lists the invariants by their short names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

mod lines;
mod locks;
mod members;
mod observers;
mod peers;
mod queues;
mod toolbox;

pub(crate) use lines::Share;
use locks::Locks;
pub(crate) use locks::{Belief, HolderId, WorkId};
use members::Roll;
use peers::Peers;
use queues::Queues;
pub(crate) use queues::{DeliveryId, Taken};
use toolbox::Toolbox;

use super::clock::Timeline;
use super::process::Process;
use super::scenario::{Rows, RowsCheck};
use super::truth::Truth;
use super::violation::Violation;
use super::world::place;
use crate::model::{
    Compare, CompareOp, CompareTarget, Event, EventKind, KeyRange, KeyValue, LeaseId, LogIndex,
    NodeId, Refusal, Revision, Term,
};
use crate::node::{Look, SessionEnd};

/// How much later than its deadline a call may return, beside what clocks and pauses explain.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

/// Reading a log costs more than comparing: entries are compared so many at a time.
const COMPARE_AT_ONCE: u64 = 64;

/// Digests of older entries than so many are forgotten.
const DIGESTS_KEPT: usize = 20_000;

/// What has been seen of one node.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// In this life.
    term: Term,
    commit: LogIndex,
    applied: LogIndex,
    /// The first entry in its log.
    first: LogIndex,
    /// Entries up to here have been compared with those of the other nodes.
    compared: LogIndex,
    /// The newest revision that its readers have seen, in this life.
    revision: Revision,
    paused_since: Option<Duration>,
    /// How long it has stood still, all in all.
    paused: Duration,
}

/// How far a node was before a turn.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    /// What it knew as committed.
    pub(crate) commit: LogIndex,
    /// What it had applied.
    pub(crate) applied: LogIndex,
}

/// A call that has not returned.
struct Call {
    node: NodeId,
    what: &'static str,
    began: Duration,
    paused_before: Duration,
    may_take: Duration,
}

/// Names a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CallId(u64);

/// Names a watch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WatchId(u64);

/// A watch, and how far it has come.
struct Watching {
    node: NodeId,
    range: KeyRange,
    seen: Revision,
}

/// What was done, counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Operations with a definite answer, by name.
    pub(crate) done: BTreeMap<&'static str, u64>,
    /// Operations that were told not applied.
    pub(crate) not_applied: u64,
    /// Operations that were told unknown.
    pub(crate) unknown: u64,
    /// Operations whose node ended under them.
    pub(crate) orphaned: u64,
    /// What else happened, by name.
    pub(crate) others: BTreeMap<&'static str, u64>,
    /// Events that watches have yielded.
    pub(crate) watched: u64,
    /// How often each lock was granted.
    pub(crate) grants: BTreeMap<&'static str, u64>,
    /// The longest that anybody waited, in the calm, for a lock that nobody believed in.
    pub(crate) idle_max: Duration,
    /// The most often that a lock was passed on inside a node while others waited.
    pub(crate) passes_max: u32,
}

impl Tally {
    pub(crate) fn acknowledged(&self) -> u64 {
        self.done.values().sum()
    }
}

/// See the module.
pub(crate) struct Judge {
    timeline: Arc<Timeline>,
    truth: Truth,
    violation: Option<Violation>,
    seen: Vec<Seen>,
    leaders: BTreeMap<Term, NodeId>,
    roll: Roll,
    /// What somebody else's program asserts of the rows of each revision.
    of_rows: Option<Vec<(&'static str, RowsCheck)>>,
    /// Term and hash of every entry that any node has applied, from index 2 on.
    entries: BTreeMap<LogIndex, (Term, u64)>,
    digests: BTreeMap<LogIndex, (u64, NodeId)>,
    /// The newest revision that any linearizable answer has shown.
    floor: Revision,
    calls: BTreeMap<CallId, Call>,
    watches: BTreeMap<WatchId, Watching>,
    peers: Peers,
    locks: Locks,
    queues: Queues,
    toolbox: Toolbox,
    /// Leases that somebody counts on, with a key each that only their end deletes.
    leases: BTreeMap<LeaseId, CountedOn>,
    /// How long the leases of sessions live without renewals.
    session_ttls: BTreeMap<LeaseId, Duration>,
    /// Which leases there are, in the newest state that any replica has come to, and which that is.
    lease_table: (LogIndex, BTreeSet<LeaseId>),
    /// Since when nothing goes wrong.
    quiet_since: Option<Duration>,
    /// The newest revision at which a compaction was ever asked for.
    compaction_asked: Revision,
    next: u64,
    next_call_check: Duration,
    pub(crate) tally: Tally,
}

/// A lease that somebody counts on, from a moment on for that long.
struct CountedOn {
    from: Duration,
    good_for: Duration,
    may_end: bool,
    has_ended: bool,
}

impl Judge {
    pub(crate) fn new(timeline: Arc<Timeline>, nodes: u64) -> Self {
        let nodes = usize::try_from(nodes).expect("few");
        Self {
            timeline,
            truth: Truth::default(),
            violation: None,
            seen: (0..nodes).map(|_| Seen::default()).collect(),
            leaders: BTreeMap::new(),
            roll: Roll::default(),
            of_rows: None,
            entries: BTreeMap::new(),
            digests: BTreeMap::new(),
            floor: Revision::FIRST,
            calls: BTreeMap::new(),
            watches: BTreeMap::new(),
            peers: Peers::default(),
            locks: Locks::default(),
            queues: Queues::default(),
            toolbox: Toolbox::default(),
            leases: BTreeMap::new(),
            session_ttls: BTreeMap::new(),
            lease_table: (LogIndex(0), BTreeSet::new()),
            quiet_since: None,
            compaction_asked: Revision(0),
            next: 0,
            next_call_check: Duration::ZERO,
            tally: Tally::default(),
        }
    }

    /// The first invariant that was broken, if any was.
    ///
    /// # Errors
    /// That one.
    pub(crate) fn verdict(&mut self) -> Result<(), Violation> {
        self.check_calls();
        match &self.violation {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn truth(&self) -> &Truth {
        &self.truth
    }

    /// Takes the answer of a check.
    pub(crate) fn note<T>(&mut self, found: Result<T, Violation>) -> Option<T> {
        match found {
            Ok(value) => Some(value),
            Err(violation) => {
                self.violation.get_or_insert(violation);
                None
            }
        }
    }

    fn broken(&mut self, invariant: &'static str, detail: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(Violation::new(invariant, detail()));
        }
    }

    // ---- nodes -----------------------------------------------------------------------------

    /// A process has started.
    pub(crate) fn started(&mut self, id: NodeId) {
        // What it was in, and had, at the end of a turn need not have been durable. What its answers have
        // said is, and is asked for when this life is looked at first.
        if self.seen.len() <= place(id) {
            self.seen.resize(place(id) + 1, Seen::default());
        }
        let seen = &mut self.seen[place(id)];
        *seen = Seen { paused: seen.paused, ..Seen::default() };
        self.peers.started(id);
    }

    /// A process has ended: its callers are gone, and nobody on it believes in anything.
    pub(crate) fn ended(&mut self, id: NodeId) {
        let seen = &mut self.seen[place(id)];
        seen.paused_since = None;
        let before = self.calls.len();
        self.calls.retain(|_, call| call.node != id);
        self.tally.orphaned += (before - self.calls.len()) as u64;
        self.watches.retain(|_, watch| watch.node != id);
        self.members_ended(id);
        self.locks.ended(id);
        self.queues.ended(id);
        self.toolbox.ended(id);
    }

    pub(crate) fn paused(&mut self, id: NodeId) {
        self.seen[place(id)].paused_since = Some(self.timeline.now());
    }

    pub(crate) fn resumed(&mut self, id: NodeId) {
        let now = self.timeline.now();
        let seen = &mut self.seen[place(id)];
        if let Some(since) = seen.paused_since.take() {
            seen.paused += now - since;
        }
    }

    /// How long a node has stood still, all in all.
    pub(crate) fn stood_still(&self, id: NodeId) -> Duration {
        let Seen { paused, paused_since, .. } = self.seen[place(id)];
        paused + paused_since.map_or(Duration::ZERO, |since| self.timeline.now() - since)
    }

    /// A driver has had a turn. What it had before.
    pub(crate) fn look(&mut self, id: NodeId, process: &Process, look: &Look) -> Before {
        self.hear(process);
        self.follow_members(id, process, self.seen[place(id)].applied);
        let Seen { term, commit, applied, revision, .. } = self.seen[place(id)];
        if look.term < term {
            self.broken("R-TERM", || format!("{id:?} goes from {term:?} back to {:?}", look.term));
        }
        if look.commit < commit {
            self.broken("R-COMMIT", || format!("{id:?}: {commit:?}, then {:?}", look.commit));
        }
        if look.applied < applied || look.applied > look.commit {
            self.broken("R-APPLIED", || format!("{id:?}: {applied:?}, then {look:?}"));
        }
        if look.revision < revision {
            self.broken("M-MONO", || format!("{id:?}: {revision:?}, then {look:?}"));
        }
        if look.leads {
            self.check_leader(id, look.term);
            self.check_leading(id, process);
        }
        self.check_company(id, process, look);
        self.check_memory(id, process, look);
        self.follow_leases(look.applied, process);
        let (had, first) = (self.seen[place(id)].first, process.first());
        if applied > LogIndex(0) && look.applied > applied && first > applied.next() {
            self.count("snapshot installed");
        } else if had > LogIndex(0) && first > had {
            self.count("log cut behind a snapshot");
        }
        // Before the cluster is founded nobody has its members.
        if look.term > Term(0) && look.applied > applied {
            self.check_digest(id, look.applied, process.digest());
        }
        let compared = self.seen[place(id)].compared;
        if look.applied.get() >= compared.get() + COMPARE_AT_ONCE {
            self.check_entries(id, process, compared, look.applied);
        }
        let seen = &mut self.seen[place(id)];
        seen.term = look.term;
        seen.commit = look.commit;
        seen.applied = look.applied;
        seen.first = first;
        seen.revision = look.revision;
        self.check_holders();
        Before { commit, applied }
    }

    /// A node has stopped by itself: what it applied before that counts.
    pub(crate) fn last_look(&mut self, id: NodeId, process: &Process) {
        self.hear(process);
        self.follow_members(id, process, self.seen[place(id)].applied);
    }

    /// Takes what a node has applied into the history.
    pub(crate) fn hear(&mut self, process: &Process) {
        for change in process.take_changes() {
            self.learn(change.revision, &change.events);
        }
    }

    fn learn(&mut self, revision: Revision, events: &[Event]) {
        let news = revision > self.truth.newest();
        let learned = self.truth.learn(revision, events);
        self.note(learned);
        if let Some(checks) = self.of_rows.clone() {
            if news {
                self.check_rows_of_all(&checks);
            }
            return;
        }
        if news && let Err((invariant, what)) = self.locks.lines.follow(revision, events) {
            self.broken(invariant, || format!("at {revision:?} {what}"));
        }
        if news {
            self.follow_queues(revision, events);
            self.follow_tools(revision, events);
        }
        let leased =
            |event: &&Event| event.kind == EventKind::Delete && event.kv.key.starts_with(b"lease/");
        for event in events.iter().filter(leased).filter(|_| news) {
            self.lease_key_gone(event);
        }
    }

    /// The store belongs to somebody else's program: what is asserted of its rows is this, and nothing
    /// of what our programs do with keys.
    pub(crate) fn judge_rows(&mut self, checks: Vec<(&'static str, RowsCheck)>) {
        self.truth.values_repeat();
        self.of_rows = Some(checks);
    }

    fn check_rows_of_all(&mut self, checks: &[(&'static str, RowsCheck)]) {
        for (name, check) in checks {
            if let Err(why) = check(&Rows::newest(&self.truth)) {
                let newest = self.truth.newest();
                self.broken(name, || format!("at {newest:?}: {why}"));
            }
        }
    }

    fn check_leader(&mut self, id: NodeId, term: Term) {
        let other = *self.leaders.entry(term).or_insert(id);
        if other != id {
            self.broken("R-ELECT", || format!("{other:?} and {id:?} both lead {term:?}"));
        }
    }

    fn check_digest(&mut self, id: NodeId, index: LogIndex, digest: u64) {
        let (other, whose) = *self.digests.entry(index).or_insert((digest, id));
        if other != digest {
            self.broken("M-HASH", || {
                format!("at {index:?} {whose:?} has {other:016x} and {id:?} has {digest:016x}")
            });
        }
        if self.digests.len() > DIGESTS_KEPT {
            self.digests.pop_first();
        }
    }

    /// Compares what a node has applied and nobody has looked at yet.
    pub(crate) fn compare_rest(&mut self, id: NodeId, process: &Process) {
        let Seen { compared, applied, .. } = self.seen[place(id)];
        self.check_entries(id, process, compared, applied);
    }

    fn check_entries(&mut self, id: NodeId, process: &Process, from: LogIndex, to: LogIndex) {
        // Who has just been given a state puts it into its log next: what the log still has up to there is not what
        // was applied.
        if process.look().term == Term(0) {
            return;
        }
        self.seen[place(id)].compared = to;
        for (index, term, hash) in process.entries(from, to) {
            let first = *self.entries.entry(index).or_insert((term, hash));
            if first != (term, hash) {
                self.broken("R-SM", || {
                    format!("{id:?} applies {term:?} {hash:08x} at {index:?}, another {first:?}")
                });
            }
        }
    }

    /// How often leadership has changed.
    pub(crate) fn leader_changes(&self) -> u64 {
        (self.leaders.len() as u64).saturating_sub(1)
    }

    // ---- calls -----------------------------------------------------------------------------

    /// A caller on a node begins something that may take that long by the node's clock.
    pub(crate) fn call(&mut self, node: NodeId, what: &'static str, may_take: Duration) -> CallId {
        let id = CallId(self.next);
        self.next += 1;
        let paused_before = self.seen[place(node)].paused;
        let began = self.timeline.now();
        self.calls.insert(id, Call { node, what, began, paused_before, may_take });
        id
    }

    /// It has returned.
    pub(crate) fn returned(&mut self, id: CallId) {
        self.check_call(id);
        self.calls.remove(&id);
    }

    fn check_calls(&mut self) {
        let now = self.timeline.now();
        if now < self.next_call_check {
            return;
        }
        self.next_call_check = now + Duration::from_millis(100);
        self.check_wishes();
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            self.check_call(id);
        }
    }

    fn check_call(&mut self, id: CallId) {
        let Some(call) = self.calls.get(&id) else { return };
        let seen = &self.seen[place(call.node)];
        if seen.paused_since.is_some() {
            return;
        }
        let took =
            (self.timeline.now() - call.began).saturating_sub(seen.paused - call.paused_before);
        // The slowest clock inside the bound takes an eighth longer.
        let limit = call.may_take + call.may_take / 8 + DEADLINE_GRACE;
        if took > limit {
            let (node, what) = (call.node, call.what);
            self.broken("C-NOHANG", || {
                format!("{what} on {node:?} took {took:?}, at most {limit:?}")
            });
        }
    }

    // ---- answers ---------------------------------------------------------------------------

    /// The newest revision that any linearizable answer has shown by now: what begins now must not
    /// be answered from an older one.
    pub(crate) fn floor(&self) -> Revision {
        self.floor
    }

    fn done(&mut self, what: &'static str) {
        *self.tally.done.entry(what).or_default() += 1;
    }

    /// A linearizable read has answered.
    pub(crate) fn read(
        &mut self,
        floor: Revision,
        range: &KeyRange,
        revision: Revision,
        rows: &[KeyValue],
    ) {
        if revision < floor {
            self.broken("X-LIN", || {
                format!(
                    "a read was answered at {revision:?}, but {floor:?} was known before it began"
                )
            });
        }
        self.floor = self.floor.max(revision);
        self.check_rows("X-LIN", range, revision, rows);
        self.done("read");
    }

    /// A local read has answered; `floor` is the newest revision that this handle has seen.
    pub(crate) fn local_read(
        &mut self,
        floor: Revision,
        range: &KeyRange,
        revision: Revision,
        rows: &[KeyValue],
    ) {
        if revision < floor {
            self.broken("X-RYW", || format!("a local read shows {revision:?} after {floor:?}"));
        }
        self.check_rows("X-STALE", range, revision, rows);
        self.done("local read");
    }

    /// A read of the past has answered, from a revision of its own.
    pub(crate) fn past_read(&mut self, range: &KeyRange, revision: Revision, rows: &[KeyValue]) {
        self.check_rows("M-HIST", range, revision, rows);
        self.count("read of the past");
    }

    /// A read of the past was refused, because there is none, or not yet.
    pub(crate) fn past_is_gone(&mut self, asked: Revision, why: &Refusal) {
        let (compaction_asked, newest) = (self.compaction_asked, self.truth.newest());
        let is_so = match why {
            Refusal::Compacted { compacted, .. } => {
                asked < *compacted && *compacted <= compaction_asked
            }
            // This replica may be behind.
            Refusal::Future { newest: here, .. } => asked > *here && *here <= newest,
            _ => false,
        };
        self.expect(is_so, "M-COMPACT", || {
            format!(
                "a read at {asked:?} is refused: {why}; {compaction_asked:?} was to be compacted, \
                 {newest:?} is the newest"
            )
        });
        self.count("past that is gone");
    }

    fn check_rows(
        &mut self,
        invariant: &'static str,
        range: &KeyRange,
        revision: Revision,
        rows: &[KeyValue],
    ) {
        let expected = self.truth.rows_at(range, revision);
        if !expected.iter().copied().eq(rows.iter()) || revision > self.truth.newest() {
            let expected: Vec<KeyValue> = expected.into_iter().cloned().collect();
            self.broken(invariant, || {
                format!("at {revision:?} {range:?} is {expected:?}; a caller was told {rows:?}")
            });
        }
    }

    /// A change was acknowledged: it took `revision`, and put these.
    pub(crate) fn wrote(
        &mut self,
        what: &'static str,
        floor: Revision,
        revision: Revision,
        puts: &[(Bytes, Bytes)],
    ) {
        if revision <= floor {
            self.broken("X-LIN", || {
                format!("{what} took {revision:?}, but {floor:?} was known before it began")
            });
        }
        self.floor = self.floor.max(revision);
        for (key, value) in puts {
            let row = self.truth.row_at(key, revision);
            if row.is_none_or(|row| row.mod_revision != revision || row.value != value) {
                let row = row.cloned();
                self.broken("X-LIN", || {
                    format!("{what} of {key:?} took {revision:?}, where there is {row:?}")
                });
            }
        }
        self.done(what);
    }

    /// A request that changes nothing was answered: a transaction whose compares did not hold, a
    /// deletion that found nothing, a grant.
    pub(crate) fn changed_nothing(
        &mut self,
        what: &'static str,
        floor: Revision,
        revision: Revision,
    ) {
        if revision < floor || revision > self.truth.newest() {
            self.broken("X-LIN", || {
                format!("{what} was answered at {revision:?}; {floor:?} was known before it began")
            });
        }
        self.floor = self.floor.max(revision);
        self.done(what);
    }

    /// A transaction says whether its compares held right before `revision`, if it changed
    /// something, or at it, if it did not.
    pub(crate) fn compared(&mut self, compares: &[Compare], held: bool, on: Revision) {
        let all = compares.iter().all(|compare| self.holds(compare, on));
        if all != held {
            self.broken("M-TXN", || {
                format!("on {on:?} {compares:?} hold: {all}; a caller was told {held}")
            });
        }
    }

    fn holds(&self, compare: &Compare, on: Revision) -> bool {
        let key = compare.range.as_single().expect("the workload compares single keys");
        let row = self.truth.row_at(key, on);
        let number = |field: fn(&KeyValue) -> u64, right: u64| {
            relates(compare.op, &row.map_or(0, field), &right)
        };
        match &compare.target {
            CompareTarget::Version(right) => number(|row| row.version, *right),
            CompareTarget::Create(right) => number(|row| row.create_revision.get(), right.get()),
            CompareTarget::Mod(right) => number(|row| row.mod_revision.get(), right.get()),
            CompareTarget::Value(right) => {
                row.is_some_and(|row| relates(compare.op, &row.value, right))
            }
            CompareTarget::Lease(right) => {
                number(|row| row.lease.map_or(0, |lease| lease.get()), *right)
            }
        }
    }

    /// A caller was told that nothing was applied: these values must never appear.
    pub(crate) fn not_applied(&mut self, values: &[(Bytes, Bytes)]) {
        self.tally.not_applied += 1;
        for (_, value) in values {
            let found = self.truth.refuse(value);
            self.note(found);
        }
    }

    /// A caller was told that nobody knows.
    pub(crate) fn unknown(&mut self) {
        self.tally.unknown += 1;
    }

    /// Something else that must be so.
    pub(crate) fn expect(
        &mut self,
        so: bool,
        invariant: &'static str,
        detail: impl FnOnce() -> String,
    ) {
        if !so {
            self.broken(invariant, detail);
        }
    }

    /// A compaction will be asked for.
    pub(crate) fn may_compact(&mut self, at: Revision) {
        self.compaction_asked = self.compaction_asked.max(at);
    }

    pub(crate) fn compaction_asked(&self) -> Revision {
        self.compaction_asked
    }

    /// A program on a node watches a range.
    pub(crate) fn watch_begins(
        &mut self,
        node: NodeId,
        range: KeyRange,
        seen: Revision,
    ) -> WatchId {
        let id = WatchId(self.next);
        self.next += 1;
        self.watches.insert(id, Watching { node, range, seen });
        id
    }

    /// A watch has yielded everything up to a revision; so many events since the last time.
    pub(crate) fn watched(&mut self, id: WatchId, seen: Revision, events: usize) {
        self.tally.watched += events as u64;
        if let Some(watching) = self.watches.get_mut(&id) {
            watching.seen = seen;
        }
    }

    /// Whether a watch on one of these nodes owes its program an event.
    pub(crate) fn watch_owes(&self, nodes: &[usize]) -> Option<String> {
        let newest = self.truth.newest();
        let here = self.watches.values().filter(|watch| nodes.contains(&place(watch.node)));
        let mut owing = here
            .filter(|watch| self.truth.events(&watch.range, watch.seen, newest).next().is_some());
        owing.next().map(|watch| format!("{:?} of {:?}, newest {newest:?}", watch.seen, watch.node))
    }

    /// Whether a caller on one of these nodes waits for an answer.
    pub(crate) fn calls_open(&self, nodes: &[usize]) -> bool {
        self.calls.values().any(|call| nodes.contains(&place(call.node)))
    }

    // ---- leases ----------------------------------------------------------------------------

    /// A lease was asked for at `sent`, for that long, and granted. Only its end deletes the keys below
    /// `lease/`.
    pub(crate) fn lease_counts(&mut self, lease: LeaseId, sent: Duration, ttl: Duration) {
        if self.count_on(lease, sent, ttl).is_some() {
            self.broken("L-UNIQUE", || format!("{lease:?} was granted twice"));
        }
    }

    /// A put that binds a key to a lease that somebody counts on was refused: it has ended, before any key
    /// was there for its end to delete.
    pub(crate) fn lease_refused(&mut self, lease: LeaseId, why: &Refusal) {
        let is_so = *why == Refusal::LeaseNotFound(lease);
        self.expect(is_so, "M-TXN", || format!("a put with {lease:?} is refused: {why}"));
        self.lease_is_gone(lease, "is not there for its first key");
        self.count("lease gone before its first key");
    }

    /// A lease has ended. It may have, if its time is up, or somebody has said that it will.
    fn lease_is_gone(&mut self, lease: LeaseId, what: &str) {
        let now = self.timeline.now();
        let Some(counted) = self.leases.get_mut(&lease) else { return };
        counted.has_ended = true;
        let (lived, good_for) = (now - counted.from, counted.good_for);
        if !counted.may_end && lived < good_for {
            self.broken("L-EARLY", || {
                format!("{lease:?} {what}, {lived:?} after it was good for {good_for:?}")
            });
        }
    }

    fn count_on(
        &mut self,
        lease: LeaseId,
        from: Duration,
        good_for: Duration,
    ) -> Option<CountedOn> {
        let counted = CountedOn { from, good_for, may_end: false, has_ended: false };
        self.leases.insert(lease, counted)
    }

    /// A session was opened, asked for at `sent`, whose lease lives for so long without renewals. Only its
    /// end deletes its key below `lease/`.
    pub(crate) fn session_lives(
        &mut self,
        node: NodeId,
        lease: LeaseId,
        sent: Duration,
        ttl: Duration,
    ) {
        self.session_ttls.insert(lease, ttl);
        // Its node may have been told to stop, before the program was told of its session.
        let may_end = self.leases.get(&lease).is_some_and(|counted| counted.may_end);
        let may_end = may_end || self.locks.stopping.contains(&node);
        let counted = CountedOn { from: sent, good_for: ttl, may_end, has_ended: false };
        self.leases.insert(lease, counted);
    }

    /// What the newest state says that any replica has come to: which leases there are.
    fn follow_leases(&mut self, applied: LogIndex, process: &Process) {
        if applied <= self.lease_table.0 {
            return;
        }
        let there = process.leases();
        let before = std::mem::replace(&mut self.lease_table, (applied, there)).1;
        for lease in before {
            let ended = self.leases.get(&lease).is_some_and(|counted| counted.has_ended);
            if !ended && !self.lease_table.1.contains(&lease) {
                self.lease_is_gone(lease, "has ended");
            }
        }
    }

    /// A session that somebody has believed in at `believed` has ended, other than by its holder.
    pub(crate) fn session_ended(
        &mut self,
        node: NodeId,
        lease: LeaseId,
        believed: Option<Duration>,
        why: SessionEnd,
    ) {
        match why {
            SessionEnd::LeaseEnded => {
                let is_so = !self.lease_table.1.contains(&lease);
                self.expect(is_so, "L-KEPT", || {
                    format!("{node:?} is told that {lease:?} has ended, and it is there")
                });
                self.count("session whose lease has ended");
            }
            SessionEnd::NotRenewed => {
                let quiet = self.quiet_since.filter(|quiet| believed > Some(*quiet));
                self.expect(quiet.is_none(), "L-KEPT", || {
                    format!("nothing goes wrong since {quiet:?}, and {node:?} loses {lease:?}")
                });
                self.count("session not renewed");
            }
            SessionEnd::Closed | SessionEnd::Orphaned | SessionEnd::NodeStopped => {}
        }
    }

    /// From now on nothing goes wrong, so that no session ends by itself; or something does.
    pub(crate) fn quiet(&mut self, is_quiet: bool) {
        self.quiet_since = is_quiet.then(|| self.timeline.now());
    }

    /// A lease that is there, in the newest state, and not among these, which somebody keeps.
    pub(crate) fn lease_left(&self, kept: &BTreeSet<LeaseId>) -> Option<LeaseId> {
        self.lease_table.1.difference(kept).next().copied()
    }

    /// Whoever keeps a session believes in its lease: it has not ended, and will not for `delay`.
    pub(crate) fn lease_believed(&mut self, lease: LeaseId, delay: Duration) {
        let now = self.timeline.now();
        let Some(counted) = self.leases.get_mut(&lease) else {
            self.count_on(lease, now, delay);
            return;
        };
        if now + delay > counted.from + counted.good_for {
            (counted.from, counted.good_for) = (now, delay);
        }
        if counted.has_ended && !counted.may_end {
            self.broken("L-EARLY", || format!("{lease:?} has ended and is believed in"));
        }
        self.count("session believed in");
    }

    /// A node is about to be shut down in good order: the sessions that it keeps end.
    pub(crate) fn stops_in_order(&mut self, id: NodeId, leases: &[LeaseId]) {
        self.locks.stopping.insert(id);
        leases.iter().for_each(|lease| self.lease_may_end(*lease));
    }

    /// Somebody is about to revoke it.
    pub(crate) fn lease_may_end(&mut self, lease: LeaseId) {
        // Nobody need have believed in it before.
        let (from, good_for) = (self.timeline.now(), Duration::ZERO);
        let unknown = CountedOn { from, good_for, may_end: false, has_ended: false };
        self.leases.entry(lease).or_insert(unknown).may_end = true;
    }

    /// A lease was revoked, and the answer named this revision.
    pub(crate) fn revoked(&mut self, lease: LeaseId, revision: Revision) {
        let found = self.truth.lease_ended(lease, revision);
        self.note(found);
    }

    /// A key that only the end of its lease deletes is gone.
    fn lease_key_gone(&mut self, event: &Event) {
        let revision = event.revision();
        let before = Revision(revision.get() - 1);
        let row = self.truth.row_at(&event.kv.key, before);
        let Some(lease) = row.and_then(|row| row.lease) else { return };
        let found = self.truth.lease_ended(lease, revision);
        self.note(found);
        let Some(counted) = self.leases.get(&lease) else { return };
        let may_end = counted.may_end;
        if let Some(ttl) = self.session_ttls.get(&lease).copied().filter(|_| !may_end) {
            self.renewals_counted(lease, ttl, event);
        }
        self.lease_is_gone(lease, &format!("ended at {revision:?}"));
        self.count("lease end");
    }

    /// Something else has happened that is worth counting.
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.others.entry(what).or_default() += 1;
    }
}

fn relates<T: Ord>(op: CompareOp, left: &T, right: &T) -> bool {
    match op {
        CompareOp::Equal => left == right,
        CompareOp::NotEqual => left != right,
        CompareOp::Greater => left > right,
        CompareOp::Less => left < right,
    }
}
