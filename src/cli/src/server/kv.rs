//! `etcdserverpb.KV`: ranges, puts, deletes, transactions, compaction.

use std::pin::Pin;
use std::sync::Arc;

use bowline::{ActingClient, KeyRange, PutLease, PutValue, RangeCall, Revision};
use prost::Message;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::aside::{LARGE_BYTES, Large, aside};
use super::identity::Identity;
use super::member::Member;
use super::wire::{
    Reason, bounds, check_delete, check_put, check_range, check_size, check_txn, compare,
    delete_response, is_local, is_long, is_long_delete, is_long_txn, key_range, op, put,
    put_response, range_response, refused, revision, sort, txn_response,
};
use crate::generated::etcdserverpb::kv_server::Kv;
use crate::generated::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};

/// The service.
#[derive(Clone)]
pub(super) struct KvService(pub(super) Arc<Member>);

impl KvService {
    fn range_call(
        &self,
        who: &Identity,
        keys: KeyRange,
        request: &RangeRequest,
    ) -> Result<RangeCall, Status> {
        let order = sort(request);
        let mut call = self.0.acting(who)?.range(keys).sort(order.target, order.order);
        call = call.bounds(bounds(request));
        if let Some(limit) = u64::try_from(request.limit).ok().filter(|limit| *limit > 0) {
            call = call.limit(limit);
        }
        if let Some(revision) = revision(request.revision) {
            call = call.revision(revision);
        }
        if request.keys_only {
            call = call.keys_only();
        }
        if request.count_only {
            call = call.count_only();
        }
        if request.serializable {
            call = call.local();
        }
        Ok(call)
    }
}

/// An answer that may take long to be made; then it may be large, too.
async fn answer_aside<T: Message>(
    is_long: bool,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<Response<T>, Status> {
    let answer = async {
        let answer = answer.await?;
        let is_large = is_long && answer.encoded_len() >= LARGE_BYTES;
        Ok::<_, Status>((answer, is_large))
    };
    let (answer, is_large) = aside(is_long, answer).await?;
    let mut response = Response::new(answer);
    if is_large {
        response.extensions_mut().insert(Large);
    }
    Ok(response)
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let who = Identity::in_request(&request);
        let mut request = request.into_inner();
        check_range(&request)?;
        let is_long = is_long(&request);
        if !request.serializable {
            self.0.not_for_learners()?;
        }
        let (key, end) = (std::mem::take(&mut request.key), std::mem::take(&mut request.range_end));
        let call = self.range_call(&who, key_range(key, end), &request)?;
        let answer = async {
            let reply = call.await.map_err(refused)?;
            let header = self.0.header(reply.revision);
            Ok(RangeResponse { header, ..range_response(reply) })
        };
        answer_aside(is_long, answer).await
    }

    type RangeStreamStream =
        Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range_stream(
        &self,
        _: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        // In the words that clients of 3.7 know from servers of 3.6, before they fall back.
        Err(Status::unimplemented("unknown method RangeStream for service etcdserverpb.KV"))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let who = Identity::in_request(&request);
        let request = request.into_inner();
        check_put(&request)?;
        check_size(&request, self.0.options().request_bytes_max)?;
        let put = put(request);
        let (value, keeps_value) = match put.value {
            PutValue::Set(value) => (value, false),
            PutValue::Keep => (bytes::Bytes::new(), true),
        };
        let mut call = self.0.acting(&who)?.put(put.key, value);
        if keeps_value {
            call = call.keep_value();
        }
        call = match put.lease {
            PutLease::None => call,
            PutLease::Attach(lease) => call.lease(lease),
            PutLease::Keep => call.keep_lease(),
        };
        if put.prev_kv {
            call = call.prev_kv();
        }
        let reply = call.await.map_err(refused)?;
        let header = self.0.header(reply.revision);
        Ok(Response::new(PutResponse { header, ..put_response(reply) }))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let who = Identity::in_request(&request);
        let request = request.into_inner();
        check_delete(&request)?;
        check_size(&request, self.0.options().request_bytes_max)?;
        let is_long = is_long_delete(&request);
        let mut call = self.0.acting(&who)?.delete(key_range(request.key, request.range_end));
        if request.prev_kv {
            call = call.prev_kv();
        }
        let answer = async {
            let reply = call.await.map_err(refused)?;
            let header = self.0.header(reply.revision);
            Ok(DeleteRangeResponse { header, ..delete_response(reply) })
        };
        answer_aside(is_long, answer).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let who = Identity::in_request(&request);
        let request = request.into_inner();
        check_txn(&request, self.0.options().txn_ops_max)?;
        check_size(&request, self.0.options().request_bytes_max)?;
        let (local, is_long) = (is_local(&request), is_long_txn(&request));
        let mut call = self.0.acting(&who)?.txn();
        for condition in request.compare {
            call = call.when(compare(condition)?);
        }
        for then in request.success {
            call = call.then(op(then)?);
        }
        for otherwise in request.failure {
            call = call.or_else(op(otherwise)?);
        }
        if local {
            call = call.local();
        }
        let answer = async {
            let reply = call.commit().await.map_err(refused)?;
            let header = self.0.header(reply.revision);
            Ok(TxnResponse { header, ..txn_response(reply) })
        };
        answer_aside(is_long, answer).await
    }

    /// Physical or not: what is compacted cannot be read any more when the answer comes, and its memory is
    /// given back without anybody having to wait.
    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let who = Identity::in_request(&request);
        let CompactionRequest { revision, .. } = request.into_inner();
        // What is below zero has been compacted in any store; zero has not, in a new one.
        let at = Revision(u64::try_from(revision).map_err(|_| Reason::Compacted)?);
        let compact = |client: ActingClient| async move { client.compact(at).await };
        let reached = self.0.insisting(&who, compact).await?;
        Ok(Response::new(CompactionResponse { header: self.0.header(reached) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::mvccpb::KeyValue;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn only_a_large_answer_is_sent_aside() {
        for (is_long, bytes, expected) in
            [(true, LARGE_BYTES, true), (true, 1000, false), (false, LARGE_BYTES, false)]
        {
            let row = KeyValue { value: vec![0; bytes].into(), ..Default::default() };
            let answer = RangeResponse { kvs: vec![row], ..Default::default() };
            let answer = answer_aside(is_long, async { Ok(answer) }).await.unwrap();
            let is_large = answer.extensions().get::<Large>().is_some();
            assert_eq!(is_large, expected, "{is_long}, {bytes} bytes");
        }
    }
}
