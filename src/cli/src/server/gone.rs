//! Whether a client has gone, asked of its socket: HTTP/1 reads nothing while it answers once anything came behind the
//! request, another request or a single byte, and so never comes to the end of what was sent.
//!
//! As in Go's servers, who has closed the way in which it sends counts as gone: nobody can tell it from one that has closed
//! both.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::socket::Socket;

/// How often a socket is looked at. Who has gone at two looks, one after the other, has gone: until the second there is
/// time to read all that was sent before.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The other end has closed its way, or all of it is broken.
#[cfg(any(target_os = "linux", target_os = "android"))]
const GONE: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR);

/// What a client is connected by.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn socket(&self) -> &Socket;
}

impl Wire for Socket {
    fn socket(&self) -> &Socket {
        self
    }
}

impl Wire for Box<TlsStream<Socket>> {
    fn socket(&self) -> &Socket {
        self.get_ref().0
    }
}

/// A wire that one reads and writes while another looks at it.
pub(super) struct Looked<W>(Arc<Mutex<W>>);

impl<W: Wire> Looked<W> {
    pub(super) fn new(wire: W) -> Self {
        Self(Arc::new(Mutex::new(wire)))
    }

    /// Ends when the client has gone.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<W> {
        let wire = Self(Arc::clone(&self.0));
        async move {
            let mut seen = false;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let is_gone = is_gone(wire.lock().socket());
                if is_gone && seen {
                    return;
                }
                seen = is_gone;
            }
        }
    }

    /// Whoever has it has it for as long as one call of the system takes.
    fn lock(&self) -> MutexGuard<'_, W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_gone(socket: &Socket) -> bool {
    let mut sockets = [PollFd::new(socket, GONE)];
    // What cannot be asked is left to itself.
    let found = poll(&mut sockets, Some(&Timespec::default()));
    found.is_ok() && sockets[0].revents().intersects(GONE)
}

impl<W: Wire> AsyncRead for Looked<W> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(context, into)
    }
}

impl<W: Wire> AsyncWrite for Looked<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().is_write_vectored()
    }
}
