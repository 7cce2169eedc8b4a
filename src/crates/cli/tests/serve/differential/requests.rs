//! Generates random requests from a seed. Requests to which Bowline deliberately responds differently, as
//! `docs/etcd-compatibility.md` documents, are not generated.

use bowline_proto::etcdserverpb as pb;
use pb::compare::TargetUnion;
use pb::request_op::Request;

/// Leases that are granted, attached and revoked; the last is never granted.
const LEASES: [i64; 4] = [7, 8, -9, 99];

/// The compare target for leases.
const LEASE: i32 = 4;

/// The sort target for values.
const VALUE: i32 = 4;

/// Maximum number of operations of a transaction.
const OPS_MAX: usize = 128;

/// A pseudorandom generator.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn key(&mut self) -> bytes::Bytes {
        // There are few keys, so that requests interact. Go's sort keeps equal rows in their order only if there are at
        // most 12 rows.
        let keys = ["a", "ab", "abc", "b", "b/1", "b/2", "c", "\0", "\u{7f}"];
        match self.below(40) {
            0 => bytes::Bytes::new(),
            n => keys[n as usize % keys.len()].into(),
        }
    }

    pub(crate) fn end(&mut self) -> bytes::Bytes {
        match self.below(6) {
            0 | 1 => bytes::Bytes::new(),
            2 => "\0".into(),
            _ => self.key(),
        }
    }

    pub(crate) fn value(&mut self) -> bytes::Bytes {
        ["", "x", "y", "zz"][self.below(4) as usize].into()
    }

    pub(crate) fn lease(&mut self) -> i64 {
        if self.one_in(2) { 0 } else { LEASES[self.below(4) as usize] }
    }

    /// Returns a revision near the newest, or an invalid one.
    pub(crate) fn revision(&mut self, newest: i64) -> i64 {
        match self.below(8) {
            0..=3 => 0,
            4 => -1,
            5 => newest + 1,
            _ => newest - self.below(12) as i64,
        }
    }

    pub(crate) fn bound(&mut self, newest: i64) -> i64 {
        if self.one_in(4) { newest - self.below(20) as i64 } else { 0 }
    }

    pub(crate) fn range(&mut self, newest: i64) -> pb::RangeRequest {
        let (sort_order, sort_target) = (self.below(3) as i32, self.below(5) as i32);
        let limit = [0, 0, 1, 2, 5, -1][self.below(6) as usize];
        // etcd applies the limit before sorting if a target is given without an order.
        let cut_first = sort_order == 0 && sort_target != 0;
        pb::RangeRequest {
            key: self.key(),
            range_end: self.end(),
            limit: if cut_first { 0 } else { limit },
            revision: self.revision(newest),
            sort_order,
            sort_target,
            serializable: self.one_in(2),
            keys_only: self.one_in(4),
            count_only: self.one_in(5),
            min_mod_revision: self.bound(newest),
            max_mod_revision: self.bound(newest),
            min_create_revision: self.bound(newest),
            max_create_revision: self.bound(newest),
        }
    }

    /// Returns a range for a stream, which usually has no order and no filter, because both are refused.
    pub(crate) fn stream(&mut self, newest: i64) -> pb::RangeRequest {
        let mut range = self.range(newest);
        if !self.one_in(4) {
            range.sort_order = range.sort_order.min(1);
            (range.min_mod_revision, range.max_mod_revision) = (0, 0);
            (range.min_create_revision, range.max_create_revision) = (0, 0);
            range.sort_target = 0;
        }
        if range.sort_order == 0 {
            // With a target but no order, etcd sorts each chunk on its own.
            range.sort_target = 0;
        }
        range
    }

    pub(crate) fn put(&mut self) -> pb::PutRequest {
        let mut value = self.value();
        if self.one_in(400) {
            // The value is too large for the store, or for a message.
            value = vec![b'v'; [1_600_000, 2_200_000][self.below(2) as usize]].into();
        }
        pb::PutRequest {
            key: self.key(),
            value,
            lease: self.lease(),
            prev_kv: self.one_in(2),
            ignore_value: self.one_in(8),
            ignore_lease: self.one_in(8),
        }
    }

    pub(crate) fn delete(&mut self) -> pb::DeleteRangeRequest {
        pb::DeleteRangeRequest { key: self.key(), range_end: self.end(), prev_kv: self.one_in(2) }
    }

    /// Returns a delete for a transaction, in which etcd overlooks a put of a key that an open-ended range deletes.
    fn inner_delete(&mut self) -> pb::DeleteRangeRequest {
        let mut delete = self.delete();
        if delete.range_end[..] == [0] {
            delete.range_end.clear();
        }
        delete
    }

    fn compare(&mut self, newest: i64) -> pb::Compare {
        let target = self.below(5) as i32;
        let number = self.below(4) as i64 + if self.one_in(2) { newest - 3 } else { -1 };
        // Comparing lease ids by size is meaningless, because the servers choose different ones.
        let results = if target == LEASE { [0, 3, 0, 3] } else { [0, 1, 2, 3] };
        let target_union = match target {
            0 => TargetUnion::Version(number),
            1 => TargetUnion::CreateRevision(number),
            2 => TargetUnion::ModRevision(number),
            3 => TargetUnion::Value(self.value()),
            _ => TargetUnion::Lease(self.lease()),
        };
        pb::Compare {
            result: results[self.below(4) as usize],
            target,
            key: self.key(),
            range_end: if self.one_in(3) { self.end() } else { bytes::Bytes::new() },
            target_union: (!self.one_in(10)).then_some(target_union),
        }
    }

    fn op(&mut self, newest: i64, depth: u64) -> pb::RequestOp {
        match self.below(8) {
            0..=2 => self.put().into(),
            3 | 4 => {
                let mut range = self.range(newest);
                // Only in this request, etcd treats a negative revision as compacted. Such requests are not generated.
                range.revision = range.revision.max(0);
                // etcd 3.7 omits the leases of keys without values, unless it sorts by value.
                range.keys_only &= range.sort_target == VALUE;
                range.into()
            }
            5 => self.inner_delete().into(),
            _ if depth > 0 => self.level(newest, depth - 1).into(),
            _ if self.one_in(20) => pb::RequestOp { request: None },
            _ => self.put().into(),
        }
    }

    pub(crate) fn txn(&mut self, newest: i64) -> pb::TxnRequest {
        let mut txn = self.level(newest, 2);
        let keeps_puts = self.one_in(2);
        for op in txn.success.iter_mut().chain(&mut txn.failure) {
            if let Some(Request::RequestTxn(nested)) = &mut op.request {
                only_reads_and(nested, keeps_puts);
            }
        }
        txn
    }

    fn level(&mut self, newest: i64, depth: u64) -> pb::TxnRequest {
        let some = |chance: &mut Self| 0..chance.below(3);
        let mut txn = pb::TxnRequest {
            compare: some(self).map(|_| self.compare(newest)).collect(),
            success: some(self).map(|_| self.op(newest, depth)).collect(),
            failure: some(self).map(|_| self.op(newest, depth)).collect(),
        };
        if self.one_in(100) {
            let delete = self.inner_delete().into();
            txn.failure.resize(OPS_MAX - 1 + self.below(3) as usize, delete);
        }
        txn
    }

    pub(crate) fn grant(&mut self) -> pb::LeaseGrantRequest {
        let ttl = if self.one_in(6) { 9_000_000_001 } else { 10_000 };
        pb::LeaseGrantRequest { ttl, id: LEASES[self.below(3) as usize] }
    }

    /// Returns a watch starting in the past or future, but never at exactly the compacted revision, where etcd 3.4 can
    /// omit a delete.
    pub(crate) fn watch(&mut self, newest: i64, compacted: i64) -> pb::WatchCreateRequest {
        let start_revision = match self.below(4) {
            0 => newest - self.below(30) as i64,
            1 => newest + self.below(5) as i64,
            _ => 0,
        };
        pb::WatchCreateRequest {
            key: self.key(),
            range_end: self.end(),
            start_revision: if start_revision == compacted { 0 } else { start_revision.max(0) },
            prev_kv: self.one_in(2),
            filters: (0..2).filter(|_| self.one_in(6)).collect(),
            ..Default::default()
        }
    }
}

/// Keeps only the puts or the deletes of nested transactions, because etcd overlooks a put of a key that a later one
/// deletes.
fn only_reads_and(txn: &mut pb::TxnRequest, puts: bool) {
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        let key = match &mut op.request {
            Some(Request::RequestPut(put)) if !puts => put.key.clone(),
            Some(Request::RequestDeleteRange(delete)) if puts => delete.key.clone(),
            Some(Request::RequestTxn(nested)) => {
                only_reads_and(nested, puts);
                continue;
            }
            _ => continue,
        };
        let range = pb::RangeRequest { key, ..Default::default() };
        op.request = Some(Request::RequestRange(range));
    }
}
