//! Reads and writes of keys with the etcd protocol.

use tonic::transport::Channel;

use super::{Clients, Miss, pb};
use crate::calls::{Reply, Row};
use crate::wire::{self, Answer};
use pb::compare::{CompareResult, TargetUnion};
use pb::kv_client::KvClient;

/// Maximum number of attempts of an addition when other clients change the counter at the same time.
const ADD_TRIES: usize = 20;

impl Clients {
    pub(super) fn kv(&self) -> KvClient<Channel> {
        // A range over all rows is one message, so the message size must not be limited.
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Reads a row, from the replica of the member if `local`.
    pub(super) async fn range(&self, key: &str, local: bool) -> Result<pb::RangeResponse, Miss> {
        let request = pb::RangeRequest {
            key: key.to_owned().into(),
            serializable: local,
            ..Default::default()
        };
        Ok(self.kv().range(request).await?.into_inner())
    }

    /// Reads all rows with a prefix.
    pub(super) async fn list(&self, prefix: &str) -> Result<pb::RangeResponse, Miss> {
        let request = pb::RangeRequest {
            key: prefix.to_owned().into(),
            range_end: prefix_end(prefix).into(),
            ..Default::default()
        };
        Ok(self.kv().range(request).await?.into_inner())
    }

    /// Reads all rows that are checked.
    pub(super) async fn rows(&self) -> Result<wire::Rows, Miss> {
        let all = pb::RangeRequest {
            key: vec![0].into(),
            range_end: vec![0].into(),
            ..Default::default()
        };
        let answer = self.kv().range(all).await?.into_inner();
        let row = |row: &bowline_proto::mvccpb::KeyValue| wire::Row {
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

    /// Applies all operations if all conditions hold.
    pub(super) async fn txn(
        &self,
        compare: Vec<pb::Compare>,
        success: Vec<pb::RequestOp>,
    ) -> Result<pb::TxnResponse, Miss> {
        let request = pb::TxnRequest { compare, success, failure: Vec::new() };
        Ok(self.kv().txn(request).await?.into_inner())
    }

    /// Makes one write of the crash tests' load: writes the key, and updates the tally of its writer.
    pub(super) async fn write(&self, key: &str) -> Result<Answer, Miss> {
        let puts = vec![put(key, &wire::value_of(key)), put(&wire::tally_of(key), key)];
        let answer = self.txn(Vec::new(), puts).await?;
        Ok(Answer::Done(revision_of(answer.header)))
    }

    /// Adds to a counter as a client of etcd does: reads the counter, and writes it on the condition that it is
    /// unchanged.
    pub(super) async fn add(&self, key: &str, by: i64) -> Result<i64, Miss> {
        for _ in 0..ADD_TRIES {
            let answer = self.range(key, false).await.map_err(Miss::harmless)?;
            let row = answer.kvs.first();
            let (value, at) = row.map_or((String::from("0"), 0), |row| {
                (text(&row.value), row.mod_revision.cast_unsigned())
            });
            let no_number = |_| Miss::Refused(format!("{key} is {value:?}, not a number"));
            let sum = value.parse::<i64>().map_err(no_number)?.wrapping_add(by);
            let puts = vec![put(key, &sum.to_string())];
            if self.txn(vec![modified_at(key, at)], puts).await?.succeeded {
                return Ok(sum);
            }
        }
        Err(Miss::Refused("too many conflicting writes".to_owned()))
    }
}

/// Returns the end of the range of a prefix.
pub(super) fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // In UTF-8 no byte is 255, so the last one can be incremented.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn equal(key: &str, value: TargetUnion) -> pb::Compare {
    pb::Compare::new(key.to_owned(), CompareResult::Equal, value)
}

/// Returns the condition that a row was last changed at `revision`. Revision 0 means that the row does not exist.
pub(super) fn modified_at(key: &str, revision: u64) -> pb::Compare {
    equal(key, TargetUnion::ModRevision(revision.cast_signed()))
}

/// Returns the condition that a row was created at `revision`. Revision 0 means that the row does not exist.
pub(super) fn created_at(key: &str, revision: u64) -> pb::Compare {
    equal(key, TargetUnion::CreateRevision(revision.cast_signed()))
}

/// Returns the condition that a row has this value.
pub(super) fn holds(key: &str, value: &str) -> pb::Compare {
    equal(key, TargetUnion::Value(value.to_owned().into()))
}

/// Returns a write for a transaction.
pub(super) fn put(key: &str, value: &str) -> pb::RequestOp {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    pb::PutRequest { key, value, ..Default::default() }.into()
}

/// Returns a read for a transaction.
pub(super) fn get(key: &str) -> pb::RequestOp {
    pb::RangeRequest { key: key.to_owned().into(), ..Default::default() }.into()
}

/// Returns the reply of a transaction.
pub(super) fn swapped(answer: pb::TxnResponse) -> Reply {
    Reply::Swapped { swapped: answer.succeeded, revision: revision_of(answer.header) }
}

/// Returns the reply of a range.
pub(super) fn rows(answer: pb::RangeResponse) -> Reply {
    let row = |row: &bowline_proto::mvccpb::KeyValue| Row {
        key: text(&row.key),
        value: text(&row.value),
        modified: row.mod_revision.cast_unsigned(),
        version: row.version.cast_unsigned(),
    };
    Reply::Rows { revision: revision_of(answer.header), rows: answer.kvs.iter().map(row).collect() }
}

/// Returns the revision of the store in a response.
pub(super) fn revision_of(header: Option<pb::ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision.cast_unsigned())
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
