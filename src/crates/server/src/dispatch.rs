//! Routes requests on one port to gRPC, to the JSON gateway, and to plain HTTP.

use std::convert::Infallible;
use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::body::Body;

use crate::alarms::Alarms;
use crate::calls::own_task;
use crate::endpoint::ListenerScope;
use crate::grpc::Grpc;
use crate::member::Member;
use crate::middleware::call_metrics::CallMetrics;
use crate::middleware::connection::{Connection, holding};
use crate::middleware::cpu_permits::CpuPermits;
use crate::services::Answer;
use crate::settings::WebSettings;
use crate::web::cors::Cors;
use crate::web::gateway;
use crate::web::gateway::websocket::{self, Upgraded};
use crate::web::path;
use crate::web::plain::{self, PlainHttp};

/// Error for gRPC requests on ports without gRPC.
const NO_GRPC: &str = "gRPC is not served on this port: use one of --listen-client-urls";

/// Everything that a server offers. There is one instance, cloned for each connection.
#[derive(Clone)]
pub(crate) struct Dispatch {
    grpc: Grpc,
    http: PlainHttp,
    upgraded: Upgraded,
}

impl Dispatch {
    pub(crate) fn new(member: &Arc<Member>) -> Self {
        let (alarms, calls) = (Arc::new(Alarms::new(member)), Arc::new(CallMetrics::new()));
        let connection = Connection::new(ListenerScope::All, &CpuPermits::new(), None);
        let grpc = Grpc::new(member, &alarms, &calls, Arc::new(connection));
        let http = PlainHttp { member: Arc::clone(member), alarms, calls };
        Self { grpc, http, upgraded: Upgraded::default() }
    }

    /// Returns an instance for one connection to a port with these services. `user` is the user named in the
    /// connection's certificate.
    pub(crate) fn of_connection(&self, scope: ListenerScope, user: Option<Arc<str>>) -> Self {
        let connection = Connection::new(scope, &self.grpc.connection.permits, user);
        let (grpc, upgraded) = (self.grpc.with(connection), Upgraded::default());
        Self { grpc, upgraded, http: self.http.clone() }
    }

    /// Returns the place for the call with which the connection continues if a request upgrades it to a WebSocket.
    pub(crate) fn upgraded(&self) -> Upgraded {
        self.upgraded.clone()
    }

    fn route(&self, request: Request<Incoming>) -> Answer {
        let is_grpc = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if is_grpc {
            if matches!(self.grpc.connection.scope, ListenerScope::Http | ListenerScope::Health) {
                let status = Status::unimplemented(NO_GRPC);
                return Box::pin(async move { Ok(status.into_http()) });
            }
            return self.grpc.call(request.map(Body::new));
        }
        match self.grpc.connection.scope {
            ListenerScope::Grpc => Box::pin(async { Ok(plain::not_found()) }),
            // Monitoring systems are not web pages, so CORS does not apply.
            ListenerScope::Health => self.route_http(request),
            ListenerScope::All | ListenerScope::Http => self.route_web(request),
        }
    }

    /// Routes a request that may be from a web page.
    fn route_web(&self, request: Request<Incoming>) -> Answer {
        let cors = Cors::of(request.headers(), &self.web().origins);
        let answer = if request.method() == Method::OPTIONS {
            // Before the actual request, a browser asks for permission.
            Box::pin(async { Ok(Response::new(Body::empty())) })
        } else if matches!(cors, Cors::Denied) && websocket::is_upgrade(request.headers()) {
            // Browsers do not enforce the permission for WebSockets.
            Box::pin(async { Ok(plain::forbidden("the origin is not one of --cors")) })
        } else {
            self.route_http(request)
        };
        Box::pin(async move { Ok(cors.add_to(answer.await?)) })
    }

    fn route_http(&self, mut request: Request<Incoming>) -> Answer {
        if let Err(response) = path::normalize(request.uri_mut()) {
            return Box::pin(async move { Ok(gateway::refused_unread(request, response).await) });
        }
        let path = request.uri().path();
        if self.grpc.connection.scope == ListenerScope::Health && !plain::is_health(path) {
            return Box::pin(async { Ok(plain::not_found()) });
        }
        if self.web().offers_json && gateway::is_for(path) {
            // As in etcd, a certificate identifies no user of the JSON gateway; callers send a token.
            let connection =
                Connection { certified: None, ..Connection::clone(&self.grpc.connection) };
            let grpc = self.grpc.with(connection);
            if websocket::is_upgrade(request.headers()) {
                let response = self.upgraded.by(grpc, request);
                return Box::pin(async move { Ok(response) });
            }
            return Box::pin(async move {
                // Converting JSON takes long.
                own_task().await;
                Ok(gateway::answer(&grpc, request).await)
            });
        }
        // Callers of plain HTTP never authenticate.
        let needs_permit = self.http.member.client().access().is_enabled();
        let Ok(held) = needs_permit.then(|| self.grpc.connection.anonymous_permit()).transpose()
        else {
            return Box::pin(async { Ok(plain::too_many()) });
        };
        let http = self.http.clone();
        Box::pin(async move { Ok(http.answer(request).await.map(|body| holding(body, held))) })
    }

    fn web(&self) -> &WebSettings {
        &self.http.member.settings().web
    }
}

impl hyper::service::Service<Request<Incoming>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        self.route(request)
    }
}
