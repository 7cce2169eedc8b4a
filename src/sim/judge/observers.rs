//! The judge of the observers of elections: each is told every change of leader once, in order.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use super::lines::{Head, Line};
use crate::model::{LeaseId, NodeId, Revision};

/// Names an observer of an election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ObserverId(u64);

/// An observer of an election, and what it was told last.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) node: NodeId,
    election: &'static str,
    /// The revisions from which on that was so; `None` before it was told anything. One leader's term is
    /// not like another, but one vacancy is: who has looked anew, at nobody, may have come to any of them.
    seen: Option<BTreeSet<Revision>>,
}

impl Judge {
    /// A program on a node observes an election.
    pub(crate) fn observer_begins(&mut self, node: NodeId, election: &'static str) -> ObserverId {
        let id = ObserverId(self.next);
        self.next += 1;
        self.locks.observers.insert(id, Observer { node, election, seen: None });
        id
    }

    /// An observer is told who leads: that is the next change after what it was told before, or
    /// a later one where what is between may be forgotten.
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
        // Who misses some of the history looks anew, however much has happened since.
        let reach = |seen: Revision| if self.compaction_asked() > seen { usize::MAX } else { 1 };
        let next = |seen: &Revision| line.heads_after(*seen).iter().take(reach(*seen));
        let found: Vec<_> = match &seen {
            // What was the case at some time.
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
        self.count(if leader.is_some() { "leader observed" } else { "vacancy observed" });
    }

    /// Whether an observer on one of these nodes has not been told of everything.
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

    /// Somebody leads from 2 on, nobody from 3 on, somebody from 4 on, and nobody from 5, 7, ... on.
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

    /// Whether an observer may be told of these, 0 for nobody; before the second one everything up to a
    /// revision may be forgotten.
    fn may_be_told(leaders: &[u64], compacted: u64) -> bool {
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
            // It has looked anew, at nobody: after the first term, or the second, or the third.
            (&[2, 0, 4], 3, true),
            (&[2, 0, 6], 3, true),
            (&[2, 0, 4, 6], 3, false),
            (&[2, 0, 0], 3, false),
            // At first, too.
            (&[0, 2, 0, 4], 0, true),
            (&[0, 6], 0, true),
            (&[0, 4, 6], 0, false),
        ] {
            assert_eq!(may_be_told(leaders, compacted), fits, "{leaders:?}, {compacted}");
        }
    }
}
