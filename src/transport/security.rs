//! The optional TLS layer between the socket and the protocol.

use std::io;
use tokio::net::TcpStream;

#[cfg(feature = "tls")]
use {
    super::tls::{Tls, TlsWire, Trust, may_lack_tls},
    std::sync::Arc,
    std::time::Duration,
    tokio::sync::watch,
    tokio::time::Interval,
};

use super::wire::Wire;

/// Interval at which a connection checks whether the other end's certificate has expired.
#[cfg(feature = "tls")]
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The security of connections. See the module page.
pub(super) enum Security {
    /// No protection: any process that reaches the port is trusted.
    None,
    /// TLS with certificates.
    #[cfg(feature = "tls")]
    Tls(Arc<Tls>),
}

impl Security {
    /// Secures a connection as the dialer. During a migration to TLS, a peer may not use TLS yet.
    /// In that case, `again` opens another connection, without TLS.
    pub(super) async fn dial(
        &self,
        tcp: TcpStream,
        again: impl Future<Output = io::Result<TcpStream>>,
    ) -> io::Result<Wire> {
        match self {
            Security::None => {
                drop(again);
                Ok(Wire::Plain(tcp))
            }
            #[cfg(feature = "tls")]
            Security::Tls(tls) => match TlsWire::dial(tcp, &tls.trust()).await {
                Err(error) if tls.is_migrating() && may_lack_tls(&error) => {
                    Ok(Wire::Plain(again.await?))
                }
                dialed => Ok(Wire::Tls(Box::new(dialed?))),
            },
        }
    }

    /// Secures a connection that was accepted.
    pub(super) async fn accept(&self, tcp: TcpStream) -> io::Result<Wire> {
        match self {
            Security::None => Ok(Wire::Plain(tcp)),
            #[cfg(feature = "tls")]
            Security::Tls(tls) if tls.is_migrating() && !begins_tls(&tcp).await? => {
                Ok(Wire::Plain(tcp))
            }
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                Ok(Wire::Tls(Box::new(TlsWire::accept(tcp, &tls.trust()).await?)))
            }
        }
    }

    /// Returns whether `wire` is not encrypted although this member uses TLS.
    pub(super) fn is_bare(&self, wire: &Wire) -> bool {
        match (self, wire) {
            (Security::None, _) => false,
            #[cfg(feature = "tls")]
            (Security::Tls(_), wire) => matches!(wire, Wire::Plain(_)),
        }
    }

    /// Returns the repeated trust check for a new connection. The trusted certificates may have
    /// changed since the handshake of the connection began.
    pub(super) fn trust_recheck(&self) -> TrustRecheck {
        match self {
            Security::None => TrustRecheck::default(),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                let mut changes = tls.changes();
                changes.mark_changed();
                let mut look = tokio::time::interval(EXPIRY_CHECK_INTERVAL);
                look.reset();
                TrustRecheck { trust: Some((changes, look)) }
            }
        }
    }
}

/// Returns whether the first byte from a dialer begins a TLS handshake. Waits for the byte and does
/// not consume it.
#[cfg(feature = "tls")]
async fn begins_tls(tcp: &TcpStream) -> io::Result<bool> {
    const HANDSHAKE_RECORD: u8 = 22;
    let mut first = [0];
    match tcp.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE_RECORD),
    }
}

/// The repeated check of whether the other end of an open connection is still trusted.
#[derive(Default)]
pub(super) struct TrustRecheck {
    #[cfg(feature = "tls")]
    trust: Option<(watch::Receiver<Arc<Trust>>, Interval)>,
}

impl TrustRecheck {
    /// Waits until the next check is due, because the trusted certificates have changed or the
    /// interval has passed. Without TLS, this never returns. Safe to cancel.
    pub(super) async fn raised(&mut self) {
        #[cfg(feature = "tls")]
        if let Some((changes, look)) = &mut self.trust {
            tokio::select! {
                _ = changes.changed() => return,
                _ = look.tick() => return,
            }
        }
        std::future::pending().await
    }

    /// Checks whether the other end is still trusted.
    pub(super) fn settle(&mut self, wire: &Wire) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some((changes, _)) = &mut self.trust {
            return wire.still_trusted(&changes.borrow_and_update());
        }
        let _ = wire;
        Ok(())
    }
}
