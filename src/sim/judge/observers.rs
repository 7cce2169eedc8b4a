//! Judges the observers of elections: each receives every change of the leader once, in order.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use super::lines::{Head, Line};
use crate::model::{LeaseId, NodeId, Revision};

/// The id of an observer of an election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ObserverId(u64);

/// An observer of an election and the last leader that it received.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) node: NodeId,
    election: &'static str,
    /// The revisions at which that leader may have begun to lead, or `None` before the first event. A leader identifies
    /// its own term. An event without a leader may belong to any vacancy: the observer may have skipped changes and
    /// read the current state again.
    seen: Option<BTreeSet<Revision>>,
}

impl Judge {
    /// Records that a program on a node observes an election.
    pub(crate) fn observer_begins(&mut self, node: NodeId, election: &'static str) -> ObserverId {
        let id = ObserverId(self.next);
        self.next += 1;
        self.locks.observers.insert(id, Observer { node, election, seen: None });
        id
    }

    /// Checks that the leader that an observer receives is the next change after the last one, or a later one if the
    /// changes between may be compacted.
    pub(crate) fn observed(
        &mut self,
        id: ObserverId,
        leader: Option<(&Bytes, Revision, &Bytes, LeaseId)>,
    ) {
        let Some(Observer { node, election, seen }) = self.locks.observers.remove(&id) else {
            return;
        };
        let is_it = |head: &Option<Head>| {
            let head = head.as_ref();
            head.map(|head| (&head.key, head.since, &head.value, head.lease)) == leader
        };
        let never = Line::new();
        let line = self.line(election).unwrap_or(&never);
        // An observer that needs compacted history reads the current state instead, however many changes it skips.
        let reach = |seen: Revision| if self.compaction_asked() > seen { usize::MAX } else { 1 };
        let next = |seen: &Revision| line.heads_after(*seen).iter().take(reach(*seen));
        let found: Vec<_> = match &seen {
            // The first event may be the state at any time.
            None => line.heads.iter().collect(),
            Some(seen) => seen.iter().flat_map(next).collect(),
        };
        let found = found.into_iter().filter(|(_, head)| is_it(head));
        let found: BTreeSet<Revision> = found.map(|(since, _)| *since).collect();
        if found.is_empty() {
            let last = seen.iter().flatten().last().copied().unwrap_or_default();
            let next: Vec<_> = line.heads_after(last).iter().take(3).cloned().collect();
            self.broken("K-OBSERVE", || {
                format!(
                    "an observer of {election} on {node:?} that has seen {seen:?} is told of \
                     {leader:?}; then came {next:?}"
                )
            });
        }
        self.locks.observers.insert(id, Observer { node, election, seen: Some(found) });
        self.count(if leader.is_some() { "leader observed" } else { "missing leader observed" });
    }

    /// Returns a description of an observer on one of these nodes that has not received every change.
    pub(crate) fn observer_owes(&self, nodes: &[usize]) -> Option<String> {
        let here = |observer: &&Observer| nodes.contains(&place(observer.node));
        let mut owing = self.locks.observers.values().filter(here).filter(|observer| {
            let line = self.line(observer.election);
            let seen = observer.seen.iter().flatten().last().copied().unwrap_or_default();
            line.is_some_and(|line| !line.heads_after(seen).is_empty())
        });
        owing.next().map(|observer| format!("{observer:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::clock::Timeline;
    use super::*;
    use crate::model::{Event, EventKind, KeyValue};

    const KEY: Bytes = Bytes::from_static(b"lock/e/7");

    /// Returns a judge for an election with three terms: a leader is elected at revisions 2, 4 and 6, and resigns at
    /// revisions 3, 5 and 7.
    fn three_terms() -> Judge {
        let mut judge = Judge::new(Arc::new(Timeline::default()), 1);
        for at in 2..8 {
            let is_put = at % 2 == 0;
            let kv = KeyValue {
                key: KEY,
                value: Bytes::new(),
                create_revision: Revision(if is_put { at } else { 0 }),
                mod_revision: Revision(at),
                version: is_put.into(),
                lease: LeaseId::new(7).filter(|_| is_put),
            };
            let kind = if is_put { EventKind::Put } else { EventKind::Delete };
            let prev = judge.truth().row_at(&KEY, Revision(at - 1)).cloned();
            judge.learn(Revision(at), &[Event { kind, kv, prev }]);
        }
        judge
    }

    /// Returns whether an observer may receive these leaders (0 for none). Before the second event, everything up to
    /// `compacted` may be compacted.
    fn may_receive(leaders: &[u64], compacted: u64) -> bool {
        let mut judge = three_terms();
        let node = NodeId::new(1).unwrap();
        let id = judge.observer_begins(node, "lock/e");
        for (turn, since) in leaders.iter().enumerate() {
            if turn == 1 {
                judge.may_compact(Revision(compacted));
            }
            let (key, value) = (KEY, Bytes::new());
            let lease = LeaseId::new(7).unwrap();
            let leader = (*since > 0).then_some((&key, Revision(*since), &value, lease));
            judge.observed(id, leader);
        }
        judge.verdict().is_ok()
    }

    #[test]
    fn observer_sees_each_term_except_compacted_ones() {
        for (leaders, compacted, fits) in [
            (&[2, 0, 4, 0, 6, 0][..], 0, true),
            (&[2, 0, 6], 0, false),
            (&[2, 4], 0, false),
            (&[2, 6, 0], 3, true),
            (&[2, 6, 4], 3, false),
            // After the compaction the observer read the state again, and saw no leader. This read may have happened
            // after the first, the second or the third term.
            (&[2, 0, 4], 3, true),
            (&[2, 0, 6], 3, true),
            (&[2, 0, 4, 6], 3, false),
            (&[2, 0, 0], 3, false),
            // The first event may also show no leader.
            (&[0, 2, 0, 4], 0, true),
            (&[0, 6], 0, true),
            (&[0, 4, 6], 0, false),
        ] {
            assert_eq!(may_receive(leaders, compacted), fits, "{leaders:?}, {compacted}");
        }
    }
}
