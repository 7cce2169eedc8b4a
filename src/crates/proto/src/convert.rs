//! Makes messages that consist of one of several kinds of requests or values.

use prost::bytes::Bytes;

use crate::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcdserverpb::request_op::Request;
use crate::etcdserverpb::watch_request::RequestUnion;
use crate::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
};

macro_rules! from_requests {
    ($message:ident.$field:ident: $($kind:ident::$variant:ident($request:ident)),+ $(,)?) => {$(
        impl From<$request> for $message {
            fn from(request: $request) -> Self {
                Self { $field: Some($kind::$variant(request)) }
            }
        }
    )+};
}

from_requests!(
    RequestOp.request:
    Request::RequestRange(RangeRequest),
    Request::RequestPut(PutRequest),
    Request::RequestDeleteRange(DeleteRangeRequest),
    Request::RequestTxn(TxnRequest),
);

from_requests!(
    WatchRequest.request_union:
    RequestUnion::CreateRequest(WatchCreateRequest),
    RequestUnion::CancelRequest(WatchCancelRequest),
    RequestUnion::ProgressRequest(WatchProgressRequest),
);

impl Compare {
    /// Returns a condition on a key. The kind of the value determines which attribute of the key is compared with it.
    pub fn new(key: impl Into<Bytes>, result: CompareResult, value: TargetUnion) -> Self {
        let target = match value {
            TargetUnion::Version(_) => CompareTarget::Version,
            TargetUnion::CreateRevision(_) => CompareTarget::Create,
            TargetUnion::ModRevision(_) => CompareTarget::Mod,
            TargetUnion::Value(_) => CompareTarget::Value,
            TargetUnion::Lease(_) => CompareTarget::Lease,
        };
        Self {
            result: result.into(),
            target: target.into(),
            key: key.into(),
            range_end: Bytes::new(),
            target_union: Some(value),
        }
    }
}
