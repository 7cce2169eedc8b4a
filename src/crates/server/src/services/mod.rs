//! The gRPC services of a server, and the sizes of the messages that they accept.

pub(crate) mod auth;
pub(crate) mod cluster;
pub(crate) mod election;
pub(crate) mod health;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod lease_ids;
pub(crate) mod lock;
pub(crate) mod lock_queue;
pub(crate) mod maintenance;
pub(crate) mod password;
pub(crate) mod range_stream;
pub(crate) mod response_stream;
pub(crate) mod snapshot;
pub(crate) mod watch;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_proto::etcdserverpb::auth_server::AuthServer;
use bowline_proto::etcdserverpb::cluster_server::ClusterServer;
use bowline_proto::etcdserverpb::kv_server::KvServer;
use bowline_proto::etcdserverpb::lease_server::LeaseServer;
use bowline_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use bowline_proto::etcdserverpb::watch_server::WatchServer;
use bowline_proto::grpc::health::v1::health_server::HealthServer;
use bowline_proto::v3electionpb::election_server::ElectionServer;
use bowline_proto::v3lockpb::lock_server::LockServer;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service;

use crate::alarms::Alarms;
use crate::leader::Leaderless;
use crate::member::Member;
use crate::middleware::anonymous_limit::Anonymous;
use crate::middleware::compression::{COMPRESSED_STREAM_BYTES_MAX, is_compressed};
use crate::middleware::response_budget::ResponseBudget;
use crate::protocol::Method;
use crate::services::auth::AuthService;
use crate::services::cluster::ClusterService;
use crate::services::election::ElectionService;
use crate::services::health::HealthService;
use crate::services::kv::KvService;
use crate::services::lease::LeaseService;
use crate::services::lease_ids::LeaseIds;
use crate::services::lock::LockService;
use crate::services::lock_queue::LockQueues;
use crate::services::maintenance::MaintenanceService;
use crate::services::password::Passwords;
use crate::services::snapshot::Snapshots;
use crate::services::watch::WatchService;

/// Number of bytes by which a client's message may exceed the largest request.
const MESSAGE_SLACK_BYTES: usize = 512 << 10;

/// Largest messages of unauthenticated callers: a login, a health check or a query for the auth status, and, while authentication is on, a watch
/// without a user, which is rejected.
const LOGIN_BYTES_MAX: usize = 16 << 10;
const HEALTH_BYTES_MAX: usize = 4 << 10;
const ANONYMOUS_BYTES_MAX: usize = 16 << 10;

/// Largest message about leases, in bytes: they hold only numbers.
const LEASE_BYTES_MAX: usize = 256 << 10;

/// The response to a request, as soon as its headers are known.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The gRPC services of a server.
pub(crate) struct Services {
    /// Largest message of most methods, in bytes.
    bytes_max: usize,
    kv: Arc<KvService>,
    watch: Arc<WatchService>,
    lease: Arc<LeaseService>,
    cluster: Arc<ClusterService>,
    maintenance: Arc<MaintenanceService>,
    auth: Arc<AuthService>,
    lock: Arc<LockService>,
    election: Arc<ElectionService>,
    health: Arc<HealthService>,
}

/// Calls a service that accepts and sends gzip. The limit applies to a message both as sent and after decompression.
macro_rules! call {
    ($server:ident, $service:expr, $bytes_max:expr, $request:expr) => {
        $server::from_arc(Arc::clone(&$service))
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size($bytes_max)
            .call($request)
    };
}

impl Services {
    /// Creates the services of a member. The budgets limit unread responses, of watches and of all other calls.
    pub(crate) fn new(
        member: &Arc<Member>,
        alarms: &Arc<Alarms>,
        watch_budget: ResponseBudget,
    ) -> Self {
        let of_member = || Arc::clone(member);
        let lease_ids = Arc::new(LeaseIds::new(member.id()));
        let (leaderless, queues) = (Leaderless::of(member), LockQueues::new(member, &lease_ids));
        Self {
            bytes_max: member.settings().request_bytes_max + MESSAGE_SLACK_BYTES,
            kv: Arc::new(KvService {
                member: of_member(),
                budget: ResponseBudget::new(),
                leaderless: Arc::clone(&leaderless),
            }),
            watch: Arc::new(WatchService {
                member: of_member(),
                budget: watch_budget,
                leaderless: Arc::clone(&leaderless),
            }),
            lease: Arc::new(LeaseService {
                member: of_member(),
                lease_ids,
                leaderless: Arc::clone(&leaderless),
            }),
            cluster: Arc::new(ClusterService(of_member())),
            maintenance: Arc::new(MaintenanceService {
                member: of_member(),
                alarms: Arc::clone(alarms),
                snapshots: Snapshots::new(member),
            }),
            auth: Arc::new(AuthService {
                member: of_member(),
                passwords: Arc::new(Passwords::new(member.settings().bcrypt_cost)),
            }),
            lock: Arc::new(LockService(Arc::clone(&queues))),
            election: Arc::new(ElectionService { queues, leaderless }),
            health: Arc::new(HealthService::new(member)),
        }
    }

    /// Returns the maximum size of a message.
    pub(crate) fn bytes_max_of(&self, method: &Method) -> usize {
        match (&*method.service, &*method.name) {
            ("etcdserverpb.Auth", "Authenticate") => LOGIN_BYTES_MAX,
            ("etcdserverpb.Auth", "AuthStatus") | ("grpc.health.v1.Health", _) => HEALTH_BYTES_MAX,
            ("etcdserverpb.Lease", _) => LEASE_BYTES_MAX,
            _ => self.bytes_max,
        }
    }
}

/// Calls the service that a request is for.
#[derive(Clone)]
pub(crate) struct Routes(pub(crate) Arc<Services>);

impl Service<Request<Body>> for Routes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let services = &*self.0;
        let method = Method::of(&request);
        let is_anonymous = || request.extensions().get::<Anonymous>().is_some();
        let bytes_max = match (&*method.service, &*method.name) {
            ("etcdserverpb.Watch", _) if is_anonymous() => ANONYMOUS_BYTES_MAX,
            ("etcdserverpb.Watch", _) | ("v3electionpb.Election", "Observe")
                if is_compressed(request.headers()) =>
            {
                COMPRESSED_STREAM_BYTES_MAX
            }
            _ => services.bytes_max_of(method),
        };
        match &*method.service {
            "etcdserverpb.KV" => call!(KvServer, services.kv, bytes_max, request),
            "etcdserverpb.Watch" => call!(WatchServer, services.watch, bytes_max, request),
            "etcdserverpb.Lease" => call!(LeaseServer, services.lease, bytes_max, request),
            "etcdserverpb.Cluster" => call!(ClusterServer, services.cluster, bytes_max, request),
            "etcdserverpb.Maintenance" => {
                call!(MaintenanceServer, services.maintenance, bytes_max, request)
            }
            "etcdserverpb.Auth" => call!(AuthServer, services.auth, bytes_max, request),
            "v3lockpb.Lock" => call!(LockServer, services.lock, bytes_max, request),
            "v3electionpb.Election" => call!(ElectionServer, services.election, bytes_max, request),
            "grpc.health.v1.Health" => call!(HealthServer, services.health, bytes_max, request),
            _ => {
                let words = format!("unknown method {}", request.uri().path());
                Box::pin(async move { Ok(Status::unimplemented(words).into_http()) })
            }
        }
    }
}
