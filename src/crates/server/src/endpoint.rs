//! Addresses at which a server accepts clients.

use std::path::{Path, PathBuf};

/// Services offered at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerScope {
    /// All services.
    All,
    /// Only gRPC; HTTP has addresses of its own.
    Grpc,
    /// HTTP including the JSON gateway, but no gRPC.
    Http,
    /// Only health and metrics. These are served even before the server opens.
    Health,
}

/// An address at which a server accepts clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub(crate) address: Address,
    pub(crate) is_secure: bool,
    pub(crate) scope: ListenerScope,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Address {
    /// Host and port.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Endpoint {
    /// Returns a TCP address, `host:port`, without TLS, for all services.
    pub fn tcp(address: impl Into<String>) -> Self {
        Self::at(Address::Tcp(address.into()))
    }

    /// Returns a Unix socket, without TLS, for all services.
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self::at(Address::Unix(path.as_ref().to_owned()))
    }

    fn at(address: Address) -> Self {
        Self { address, is_secure: false, scope: ListenerScope::All }
    }

    /// Sets whether clients must use TLS. An address that is listed both with and without TLS accepts both.
    #[must_use]
    pub fn secure(self, is_secure: bool) -> Self {
        Self { is_secure, ..self }
    }

    /// Sets the services offered at this address.
    #[must_use]
    pub fn scope(self, scope: ListenerScope) -> Self {
        Self { scope, ..self }
    }
}
