//! A request whose message comes later than its head: whoever asks is judged again when it is there, or a token could be
//! shown while it is good, and used for as long as a connection holds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;

use super::dispatch::Needs;
use super::identity::Identity;
use super::member::Member;

/// How long a judgement holds while users and roles stay as they are. Nearly all messages come with their heads.
const HOLDS_FOR: Duration = Duration::from_secs(1);

/// The body of a request that was let in by its head.
pub(super) struct Late<B> {
    body: B,
    /// None where every message is judged by the service.
    doubt: Option<Doubt>,
}

/// Who was let in, by what, and when that was.
pub(super) struct Doubt {
    member: Arc<Member>,
    who: Identity,
    needs: Needs,
    /// Whether users and roles were on then: that is no new revision of theirs.
    were_on: bool,
    judged: Instant,
}

impl Doubt {
    /// About who was let in just now.
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
    pub(super) fn new(body: B, doubt: Option<Doubt>) -> Self {
        Self { body, doubt }
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
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
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
