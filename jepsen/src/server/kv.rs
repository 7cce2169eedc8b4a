//! Keys and values, in etcd's words.

use tonic::transport::Channel;

use super::{Clients, Miss, pb};
use crate::calls::{Reply, Row};
use crate::wire::{self, Answer};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::kv_client::KvClient;
use pb::request_op::Request;

/// How often an adding is tried anew when another was faster.
const ADD_TRIES: usize = 20;

impl Clients {
    pub(super) fn kv(&self) -> KvClient<Channel> {
        // A range of everything is one answer.
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// A row; from the member's own replica if it is `local`.
    pub(super) async fn range(&self, key: &str, local: bool) -> Result<pb::RangeResponse, Miss> {
        let request = pb::RangeRequest {
            key: key.to_owned().into(),
            serializable: local,
            ..Default::default()
        };
        Ok(self.kv().range(request).await?.into_inner())
    }

    /// All rows whose keys begin so.
    pub(super) async fn list(&self, prefix: &str) -> Result<pb::RangeResponse, Miss> {
        let request = pb::RangeRequest {
            key: prefix.to_owned().into(),
            range_end: prefix_end(prefix).into(),
            ..Default::default()
        };
        Ok(self.kv().range(request).await?.into_inner())
    }

    /// Everything there is, as far as it is judged.
    pub(super) async fn rows(&self) -> Result<wire::Rows, Miss> {
        let all = pb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            ..Default::default()
        };
        let answer = self.kv().range(all).await?.into_inner();
        let row = |row: &crate::generated::mvccpb::KeyValue| wire::Row {
            key: text(&row.key),
            revision: row.mod_revision.cast_unsigned(),
            version: row.version.cast_unsigned(),
            value: wire::hash(&row.value),
        };
        let rows = answer.kvs.iter().map(row).collect();
        Ok(wire::Rows { revision: revision_of(answer.header), rows })
    }

    pub(super) async fn put(&self, key: &str, value: &str, lease: i64) -> Result<u64, Miss> {
        let request = pb::PutRequest {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            lease,
            ..Default::default()
        };
        Ok(revision_of(self.kv().put(request).await?.into_inner().header))
    }

    pub(super) async fn delete(&self, key: &str) -> Result<u64, Miss> {
        let request = pb::DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
        Ok(revision_of(self.kv().delete_range(request).await?.into_inner().header))
    }

    pub(super) async fn compact(&self, revision: u64) -> Result<u64, Miss> {
        let request = pb::CompactionRequest { revision: revision.cast_signed(), physical: false };
        Ok(revision_of(self.kv().compact(request).await?.into_inner().header))
    }

    /// Does all of it, if all conditions hold.
    pub(super) async fn txn(
        &self,
        compare: Vec<pb::Compare>,
        success: Vec<pb::RequestOp>,
    ) -> Result<pb::TxnResponse, Miss> {
        let request = pb::TxnRequest { compare, success, failure: Vec::new() };
        Ok(self.kv().txn(request).await?.into_inner())
    }

    /// A write of the crash tests' load: the key, and its writer's tally.
    pub(super) async fn write(&self, key: &str) -> Result<Answer, Miss> {
        let puts = vec![put(key, &wire::value_of(key)), put(&wire::tally_of(key), key)];
        let answer = self.txn(Vec::new(), puts).await?;
        Ok(Answer::Done(revision_of(answer.header)))
    }

    /// Adds to a counter, as a client of etcd's does: reads it, and writes it if it has not changed.
    pub(super) async fn add(&self, key: &str, by: i64) -> Result<i64, Miss> {
        for _ in 0..ADD_TRIES {
            let answer = self.range(key, false).await.map_err(Miss::harmless)?;
            let row = answer.kvs.first();
            let (value, at) = row.map_or((String::from("0"), 0), |row| {
                (text(&row.value), row.mod_revision.cast_unsigned())
            });
            let no_number = |_| Miss::Refused(format!("{key} holds {value:?}, which is no number"));
            let sum = value.parse::<i64>().map_err(no_number)?.wrapping_add(by);
            let puts = vec![put(key, &sum.to_string())];
            if self.txn(vec![modified_at(key, at)], puts).await?.succeeded {
                return Ok(sum);
            }
        }
        Err(Miss::Refused("others were faster each time".to_owned()))
    }
}

/// What comes right behind all that begins so.
pub(super) fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // In UTF-8 no byte is the highest.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn compare(key: &str, target: CompareTarget, union: TargetUnion) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_owned().into(),
        target_union: Some(union),
        ..Default::default()
    }
}

/// A row was last changed at a revision; 0: it is not there.
pub(super) fn modified_at(key: &str, revision: u64) -> pb::Compare {
    compare(key, CompareTarget::Mod, TargetUnion::ModRevision(revision.cast_signed()))
}

/// A row was made at a revision; 0: it is not there.
pub(super) fn created_at(key: &str, revision: u64) -> pb::Compare {
    compare(key, CompareTarget::Create, TargetUnion::CreateRevision(revision.cast_signed()))
}

/// A row holds this.
pub(super) fn holds(key: &str, value: &str) -> pb::Compare {
    compare(key, CompareTarget::Value, TargetUnion::Value(value.to_owned().into()))
}

/// A write in a transaction.
pub(super) fn put(key: &str, value: &str) -> pb::RequestOp {
    let put = pb::PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Default::default()
    };
    pb::RequestOp { request: Some(Request::RequestPut(put)) }
}

/// A read in a transaction.
pub(super) fn get(key: &str) -> pb::RequestOp {
    let range = pb::RangeRequest { key: key.to_owned().into(), ..Default::default() };
    pb::RequestOp { request: Some(Request::RequestRange(range)) }
}

/// What a transaction came to.
pub(super) fn swapped(answer: pb::TxnResponse) -> Reply {
    Reply::Swapped { swapped: answer.succeeded, revision: revision_of(answer.header) }
}

/// What a range came to.
pub(super) fn rows(answer: pb::RangeResponse) -> Reply {
    let row = |row: &crate::generated::mvccpb::KeyValue| Row {
        key: text(&row.key),
        value: text(&row.value),
        modified: row.mod_revision.cast_unsigned(),
    };
    Reply::Rows { revision: revision_of(answer.header), rows: answer.kvs.iter().map(row).collect() }
}

/// The store's revision that an answer names.
pub(super) fn revision_of(header: Option<pb::ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision.cast_unsigned())
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
