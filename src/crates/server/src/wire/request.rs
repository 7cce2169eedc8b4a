//! Converts requests, which have been checked already, to the library's types.

use bowline::{
    Compare, KeyRange, LeaseId, Op, Put, Revision, SortOrder, SortTarget,
    kv::{
        CompareBuilder, CompareWith, Delete, PutLease, PutValue, Range, RangeEnd, RevisionBounds,
        Sort, Txn,
    },
};
use bytes::Bytes;
use tonic::Status;

use bowline_proto::etcdserverpb as pb;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::request_op::Request;

/// Returns the range of a single key, of all keys from one on, or of a range with an end. An empty key stays empty: as
/// in etcd, it is rejected and does not mean the first key.
pub(crate) fn key_range(key: Bytes, range_end: Bytes) -> KeyRange {
    let end = match &range_end[..] {
        [] => RangeEnd::Single,
        [0] => RangeEnd::Unbounded,
        _ => RangeEnd::Before(range_end),
    };
    KeyRange::from_parts(key, end)
}

/// Converts a lease id. The id 0 means no lease, and negative ids are valid.
pub(crate) fn lease_id(id: i64) -> Option<LeaseId> {
    LeaseId::new(id as u64)
}

/// Converts a revision. 0 and negative numbers mean the newest revision.
pub(crate) fn revision(revision: i64) -> Option<Revision> {
    u64::try_from(revision).ok().filter(|revision| *revision > 0).map(Revision)
}

/// Converts the sort order. If only the field to sort by is given, the order is ascending.
pub(crate) fn sort(request: &pb::RangeRequest) -> Sort {
    use pb::range_request::{SortOrder as Order, SortTarget as Target};
    let target = match request.sort_target() {
        Target::Key => SortTarget::Key,
        Target::Version => SortTarget::Version,
        Target::Create => SortTarget::Create,
        Target::Mod => SortTarget::Mod,
        Target::Value => SortTarget::Value,
    };
    let order = match request.sort_order() {
        Order::None | Order::Ascend => SortOrder::Ascend,
        Order::Descend => SortOrder::Descend,
    };
    Sort { target, order }
}

/// Converts the bounds of revisions. Because revisions are positive, a maximum of 0 or less selects no row, and a
/// minimum of 0 or less selects every row.
pub(crate) fn bounds(request: &pb::RangeRequest) -> RevisionBounds {
    let most = |revision: i64| (revision != 0).then(|| Revision(revision.max(0).unsigned_abs()));
    RevisionBounds {
        mod_min: revision(request.min_mod_revision),
        mod_max: most(request.max_mod_revision),
        create_min: revision(request.min_create_revision),
        create_max: most(request.max_create_revision),
    }
}

fn range(request: pb::RangeRequest) -> Range {
    let (sort, bounds) = (sort(&request), bounds(&request));
    Range {
        revision: revision(request.revision),
        limit: u64::try_from(request.limit).ok().filter(|limit| *limit > 0),
        sort,
        keys_only: request.keys_only,
        count_only: request.count_only,
        bounds,
        ..Range::new(key_range(request.key, request.range_end))
    }
}

pub(crate) fn put(request: pb::PutRequest) -> Put {
    let lease = match lease_id(request.lease) {
        _ if request.ignore_lease => PutLease::Keep,
        Some(lease) => PutLease::Attach(lease),
        None => PutLease::None,
    };
    let value = if request.ignore_value { PutValue::Keep } else { PutValue::Set(request.value) };
    Put { key: request.key, value, lease, prev_kv: request.prev_kv }
}

/// Converts an operation of a transaction.
pub(crate) fn op(op: pb::RequestOp) -> Result<Op, Status> {
    Ok(match op.request {
        Some(Request::RequestRange(request)) => Op::Range(range(request)),
        Some(Request::RequestPut(request)) => Op::Put(put(request)),
        Some(Request::RequestDeleteRange(request)) => Op::Delete(Delete {
            prev_kv: request.prev_kv,
            ..Delete::new(key_range(request.key, request.range_end))
        }),
        Some(Request::RequestTxn(request)) => Op::Txn(txn(request)?),
        None => return Err(crate::wire::Reason::KeyNotFound.into()),
    })
}

fn txn(request: pb::TxnRequest) -> Result<Txn, Status> {
    let ops = |ops: Vec<pb::RequestOp>| ops.into_iter().map(op).collect::<Result<_, _>>();
    Ok(Txn {
        compares: request.compare.into_iter().map(compare).collect::<Result<_, _>>()?,
        success: ops(request.success)?,
        failure: ops(request.failure)?,
    })
}

/// Returns whether a deletion may affect many keys, which are counted at admission.
pub(crate) fn is_long_delete(request: &pb::DeleteRangeRequest) -> bool {
    !request.range_end.is_empty()
}

/// Returns whether a transaction may scan many keys in a range, compare or deletion.
pub(crate) fn is_long_txn(request: &pb::TxnRequest) -> bool {
    let is_compared = |compare: &pb::Compare| !compare.range_end.is_empty();
    let mut ops = request.success.iter().chain(&request.failure);
    request.compare.iter().any(is_compared)
        || ops.any(|op| match &op.request {
            Some(Request::RequestRange(range)) => !range.range_end.is_empty(),
            Some(Request::RequestDeleteRange(delete)) => is_long_delete(delete),
            Some(Request::RequestTxn(txn)) => is_long_txn(txn),
            Some(Request::RequestPut(_)) | None => false,
        })
}

/// Returns whether a transaction changes nothing, whichever branch it takes.
pub(crate) fn only_reads(request: &pb::TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure);
    ops.all(|op| match &op.request {
        Some(Request::RequestTxn(txn)) => only_reads(txn),
        other => matches!(other, Some(Request::RequestRange(_))),
    })
}

/// Returns whether a transaction is a local read: it contains at least one read, only reads, and all of them are
/// serializable.
pub(crate) fn is_local(request: &pb::TxnRequest) -> bool {
    let mut ops = request.success.iter().chain(&request.failure).peekable();
    ops.peek().is_some()
        && ops.all(
            |op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable),
        )
}

/// Converts a condition.
///
/// # Errors
/// Fails if the target or the operator is unknown.
pub(crate) fn compare(request: pb::Compare) -> Result<Compare, Status> {
    let unknown = |what| Status::invalid_argument(format!("bowline: unknown {what} in a compare"));
    let result = CompareResult::try_from(request.result).map_err(|_| unknown("result"))?;
    let target = CompareTarget::try_from(request.target).map_err(|_| unknown("target"))?;
    let range = key_range(request.key, request.range_end);
    // As in etcd, a missing value or one for another target counts as 0 or empty.
    let union = request.target_union;
    Ok(match target {
        CompareTarget::Version => {
            let with = match union {
                Some(TargetUnion::Version(with)) => with,
                _ => 0,
            };
            numeric(range, Compare::version, |with| with, result, with)
        }
        CompareTarget::Create => {
            let with = match union {
                Some(TargetUnion::CreateRevision(with)) => with,
                _ => 0,
            };
            numeric(range, Compare::create_revision, Revision, result, with)
        }
        CompareTarget::Mod => {
            let with = match union {
                Some(TargetUnion::ModRevision(with)) => with,
                _ => 0,
            };
            numeric(range, Compare::mod_revision, Revision, result, with)
        }
        CompareTarget::Value => {
            let with = match union {
                Some(TargetUnion::Value(with)) => with,
                _ => Bytes::new(),
            };
            finish(Compare::value(range), result, with)
        }
        CompareTarget::Lease => {
            let with = match union {
                Some(TargetUnion::Lease(with)) => with,
                _ => 0,
            };
            finish(Compare::lease(range), result, with as u64)
        }
    })
}

fn finish<T: CompareWith<T>>(
    builder: CompareBuilder<T>,
    result: CompareResult,
    with: T,
) -> Compare {
    match result {
        CompareResult::Equal => builder.eq(with),
        CompareResult::NotEqual => builder.ne(with),
        CompareResult::Greater => builder.gt(with),
        CompareResult::Less => builder.lt(with),
    }
}

/// Compares with a number that may be negative. All numbers of rows are greater than a negative number.
fn numeric<T: CompareWith<T>>(
    range: KeyRange,
    builder: impl FnOnce(KeyRange) -> CompareBuilder<T>,
    number: impl FnOnce(u64) -> T,
    result: CompareResult,
    with: i64,
) -> Compare {
    match (u64::try_from(with), result) {
        (Ok(with), result) => finish(builder(range), result, number(with)),
        // The number is negative. `NotEqual` and `Greater` are then always true, and `Equal` and `Less` never.
        (Err(_), CompareResult::NotEqual | CompareResult::Greater) => {
            builder(range).ne(number(u64::MAX))
        }
        (Err(_), CompareResult::Equal | CompareResult::Less) => builder(range).lt(number(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_key_stays_empty_with_any_range_end() {
        for range_end in ["", "\0", "z"] {
            assert!(key_range(Bytes::new(), range_end.into()).start().is_empty());
        }
        assert_eq!(key_range("a".into(), "\0".into()), KeyRange::starting_at("a"));
        assert_eq!(key_range("a".into(), "c".into()), KeyRange::between("a", "c"));
        assert_eq!(key_range("a".into(), Bytes::new()), KeyRange::key("a"));
    }

    fn is_long_anywhere(within: pb::TxnRequest, expected: bool) {
        assert_eq!(is_long_txn(&within), expected, "{within:?}");
        let op = pb::RequestOp { request: Some(Request::RequestTxn(within)) };
        let twice = pb::TxnRequest { success: vec![op], ..Default::default() };
        assert_eq!(is_long_txn(&twice), expected);
    }

    #[test]
    fn compares_and_deletes_are_costed_like_reads() {
        for (range_end, expected) in [("", false), ("b", true)] {
            let compare =
                pb::Compare { key: "a".into(), range_end: range_end.into(), ..Default::default() };
            let compares = pb::TxnRequest { compare: vec![compare], ..Default::default() };
            is_long_anywhere(compares, expected);
            let delete = pb::DeleteRangeRequest {
                key: "a".into(),
                range_end: range_end.into(),
                ..Default::default()
            };
            assert_eq!(is_long_delete(&delete), expected);
            // The limit has no influence.
            let range = pb::RangeRequest {
                key: "a".into(),
                range_end: range_end.into(),
                limit: 1,
                ..Default::default()
            };
            for request in [Request::RequestDeleteRange(delete), Request::RequestRange(range)] {
                let reads = matches!(request, Request::RequestRange(_));
                let op = pb::RequestOp { request: Some(request) };
                let within = pb::TxnRequest { success: vec![op], ..Default::default() };
                assert_eq!(only_reads(&within), reads);
                is_long_anywhere(within, expected);
            }
        }
        let put = Some(Request::RequestPut(pb::PutRequest::default()));
        let puts = vec![pb::RequestOp { request: put }, pb::RequestOp::default()];
        is_long_anywhere(pb::TxnRequest { success: puts, ..Default::default() }, false);
    }
}
