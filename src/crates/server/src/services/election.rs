//! `v3electionpb.Election`: elections on behalf of clients, in the queue layout of etcd's concurrency package.

use std::pin::Pin;
use std::sync::Arc;

use bowline::{Compare, EventKind, KeyRange, KeyValue, Op, Put, Revision, kv::PutLease};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::identity::Identity;
use crate::leader::{Leaderless, needs_leader};
use crate::member::Member;
use crate::services::lock_queue::{
    LockQueues, enqueue, first, first_at_last, keys_of, next_batch, until_event,
};
use crate::services::response_stream::{ResponseSender, ResponseStream};
use crate::wire::{Reason, key_value, lease_id, refused};
use bowline_proto::v3electionpb::election_server::Election;
use bowline_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};

#[derive(Clone)]
pub(crate) struct ElectionService {
    pub(crate) queues: Arc<LockQueues>,
    pub(crate) leaderless: Arc<Leaderless>,
}

fn named(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}

/// Returns a compare that a leadership has not changed. With a negative revision it never succeeds.
fn still_leads(leader: &LeaderKey) -> Result<Compare, Status> {
    if leader.key.is_empty() {
        return Err(Reason::EmptyKey.into());
    }
    let created = Compare::create_revision(leader.key.clone());
    Ok(match u64::try_from(leader.rev) {
        Ok(revision) => created.eq(revision),
        Err(_) => created.lt(0u64),
    })
}

#[tonic::async_trait]
impl Election for ElectionService {
    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let who = Identity::in_request(&request);
        let CampaignRequest { name, lease, value } = request.into_inner();
        let gone = "election: session is expired";
        let entry = enqueue(&self.queues, who, name.clone(), lease, value, gone).await?;
        let header = self.queues.member.header(entry.revision);
        let (rev, lease) = (entry.created.get() as i64, entry.lease.get() as i64);
        let leader = Some(LeaderKey { name, key: entry.key, rev, lease });
        Ok(Response::new(CampaignResponse { header, leader }))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let who = Identity::in_request(&request);
        let ProclaimRequest { leader, value } = request.into_inner();
        let leader = named(leader)?;
        let held = still_leads(&leader)?;
        let mut put = Put::new(leader.key, value);
        // If the request has no lease, the key keeps the lease of its campaign. A key without a lease would no longer
        // count as a candidate.
        put.lease = lease_id(leader.lease).map_or(PutLease::Keep, PutLease::Attach);
        let txn = self.queues.member.client_of(&who)?.txn().when(held).then(put);
        let reply = txn.commit().await.map_err(refused)?;
        if !reply.succeeded {
            return Err(Status::unknown("election: not leader"));
        }
        Ok(Response::new(ProclaimResponse { header: self.queues.member.header(reply.revision) }))
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        let who = self.queues.member.again(&Identity::in_request(&request))?;
        let (leader, revision) =
            first(&self.queues.member, &who, &request.into_inner().name).await?;
        match leader {
            None => Err(Status::unknown("election: no leader")),
            Some(row) => {
                let (header, kv) = (self.queues.member.header(revision), Some(key_value(row)));
                Ok(Response::new(LeaderResponse { header, kv }))
            }
        }
    }

    type ObserveStream = Pin<Box<dyn Stream<Item = Result<LeaderResponse, Status>> + Send>>;

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        self.queues.member.not_for_learners()?;
        let needs_leader = needs_leader(&request);
        let (member, who) = (Arc::clone(&self.queues.member), Identity::in_request(&request));
        let leaderless = Arc::clone(&self.leaderless);
        let name = request.into_inner().name;
        Ok(Response::new(ResponseStream::by(move |answers| async move {
            let observing = async {
                loop {
                    follow(&member, &who, &name, &answers).await?;
                }
            };
            tokio::select! {
                ended = observing => ended,
                status = leaderless.lost(), if needs_leader => Err(status),
            }
        })))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        let client = self.queues.member.client_of(&Identity::in_request(&request))?;
        let leader = named(request.into_inner().leader)?;
        let held = still_leads(&leader)?;
        let txn = client.txn().when(held).then(Op::delete(leader.key));
        let reply = txn.commit().await.map_err(refused)?;
        Ok(Response::new(ResignResponse { header: self.queues.member.header(reply.revision) }))
    }
}

/// Sends the values of one leader until it is gone, or waits for a first candidate.
async fn follow(
    member: &Member,
    who: &Identity,
    name: &[u8],
    answers: &ResponseSender<LeaderResponse>,
) -> Result<(), Status> {
    let (leader, revision) = first_at_last(member, who, name).await?;
    let Some(leader) = leader else {
        return until_event(member, who, keys_of(name), revision.next(), EventKind::Put).await;
    };
    let keys = KeyRange::key(leader.key.clone());
    send_leader(member, answers, leader, revision).await;
    let mut watch =
        member.client_of_running(who).watch(keys).from(revision.next()).await.map_err(refused)?;
    // If the history was compacted, the caller reads the current state instead.
    while let Some(batch) = next_batch(&mut watch).await? {
        for event in batch.events {
            if event.kind == EventKind::Delete {
                return Ok(());
            }
            send_leader(member, answers, event.kv, batch.revision).await;
        }
    }
    Ok(())
}

async fn send_leader(
    member: &Member,
    answers: &ResponseSender<LeaderResponse>,
    row: KeyValue,
    revision: Revision,
) {
    let (header, kv) = (member.header(revision), Some(key_value(row)));
    // If the receiver is gone, the stream and this future are about to be dropped.
    drop(answers.send(Ok(LeaderResponse { header, kv })).await);
}
