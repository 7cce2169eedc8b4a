//! The interface of a store under test, which the state machine and the naive model implement.

use std::time::Duration;

use bowline::machine::{LeaseChange, Machine, MachineOptions, Reader};
use bowline::model::{
    Alarm, Event, Incarnation, Item, KeyRange, LeaseId, LogIndex, NodeId, Outcome, Range,
    RangeReply, Rejection, RequestId, Revision, SessionInfo, Term, Txn, TxnReply,
};
use bytes::Bytes;

/// A store to which log entries are applied.
pub trait Subject {
    /// Applies one log entry, written by the leader of `term`.
    fn apply(&mut self, term: Term, items: &[Item]) -> Applied;
    /// Makes the applied changes visible to readers.
    fn publish(&mut self);

    /// Returns the newest revision that is visible to readers.
    fn revision(&self) -> Revision;
    /// Returns the oldest readable revision; 0 before the first compaction.
    fn compacted(&self) -> Revision;
    fn range(&self, range: &Range) -> Result<RangeReply, Rejection>;
    /// Runs a transaction that only reads.
    fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection>;
    /// Returns every event of a key in `range`, from revision `from`.
    fn events(&self, range: &KeyRange, from: Revision) -> Result<Vec<Event>, Rejection>;
    /// Returns a lease and the keys bound to it.
    fn lease(&self, id: LeaseId) -> Option<(Lease, Vec<Bytes>)>;
    fn leases(&self) -> Vec<LeaseId>;
    /// Returns the active alarms.
    fn alarms(&self) -> Vec<Alarm>;
    /// Returns the known outcome of a request.
    fn answer(&self, id: RequestId) -> Option<Outcome>;
}

/// The effect of one log entry.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Applied {
    pub outcomes: Vec<(RequestId, Outcome)>,
    pub changes: Vec<(Revision, Vec<Event>)>,
    pub leases: Vec<LeaseNews>,
    pub compacted: Option<Revision>,
}

/// A lease that was granted or has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseNews {
    Granted(LeaseId, Lease),
    Ended(LeaseId),
}

/// A lease, without its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lease {
    pub ttl: Duration,
    pub session: Option<(NodeId, Incarnation, SessionInfo)>,
}

/// The state machine under test.
pub struct Real {
    pub machine: Machine,
    reader: Reader,
    /// Number of bytes of history to read at a time.
    page_bytes: usize,
}

impl Real {
    pub fn new(options: MachineOptions, page_bytes: usize) -> Self {
        Self::of(Machine::new(options), page_bytes)
    }

    pub fn of(machine: Machine, page_bytes: usize) -> Self {
        let reader = machine.reader();
        Self { machine, reader, page_bytes }
    }

    /// Applies empty entries until `index` is the last applied entry.
    pub fn skip_to(&mut self, index: LogIndex) {
        while self.machine.applied() < index {
            self.apply(Term(1), &[]);
        }
    }
}

impl Subject for Real {
    fn apply(&mut self, term: Term, items: &[Item]) -> Applied {
        let index = self.machine.applied().next();
        let applied = self.machine.apply(index, term, items.to_vec()).expect("no fault");
        let changes = applied.changes.iter();
        let lease = |ttl, session| Lease { ttl, session };
        let leases = applied.leases.into_iter().map(|change| match change {
            LeaseChange::Granted { id, ttl, session } => {
                LeaseNews::Granted(id, lease(ttl, session))
            }
            LeaseChange::Ended { id } => LeaseNews::Ended(id),
        });
        Applied {
            outcomes: applied.outcomes,
            changes: changes.map(|change| (change.revision(), change.events().to_vec())).collect(),
            leases: leases.collect(),
            compacted: applied.compacted,
        }
    }

    fn publish(&mut self) {
        self.machine.publish();
    }

    fn revision(&self) -> Revision {
        self.reader.revision()
    }

    fn compacted(&self) -> Revision {
        self.reader.compacted()
    }

    fn range(&self, range: &Range) -> Result<RangeReply, Rejection> {
        self.reader.range(range)
    }

    fn read_txn(&self, txn: &Txn) -> Result<TxnReply, Rejection> {
        self.reader.read_txn(txn)
    }

    fn events(&self, range: &KeyRange, from: Revision) -> Result<Vec<Event>, Rejection> {
        let mut events = Vec::new();
        let mut from = from;
        loop {
            let page = self.reader.events(range, from, self.page_bytes)?;
            for change in page.changes {
                let of_one = change.events().iter();
                assert!(of_one.clone().all(|event| event.revision() == change.revision()));
                events.extend(of_one.cloned());
            }
            if page.next > self.reader.revision() {
                return Ok(events);
            }
            from = page.next;
        }
    }

    fn lease(&self, id: LeaseId) -> Option<(Lease, Vec<Bytes>)> {
        let info = self.reader.lease(id)?;
        Some((Lease { ttl: info.ttl, session: info.session }, info.keys))
    }

    fn leases(&self) -> Vec<LeaseId> {
        self.reader.leases().into_iter().map(|(id, _)| id).collect()
    }

    fn alarms(&self) -> Vec<Alarm> {
        self.reader.alarms().iter().copied().collect()
    }

    fn answer(&self, id: RequestId) -> Option<Outcome> {
        self.machine.answer(id)
    }
}
