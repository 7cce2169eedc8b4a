//! Converts the library's results to etcd's protocol.

use bowline::{
    Event, EventKind, KeyValue, PutReply, RangeReply, Revision, TxnReply, TxnResult,
    kv::DeleteReply,
};

use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb;
use pb::response_op::Response;

pub(crate) fn key_value(row: KeyValue) -> mvccpb::KeyValue {
    mvccpb::KeyValue {
        key: row.key,
        create_revision: row.create_revision.get() as i64,
        mod_revision: row.mod_revision.get() as i64,
        version: row.version as i64,
        value: row.value,
        lease: row.lease.map_or(0, |lease| lease.get() as i64),
    }
}

/// Converts a change. A delete has only the key and the revision.
pub(crate) fn event(event: Event) -> mvccpb::Event {
    let prev_kv = event.prev.map(key_value);
    let (kind, kv) = match event.kind {
        EventKind::Put => (mvccpb::event::EventType::Put, key_value(event.kv)),
        EventKind::Delete => {
            let mod_revision = event.kv.mod_revision.get() as i64;
            let kv = mvccpb::KeyValue { key: event.kv.key, mod_revision, ..Default::default() };
            (mvccpb::event::EventType::Delete, kv)
        }
    };
    mvccpb::Event { r#type: kind.into(), kv: Some(kv), prev_kv }
}

/// Converts the rows of a range. The caller adds the header.
pub(crate) fn range_response(reply: RangeReply) -> pb::RangeResponse {
    pb::RangeResponse {
        header: None,
        kvs: reply.kvs.into_iter().map(key_value).collect(),
        more: reply.more,
        count: reply.count as i64,
    }
}

/// Converts the reply to a put. The caller adds the header.
pub(crate) fn put_response(reply: PutReply) -> pb::PutResponse {
    pb::PutResponse { header: None, prev_kv: reply.prev.map(key_value) }
}

/// Converts the reply to a delete. The caller adds the header.
pub(crate) fn delete_response(reply: DeleteReply) -> pb::DeleteRangeResponse {
    pb::DeleteRangeResponse {
        header: None,
        deleted: reply.deleted as i64,
        prev_kvs: reply.prev_kvs.into_iter().map(key_value).collect(),
    }
}

/// Converts the reply to a transaction. The caller adds the header. Headers of inner responses contain only the
/// revision, and those of nested transactions are empty.
pub(crate) fn txn_response(reply: TxnReply) -> pb::TxnResponse {
    pb::TxnResponse {
        header: None,
        succeeded: reply.succeeded,
        responses: reply.results.into_iter().map(op_response).collect(),
    }
}

fn op_response(result: TxnResult) -> pb::ResponseOp {
    let response = match result {
        TxnResult::Range(reply) => {
            let header = inner(reply.revision);
            Response::ResponseRange(pb::RangeResponse { header, ..range_response(reply) })
        }
        TxnResult::Put(reply) => {
            let header = inner(reply.revision);
            Response::ResponsePut(pb::PutResponse { header, ..put_response(reply) })
        }
        TxnResult::Delete(reply) => {
            let header = inner(reply.revision);
            Response::ResponseDeleteRange(pb::DeleteRangeResponse {
                header,
                ..delete_response(reply)
            })
        }
        TxnResult::Txn(reply) => {
            let header = Some(pb::ResponseHeader::default());
            Response::ResponseTxn(pb::TxnResponse { header, ..txn_response(reply) })
        }
    };
    pb::ResponseOp { response: Some(response) }
}

fn inner(revision: Revision) -> Option<pb::ResponseHeader> {
    Some(pb::ResponseHeader { revision: revision.get() as i64, ..Default::default() })
}
