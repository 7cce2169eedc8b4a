//! Verifies the certificates of dialers and of acceptors.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, SignatureScheme,
};
use thiserror::Error as ThisError;
use webpki::{CertRevocationList, EndEntityCert, KeyUsage, RevocationOptionsBuilder};

use super::uri::MemberUri;

/// The use for which a certificate must be valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// The owner of the certificate has dialed.
    Client,
    /// The owner of the certificate was dialed.
    Server,
}

/// A certificate that the authority has signed, but that does not belong to a member of this
/// cluster.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct WrongName(String);

/// The condition under which a certificate is accepted.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// The signature of an authority, and the URI of a member of this cluster.
    Member { cluster: String },
    /// The signature of an authority.
    Signature,
    /// No condition: every certificate is accepted.
    Nothing,
}

/// The verifier. See the module page.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) anchors: Vec<TrustAnchor<'static>>,
    /// If the list is empty, revocation is not checked.
    pub(super) crls: Vec<CertRevocationList<'static>>,
    pub(super) wanted: Wanted,
    pub(super) provider: Arc<CryptoProvider>,
}

impl Verifier {
    /// Verifies a certificate and returns the member's name, if certificates must contain one.
    pub(super) fn check(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
        used: Use,
    ) -> Result<Option<MemberUri>, Error> {
        let cert = EndEntityCert::try_from(cert).map_err(rejection)?;
        if self.wanted == Wanted::Nothing {
            return Ok(None);
        }
        let usage = match used {
            Use::Client => KeyUsage::client_auth(),
            Use::Server => KeyUsage::server_auth(),
        };
        let crls: Vec<&CertRevocationList<'_>> = self.crls.iter().collect();
        // Revocation is checked for the whole chain. A certificate without a revocation list of its
        // issuer is rejected.
        let revocation = RevocationOptionsBuilder::new(&crls).ok().map(|options| options.build());
        cert.verify_for_usage(
            self.provider.signature_verification_algorithms.all,
            &self.anchors,
            between,
            now,
            usage,
            revocation,
            None,
        )
        .map_err(rejection)?;
        let Wanted::Member { cluster } = &self.wanted else { return Ok(None) };
        let uri = MemberUri::only(cert.valid_uri_names()).map_err(not_ours)?;
        if uri.cluster != *cluster {
            return Err(not_ours(format!(
                "is for a member of cluster {:?}, not of cluster {cluster:?}",
                uri.cluster
            )));
        }
        Ok(Some(uri))
    }
}

fn not_ours(why: String) -> Error {
    CertificateError::Other(OtherError(Arc::new(WrongName(why)))).into()
}

/// Converts the error into a TLS error, so that the other end receives an alert with the reason.
fn rejection(error: webpki::Error) -> Error {
    match error {
        webpki::Error::CertExpired { .. } => CertificateError::Expired,
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        webpki::Error::CertRevoked => CertificateError::Revoked,
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        webpki::Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        // This error means that the issuer is another authority with the same name.
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::UnknownIssuer,
        webpki::Error::BadDer | webpki::Error::BadDerTime => CertificateError::BadEncoding,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    }
    .into()
}

/// Returns a description of the error. `whose` is the certificate's owner.
pub(super) fn words(error: &Error, whose: &str) -> String {
    let certificate = |what: &str| format!("{whose}'s certificate {what}");
    match error {
        Error::InvalidCertificate(why) => match why {
            CertificateError::Expired => certificate("has expired"),
            CertificateError::NotValidYet => certificate("is not valid yet"),
            CertificateError::Revoked => certificate("was revoked"),
            CertificateError::UnknownIssuer => certificate("is not signed by a trusted authority"),
            CertificateError::UnknownRevocationStatus => {
                certificate("is not covered by any revocation list: each authority needs one")
            }
            CertificateError::Other(OtherError(why)) => certificate(&why.to_string()),
            other => certificate(&format!("is invalid: {other}")),
        },
        Error::NoCertificatesPresented => format!("{whose} presents no certificate"),
        Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA),
        ) => format!("{whose} does not accept this member's certificate: {alert:?}"),
        Error::InvalidMessage(_) => format!("{whose} does not use TLS, but this member does"),
        other => format!("TLS with {whose} failed: {other}"),
    }
}

/// Declares the verification of handshake signatures, which is the same for servers and clients.
macro_rules! tls13_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not supported".to_owned()))
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
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(cert, between, now, Use::Server)?;
        Ok(ServerCertVerified::assertion())
    }

    tls13_signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(cert, between, now, Use::Client)?;
        Ok(ClientCertVerified::assertion())
    }

    tls13_signatures!();
}

#[cfg(all(test, feature = "testing-tls"))]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        DnType, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
        date_time_ymd,
    };
    use rustls::crypto::ring;
    use webpki::{OwnedCertRevocationList, anchor_from_trusted_cert};

    use super::*;

    type Issuer = CertifiedIssuer<'static, KeyPair>;

    fn params(name: &str, number: u64, is_ca: bool) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from(number));
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        }
        params
    }

    /// Returns the revocation list of `issuer` with these revoked serial numbers.
    fn list(issuer: &Issuer, revoked: &[u64]) -> CertRevocationList<'static> {
        let entry = |number: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*number),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let der = params.signed_by(issuer).expect("signed");
        OwnedCertRevocationList::from_der(der.der()).expect("a list").into()
    }

    #[test]
    fn revoked_intermediate_authority_is_rejected() {
        let key = || KeyPair::generate().expect("a key");
        let root = Issuer::self_signed(params("root", 1, true), key()).expect("signed");
        let between = Issuer::signed_by(params("between", 2, true), key(), &root).expect("signed");
        let leaf = params("leaf", 3, false).signed_by(&key(), &between).expect("signed");
        let verify = |crls: Vec<CertRevocationList<'static>>, used: Use| {
            let anchor = anchor_from_trusted_cert(root.der()).expect("an anchor").to_owned();
            let provider = Arc::new(ring::default_provider());
            let verifier =
                Verifier { anchors: vec![anchor], crls, wanted: Wanted::Signature, provider };
            let verified =
                verifier.check(leaf.der(), &[between.der().clone()], UnixTime::now(), used);
            verified.map(drop)
        };
        let refused = |why: CertificateError| Err(Error::InvalidCertificate(why));
        for used in [Use::Client, Use::Server] {
            assert_eq!(verify(Vec::new(), used), Ok(()));
            assert_eq!(verify(vec![list(&root, &[]), list(&between, &[])], used), Ok(()));
            // The root's list contains the serial number of the leaf, but the leaf has another
            // issuer.
            assert_eq!(verify(vec![list(&root, &[3]), list(&between, &[2])], used), Ok(()));
            let by_root = vec![list(&root, &[2]), list(&between, &[])];
            assert_eq!(verify(by_root, used), refused(CertificateError::Revoked));
            let by_between = vec![list(&root, &[]), list(&between, &[3])];
            assert_eq!(verify(by_between, used), refused(CertificateError::Revoked));
            // Verification fails unless both authorities have a list.
            for one in [list(&root, &[]), list(&between, &[])] {
                let unknown = refused(CertificateError::UnknownRevocationStatus);
                assert_eq!(verify(vec![one], used), unknown);
            }
        }
    }
}
