//! Detects that a client has disconnected by polling the client's socket. Polling is needed for HTTP/1: while hyper
//! responds to a request and has already received further bytes, hyper reads nothing from the connection, so hyper
//! does not notice the end of the stream.
//!
//! A client that has shut down only its sending side counts as disconnected, as in Go's servers, because the two cases
//! cannot be distinguished.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::calls::Output;
use crate::listen::collected::Collected;
use crate::listen::socket::{ClientStream, Socket};

/// Interval between checks. A client counts as disconnected after two consecutive checks, so that everything that it
/// sent before can still be read.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The other end has closed its sending side, or the connection is broken.
#[cfg(any(target_os = "linux", target_os = "android"))]
const DISCONNECTED: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const DISCONNECTED: PollFlags = PollFlags::HUP.union(PollFlags::ERR);

/// A connection that one task reads and writes while another polls it.
pub(crate) struct PolledStream<W>(Arc<Mutex<W>>);

impl<W: ClientStream> PolledStream<W> {
    pub(crate) fn new(wire: W) -> Self {
        Self(Arc::new(Mutex::new(wire)))
    }

    /// Completes when the client has disconnected.
    pub(crate) fn disconnected(&self) -> impl Future<Output = ()> + Send + use<W> {
        let wire = self.handle();
        async move {
            let mut seen = false;
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let is_disconnected = is_disconnected(wire.lock().socket());
                if is_disconnected && seen {
                    return;
                }
                seen = is_disconnected;
            }
        }
    }

    /// Returns another handle of the connection.
    pub(crate) fn handle(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Locks the connection. The lock is held only for the duration of one system call.
    fn lock(&self) -> MutexGuard<'_, W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: ClientStream> Output for PolledStream<Collected<W>> {
    fn hold(&self) {
        self.lock().hold();
    }

    fn poll_release(&self, context: &mut Context<'_>) -> Poll<()> {
        self.lock().poll_release(context)
    }
}

fn is_disconnected(socket: &Socket) -> bool {
    let mut sockets = [PollFd::new(socket, DISCONNECTED)];
    // A socket that cannot be polled counts as connected.
    let found = poll(&mut sockets, Some(&Timespec::default()));
    found.is_ok() && sockets[0].revents().intersects(DISCONNECTED)
}

impl<W: ClientStream> AsyncRead for PolledStream<W> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(context, into)
    }
}

impl<W: ClientStream> AsyncWrite for PolledStream<W> {
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
