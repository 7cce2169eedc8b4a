//! Connections to the servers, and the rule by which a request goes to the next of them: a question may be asked
//! again; a change may only if it is proven that nothing was made of it. Otherwise it is said that nobody knows.

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
use crate::generated::etcdserverpb as pb;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;

/// How large an answer may be: a range of everything is one.
const ANSWER_BYTES_MAX: usize = i32::MAX as usize;

/// For what takes the time it takes. A server that is gone is found out by its connection.
pub(crate) const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// How often each endpoint is asked at most, for one request.
const ROUNDS: usize = 2;

/// How long to wait before the second round.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// Puts the token of who asks on each request, and whether a member without a leader shall refuse it.
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

/// A connection to one server.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    channel: Channel,
    stamp: Stamp,
    /// Which of the endpoints it is.
    at: usize,
    /// Which connection of its client.
    number: u64,
}

impl Link {
    fn wire(&self) -> Wire {
        InterceptedService::new(self.channel.clone(), self.stamp.clone())
    }

    /// Keys and values.
    pub(crate) fn kv(&self) -> KvClient<Wire> {
        KvClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Leases.
    pub(crate) fn lease(&self) -> LeaseClient<Wire> {
        LeaseClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Watches. Refused by a member that has no leader: it would wait in silence.
    pub(crate) fn watch(&self) -> WatchClient<Wire> {
        let stamp = Stamp { needs_leader: true, ..self.stamp.clone() };
        let wire = InterceptedService::new(self.channel.clone(), stamp);
        WatchClient::new(wire).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Members.
    pub(crate) fn cluster(&self) -> ClusterClient<Wire> {
        ClusterClient::new(self.wire())
    }

    /// Maintenance.
    pub(crate) fn maintenance(&self) -> MaintenanceClient<Wire> {
        MaintenanceClient::new(self.wire()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Users and roles.
    pub(crate) fn auth(&self) -> AuthClient<Wire> {
        AuthClient::new(self.wire())
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// Nothing, or nothing that anybody misses or minds.
    Repeatable,
    /// A change that is the same however often it is made. Once it may have been made, whoever gets no further does not
    /// say that it was not.
    Settled,
    /// It changes something each time.
    Change,
}

/// A client of some servers.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) settings: Settings,
    state: Mutex<State>,
    /// Whether something was changed: by this client, or by those that were made of it.
    has_changed: Arc<AtomicBool>,
    /// Rises with each connection that is made or left: the number of the one that is used, if one is.
    number: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// The endpoint that is asked first.
    preferred: usize,
    link: Option<Link>,
}

impl Client {
    /// One that is not connected yet.
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Self::after(settings, Arc::default())
    }

    fn after(settings: Settings, has_changed: Arc<AtomicBool>) -> Arc<Self> {
        let (state, number) = (Mutex::default(), watch::Sender::new(0));
        Arc::new(Self { settings, state, has_changed, number })
    }

    /// Whether something was changed.
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// One that asks a single server, by the same settings.
    pub(crate) fn of_one(&self, endpoint: &str) -> Arc<Self> {
        let settings = Settings { endpoints: vec![endpoint.to_owned()], ..self.settings.clone() };
        Client::after(settings, Arc::clone(&self.has_changed))
    }

    /// One more, with connections of its own.
    pub(crate) fn another(&self) -> Arc<Self> {
        Client::after(self.settings.clone(), Arc::clone(&self.has_changed))
    }

    /// A connection: the one of before, or to the first endpoint that can be reached.
    pub(crate) async fn link(&self) -> Result<Link, Failure> {
        self.link_until(Instant::now() + NO_LIMIT).await
    }

    /// As `link`. Who says nothing takes no more of the time until then than is its share.
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
            // Whoever comes next does not wait for the same, if this one does not wait to the end.
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

    /// Whether an endpoint is reached with TLS, and where.
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
            .map_err(|_| Failure::Usage(format!("{name:?} is no HOST:PORT")))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(self.settings.keepalive_time)
            .keep_alive_timeout(self.settings.keepalive_timeout);
        if is_secure { tls::secured(endpoint, &self.settings.tls) } else { Ok(endpoint) }
    }

    /// The token of who asks; none where nobody is named, or the server does not care.
    async fn log_in(
        &self,
        link: &Link,
        share: Duration,
    ) -> Result<Option<MetadataValue<Ascii>>, Status> {
        let Some(login) = &self.settings.login else { return Ok(None) };
        // It was asked for before, if it was not given.
        let password = login.password.clone().unwrap_or_default();
        let request = pb::AuthenticateRequest { name: login.name.clone(), password };
        let limit = self.settings.command_timeout.min(share);
        let mut auth = link.auth();
        let asked = tokio::time::timeout(limit, auth.authenticate(request));
        match asked.await.map_err(|_| Status::deadline_exceeded("no answer to the login"))? {
            Ok(answer) => {
                let token = answer.into_inner().token.parse();
                token.map(Some).map_err(|_| Status::internal("the server's token cannot be sent"))
            }
            Err(status) if status.message().contains("authentication is not enabled") => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// The connection is of no use any more: the next request goes to the next endpoint.
    pub(crate) async fn leave(&self, link: &Link) {
        let mut state = self.state.lock().await;
        if state.link.as_ref().is_some_and(|now| now.number == link.number) {
            state.link = None;
            state.preferred = (link.at + 1) % self.settings.endpoints.len();
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Waits until a connection was left, by whoever has found first that it is of no use: what only waits at the
    /// other end hears nothing of that.
    pub(crate) async fn left(&self, link: &Link) {
        // The sender is this client's own.
        drop(self.number.subscribe().wait_for(|number| *number > link.number).await);
    }

    /// Asks, at one endpoint after the other where that is allowed, for as long as the command's timeout says.
    pub(crate) async fn ask<T>(
        &self,
        effect: Effect,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        self.ask_for(self.settings.command_timeout, effect, call).await
    }

    /// As `ask`, for so long.
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

    /// Says, too, whether an attempt was made of which nobody knows what came.
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
            // Somebody else may be connecting, or logging in, for longer than that.
            let link = tokio::time::timeout_at(end, self.link_until(end));
            let Ok(link) = link.await else { return Err(last.unwrap_or(Failure::Timeout(limit))) };
            let link = link?;
            let left = end.saturating_duration_since(Instant::now());
            // A server that hangs shall not take the whole time, if others can be asked the same.
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
                        return Err(Failure::Unknown(format!("no answer came within {limit:?}")));
                    }
                    last = Some(Failure::Timeout(limit));
                    continue;
                }
            };
            if needs_new_token(&status) && self.settings.login.is_some() && !has_logged_in_again {
                // The token has ended, or is another server's, or users have changed. Nothing was done.
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

/// Whether an endpoint is a socket file.
pub(crate) fn is_file(name: &str) -> bool {
    name.starts_with("unix://")
}

fn needs_new_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("auth: revision in header is old")
}

/// What a status says, and where it comes from the connection, why.
fn words(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(error) => format!("the connection broke: {}", root_cause(error)),
        None => status.message().to_owned(),
    }
}
