//! Bodies that do something whenever they are polled.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// The next frame of a body. `None` after the last.
pub(crate) type NextFrame = Option<Result<Frame<Bytes>, Status>>;

/// A body that is polled through a function.
struct PolledBody<P> {
    body: Body,
    poll: P,
}

/// Returns a body whose frames are those that `poll` returns. The function polls the given body.
pub(crate) fn polled_body<P>(body: Body, poll: P) -> Body
where
    P: FnMut(&mut Body, &mut Context<'_>) -> Poll<NextFrame> + Send + Unpin + 'static,
{
    Body::new(PolledBody { body, poll })
}

impl<P> HttpBody for PolledBody<P>
where
    P: FnMut(&mut Body, &mut Context<'_>) -> Poll<NextFrame> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let this = &mut *self;
        (this.poll)(&mut this.body, context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
