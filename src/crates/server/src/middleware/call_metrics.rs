//! Counts calls by method and outcome: the metrics `grpc_server_*`, as gRPC servers in Go report them. Each call has a
//! tracing span.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tracing::Span;

use crate::middleware::traffic::{Direction, Messages, Traffic};
use crate::middleware::{Middleware, replace_body};
use crate::protocol::methods;

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
pub(crate) const SECONDS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Maximum length of a client's version, and maximum number of versions counted separately for each kind of call.
const VERSION_BYTES_MAX: usize = 16;
const CLIENTS_MAX: usize = 32;

/// Label for clients without a valid version, and for versions beyond `CLIENTS_MAX`.
const UNKNOWN: &str = "unknown";

/// Counters of all methods and clients.
pub(crate) struct CallMetrics {
    /// By path. Methods that were never called are included, with zeros.
    methods: BTreeMap<String, Arc<Method>>,
    traffic: Arc<Traffic>,
    /// For unary calls and for streams: number of calls by client version.
    clients: [Mutex<BTreeMap<String, u64>>; 2],
    healthy: AtomicU64,
    unhealthy: AtomicU64,
}

/// Labels and counts.
pub(crate) type Samples = Vec<(String, u64)>;

/// Counters of one method.
struct Method {
    /// Labels of the method.
    labels: String,
    /// Whether requests or responses are streamed, and whether responses are.
    is_stream: bool,
    streams: bool,
    begun: AtomicU64,
    ended: [AtomicU64; CODES.len()],
    times: Times,
}

/// A histogram of the duration of calls. The last bucket counts durations above the last bound.
#[derive(Default)]
struct Times {
    buckets: [AtomicU64; SECONDS.len() + 1],
    nanos: AtomicU64,
}

impl Times {
    fn note(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(SECONDS.len());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Durations of the calls of one method.
pub(crate) struct MethodTimes<'a> {
    /// Labels of the method.
    pub(crate) labels: &'a str,
    /// Number of calls up to each bound; the last element counts all calls.
    pub(crate) cumulative: [u64; SECONDS.len() + 1],
    /// Sum of all durations, in seconds.
    pub(crate) seconds: f64,
}

impl CallMetrics {
    pub(crate) fn new() -> Self {
        let methods = methods().map(|method| {
            let (service, name) = (method.parent_service().full_name().to_owned(), method.name());
            let kind = match (method.is_client_streaming(), method.is_server_streaming()) {
                (false, false) => "unary",
                (true, false) => "client_stream",
                (false, true) => "server_stream",
                (true, true) => "bidi_stream",
            };
            let counted = Method {
                labels: format!(
                    "grpc_method=\"{name}\",grpc_service=\"{service}\",grpc_type=\"{kind}\""
                ),
                is_stream: method.is_client_streaming() || method.is_server_streaming(),
                streams: method.is_server_streaming(),
                begun: AtomicU64::new(0),
                ended: std::array::from_fn(|_| AtomicU64::new(0)),
                times: Times::default(),
            };
            (format!("/{service}/{name}"), Arc::new(counted))
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
    pub(crate) fn health_told(&self, is_healthy: bool) {
        let count = if is_healthy { &self.healthy } else { &self.unhealthy };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of health checks that reported healthy and unhealthy.
    pub(crate) fn health_counts(&self) -> (u64, u64) {
        (self.healthy.load(Ordering::Relaxed), self.unhealthy.load(Ordering::Relaxed))
    }

    /// Returns the durations of the calls of each method. A stream lasts until its last message.
    pub(crate) fn times(&self) -> impl Iterator<Item = MethodTimes<'_>> {
        self.methods.values().map(|method| {
            let Method { labels, times, .. } = &**method;
            let mut sum = 0;
            let cumulative = std::array::from_fn(|at| {
                sum += times.buckets[at].load(Ordering::Relaxed);
                sum
            });
            let seconds = Duration::from_nanos(times.nanos.load(Ordering::Relaxed)).as_secs_f64();
            MethodTimes { labels, cumulative, seconds }
        })
    }

    /// Counts the start of a call. Returns `None` if there is no method at this path.
    pub(crate) fn begins(&self, path: &str) -> Option<Call> {
        let method = self.methods.get(path)?;
        method.begun.fetch_add(1, Ordering::Relaxed);
        Some(Call(Some((Arc::clone(method), Instant::now()))))
    }

    /// Counts a call by the client version in its headers.
    pub(crate) fn comes_from(&self, headers: &HeaderMap, call: Option<&Call>) {
        let is_version = |word: &&str| {
            word.len() <= VERSION_BYTES_MAX
                && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        let says = headers.get("client-api-version").and_then(|value| value.to_str().ok());
        let version = says.filter(is_version).unwrap_or(UNKNOWN);
        let kind = usize::from(call.is_some_and(Call::is_stream));
        let mut clients = self.clients[kind].lock().unwrap_or_else(PoisonError::into_inner);
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
    pub(crate) fn refused(&self, path: &str, status: &Status) {
        if let Some(mut call) = self.begins(path) {
            call.ends(status.code());
        }
    }

    /// Returns labels and counts of started and of completed calls. Codes without calls are omitted, except for OK.
    pub(crate) fn samples(&self) -> (Samples, Samples) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let begun =
            self.methods.values().map(|method| (method.labels.clone(), read(&method.begun)));
        let ended = self.methods.values().flat_map(|method| {
            let codes = CODES.iter().zip(&method.ended).map(move |(code, count)| {
                (format!("grpc_code=\"{code}\",{}", method.labels), *code, read(count))
            });
            codes.filter(|(_, code, count)| *count > 0 || *code == CODES[0])
        });
        (begun.collect(), ended.map(|(labels, _, count)| (labels, count)).collect())
    }
}

impl Middleware for Arc<CallMetrics> {
    type State = (Option<Call>, Arc<Traffic>, Span);

    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status> {
        let call = self.begins(request.uri().path());
        self.comes_from(request.headers(), call.as_ref());
        let (traffic, span) = (Arc::clone(&self.traffic), self.traffic.span(request.uri().path()));
        replace_body(request, |body| {
            CountedBody::new(body, Direction::In, &traffic, span.clone(), None)
        });
        Ok((call, traffic, span))
    }

    fn response((call, traffic, span): Self::State, response: Response<Body>) -> Response<Body> {
        let call = call.and_then(|call| call.unless_over(response.headers()));
        response.map(|body| Body::new(CountedBody::new(body, Direction::Out, &traffic, span, call)))
    }

    fn span((_, _, span): &Self::State) -> Option<&Span> {
        Some(span)
    }
}

/// A started call, with its start time. Dropping it before its end is counted counts it as cancelled.
pub(crate) struct Call(Option<(Arc<Method>, Instant)>);

impl Call {
    fn is_stream(&self) -> bool {
        self.0.as_ref().is_some_and(|(method, _)| method.is_stream)
    }

    fn ends(&mut self, code: Code) {
        if let Some((method, begun)) = self.0.take() {
            method.times.note(begun.elapsed());
            method.ended[code as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn ends_with(&mut self, trailers: &HeaderMap) {
        self.ends(Status::from_header_map(trailers).map_or(Code::Ok, |status| status.code()));
    }

    /// Counts the outcome of a rejected or a unary call. Returns a streaming call, which ends with its body.
    fn unless_over(mut self, headers: &HeaderMap) -> Option<Self> {
        match Status::from_header_map(headers) {
            Some(status) => self.ends(status.code()),
            None if self.0.as_ref().is_some_and(|(method, _)| method.streams) => return Some(self),
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

/// The body of a request or of a response, whose messages are counted. A streaming call ends with its response.
struct CountedBody {
    body: Body,
    direction: Direction,
    traffic: Arc<Traffic>,
    /// Span in which the body is polled.
    span: Span,
    messages: Messages,
    call: Option<Call>,
}

impl CountedBody {
    fn new(
        body: Body,
        direction: Direction,
        traffic: &Arc<Traffic>,
        span: Span,
        call: Option<Call>,
    ) -> Self {
        let (traffic, messages) = (Arc::clone(traffic), Messages::default());
        Self { body, direction, traffic, span, messages, call }
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let _within = this.span.enter();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        let read = frame.as_ref().map(Result::as_ref);
        if let Some(Ok(Some(data))) = read.map(|frame| frame.map(Frame::data_ref)) {
            this.traffic.count(this.direction, this.messages.count(data));
        }
        if let Some(call) = &mut this.call {
            match read {
                Some(Ok(frame)) => frame.trailers_ref().into_iter().for_each(|t| call.ends_with(t)),
                Some(Err(status)) => call.ends(status.code()),
                None => call.ends(Code::Ok),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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
            calls.comes_from(&headers, None);
        };
        ask("3.6.9");
        (0..1_000).for_each(|n| ask(&format!("9.{n}")));
        ask("3.6.9");
        ask("no version");
        let said = calls.clients();
        let of = |version| {
            let label = format!("client_api_version=\"{version}\",type=\"unary\"");
            said.iter().find(|(found, _)| *found == label).map(|(_, count)| *count)
        };
        assert_eq!(of("3.6.9"), Some(2));
        assert_eq!(of(UNKNOWN), Some(1_000 - (CLIENTS_MAX as u64 - 1) + 1));
        assert_eq!(said.len(), CLIENTS_MAX + 1);
    }

    #[test]
    fn aborted_call_counts_as_canceled() {
        let calls = CallMetrics::new();
        let path = "/v3lockpb.Lock/Lock";
        drop(calls.begins(path).unwrap());
        assert!(calls.begins(path).unwrap().unless_over(&HeaderMap::new()).is_none());
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
