//! The send path to one peer on one lane: a bounded queue in front of a socket.
//!
//! ```text
//!                up                       takes a batch
//!   Down ───────────────► Up, idle ◄────────────────────┐
//!     ▲                     │  │ the socket is full     │
//!     └─────────────────────┘  └──────► Up, backed up ──┘
//!         down: the queue is dropped
//!
//!   on demand:  Down ──► Resting ── a message ──► Dialing ──► Up ── unused for a while ──► Resting
//!                 ▲                                  │        │
//!                 └──────────────────────────────────┴────────┘ failed: the queue is dropped
//! ```
//!
//! While the queue is empty, the caller's thread writes to the socket itself. Once the socket is
//! full, all data goes through the queue until the dialer's task has emptied the queue. In this
//! way, the bytes stay in order. The lock of the pipe is held for at most one non-blocking write or
//! one copy at a time.
//!
//! A pipe on demand has a connection only while it is used. Messages that are sent while the
//! connection is being dialed wait in the queue. The caller's thread never writes to the socket of
//! such a pipe, because the messages are large.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

use super::wire::Wire;
use crate::env::SendOutcome;

/// If an emptied buffer is larger than this, its memory is released.
const BUFFER_KEPT_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueLimit {
    /// Maximum number of bytes, including the frame headers.
    pub(crate) bytes: usize,
    /// Maximum number of messages.
    pub(crate) messages: usize,
}

/// The send path to one peer on one lane.
pub(super) struct Pipe {
    limit: QueueLimit,
    on_demand: bool,
    link: Mutex<PipeLink>,
    /// Notified when there is something to write, or the link is down.
    pub(super) work: Notify,
    /// Notified when the peer has just connected, so that it is dialed again at once.
    pub(super) retry: Notify,
    /// Notified when there is something to send but no connection.
    demand: Notify,
}

enum PipeLink {
    /// There is no connection, and none is being dialed right now.
    Down,
    /// A write has failed with an error of this kind. The connection is about to be closed.
    Failed(io::ErrorKind),
    /// The pipe is on demand, and no connection is needed now.
    Resting,
    /// The pipe is on demand, and these messages wait for a connection.
    Dialing(PipeQueue),
    /// There is a connection.
    Up(Up),
}

#[derive(Default)]
struct PipeQueue {
    bytes: Vec<u8>,
    messages: usize,
}

impl PipeQueue {
    /// Appends a frame, or the rest of one.
    fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        self.messages += 1;
    }

    /// Returns whether another frame fits within `limit`. The bytes in `taken` were removed from
    /// the queue but still count.
    fn has_room(&self, frame: &[u8], taken: PipeTaken, limit: QueueLimit) -> bool {
        self.bytes.len() + taken.bytes + frame.len() <= limit.bytes
            && self.messages + taken.messages < limit.messages
    }
}

struct Up {
    stream: Arc<Wire>,
    queue: PipeQueue,
    /// The part that the dialer's task has removed from the queue but not completely written. This
    /// part still counts towards the limit.
    taken: Option<PipeTaken>,
    /// Whether a message was sent since the last call of [`Pipe::close_if_unused`].
    used: bool,
}

#[derive(Clone, Copy, Default)]
struct PipeTaken {
    bytes: usize,
    messages: usize,
}

impl Up {
    fn backed_up(&self) -> bool {
        self.taken.is_some() || !self.queue.bytes.is_empty()
    }
}

impl Pipe {
    /// Creates a pipe that always maintains a connection.
    pub(super) fn new(limit: QueueLimit) -> Self {
        Self {
            limit,
            on_demand: false,
            link: Mutex::new(PipeLink::Down),
            work: Notify::new(),
            retry: Notify::new(),
            demand: Notify::new(),
        }
    }

    /// Creates a pipe that has a connection only while it is used.
    pub(super) fn on_demand(limit: QueueLimit) -> Self {
        Self { on_demand: true, link: Mutex::new(PipeLink::Resting), ..Self::new(limit) }
    }

    /// Returns whether the pipe has a connection only while it is used.
    pub(super) fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    fn link(&self) -> MutexGuard<'_, PipeLink> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queued_bytes(&self) -> usize {
        match &*self.link() {
            PipeLink::Down | PipeLink::Failed(_) | PipeLink::Resting => 0,
            PipeLink::Dialing(queue) => queue.bytes.len(),
            PipeLink::Up(up) => up.queue.bytes.len() + up.taken.map_or(0, |taken| taken.bytes),
        }
    }

    /// Sends one complete frame that carries a message.
    pub(super) fn send(&self, frame: &[u8]) -> SendOutcome {
        let mut link = self.link();
        let up = match &mut *link {
            PipeLink::Down | PipeLink::Failed(_) => return SendOutcome::Unreachable,
            PipeLink::Resting => {
                let mut queue = PipeQueue::default();
                queue.push(frame);
                *link = PipeLink::Dialing(queue);
                self.demand.notify_one();
                return SendOutcome::Queued;
            }
            PipeLink::Dialing(queue)
                if !queue.has_room(frame, PipeTaken::default(), self.limit) =>
            {
                return SendOutcome::Full;
            }
            PipeLink::Dialing(queue) => {
                queue.push(frame);
                return SendOutcome::Queued;
            }
            PipeLink::Up(up) => up,
        };
        up.used = true;
        let taken = up.taken.unwrap_or_default();
        if up.backed_up() && !up.queue.has_room(frame, taken, self.limit) {
            return SendOutcome::Full;
        }
        self.push(link, frame)
    }

    /// Sends a keepalive. The keepalive is queued even if the queue is full, because the peer would
    /// otherwise close the connection.
    pub(super) fn send_alive(&self, frame: &[u8]) {
        self.push(self.link(), frame);
    }

    fn push(&self, mut link: MutexGuard<'_, PipeLink>, frame: &[u8]) -> SendOutcome {
        let PipeLink::Up(up) = &mut *link else { return SendOutcome::Unreachable };
        let mut written = 0;
        if !up.backed_up() && !self.on_demand {
            written = match up.stream.try_write(frame) {
                Ok(written) if written == frame.len() => {
                    if up.stream.is_pending() {
                        self.work.notify_one();
                    }
                    return SendOutcome::Queued;
                }
                Ok(written) => written,
                Err(error) if is_transient(&error) => 0,
                Err(error) => {
                    *link = PipeLink::Failed(error.kind());
                    self.work.notify_one();
                    return SendOutcome::Unreachable;
                }
            };
        }
        // The rest of a partly written frame must be sent, whatever its length. The limit applies
        // to the following frames.
        up.queue.push(&frame[written..]);
        let idle = up.taken.is_none();
        drop(link);
        if idle {
            self.work.notify_one();
        }
        SendOutcome::Queued
    }

    /// Waits until a connection is needed, which is immediately unless the pipe is on demand.
    /// Messages that wait for the connection are lost when the guard is dropped.
    pub(super) async fn wanted(&self) -> Dialing<'_> {
        if self.on_demand {
            while !self.is_wanted() {
                self.demand.notified().await;
            }
        }
        Dialing { pipe: self }
    }

    /// Returns whether a message waits for a connection. Otherwise, makes the next message wait for
    /// one.
    fn is_wanted(&self) -> bool {
        match &mut *self.link() {
            PipeLink::Dialing(_) => true,
            link => {
                *link = PipeLink::Resting;
                false
            }
        }
    }

    /// Connects the pipe to `stream` until the guard is dropped.
    pub(super) fn up(&self, stream: Arc<Wire>) -> UpGuard<'_> {
        let mut link = self.link();
        let queue = match std::mem::replace(&mut *link, PipeLink::Down) {
            PipeLink::Dialing(queue) => queue,
            _ => PipeQueue::default(),
        };
        if !queue.bytes.is_empty() {
            self.work.notify_one();
        }
        *link = PipeLink::Up(Up { stream, queue, taken: None, used: true });
        UpGuard { pipe: self }
    }

    /// Ends the connection if the pipe is on demand, was unused since the last call, and has an
    /// empty queue. Returns whether the connection was ended.
    pub(super) fn close_if_unused(&self) -> bool {
        let mut link = self.link();
        let PipeLink::Up(up) = &mut *link else { return false };
        let rests = self.on_demand && !up.used && !up.backed_up();
        up.used = false;
        if rests {
            *link = PipeLink::Resting;
        }
        rests
    }

    /// Marks the last batch as written, and takes everything that was queued since. `batch` is the
    /// last batch; its memory is reused.
    pub(super) fn next_batch(&self, batch: &mut Vec<u8>) -> PipeBatch {
        batch.clear();
        if batch.capacity() > BUFFER_KEPT_BYTES_MAX {
            *batch = Vec::new();
        }
        let mut link = self.link();
        let up = match &mut *link {
            PipeLink::Up(up) => up,
            PipeLink::Failed(kind) => return PipeBatch::Down(*kind),
            _ => return PipeBatch::Down(io::ErrorKind::Other),
        };
        up.taken = None;
        if up.queue.bytes.is_empty() {
            return PipeBatch::Empty;
        }
        std::mem::swap(&mut up.queue.bytes, batch);
        up.taken = Some(PipeTaken { bytes: batch.len(), messages: up.queue.messages });
        up.queue.messages = 0;
        PipeBatch::PipeTaken
    }
}

/// The data to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PipeBatch {
    /// There is nothing to write.
    Empty,
    /// A batch was taken.
    PipeTaken,
    /// A caller of [`Pipe::send`] has found that the connection is broken, by an error of this
    /// kind.
    Down(io::ErrorKind),
}

/// A connection is being dialed.
pub(super) struct Dialing<'a> {
    pipe: &'a Pipe,
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        let mut link = self.pipe.link();
        if matches!(*link, PipeLink::Dialing(_)) {
            *link = PipeLink::Down;
        }
    }
}

/// Closes the pipe when it is dropped.
pub(super) struct UpGuard<'a> {
    pipe: &'a Pipe,
}

impl Drop for UpGuard<'_> {
    fn drop(&mut self) {
        let mut link = self.pipe.link();
        if matches!(*link, PipeLink::Up(_)) {
            *link = PipeLink::Down;
        }
    }
}

/// Returns whether an error of a non-blocking call means that it should be retried later.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    const LIMIT: QueueLimit = QueueLimit { bytes: 1000, messages: 5 };

    /// Returns a pipe whose socket is full, and the silent other end.
    async fn backed_up(pipe: &Pipe) -> (UpGuard<'_>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let near = Arc::new(Wire::Plain(near.expect("connected")));
        near.writable().await.expect("open");
        let up = pipe.up(near);
        while !matches!(&*pipe.link(), PipeLink::Up(up) if up.backed_up()) {
            assert_eq!(pipe.send(&[1; 100_000]), SendOutcome::Queued);
        }
        (up, far.expect("accepted").0)
    }

    #[tokio::test]
    async fn bytes_taken_by_the_task_still_count_towards_the_limit() {
        let pipe = Pipe::new(LIMIT);
        let (_up, _far) = backed_up(&pipe).await;
        let mut batch = Vec::new();
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::PipeTaken);
        // The partly written frame exceeds the limit, so nothing more is accepted until it is
        // written.
        assert!(batch.len() > LIMIT.bytes);
        assert_eq!(pipe.queued_bytes(), batch.len());
        assert_eq!(pipe.send(&[2; 10]), SendOutcome::Full);
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::Empty, "as if it had been written");
        // The socket is still full, so this frame is queued, and 990 more bytes fit.
        assert_eq!(pipe.send(&[3; 10]), SendOutcome::Queued);
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::PipeTaken);
        assert_eq!(pipe.send(&[4; 991]), SendOutcome::Full);
        assert_eq!(pipe.send(&[4; 986]), SendOutcome::Queued);
        assert_eq!(pipe.send(&[5; 5]), SendOutcome::Full);
        for _ in 0..3 {
            assert_eq!(pipe.send(&[6; 1]), SendOutcome::Queued);
        }
        assert_eq!(pipe.send(&[6; 1]), SendOutcome::Full, "the sixth message");
        pipe.send_alive(&[7; 100]);
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::PipeTaken);
        assert_eq!(batch.len(), 986 + 3 + 100);
    }

    #[tokio::test]
    async fn bytes_are_sent_in_order() {
        let pipe = Pipe::new(QueueLimit { bytes: 1 << 20, messages: 1000 });
        let (up, mut far) = backed_up(&pipe).await;
        let mut batch = Vec::new();
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::PipeTaken);
        // The socket accepts data again, but the batch is not written yet. No frame may overtake
        // the batch.
        let mut some = vec![0; 1 << 20];
        far.read_exact(&mut some).await.expect("what was sent");
        assert_eq!(pipe.send(b"later"), SendOutcome::Queued);
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::PipeTaken);
        assert_eq!(batch, b"later");
        drop(up);
        assert_eq!(pipe.send(b"too late"), SendOutcome::Unreachable);
        assert_eq!(pipe.next_batch(&mut batch), PipeBatch::Down(io::ErrorKind::Other));
    }
}
