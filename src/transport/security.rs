//! What stands between a socket and the words on it: nothing, or TLS.

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

/// How often a connection looks whether the other end's certificate has expired meanwhile.
#[cfg(feature = "tls")]
const EXPIRY_LOOK_EVERY: Duration = Duration::from_secs(30);

/// See the module.
pub(super) enum Security {
    /// Nothing: whoever reaches the port is believed.
    None,
    /// Certificates.
    #[cfg(feature = "tls")]
    Tls(Arc<Tls>),
}

impl Security {
    /// The dialer's end. During a migration, `again` makes another connection, for a peer that does not use TLS.
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

    /// The end that was dialed.
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

    /// Whether `wire` is not encrypted although this member uses TLS.
    pub(super) fn is_bare(&self, wire: &Wire) -> bool {
        match self {
            Security::None => false,
            #[cfg(feature = "tls")]
            Security::Tls(_) => matches!(wire, Wire::Plain(_)),
        }
    }

    /// For a connection that has just come up. What is trusted may have changed since its handshake began.
    pub(super) fn doubt(&self) -> Doubt {
        match self {
            Security::None => Doubt::default(),
            #[cfg(feature = "tls")]
            Security::Tls(tls) => {
                let mut changes = tls.changes();
                changes.mark_changed();
                let mut look = tokio::time::interval(EXPIRY_LOOK_EVERY);
                look.reset();
                Doubt { trust: Some((changes, look)) }
            }
        }
    }
}

/// Whether the first byte that a dialer sends begins a handshake of TLS. Waits for it, and leaves it to be read.
#[cfg(feature = "tls")]
async fn begins_tls(tcp: &TcpStream) -> io::Result<bool> {
    const HANDSHAKE_RECORD: u8 = 22;
    let mut first = [0];
    match tcp.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE_RECORD),
    }
}

/// Whether the other end of a connection that is up should still be trusted.
#[derive(Default)]
pub(super) struct Doubt {
    #[cfg(feature = "tls")]
    trust: Option<(watch::Receiver<Arc<Trust>>, Interval)>,
}

impl Doubt {
    /// Waits until it is time to look: what is trusted has changed, or time has passed. Never comes
    /// back where there is nothing to look at. May be dropped and called again.
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

    /// Looks.
    pub(super) fn settle(&mut self, wire: &Wire) -> io::Result<()> {
        #[cfg(feature = "tls")]
        if let Some((changes, _)) = &mut self.trust {
            return wire.still_trusted(&changes.borrow_and_update());
        }
        let _ = wire;
        Ok(())
    }
}
