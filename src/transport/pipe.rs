//! The way out to one peer on one lane: a bounded queue before a socket.
//!
//! ```text
//!                up                       takes a batch
//!   Down ───────────────► Up, idle ◄────────────────────┐
//!     ▲                     │  │ the socket is full     │
//!     └─────────────────────┘  └──────► Up, backed up ──┘
//!         down: the queue is dropped
//!
//!   on demand:  Down ──► Resting ── a message ──► Dialing ──► Up ── nothing for a while ──► Resting
//!                 ▲                                  │        │
//!                 └──────────────────────────────────┴────────┘ failed: the queue is dropped
//! ```
//!
//! While nothing is queued, the caller's thread writes to the socket itself. Once the socket takes no
//! more, everything goes through the queue until the dialer's task has emptied it, so bytes never
//! overtake bytes. The lock is held for one non-blocking write or one copy at a time.
//!
//! A pipe on demand has a connection only while it is used. What is sent while it is being dialed
//! waits in the queue; and the caller's thread never writes, because what is sent there is large.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

use super::wire::Wire;
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
    on_demand: bool,
    link: Mutex<Link>,
    /// There is something to write, or the link is down.
    pub(super) work: Notify,
    /// The peer has just been heard from: dial again at once.
    pub(super) retry: Notify,
    /// There is something to send and no connection.
    demand: Notify,
}

enum Link {
    /// No connection, and nobody dials right now.
    Down,
    /// On demand: no connection is needed.
    Resting,
    /// On demand: these wait for one.
    Dialing(Queue),
    /// There is one.
    Up(Up),
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    messages: usize,
}

impl Queue {
    /// Appends the rest of a frame.
    fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        self.messages += 1;
    }

    /// Whether another frame fits, beside what has been taken out and still counts.
    fn has_room(&self, frame: &[u8], taken: Taken, limit: QueueLimit) -> bool {
        self.bytes.len() + taken.bytes + frame.len() <= limit.bytes
            && self.messages + taken.messages < limit.messages
    }
}

struct Up {
    stream: Arc<Wire>,
    queue: Queue,
    /// What the task has taken out of the queue and not yet written whole: it still counts.
    taken: Option<Taken>,
    /// A message was sent since the last look of [`Pipe::rest_if_unused`].
    used: bool,
}

#[derive(Clone, Copy, Default)]
struct Taken {
    bytes: usize,
    messages: usize,
}

impl Up {
    fn backed_up(&self) -> bool {
        self.taken.is_some() || !self.queue.bytes.is_empty()
    }
}

impl Pipe {
    /// One whose connection is always kept.
    pub(super) fn new(limit: QueueLimit) -> Self {
        Self {
            limit,
            on_demand: false,
            link: Mutex::new(Link::Down),
            work: Notify::new(),
            retry: Notify::new(),
            demand: Notify::new(),
        }
    }

    /// One that has a connection only while it is used.
    pub(super) fn on_demand(limit: QueueLimit) -> Self {
        Self { on_demand: true, link: Mutex::new(Link::Resting), ..Self::new(limit) }
    }

    /// Whether it has a connection only while it is used.
    pub(super) fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes wait.
    pub(super) fn queued_bytes(&self) -> usize {
        match &*self.link() {
            Link::Down | Link::Resting => 0,
            Link::Dialing(queue) => queue.bytes.len(),
            Link::Up(up) => up.queue.bytes.len() + up.taken.map_or(0, |taken| taken.bytes),
        }
    }

    /// Sends one whole frame that carries a message.
    pub(super) fn send(&self, frame: &[u8]) -> SendOutcome {
        let mut link = self.link();
        let up = match &mut *link {
            Link::Down => return SendOutcome::Unreachable,
            Link::Resting => {
                let mut queue = Queue::default();
                queue.push(frame);
                *link = Link::Dialing(queue);
                self.demand.notify_one();
                return SendOutcome::Queued;
            }
            Link::Dialing(queue) if !queue.has_room(frame, Taken::default(), self.limit) => {
                return SendOutcome::Full;
            }
            Link::Dialing(queue) => {
                queue.push(frame);
                return SendOutcome::Queued;
            }
            Link::Up(up) => up,
        };
        up.used = true;
        let taken = up.taken.unwrap_or_default();
        if up.backed_up() && !up.queue.has_room(frame, taken, self.limit) {
            return SendOutcome::Full;
        }
        self.push(link, frame)
    }

    /// Sends a sign of life, which must not be lost to a full queue: the peer would hang up.
    pub(super) fn send_alive(&self, frame: &[u8]) {
        self.push(self.link(), frame);
    }

    fn push(&self, mut link: MutexGuard<'_, Link>, frame: &[u8]) -> SendOutcome {
        let Link::Up(up) = &mut *link else { return SendOutcome::Unreachable };
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
                Err(error) if is_passing(&error) => 0,
                Err(_) => {
                    *link = Link::Down;
                    self.work.notify_one();
                    return SendOutcome::Unreachable;
                }
            };
        }
        // What the socket has begun must be finished, however long it is: the limit is on what waits
        // behind it.
        up.queue.push(&frame[written..]);
        let idle = up.taken.is_none();
        drop(link);
        if idle {
            self.work.notify_one();
        }
        SendOutcome::Queued
    }

    /// Waits until a connection is needed, which is at once unless it is on demand. What waits for it is
    /// lost when the guard is dropped.
    pub(super) async fn wanted(&self) -> Dialing<'_> {
        if self.on_demand {
            while !self.is_wanted() {
                self.demand.notified().await;
            }
        }
        Dialing { pipe: self }
    }

    /// Whether something waits for a connection. If not, the next message will.
    fn is_wanted(&self) -> bool {
        match &mut *self.link() {
            Link::Dialing(_) => true,
            link => {
                *link = Link::Resting;
                false
            }
        }
    }

    /// Opens the pipe onto `stream`, until the guard is dropped.
    pub(super) fn up(&self, stream: Arc<Wire>) -> UpGuard<'_> {
        let mut link = self.link();
        let queue = match std::mem::replace(&mut *link, Link::Down) {
            Link::Dialing(queue) => queue,
            _ => Queue::default(),
        };
        if !queue.bytes.is_empty() {
            self.work.notify_one();
        }
        *link = Link::Up(Up { stream, queue, taken: None, used: true });
        UpGuard { pipe: self }
    }

    /// Ends the connection if it is on demand and nothing was sent since the last call, or is being
    /// sent. Whether it did.
    pub(super) fn rest_if_unused(&self) -> bool {
        let mut link = self.link();
        let Link::Up(up) = &mut *link else { return false };
        let rests = self.on_demand && !up.used && !up.backed_up();
        up.used = false;
        if rests {
            *link = Link::Resting;
        }
        rests
    }

    /// Says that the batch taken last is written, and takes everything that has been queued since.
    /// `batch` is the old one, whose room is used again.
    pub(super) fn next_batch(&self, batch: &mut Vec<u8>) -> Batch {
        batch.clear();
        if batch.capacity() > BUFFER_KEPT_BYTES_MAX {
            *batch = Vec::new();
        }
        let mut link = self.link();
        let Link::Up(up) = &mut *link else { return Batch::Down };
        up.taken = None;
        if up.queue.bytes.is_empty() {
            return Batch::Empty;
        }
        std::mem::swap(&mut up.queue.bytes, batch);
        up.taken = Some(Taken { bytes: batch.len(), messages: up.queue.messages });
        up.queue.messages = 0;
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

/// A connection is being made.
pub(super) struct Dialing<'a> {
    pipe: &'a Pipe,
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        let mut link = self.pipe.link();
        if matches!(*link, Link::Dialing(_)) {
            *link = Link::Down;
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
        if matches!(*link, Link::Up(_)) {
            *link = Link::Down;
        }
    }
}

/// Whether an error of a non-blocking call means "later".
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    const LIMIT: QueueLimit = QueueLimit { bytes: 1000, messages: 5 };

    /// A pipe whose socket takes no more, and the silent other end.
    async fn backed_up(pipe: &Pipe) -> (UpGuard<'_>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let near = Arc::new(Wire::Plain(near.expect("connected")));
        near.writable().await.expect("open");
        let up = pipe.up(near);
        while !matches!(&*pipe.link(), Link::Up(up) if up.backed_up()) {
            assert_eq!(pipe.send(&[1; 100_000]), SendOutcome::Queued);
        }
        (up, far.expect("accepted").0)
    }

    #[tokio::test]
    async fn what_the_task_has_taken_still_counts() {
        let pipe = Pipe::new(LIMIT);
        let (_up, _far) = backed_up(&pipe).await;
        let mut batch = Vec::new();
        assert_eq!(pipe.next_batch(&mut batch), Batch::Taken);
        // What the socket had begun is longer than the limit: nothing more until it is written.
        assert!(batch.len() > LIMIT.bytes);
        assert_eq!(pipe.queued_bytes(), batch.len());
        assert_eq!(pipe.send(&[2; 10]), SendOutcome::Full);
        assert_eq!(pipe.next_batch(&mut batch), Batch::Empty, "as if it had been written");
        // The socket is still full, so this waits, and 990 bytes fit behind it.
        assert_eq!(pipe.send(&[3; 10]), SendOutcome::Queued);
        assert_eq!(pipe.next_batch(&mut batch), Batch::Taken);
        assert_eq!(pipe.send(&[4; 991]), SendOutcome::Full);
        assert_eq!(pipe.send(&[4; 986]), SendOutcome::Queued);
        assert_eq!(pipe.send(&[5; 5]), SendOutcome::Full);
        for _ in 0..3 {
            assert_eq!(pipe.send(&[6; 1]), SendOutcome::Queued);
        }
        assert_eq!(pipe.send(&[6; 1]), SendOutcome::Full, "the sixth message");
        pipe.send_alive(&[7; 100]);
        assert_eq!(pipe.next_batch(&mut batch), Batch::Taken);
        assert_eq!(batch.len(), 986 + 3 + 100);
    }

    #[tokio::test]
    async fn bytes_leave_in_the_order_in_which_they_came() {
        let pipe = Pipe::new(QueueLimit { bytes: 1 << 20, messages: 1000 });
        let (up, mut far) = backed_up(&pipe).await;
        let mut batch = Vec::new();
        assert_eq!(pipe.next_batch(&mut batch), Batch::Taken);
        // The socket has room again, and the batch is not written yet: nobody may pass it.
        let mut some = vec![0; 1 << 20];
        far.read_exact(&mut some).await.expect("what was sent");
        assert_eq!(pipe.send(b"later"), SendOutcome::Queued);
        assert_eq!(pipe.next_batch(&mut batch), Batch::Taken);
        assert_eq!(batch, b"later");
        drop(up);
        assert_eq!(pipe.send(b"too late"), SendOutcome::Unreachable);
        assert_eq!(pipe.next_batch(&mut batch), Batch::Down);
    }
}
