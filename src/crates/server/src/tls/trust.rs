//! Builds the TLS configuration from one version of the certificate files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

use crate::crypto;
use crate::tls::files::{Files, TlsError};
use crate::tls::settings::{Certificate, TlsSettings};
use crate::tls::verifier::ClientVerifier;

/// ALPN protocols: gRPC needs the first, and some clients support only the second.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The server's certificate and the verifier of client certificates.
pub(crate) struct Trust {
    server: Arc<ServerConfig>,
    /// `None` if clients need no certificate.
    client_verifier: Option<Arc<ClientVerifier>>,
    fingerprint: String,
}

impl Trust {
    pub(crate) fn new(files: &Files, settings: &TlsSettings) -> Result<Self, TlsError> {
        let (cert_path, key_path) = match &settings.certificate {
            Certificate::Files { cert, key } => (cert.clone(), key.clone()),
            Certificate::SelfSigned { .. } => {
                (PathBuf::from("--auto-tls"), PathBuf::from("--auto-tls"))
            }
        };
        let content = |path: &Path| {
            let path = path.to_owned();
            move |why: String| TlsError::Content { path, why }
        };
        let chain = certificates(&files.cert).map_err(content(&cert_path))?;
        let key = PrivateKeyDer::from_pem_slice(&files.key)
            .map_err(|error| content(&key_path)(format!("no private key: {error}")))?;
        let cipher_suites = settings.suites.clone();
        let provider = Arc::new(CryptoProvider { cipher_suites, ..crypto::provider() });
        let client_verifier = match (&files.authorities, &settings.authorities) {
            (Some(pem), Some(path)) => {
                let roots = authorities(pem).map_err(content(path))?;
                let revoked = files.revoked.as_deref().unwrap_or_default();
                let crl_path = settings.revoked.clone().unwrap_or_default();
                let lists = match &settings.revoked {
                    Some(_) => revocations(revoked).map_err(content(&crl_path))?,
                    None => Vec::new(),
                };
                let inner =
                    WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
                        .with_crls(lists)
                        .build()
                        .map_err(|error| content(&crl_path)(error.to_string()))?;
                Some(Arc::new(ClientVerifier::new(inner, settings.hosts.clone())))
            }
            _ => None,
        };
        let unusable = |error: rustls::Error| content(&key_path)(error.to_string());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.versions)
            .map_err(unusable)?;
        let builder = match &client_verifier {
            Some(client_verifier) => builder.with_client_cert_verifier(
                Arc::clone(client_verifier) as Arc<dyn ClientCertVerifier>
            ),
            None => builder.with_no_client_auth(),
        };
        let fingerprint =
            Sha256::digest(&chain[0]).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut server = builder.with_single_cert(chain, key).map_err(unusable)?;
        // Sessions are not resumed, so that returning clients are verified again.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(Self { server: Arc::new(server), client_verifier, fingerprint })
    }

    /// Returns the configuration for a handshake.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Returns the SHA-256 hash of the server's certificate.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns whether a client with this certificate chain would be admitted now.
    pub(crate) fn admits(&self, shown: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let Some(client_verifier) = &self.client_verifier else { return Ok(()) };
        let [cert, between @ ..] = shown else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        client_verifier.verify_client_cert(cert, between, UnixTime::now()).map(drop)
    }
}

/// Parses at least one certificate.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("no certificate in the file".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string()),
    }
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(pem)? {
        roots.add(cert).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

/// First byte of a revocation list in DER.
const DER_SEQUENCE: u8 = 0x30;

/// Parses at least one revocation list, at most one per CA, because of several only one would count. Accepts PEM, or a
/// single list in DER as etcd requires it.
fn revocations(bytes: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let lists: Result<Vec<_>, _> = match bytes.first() {
        Some(&DER_SEQUENCE) => Ok(vec![CertificateRevocationListDer::from(bytes.to_vec())]),
        _ => CertificateRevocationListDer::pem_slice_iter(bytes).collect(),
    };
    let (mut found, mut issuers) = (Vec::new(), BTreeSet::new());
    for der in lists.map_err(|error| error.to_string())? {
        let list = webpki::BorrowedCertRevocationList::from_der(&der)
            .and_then(|list| list.to_owned())
            .map_err(|error| error.to_string())?;
        if !issuers.insert(webpki::CertRevocationList::from(list).issuer().to_vec()) {
            return Err(
                "two revocation lists of the same authority: keep only the newest".to_owned()
            );
        }
        found.push(der);
    }
    if found.is_empty() {
        return Err("no revocation list in the file".to_owned());
    }
    Ok(found)
}
