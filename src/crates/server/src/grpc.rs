//! Handles gRPC requests: makes the checks that apply to every request, and calls the service.

use std::error::Error as _;
use std::sync::Arc;

use bowline::Error;
use http::{HeaderMap, Request, Response};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;
use tonic::body::Body;
use tracing::Instrument as _;

use super::alarms::Alarms;
use super::aside::{Aside, Large};
use super::calls::Calls;
use super::compression::{compress_like_the_request, say_too_large, saying_too_large};
use super::connection::{Connection, holding};
use super::deadline::Deadline;
use super::identity::Identity;
use super::late::{Doubt, Late, MESSAGE_TIME_MAX, Patience};
use super::leader::asks_for_leader;
use super::member::Member;
use super::permission::Needs;
use super::room::{Held, Room};
use super::services::{Answer, HEALTH, Services, service_of};
use super::traffic::{Counted, Way};
use super::wire::Reason;

/// Methods with request streams, whose messages the service checks one by one.
const STREAMS: [&str; 2] = ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];

/// The gRPC side of a server, for one connection.
#[derive(Clone)]
pub(super) struct Grpc {
    pub(super) member: Arc<Member>,
    pub(super) services: Arc<Services>,
    pub(super) calls: Arc<Calls>,
    pub(super) alarms: Arc<Alarms>,
    pub(super) watch_room: Room,
    pub(super) connection: Connection,
}

impl Grpc {
    /// Handles a gRPC request from any source.
    pub(super) fn call<B>(&self, mut request: Request<B>) -> Answer
    where
        B: http_body::Body + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
        B::Data: Send,
    {
        let path = request.uri().path().to_owned();
        let calls = &self.calls;
        let call = calls.begins(&path);
        calls.comes_from(request.headers(), call.as_ref());
        let traffic = Arc::clone(calls.traffic());
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
        let held = match is_nobody.then(|| self.connection.anonymous_permit()).transpose() {
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
        request.extensions_mut().insert(self.connection.turns.clone());
        let answer = self.services.call(&path, (is_nobody, is_compressed), request);
        let alarms = Arc::clone(&self.alarms);
        let is_watch = service_of(&path) == "etcdserverpb.Watch";
        let watch_room = is_watch.then(|| self.watch_room.clone());
        let turns = self.connection.turns.clone();
        let within = span.clone();
        let answer = async move {
            let mut response = match deadline.within(answer).await {
                Ok(answered) => answered?,
                Err(status) => return Ok(counted(status.into_http())),
            };
            say_too_large(response.headers_mut());
            if is_for_space(&response) {
                alarms.raise_no_space();
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

    /// Checks whether a request may be read at all, so that the server buffers nothing for callers without permission.
    /// The request is checked again after reading. Until then the returned permit is held.
    pub(super) fn may_be_read(
        &self,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Option<OwnedSemaphorePermit>, Status> {
        let judged = self.admit(headers, path).and_then(|who| {
            self.is_nobody(Needs::of(path), &who)
                .then(|| self.connection.anonymous_permit())
                .transpose()
        });
        judged.inspect_err(|status| self.calls.refused(path, status))
    }

    /// Returns whether an admitted call is unauthenticated while authentication is on.
    fn is_nobody(&self, needs: Needs, who: &Identity) -> bool {
        let is_open = matches!(needs, Needs::Nobody | Needs::Watch);
        let is_known = || self.member.again(who).is_ok_and(|who| who.user().is_some());
        is_open && self.member.client().access().is_enabled() && !is_known()
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
            return Ok(Identity::unjudged(headers, self.connection.certified.as_ref()));
        }
        let access = self.member.client().access();
        let who = Identity::of(
            headers,
            &access,
            self.member.tokens(),
            self.connection.certified.as_ref(),
        )?;
        needs.judge(&who, &access)?;
        Ok(who)
    }
}

/// Returns whether a request was rejected for lack of space at this member. An alarm has the same text but is not meant
/// here.
fn is_for_space(response: &Response<Body>) -> bool {
    let why = response.extensions().get::<Status>().and_then(|status| status.source());
    let why = why.and_then(|why| why.downcast_ref());
    matches!(why, Some(Error::QuotaExceeded { .. } | Error::NoSpace))
}
