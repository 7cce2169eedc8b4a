//! The way out to one peer on one lane: a bounded queue before a socket.
//!
//! ```text
//!                up                       takes a batch
//!   Down ───────────────► Up, idle ◄────────────────────┐
//!     ▲                     │  │ the socket is full     │
//!     └─────────────────────┘  └──────► Up, backed up ──┘
//!         down: the queue is dropped
//! ```
//!
//! While nothing is queued, the caller's thread writes to the socket itself. Once the socket takes no
//! more, everything goes through the queue until the dialer's task has emptied it, so bytes never
//! overtake bytes. The lock is held for one non-blocking write or one copy at a time.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::env::SendOutcome;

/// An emptied buffer larger than this is given back.
const BUFFER_KEPT_BYTES_MAX: usize = 1 << 20;

/// How much may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueLimit {
    /// In bytes, frames counted whole.
    pub(crate) bytes: usize,
    /// In messages.
    pub(crate) messages: usize,
}

/// The way out to one peer on one lane.
pub(super) struct Pipe {
    limit: QueueLimit,
    link: Mutex<Option<Up>>,
    /// There is something to write, or the link is down.
    pub(super) work: Notify,
    /// The peer has just been heard from: dial again at once.
    pub(super) retry: Notify,
}

struct Up {
    stream: Arc<TcpStream>,
    queue: Vec<u8>,
    queued_messages: usize,
    /// What the task has taken out of the queue and not yet written whole: it still counts.
    taken: Option<Taken>,
}

#[derive(Clone, Copy)]
struct Taken {
    bytes: usize,
    messages: usize,
}

impl Up {
    fn backed_up(&self) -> bool {
        self.taken.is_some() || !self.queue.is_empty()
    }
}

impl Pipe {
    pub(super) fn new(limit: QueueLimit) -> Self {
        Self { limit, link: Mutex::new(None), work: Notify::new(), retry: Notify::new() }
    }

    fn link(&self) -> MutexGuard<'_, Option<Up>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one whole frame that carries a message.
    pub(super) fn send(&self, frame: &[u8]) -> SendOutcome {
        self.push(frame, Some(self.limit))
    }

    /// Sends a sign of life, which must not be lost to a full queue: the peer would hang up.
    pub(super) fn send_alive(&self, frame: &[u8]) {
        self.push(frame, None);
    }

    fn push(&self, frame: &[u8], limit: Option<QueueLimit>) -> SendOutcome {
        let mut link = self.link();
        let Some(up) = link.as_mut() else { return SendOutcome::Unreachable };
        let mut written = 0;
        if up.backed_up() {
            if let Some(limit) = limit {
                let taken = up.taken.unwrap_or(Taken { bytes: 0, messages: 0 });
                if up.queue.len() + taken.bytes + frame.len() > limit.bytes
                    || up.queued_messages + taken.messages >= limit.messages
                {
                    return SendOutcome::Full;
                }
            }
        } else {
            written = match up.stream.try_write(frame) {
                Ok(written) if written == frame.len() => return SendOutcome::Queued,
                Ok(written) => written,
                Err(error) if is_passing(&error) => 0,
                Err(_) => {
                    *link = None;
                    self.work.notify_one();
                    return SendOutcome::Unreachable;
                }
            };
        }
        // What the socket has begun must be finished, however long it is: the limit is on what waits
        // behind it.
        up.queue.extend_from_slice(&frame[written..]);
        up.queued_messages += 1;
        let idle = up.taken.is_none();
        drop(link);
        if idle {
            self.work.notify_one();
        }
        SendOutcome::Queued
    }

    /// Opens the pipe onto `stream`, until the guard is dropped.
    pub(super) fn up(&self, stream: Arc<TcpStream>) -> UpGuard<'_> {
        let up = Up { stream, queue: Vec::new(), queued_messages: 0, taken: None };
        *self.link() = Some(up);
        UpGuard { pipe: self }
    }

    /// Says that the batch taken last is written, and takes everything that has been queued since.
    /// `batch` is the old one, whose room is used again.
    pub(super) fn next_batch(&self, batch: &mut Vec<u8>) -> Batch {
        batch.clear();
        if batch.capacity() > BUFFER_KEPT_BYTES_MAX {
            *batch = Vec::new();
        }
        let mut link = self.link();
        let Some(up) = link.as_mut() else { return Batch::Down };
        up.taken = None;
        if up.queue.is_empty() {
            return Batch::Empty;
        }
        std::mem::swap(&mut up.queue, batch);
        up.taken = Some(Taken { bytes: batch.len(), messages: up.queued_messages });
        up.queued_messages = 0;
        Batch::Taken
    }
}

/// What there is to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Batch {
    /// Nothing.
    Empty,
    /// This.
    Taken,
    /// A caller has found the connection dead.
    Down,
}

/// Closes the pipe when it is dropped.
pub(super) struct UpGuard<'a> {
    pipe: &'a Pipe,
}

impl Drop for UpGuard<'_> {
    fn drop(&mut self) {
        *self.pipe.link() = None;
    }
}

/// Whether an error of a non-blocking call means "later".
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
