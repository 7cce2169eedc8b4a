//! One port: which service a request is for, and what is asked of it before it gets there.

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
use crate::generated::etcdserverpb::auth_server::AuthServer;
use crate::generated::etcdserverpb::cluster_server::ClusterServer;
use crate::generated::etcdserverpb::kv_server::KvServer;
use crate::generated::etcdserverpb::lease_server::LeaseServer;
use crate::generated::etcdserverpb::maintenance_server::MaintenanceServer;
use crate::generated::etcdserverpb::watch_server::WatchServer;
use crate::generated::grpc::health::v1::health_server::HealthServer;
use crate::generated::v3electionpb::election_server::ElectionServer;
use crate::generated::v3lockpb::lock_server::LockServer;

/// Said to whoever speaks gRPC where it is not spoken.
const NO_GRPC: &str = "this port is not for gRPC: use one of --listen-client-urls";

/// What a client's message may be larger than the largest request.
const MESSAGE_SLACK_BYTES: usize = 512 << 10;

/// The largest message of who need not say who it is: a login; a question about health; while users are asked for, a watch
/// of nobody, which is refused.
const LOGIN_BYTES_MAX: usize = 16 << 10;
const HEALTH_BYTES_MAX: usize = 4 << 10;
const NOBODY_BYTES_MAX: usize = 16 << 10;

/// Largest message about leases, in bytes: they hold only numbers.
const LEASE_BYTES_MAX: usize = 256 << 10;

/// How many such calls may be under way on a connection, while users are asked for. More logins than that could not
/// wait for their turn.
const NOBODIES_MAX: usize = 128;

/// All services of a member. One for all connections, cloned for each.
#[derive(Clone)]
pub(super) struct Dispatch {
    member: Arc<Member>,
    /// Who is named in the certificate that the connection has shown.
    certified: Option<Arc<str>>,
    /// What is served at the port that it came to.
    offer: Offer,
    bytes_max: usize,
    /// Those of nobody that may still begin on the connection.
    nobodies: Arc<Semaphore>,
    /// For what takes long.
    turns: Turns,
    kv: KvServer<KvService>,
    watch: WatchServer<WatchService>,
    /// The same for nobody.
    watch_of_nobody: WatchServer<WatchService>,
    /// The same with compressed requests.
    watch_compressed: WatchServer<WatchService>,
    lease: LeaseServer<LeaseService>,
    cluster: ClusterServer<ClusterService>,
    maintenance: MaintenanceServer<MaintenanceService>,
    auth: AuthServer<AuthService>,
    /// The same, for logins.
    login: AuthServer<AuthService>,
    lock: LockServer<LockService>,
    election: ElectionServer<ElectionService>,
    /// The same for `Observe` with compressed requests.
    observe_compressed: ElectionServer<ElectionService>,
    health: HealthServer<HealthService>,
    http: HttpSide,
}

/// Who may ask for something, where users and roles are on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Whoever gets through to the port.
    Nobody,
    /// Whoever opens the stream: each watch on it is refused by itself, and so is a token that is none, which clients
    /// take as the word to get another one.
    Watch,
    /// A user. Where it depends on what is asked for, the service judges which.
    User,
    /// Users with the role `root`. So is whatever is not known here.
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

    /// Whether who asks is one of them, by the table that it was found out by.
    pub(super) fn judge(self, who: &Identity, access: &Access) -> Result<(), Status> {
        let judged = match self {
            Self::Nobody | Self::Watch => Ok(()),
            Self::User => access.is_user(&who.caller()),
            Self::Root => match access.is_root(&who.caller()) {
                // Of a certificate: who has a token is there. In etcd's words.
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

/// What is open to anybody.
const LOGIN: &str = "/etcdserverpb.Auth/Authenticate";
const HEALTH: &str = "/grpc.health.v1.";

const LEASE: &str = "/etcdserverpb.Lease/";
const OBSERVE: &str = "/v3electionpb.Election/Observe";

/// The methods that take many requests, each of which is judged by the service.
const STREAMS: [&str; 2] = ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// A body that holds this room until its last word.
fn holding(body: Body, held: Option<OwnedSemaphorePermit>) -> Body {
    match held {
        None => body,
        Some(held) => Body::new(body.map_frame(move |frame| {
            let _held = &held;
            frame
        })),
    }
}

/// Makes a server that accepts and sends gzip. The limit holds for a message as sent and after decompression.
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

    /// The same for one connection: `user` is who its certificate names.
    pub(super) fn with_certificate(self, user: Option<Arc<str>>) -> Self {
        Self { certified: user, ..self }
    }

    /// The same for one connection, to a port at which this is served.
    pub(super) fn offering(self, offer: Offer) -> Self {
        let (nobodies, turns) = (Semaphore::new(NOBODIES_MAX), self.turns.of_another());
        Self { offer, nobodies: Arc::new(nobodies), turns, ..self }
    }

    /// For what takes long and has come by this connection.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// How large a message may be.
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
            // As in etcd a certificate names nobody there: who asks in JSON shows a token.
            let dispatch = self.clone().with_certificate(None);
            return Box::pin(async move { Ok(gateway::answer(dispatch, request).await) });
        }
        // Whoever asks here shows nothing.
        let is_nobody = self.member.client().access().is_enabled();
        let Ok(held) = is_nobody.then(|| self.hold_of_nobody()).transpose() else {
            return Box::pin(async { Ok(http_side::too_many()) });
        };
        let http = self.http.clone();
        Box::pin(async move { Ok(http.answer(request).await.map(|body| holding(body, held))) })
    }

    /// Answers a request of gRPC, wherever it comes from.
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
            // Compression takes long, too.
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

    /// Whether a request may be read at all: nobody keeps what somebody sends who may not ask. It is judged once more when
    /// it is read; until then what is returned holds its room.
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

    /// Whether a call that was let in is nobody's, while users are asked for.
    fn is_nobody(&self, needs: Needs, who: &Identity) -> bool {
        let is_open = matches!(needs, Needs::Nobody | Needs::Watch);
        let is_known = || self.member.again(who).is_ok_and(|who| who.user().is_some());
        is_open && self.member.client().access().is_enabled() && !is_known()
    }

    /// The room for a call of nobody.
    fn hold_of_nobody(&self) -> Result<OwnedSemaphorePermit, Status> {
        let held = Arc::clone(&self.nobodies).try_acquire_owned();
        held.map_err(|_| Reason::TooManyRequests.into())
    }

    /// Refuses what needs a leader where there is none, what a learner does not do, and what users may not. What
    /// streams, and ranges, are looked at where they are answered. Says who asks.
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

/// Whether a request was refused because there is no room for it here: not for an alarm, which says the same words.
fn is_for_space(response: &Response<Body>) -> bool {
    let why = response.extensions().get::<Status>().and_then(|status| status.source());
    let why = why.and_then(|why| why.downcast_ref());
    matches!(why, Some(Error::QuotaExceeded { .. } | Error::NoSpace))
}
