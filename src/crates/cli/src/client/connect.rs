//! Connects to the servers and decides whether a failed request is sent to the next server. A read may be repeated. A
//! change may be repeated only if the change was certainly not applied. Otherwise the command reports an unknown
//! outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::failure::{Failure, Outcome, outcome, root_cause};
use super::options::Settings;
use super::tls;
use bowline_proto::etcdserverpb as pb;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;

/// Maximum size of an accepted response, in bytes. The limit is high, because a range may return the whole store.
const ANSWER_BYTES_MAX: usize = i32::MAX as usize;

/// Deadline for operations without a time limit. If the server disappears, the keepalive of the connection detects it.
pub(crate) const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Maximum number of attempts at each endpoint for one request.
const ROUNDS: usize = 2;

/// Pause before the second round over the endpoints.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// Adds the user's token to each request. Also adds a header that tells a member to reject the request while the
/// member knows no leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamp {
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

type Wire = InterceptedService<Channel, Stamp>;

#[derive(Clone, Debug)]
pub(crate) struct Link {
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

    pub(crate) fn kv(&self) -> KvClient<Wire> {
        KvClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn lease(&self) -> LeaseClient<Wire> {
        LeaseClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Returns a client for watches. The requests have the header that tells a member to reject a watch while the
    /// member knows no leader. Without the header, such a watch would silently deliver nothing.
    pub(crate) fn watch(&self) -> WatchClient<Wire> {
        let stamp = Stamp { needs_leader: true, ..self.stamp.clone() };
        let wire = InterceptedService::new(self.channel.clone(), stamp);
        WatchClient::new(wire).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn cluster(&self) -> ClusterClient<Wire> {
        ClusterClient::new(self.wire())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Wire> {
        MaintenanceClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub(crate) fn auth(&self) -> AuthClient<Wire> {
        AuthClient::new(self.wire())
    }
}

/// Whether a request may be repeated without harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
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
pub(crate) struct Client {
    pub(crate) settings: Settings,
    state: Mutex<State>,
    /// Whether this client, or a client derived from this client, has changed something.
    has_changed: Arc<AtomicBool>,
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
    /// Returns a client that has not connected yet.
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Self::after(settings, Arc::default())
    }

    fn after(settings: Settings, has_changed: Arc<AtomicBool>) -> Arc<Self> {
        let (state, number) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Self { settings, state, has_changed, number })
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Returns a client of a single endpoint with the same settings.
    pub(crate) fn of_one(&self, endpoint: &str) -> Arc<Self> {
        let settings = Settings { endpoints: vec![endpoint.to_owned()], ..self.settings.clone() };
        Client::after(settings, Arc::clone(&self.has_changed))
    }

    /// Returns the open connection, or connects to the first endpoint that can be reached before the deadline. An
    /// endpoint that does not answer uses up only its share of the remaining time.
    async fn link_until(&self, end: Instant) -> Result<Link, Failure> {
        let mut state = self.state.lock().await;
        if let Some(link) = &state.link {
            return Ok(link.clone());
        }
        let count = self.settings.endpoints.len();
        let mut tried = Vec::new();
        for step in 0..count {
            let at = state.preferred;
            let name = &self.settings.endpoints[at];
            // Set before connecting: if this call is cancelled, the next caller starts with another endpoint.
            state.preferred = (at + 1) % count;
            let left = end.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(count - step).unwrap_or(u32::MAX);
            let channel = match self.connect(name, share).await {
                Ok(channel) => channel,
                Err(Failure::Unreachable(why)) => {
                    tried.extend(why);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let number = *self.number.borrow() + 1;
            let mut link = Link { channel, stamp: Stamp::default(), at, number };
            match self.log_in(&link, share).await {
                Ok(token) => link.stamp.token = token,
                Err(status) if outcome(&status) == Outcome::Refused => {
                    return Err(Failure::Refused(status));
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
        Err(Failure::Unreachable(tried))
    }

    async fn connect(&self, name: &str, share: Duration) -> Result<Channel, Failure> {
        let endpoint = self.endpoint(name)?;
        let unreachable = |why: String| Failure::Unreachable(vec![(name.to_owned(), why)]);
        let limit = self.settings.dial_timeout.min(share);
        match tokio::time::timeout(limit, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => Err(unreachable(root_cause(&error))),
            Err(_) => Err(unreachable(format!("no connection within {}ms", limit.as_millis()))),
        }
    }

    /// Splits an endpoint into a flag, whether the endpoint uses TLS, and its address.
    pub(crate) fn place<'a>(&self, name: &'a str) -> Result<(bool, &'a str), Failure> {
        match name.split_once("://") {
            Some(("http", rest)) => Ok((self.settings.tls.required, rest.trim_end_matches('/'))),
            Some(("https", rest)) => Ok((true, rest.trim_end_matches('/'))),
            Some(("unix", path)) => Ok((false, path)),
            Some((scheme, _)) => {
                let why =
                    format!("{name}: unknown scheme {scheme}; use http://, https:// or unix://");
                Err(Failure::Usage(why))
            }
            None => Ok((self.settings.tls.is_wanted(), name)),
        }
    }

    fn endpoint(&self, name: &str) -> Result<Endpoint, Failure> {
        let (is_secure, rest) = self.place(name)?;
        let scheme = match is_secure {
            true => "https",
            false if is_file(name) => "unix",
            false => "http",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{rest}"))
            .map_err(|_| Failure::Usage(format!("invalid endpoint {name:?}: expected HOST:PORT")))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.settings.keepalive_time)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        if is_secure { tls::secured(endpoint, &self.settings.tls) } else { Ok(endpoint) }
    }

    /// Logs in and returns the token, or `None` if no user is configured or the server has authentication off.
    async fn log_in(
        &self,
        link: &Link,
        share: Duration,
    ) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Some(login) = &self.settings.login else { return Ok(None) };
        // A missing password was prompted for earlier, so it exists here.
        let password = login.password.clone().unwrap_or_default();
        let request = pb::AuthenticateRequest { name: login.name.clone(), password };
        let limit = self.settings.command_timeout.min(share);
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
    pub(crate) async fn leave(&self, link: &Link) {
        let mut state = self.state.lock().await;
        if state.link.as_ref().is_some_and(|now| now.number == link.number) {
            state.link = None;
            state.preferred = (link.at + 1) % self.settings.endpoints.len();
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Waits until some task abandons the connection as unusable. A task that only waits for events on the connection
    /// uses this function, because such a task would not notice by itself that the connection is unusable.
    pub(crate) async fn left(&self, link: &Link) {
        // Cannot fail: this client owns the sender.
        drop(self.number.subscribe().wait_for(|number| *number > link.number).await);
    }

    /// Sends a request within the command's timeout. Tries other endpoints if `effect` allows a retry.
    pub(crate) async fn ask<T>(
        &self,
        effect: Effect,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        self.ask_for(self.settings.command_timeout, effect, call).await
    }

    /// Like `ask`, with the given time limit.
    pub(crate) async fn ask_for<T>(
        &self,
        limit: Duration,
        effect: Effect,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let mut may_be_made = false;
        let asked = self.ask_each(limit, effect, &mut may_be_made, call).await;
        if asked.is_ok() && effect != Effect::Repeatable {
            self.has_changed.store(true, Ordering::Relaxed);
        }
        asked.map_err(|failure| match effect {
            Effect::Settled if may_be_made => Failure::Unknown(failure.to_string()),
            _ => failure,
        })
    }

    /// Like `ask_for`. Also sets `may_be_made` if the outcome of an attempt is unknown.
    async fn ask_each<T>(
        &self,
        limit: Duration,
        effect: Effect,
        may_be_made: &mut bool,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let end = Instant::now() + limit;
        let count = self.settings.endpoints.len();
        let tries = count * ROUNDS;
        let mut has_logged_in_again = false;
        let mut last = None;
        for attempt in 0..tries {
            if attempt == count {
                tokio::time::sleep(ROUND_PAUSE).await;
            }
            // Another task may be connecting or logging in for longer than this request's time limit.
            let link = tokio::time::timeout_at(end, self.link_until(end));
            let Ok(link) = link.await else { return Err(last.unwrap_or(Failure::Timeout(limit))) };
            let link = link?;
            let left = end.saturating_duration_since(Instant::now());
            // A server that hangs must not use up the whole time if other endpoints can be tried.
            let patience = match effect {
                Effect::Repeatable | Effect::Settled if attempt + 1 < count => {
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
                    if effect == Effect::Change {
                        return Err(Failure::Unknown(format!("no response within {limit:?}")));
                    }
                    last = Some(Failure::Timeout(limit));
                    continue;
                }
            };
            if needs_new_token(&status) && self.settings.login.is_some() && !has_logged_in_again {
                // The token has expired, belongs to another server, or predates a change of users. The request was not
                // applied.
                has_logged_in_again = true;
                self.leave(&link).await;
                last = Some(Failure::Refused(status));
                continue;
            }
            let outcome = outcome(&status);
            *may_be_made |= outcome == Outcome::Unknown;
            match (outcome, effect) {
                (Outcome::Refused, _) => return Err(Failure::of_status(status)),
                (Outcome::Unknown, Effect::Change) => {
                    return Err(Failure::Unknown(words(&status)));
                }
                (Outcome::Unknown | Outcome::Elsewhere, _) => {
                    self.leave(&link).await;
                    last = Some(Failure::Refused(Status::new(status.code(), words(&status))));
                }
            }
        }
        Err(last.unwrap_or(Failure::Timeout(limit)))
    }
}

/// Returns whether an endpoint is a Unix socket.
pub(crate) fn is_file(name: &str) -> bool {
    name.starts_with("unix://")
}

fn needs_new_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("auth: revision in header is old")
}

/// Returns the message of a status, or the cause if the connection broke.
fn words(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(error) => format!("the connection broke: {}", root_cause(error)),
        None => status.message().to_owned(),
    }
}
