//! The first words on a connection: which protocol it is, and with TLS, who is there.

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

use super::socket::Socket;
use super::tls::{Tls, Trust, common_name, words, words_of};

/// What a handshake of TLS begins with.
const HANDSHAKE_RECORD: u8 = 22;

/// What HTTP/2 begins with, as far as nothing else does.
const HTTP2: &[u8] = b"PRI *";

/// Said to whoever does not speak TLS where it is spoken: over HTTP/1, in Go's words, which people know.
const NOT_TLS_HTTP1: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                               Client sent an HTTP request to an HTTPS server.\n";

/// The same over HTTP/2: empty settings, then the frame that ends a connection, stream 0, code 12: inadequate
/// security, with the reason.
const NOT_TLS_HTTP2: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x2a\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0c\
                               this port speaks TLS: use https://";

/// Said to whoever speaks TLS where it is not spoken. Clients of TLS take it for what it is.
const NOT_PLAIN: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
                           This port is not encrypted: use http://.\n";

/// How long a connection that failed is kept open so that the reason arrives, and how many bytes are thrown away
/// meanwhile.
const LINGER_MAX: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// How often to look whether the certificate at the other end has expired meanwhile.
const EXPIRY_LOOK_EVERY: Duration = Duration::from_secs(30);

/// Who has come.
pub(super) enum Greeted {
    /// Whoever reaches the port.
    Plain(Socket),
    /// Whoever has been through the handshake.
    Secure {
        stream: Box<TlsStream<Socket>>,
        /// Who it is, if its certificate is to say that.
        user: Option<Arc<str>>,
        doubt: Doubt,
    },
    /// Nobody: it hung up without a word.
    Gone,
}

/// Why nobody was let in.
#[derive(Debug, Error)]
pub(super) enum Rudeness {
    #[error("it does not speak TLS, and the port is for https://")]
    NotTls,
    #[error("it speaks TLS, and the port is for http://")]
    NotPlain,
    #[error("{0}")]
    Handshake(String),
    #[error("{0}")]
    Socket(#[from] io::Error),
}

/// Meets whoever has connected: with TLS if there is any, and without if `is_plain`; the first byte tells the two apart.
/// May be dropped, which ends the connection.
pub(super) async fn greet(
    mut stream: Socket,
    tls: Option<&Tls>,
    is_plain: bool,
) -> Result<Greeted, Rudeness> {
    let mut first = [0; HTTP2.len()];
    // Nothing is kept for those who say nothing.
    let heard = match stream.peek(&mut first).await {
        Ok(0) => return Ok(Greeted::Gone),
        Ok(heard) => &first[..heard],
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Greeted::Gone),
        Err(error) => return Err(error.into()),
    };
    let says_tls = heard[0] == HANDSHAKE_RECORD;
    match tls {
        None if says_tls => {
            turn_away(&mut stream, NOT_PLAIN).await;
            Err(Rudeness::NotPlain)
        }
        Some(tls) if says_tls => shake_hands(stream, tls).await,
        _ if is_plain => Ok(Greeted::Plain(stream)),
        // No port is for neither.
        None => Ok(Greeted::Gone),
        Some(_) => {
            let answer = if HTTP2.starts_with(heard) { NOT_TLS_HTTP2 } else { NOT_TLS_HTTP1 };
            turn_away(&mut stream, answer).await;
            Err(Rudeness::NotTls)
        }
    }
}

async fn shake_hands(stream: Socket, tls: &Tls) -> Result<Greeted, Rudeness> {
    // Before the handshake: what changes during it is a reason to look again.
    let mut changes = tls.changes();
    let trust = Arc::clone(&changes.borrow_and_update());
    let accepting = TlsAcceptor::from(trust.server()).accept(stream).into_fallible();
    match accepting.await {
        Ok(stream) => {
            let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let shown: Vec<_> = shown.iter().map(|cert| cert.clone().into_owned()).collect();
            let user = shown.first().filter(|_| tls.names_users()).and_then(common_name);
            let doubt = Doubt::about(shown, changes);
            Ok(Greeted::Secure { stream: Box::new(stream), user: user.map(Arc::from), doubt })
        }
        Err((error, mut stream)) => {
            // The reason was sent by TLS itself.
            turn_away(&mut stream, b"").await;
            Err(Rudeness::Handshake(words(&error)))
        }
    }
}

/// Says the last word, and waits until it has arrived: bytes that nobody has read when a connection is closed would
/// take it with them.
async fn turn_away(stream: &mut Socket, answer: &[u8]) {
    let said = async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // Who does not listen has it coming.
    drop(tokio::time::timeout(LINGER_MAX, said).await);
}

/// Whether whoever was let in would still be.
pub(super) struct Doubt(Option<Grounds>);

struct Grounds {
    shown: Vec<CertificateDer<'static>>,
    changes: watch::Receiver<Arc<Trust>>,
    look: Interval,
}

impl Doubt {
    /// Of whom nothing was asked.
    pub(super) fn none() -> Self {
        Self(None)
    }

    fn about(shown: Vec<CertificateDer<'static>>, changes: watch::Receiver<Arc<Trust>>) -> Self {
        if shown.is_empty() {
            return Self::none();
        }
        let mut look = tokio::time::interval(EXPIRY_LOOK_EVERY);
        look.reset();
        Self(Some(Grounds { shown, changes, look }))
    }

    /// Waits until it would not be let in any more: with the reason.
    pub(super) async fn confirmed(self) -> String {
        let Self(Some(mut grounds)) = self else { return std::future::pending().await };
        loop {
            tokio::select! {
                changed = grounds.changes.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                _ = grounds.look.tick() => {}
            }
            let trust = Arc::clone(&grounds.changes.borrow_and_update());
            if let Err(error) = trust.lets_in(&grounds.shown) {
                return words_of(&error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_over_http2_is_as_long_as_it_says() {
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
