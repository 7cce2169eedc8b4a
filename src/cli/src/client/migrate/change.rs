//! What is written to the target, as transactions that come into effect once, however often they are sent.
//!
//! Each compares that no key which it writes has changed since a revision at which this was known. An attempt whose
//! answer was lost may still arrive when a later one has done its work; then it finds that, and does nothing. What
//! somebody else writes meanwhile is seen in the same way, and not written over unseen.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::parts::{Span, next_key};
use crate::generated::etcdserverpb as pb;
use crate::generated::mvccpb::KeyValue;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;

/// What the protocol adds to a key and its value, in bytes, compared and written: rather too much than too little.
const OVERHEAD_BYTES: usize = 64;

/// What becomes of a key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Change {
    /// It has this value, on this lease.
    Put(KeyValue),
    /// It is gone.
    Delete(Bytes),
}

impl Change {
    /// Which key.
    pub(crate) fn key(&self) -> &Bytes {
        match self {
            Change::Put(row) => &row.key,
            Change::Delete(key) => key,
        }
    }

    /// How large it is in a transaction.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Change::Put(row) => 2 * row.key.len() + row.value.len() + OVERHEAD_BYTES,
            Change::Delete(key) => 2 * key.len() + OVERHEAD_BYTES,
        }
    }

    /// Whether this is how the key is.
    pub(crate) fn is_made(&self, found: Option<&KeyValue>) -> bool {
        match (self, found) {
            (Change::Put(row), Some(found)) => row.value == found.value && row.lease == found.lease,
            (Change::Delete(_), None) => true,
            _ => false,
        }
    }

    fn request(&self) -> Request {
        match self {
            Change::Put(row) => Request::RequestPut(pb::PutRequest {
                key: row.key.clone(),
                value: row.value.clone(),
                lease: row.lease,
                ..Default::default()
            }),
            Change::Delete(key) => delete(key.clone(), Bytes::new()),
        }
    }
}

fn delete(key: Bytes, range_end: Bytes) -> Request {
    Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: false })
}

fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

/// That nothing in a range has changed after a revision. What is not there passes.
fn unchanged_since(key: Bytes, range_end: Bytes, known: i64) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Less.into(),
        target: CompareTarget::Mod.into(),
        key,
        range_end,
        target_union: Some(TargetUnion::ModRevision(known + 1)),
    }
}

/// Changes of different keys at once, if none of those has changed since a revision.
pub(crate) fn transaction(changes: &[Change], known: i64) -> pb::TxnRequest {
    let guard = |change: &Change| unchanged_since(change.key().clone(), Bytes::new(), known);
    pb::TxnRequest {
        compare: changes.iter().map(guard).collect(),
        success: changes.iter().map(|change| op(change.request())).collect(),
        failure: Vec::new(),
    }
}

/// Changes that are too many for a plain transaction: deletes that stand side by side become one, and what is still
/// too much goes into transactions inside the transaction, which have a budget of their own. `there` are the keys
/// that the target has between the first and the last, in order. None if it is too much even so.
pub(crate) fn large_transaction(
    changes: &BTreeMap<Bytes, Change>,
    there: &[Bytes],
    known: i64,
    ops_max: usize,
) -> Option<pb::TxnRequest> {
    let (first, last) = (changes.keys().next()?, changes.keys().next_back()?);
    let mut ops: Vec<_> = runs(changes, there)
        .into_iter()
        .map(|Span { first, end }| op(delete(first, end)))
        .collect();
    let puts = changes.values().filter(|change| matches!(change, Change::Put(_)));
    ops.extend(puts.map(|change| op(change.request())));
    if ops.len() > ops_max {
        // Each of those inside has what the outer one leaves of the budget.
        let inside = ops_max / 2;
        let nested = |ops: &[pb::RequestOp]| {
            op(Request::RequestTxn(pb::TxnRequest { success: ops.to_vec(), ..Default::default() }))
        };
        ops = ops.chunks((ops_max - inside).max(1)).map(nested).collect();
        if ops.len() > inside {
            return None;
        }
    }
    let compare = vec![unchanged_since(first.clone(), next_key(last), known)];
    Some(pb::TxnRequest { compare, success: ops, failure: Vec::new() })
}

/// Ranges that have the keys to be deleted in them, and no other key that is there or will be.
fn runs(changes: &BTreeMap<Bytes, Change>, there: &[Bytes]) -> Vec<Span> {
    let keys: BTreeSet<&Bytes> = there.iter().chain(changes.keys()).collect();
    let mut runs = Vec::new();
    let mut open: Option<(Bytes, Bytes)> = None;
    let mut close = |run: Option<(Bytes, Bytes)>| {
        runs.extend(run.map(|(first, last)| Span { first, end: next_key(&last) }));
    };
    for key in keys {
        match changes.get(key) {
            // What is not there need not be deleted.
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
    fn deletes_side_by_side_are_one_and_spare_what_stays() {
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
    fn what_is_too_much_for_one_level_goes_into_two_and_no_more() {
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
    fn a_transaction_compares_each_key_that_it_writes() {
        let changes: Vec<_> = changes("+a -b").into_values().collect();
        let txn = transaction(&changes, 7);
        assert_eq!((txn.compare.len(), txn.success.len()), (2, 2));
        assert_eq!(txn.compare[1].target_union, Some(TargetUnion::ModRevision(8)));
        assert_eq!(txn.compare[1].result, i32::from(CompareResult::Less));
    }
}
