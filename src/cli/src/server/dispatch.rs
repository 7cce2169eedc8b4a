//! One port: which service a request is for, and what is asked of it before it gets there.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use super::http_side::HttpSide;
use super::kv::KvService;
use super::lease::LeaseService;
use super::member::Member;
use super::watch::WatchService;
use super::wire::Reason;
use crate::generated::etcdserverpb::kv_server::KvServer;
use crate::generated::etcdserverpb::lease_server::LeaseServer;
use crate::generated::etcdserverpb::watch_server::WatchServer;

/// What a client's message may be larger than the largest request.
const MESSAGE_SLACK_BYTES: usize = 512 << 10;

/// All services of a member. One for all connections, cloned for each.
#[derive(Clone)]
pub(super) struct Dispatch {
    member: Arc<Member>,
    bytes_max: usize,
    kv: KvServer<KvService>,
    watch: WatchServer<WatchService>,
    lease: LeaseServer<LeaseService>,
    http: HttpSide,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Dispatch {
    pub(super) fn new(member: &Arc<Member>) -> Self {
        let bytes_max = member.options().request_bytes_max + MESSAGE_SLACK_BYTES;
        let member = Arc::clone(member);
        Self {
            bytes_max,
            kv: KvServer::new(KvService(Arc::clone(&member))).max_decoding_message_size(bytes_max),
            watch: WatchServer::new(WatchService(Arc::clone(&member))),
            lease: LeaseServer::new(LeaseService(Arc::clone(&member))),
            http: HttpSide::new(&member),
            member,
        }
    }

    fn route(&mut self, request: Request<Incoming>) -> Answer {
        let is_grpc = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if !is_grpc {
            let http = self.http.clone();
            return Box::pin(async move { Ok(http.answer(request).await) });
        }
        if let Err(status) = self.admit(&request) {
            return Box::pin(async move { Ok(status.into_http()) });
        }
        let path = request.uri().path();
        let service = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        match service {
            "etcdserverpb.KV" => self.kv.call(request),
            "etcdserverpb.Watch" => self.watch.call(request),
            "etcdserverpb.Lease" => self.lease.call(request),
            _ => {
                let words = match path.rsplit_once('/') {
                    Some((_, method)) => format!("unknown service {service}: no method {method}"),
                    None => format!("malformed method name: {path:?}"),
                };
                Box::pin(async move { Ok(Status::unimplemented(words).into_http()) })
            }
        }
    }

    /// Refuses what needs a leader where there is none.
    fn admit(&self, request: &Request<Incoming>) -> Result<(), Status> {
        let requires = request.headers().get("hasleader").is_some_and(|value| value == "true");
        if requires && !self.member.has_leader() {
            return Err(Reason::NoLeader.into());
        }
        Ok(())
    }
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        let bytes_max = self.bytes_max;
        let answer = self.clone().route(request);
        Box::pin(async move {
            let mut response = answer.await?;
            say_too_large(&mut response, bytes_max);
            Ok(response)
        })
    }
}

/// A message that was too large to be read is refused in the words that etcd's clients know.
fn say_too_large(response: &mut Response<Body>, bytes_max: usize) {
    const OUT_OF_RANGE: &str = "11";
    const WORDS: &str = "Error, decoded message length too large: found ";
    let headers = response.headers_mut();
    if headers.get("grpc-status").is_none_or(|code| code != OUT_OF_RANGE) {
        return;
    }
    let Some(status) = Status::from_header_map(headers) else { return };
    let Some(rest) = status.message().strip_prefix(WORDS) else { return };
    let found = rest.split(' ').next().unwrap_or_default();
    let words = format!("grpc: received message larger than max ({found} vs. {bytes_max})");
    headers.insert("grpc-status", HeaderValue::from_static("8"));
    if let Ok(words) = HeaderValue::from_str(&words.replace(' ', "%20")) {
        headers.insert("grpc-message", words);
    }
}
