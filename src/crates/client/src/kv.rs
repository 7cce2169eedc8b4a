//! Calls for keys.

use bytes::Bytes;
use tonic::Response;

use crate::connect::{CallKind, Client, Link};
use crate::error::Error;
use crate::into_bytes::IntoBytes;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::KeyValue;
use pb::request_op::Request;

/// Range end that means "up to the last key".
const END_OF_KEYS: Bytes = Bytes::from_static(b"\0");

/// Returns the first key after all keys with the prefix: the end of their range.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let Some(at) = prefix.iter().rposition(|byte| *byte < 0xff) else { return END_OF_KEYS };
    let mut end = prefix[..=at].to_vec();
    end[at] += 1;
    end.into()
}

impl Client {
    /// Returns the row of a key, if the key exists.
    ///
    /// # Errors
    /// Returns an error if no server answers.
    pub async fn get(&self, key: impl IntoBytes) -> Result<Option<KeyValue>, Error> {
        let request = pb::RangeRequest { key: key.into_bytes(), ..Default::default() };
        Ok(self.range(request).await?.kvs.into_iter().next())
    }

    /// Returns the rows of a range.
    ///
    /// # Errors
    /// Returns an error if no server answers, or if the server rejects the request.
    pub async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse, Error> {
        let call = async |link: Link| link.kv().range(request.clone()).await;
        self.call(CallKind::Repeatable, call).await
    }

    /// Puts a key. The response has the revision of the change.
    ///
    /// # Errors
    /// Returns an error if the change failed; [`Error::effect`] states whether it was applied.
    pub async fn put(
        &self,
        key: impl IntoBytes,
        value: impl IntoBytes,
    ) -> Result<pb::PutResponse, Error> {
        let request = pb::PutRequest {
            key: key.into_bytes(),
            value: value.into_bytes(),
            ..Default::default()
        };
        self.call(CallKind::Change, async |link: Link| link.kv().put(request.clone()).await).await
    }

    /// Deletes a key. The response has the number of deleted keys, 0 or 1.
    ///
    /// # Errors
    /// Returns an error if the change failed; [`Error::effect`] states whether it was applied.
    pub async fn delete(&self, key: impl IntoBytes) -> Result<pb::DeleteRangeResponse, Error> {
        let request = pb::DeleteRangeRequest { key: key.into_bytes(), ..Default::default() };
        let call = async |link: Link| link.kv().delete_range(request.clone()).await;
        self.call(CallKind::Change, call).await
    }

    /// Runs a transaction. Without changes, it may be repeated at another server.
    ///
    /// # Errors
    /// Returns an error if the transaction failed; [`Error::effect`] states whether it was applied.
    pub async fn txn(&self, request: pb::TxnRequest) -> Result<pb::TxnResponse, Error> {
        let kind = if is_read(&request) { CallKind::Repeatable } else { CallKind::Change };
        let call = async |link: Link| -> Result<Response<pb::TxnResponse>, tonic::Status> {
            link.kv().txn(request.clone()).await
        };
        self.call(kind, call).await
    }
}

fn is_read(txn: &pb::TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match &op.request {
        Some(Request::RequestRange(_)) | None => true,
        Some(Request::RequestTxn(txn)) => is_read(txn),
        Some(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_is_the_next_key_without_the_prefix() {
        let table: [(&[u8], &[u8]); 4] =
            [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")];
        for (prefix, end) in table {
            assert_eq!(&prefix_end(prefix)[..], end);
        }
    }
}
