//! Counts the bytes of gRPC messages, and gives each request a number and a tracing span.

use std::sync::atomic::{AtomicU64, Ordering};

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

    /// Counts bytes of messages.
    pub(crate) fn count(&self, direction: Direction, bytes: u64) {
        let count = match direction {
            Direction::In => &self.received,
            Direction::Out => &self.sent,
        };
        count.fetch_add(bytes, Ordering::Relaxed);
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

/// Parser state for message boundaries. Each message is preceded by a flag byte and a length of four bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Messages {
    /// Number of bytes of the next message's prefix read so far, and the length as far as read.
    head: usize,
    length: u32,
    /// Number of bytes left of the current message.
    left: u32,
}

const HEAD_BYTES: usize = 5;

impl Messages {
    /// Returns how many of the next bytes belong to messages.
    pub(crate) fn count(&mut self, mut bytes: &[u8]) -> u64 {
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
