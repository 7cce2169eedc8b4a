//! Re-checks authorization when a request's body arrives long after its headers. Otherwise a client could present a
//! valid token once and use it for as long as the connection lives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Request;
use http_body::Body as _;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use crate::identity::Identity;
use crate::member::Member;
use crate::middleware::body::polled_body;
use crate::middleware::{Middleware, replace_body};
use crate::permission::Permission;
use crate::protocol::Method;

/// Time for which a check stays valid if users and roles do not change. Nearly all bodies arrive within it.
const VALID_FOR: Duration = Duration::from_secs(1);

/// Maximum time for the message of a unary request to arrive.
pub(crate) const MESSAGE_TIME_MAX: Duration = Duration::from_secs(60);

/// Re-checks the caller of a unary request when its message arrives, and limits the time until then.
#[derive(Clone)]
pub(crate) struct Reauthorization(pub(crate) Arc<Member>);

impl Middleware for Reauthorization {
    type State = ();

    fn request(&self, request: &mut Request<Body>) -> Result<(), Status> {
        let method = Method::of(request);
        let (needed, is_stream) = (method.permission, method.streams_requests);
        let is_checked = !is_stream && needed != Permission::None;
        let who = request.extensions().get::<Identity>().filter(|_| is_checked);
        let recheck = who.map(|who| AuthRecheck::about(&self.0, who, needed));
        let timeout = match is_stream {
            true => BodyTimeout::Endless,
            false => BodyTimeout::Of(MESSAGE_TIME_MAX),
        };
        replace_body(request, |body| rechecked(body, recheck, timeout));
        Ok(())
    }
}

/// Time limit for a body.
pub(crate) enum BodyTimeout {
    /// No limit, for request streams.
    Endless,
    /// Limit of this duration, counted from the first time at which the body has no data.
    Of(Duration),
    /// Until this timer fires.
    Until(Pin<Box<Sleep>>),
}

impl BodyTimeout {
    /// Returns whether the time limit has been exceeded. Called when the body has no data.
    fn has_ended(&mut self, context: &mut Context<'_>) -> bool {
        if let Self::Of(time) = self {
            *self = Self::Until(Box::pin(tokio::time::sleep(*time)));
        }
        match self {
            Self::Until(end) => end.as_mut().poll(context).is_ready(),
            Self::Endless | Self::Of(_) => false,
        }
    }
}

/// Returns the error for a body that takes too long.
pub(crate) fn too_slow() -> Status {
    Status::deadline_exceeded(format!(
        "bowline: the request did not arrive within {} s",
        MESSAGE_TIME_MAX.as_secs()
    ))
}

/// An admitted caller, and the time at which the caller was checked.
pub(crate) struct AuthRecheck {
    member: Arc<Member>,
    who: Identity,
    needed: Permission,
    /// Whether authentication was on; enabling it does not change its revision.
    was_enabled: bool,
    checked_at: Instant,
}

impl AuthRecheck {
    /// Returns the state for a caller that was checked just now.
    pub(crate) fn about(member: &Arc<Member>, who: &Identity, needed: Permission) -> Self {
        let was_enabled = member.client().access().is_enabled();
        let (member, who, checked_at) = (Arc::clone(member), who.clone(), Instant::now());
        Self { member, who, needed, was_enabled, checked_at }
    }

    fn look(&mut self) -> Result<(), Status> {
        let access = self.member.client().access();
        let is_as_it_was =
            (self.was_enabled, self.who.revision()) == (access.is_enabled(), access.revision());
        if is_as_it_was && self.checked_at.elapsed() < VALID_FOR {
            return Ok(());
        }
        self.was_enabled = access.is_enabled();
        self.who = self.who.again(&access, self.member.tokens())?;
        self.checked_at = Instant::now();
        self.needed.check(&self.who, &access)
    }
}

/// Returns the body of a request whose headers were admitted. `recheck` has the pending checks, or is `None` if the
/// service checks every message itself.
pub(crate) fn rechecked(
    body: Body,
    mut recheck: Option<AuthRecheck>,
    mut timeout: BodyTimeout,
) -> Body {
    polled_body(body, move |body, context| {
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            return match timeout.has_ended(context) {
                true => Poll::Ready(Some(Err(too_slow()))),
                false => Poll::Pending,
            };
        };
        match recheck.as_mut().map(AuthRecheck::look) {
            Some(Err(status)) => Poll::Ready(Some(Err(status))),
            _ => Poll::Ready(frame),
        }
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body::{Body as HttpBody, Frame};
    use http_body_util::BodyExt;

    use super::*;

    /// A body that yields a frame every few milliseconds without end.
    struct Drip(Option<Pin<Box<Sleep>>>);

    impl HttpBody for Drip {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let pause = || Box::pin(tokio::time::sleep(Duration::from_millis(5)));
            if self.0.get_or_insert_with(pause).as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.0 = None;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    #[tokio::test]
    async fn slowly_dripping_message_times_out() {
        let timeout = BodyTimeout::Of(Duration::from_millis(100));
        let body = rechecked(Body::new(Drip(None)), None, timeout);
        let collected = tokio::time::timeout(Duration::from_secs(20), body.collect()).await;
        let refused = collected.expect("the body is waited for").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::DeadlineExceeded, "{refused:?}");
    }
}
