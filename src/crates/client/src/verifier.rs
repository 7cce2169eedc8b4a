//! Verifies a server's certificate against trusted certificates. If the server's certificate is one of the trusted
//! certificates, it is accepted for the hosts that it names, even if it is marked as a CA. Go and curl do the same.
//! `openssl req -x509` marks certificates as CA by default.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

const NOT_LISTED: &str = "the server's certificate is that of an authority (CA:TRUE), and the file of trusted authorities does not contain it";

/// A verifier of server certificates.
#[derive(Debug)]
pub(crate) struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// Returns a verifier that trusts these certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if none of the certificates can be parsed.
    pub(crate) fn new(
        trusted: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().cloned());
        let inner = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
        let inner = inner.map_err(|error| format!("no certificate can be read: {error}"))?;
        Ok(Self { inner, trusted })
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
        match self.inner.verify_server_cert(cert, between, host, ocsp, now) {
            // The handshake proves that the server has the key.
            Err(error) if is_authority(&error) && self.trusted.iter().any(|own| own == cert) => {
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
        self.inner.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
