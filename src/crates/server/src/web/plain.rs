//! Plain HTTP: version, health and metrics.

use std::sync::Arc;

use bowline::{KeyRange, Role, cluster::AlarmKind};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::json;
use tonic::body::Body;

use crate::alarms::Alarms;
use crate::member::Member;
use crate::middleware::call_metrics::CallMetrics;
use crate::version::EtcdVersion;
use crate::web::{metrics, probes};

#[derive(Clone)]
pub(crate) struct PlainHttp {
    pub(crate) member: Arc<Member>,
    pub(crate) alarms: Arc<Alarms>,
    pub(crate) calls: Arc<CallMetrics>,
}

impl PlainHttp {
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let response = self.answer_whole(request).await;
        if is_head { response.map(|_| Body::empty()) } else { response }
    }

    async fn answer_whole(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        let is_probe = probes::is_probe(path);
        let is_for_get = is_probe || ["/version", "/health", "/debug/vars"].contains(&path);
        // As in etcd, only /metrics accepts methods other than GET.
        if is_for_get && request.method() != Method::GET {
            let words = "Method Not Allowed\n".to_owned();
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, words);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return response;
        }
        if is_probe {
            let (is_well, body) = probes::answer(&self.member, &self.alarms, path, query).await;
            let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            return text(status, body);
        }
        match path {
            "/version" => answer_json(StatusCode::OK, versions(self.member.announced())),
            "/health" => self.health(query).await,
            "/metrics" => {
                text(StatusCode::OK, metrics::text(&self.member, &self.alarms, &self.calls))
            }
            "/debug/vars" => answer_json(StatusCode::OK, self.vars().to_string()),
            _ => not_found(),
        }
    }

    /// Returns the Raft status under the names of etcd's Go variables.
    fn vars(&self) -> serde_json::Value {
        let status = self.member.node().status();
        let role = match status.role {
            Role::Leader => "StateLeader",
            Role::Candidate => "StateCandidate",
            _ => "StateFollower",
        };
        json!({"raft.status": {
            "id": format!("{:x}", status.id.get()),
            "term": status.term.get(),
            "lead": format!("{:x}", status.leader.map_or(0, |leader| leader.get())),
            "raftState": role,
            "commit": status.commit.get(),
            "applied": status.applied.get(),
        }})
    }

    /// Checks the health as etcd does, with a read.
    async fn health(&self, query: &str) -> Response<Body> {
        let has_option = |wanted: &str| query.split('&').any(|pair| pair == wanted);
        let alarm = [AlarmKind::Corrupt, AlarmKind::NoSpace].into_iter().find(|kind| {
            !has_option(&format!("exclude={kind}")) && self.alarms.is_unhealthy(*kind)
        });
        let own = self.member.node().health();
        let is_local = has_option("serializable=true");
        let reason = if let Some(kind) = alarm {
            Some(format!("ALARM {kind}"))
        } else if !is_local && !self.member.has_leader() {
            Some("RAFT NO LEADER".to_owned())
        } else if !own.is_alive() {
            Some(own.to_string())
        } else if is_local && probes::has_no_state_yet(&own) {
            None
        } else {
            let read = self.member.client().range(KeyRange::key("health")).limit(1);
            let read = if is_local { read.local() } else { read };
            read.await.err().map(|error| format!("RANGE ERROR:{error}"))
        };
        self.calls.count_health_check(reason.is_none());
        let (status, health) = match &reason {
            None => (StatusCode::OK, "true"),
            Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "false"),
        };
        let body = json!({"health": health, "reason": reason.unwrap_or_default()});
        answer_json(status, body.to_string())
    }
}

/// Returns the versions in etcd's field order, on which scripts without a JSON parser rely.
fn versions(announced: EtcdVersion) -> String {
    let (server, cluster) = (announced.server(), announced.cluster());
    format!(r#"{{"etcdserver":"{server}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#)
}

/// Returns whether a path is about health or metrics.
pub(crate) fn is_health(path: &str) -> bool {
    ["/health", "/metrics"].contains(&path) || probes::is_probe(path)
}

/// Returns the response for too many concurrent requests.
pub(crate) fn too_many() -> Response<Body> {
    text(StatusCode::TOO_MANY_REQUESTS, "too many requests\n".into())
}

/// Returns the response to a malformed request.
pub(crate) fn bad_request(why: &str) -> Response<Body> {
    text(StatusCode::BAD_REQUEST, format!("400 Bad Request: {why}\n"))
}

/// Returns the response to a request that is not allowed.
pub(crate) fn forbidden(why: &str) -> Response<Body> {
    text(StatusCode::FORBIDDEN, format!("403 Forbidden: {why}\n"))
}

/// Returns the response for an unknown path.
pub(crate) fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n".into())
}

fn answer_json(status: StatusCode, body: String) -> Response<Body> {
    answer(status, "application/json", body)
}

fn text(status: StatusCode, body: String) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", body)
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
