//! `v3lockpb.Lock`: locks on behalf of clients, in the queue layout of etcd's concurrency package.

use std::sync::Arc;

use bowline::KeyRange;
use bytes::Bytes;
use tonic::{Request, Response, Status};

use crate::identity::Identity;
use crate::services::lock_queue::{LockQueues, enqueue};
use crate::wire::{Reason, refused};
use bowline_proto::v3lockpb::lock_server::Lock;
use bowline_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};

#[derive(Clone)]
pub(crate) struct LockService(pub(crate) Arc<LockQueues>);

#[tonic::async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let who = Identity::in_request(&request);
        let LockRequest { name, lease } = request.into_inner();
        let gone = "mutex: session is expired";
        let entry = enqueue(&self.0, who, name, lease, Bytes::new(), gone).await?;
        let header = self.0.member.header(entry.revision);
        Ok(Response::new(LockResponse { header, key: entry.key }))
    }

    /// Deletes the given key, whatever it is, as etcd does.
    async fn unlock(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        let client = self.0.member.client_of(&Identity::in_request(&request))?;
        let UnlockRequest { key } = request.into_inner();
        if key.is_empty() {
            return Err(Reason::EmptyKey.into());
        }
        let reply = client.delete(KeyRange::key(key)).await.map_err(refused)?;
        Ok(Response::new(UnlockResponse { header: self.0.member.header(reply.revision) }))
    }
}
