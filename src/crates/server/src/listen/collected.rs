//! Collects what a connection writes during one turn, and writes it with one system call. The HTTP library by itself
//! would write the headers, the message and the trailers of many responses one after another.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::listen::socket::ClientStream;
use crate::listen::socket::Socket;

/// Number of collected bytes from which on more are written at once.
const COLLECTED_MAX: usize = 64 << 10;

/// Size from which a piece is not copied, but written after the collected bytes, in bytes.
const LARGE_BYTES: usize = 16 << 10;

/// Largest buffer that an idle connection keeps, in bytes.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// A connection that collects its output while it is held.
pub(crate) struct Collected<W> {
    stream: W,
    bytes: Vec<u8>,
    is_held: bool,
    /// The error of a write that had been reported as done. Reported by the next call.
    failed: Option<io::Error>,
}

impl<W: AsyncWrite + Unpin> Collected<W> {
    pub(crate) fn new(stream: W) -> Self {
        Self { stream, bytes: Vec::new(), is_held: false, failed: None }
    }

    /// Collects the output from now on. A flush has no effect until [`Collected::poll_release`].
    pub(crate) fn hold(&mut self) {
        self.is_held = true;
    }

    /// Writes the collected output, and ends the collecting.
    pub(crate) fn poll_release(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.is_held = false;
        let written = ready!(self.poll_write_collected(context));
        let flushed = match written {
            Ok(()) => ready!(Pin::new(&mut self.stream).poll_flush(context)),
            Err(error) => Err(error),
        };
        if let Err(error) = flushed {
            self.failed = Some(error);
            context.waker().wake_by_ref();
        }
        Poll::Ready(())
    }

    fn poll_write_collected(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.bytes));
            match written {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => drop(self.bytes.drain(..count)),
                Err(error) => {
                    self.bytes.clear();
                    return Poll::Ready(Err(error));
                }
            }
        }
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    fn earlier_error(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl<W: ClientStream> ClientStream for Collected<W> {
    fn socket(&self) -> &Socket {
        self.stream.socket()
    }
}

impl<W: AsyncRead + Unpin> AsyncRead for Collected<W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Collected<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        this.earlier_error()?;
        let count = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if this.is_held && count < LARGE_BYTES && this.bytes.len() < COLLECTED_MAX {
            slices.iter().for_each(|slice| this.bytes.extend_from_slice(slice));
            return Poll::Ready(Ok(count));
        }
        ready!(this.poll_write_collected(context))?;
        Pin::new(&mut this.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.earlier_error()?;
        if self.is_held {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_write_collected(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.earlier_error()?;
        ready!(self.poll_write_collected(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Records what is written by each call.
    #[derive(Default)]
    struct Wire {
        writes: Vec<Vec<u8>>,
        /// Maximum number of bytes that each of the next calls accepts. When it is empty, calls accept everything.
        accepts: Vec<usize>,
        is_broken: bool,
        is_shut_down: bool,
    }

    impl AsyncRead for Wire {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.is_broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let count = self.accepts.pop().unwrap_or(usize::MAX).min(bytes.len());
            if count == 0 {
                return Poll::Pending;
            }
            self.writes.push(bytes[..count].to_vec());
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.is_shut_down = true;
            Poll::Ready(Ok(()))
        }
    }

    fn held() -> Collected<Wire> {
        let mut collected = Collected::new(Wire::default());
        collected.hold();
        collected
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn write(to: &mut Collected<Wire>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(to).poll_write(&mut context(), bytes)
    }

    fn flush(to: &mut Collected<Wire>) -> Poll<io::Result<()>> {
        Pin::new(to).poll_flush(&mut context())
    }

    fn written(to: &Collected<Wire>) -> Vec<u8> {
        to.stream.writes.concat()
    }

    #[test]
    fn output_of_a_turn_is_one_write() {
        let mut collected = held();
        for piece in [b"headers", b"message", b"trailer"] {
            assert!(matches!(write(&mut collected, piece), Poll::Ready(Ok(7))));
            assert!(flush(&mut collected).is_ready());
        }
        assert!(collected.stream.writes.is_empty());
        assert!(collected.poll_release(&mut context()).is_ready());
        assert_eq!(collected.stream.writes, [b"headersmessagetrailer"]);
    }

    #[test]
    fn output_outside_a_turn_is_written_at_once() {
        let mut collected = Collected::new(Wire::default());
        assert!(write(&mut collected, b"a").is_ready());
        assert_eq!(written(&collected), b"a");
    }

    #[test]
    fn pieces_stay_in_order_whatever_their_sizes_and_whatever_the_socket_accepts() {
        let mut collected = held();
        let mut expected = Vec::new();
        for (number, size) in
            [10, LARGE_BYTES, 1, 3 * COLLECTED_MAX, 70, 5000].iter().cycle().take(60).enumerate()
        {
            let piece = vec![number as u8; *size];
            collected.stream.accepts = vec![4096, 0, 1, 900, 0];
            let mut rest = &*piece;
            while !rest.is_empty() {
                if let Poll::Ready(count) = write(&mut collected, rest) {
                    rest = &rest[count.unwrap()..];
                }
            }
            expected.extend(piece);
            if number % 3 == 0 {
                let _: Poll<()> = collected.poll_release(&mut context());
                collected.hold();
            }
            assert!(collected.bytes.len() <= COLLECTED_MAX + LARGE_BYTES);
        }
        collected.stream.accepts.clear();
        assert!(collected.poll_release(&mut context()).is_ready());
        assert_eq!(written(&collected), expected);
        assert!(collected.bytes.capacity() <= KEPT_BYTES_MAX);
    }

    #[test]
    fn idle_connection_keeps_no_large_buffer() {
        for size in [100, 8_000, 15_000] {
            let mut collected = held();
            for _ in 0..4 {
                assert!(write(&mut collected, &vec![7; size]).is_ready());
            }
            // The socket accepts a part, and later the rest.
            collected.stream.accepts = vec![0, 3 * size];
            assert!(collected.poll_release(&mut context()).is_pending());
            assert!(collected.poll_release(&mut context()).is_ready());
            assert!(collected.bytes.capacity() <= KEPT_BYTES_MAX, "after 4 pieces of {size} bytes");
        }
    }

    #[test]
    fn shutdown_writes_the_collected_output_first() {
        let mut collected = held();
        collected.stream.accepts = vec![0];
        assert!(write(&mut collected, b"last").is_ready());
        let shut_down = |collected: &mut Collected<Wire>| {
            Pin::new(collected).poll_shutdown(&mut context()).is_ready()
        };
        assert!(!shut_down(&mut collected));
        assert!(!collected.stream.is_shut_down);
        assert!(shut_down(&mut collected));
        assert!(collected.stream.is_shut_down);
        assert_eq!(written(&collected), b"last");
    }

    #[test]
    fn failed_write_is_reported_by_the_next_call() {
        for next in [
            |collected: &mut Collected<Wire>| write(collected, b"b").map_ok(drop),
            |collected: &mut Collected<Wire>| flush(collected),
            |collected: &mut Collected<Wire>| {
                let mut into = [0];
                Pin::new(collected).poll_read(&mut context(), &mut ReadBuf::new(&mut into))
            },
        ] {
            let mut collected = held();
            assert!(write(&mut collected, b"a").is_ready());
            collected.stream.is_broken = true;
            assert!(collected.poll_release(&mut context()).is_ready());
            let Poll::Ready(Err(error)) = next(&mut collected) else { panic!("no error") };
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    }
}
