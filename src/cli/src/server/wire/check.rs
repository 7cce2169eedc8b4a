//! What etcd refuses of a request before it looks at any state, in etcd's order: of two things that are wrong
//! with a request, clients hear of the same one.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;

use super::error::Reason;
use crate::generated::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::generated::etcdserverpb::request_op::Request;
use crate::generated::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

/// What etcd adds to a request before it measures it: its own id, and who asks.
const ENVELOPE_BYTES: usize = 24;

/// Whether a request that changes something is small enough.
pub(crate) fn check_size(request: &impl Message, bytes_max: usize) -> Result<(), Reason> {
    let too_large = request.encoded_len() + ENVELOPE_BYTES > bytes_max;
    if too_large { Err(Reason::RequestTooLarge) } else { Ok(()) }
}

/// See the module.
pub(crate) fn check_range(request: &RangeRequest) -> Result<(), Reason> {
    if request.key.is_empty() {
        return Err(Reason::EmptyKey);
    }
    let known = SortOrder::try_from(request.sort_order).is_ok()
        && SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(Reason::InvalidSortOption) }
}

/// See the module.
pub(crate) fn check_put(request: &PutRequest) -> Result<(), Reason> {
    if request.key.is_empty() {
        return Err(Reason::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Reason::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Reason::LeaseProvided);
    }
    Ok(())
}

/// See the module.
pub(crate) fn check_delete(request: &DeleteRangeRequest) -> Result<(), Reason> {
    if request.key.is_empty() { Err(Reason::EmptyKey) } else { Ok(()) }
}

/// See the module.
pub(crate) fn check_txn(request: &TxnRequest, ops_max: usize) -> Result<(), Reason> {
    check_level(request, ops_max)?;
    Written::of(&request.success)?;
    Written::of(&request.failure)?;
    Ok(())
}

/// One level, and what is nested in it: what its operations take of the budget is not there for those.
fn check_level(request: &TxnRequest, budget: usize) -> Result<(), Reason> {
    let TxnRequest { compare, success, failure } = request;
    let count = compare.len().max(success.len()).max(failure.len());
    let left = budget.checked_sub(count).ok_or(Reason::TooManyOps)?;
    if compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Reason::EmptyKey);
    }
    for op in success.iter().chain(failure) {
        match &op.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestDeleteRange(delete)) => check_delete(delete)?,
            Some(Request::RequestTxn(txn)) => check_level(txn, left)?,
            None => return Err(Reason::KeyNotFound),
        }
    }
    Ok(())
}

/// What a branch writes: a key that is put may not be written by anything else.
#[derive(Default)]
struct Written<'a> {
    puts: BTreeSet<&'a Bytes>,
    deletes: Vec<&'a DeleteRangeRequest>,
}

impl<'a> Written<'a> {
    fn of(ops: &'a [RequestOp]) -> Result<Self, Reason> {
        let mut all = Self::default();
        for op in ops {
            if let Some(Request::RequestDeleteRange(delete)) = &op.request {
                all.deletes.push(delete);
            }
        }
        for op in ops {
            let Some(Request::RequestTxn(txn)) = &op.request else { continue };
            let (then, otherwise) = (Self::of(&txn.success)?, Self::of(&txn.failure)?);
            // Only one of the two branches is carried out, so they may write the same keys.
            let puts: BTreeSet<_> = then.puts.union(&otherwise.puts).copied().collect();
            for key in puts {
                all.put(key)?;
            }
            all.deletes.extend(then.deletes);
            all.deletes.extend(otherwise.deletes);
        }
        for op in ops {
            if let Some(Request::RequestPut(put)) = &op.request {
                all.put(&put.key)?;
            }
        }
        Ok(all)
    }

    fn put(&mut self, key: &'a Bytes) -> Result<(), Reason> {
        let deleted = self.deletes.iter().any(|delete| deletes(delete, key));
        if deleted || !self.puts.insert(key) { Err(Reason::DuplicateKey) } else { Ok(()) }
    }
}

fn deletes(delete: &DeleteRangeRequest, key: &Bytes) -> bool {
    match &delete.range_end[..] {
        [] => *key == delete.key,
        [0] => *key >= delete.key,
        end => *key >= delete.key && &key[..] < end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str) -> RequestOp {
        let put = PutRequest { key: key.into(), ..Default::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    fn delete(key: &'static str, end: &'static str) -> RequestOp {
        let delete =
            DeleteRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        let txn = TxnRequest { compare: Vec::new(), success, failure };
        RequestOp { request: Some(Request::RequestTxn(txn)) }
    }

    #[test]
    fn a_key_is_written_once_in_a_branch() {
        let fine = || Ok(());
        let twice = || Err(Reason::DuplicateKey);
        let cases = [
            (vec![put("a"), put("b")], fine()),
            (vec![put("a"), put("a")], twice()),
            (vec![put("a"), delete("a", "")], twice()),
            (vec![delete("a", "c"), put("b")], twice()),
            (vec![delete("a", "c"), put("c")], fine()),
            (vec![delete("a", "\0"), put("z")], twice()),
            (vec![delete("a", "c"), delete("b", "d")], fine()),
            (vec![txn(vec![put("a")], vec![put("a")])], fine()),
            (vec![txn(vec![put("a")], vec![]), put("a")], twice()),
            (vec![txn(vec![put("a")], vec![]), txn(vec![], vec![put("a")])], twice()),
            (vec![txn(vec![delete("a", "")], vec![put("a")])], fine()),
            (vec![txn(vec![delete("a", "")], vec![]), put("a")], twice()),
            (vec![put("a"), txn(vec![put("a"), put("a")], vec![])], twice()),
        ];
        for (success, verdict) in cases {
            let request = TxnRequest { success, ..Default::default() };
            assert_eq!(check_txn(&request, 128), verdict, "{request:?}");
            let TxnRequest { compare, success, failure } = request;
            let turned = TxnRequest { compare, success: failure, failure: success };
            assert_eq!(check_txn(&turned, 128), verdict, "{turned:?}");
        }
    }

    #[test]
    fn nested_operations_share_a_budget_with_those_around_them() {
        let many = |count| vec![delete("k", ""); count];
        let nested =
            |count| TxnRequest { success: vec![txn(many(count), vec![])], ..Default::default() };
        assert_eq!(check_txn(&nested(127), 128), Ok(()));
        assert_eq!(check_txn(&nested(128), 128), Err(Reason::TooManyOps));
        let wide = TxnRequest { success: many(128), failure: many(128), ..Default::default() };
        assert_eq!(check_txn(&wide, 128), Ok(()));
    }

    #[test]
    fn what_is_missing_is_named_as_etcd_names_it() {
        let nothing = TxnRequest { success: vec![RequestOp::default()], ..Default::default() };
        assert_eq!(check_txn(&nothing, 128), Err(Reason::KeyNotFound));
        let nameless = TxnRequest { compare: vec![Default::default()], ..nothing };
        assert_eq!(check_txn(&nameless, 128), Err(Reason::EmptyKey));
        let sorted = RangeRequest { key: "k".into(), sort_order: 9, ..Default::default() };
        assert_eq!(check_range(&sorted), Err(Reason::InvalidSortOption));
        let keeps = PutRequest {
            key: "k".into(),
            value: "v".into(),
            ignore_value: true,
            ..Default::default()
        };
        assert_eq!(check_put(&keeps), Err(Reason::ValueProvided));
    }
}
