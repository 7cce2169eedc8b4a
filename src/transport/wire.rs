//! The byte stream of one connection: plain TCP, or TLS.
//!
//! Plain and TLS streams have the same non-blocking calls. Several threads may make these calls at
//! once: the driver thread writes while a task reads. Data is *pending* if TLS has encrypted it but
//! the socket has not accepted it. A caller that sees pending data flushes it when the socket is
//! writable.

use bytes::{BufMut, BytesMut};
use std::io;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::pipe::is_transient;
#[cfg(feature = "tls")]
use super::tls::{TlsWire, Trust};

/// The byte stream of one connection. See the module page.
pub(super) enum Wire {
    /// Plain TCP. Anyone on the network path can read and change the data.
    Plain(TcpStream),
    /// TLS. The traffic is encrypted.
    #[cfg(feature = "tls")]
    Tls(Box<TlsWire>),
    /// The scripted input of a fuzzer.
    #[cfg(any(test, fuzzing))]
    Script(Box<super::script::Script>),
}

impl Wire {
    /// Waits until data can be read, or the stream has ended.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Wire::Plain(tcp) => tcp.readable().await,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.readable().await,
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => Ok(()),
        }
    }

    /// Appends received data to `buffer`, up to its capacity. Returns 0 at the end of the stream.
    pub(super) fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Wire::Plain(tcp) => tcp.try_read_buf(buffer),
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.try_read(buffer),
            #[cfg(any(test, fuzzing))]
            Wire::Script(script) => {
                let room = buffer.capacity() - buffer.len();
                Ok(script.read(&mut *buffer, room))
            }
        }
    }

    /// Fills `out`, and does not read beyond it.
    pub(super) async fn read_exact(&self, out: &mut [u8]) -> io::Result<()> {
        let mut rest = out;
        while rest.has_remaining_mut() {
            self.readable().await?;
            let read = match self {
                Wire::Plain(tcp) => tcp.try_read(rest),
                #[cfg(feature = "tls")]
                Wire::Tls(tls) => tls.try_read(&mut &mut *rest),
                #[cfg(any(test, fuzzing))]
                Wire::Script(script) => {
                    let room = rest.len();
                    Ok(script.read(&mut *rest, room))
                }
            };
            match read {
                Ok(0) => {
                    let why = "the other end closed the connection during the handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Ok(len) => rest = &mut rest[len..],
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until data can be written.
    pub(super) async fn writable(&self) -> io::Result<()> {
        #[cfg(any(test, fuzzing))]
        if matches!(self, Wire::Script(_)) {
            return Ok(());
        }
        self.tcp().writable().await
    }

    /// Writes as much data as the socket accepts.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(tcp) => tcp.try_write(bytes),
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.try_write(bytes),
            #[cfg(any(test, fuzzing))]
            Wire::Script(script) => Ok(script.write(bytes)),
        }
    }

    /// Returns whether data was accepted here but not by the socket yet.
    pub(super) fn is_pending(&self) -> bool {
        match self {
            Wire::Plain(_) => false,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.is_pending(),
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => false,
        }
    }

    /// Writes as much pending data as the socket accepts.
    pub(super) fn try_flush(&self) -> io::Result<()> {
        match self {
            Wire::Plain(_) => Ok(()),
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.try_flush(),
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => Ok(()),
        }
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() || self.is_pending() {
            self.writable().await?;
            let written =
                if bytes.is_empty() { self.try_flush().map(|()| 0) } else { self.try_write(bytes) };
            match written {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the end of the stream.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(tcp) => tcp.shutdown().await,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.finish().await,
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => Ok(()),
        }
    }

    /// Returns the name of the member at the other end, if a certificate proves it.
    pub(super) fn proven_name(&self) -> Option<&str> {
        match self {
            Wire::Plain(_) => None,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.name(),
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => None,
        }
    }

    /// Checks whether the other end's certificate is still accepted.
    #[cfg(feature = "tls")]
    pub(super) fn still_trusted(&self, trust: &Trust) -> io::Result<()> {
        match self {
            Wire::Plain(_) => Ok(()),
            Wire::Tls(tls) => tls.still_trusted(trust),
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => Ok(()),
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Wire::Plain(tcp) => tcp,
            #[cfg(feature = "tls")]
            Wire::Tls(tls) => tls.tcp(),
            #[cfg(any(test, fuzzing))]
            Wire::Script(_) => unreachable!("words that are made up come over no socket"),
        }
    }
}
