//! Writes to the target as transactions that take effect at most once, however often they are sent.
//!
//! Each transaction checks that none of its keys has changed since a known revision. Suppose the response to an
//! attempt is lost and a retry succeeds. If the first attempt arrives after the retry, it finds that the keys have
//! changed and does nothing. A write of another client is detected in the same way, and is not overwritten by
//! accident.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::parts::{Span, next_key};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::KeyValue;
use pb::compare::{CompareResult, TargetUnion};

/// Estimated protocol overhead of one key and value in a compare and a write, in bytes. The real overhead is lower.
const OVERHEAD_BYTES: usize = 64;

/// A change of one key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Change {
    /// Put this value with this lease.
    Put(KeyValue),
    /// Delete this key.
    Delete(Bytes),
}

impl Change {
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Change::Put(row) => &row.key,
            Change::Delete(key) => key,
        }
    }

    /// Returns the size within a transaction, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Change::Put(row) => 2 * row.key.len() + row.value.len() + OVERHEAD_BYTES,
            Change::Delete(key) => 2 * key.len() + OVERHEAD_BYTES,
        }
    }

    /// Returns whether the key is already in the wanted state.
    pub(crate) fn is_applied(&self, found: Option<&KeyValue>) -> bool {
        match (self, found) {
            (Change::Put(row), Some(found)) => row.value == found.value && row.lease == found.lease,
            (Change::Delete(_), None) => true,
            _ => false,
        }
    }

    fn request(&self) -> pb::RequestOp {
        match self {
            Change::Put(row) => pb::RequestOp::from(pb::PutRequest {
                key: row.key.clone(),
                value: row.value.clone(),
                lease: row.lease,
                ..Default::default()
            }),
            Change::Delete(key) => delete(key.clone(), Bytes::new()),
        }
    }
}

fn delete(key: Bytes, range_end: Bytes) -> pb::RequestOp {
    pb::DeleteRangeRequest { key, range_end, prev_kv: false }.into()
}

/// Returns a compare that succeeds if no key in the range has changed after `known`. A missing key counts as
/// unchanged.
fn unchanged_since(key: Bytes, range_end: Bytes, known: i64) -> pb::Compare {
    let known = TargetUnion::ModRevision(known + 1);
    pb::Compare { range_end, ..pb::Compare::new(key, CompareResult::Less, known) }
}

/// Returns a transaction for changes of different keys that fails if one of the keys has changed since `known`.
pub(crate) fn transaction(changes: &[Change], known: i64) -> pb::TxnRequest {
    let guard = |change: &Change| unchanged_since(change.key().clone(), Bytes::new(), known);
    pb::TxnRequest {
        compare: changes.iter().map(guard).collect(),
        success: changes.iter().map(Change::request).collect(),
        failure: Vec::new(),
    }
}

/// Returns a transaction for more changes than a plain transaction can hold, or `None` if the changes do not fit even
/// so.
///
/// Adjacent deletes are merged into one range. If there are still too many operations, they are moved into nested
/// transactions, which have a separate limit. `there` lists the target's keys from the first to the last change, in
/// order.
pub(crate) fn large_transaction(
    changes: &BTreeMap<Bytes, Change>,
    there: &[Bytes],
    known: i64,
    ops_max: usize,
) -> Option<pb::TxnRequest> {
    let (first, last) = (changes.keys().next()?, changes.keys().next_back()?);
    let mut ops: Vec<_> =
        runs(changes, there).into_iter().map(|Span { first, end }| delete(first, end)).collect();
    let puts = changes.values().filter(|change| matches!(change, Change::Put(_)));
    ops.extend(puts.map(Change::request));
    if ops.len() > ops_max {
        // A nested transaction may use the operations that the outer transaction does not use.
        let inside = ops_max / 2;
        let nested = |ops: &[pb::RequestOp]| {
            pb::RequestOp::from(pb::TxnRequest { success: ops.to_vec(), ..Default::default() })
        };
        ops = ops.chunks((ops_max - inside).max(1)).map(nested).collect();
        if ops.len() > inside {
            return None;
        }
    }
    let compare = vec![unchanged_since(first.clone(), next_key(last), known)];
    Some(pb::TxnRequest { compare, success: ops, failure: Vec::new() })
}

/// Returns key ranges that cover the keys to delete, and that contain no key that exists at the target or will be
/// written.
fn runs(changes: &BTreeMap<Bytes, Change>, there: &[Bytes]) -> Vec<Span> {
    let keys: BTreeSet<&Bytes> = there.iter().chain(changes.keys()).collect();
    let mut runs = Vec::new();
    let mut open: Option<(Bytes, Bytes)> = None;
    let mut close = |run: Option<(Bytes, Bytes)>| {
        runs.extend(run.map(|(first, last)| Span { first, end: next_key(&last) }));
    };
    for key in keys {
        match changes.get(key) {
            // A missing key needs no delete.
            Some(Change::Delete(_)) if there.binary_search(key).is_err() => {}
            Some(Change::Delete(_)) => {
                let first = open.take().map_or_else(|| key.clone(), |(first, _)| first);
                open = Some((first, key.clone()));
            }
            Some(Change::Put(_)) | None => close(open.take()),
        }
    }
    close(open);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(text: &str) -> BTreeMap<Bytes, Change> {
        let change = |word: &str| {
            let key = Bytes::from(word[1..].to_owned());
            let change = match &word[..1] {
                "+" => Change::Put(KeyValue { key: key.clone(), ..Default::default() }),
                _ => Change::Delete(key.clone()),
            };
            (key, change)
        };
        text.split_whitespace().map(change).collect()
    }

    fn keys(text: &str) -> Vec<Bytes> {
        text.split_whitespace().map(|word| Bytes::from(word.to_owned())).collect()
    }

    #[test]
    fn adjacent_deletes_are_merged_and_spare_kept_keys() {
        for (what, there, ranges) in [
            ("-a -b -c", "a b c", "a..c"),
            ("-a -b -d", "a b c d", "a..b d..d"),
            ("-a +b -c", "a c", "a..a c..c"),
            ("-a -b -c", "", ""),
            ("-a -b -c", "a c", "a..c"),
            ("+a", "a", ""),
        ] {
            let runs = runs(&changes(what), &keys(there));
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let runs = runs.iter().map(|run| {
                format!("{}..{}", text(&run.first), text(&run.end[..run.end.len() - 1]))
            });
            assert_eq!(runs.collect::<Vec<_>>().join(" "), ranges, "{what} where there is {there}");
        }
    }

    #[test]
    fn oversized_transaction_is_nested_one_level_only() {
        let many =
            |count: usize| changes(&(0..count).map(|at| format!("+{at:05} ")).collect::<String>());
        let of = |count| large_transaction(&many(count), &[], 7, 8);
        assert_eq!(of(8).unwrap().success.len(), 8);
        let nested = of(9).unwrap();
        assert_eq!((nested.success.len(), nested.compare.len()), (3, 1));
        assert_eq!(of(16).unwrap().success.len(), 4);
        assert!(of(17).is_none());
    }

    #[test]
    fn migration_transaction_compares_each_written_key() {
        let changes: Vec<_> = changes("+a -b").into_values().collect();
        let txn = transaction(&changes, 7);
        assert_eq!((txn.compare.len(), txn.success.len()), (2, 2));
        assert_eq!(txn.compare[1].target_union, Some(TargetUnion::ModRevision(8)));
        assert_eq!(txn.compare[1].result, i32::from(CompareResult::Less));
    }
}
