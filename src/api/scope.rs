//! [`Scope`]: adds a prefix to every key of a request and removes it from every key of a reply.

use bytes::Bytes;

use crate::model::{Compare, Event, KeyRange, KeyValue, Op, RangeReply, Txn, TxnReply, TxnResult};

/// A key prefix, possibly empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope(Bytes);

impl Scope {
    /// Returns a scope inside this one.
    pub(crate) fn inner(&self, prefix: Bytes) -> Self {
        if prefix.is_empty() { self.clone() } else { Self(self.key(prefix)) }
    }

    /// Returns the prefix, which is empty for a client without one.
    pub(crate) fn prefix(&self) -> &Bytes {
        &self.0
    }

    pub(crate) fn key(&self, key: Bytes) -> Bytes {
        if self.0.is_empty() || key.is_empty() {
            // Leave an empty key empty, so that the request is rejected because of its empty key.
            return key;
        }
        [&self.0[..], &key[..]].concat().into()
    }

    pub(crate) fn range(&self, range: KeyRange) -> KeyRange {
        if range.start().is_empty() { range } else { range.below_prefix(&self.0) }
    }

    pub(crate) fn compare(&self, mut compare: Compare) -> Compare {
        compare.range = self.range(compare.range);
        compare
    }

    pub(crate) fn op(&self, op: Op) -> Op {
        if self.0.is_empty() {
            return op;
        }
        match op {
            Op::Range(mut range) => {
                range.range = self.range(range.range);
                Op::Range(range)
            }
            Op::Put(mut put) => {
                put.key = self.key(put.key);
                Op::Put(put)
            }
            Op::Delete(mut delete) => {
                delete.range = self.range(delete.range);
                Op::Delete(delete)
            }
            Op::Txn(txn) => Op::Txn(self.txn(txn)),
        }
    }

    pub(crate) fn txn(&self, txn: Txn) -> Txn {
        if self.0.is_empty() {
            return txn;
        }
        Txn {
            compares: txn.compares.into_iter().map(|compare| self.compare(compare)).collect(),
            success: txn.success.into_iter().map(|op| self.op(op)).collect(),
            failure: txn.failure.into_iter().map(|op| self.op(op)).collect(),
        }
    }

    pub(crate) fn strip(&self, row: &mut KeyValue) {
        debug_assert!(row.key.starts_with(&self.0), "a row from outside the scope");
        row.key = row.key.slice(self.0.len()..);
    }

    pub(crate) fn strip_all<'a>(&self, rows: impl IntoIterator<Item = &'a mut KeyValue>) {
        if !self.0.is_empty() {
            rows.into_iter().for_each(|row| self.strip(row));
        }
    }

    pub(crate) fn strip_range(&self, mut reply: RangeReply) -> RangeReply {
        self.strip_all(&mut reply.kvs);
        reply
    }

    pub(crate) fn strip_event(&self, event: &mut Event) {
        self.strip_all(std::iter::once(&mut event.kv).chain(&mut event.prev));
    }

    pub(crate) fn strip_txn(&self, mut reply: TxnReply) -> TxnReply {
        if self.0.is_empty() {
            return reply;
        }
        for result in &mut reply.results {
            match result {
                TxnResult::Range(range) => self.strip_all(&mut range.kvs),
                TxnResult::Put(put) => self.strip_all(&mut put.prev),
                TxnResult::Delete(delete) => self.strip_all(&mut delete.prev_kvs),
                TxnResult::Txn(txn) => {
                    let results = std::mem::take(&mut txn.results);
                    *txn = self.strip_txn(TxnReply { results, ..*txn });
                }
            }
        }
        reply
    }
}
