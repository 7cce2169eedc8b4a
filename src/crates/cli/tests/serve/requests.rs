//! Requests that many tests send.

use bowline_proto::etcdserverpb as pb;

/// Puts a key with the value `v`.
pub(crate) fn put(key: &str) -> pb::PutRequest {
    pb::PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() }
}

pub(crate) fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

/// Gets all keys.
pub(crate) fn all() -> pb::RangeRequest {
    pb::RangeRequest { range_end: "\0".into(), ..get("\0") }
}

pub(crate) fn delete(key: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() }
}
