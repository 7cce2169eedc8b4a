//! Prepares an accepted connection: detects whether the client uses TLS, and performs the handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Interval;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::listen::socket::Socket;
use crate::tls::{ServerTls, Trust, common_name, words, words_of};

/// First byte of a TLS handshake.
const HANDSHAKE_RECORD: u8 = 22;

/// First bytes of HTTP/2 that no other protocol starts with.
const HTTP2: &[u8] = b"PRI *";

/// HTTP/1 response for a client without TLS at a TLS port, with the well-known text of Go's servers.
const NOT_TLS_HTTP1: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                               Client sent an HTTP request to an HTTPS server.\n";

/// HTTP/2 response for such a client: empty settings, then a GOAWAY frame on stream 0 with code 12 (inadequate
/// security) and the reason.
const NOT_TLS_HTTP2: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x2a\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0c\
                               this port speaks TLS: use https://";

/// Response for a TLS client at a port without TLS. TLS clients detect it as plain HTTP.
const NOT_PLAIN: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                           This port is not encrypted: use http://.\n";

/// Time for which a failed connection is kept open so that the reason arrives, and number of bytes discarded meanwhile.
const LINGER_MAX: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// Interval at which the expiry of the client's certificate is checked.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A new connection.
pub(crate) enum Accepted {
    /// Without TLS.
    Plain(Socket),
    /// After a TLS handshake.
    Secure {
        stream: Box<TlsStream<Socket>>,
        /// The user named in the certificate, if certificates identify users.
        user: Option<Arc<str>>,
        recheck: CertificateRecheck,
    },
    /// The client disconnected without sending anything.
    Disconnected,
}

/// Reason why a connection was rejected.
#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    #[error("plaintext connection to an https:// port")]
    NotTls,
    #[error("TLS connection to an http:// port")]
    NotPlain,
    #[error("{0}")]
    Handshake(String),
    #[error("connection failed: {0}")]
    Socket(#[from] io::Error),
}

/// Accepts a connection: with TLS if there are settings, without if `is_plain`, and by the first byte if both. Dropping
/// the future closes the connection.
pub(crate) async fn handshake(
    mut stream: Socket,
    tls: Option<&ServerTls>,
    is_plain: bool,
) -> Result<Accepted, HandshakeError> {
    let mut first = [0; HTTP2.len()];
    // Peeking allocates nothing for connections that send nothing.
    let received = match stream.peek(&mut first).await {
        Ok(0) => return Ok(Accepted::Disconnected),
        Ok(received) => &first[..received],
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            return Ok(Accepted::Disconnected);
        }
        Err(error) => return Err(error.into()),
    };
    let is_tls_record = received[0] == HANDSHAKE_RECORD;
    match tls {
        None if is_tls_record => {
            reject(&mut stream, NOT_PLAIN).await;
            Err(HandshakeError::NotPlain)
        }
        Some(tls) if is_tls_record => tls_handshake(stream, tls).await,
        _ if is_plain => Ok(Accepted::Plain(stream)),
        // Unreachable: each port accepts TLS, plain connections, or both.
        None => Ok(Accepted::Disconnected),
        Some(_) => {
            let answer = if HTTP2.starts_with(received) { NOT_TLS_HTTP2 } else { NOT_TLS_HTTP1 };
            reject(&mut stream, answer).await;
            Err(HandshakeError::NotTls)
        }
    }
}

async fn tls_handshake(stream: Socket, tls: &ServerTls) -> Result<Accepted, HandshakeError> {
    // Subscribe before the handshake, so that a change during it causes a new check.
    let mut changes = tls.changes();
    let trust = Arc::clone(&changes.borrow_and_update());
    let accepting = TlsAcceptor::from(trust.server()).accept(stream).into_fallible();
    match accepting.await {
        Ok(stream) => {
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let shown: Vec<_> = shown.iter().map(|cert| cert.clone().into_owned()).collect();
            let user = shown.first().filter(|_| tls.names_users()).and_then(common_name);
            let recheck = CertificateRecheck::about(shown, changes);
            Ok(Accepted::Secure { stream: Box::new(stream), user: user.map(Arc::from), recheck })
        }
        Err((error, mut stream)) => {
            // The TLS library has already sent the reason as an alert.
            reject(&mut stream, b"").await;
            Err(HandshakeError::Handshake(words(&error)))
        }
    }
}

/// Sends the last response and waits until it has arrived. Closing a connection with unread bytes would reset it and
/// discard the response.
async fn reject(stream: &mut Socket, answer: &[u8]) {
    let drained = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // A client that does not read gets no response.
    drop(tokio::time::timeout(LINGER_MAX, drained).await);
}

/// Checks whether a connected client would still be admitted.
pub(crate) struct CertificateRecheck(Option<RecheckState>);

struct RecheckState {
    shown: Vec<CertificateDer<'static>>,
    changes: watch::Receiver<Arc<Trust>>,
    look: Interval,
}

impl CertificateRecheck {
    /// Returns a check that never fails, for clients without certificates.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    fn about(shown: Vec<CertificateDer<'static>>, changes: watch::Receiver<Arc<Trust>>) -> Self {
        if shown.is_empty() {
            return Self::none();
        }
        let mut look = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
        look.reset();
        Self(Some(RecheckState { shown, changes, look }))
    }

    /// Waits until the client would no longer be admitted, and returns the reason.
    pub(crate) async fn failed(self) -> String {
        let Self(Some(mut state)) = self else { return std::future::pending().await };
        loop {
            tokio::select! {
                changed = state.changes.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                _ = state.look.tick() => {}
            }
            let trust = Arc::clone(&state.changes.borrow_and_update());
            if let Err(error) = trust.admits(&state.shown) {
                return words_of(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http2_rejection_frames_have_correct_lengths() {
        let length = |at: usize| {
            u32::from_be_bytes([0, NOT_TLS_HTTP2[at], NOT_TLS_HTTP2[at + 1], NOT_TLS_HTTP2[at + 2]])
        };
        assert_eq!((length(0), NOT_TLS_HTTP2[3]), (0, 4), "settings");
        assert_eq!(
            (length(9) as usize, NOT_TLS_HTTP2[12]),
            (NOT_TLS_HTTP2.len() - 18, 7),
            "the end"
        );
    }
}
