//! `etcdserverpb.KV`: ranges, puts, deletes, transactions, compaction.

use std::pin::Pin;
use std::sync::Arc;

use bowline::{
    KeyRange, Revision, TxnCall,
    auth::UserClient,
    kv::{PutLease, PutValue, RangeCall},
};
use prost::Message;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::calls::own_task;
use crate::identity::Identity;
use crate::leader::{Leaderless, needs_leader};
use crate::member::Member;
use crate::middleware::call_metrics::ReadonlyMark;
use crate::middleware::connection::Connection;
use crate::middleware::cpu_permits::{CpuPermits, LARGE_BYTES, LargeResponse};
use crate::middleware::response_budget::{BudgetExhausted, Reservation, ResponseBudget};
use crate::services::range_stream::{ChunkReader, ChunkStream};
use crate::wire::{
    Reason, bounds, check_delete, check_put, check_range, check_range_stream, check_size,
    check_txn, compare, delete_response, is_local, is_long_delete, is_long_txn, key_range,
    only_reads, op, put, put_response, range_response, refused, revision, sort, txn_response,
};
use bowline_proto::etcdserverpb::kv_server::Kv;
use bowline_proto::etcdserverpb::range_request::SortTarget;
use bowline_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};

/// Number of keys whose scan takes no noticeable time.
const FEW_KEYS: usize = 1000;

/// Number of keys above which a range gets a task of its own, so that the ranges of one connection can use all cores.
const SHARED_KEYS_MAX: usize = 50;

#[derive(Clone)]
pub(crate) struct KvService {
    pub(crate) member: Arc<Member>,
    pub(crate) budget: ResponseBudget,
    pub(crate) leaderless: Arc<Leaderless>,
}

impl KvService {
    fn range_call(
        &self,
        who: &Identity,
        keys: KeyRange,
        request: &RangeRequest,
    ) -> Result<RangeCall, Status> {
        let order = sort(request);
        let mut call = self.member.client_of(who)?.range(keys).sort(order.target, order.order);
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

    /// Rejects linearizable ranges at a learner that does not serve them.
    fn check_role(&self, request: &RangeRequest) -> Result<(), Status> {
        if request.serializable { Ok(()) } else { self.member.may_confirm_reads() }
    }

    /// Estimates how many keys a range scans. Counts no further than to the number that makes the range long.
    fn scanned(&self, keys: &KeyRange) -> usize {
        self.member.client().estimated_len(keys.clone(), FEW_KEYS + 1)
    }

    /// Returns the time until which a response may wait for room in the response budget.
    fn until(&self) -> Instant {
        Instant::now() + self.member.settings().request_timeout()
    }

    /// Runs a read. If there is no room for its response, waits for room and repeats the read.
    async fn read<T: Message, F: Future<Output = Result<T, Status>>>(
        &self,
        (permits, is_long): (&CpuPermits, bool),
        ask: impl Fn() -> Result<F, Status>,
    ) -> Result<Response<T>, Status> {
        let (until, mut kept) = (self.until(), None);
        loop {
            let (answer, bytes) = permits.run(is_long, sized(ask()?)).await?;
            match self.budget.keep(bytes, kept) {
                Ok(reservation) => return Ok(response(answer, bytes, reservation)),
                Err(BudgetExhausted) => drop(answer),
            }
            kept = Some(self.budget.wait(bytes, until).await?);
        }
    }

    /// Runs a change, which cannot be repeated. If there is no room for its response, returns only that it was applied.
    async fn write<T: Message>(
        &self,
        (permits, is_long): (&CpuPermits, bool),
        ask: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        if is_long {
            self.budget.wait_for_some(self.until()).await?;
        }
        let (answer, bytes) = permits.run(is_long, sized(ask)).await?;
        match self.budget.keep(bytes, None) {
            Ok(reservation) => Ok(response(answer, bytes, reservation)),
            // The change was applied, or may have been. The status code must not cause the client to retry.
            Err(BudgetExhausted) => Err(Status::unknown(
                "bowline: applied, but the reply was dropped: too many unread responses",
            )),
        }
    }

    fn txn_call(&self, who: &Identity, request: TxnRequest) -> Result<TxnCall, Status> {
        let local = is_local(&request);
        let mut call = self.member.client_of(who)?.txn();
        for condition in request.compare {
            call = call.when(compare(condition)?);
        }
        for then in request.success {
            call = call.then(op(then)?);
        }
        for otherwise in request.failure {
            call = call.or_else(op(otherwise)?);
        }
        Ok(if local { call.local() } else { call })
    }
}

/// Returns whether a range takes long to read, which depends on the keys it scans rather than on the keys it returns.
fn is_long(scanned: usize, request: &RangeRequest) -> bool {
    let by_value = request.sort_target() == SortTarget::Value && !request.range_end.is_empty();
    by_value || scanned > FEW_KEYS
}

/// Returns a response and the size of its message.
async fn sized<T: Message>(
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<(T, usize), Status> {
    let answer = answer.await?;
    let bytes = answer.encoded_len();
    Ok((answer, bytes))
}

fn response<T>(answer: T, bytes: usize, reservation: Option<Reservation>) -> Response<T> {
    let mut response = Response::new(answer);
    if bytes >= LARGE_BYTES {
        response.extensions_mut().insert(LargeResponse);
    }
    if let Some(reservation) = reservation {
        response.extensions_mut().insert(reservation);
    }
    response
}

#[tonic::async_trait]
impl Kv for KvService {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let (who, permits) = (Identity::in_request(&request), Connection::permits_of(&request));
        let request = request.into_inner();
        check_range(&request)?;
        self.check_role(&request)?;
        let keys = key_range(request.key.clone(), request.range_end.clone());
        let scanned = self.scanned(&keys);
        let is_long = is_long(scanned, &request);
        if scanned > SHARED_KEYS_MAX {
            own_task().await;
        }
        self.read((&permits, is_long), || {
            let call = self.range_call(&who, keys.clone(), &request)?;
            Ok::<_, Status>(async move {
                let reply = call.await.map_err(refused)?;
                let header = self.member.header(reply.revision);
                Ok(RangeResponse { header, ..range_response(reply) })
            })
        })
        .await
    }

    type RangeStreamStream =
        Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let (who, permits) = (Identity::in_request(&request), Connection::permits_of(&request));
        let leaderless = needs_leader(&request).then(|| Arc::clone(&self.leaderless));
        let request = request.into_inner();
        check_range_stream(&request)?;
        self.check_role(&request)?;
        let who = self.member.current(&who)?;
        let is_long = request.count_only && {
            let keys = key_range(request.key.clone(), request.range_end.clone());
            is_long(self.scanned(&keys), &request)
        };
        let reader = ChunkReader::new(&self.member, &self.budget, who, request);
        let chunks = ChunkStream::new(permits.run(is_long, reader.read()).await?, leaderless);
        let (has_more, reservation) = (chunks.has_more(), chunks.reservation());
        let mut response = Response::new(Box::pin(chunks) as Self::RangeStreamStream);
        response.extensions_mut().insert(reservation);
        if has_more {
            // The other chunks are read while the body is encoded.
            response.extensions_mut().insert(LargeResponse);
        }
        Ok(response)
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let (who, permits) = (Identity::in_request(&request), Connection::permits_of(&request));
        let request = request.into_inner();
        check_put(&request)?;
        check_size(&request, self.member.settings().request_bytes_max)?;
        let put = put(request);
        let (value, keeps_value) = match put.value {
            PutValue::Set(value) => (value, false),
            PutValue::Keep => (bytes::Bytes::new(), true),
        };
        let mut call = self.member.client_of(&who)?.put(put.key, value);
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
        let answer = async {
            let reply = call.await.map_err(refused)?;
            let header = self.member.header(reply.revision);
            Ok(PutResponse { header, ..put_response(reply) })
        };
        self.write((&permits, false), answer).await
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (who, permits) = (Identity::in_request(&request), Connection::permits_of(&request));
        let request = request.into_inner();
        check_delete(&request)?;
        check_size(&request, self.member.settings().request_bytes_max)?;
        let is_long = is_long_delete(&request);
        let mut call =
            self.member.client_of(&who)?.delete(key_range(request.key, request.range_end));
        if request.prev_kv {
            call = call.prev_kv();
        }
        let answer = async {
            let reply = call.await.map_err(refused)?;
            let header = self.member.header(reply.revision);
            Ok(DeleteRangeResponse { header, ..delete_response(reply) })
        };
        self.write((&permits, is_long), answer).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (who, permits) = (Identity::in_request(&request), Connection::permits_of(&request));
        let mark = ReadonlyMark::in_request(&request);
        let request = request.into_inner();
        let only_reads = only_reads(&request);
        if only_reads {
            mark.set();
        }
        check_txn(&request, self.member.settings().txn_ops_max)?;
        check_size(&request, self.member.settings().request_bytes_max)?;
        let is_long = is_long_txn(&request);
        let answer = |request| {
            let call = self.txn_call(&who, request)?;
            Ok::<_, Status>(async move {
                let reply = call.commit().await.map_err(refused)?;
                let header = self.member.header(reply.revision);
                Ok(TxnResponse { header, ..txn_response(reply) })
            })
        };
        match only_reads {
            true => self.read((&permits, is_long), || answer(request.clone())).await,
            false => self.write((&permits, is_long), answer(request)?).await,
        }
    }

    /// Compacts, physical or not. When the response arrives, the compacted revisions are no longer readable; memory is
    /// freed in the background.
    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let who = Identity::in_request(&request);
        let CompactionRequest { revision, .. } = request.into_inner();
        // A negative revision counts as compacted in any store. Revision 0 does not count as compacted in a new store.
        let at = Revision(u64::try_from(revision).map_err(|_| Reason::Compacted)?);
        let compact = |client: UserClient| async move { client.compact(at).await };
        let reached = self.member.retry_while_outdated(&who, compact).await?;
        Ok(Response::new(CompactionResponse { header: self.member.header(reached) }))
    }
}

#[cfg(test)]
mod tests {
    use bowline::{Config, Node, Op};

    use super::*;
    use crate::settings::Settings;
    use crate::token::Tokens;
    use crate::version::EtcdVersion;
    use bowline_proto::mvccpb::KeyValue;

    #[test]
    fn only_large_responses_take_a_cpu_permit() {
        for (bytes, expected) in [(LARGE_BYTES, true), (1000, false)] {
            let row = KeyValue { value: vec![0; bytes].into(), ..Default::default() };
            let answer = RangeResponse { kvs: vec![row], ..Default::default() };
            let bytes = answer.encoded_len();
            let is_large =
                response(answer, bytes, None).extensions().get::<LargeResponse>().is_some();
            assert_eq!(is_large, expected, "{bytes} bytes");
        }
    }

    /// A limit restricts the result, not the scan.
    #[tokio::test]
    async fn scan_of_many_keys_is_long_despite_a_small_limit() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).await.unwrap();
        for some in 0..11 {
            let puts = (0..100).map(|key| Op::put(format!("k{some:02}{key:02}"), ""));
            let txn = puts.fold(node.client().txn(), |txn, put| txn.then(put));
            txn.commit().await.unwrap();
        }
        let tokens = Tokens::simple(std::time::Duration::from_secs(1));
        let node = Arc::new(node);
        let member = Member::new(node, Settings::default(), tokens, EtcdVersion::default());
        let leaderless = Leaderless::of(&member);
        let service = KvService { member, budget: ResponseBudget::new(), leaderless };
        let range = |key: &'static str, range_end: &'static str, limit| RangeRequest {
            key: key.into(),
            range_end: range_end.into(),
            limit,
            ..Default::default()
        };
        let by_value = RangeRequest { sort_target: SortTarget::Value.into(), ..range("k", "l", 1) };
        for (request, expected) in [
            (range("k", "l", 0), true),
            (range("k", "l", 1), true),
            (RangeRequest { count_only: true, ..range("k", "\0", 1) }, true),
            (range("k03", "k04", 0), false),
            (range("k0000", "", 0), false),
            (by_value, true),
        ] {
            let keys = key_range(request.key.clone(), request.range_end.clone());
            assert_eq!(is_long(service.scanned(&keys), &request), expected, "{request:?}");
        }
        service.member.node().shutdown().await;
    }
}
