//! Whose certificates are good: signed by an authority, in time, for clients, not revoked, and for one of the hosts
//! that are named, if any are.

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

/// A certificate of nobody who may come.
#[derive(Debug, ThisError)]
#[error("is for none of the hosts of --client-cert-allowed-hostname")]
struct NotAllowed;

/// See the module.
#[derive(Debug)]
pub(super) struct Judge {
    inner: Arc<dyn ClientCertVerifier>,
    hosts: Vec<ServerName<'static>>,
}

impl Judge {
    pub(super) fn new(inner: Arc<dyn ClientCertVerifier>, hosts: Vec<ServerName<'static>>) -> Self {
        Self { inner, hosts }
    }
}

impl ClientCertVerifier for Judge {
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

/// What is wrong in a handshake, for people.
pub(in crate::server) fn words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(error) => words_of(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the client closed the connection during the TLS handshake".to_owned()
        }
        None => error.to_string(),
    }
}

/// The same, where it is known to be TLS's.
pub(in crate::server) fn words_of(error: &Error) -> String {
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
                "is in the domain of no revocation list: each authority needs one"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "is not for clients"
            }
            CertificateError::Other(OtherError(why))
                if why.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
            {
                "may sign others (CA:TRUE), and is nobody's: sign one with it"
            }
            CertificateError::Other(OtherError(why)) => return format!("its certificate {why}"),
            other => return format!("its certificate is not good: {other}"),
        },
        Error::NoCertificatesPresented => return "it shows no certificate".to_owned(),
        Error::AlertReceived(alert) => return format!("it refuses this server: {alert:?}"),
        Error::InvalidMessage(_) => return "it does not speak TLS".to_owned(),
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => return "it speaks no version of TLS that is spoken here".to_owned(),
        other => return other.to_string(),
    };
    format!("its certificate {why}")
}
