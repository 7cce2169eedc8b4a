//! A simple, slow reference implementation of requests: it applies one operation after the other to all rows of a
//! store. The code follows the documentation of etcd and [`model`](crate::model). It shares no code with
//! [`machine`](crate::machine), which tests compare with it.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::model::{
    Compare, CompareOp, CompareTarget, Delete, DeleteReply, Event, EventKind, KeyValue, LeaseId,
    Op, Put, PutLease, PutReply, PutValue, Range, RangeReply, Revision, SortOrder, SortTarget, Txn,
    TxnReply, TxnResult,
};

/// All rows at one revision.
pub type State = BTreeMap<Bytes, KeyValue>;

/// A request while it is being applied.
#[derive(Debug)]
pub struct Draft {
    base: Revision,
    /// The rows at this point.
    pub state: State,
    /// The changes so far.
    pub events: Vec<Event>,
}

impl Draft {
    /// Begins a request on a store with the rows `state` at revision `base`.
    pub fn new(base: Revision, state: State) -> Self {
        Self { base, state, events: Vec::new() }
    }

    /// Returns the revision of the store if the request has no further operations.
    pub fn now(&self) -> Revision {
        if self.events.is_empty() { self.base } else { self.base.next() }
    }

    /// Applies a put.
    ///
    /// # Panics
    /// Panics if the put keeps the value or lease of a missing key.
    pub fn put(&mut self, put: &Put) -> PutReply {
        let revision = self.base.next();
        let old = self.state.get(&put.key).cloned();
        let row = KeyValue {
            key: put.key.clone(),
            value: match &put.value {
                PutValue::Set(value) => value.clone(),
                PutValue::Keep => old.as_ref().expect("checked before").value.clone(),
            },
            create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.as_ref().map_or(1, |old| old.version + 1),
            lease: match put.lease {
                PutLease::None => None,
                PutLease::Attach(id) => Some(id),
                PutLease::Keep => old.as_ref().expect("checked before").lease,
            },
        };
        self.state.insert(put.key.clone(), row.clone());
        self.events.push(Event { kind: EventKind::Put, kv: row, prev: old.clone() });
        PutReply { revision, prev: old.filter(|_| put.prev_kv) }
    }

    /// Applies a deletion.
    pub fn delete(&mut self, delete: &Delete) -> DeleteReply {
        let rows = self.state.values().filter(|row| delete.range.contains(&row.key));
        let rows: Vec<KeyValue> = rows.cloned().collect();
        for row in &rows {
            self.state.remove(&row.key);
            let tombstone = KeyValue {
                key: row.key.clone(),
                value: Bytes::new(),
                create_revision: Revision(0),
                mod_revision: self.base.next(),
                version: 0,
                lease: None,
            };
            let prev = Some(row.clone());
            self.events.push(Event { kind: EventKind::Delete, kv: tombstone, prev });
        }
        DeleteReply {
            revision: self.now(),
            deleted: rows.len() as u64,
            prev_kvs: if delete.prev_kv { rows } else { Vec::new() },
        }
    }

    /// Applies the operations of the branches that a transaction takes. `past` returns the rows at
    /// older revisions.
    pub fn txn(&mut self, path: &Path<'_>, past: &dyn Fn(Revision) -> State) -> TxnReply {
        let mut results = Vec::new();
        for step in &path.steps {
            results.push(match step {
                PlainStep::Range(range) => TxnResult::Range(match asked(range) {
                    Some(revision) => read(&past(revision), range, self.now()),
                    None => read(&self.state, range, self.now()),
                }),
                PlainStep::Put(put) => TxnResult::Put(self.put(put)),
                PlainStep::Delete(delete) => TxnResult::Delete(self.delete(delete)),
                PlainStep::Txn(nested) => TxnResult::Txn(self.txn(nested, past)),
            });
        }
        TxnReply { revision: self.now(), succeeded: path.succeeded, results }
    }
}

/// The branches that a transaction and its nested transactions take in the state before the transaction.
#[derive(Debug)]
pub struct Path<'a> {
    /// Whether the compares succeeded.
    pub succeeded: bool,
    /// The operations of the branch.
    pub steps: Vec<PlainStep<'a>>,
}

/// One operation on a [`Path`].
#[derive(Debug)]
pub enum PlainStep<'a> {
    /// A range read.
    Range(&'a Range),
    /// A put.
    Put(&'a Put),
    /// A deletion.
    Delete(&'a Delete),
    /// A nested transaction.
    Txn(Path<'a>),
}

impl<'a> Path<'a> {
    /// Returns all steps in order, with nested transactions expanded.
    pub fn flat(&self) -> Vec<&PlainStep<'a>> {
        let mut flat = Vec::new();
        for step in &self.steps {
            match step {
                PlainStep::Txn(nested) => flat.extend(nested.flat()),
                step => flat.push(step),
            }
        }
        flat
    }

    /// Returns the path of a transaction on these rows.
    pub fn choose(txn: &'a Txn, before: &State) -> Self {
        let succeeded = txn.compares.iter().all(|compare| holds(compare, before));
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let steps = ops.iter().map(|op| match op {
            Op::Range(range) => PlainStep::Range(range),
            Op::Put(put) => PlainStep::Put(put),
            Op::Delete(delete) => PlainStep::Delete(delete),
            Op::Txn(nested) => PlainStep::Txn(Path::choose(nested, before)),
        });
        Path { succeeded, steps: steps.collect() }
    }
}

/// Returns the revision at which a range is to be read, or `None` for the newest. Revision 0 also means the newest.
pub fn asked(range: &Range) -> Option<Revision> {
    range.revision.filter(|revision| *revision > Revision(0))
}

/// Returns whether every row in the range of the compare satisfies it. A range without rows counts as one row with
/// all fields zero and no value.
fn holds(compare: &Compare, state: &State) -> bool {
    let mut rows = state.values().filter(|row| compare.range.contains(&row.key)).peekable();
    if rows.peek().is_none() {
        return holds_for(compare, None);
    }
    rows.all(|row| holds_for(compare, Some(row)))
}

fn holds_for(compare: &Compare, row: Option<&KeyValue>) -> bool {
    let order = match &compare.target {
        CompareTarget::Version(right) => row.map_or(0, |row| row.version).cmp(right),
        CompareTarget::Create(right) => {
            row.map_or(Revision(0), |row| row.create_revision).cmp(right)
        }
        CompareTarget::Mod(right) => row.map_or(Revision(0), |row| row.mod_revision).cmp(right),
        CompareTarget::Lease(right) => {
            row.and_then(|row| row.lease).map_or(0, LeaseId::get).cmp(right)
        }
        CompareTarget::Value(right) => match row {
            Some(row) => row.value.cmp(right),
            None => return false,
        },
    };
    match compare.op {
        CompareOp::Equal => order.is_eq(),
        CompareOp::NotEqual => order.is_ne(),
        CompareOp::Greater => order.is_gt(),
        CompareOp::Less => order.is_lt(),
    }
}

/// Reads `range` from `state`, reported at revision `now`.
pub fn read(state: &State, range: &Range, now: Revision) -> RangeReply {
    let rows = state.values().filter(|row| range.range.contains(&row.key));
    let mut kvs: Vec<KeyValue> = rows.cloned().collect();
    let count = kvs.len() as u64;
    if range.count_only {
        return RangeReply { revision: now, kvs: Vec::new(), more: false, count };
    }
    let bounds = &range.bounds;
    kvs.retain(|row| {
        bounds.mod_max.is_none_or(|max| row.mod_revision <= max)
            && bounds.mod_min.is_none_or(|min| row.mod_revision >= min)
            && bounds.create_max.is_none_or(|max| row.create_revision <= max)
            && bounds.create_min.is_none_or(|min| row.create_revision >= min)
    });
    // The sort is stable and the rows are in key order, so equal rows stay in key order in both directions.
    kvs.sort_by(|a, b| {
        let order = match range.sort.target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::Create => a.create_revision.cmp(&b.create_revision),
            SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        };
        match range.sort.order {
            SortOrder::Ascend => order,
            SortOrder::Descend => order.reverse(),
        }
    });
    let more = range.limit.is_some_and(|limit| kvs.len() as u64 > limit);
    kvs.truncate(range.limit.unwrap_or(count) as usize);
    if range.keys_only {
        kvs.iter_mut().for_each(|row| row.value = Bytes::new());
    }
    RangeReply { revision: now, kvs, more, count }
}
