//! A TLS connection with the calls of a non-blocking socket.
//!
//! The driver thread encrypts with the TLS session while a task decrypts with it. Therefore a lock
//! protects the session, and each call holds the lock only briefly. The buffers of a session are
//! bounded: decrypted data is removed from them at once, and nothing more is encrypted while the
//! socket is full.

use bytes::BufMut;
use std::io::{self, BufRead, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConnection, Connection, ServerConnection};
use thiserror::Error;

use super::super::pipe::is_transient;
use super::trust::Trust;
use super::verifier::{Use, words};

/// Description of the other end if its name is unknown.
const OTHER_END: &str = "the other end";
/// Time for which a failed connection is kept open so that the reason arrives.
const LINGER_MAX: Duration = Duration::from_millis(500);
/// Number of bytes that are discarded in that time.
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// The reason, as text, why one end does not trust the other.
#[derive(Debug, Error)]
#[error("{why}")]
pub(in super::super) struct Untrusted {
    pub(in super::super) why: String,
    /// Whether the other end has replied with something other than TLS.
    lacks_tls: bool,
}

fn untrusted(error: &rustls::Error) -> io::Error {
    let lacks_tls = matches!(error, rustls::Error::InvalidMessage(_));
    let why = words(error, OTHER_END);
    io::Error::new(io::ErrorKind::InvalidData, Untrusted { why, lacks_tls })
}

/// The other side has closed the connection during the handshake. Such an end is no sign of missing
/// trust: a proxy in front of a peer that is down behaves in this way. A member without
/// certificates sends a reply instead.
#[derive(Debug, Error)]
#[error("the other end {how} the connection during the TLS handshake")]
struct HungUp {
    how: &'static str,
    /// Whether the other side has sent any data before.
    has_received: bool,
}

fn hung_up(kind: io::ErrorKind, how: &'static str, has_received: bool) -> io::Error {
    io::Error::new(kind, HungUp { how, has_received })
}

/// Returns whether a handshake has failed in a way that suggests a member without TLS. In this
/// case, the other end has sent something else, or has closed the connection without sending
/// anything.
pub(in super::super) fn may_lack_tls(error: &io::Error) -> bool {
    let Some(why) = error.get_ref() else { return false };
    let answered = why.downcast_ref::<Untrusted>().is_some_and(|why| why.lacks_tls);
    answered || why.downcast_ref::<HungUp>().is_some_and(|why| !why.has_received)
}

/// A TLS connection. See the module page.
pub(in super::super) struct TlsWire {
    tcp: TcpStream,
    session: Mutex<Connection>,
    /// The other end's certificate and its intermediate certificates.
    chain: Vec<CertificateDer<'static>>,
    used: Use,
    name: Option<String>,
}

impl TlsWire {
    /// Performs the handshake as the dialer.
    pub(in super::super) async fn dial(tcp: TcpStream, trust: &Trust) -> io::Result<Self> {
        // The server name is not used: the certificate states which member it is.
        let name = ServerName::try_from("bowline.invalid").expect("a name");
        let session = ClientConnection::new(trust.client.clone(), name);
        let session = session.map_err(|error| untrusted(&error))?;
        Self::complete_handshake(tcp, session.into(), trust, Use::Server).await
    }

    /// Performs the handshake as the acceptor.
    pub(in super::super) async fn accept(tcp: TcpStream, trust: &Trust) -> io::Result<Self> {
        let session = ServerConnection::new(trust.server.clone());
        let session = session.map_err(|error| untrusted(&error))?;
        Self::complete_handshake(tcp, session.into(), trust, Use::Client).await
    }

    async fn complete_handshake(
        mut tcp: TcpStream,
        mut session: Connection,
        trust: &Trust,
        used: Use,
    ) -> io::Result<Self> {
        if let Err(error) = handshake(&tcp, &mut session).await {
            linger(&mut tcp).await;
            return Err(error);
        }
        let chain: Vec<_> = session
            .peer_certificates()
            .unwrap_or_default()
            .iter()
            .map(|cert| cert.clone().into_owned())
            .collect();
        let [cert, between @ ..] = &chain[..] else {
            return Err(untrusted(&rustls::Error::NoCertificatesPresented));
        };
        let uri = trust
            .verifier
            .check(cert, between, UnixTime::now(), used)
            .map_err(|error| untrusted(&error))?;
        Ok(Self { tcp, session: Mutex::new(session), chain, used, name: uri.map(|uri| uri.member) })
    }

    /// Returns the name of the member at the other end, if certificates must contain one.
    pub(in super::super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(in super::super) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Checks whether the other end's certificate would still be accepted.
    pub(in super::super) fn still_trusted(&self, trust: &Trust) -> io::Result<()> {
        let [cert, between @ ..] = &self.chain[..] else { unreachable!("checked when it came up") };
        let checked = trust.verifier.check(cert, between, UnixTime::now(), self.used);
        checked.map(drop).map_err(|error| untrusted(&error))
    }

    fn session(&self) -> MutexGuard<'_, Connection> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in super::super) async fn readable(&self) -> io::Result<()> {
        // Check for decrypted data and for the end of the stream first, because neither makes the
        // socket readable.
        let blocked = match self.session().reader().fill_buf() {
            Err(error) => is_transient(&error),
            Ok(_) => false,
        };
        if blocked { self.tcp.readable().await } else { Ok(()) }
    }

    /// Returns decrypted data. If there is none, reads once from the socket.
    pub(in super::super) fn try_read(&self, out: &mut impl BufMut) -> io::Result<usize> {
        let mut session = self.session();
        loop {
            match session.reader().fill_buf() {
                Ok(chunk) => {
                    let len = chunk.len().min(out.remaining_mut());
                    out.put_slice(&chunk[..len]);
                    session.reader().consume(len);
                    return Ok(len);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
            receive(&self.tcp, &mut session, true)?;
        }
    }

    /// Encrypts and writes as much as the socket accepts, and buffers a little more.
    pub(in super::super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut session = self.session();
        let mut written = 0;
        while written < bytes.len() {
            match flush(&self.tcp, &mut session) {
                Ok(()) => written += session.writer().write(&bytes[written..])?,
                Err(error) if is_transient(&error) && written > 0 => return Ok(written),
                Err(error) => return Err(error),
            }
        }
        match flush(&self.tcp, &mut session) {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(written),
        }
    }

    pub(in super::super) fn is_pending(&self) -> bool {
        self.session().wants_write()
    }

    pub(in super::super) fn try_flush(&self) -> io::Result<()> {
        flush(&self.tcp, &mut self.session())
    }

    /// Sends the end of the stream.
    pub(in super::super) async fn finish(&mut self) -> io::Result<()> {
        self.session().send_close_notify();
        while self.is_pending() {
            self.tcp.writable().await?;
            match self.try_flush() {
                Err(error) if !is_transient(&error) => return Err(error),
                _ => {}
            }
        }
        self.tcp.shutdown().await
    }
}

/// Performs the TLS handshake.
async fn handshake(tcp: &TcpStream, session: &mut Connection) -> io::Result<()> {
    let mut has_received = false;
    loop {
        match flush(tcp, session) {
            Ok(()) if !session.is_handshaking() => return Ok(()),
            Ok(()) => {
                tcp.readable().await?;
                match receive(tcp, session, has_received) {
                    Ok(()) => has_received = true,
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) if is_transient(&error) => tcp.writable().await?,
            Err(error) => return Err(error),
        }
    }
}

/// Reads once from the socket and decrypts. `has_received` tells whether the other end has sent
/// anything before.
fn receive(tcp: &TcpStream, session: &mut Connection, has_received: bool) -> io::Result<()> {
    let shaking = session.is_handshaking();
    match session.read_tls(&mut Socket(tcp)) {
        Err(error) if shaking && error.kind() == io::ErrorKind::ConnectionReset => {
            return Err(hung_up(error.kind(), "reset", has_received));
        }
        Ok(0) if shaking => {
            return Err(hung_up(io::ErrorKind::UnexpectedEof, "closed", has_received));
        }
        read => read?,
    };
    session.process_new_packets().map(drop).map_err(|error| {
        // Tries to send an alert to the other side. The alert is lost if the socket is full.
        let _ = flush(tcp, session);
        untrusted(&error)
    })
}

/// Writes encrypted data. Returns `WouldBlock` if the socket does not accept all of it.
fn flush(tcp: &TcpStream, session: &mut Connection) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(&mut Socket(tcp))?;
    }
    Ok(())
}

/// Waits a moment until the other end has closed the connection. Closing a socket with unread bytes
/// in it destroys the data sent last.
async fn linger(tcp: &mut TcpStream) {
    let last = async {
        tcp.shutdown().await?;
        tokio::io::copy(&mut tcp.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(LINGER_MAX, last).await;
}

/// Adapts the socket to the interface of the session.
struct Socket<'a>(&'a TcpStream);

impl Read for Socket<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(out)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
