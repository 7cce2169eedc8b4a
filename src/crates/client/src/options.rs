//! The settings of a client.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Endpoints of the cluster: `HOST:PORT`, `http://...`, `https://...` or `unix://...`.
    pub endpoints: Vec<String>,
    /// Timeout for connecting to one endpoint. Default: 2 s.
    pub dial_timeout: Duration,
    /// Timeout of a call, including retries. Default: 5 s.
    pub call_timeout: Duration,
    /// Interval between pings on an idle connection. Servers reject intervals below 10 s. Default: 10 s.
    pub keepalive_time: Duration,
    /// Timeout for the response to a ping. Default: 6 s.
    pub keepalive_timeout: Duration,
    /// The user of all calls.
    pub login: Option<Login>,
    /// TLS settings.
    pub tls: Tls,
}

impl Options {
    /// Returns the default settings for these endpoints.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            dial_timeout: Duration::from_secs(2),
            call_timeout: Duration::from_secs(5),
            keepalive_time: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(6),
            login: None,
            tls: Tls::default(),
        }
    }

    /// Sets the user of all calls.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login { name: name.into(), password: password.into() });
        self
    }

    /// Sets the TLS settings.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }
}

/// Credentials of a user.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Name of the user.
    pub name: String,
    /// Password of the user.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

/// TLS settings of connections.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// CA certificates of the servers, a PEM file. Default: those of the operating system.
    pub cacert: Option<PathBuf>,
    /// Client certificate, a PEM file.
    pub cert: Option<PathBuf>,
    /// Private key of `cert`, a PEM file.
    pub key: Option<PathBuf>,
    /// Whether to skip the verification of the server certificate, for tests.
    pub skip_verify: bool,
    /// Whether connections without TLS are forbidden.
    pub required: bool,
    /// The cryptography. Default: ring.
    pub provider: Option<Arc<CryptoProvider>>,
}

impl Tls {
    /// Returns whether an endpoint without a scheme uses TLS.
    pub fn is_wanted(&self) -> bool {
        self.required || self.cacert.is_some() || self.cert.is_some() || self.skip_verify
    }
}
