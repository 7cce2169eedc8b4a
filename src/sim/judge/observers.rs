//! The judge of the observers of elections: each is told every change of leader once, in order.

use bytes::Bytes;

use super::super::world::place;
use super::Judge;
use super::lines::{Head, Line};
use crate::model::{NodeId, Revision};

/// Names an observer of an election.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ObserverId(u64);

/// An observer of an election, and the revision from which on what it was told last was so.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) node: NodeId,
    election: &'static str,
    seen: Option<Revision>,
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
