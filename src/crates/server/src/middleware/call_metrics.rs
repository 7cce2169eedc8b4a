//! Counts calls by method and outcome: the metrics `grpc_server_*`, as gRPC servers in Go report them. Each call has a
//! tracing span.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use tonic::body::Body;
use tonic::{Code, Status};
use tracing::Span;

use crate::middleware::body::polled_body;
use crate::middleware::traffic::{Direction, Messages, Traffic};
use crate::middleware::{Middleware, replace_body};
use crate::protocol::Method;

/// gRPC codes in numeric order, spelled as in Go's metrics.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Bucket bounds of `grpc_server_handling_seconds`, in seconds: the defaults of Prometheus' Go client.
const HANDLING_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Bucket bounds of `etcd_server_request_duration_seconds`, in seconds, as in etcd.
const REQUEST_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192,
];

/// Maximum length of a client's version, and maximum number of versions counted separately for each kind of call.
const VERSION_BYTES_MAX: usize = 16;
const CLIENTS_MAX: usize = 32;

/// Label for clients without a valid version, and for versions beyond `CLIENTS_MAX`.
const UNKNOWN: &str = "unknown";

/// Counters of all methods and clients.
pub(crate) struct CallMetrics {
    /// By index of the method. Methods that were never called are included, with zeros.
    methods: Vec<Arc<MethodCounts>>,
    traffic: Arc<Traffic>,
    /// For unary calls and for streams: number of calls by client version.
    clients: [Mutex<BTreeMap<String, u64>>; 2],
    healthy: AtomicU64,
    unhealthy: AtomicU64,
}

/// Labels and counts.
pub(crate) type Samples = Vec<(String, u64)>;

/// Counters of one method.
struct MethodCounts {
    method: &'static Method,
    /// Labels of the method.
    labels: String,
    begun: AtomicU64,
    ended: [AtomicU64; CODES.len()],
    times: Times,
    /// `None` if etcd does not measure these requests.
    requests: Option<RequestTimes>,
    /// The transactions that only read, which etcd measures separately.
    readonly: Option<RequestTimes>,
}

/// A histogram of durations. The last bucket counts durations above the last bound.
struct Times {
    bounds: &'static [f64],
    buckets: Box<[AtomicU64]>,
    nanos: AtomicU64,
}

impl Times {
    fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, nanos: AtomicU64::new(0) }
    }

    fn note(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.iter().position(|bound| seconds <= *bound);
        self.buckets[at.unwrap_or(self.bounds.len())].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn with_labels(&self, labels: String) -> LabelledTimes {
        let mut count = 0;
        let buckets = self.bounds.iter().zip(&self.buckets).map(|(bound, bucket)| {
            count += bucket.load(Ordering::Relaxed);
            (*bound, count)
        });
        let buckets = buckets.collect();
        count += self.buckets[self.bounds.len()].load(Ordering::Relaxed);
        let seconds = Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64();
        LabelledTimes { labels, buckets, count, seconds }
    }
}

/// The content of one histogram.
pub(crate) struct LabelledTimes {
    pub(crate) labels: String,
    /// Upper bounds in seconds, and the number of calls up to each.
    pub(crate) buckets: Vec<(f64, u64)>,
    /// Number of calls.
    pub(crate) count: u64,
    /// Sum of all durations, in seconds.
    pub(crate) seconds: f64,
}

/// Durations of the requests of one type, as etcd counts them.
struct RequestTimes {
    kind: &'static str,
    succeeded: Times,
    failed: Times,
}

impl RequestTimes {
    fn new(kind: &'static str) -> Self {
        let [succeeded, failed] = [(); 2].map(|()| Times::new(REQUEST_SECONDS));
        Self { kind, succeeded, failed }
    }

    /// In etcd, every error of a read is a failure. A change fails only if it is not applied.
    fn note(&self, code: Code, took: Duration) {
        let has_failed = match code {
            Code::Ok => false,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Internal => true,
            _ => [RANGE, READONLY_TXN].contains(&self.kind),
        };
        if has_failed { self.failed.note(took) } else { self.succeeded.note(took) }
    }

    /// Returns the histograms that contain calls.
    fn labelled(&self) -> impl Iterator<Item = LabelledTimes> {
        let times = [(true, &self.succeeded), (false, &self.failed)].into_iter();
        let labelled = times.map(|(success, times)| {
            times.with_labels(format!("success=\"{success}\",type=\"{}\"", self.kind))
        });
        labelled.filter(|times| times.count > 0)
    }
}

const RANGE: &str = "Range";
const TXN: &str = "Txn";
const READONLY_TXN: &str = "ReadonlyTxn";

/// Returns the type that etcd gives the requests of a method, or `None` if etcd does not measure them.
fn request_type(service: &str, method: &str) -> Option<&'static str> {
    Some(match (service, method) {
        ("etcdserverpb.KV", "Range") => RANGE,
        ("etcdserverpb.KV", "Put") => "Put",
        ("etcdserverpb.KV", "DeleteRange") => "DeleteRange",
        ("etcdserverpb.KV", "Txn") => TXN,
        ("etcdserverpb.KV", "Compact") => "Compaction",
        ("etcdserverpb.Lease", "LeaseGrant") => "LeaseGrant",
        ("etcdserverpb.Lease", "LeaseRevoke") => "LeaseRevoke",
        ("etcdserverpb.Maintenance", "Alarm") => "Alarm",
        ("etcdserverpb.Auth", "AuthEnable") => "AuthEnable",
        ("etcdserverpb.Auth", "AuthDisable") => "AuthDisable",
        ("etcdserverpb.Auth", "Authenticate") => "Authenticate",
        ("etcdserverpb.Auth", "UserAdd") => "AuthUserAdd",
        ("etcdserverpb.Auth", "UserGet") => "AuthUserGet",
        ("etcdserverpb.Auth", "UserList") => "AuthUserList",
        ("etcdserverpb.Auth", "UserDelete") => "AuthUserDelete",
        ("etcdserverpb.Auth", "UserChangePassword") => "AuthUserChangePassword",
        ("etcdserverpb.Auth", "UserGrantRole") => "AuthUserGrantRole",
        ("etcdserverpb.Auth", "UserRevokeRole") => "AuthUserRevokeRole",
        ("etcdserverpb.Auth", "RoleAdd") => "AuthRoleAdd",
        ("etcdserverpb.Auth", "RoleGet") => "AuthRoleGet",
        ("etcdserverpb.Auth", "RoleList") => "AuthRoleList",
        ("etcdserverpb.Auth", "RoleDelete") => "AuthRoleDelete",
        ("etcdserverpb.Auth", "RoleGrantPermission") => "AuthRoleGrantPermission",
        ("etcdserverpb.Auth", "RoleRevokePermission") => "AuthRoleRevokePermission",
        _ => return None,
    })
}

/// A mark that the service sets if a transaction only reads. A request of another kind has no mark.
#[derive(Clone, Default)]
pub(crate) struct ReadonlyMark(Option<Arc<AtomicBool>>);

impl ReadonlyMark {
    pub(crate) fn in_request<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_default()
    }

    pub(crate) fn set(&self) {
        if let Some(mark) = &self.0 {
            mark.store(true, Ordering::Relaxed);
        }
    }

    fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|mark| mark.load(Ordering::Relaxed))
    }
}

impl CallMetrics {
    pub(crate) fn new() -> Self {
        let methods = Method::all().iter().map(|method| {
            let Method { service, name, .. } = method;
            let kind = match (method.streams_requests, method.streams_responses) {
                (false, false) => "unary",
                (true, false) => "client_stream",
                (false, true) => "server_stream",
                (true, true) => "bidi_stream",
            };
            let request_type = request_type(service, name);
            Arc::new(MethodCounts {
                method,
                labels: format!(
                    "grpc_method=\"{name}\",grpc_service=\"{service}\",grpc_type=\"{kind}\""
                ),
                begun: AtomicU64::new(0),
                ended: std::array::from_fn(|_| AtomicU64::new(0)),
                times: Times::new(HANDLING_SECONDS),
                requests: request_type.map(RequestTimes::new),
                readonly: (request_type == Some(TXN)).then(|| RequestTimes::new(READONLY_TXN)),
            })
        });
        Self {
            methods: methods.collect(),
            traffic: Arc::default(),
            clients: Default::default(),
            healthy: AtomicU64::new(0),
            unhealthy: AtomicU64::new(0),
        }
    }

    /// Returns the byte counters of all calls.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Counts a health check over plain HTTP and its result.
    pub(crate) fn count_health_check(&self, is_healthy: bool) {
        let count = if is_healthy { &self.healthy } else { &self.unhealthy };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of health checks that reported healthy and unhealthy.
    pub(crate) fn health_counts(&self) -> (u64, u64) {
        (self.healthy.load(Ordering::Relaxed), self.unhealthy.load(Ordering::Relaxed))
    }

    /// Returns the durations of the calls of each method. A stream lasts until its last message.
    pub(crate) fn handling_times(&self) -> impl Iterator<Item = LabelledTimes> {
        self.methods.iter().map(|method| method.times.with_labels(method.labels.clone()))
    }

    /// Returns the durations of requests by etcd's types. Types without requests are omitted.
    pub(crate) fn request_times(&self) -> impl Iterator<Item = LabelledTimes> {
        let all = self.methods.iter().flat_map(|method| [&method.requests, &method.readonly]);
        all.flatten().flat_map(RequestTimes::labelled)
    }

    /// Counts the start of a call. Returns `None` for an unknown method.
    pub(crate) fn begins(&self, method: &Method) -> Option<Call> {
        let counts = self.methods.get(method.index)?;
        counts.begun.fetch_add(1, Ordering::Relaxed);
        let mark = ReadonlyMark(counts.readonly.as_ref().map(|_| Arc::default()));
        Some(Call(Some(RunningCall { counts: Arc::clone(counts), begun: Instant::now(), mark })))
    }

    /// Counts a call by the client version in its headers.
    pub(crate) fn count_client(&self, headers: &HeaderMap, is_stream: bool) {
        let is_version = |word: &&str| {
            word.len() <= VERSION_BYTES_MAX
                && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        let client_version =
            headers.get("client-api-version").and_then(|value| value.to_str().ok());
        let version = client_version.filter(is_version).unwrap_or(UNKNOWN);
        let mut clients =
            self.clients[usize::from(is_stream)].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = clients.get_mut(version) {
            *count += 1;
            return;
        }
        let version = if clients.len() < CLIENTS_MAX { version } else { UNKNOWN };
        *clients.entry(version.to_owned()).or_default() += 1;
    }

    /// Returns the number of calls by client version and kind.
    pub(crate) fn clients(&self) -> Samples {
        let of = |(clients, kind): (&Mutex<BTreeMap<String, u64>>, &str)| {
            let clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
            let labelled = |(version, count): (&String, &u64)| {
                (format!("client_api_version=\"{version}\",type=\"{kind}\""), *count)
            };
            clients.iter().map(labelled).collect::<Samples>()
        };
        self.clients.iter().zip(["unary", "stream"]).flat_map(of).collect()
    }

    /// Counts a call that was rejected before its message was read.
    pub(crate) fn refused(&self, method: &Method, status: &Status) {
        if let Some(mut call) = self.begins(method) {
            call.ends(status.code());
        }
    }

    /// Returns labels and counts of started and of completed calls. Codes without calls have the count 0, because
    /// Prometheus does not see the first increment of a series that did not exist before.
    pub(crate) fn samples(&self) -> (Samples, Samples) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let begun = self.methods.iter().map(|method| (method.labels.clone(), read(&method.begun)));
        let ended = self.methods.iter().flat_map(|method| {
            CODES.iter().zip(&method.ended).map(move |(code, count)| {
                (format!("grpc_code=\"{code}\",{}", method.labels), read(count))
            })
        });
        (begun.collect(), ended.collect())
    }
}

impl Middleware for Arc<CallMetrics> {
    type State = (Option<Call>, Arc<Traffic>, Span);

    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status> {
        let method = Method::of(request);
        let call = self.begins(method);
        self.count_client(request.headers(), method.is_stream());
        if let Some(mark) = call.as_ref().and_then(Call::mark) {
            request.extensions_mut().insert(mark);
        }
        let (traffic, span) = (Arc::clone(&self.traffic), self.traffic.span(request.uri().path()));
        replace_body(request, |body| counted(body, Direction::In, &traffic, span.clone(), None));
        Ok((call, traffic, span))
    }

    fn response((call, traffic, span): Self::State, response: Response<Body>) -> Response<Body> {
        let call = call.and_then(|call| call.record_unless_stream(response.headers()));
        response.map(|body| counted(body, Direction::Out, &traffic, span, call))
    }

    fn span((_, _, span): &Self::State) -> Option<&Span> {
        Some(span)
    }
}

/// A started call, with its start time. Dropping it before its end is counted counts it as cancelled.
pub(crate) struct Call(Option<RunningCall>);

struct RunningCall {
    counts: Arc<MethodCounts>,
    begun: Instant,
    mark: ReadonlyMark,
}

impl Call {
    /// Returns the mark that the service sets if the call is a transaction that only reads.
    fn mark(&self) -> Option<ReadonlyMark> {
        self.0.as_ref().map(|call| &call.mark).filter(|mark| mark.0.is_some()).cloned()
    }

    fn ends(&mut self, code: Code) {
        let Some(RunningCall { counts, begun, mark }) = self.0.take() else { return };
        let took = begun.elapsed();
        counts.times.note(took);
        counts.ended[code as usize].fetch_add(1, Ordering::Relaxed);
        let requests = if mark.is_set() { &counts.readonly } else { &counts.requests };
        if let Some(requests) = requests {
            requests.note(code, took);
        }
    }

    fn ends_with(&mut self, trailers: &HeaderMap) {
        self.ends(Status::from_header_map(trailers).map_or(Code::Ok, |status| status.code()));
    }

    /// Counts the outcome of a rejected or a unary call. Returns a streaming call, which ends with its body.
    fn record_unless_stream(mut self, headers: &HeaderMap) -> Option<Self> {
        match Status::from_header_map(headers) {
            Some(status) => self.ends(status.code()),
            None if self.0.as_ref().is_some_and(|call| call.counts.method.streams_responses) => {
                return Some(self);
            }
            None => self.ends(Code::Ok),
        }
        None
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.ends(Code::Cancelled);
    }
}

/// Returns a body whose messages are counted. A streaming call ends with the body of its response.
fn counted(
    body: Body,
    direction: Direction,
    traffic: &Arc<Traffic>,
    span: Span,
    mut call: Option<Call>,
) -> Body {
    let (traffic, mut messages) = (Arc::clone(traffic), Messages::default());
    polled_body(body, move |body, context| {
        let _within = span.enter();
        let frame = ready!(Pin::new(body).poll_frame(context));
        let read = frame.as_ref().map(Result::as_ref);
        if let Some(Ok(Some(data))) = read.map(|frame| frame.map(Frame::data_ref)) {
            traffic.count(direction, messages.count(data));
        }
        if let Some(call) = &mut call {
            match read {
                Some(Ok(frame)) => frame.trailers_ref().into_iter().for_each(|t| call.ends_with(t)),
                Some(Err(status)) => call.ends(status.code()),
                None => call.ends(Code::Ok),
            }
        }
        Poll::Ready(frame)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn unknown_client_versions_do_not_fill_the_table() {
        let calls = CallMetrics::new();
        let ask = |version: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("client-api-version", HeaderValue::from_str(version).unwrap());
            calls.count_client(&headers, false);
        };
        ask("3.6.9");
        (0..1_000).for_each(|n| ask(&format!("9.{n}")));
        ask("3.6.9");
        ask("no version");
        let counts = calls.clients();
        let of = |version| {
            let label = format!("client_api_version=\"{version}\",type=\"unary\"");
            counts.iter().find(|(found, _)| *found == label).map(|(_, count)| *count)
        };
        assert_eq!(of("3.6.9"), Some(2));
        assert_eq!(of(UNKNOWN), Some(1_000 - (CLIENTS_MAX as u64 - 1) + 1));
        assert_eq!(counts.len(), CLIENTS_MAX + 1);
    }

    #[test]
    fn aborted_call_counts_as_canceled() {
        let calls = CallMetrics::new();
        let method = Method::at("/v3lockpb.Lock/Lock");
        drop(calls.begins(method).unwrap());
        assert!(calls.begins(method).unwrap().record_unless_stream(&HeaderMap::new()).is_none());
        let (begun, ended) = calls.samples();
        let of = |samples: &Samples, word: &str| -> u64 {
            let is_it = |label: &&(String, u64)| {
                label.0.contains("grpc_method=\"Lock\"") && label.0.contains(word)
            };
            samples.iter().filter(is_it).map(|(_, count)| count).sum()
        };
        assert_eq!(of(&begun, ""), 2);
        assert_eq!((of(&ended, "\"Canceled\""), of(&ended, "\"OK\"")), (1, 1));
    }
}
