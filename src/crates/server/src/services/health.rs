//! `grpc.health.v1.Health`: reports whether the server, or one of its services, is serving.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::member::Member;
use crate::services::response_stream::ResponseStream;
use bowline_proto::grpc::health::v1::health_check_response::ServingStatus;
use bowline_proto::grpc::health::v1::health_server::Health;
use bowline_proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};

/// Maximum delay with which watchers learn of a change.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Services that can be checked by name; the empty name is the whole server.
const SERVICES: [&str; 9] = [
    "",
    "etcdserverpb.KV",
    "etcdserverpb.Watch",
    "etcdserverpb.Lease",
    "etcdserverpb.Cluster",
    "etcdserverpb.Maintenance",
    "etcdserverpb.Auth",
    "v3lockpb.Lock",
    "v3electionpb.Election",
];

#[derive(Clone)]
pub(crate) struct HealthService {
    member: Arc<Member>,
    /// The last observed status, shared by all watchers.
    seen: watch::Receiver<ServingStatus>,
}

impl HealthService {
    /// Observes a member until it is dropped.
    pub(crate) fn new(member: &Arc<Member>) -> Self {
        let (sender, seen) = watch::channel(serves(member));
        tokio::spawn(look(Arc::downgrade(member), sender));
        Self { member: Arc::clone(member), seen }
    }
}

async fn look(member: Weak<Member>, sender: watch::Sender<ServingStatus>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(now) = member.upgrade().map(|member| serves(&member)) else { return };
        sender.send_if_modified(|before| std::mem::replace(before, now) != now);
    }
}

fn serves(member: &Member) -> ServingStatus {
    match member.node().health().is_serving() {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if SERVICES.contains(&request.into_inner().service.as_str()) {
            Ok(Response::new(response(serves(&self.member))))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = SERVICES.contains(&request.into_inner().service.as_str());
        let mut seen = self.seen.clone();
        Ok(Response::new(ResponseStream::by(|answers| async move {
            let mut sent = None;
            loop {
                let now = *seen.borrow_and_update();
                let now = if known { now } else { ServingStatus::ServiceUnknown };
                if sent.replace(now) != Some(now) && answers.send(Ok(response(now))).await.is_err()
                {
                    return Ok(());
                }
                // The sender is dropped only when the member, and therefore the server, is shutting down.
                if seen.changed().await.is_err() {
                    return Ok(());
                }
            }
        })))
    }
}
