//! Verifies client certificates. A certificate must be signed by a trusted CA, valid at the current time, intended for
//! client authentication, and not revoked. If allowed hosts are configured, the certificate must be valid for one of
//! them.

use std::io;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, SignatureScheme,
};
use thiserror::Error as ThisError;

/// The certificate is for none of the allowed hosts.
#[derive(Debug, ThisError)]
#[error("names none of the hosts of --client-cert-allowed-hostname")]
struct NotAllowed;

/// A verifier of client certificates that also checks host names.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    hosts: Vec<ServerName<'static>>,
}

impl ClientVerifier {
    pub(crate) fn new(inner: Arc<dyn ClientCertVerifier>, hosts: Vec<ServerName<'static>>) -> Self {
        Self { inner, hosts }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(cert, between, now)?;
        let parsed = ParsedCertificate::try_from(cert)?;
        let is_for = |host| verify_server_name(&parsed, host).is_ok();
        if self.hosts.is_empty() || self.hosts.iter().any(is_for) {
            return Ok(verified);
        }
        Err(CertificateError::Other(OtherError(Arc::new(NotAllowed))).into())
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

/// Describes a handshake error for people.
pub(crate) fn words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(error) => words_of(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the client closed the connection during the TLS handshake".to_owned()
        }
        None => error.to_string(),
    }
}

/// Describes a TLS error for people.
pub(crate) fn words_of(error: &Error) -> String {
    let why = match error {
        Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "is not valid yet"
            }
            CertificateError::Revoked => "was revoked",
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "is not signed by an authority of --trusted-ca-file"
            }
            CertificateError::UnknownRevocationStatus => {
                "is covered by no revocation list: each authority needs one"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "is not for clients (extended key usage)"
            }
            CertificateError::Other(OtherError(why))
                if why.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
            {
                "is that of an authority (CA:TRUE): sign a client certificate with it"
            }
            CertificateError::Other(OtherError(why)) => {
                return format!("the client's certificate {why}");
            }
            other => return format!("the client's certificate is invalid: {other}"),
        },
        Error::NoCertificatesPresented => {
            return "the client has presented no certificate".to_owned();
        }
        Error::AlertReceived(alert) => {
            return format!("the client rejected this server: {alert:?}");
        }
        Error::InvalidMessage(_) => return "the client does not use TLS".to_owned(),
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => return "the client supports none of the enabled TLS versions".to_owned(),
        other => return other.to_string(),
    };
    format!("the client's certificate {why}")
}
