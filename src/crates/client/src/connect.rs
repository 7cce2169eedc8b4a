//! Connects to the servers and decides whether a failed request is sent to the next server. A read may be repeated. A
//! change may be repeated only if the change was certainly not applied. Otherwise the call reports an unknown
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::error::{Error, StatusMeaning, root_cause};
use crate::options::Options;
use crate::tls;
use bowline_proto::etcdserverpb as pb;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;

/// Maximum size of an accepted response, in bytes. The limit is high, because a range may return the whole store.
const ANSWER_BYTES_MAX: usize = i32::MAX as usize;

/// Time limit that is long enough to count as none. If the server disappears, the keepalive of the connection detects
/// it.
const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Maximum number of attempts at each endpoint for one request.
const ROUNDS: usize = 2;

/// Pause before the second round over the endpoints.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of queued requests of a stream of watches, in addition to those that open the watches.
const WATCH_REQUESTS: usize = 4;

/// Adds the user's token to each request. Also adds a header that makes a member reject the request while the member
/// knows no leader.
#[derive(Clone, Debug, Default)]
pub struct Stamp {
    token: Option<MetadataValue<Ascii>>,
    needs_leader: bool,
}

impl Interceptor for Stamp {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        if self.needs_leader {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        Ok(request)
    }
}

/// The channel of a connection.
pub type Wire = InterceptedService<Channel, Stamp>;

/// A connection to one server, with the token of the user.
#[derive(Clone, Debug)]
pub struct Link {
    channel: Channel,
    stamp: Stamp,
    /// Index of the endpoint.
    at: usize,
    /// Sequence number of the connection within its client.
    number: u64,
}

impl Link {
    fn wire(&self) -> Wire {
        InterceptedService::new(self.channel.clone(), self.stamp.clone())
    }

    /// Returns a client for keys.
    pub fn kv(&self) -> KvClient<Wire> {
        KvClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for leases.
    pub fn lease(&self) -> LeaseClient<Wire> {
        LeaseClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for watches. The requests have the header that makes a member reject a watch while the member
    /// knows no leader. Without the header, such a watch would silently deliver nothing.
    pub fn watch(&self) -> WatchClient<Wire> {
        let stamp = Stamp { needs_leader: true, ..self.stamp.clone() };
        let wire = InterceptedService::new(self.channel.clone(), stamp);
        WatchClient::new(wire).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Opens watches on a stream of their own. More requests can be sent to it. It ends when their sender is dropped.
    ///
    /// # Errors
    /// Returns an error if the server rejects the stream.
    pub async fn open_watches(
        &self,
        creates: impl IntoIterator<Item = pb::WatchCreateRequest>,
    ) -> Result<(mpsc::Sender<pb::WatchRequest>, Streaming<pb::WatchResponse>), Status> {
        let creates: Vec<_> = creates.into_iter().collect();
        let (requests, stream) = mpsc::channel(creates.len() + WATCH_REQUESTS);
        for create in creates {
            // Sending does not wait, because the channel has room.
            drop(requests.send(create.into()).await);
        }
        let answers = self.watch().watch(ReceiverStream::new(stream)).await?.into_inner();
        Ok((requests, answers))
    }

    /// Returns a client for members.
    pub fn cluster(&self) -> ClusterClient<Wire> {
        ClusterClient::new(self.wire())
    }

    /// Returns a client for maintenance.
    pub fn maintenance(&self) -> MaintenanceClient<Wire> {
        MaintenanceClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for users.
    pub fn auth(&self) -> AuthClient<Wire> {
        AuthClient::new(self.wire())
    }
}

/// Whether a request may be repeated without harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// The request changes nothing that matters, so it can be repeated.
    Repeatable,
    /// The request is an idempotent change. If the outcome of one attempt is unknown, a failure of a later attempt is
    /// also reported as unknown.
    Settled,
    /// The request makes a new change each time.
    Change,
}

/// A client of one or more endpoints.
#[derive(Debug)]
pub struct Client {
    options: Options,
    state: Mutex<State>,
    /// Number of the current connection, if one is open. The number increases when a connection is opened or
    /// abandoned.
    number: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Index of the endpoint to try first.
    preferred: usize,
    link: Option<Link>,
}

impl Client {
    /// Connects to one of these endpoints, with default settings.
    ///
    /// # Errors
    /// Returns an error if no endpoint can be reached.
    pub async fn connect(
        endpoints: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Arc<Self>, Error> {
        let client = Self::new(Options::new(endpoints))?;
        client.link().await?;
        Ok(client)
    }

    /// Returns a client that connects with its first call.
    ///
    /// # Errors
    /// Returns an error if there are no endpoints.
    pub fn new(options: Options) -> Result<Arc<Self>, Error> {
        if options.endpoints.is_empty() {
            return Err(Error::Config("no endpoint is given".to_owned()));
        }
        let (state, number) = (Mutex::default(), watch::Sender::new(0));
        Ok(Arc::new(Self { options, state, number }))
    }

    /// Returns the settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the open connection, or connects to the first endpoint that can be reached.
    pub async fn link(&self) -> Result<Link, Error> {
        self.link_until(Instant::now() + NO_LIMIT).await
    }

    /// Like `link`, with a deadline. An endpoint that does not answer uses up only its share of the remaining time.
    async fn link_until(&self, end: Instant) -> Result<Link, Error> {
        let mut state = self.state.lock().await;
        if let Some(link) = &state.link {
            return Ok(link.clone());
        }
        let count = self.options.endpoints.len();
        let mut tried = Vec::new();
        for step in 0..count {
            let at = state.preferred;
            let name = &self.options.endpoints[at];
            // Set before connecting: if this call is cancelled, the next caller starts with another endpoint.
            state.preferred = (at + 1) % count;
            let left = end.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(count - step).unwrap_or(u32::MAX);
            let channel = match self.dial(name, share).await {
                Ok(channel) => channel,
                Err(Error::Unreachable(why)) => {
                    tried.extend(why);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let number = *self.number.borrow() + 1;
            let mut link = Link { channel, stamp: Stamp::default(), at, number };
            match self.log_in(&link, share).await {
                Ok(token) => link.stamp.token = token,
                Err(status) if StatusMeaning::of(&status) == StatusMeaning::Refused => {
                    return Err(Error::Refused(status));
                }
                Err(status) => {
                    tried.push((name.clone(), status.message().to_owned()));
                    continue;
                }
            }
            state.preferred = at;
            state.link = Some(link.clone());
            self.number.send_replace(number);
            return Ok(link);
        }
        Err(Error::Unreachable(tried))
    }

    async fn dial(&self, name: &str, share: Duration) -> Result<Channel, Error> {
        let endpoint = self.endpoint(name)?;
        let unreachable = |why: String| Error::Unreachable(vec![(name.to_owned(), why)]);
        let limit = self.options.dial_timeout.min(share);
        match tokio::time::timeout(limit, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => Err(unreachable(root_cause(&error))),
            Err(_) => Err(unreachable(format!("no connection within {}ms", limit.as_millis()))),
        }
    }

    /// Parses an endpoint. Returns whether it uses TLS, and its address without the scheme.
    pub fn place<'a>(&self, name: &'a str) -> Result<(bool, &'a str), Error> {
        match name.split_once("://") {
            Some(("http", rest)) => Ok((self.options.tls.required, rest.trim_end_matches('/'))),
            Some(("https", rest)) => Ok((true, rest.trim_end_matches('/'))),
            Some(("unix", path)) => Ok((false, path)),
            Some((scheme, _)) => {
                let why =
                    format!("{name}: unknown scheme {scheme}; use http://, https:// or unix://");
                Err(Error::Config(why))
            }
            None => Ok((self.options.tls.is_wanted(), name)),
        }
    }

    fn endpoint(&self, name: &str) -> Result<Endpoint, Error> {
        let (is_secure, rest) = self.place(name)?;
        let scheme = match is_secure {
            true => "https",
            false if is_unix_socket(name) => "unix",
            false => "http",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{rest}"))
            .map_err(|_| Error::Config(format!("invalid endpoint {name:?}: expected HOST:PORT")))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.options.keepalive_time)
            .keep_alive_timeout(self.options.keepalive_timeout);
        if is_secure { tls::secured(endpoint, &self.options.tls) } else { Ok(endpoint) }
    }

    /// Logs in and returns the token, or `None` if no user is configured or the server has authentication off.
    async fn log_in(
        &self,
        link: &Link,
        share: Duration,
    ) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Some(login) = self.options.login.clone() else { return Ok(None) };
        let request = pb::AuthenticateRequest { name: login.name, password: login.password };
        let limit = self.options.call_timeout.min(share);
        let mut auth = link.auth();
        let asked = tokio::time::timeout(limit, auth.authenticate(request));
        match asked.await.map_err(|_| Status::deadline_exceeded("the login timed out"))? {
            Ok(answer) => {
                let token = answer.into_inner().token.parse();
                token.map(Some).map_err(|_| {
                    Status::internal("the server returned a token that is no valid header value")
                })
            }
            Err(status) if status.message().contains("authentication is not enabled") => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Abandons a connection, so that the next request uses the next endpoint.
    pub async fn leave(&self, link: &Link) {
        let mut state = self.state.lock().await;
        if state.link.as_ref().is_some_and(|now| now.number == link.number) {
            state.link = None;
            state.preferred = (link.at + 1) % self.options.endpoints.len();
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Waits until some task abandons the connection as unusable. A task that only waits for events on the connection
    /// uses this function, because such a task would not notice by itself that the connection is unusable.
    pub async fn left(&self, link: &Link) {
        // Cannot fail: this client owns the sender.
        drop(self.number.subscribe().wait_for(|number| *number > link.number).await);
    }

    /// Sends a request within the timeout of a call. Tries other endpoints if `kind` allows a retry.
    pub async fn call<T>(
        &self,
        kind: CallKind,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        self.call_within(self.options.call_timeout, kind, call).await
    }

    /// Like [`call`](Self::call), with the given time limit.
    pub async fn call_within<T>(
        &self,
        limit: Duration,
        kind: CallKind,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        let mut may_be_made = false;
        let asked = self.call_each(limit, kind, &mut may_be_made, call).await;
        asked.map_err(|failure| match kind {
            CallKind::Settled if may_be_made => Error::Unknown(failure.to_string()),
            _ => failure,
        })
    }

    /// Like [`call_within`](Self::call_within). Also sets `may_be_made` if the outcome of an attempt is unknown.
    async fn call_each<T>(
        &self,
        limit: Duration,
        kind: CallKind,
        may_be_made: &mut bool,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Error> {
        let end = Instant::now() + limit;
        let count = self.options.endpoints.len();
        let tries = count * ROUNDS;
        let mut has_logged_in_again = false;
        let mut last = None;
        for attempt in 0..tries {
            if attempt == count {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
            // Another task may be connecting or logging in for longer than this request's time limit.
            let link = tokio::time::timeout_at(end, self.link_until(end));
            let Ok(link) = link.await else { return Err(last.unwrap_or(Error::Timeout(limit))) };
            let link = link?;
            let left = end.saturating_duration_since(Instant::now());
            // A server that hangs must not use up the whole time if other endpoints can be tried.
            let patience = match kind {
                CallKind::Repeatable | CallKind::Settled if attempt + 1 < count => {
                    left / (count - attempt) as u32
                }
                _ => left,
            };
            let status = match tokio::time::timeout(patience, call(link.clone())).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => {
                    *may_be_made = true;
                    self.leave(&link).await;
                    if kind == CallKind::Change {
                        return Err(Error::Unknown(format!("no response within {limit:?}")));
                    }
                    last = Some(Error::Timeout(limit));
                    continue;
                }
            };
            if needs_new_token(&status) && self.options.login.is_some() && !has_logged_in_again {
                // The token has expired, belongs to another server, or predates a change of users. The request was not
                // applied.
                has_logged_in_again = true;
                self.leave(&link).await;
                last = Some(Error::Refused(status));
                continue;
            }
            let meaning = StatusMeaning::of(&status);
            *may_be_made |= meaning == StatusMeaning::Unknown;
            match (meaning, kind) {
                (StatusMeaning::Refused, _) => return Err(Error::Refused(status)),
                (StatusMeaning::Unknown, CallKind::Change) => {
                    return Err(Error::Unknown(words(&status)));
                }
                (StatusMeaning::Unknown | StatusMeaning::Elsewhere, _) => {
                    self.leave(&link).await;
                    last = Some(Error::Refused(Status::new(status.code(), words(&status))));
                }
            }
        }
        Err(last.unwrap_or(Error::Timeout(limit)))
    }
}

/// Returns whether an endpoint is a Unix socket.
pub fn is_unix_socket(name: &str) -> bool {
    name.starts_with("unix://")
}

fn needs_new_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("auth: revision in header is old")
}

/// Returns the message of a status, or the cause if the connection broke.
pub(crate) fn words(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(error) => format!("the connection broke: {}", root_cause(error)),
        None => status.message().to_owned(),
    }
}
