//! The bytes of gRPC's messages on their way in and out, and the number and the span of each request.
//!
//! ```text
//!   request ──▶ Counted ──▶ service ──▶ Counted ──▶ answer      both in the request's span, however long the answer streams
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Buf;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tracing::Span;

/// What all requests of a member have brought and been answered: the bytes of messages, as etcd counts them, without
/// headers, frames and TLS.
#[derive(Default)]
pub(super) struct Traffic {
    requests: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    /// A span for the next request, with its number; none, and no number, while nobody traces.
    pub(super) fn span(&self, method: &str) -> Span {
        tracing::debug_span!(
            "request",
            method,
            id = self.requests.fetch_add(1, Ordering::Relaxed) + 1
        )
    }

    /// The bytes that were received and sent.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed))
    }
}

/// Which way a body goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// From a client.
    In,
    /// To a client.
    Out,
}

/// A body whose bytes are counted.
pub(super) struct Counted<B> {
    body: B,
    traffic: Arc<Traffic>,
    way: Way,
    /// In which whatever makes the body's frames runs.
    span: Span,
    messages: Messages,
}

impl<B> Counted<B> {
    pub(super) fn new(body: B, traffic: &Arc<Traffic>, way: Way, span: &Span) -> Self {
        let (traffic, span) = (Arc::clone(traffic), span.clone());
        Self { body, traffic, way, span, messages: Messages::default() }
    }
}

/// Where one message ends and the next begins: before each stand a byte and, in four, its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Messages {
    /// How much is there of what stands before the next message, and its length as far as that says it.
    head: usize,
    length: u32,
    /// What is missing of the message.
    left: u32,
}

const HEAD_BYTES: usize = 5;

impl Messages {
    /// How many of these bytes, which come next, are of messages.
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut count = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let here = bytes.len().min(self.left as usize);
                self.left -= here as u32;
                count += here as u64;
                bytes = &bytes[here..];
                continue;
            }
            // The first says whether it is compressed.
            self.length = if self.head == 0 { 0 } else { self.length << 8 | u32::from(*first) };
            self.head += 1;
            bytes = rest;
            if self.head == HEAD_BYTES {
                (self.head, self.left) = (0, self.length);
            }
        }
        count
    }
}

impl<B: HttpBody + Unpin> HttpBody for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = &mut *self;
        let _within = this.span.enter();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            let count = match this.way {
                Way::In => &this.traffic.received,
                Way::Out => &this.traffic.sent,
            };
            // They are in one piece, wherever they come from.
            count.fetch_add(this.messages.count(data.chunk()), Ordering::Relaxed);
        }
        frame
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

    #[test]
    fn only_messages_are_counted_however_they_are_cut() {
        let mut bytes = Vec::new();
        for length in [6_u32, 0, 300] {
            bytes.push(0);
            bytes.extend(length.to_be_bytes());
            bytes.resize(bytes.len() + length as usize, 7);
        }
        for piece in [1, 2, 3, 5, 7, 100, bytes.len()] {
            let mut messages = Messages::default();
            let count: u64 = bytes.chunks(piece).map(|piece| messages.count(piece)).sum();
            assert_eq!(count, 306, "in pieces of {piece}");
            assert_eq!(messages.left, 0);
        }
    }
}
