//! Routes requests on one port to their services, after checking permissions and limits.

use std::convert::Infallible;
use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;

use bowline::{
    Error,
    auth::{Access, AuthError},
};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service;
use tracing::Instrument as _;

use super::address;
use super::aside::{Aside, Large, Turns};
use super::auth::AuthService;
use super::cluster::ClusterService;
use super::compression::{
    COMPRESSED_STREAM_BYTES_MAX, compress_like_the_request, say_too_large, saying_too_large,
};
use super::deadline::Deadline;
use super::election::ElectionService;
use super::flags::Offer;
use super::gateway;
use super::health::HealthService;
use super::http_side::{self, HttpSide};
use super::identity::Identity;
use super::kv::KvService;
use super::late::{Doubt, Late, MESSAGE_TIME_MAX, Patience};
use super::leader::asks_for_leader;
use super::lease::LeaseService;
use super::lock::LockService;
use super::maintenance::MaintenanceService;
use super::member::Member;
use super::room::Held;
use super::traffic::{Counted, Way};
use super::watch::WatchService;
use super::wire::{Reason, access_refused};
use bowline_proto::etcdserverpb::auth_server::AuthServer;
use bowline_proto::etcdserverpb::cluster_server::ClusterServer;
use bowline_proto::etcdserverpb::kv_server::KvServer;
use bowline_proto::etcdserverpb::lease_server::LeaseServer;
use bowline_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use bowline_proto::etcdserverpb::watch_server::WatchServer;
use bowline_proto::grpc::health::v1::health_server::HealthServer;
use bowline_proto::v3electionpb::election_server::ElectionServer;
use bowline_proto::v3lockpb::lock_server::LockServer;

/// Error for gRPC requests on ports without gRPC.
const NO_GRPC: &str = "gRPC is not served on this port: use one of --listen-client-urls";

/// Number of bytes by which a client's message may exceed the largest request.
const MESSAGE_SLACK_BYTES: usize = 512 << 10;

/// Largest messages of unauthenticated callers: a login, a health check, and, while authentication is on, a watch
/// without a user, which is rejected.
const LOGIN_BYTES_MAX: usize = 16 << 10;
const HEALTH_BYTES_MAX: usize = 4 << 10;
const NOBODY_BYTES_MAX: usize = 16 << 10;

/// Largest message about leases, in bytes: they hold only numbers.
const LEASE_BYTES_MAX: usize = 256 << 10;

/// Maximum number of concurrent unauthenticated calls on a connection while authentication is on. More logins would
/// time out in the queue for password checks.
const NOBODIES_MAX: usize = 128;

/// All services of a member. There is one instance, cloned for each connection.
#[derive(Clone)]
pub(super) struct Dispatch {
    member: Arc<Member>,
    /// User named in the connection's client certificate.
    certified: Option<Arc<str>>,
    /// Services offered at the connection's port.
    offer: Offer,
    bytes_max: usize,
    /// Permits for unauthenticated calls on the connection.
    nobodies: Arc<Semaphore>,
    /// Permits for CPU-heavy work.
    turns: Turns,
    kv: KvServer<KvService>,
    watch: WatchServer<WatchService>,
    /// The watch service for unauthenticated callers.
    watch_of_nobody: WatchServer<WatchService>,
    /// The watch service for compressed requests.
    watch_compressed: WatchServer<WatchService>,
    lease: LeaseServer<LeaseService>,
    cluster: ClusterServer<ClusterService>,
    maintenance: MaintenanceServer<MaintenanceService>,
    auth: AuthServer<AuthService>,
    /// The auth service for logins.
    login: AuthServer<AuthService>,
    lock: LockServer<LockService>,
    election: ElectionServer<ElectionService>,
    /// The election service for compressed `Observe` requests.
    observe_compressed: ElectionServer<ElectionService>,
    health: HealthServer<HealthService>,
    http: HttpSide,
}

/// Permission that a method needs while authentication is on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// None.
    Nobody,
    /// None to open the stream. Each watch on it is checked on its own, and so is an invalid token, because clients
    /// take a rejected watch as the reason to log in again.
    Watch,
    /// Any user. If the permission depends on the request, the service checks it.
    User,
    /// The role `root`. Also applies to unknown methods.
    Root,
}

impl Needs {
    fn of(path: &str) -> Self {
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        match (service, method) {
            ("grpc.health.v1.Health", _) | ("etcdserverpb.Auth", "Authenticate") => Self::Nobody,
            ("etcdserverpb.Watch", _) => Self::Watch,
            ("etcdserverpb.KV" | "etcdserverpb.Lease", _)
            | ("v3lockpb.Lock" | "v3electionpb.Election", _)
            | ("etcdserverpb.Auth", "UserGet" | "RoleGet")
            | ("etcdserverpb.Cluster", "MemberList")
            | ("etcdserverpb.Maintenance", "Alarm" | "Status") => Self::User,
            _ => Self::Root,
        }
    }

    /// Checks the caller against the table by which the caller was identified.
    pub(super) fn judge(self, who: &Identity, access: &Access) -> Result<(), Status> {
        let judged = match self {
            Self::Nobody | Self::Watch => Ok(()),
            Self::User => access.is_user(&who.caller()),
            Self::Root => match access.is_root(&who.caller()) {
                // The user of a certificate may be missing in the table, whereas the user of a valid token always
                // exists. The error text is etcd's.
                Err(AuthError::Denied)
                    if who.user().is_some_and(|user| !access.users().contains_key(user)) =>
                {
                    return Err(Reason::UserNotFound.into());
                }
                judged => judged,
            },
        };
        judged.map_err(access_refused)
    }
}

/// Paths with limits of their own.
const LOGIN: &str = "/etcdserverpb.Auth/Authenticate";
const HEALTH: &str = "/grpc.health.v1.";

const LEASE: &str = "/etcdserverpb.Lease/";
const OBSERVE: &str = "/v3electionpb.Election/Observe";

/// Methods with request streams, whose messages the service checks one by one.
const STREAMS: [&str; 2] = ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Wraps a body so that it holds a permit until its end.
fn holding(body: Body, held: Option<OwnedSemaphorePermit>) -> Body {
    match held {
        None => body,
        Some(held) => Body::new(body.map_frame(move |frame| {
            let _held = &held;
            frame
        })),
    }
}

/// Creates a server that accepts and sends gzip. The limit applies to a message both as sent and after decompression.
macro_rules! served {
    ($server:ident, $service:expr, $bytes_max:expr) => {
        $server::new($service)
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size($bytes_max)
    };
}

impl Dispatch {
    pub(super) fn new(member: &Arc<Member>) -> Self {
        let bytes_max = member.options().request_bytes_max + MESSAGE_SLACK_BYTES;
        let member = Arc::clone(member);
        Self {
            bytes_max,
            nobodies: Arc::new(Semaphore::new(NOBODIES_MAX)),
            turns: Turns::new(),
            kv: served!(KvServer, KvService(Arc::clone(&member)), bytes_max),
            watch: served!(WatchServer, WatchService(Arc::clone(&member)), bytes_max),
            watch_of_nobody: served!(
                WatchServer,
                WatchService(Arc::clone(&member)),
                NOBODY_BYTES_MAX
            ),
            watch_compressed: served!(
                WatchServer,
                WatchService(Arc::clone(&member)),
                COMPRESSED_STREAM_BYTES_MAX
            ),
            lease: served!(LeaseServer, LeaseService(Arc::clone(&member)), LEASE_BYTES_MAX),
            cluster: served!(ClusterServer, ClusterService(Arc::clone(&member)), bytes_max),
            maintenance: served!(
                MaintenanceServer,
                MaintenanceService(Arc::clone(&member)),
                bytes_max
            ),
            auth: served!(AuthServer, AuthService(Arc::clone(&member)), bytes_max),
            login: served!(AuthServer, AuthService(Arc::clone(&member)), LOGIN_BYTES_MAX),
            lock: served!(LockServer, LockService(Arc::clone(&member)), bytes_max),
            election: served!(ElectionServer, ElectionService(Arc::clone(&member)), bytes_max),
            observe_compressed: served!(
                ElectionServer,
                ElectionService(Arc::clone(&member)),
                COMPRESSED_STREAM_BYTES_MAX
            ),
            health: served!(HealthServer, HealthService::new(&member), HEALTH_BYTES_MAX),
            http: HttpSide::new(&member),
            certified: None,
            offer: Offer::All,
            member,
        }
    }

    /// Returns an instance for one connection. `user` is the user named in its certificate.
    pub(super) fn with_certificate(self, user: Option<Arc<str>>) -> Self {
        Self { certified: user, ..self }
    }

    /// Returns an instance for one connection to a port with these services.
    pub(super) fn offering(self, offer: Offer) -> Self {
        let (nobodies, turns) = (Semaphore::new(NOBODIES_MAX), self.turns.of_another());
        Self { offer, nobodies: Arc::new(nobodies), turns, ..self }
    }

    /// Returns the permits for heavy work on this connection.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Returns the maximum size of a message.
    pub(super) fn bytes_max_of(&self, path: &str) -> usize {
        match path {
            LOGIN => LOGIN_BYTES_MAX,
            _ if path.starts_with(HEALTH) => HEALTH_BYTES_MAX,
            _ if path.starts_with(LEASE) => LEASE_BYTES_MAX,
            _ => self.bytes_max,
        }
    }

    fn route(&mut self, mut request: Request<Incoming>) -> Answer {
        let is_grpc = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if is_grpc {
            if matches!(self.offer, Offer::Http | Offer::Health) {
                let status = Status::unimplemented(NO_GRPC);
                return Box::pin(async move { Ok(status.into_http()) });
            }
            return self.grpc(request);
        }
        if self.offer == Offer::Grpc {
            return Box::pin(async { Ok(http_side::not_found()) });
        }
        if let Err(response) = address::normalize(request.uri_mut()) {
            return Box::pin(async move { Ok(gateway::refused_unread(request, response).await) });
        }
        let path = request.uri().path();
        if self.offer == Offer::Health && !http_side::is_health(path) {
            return Box::pin(async { Ok(http_side::not_found()) });
        }
        if self.member.options().offers_json && gateway::is_for(path) {
            // As in etcd, a certificate identifies no user of the JSON gateway; callers send a token.
            let dispatch = self.clone().with_certificate(None);
            return Box::pin(async move { Ok(gateway::answer(dispatch, request).await) });
        }
        // Callers of plain HTTP never authenticate.
        let is_nobody = self.member.client().access().is_enabled();
        let Ok(held) = is_nobody.then(|| self.hold_of_nobody()).transpose() else {
            return Box::pin(async { Ok(http_side::too_many()) });
        };
        let http = self.http.clone();
        Box::pin(async move { Ok(http.answer(request).await.map(|body| holding(body, held))) })
    }

    /// Handles a gRPC request from any source.
    pub(super) fn grpc<B>(&mut self, mut request: Request<B>) -> Answer
    where
        B: http_body::Body + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
        B::Data: Send,
    {
        let path = request.uri().path().to_owned();
        let call = self.member.calls().begins(&path);
        self.member.calls().comes_from(request.headers(), call.as_ref());
        let traffic = Arc::clone(self.member.calls().traffic());
        let span = traffic.span(&path);
        let counted = move |response| match call {
            Some(call) => call.follow(response),
            None => response,
        };
        let admitted = Deadline::of(request.headers())
            .and_then(|deadline| Ok((deadline, self.admit(request.headers(), &path)?)));
        let (deadline, who) = match admitted {
            Ok(admitted) => admitted,
            Err(status) => return Box::pin(async move { Ok(counted(status.into_http())) }),
        };
        let (needs, is_one) = (Needs::of(&path), !STREAMS.contains(&path.as_str()));
        let is_nobody = self.is_nobody(needs, &who);
        let held = match is_nobody.then(|| self.hold_of_nobody()).transpose() {
            Ok(held) => held,
            Err(status) => return Box::pin(async move { Ok(counted(status.into_http())) }),
        };
        let is_judged = is_one && needs != Needs::Nobody;
        let doubt = is_judged.then(|| Doubt::about(&self.member, &who, needs));
        let patience = if is_one { Patience::Of(MESSAGE_TIME_MAX) } else { Patience::Endless };
        let received = |body| Counted::new(body, &traffic, Way::In, &span);
        let is_compressed = compress_like_the_request(request.headers_mut());
        let mut request = request.map(|body| Late::new(received(body), doubt, patience));
        request.extensions_mut().insert(who);
        request.extensions_mut().insert(self.turns.clone());
        let service = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let answer = self.answer_of(service, &path, (is_nobody, is_compressed), request);
        let member = Arc::clone(&self.member);
        let watch_room = service == "etcdserverpb.Watch";
        let watch_room = watch_room.then(|| self.member.watch_room().clone());
        let turns = self.turns.clone();
        let within = span.clone();
        let answer = async move {
            let mut response = match deadline.within(answer).await {
                Ok(answered) => answered?,
                Err(status) => return Ok(counted(status.into_http())),
            };
            say_too_large(response.headers_mut());
            if is_for_space(&response) {
                member.no_space().refused(member.state_bytes());
            }
            // Compression takes long, so compressed messages count as large.
            let is_large = is_compressed || response.extensions().get::<Large>().is_some();
            let room = response.extensions().get::<Held>().cloned();
            let aside = |body| match is_large {
                true => Body::new(Aside::new(body, &turns)),
                false => body,
            };
            let response = response.map(|body| match is_one {
                true => body,
                false => saying_too_large(body),
            });
            let response = response.map(|body| match watch_room {
                Some(room) => room.counting(body),
                None => body,
            });
            let response = response.map(aside).map(|body| match room {
                Some(room) => room.by_body(body),
                None => body,
            });
            let sent = |body| Body::new(Counted::new(body, &traffic, Way::Out, &span));
            let response = response.map(sent).map(|body| deadline.ending(holding(body, held)));
            Ok(counted(response))
        };
        Box::pin(answer.instrument(within))
    }

    /// Calls the service that a request is for.
    fn answer_of<B>(
        &mut self,
        service: &str,
        path: &str,
        (is_nobody, is_compressed): (bool, bool),
        request: Request<B>,
    ) -> Answer
    where
        B: http_body::Body + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
        B::Data: Send,
    {
        match service {
            "etcdserverpb.KV" => self.kv.call(request),
            "etcdserverpb.Watch" if is_nobody => self.watch_of_nobody.call(request),
            "etcdserverpb.Watch" if is_compressed => self.watch_compressed.call(request),
            "etcdserverpb.Watch" => self.watch.call(request),
            "etcdserverpb.Lease" => self.lease.call(request),
            "etcdserverpb.Cluster" => self.cluster.call(request),
            "etcdserverpb.Maintenance" => self.maintenance.call(request),
            "etcdserverpb.Auth" if path == LOGIN => self.login.call(request),
            "etcdserverpb.Auth" => self.auth.call(request),
            "v3lockpb.Lock" => self.lock.call(request),
            "v3electionpb.Election" if is_compressed && path == OBSERVE => {
                self.observe_compressed.call(request)
            }
            "v3electionpb.Election" => self.election.call(request),
            "grpc.health.v1.Health" => self.health.call(request),
            _ => {
                let words = format!("unknown service {service}");
                Box::pin(async move { Ok(Status::unimplemented(words).into_http()) })
            }
        }
    }

    /// Checks whether a request may be read at all, so that the server buffers nothing for callers without permission.
    /// The request is checked again after reading. Until then the returned permit is held.
    pub(super) fn may_be_read(
        &self,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        let judged = self.admit(headers, path).and_then(|who| {
            self.is_nobody(Needs::of(path), &who).then(|| self.hold_of_nobody()).transpose()
        });
        judged.inspect_err(|status| self.member.calls().refused(path, status))
    }

    /// Returns whether an admitted call is unauthenticated while authentication is on.
    fn is_nobody(&self, needs: Needs, who: &Identity) -> bool {
        let is_open = matches!(needs, Needs::Nobody | Needs::Watch);
        let is_known = || self.member.again(who).is_ok_and(|who| who.user().is_some());
        is_open && self.member.client().access().is_enabled() && !is_known()
    }

    /// Returns a permit for an unauthenticated call.
    fn hold_of_nobody(&self) -> Result<OwnedSemaphorePermit, Status> {
        let held = Arc::clone(&self.nobodies).try_acquire_owned();
        held.map_err(|_| Reason::TooManyRequests.into())
    }

    /// Identifies the caller and rejects requests that need a leader when there is none, that learners do not serve, or
    /// that the user may not send. Streams and ranges are checked where they are handled.
    fn admit(&self, headers: &HeaderMap, path: &str) -> Result<Identity, Status> {
        if asks_for_leader(headers) && !self.member.has_leader() {
            return Err(Reason::NoLeader.into());
        }
        let is_for_all = path.starts_with(HEALTH)
            || [
                "/etcdserverpb.KV/Range",
                "/etcdserverpb.Maintenance/Status",
                "/etcdserverpb.Maintenance/Snapshot",
            ]
            .contains(&path);
        if !is_for_all {
            self.member.not_for_learners()?;
        }
        let needs = Needs::of(path);
        if needs == Needs::Nobody {
            return Ok(Identity::default());
        }
        if needs == Needs::Watch {
            return Ok(Identity::unjudged(headers, self.certified.as_ref()));
        }
        let access = self.member.client().access();
        let who = Identity::of(headers, &access, self.member.tokens(), self.certified.as_ref())?;
        needs.judge(&who, &access)?;
        Ok(who)
    }
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        self.clone().route(request)
    }
}

/// Returns whether a request was rejected for lack of space at this member. An alarm has the same text but is not meant
/// here.
fn is_for_space(response: &Response<Body>) -> bool {
    let why = response.extensions().get::<Status>().and_then(|status| status.source());
    let why = why.and_then(|why| why.downcast_ref());
    matches!(why, Some(Error::QuotaExceeded { .. } | Error::NoSpace))
}
