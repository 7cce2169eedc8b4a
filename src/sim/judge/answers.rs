//! The judge of what callers get: each call returns in its time, what it was answered is so, and a watch owes nobody
//! anything.

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

/// How much later than its deadline a call may return, beside what clocks and pauses explain.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

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

/// What is known of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compaction {
    /// It was asked for.
    Asked,
    /// Somebody was told that it was made.
    Told,
    /// Its caller was told that it was not.
    Refused,
}

/// What would show that a request was applied, of which that is told by nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sign<'a> {
    /// Values, each put by nobody else.
    Puts(&'a [(Bytes, Bytes)]),
    /// The end of a key that was there and that nobody else deletes.
    Deletes(&'a Bytes),
    /// A lease of an id that nobody else asks for.
    Grants(LeaseId),
    /// The early end of a lease that nobody else revokes.
    Revokes(LeaseId),
    /// A compaction at a revision at which nobody else asks for one.
    Compacts(Revision),
    /// Nothing would: others ask for the same.
    Nothing,
}

/// Who waits, who watches, and what they have been shown.
pub(super) struct Callers {
    /// The newest revision that any linearizable answer has shown.
    pub(super) floor: Revision,
    calls: BTreeMap<CallId, Call>,
    watches: BTreeMap<WatchId, Watching>,
    /// The newest revision at which a compaction was ever asked for.
    compaction_asked: Revision,
    /// Each revision at which one was asked for, once, and what is known of that.
    compactions: BTreeMap<Revision, Compaction>,
    /// The revisions of which somebody was told that his request has made them.
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
    /// A process has ended: nobody there waits for an answer any more.
    pub(super) fn callers_ended(&mut self, id: NodeId) {
        let before = self.callers.calls.len();
        self.callers.calls.retain(|_, call| call.node != id);
        self.tally.detached += (before - self.callers.calls.len()) as u64;
        self.callers.watches.retain(|_, watch| watch.node != id);
    }

    /// A caller on a node begins something that may take that long by the node's clock.
    pub(crate) fn call(&mut self, node: NodeId, what: &'static str, may_take: Duration) -> CallId {
        let id = CallId(self.next);
        self.next += 1;
        let paused_before = self.seen[place(node)].paused;
        let began = self.timeline.now();
        self.callers.calls.insert(id, Call { node, what, began, paused_before, may_take });
        id
    }

    /// Whether a caller on a node waits for this.
    pub(crate) fn is_called(&self, node: NodeId, what: &str) -> bool {
        self.callers.calls.values().any(|call| call.node == node && call.what == what)
    }

    /// It has returned.
    pub(crate) fn returned(&mut self, id: CallId) {
        self.check_call(id);
        self.callers.calls.remove(&id);
    }

    /// It has returned, and brought no answer. In the calm that is not because its time was up.
    pub(crate) fn returned_in_vain(&mut self, id: CallId) {
        let calm = self.locks.calm_since;
        if let Some(call) = self.callers.calls.get(&id)
            && calm.is_some_and(|calm| call.began >= calm)
            && self.members().get(call.node).is_some()
        {
            let (took, node, what) = (self.timeline.now() - call.began, call.node, call.what);
            self.expect(took < call.may_take * 3 / 4, "L-SERVE", || {
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
        self.check_wishes();
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
        // The slowest clock inside the bound takes an eighth longer.
        let limit = call.may_take + call.may_take / 8 + DEADLINE_GRACE;
        if took > limit {
            let (node, what) = (call.node, call.what);
            self.broken("C-NOHANG", || {
                format!("{what} on {node:?} took {took:?}, at most {limit:?}")
            });
        }
    }

    /// The newest revision that any linearizable answer has shown by now: what begins now must not
    /// be answered from an older one.
    pub(crate) fn floor(&self) -> Revision {
        self.callers.floor
    }

    pub(super) fn done(&mut self, what: &'static str) {
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
        self.callers.floor = self.callers.floor.max(revision);
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
        self.done("read of the past");
    }

    /// A read of the past was refused, because there is none, or not yet.
    pub(crate) fn past_is_gone(&mut self, asked: Revision, why: &Rejection) {
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
        self.count("past that is gone");
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
        self.callers.floor = self.callers.floor.max(revision);
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

    /// The one deletion of a key that anybody asks for was acknowledged.
    pub(crate) fn deleted_once(&mut self, key: &Bytes) {
        self.truth.deleted_once(key);
        self.count("own key deleted");
    }

    /// Somebody will ask for the deletion of a key that was to stay.
    pub(crate) fn may_go(&mut self, key: &Bytes) {
        self.truth.may_go(key);
    }

    /// A caller was told that nothing was applied: what would show that it was must never appear.
    pub(crate) fn left_no_sign(&mut self, sign: Sign<'_>) {
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

    /// A compaction will be asked for, unless somebody has asked for one at that revision: the answer says whether.
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

    /// Somebody was told that there was a compaction at this revision.
    pub(crate) fn compaction_told(&mut self, at: Revision) {
        let known = self.callers.compactions.insert(at, Compaction::Told);
        let invariant = match known {
            Some(Compaction::Asked | Compaction::Told) => return,
            Some(Compaction::Refused) => "X-UNKNOWN",
            None => "M-COMPACT",
        };
        self.broken(invariant, || format!("compacted at {at:?} is told, which is {known:?}"));
    }

    /// The row before an event is told, or that there was none.
    pub(crate) fn told_before(&mut self, event: &Event) {
        let found = self.truth.check_prev(event, self.callers.compaction_asked);
        self.note(found);
    }

    pub(crate) fn compaction_asked(&self) -> Revision {
        self.callers.compaction_asked
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
        self.callers.watches.insert(id, Watching { node, range, seen });
        id
    }

    /// A watch has yielded everything up to a revision; so many events since the last time.
    pub(crate) fn watched(&mut self, id: WatchId, seen: Revision, events: usize) {
        self.tally.watched += events as u64;
        if let Some(watching) = self.callers.watches.get_mut(&id) {
            watching.seen = seen;
        }
    }

    /// Whether a watch on one of these nodes owes its program an event.
    pub(crate) fn watch_owes(&self, nodes: &[usize]) -> Option<String> {
        let newest = self.truth.newest();
        let here = self.callers.watches.values().filter(|watch| nodes.contains(&place(watch.node)));
        let mut owing = here
            .filter(|watch| self.truth.events(&watch.range, watch.seen, newest).next().is_some());
        owing.next().map(|watch| format!("{:?} of {:?}, newest {newest:?}", watch.seen, watch.node))
    }

    /// Whether a caller on one of these nodes waits for an answer.
    pub(crate) fn calls_open(&self, nodes: &[usize]) -> bool {
        self.callers.calls.values().any(|call| nodes.contains(&place(call.node)))
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
        assert_eq!(told(|judge, sign| judge.left_no_sign(sign)), None);
        let early = |judge: &mut Judge, sign: Sign<'_>| {
            judge.compaction_told(Revision(7));
            judge.left_no_sign(sign);
        };
        assert_eq!(told(early), Some("X-UNKNOWN"));
        let late = |judge: &mut Judge, sign: Sign<'_>| {
            judge.left_no_sign(sign);
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
        judge.left_no_sign(Sign::Revokes(lease));
        assert_eq!(judge.verdict().unwrap_err().invariant, "X-UNKNOWN");
        let mut judge = Judge::new(timeline.clone(), 1);
        judge.lease_counts(lease, Duration::ZERO, second * 2);
        judge.lease_may_end(lease);
        judge.left_no_sign(Sign::Revokes(lease));
        judge.lease_renewed(lease, second, second * 2);
        assert_eq!(judge.verdict(), Ok(()));
        timeline.advance_to(second * 5 / 2);
        judge.lease_not_renewed(lease);
        assert_eq!(judge.verdict().unwrap_err().invariant, "L-EARLY");
    }
}
