//! Re-checks authorization when a request's body arrives long after its headers. Otherwise a client could present a
//! valid token once and use it for as long as the connection lives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::identity::Identity;
use super::member::Member;
use super::permission::Needs;

/// Time for which a check stays valid if users and roles do not change. Nearly all bodies arrive within it.
const HOLDS_FOR: Duration = Duration::from_secs(1);

/// Maximum time for the message of a unary request to arrive.
pub(super) const MESSAGE_TIME_MAX: Duration = Duration::from_secs(60);

/// The body of a request whose headers were admitted.
pub(super) struct Late<B> {
    body: B,
    /// The pending checks, or `None` if the service checks every message itself.
    doubt: Option<Doubt>,
    patience: Patience,
}

/// Time limit for a body.
pub(super) enum Patience {
    /// No limit, for request streams.
    Endless,
    /// This long, counted from the first time at which the body has no data.
    Of(Duration),
    /// Until this timer fires.
    Until(Pin<Box<Sleep>>),
}

impl Patience {
    /// Returns whether the time is over. Called when the body has no data.
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
pub(super) fn too_slow() -> Status {
    Status::deadline_exceeded(format!(
        "bowline: the request did not arrive within {} s",
        MESSAGE_TIME_MAX.as_secs()
    ))
}

/// An admitted caller, and the time at which the caller was checked.
pub(super) struct Doubt {
    member: Arc<Member>,
    who: Identity,
    needs: Needs,
    /// Whether authentication was on; enabling it does not change its revision.
    were_on: bool,
    judged: Instant,
}

impl Doubt {
    /// Returns the state for a caller that was checked just now.
    pub(super) fn about(member: &Arc<Member>, who: &Identity, needs: Needs) -> Self {
        let were_on = member.client().access().is_enabled();
        let (member, who, judged) = (Arc::clone(member), who.clone(), Instant::now());
        Self { member, who, needs, were_on, judged }
    }

    fn look(&mut self) -> Result<(), Status> {
        let access = self.member.client().access();
        let is_as_it_was =
            (self.were_on, self.who.revision()) == (access.is_enabled(), access.revision());
        if is_as_it_was && self.judged.elapsed() < HOLDS_FOR {
            return Ok(());
        }
        self.were_on = access.is_enabled();
        self.who = self.who.again(&access, self.member.tokens())?;
        self.judged = Instant::now();
        self.needs.judge(&self.who, &access)
    }
}

impl<B> Late<B> {
    pub(super) fn new(body: B, doubt: Option<Doubt>, patience: Patience) -> Self {
        Self { body, doubt, patience }
    }
}

impl<B> HttpBody for Late<B>
where
    B: HttpBody + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            return match self.patience.has_ended(context) {
                true => Poll::Ready(Some(Err(too_slow().into()))),
                false => Poll::Pending,
            };
        };
        if let Some(Err(status)) = self.doubt.as_mut().map(Doubt::look) {
            return Poll::Ready(Some(Err(status.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
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
    use bytes::Bytes;
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
        let patience = Patience::Of(Duration::from_millis(100));
        let late = Late::new(Drip(None), None, patience);
        let collected = tokio::time::timeout(Duration::from_secs(20), late.collect()).await;
        let refused = collected.expect("the body is waited for").unwrap_err();
        let refused = Status::from_error(refused);
        assert_eq!(refused.code(), tonic::Code::DeadlineExceeded, "{refused:?}");
    }
}
