//! Counts the bytes of gRPC messages, and gives each request a number and a tracing span.
//!
//! ```text
//!   request ──▶ CountedBody ──▶ service ──▶ CountedBody ──▶ response    both in the request's span, until the response ends
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Buf;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tracing::Span;

/// Counters of all requests of a member. Bytes are those of messages, as etcd counts them, without headers, frames and
/// TLS.
#[derive(Default)]
pub(crate) struct Traffic {
    requests: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Traffic {
    /// Returns a span with a number for the next request. Without tracing there is neither.
    pub(crate) fn span(&self, method: &str) -> Span {
        tracing::debug_span!(
            "request",
            method,
            id = self.requests.fetch_add(1, Ordering::Relaxed) + 1
        )
    }

    /// Returns the numbers of bytes received and sent.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed))
    }
}

/// Direction of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From a client.
    In,
    /// To a client.
    Out,
}

/// A body whose bytes are counted.
pub(crate) struct CountedBody<B> {
    body: B,
    traffic: Arc<Traffic>,
    direction: Direction,
    /// Span in which the body is polled.
    span: Span,
    messages: Messages,
}

impl<B> CountedBody<B> {
    pub(crate) fn new(body: B, traffic: &Arc<Traffic>, direction: Direction, span: &Span) -> Self {
        let (traffic, span) = (Arc::clone(traffic), span.clone());
        Self { body, traffic, direction, span, messages: Messages::default() }
    }
}

/// Parser state for message boundaries. Each message is preceded by a flag byte and a length of four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Messages {
    /// Number of bytes of the next message's prefix read so far, and the length as far as read.
    head: usize,
    length: u32,
    /// Number of bytes left of the current message.
    left: u32,
}

const HEAD_BYTES: usize = 5;

impl Messages {
    /// Returns how many of the next bytes belong to messages.
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
            // The first byte is the compression flag.
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

impl<B: HttpBody + Unpin> HttpBody for CountedBody<B> {
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
            let count = match this.direction {
                Direction::In => &this.traffic.received,
                Direction::Out => &this.traffic.sent,
            };
            // The frame is a single chunk, whatever its source is.
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
    fn only_message_bytes_are_counted_for_any_chunking() {
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
