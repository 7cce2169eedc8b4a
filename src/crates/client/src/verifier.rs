//! Verifies a server's certificate against trusted certificates. If the server's certificate is one of the trusted
//! certificates, it is accepted for the hosts that it names, even if it is marked as a CA. Go and curl do the same.
//! `openssl req -x509` marks certificates as CA by default.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

const NOT_LISTED: &str = "the server's certificate is that of an authority (CA:TRUE), and the file of trusted authorities does not contain it";

/// A verifier of server certificates. The handshake proves that the server has the key of an accepted certificate.
#[derive(Debug)]
pub(crate) struct Verifier {
    provider: Arc<CryptoProvider>,
    /// If `None`, any certificate is accepted.
    trusted: Option<Trusted>,
}

#[derive(Debug)]
struct Trusted {
    certificates: Vec<CertificateDer<'static>>,
    chains: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    /// Returns a verifier that accepts any certificate.
    pub(crate) fn of_any(provider: Arc<CryptoProvider>) -> Self {
        Self { provider, trusted: None }
    }

    /// Returns a verifier that trusts these certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if none of the certificates can be parsed.
    pub(crate) fn new(
        certificates: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let chains =
            WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
                .build();
        let chains = chains.map_err(|error| format!("no certificate can be read: {error}"))?;
        Ok(Self { provider, trusted: Some(Trusted { certificates, chains }) })
    }
}

/// Returns whether a certificate was rejected only because it is marked as a CA. In this case its validity period was
/// already checked.
fn is_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(why)) = error else { return false };
    why.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(Trusted { certificates, chains }) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        match chains.verify_server_cert(cert, between, host, ocsp, now) {
            Err(error) if is_authority(&error) && certificates.contains(cert) => {
                verify_server_name(&ParsedCertificate::try_from(cert)?, host)?;
                Ok(ServerCertVerified::assertion())
            }
            Err(error) if is_authority(&error) => Err(Error::General(NOT_LISTED.to_owned())),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
