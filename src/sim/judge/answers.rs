//! Judges the replies that callers get: every call returns in time, every reply agrees with the history, and no watch
//! misses an event.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use crate::model::{
    Compare, CompareOp, CompareTarget, Event, KeyRange, KeyValue, LeaseId, NodeId, Rejection,
    Revision,
};

/// The time by which a call may exceed its deadline, in addition to clock errors and pauses.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

/// A call that has not returned.
struct AnswersCall {
    node: NodeId,
    what: &'static str,
    began: Duration,
    paused_before: Duration,
    time_max: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CallId(u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WatchId(u64);

/// A watch and its progress.
struct Watching {
    node: NodeId,
    range: KeyRange,
    seen: Revision,
}

/// The known outcome of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compaction {
    /// The compaction was requested.
    Asked,
    /// The compaction was reported as applied.
    Told,
    /// The compaction was reported as not applied.
    Refused,
}

/// Evidence that a request was applied. No other request can produce the same evidence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sign<'a> {
    /// Values that no other request puts.
    Puts(&'a [(Bytes, Bytes)]),
    /// The deletion of an existing key that no other request deletes.
    Deletes(&'a Bytes),
    /// A lease with an id that no other request uses.
    Grants(LeaseId),
    /// The early end of a lease that no other request revokes.
    Revokes(LeaseId),
    /// A compaction at a revision for which no other compaction is requested.
    Compacts(Revision),
    /// There is no evidence: other requests have the same effect.
    Nothing,
}

/// The open calls and watches, and the revisions that callers have seen.
pub(super) struct Callers {
    /// The newest revision that any linearizable reply has shown.
    pub(super) floor: Revision,
    calls: BTreeMap<CallId, AnswersCall>,
    watches: BTreeMap<WatchId, Watching>,
    /// The newest revision at which a compaction was ever requested.
    compaction_asked: Revision,
    /// For each revision at which a compaction was requested, its known outcome.
    compactions: BTreeMap<Revision, Compaction>,
    /// The revisions that a reply has attributed to its own request.
    made: BTreeSet<Revision>,
    next_check: Duration,
}

impl Default for Callers {
    fn default() -> Self {
        Self {
            floor: Revision::FIRST,
            calls: BTreeMap::new(),
            watches: BTreeMap::new(),
            compaction_asked: Revision(0),
            compactions: BTreeMap::new(),
            made: BTreeSet::new(),
            next_check: Duration::ZERO,
        }
    }
}

impl Judge {
    /// Removes the callers of a process that has ended.
    pub(super) fn callers_ended(&mut self, id: NodeId) {
        let before = self.callers.calls.len();
        self.callers.calls.retain(|_, call| call.node != id);
        self.tally.detached += (before - self.callers.calls.len()) as u64;
        self.callers.watches.retain(|_, watch| watch.node != id);
    }

    /// Records that a caller on a node begins a call that may take `time_max` by the clock of the node.
    pub(crate) fn call(&mut self, node: NodeId, what: &'static str, time_max: Duration) -> CallId {
        let id = CallId(self.next);
        self.next += 1;
        let paused_before = self.seen[place(node)].paused;
        let began = self.timeline.now();
        self.callers.calls.insert(id, AnswersCall { node, what, began, paused_before, time_max });
        id
    }

    /// Returns whether a caller on a node waits for a call with this name.
    pub(crate) fn is_called(&self, node: NodeId, what: &str) -> bool {
        self.callers.calls.values().any(|call| call.node == node && call.what == what)
    }

    /// Records that the call has returned.
    pub(crate) fn returned(&mut self, id: CallId) {
        self.check_call(id);
        self.callers.calls.remove(&id);
    }

    /// Records that the call has returned without a result. In the calm phase the reason must not be its deadline.
    pub(crate) fn returned_without_result(&mut self, id: CallId) {
        let calm = self.locks.calm_since;
        if let Some(call) = self.callers.calls.get(&id)
            && calm.is_some_and(|calm| call.began >= calm)
            && self.members().get(call.node).is_some()
        {
            let (took, node, what) = (self.timeline.now() - call.began, call.node, call.what);
            self.expect(took < call.time_max * 3 / 4, "L-SERVE", || {
                format!("in the calm {what} on {node:?} had no answer for {took:?}")
            });
        }
        self.returned(id);
    }

    pub(super) fn check_calls(&mut self) {
        let now = self.timeline.now();
        if now < self.callers.next_check {
            return;
        }
        self.callers.next_check = now + Duration::from_millis(100);
        self.check_attempts();
        for id in self.callers.calls.keys().copied().collect::<Vec<_>>() {
            self.check_call(id);
        }
    }

    fn check_call(&mut self, id: CallId) {
        let Some(call) = self.callers.calls.get(&id) else { return };
        let seen = &self.seen[place(call.node)];
        if seen.paused_since.is_some() {
            return;
        }
        let took =
            (self.timeline.now() - call.began).saturating_sub(seen.paused - call.paused_before);
        // The slowest allowed clock takes an eighth longer.
        let limit = call.time_max + call.time_max / 8 + DEADLINE_GRACE;
        if took > limit {
            let (node, what) = (call.node, call.what);
            self.broken("C-NOHANG", || {
                format!("{what} on {node:?} took {took:?}, at most {limit:?}")
            });
        }
    }

    /// Returns the newest revision that any linearizable reply has shown so far. The reply to a call that begins now
    /// must not be from an older revision.
    pub(crate) fn floor(&self) -> Revision {
        self.callers.floor
    }

    pub(super) fn done(&mut self, what: &'static str) {
        *self.tally.done.entry(what).or_default() += 1;
    }

    /// Checks the reply of a linearizable read.
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
        self.callers.floor = self.callers.floor.max(revision);
        self.check_rows("X-LIN", range, revision, rows);
        self.done("read");
    }

    /// Checks the reply of a local read. `floor` is the newest revision that this handle has seen.
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

    /// Checks the reply of a read at a past revision.
    pub(crate) fn check_past_read(
        &mut self,
        range: &KeyRange,
        revision: Revision,
        rows: &[KeyValue],
    ) {
        self.check_rows("M-HIST", range, revision, rows);
        self.done("read of the past");
    }

    /// Checks the rejection of a read at a past revision, which was compacted or is in the future.
    pub(crate) fn check_past_rejection(&mut self, asked: Revision, why: &Rejection) {
        let (compaction_asked, newest) = (self.callers.compaction_asked, self.truth.newest());
        let is_so = match why {
            Rejection::Compacted { compacted, .. } => {
                self.compaction_told(*compacted);
                asked < *compacted && *compacted <= compaction_asked
            }
            // This replica may be behind.
            Rejection::Future { newest: here, .. } => asked > *here && *here <= newest,
            _ => false,
        };
        self.expect(is_so, "M-COMPACT", || {
            format!(
                "a read at {asked:?} is refused: {why}; {compaction_asked:?} was to be compacted, \
                 {newest:?} is the newest"
            )
        });
        self.count("read of a compacted revision");
    }

    pub(crate) fn check_rows(
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

    /// Checks the reply of a change that was applied at `revision` and put these values.
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
        let is_first = self.callers.made.insert(revision);
        self.expect(is_first, "X-LIN", || {
            format!("{what} took {revision:?}, and so did another request")
        });
        self.callers.floor = self.callers.floor.max(revision);
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

    /// Checks the reply of a request that changed nothing: a transaction whose compares failed, a deletion without a
    /// match, or the grant of a lease.
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
        self.callers.floor = self.callers.floor.max(revision);
        self.done(what);
    }

    /// Checks the result of the compares of a transaction: against the state right before `revision` if the transaction
    /// changed something, and otherwise against the state at `revision`.
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
            is_true(compare.op, &row.map_or(0, field), &right)
        };
        match &compare.target {
            CompareTarget::Version(right) => number(|row| row.version, *right),
            CompareTarget::Create(right) => number(|row| row.create_revision.get(), right.get()),
            CompareTarget::Mod(right) => number(|row| row.mod_revision.get(), right.get()),
            CompareTarget::Value(right) => {
                row.is_some_and(|row| is_true(compare.op, &row.value, right))
            }
            CompareTarget::Lease(right) => {
                number(|row| row.lease.map_or(0, |lease| lease.get()), *right)
            }
        }
    }

    /// Records that the only requested deletion of a key was acknowledged.
    pub(crate) fn deleted_once(&mut self, key: &Bytes) {
        self.truth.deleted_once(key);
        self.count("own key deleted");
    }

    /// Records that the deletion of a key will be requested, so that the judge no longer expects the key to stay.
    pub(crate) fn expect_deletion(&mut self, key: &Bytes) {
        self.truth.expect_deletion(key);
    }

    /// Records that a request was reported as not applied: its evidence must never appear.
    pub(crate) fn record_not_applied(&mut self, sign: Sign<'_>) {
        let what = match sign {
            Sign::Puts(values) => return self.not_applied(values),
            Sign::Deletes(key) => {
                let found = self.truth.refuse_deletion(key);
                self.note(found);
                "deletion not applied"
            }
            Sign::Grants(lease) => {
                self.lease_refused_to_be(lease);
                "grant not applied"
            }
            Sign::Revokes(lease) => {
                self.lease_may_not_end(lease);
                "revocation not applied"
            }
            Sign::Compacts(at) => {
                let told = self.callers.compactions.insert(at, Compaction::Refused);
                self.expect(told == Some(Compaction::Asked), "X-UNKNOWN", || {
                    format!("a compaction at {at:?} is told as not applied; it is {told:?}")
                });
                "compaction not applied"
            }
            Sign::Nothing => return self.not_applied(&[]),
        };
        self.not_applied(&[]);
        self.count(what);
    }

    /// Records that a request was reported as not applied: these values must never appear.
    pub(crate) fn not_applied(&mut self, values: &[(Bytes, Bytes)]) {
        self.tally.not_applied += 1;
        for (_, value) in values {
            let found = self.truth.refuse(value);
            self.note(found);
        }
    }

    /// Counts an operation whose outcome was reported as unknown.
    pub(crate) fn unknown(&mut self) {
        self.tally.unknown += 1;
    }

    /// Records that a compaction will be requested. Returns false if a compaction at that revision was requested
    /// before.
    pub(crate) fn may_compact(&mut self, at: Revision) -> bool {
        self.callers.compaction_asked = self.callers.compaction_asked.max(at);
        match self.callers.compactions.entry(at) {
            Entry::Vacant(free) => {
                free.insert(Compaction::Asked);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Records that a compaction at this revision was reported.
    pub(crate) fn compaction_told(&mut self, at: Revision) {
        let known = self.callers.compactions.insert(at, Compaction::Told);
        let invariant = match known {
            Some(Compaction::Asked | Compaction::Told) => return,
            Some(Compaction::Refused) => "X-UNKNOWN",
            None => "M-COMPACT",
        };
        self.broken(invariant, || format!("compacted at {at:?} is told, which is {known:?}"));
    }

    pub(crate) fn check_previous_row(&mut self, event: &Event) {
        let found = self.truth.check_prev(event, self.callers.compaction_asked);
        self.note(found);
    }

    pub(crate) fn compaction_asked(&self) -> Revision {
        self.callers.compaction_asked
    }

    /// Records that a program on a node watches a range.
    pub(crate) fn watch_begins(
        &mut self,
        node: NodeId,
        range: KeyRange,
        seen: Revision,
    ) -> WatchId {
        let id = WatchId(self.next);
        self.next += 1;
        self.callers.watches.insert(id, Watching { node, range, seen });
        id
    }

    /// Records that a watch has yielded everything up to a revision, with this number of events since the last call.
    pub(crate) fn watched(&mut self, id: WatchId, seen: Revision, events: usize) {
        self.tally.watched += events as u64;
        if let Some(watching) = self.callers.watches.get_mut(&id) {
            watching.seen = seen;
        }
    }

    /// Returns a description of a watch on one of these nodes that has not yet delivered all events.
    pub(crate) fn missing_watch_events(&self, nodes: &[usize]) -> Option<String> {
        let newest = self.truth.newest();
        let here = self.callers.watches.values().filter(|watch| nodes.contains(&place(watch.node)));
        let mut owing = here
            .filter(|watch| self.truth.events(&watch.range, watch.seen, newest).next().is_some());
        owing.next().map(|watch| format!("{:?} of {:?}, newest {newest:?}", watch.seen, watch.node))
    }

    /// Returns whether a caller on one of these nodes waits for a reply.
    pub(crate) fn calls_open(&self, nodes: &[usize]) -> bool {
        self.callers.calls.values().any(|call| nodes.contains(&place(call.node)))
    }
}

fn is_true<T: Ord>(op: CompareOp, left: &T, right: &T) -> bool {
    match op {
        CompareOp::Equal => left == right,
        CompareOp::NotEqual => left != right,
        CompareOp::Greater => left > right,
        CompareOp::Less => left < right,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::clock::Timeline;
    use super::*;

    #[test]
    fn rejected_compaction_must_not_be_reported() {
        let told = |tell: fn(&mut Judge, Sign<'_>)| {
            let mut judge = Judge::new(Arc::new(Timeline::default()), 1);
            assert!(judge.may_compact(Revision(7)) && !judge.may_compact(Revision(7)));
            tell(&mut judge, Sign::Compacts(Revision(7)));
            judge.verdict().err().map(|violation| violation.invariant)
        };
        assert_eq!(told(|judge, _| judge.compaction_told(Revision(7))), None);
        assert_eq!(told(|judge, sign| judge.record_not_applied(sign)), None);
        let early = |judge: &mut Judge, sign: Sign<'_>| {
            judge.compaction_told(Revision(7));
            judge.record_not_applied(sign);
        };
        assert_eq!(told(early), Some("X-UNKNOWN"));
        let late = |judge: &mut Judge, sign: Sign<'_>| {
            judge.record_not_applied(sign);
            judge.compaction_told(Revision(7));
        };
        assert_eq!(told(late), Some("X-UNKNOWN"));
        assert_eq!(told(|judge, _| judge.compaction_told(Revision(8))), Some("M-COMPACT"));
    }

    #[test]
    fn lease_outlives_a_rejected_revocation() {
        let lease = LeaseId::new(9).unwrap();
        let (timeline, second) = (Arc::new(Timeline::default()), Duration::from_secs(1));
        let mut judge = Judge::new(timeline.clone(), 1);
        judge.lease_counts(lease, Duration::ZERO, second * 2);
        judge.lease_may_end(lease);
        timeline.advance_to(second);
        judge.lease_not_renewed(lease);
        assert_eq!(judge.verdict(), Ok(()));
        judge.record_not_applied(Sign::Revokes(lease));
        assert_eq!(judge.verdict().unwrap_err().invariant, "X-UNKNOWN");
        let mut judge = Judge::new(timeline.clone(), 1);
        judge.lease_counts(lease, Duration::ZERO, second * 2);
        judge.lease_may_end(lease);
        judge.record_not_applied(Sign::Revokes(lease));
        judge.lease_renewed(lease, second, second * 2);
        assert_eq!(judge.verdict(), Ok(()));
        timeline.advance_to(second * 5 / 2);
        judge.lease_not_renewed(lease);
        assert_eq!(judge.verdict().unwrap_err().invariant, "L-EARLY");
    }
}
