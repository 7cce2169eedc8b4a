//! The checks that etcd makes before it reads any state. These checks run in etcd's order, so that a request with
//! several errors gets the same error as from etcd. The check for duplicate keys is the exception: the library makes
//! it after these checks.

use prost::Message;
use tonic::Status;

use crate::wire::error::Reason;
use bowline_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use bowline_proto::etcdserverpb::request_op::Request;
use bowline_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest};

/// Bytes that etcd adds to a request before it measures it: an id and the user.
const ENVELOPE_BYTES: usize = 24;

/// Checks the size of a change.
pub(crate) fn check_size(request: &impl Message, bytes_max: usize) -> Result<(), Reason> {
    let too_large = request.encoded_len() + ENVELOPE_BYTES > bytes_max;
    if too_large { Err(Reason::RequestTooLarge) } else { Ok(()) }
}

pub(crate) fn check_range(request: &RangeRequest) -> Result<(), Reason> {
    if request.key.is_empty() {
        return Err(Reason::EmptyKey);
    }
    let known = SortOrder::try_from(request.sort_order).is_ok()
        && SortTarget::try_from(request.sort_target).is_ok();
    if known { Ok(()) } else { Err(Reason::InvalidSortOption) }
}

/// Checks a range that is sent in chunks, which have no other order than that of the keys.
pub(crate) fn check_range_stream(request: &RangeRequest) -> Result<(), Status> {
    check_range(request)?;
    if request.sort_target() != SortTarget::Key || request.sort_order() == SortOrder::Descend {
        let words = "RangeStream does not support custom sort orders";
        return Err(Status::unimplemented(words));
    }
    let RangeRequest { min_mod_revision, max_mod_revision, .. } = request;
    let RangeRequest { min_create_revision, max_create_revision, .. } = request;
    let filters = [min_mod_revision, max_mod_revision, min_create_revision, max_create_revision];
    match filters.iter().all(|revision| **revision == 0) {
        true => Ok(()),
        false => Err(Status::unimplemented("RangeStream does not support revision filters")),
    }
}

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

pub(crate) fn check_delete(request: &DeleteRangeRequest) -> Result<(), Reason> {
    if request.key.is_empty() { Err(Reason::EmptyKey) } else { Ok(()) }
}

/// Checks one level of a transaction and its nested transactions. The operations of a level reduce the budget of the
/// levels below.
pub(crate) fn check_txn(request: &TxnRequest, budget: usize) -> Result<(), Reason> {
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
            Some(Request::RequestTxn(txn)) => check_txn(txn, left)?,
            None => return Err(Reason::KeyNotFound),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_proto::etcdserverpb::RequestOp;

    fn delete(key: &'static str, end: &'static str) -> RequestOp {
        let delete =
            DeleteRangeRequest { key: key.into(), range_end: end.into(), ..Default::default() };
        delete.into()
    }

    fn txn(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        let txn = TxnRequest { compare: Vec::new(), success, failure };
        txn.into()
    }

    #[test]
    fn nested_operations_share_the_budget_of_their_parent() {
        let many = |count| vec![delete("k", ""); count];
        let nested =
            |count| TxnRequest { success: vec![txn(many(count), vec![])], ..Default::default() };
        assert_eq!(check_txn(&nested(127), 128), Ok(()));
        assert_eq!(check_txn(&nested(128), 128), Err(Reason::TooManyOps));
        let wide = TxnRequest { success: many(128), failure: many(128), ..Default::default() };
        assert_eq!(check_txn(&wide, 128), Ok(()));
    }

    #[test]
    fn missing_fields_are_named_as_in_etcd() {
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
