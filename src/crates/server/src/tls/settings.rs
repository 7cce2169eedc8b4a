//! Settings of TLS with clients.

use std::path::PathBuf;

use rustls::crypto::ring::ALL_CIPHER_SUITES;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

/// Settings of TLS with clients.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The server's certificate.
    pub certificate: Certificate,
    /// File of CA certificates; clients must present a certificate signed by one of them. `None` to request no
    /// certificate.
    pub authorities: Option<PathBuf>,
    /// File of revocation lists.
    pub revoked: Option<PathBuf>,
    /// If not empty, a client's certificate must contain one of these host names and addresses.
    pub hosts: Vec<ServerName<'static>>,
    /// Whether a client without a token is the user named in its certificate.
    pub names_users: bool,
    /// Enabled TLS versions.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// Enabled cipher suites.
    pub suites: Vec<SupportedCipherSuite>,
}

/// The server's own certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Certificate {
    /// Files.
    Files {
        /// The certificate, followed by the intermediate certificates.
        cert: PathBuf,
        /// The private key.
        key: PathBuf,
    },
    /// Self-signed, created at the start.
    SelfSigned {
        /// Hosts that the certificate is for.
        hosts: Vec<String>,
        /// Validity in years.
        years: u32,
    },
}

impl TlsSettings {
    /// Uses a certificate, and requests none from clients.
    pub fn new(certificate: Certificate) -> Self {
        Self {
            certificate,
            authorities: None,
            revoked: None,
            hosts: Vec::new(),
            names_users: false,
            versions: vec![&TLS12, &TLS13],
            suites: ALL_CIPHER_SUITES.to_vec(),
        }
    }
}
