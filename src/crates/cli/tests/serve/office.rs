//! A certificate authority for tests, and clients that use its certificates.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// A certificate authority, and the files of the certificates that it has signed.
pub(crate) struct Office {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    issued: u64,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CertificateContent<'a> {
    pub(crate) names: &'a [&'a str],
    pub(crate) hosts: &'a [&'a str],
    pub(crate) uri: Option<&'a str>,
    pub(crate) years: (i32, i32),
    pub(crate) uses: &'a [ExtendedKeyUsagePurpose],
}

/// Valid on this machine for servers and clients, for a long time, without a common name.
pub(crate) const GOOD: CertificateContent<'_> = CertificateContent {
    names: &[],
    hosts: &["127.0.0.1", "localhost"],
    uri: None,
    years: (2020, 2100),
    uses: &[ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth],
};

impl Office {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let office = Self { dir, issuer, issued: 0 };
        fs::write(office.ca(), office.issuer.pem()).unwrap();
        office.revoke(&[]);
        office
    }

    /// Makes an intermediate authority that this one has signed. Clients with its certificates must send its
    /// certificate, too.
    pub(crate) fn intermediate(&mut self) -> (Self, Card) {
        self.issued += 1;
        let number = self.issued;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("intermediate {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(SerialNumber::from(number));
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::signed_by(params, key, &self.issuer).unwrap();
        let office = Self { dir: tempfile::tempdir().unwrap(), issuer, issued: 0 };
        fs::write(office.ca(), office.issuer.pem()).unwrap();
        office.revoke(&[]);
        let card = Card { cert: office.ca(), key: PathBuf::new(), number };
        (office, card)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the authority's certificate.
    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Returns the authority's certificate and key, as a client would present them.
    pub(crate) fn own(&self) -> Card {
        let key = self.path("ca.key.pem");
        fs::write(&key, self.issuer.key().serialize_pem()).unwrap();
        Card { cert: self.ca(), key, number: 0 }
    }

    /// Returns the path of the revocation list.
    pub(crate) fn crl(&self) -> PathBuf {
        self.path("crl.pem")
    }

    /// Issues a certificate with this content.
    pub(crate) fn issue(&mut self, content: CertificateContent<'_>) -> Card {
        self.issued += 1;
        let number = self.issued;
        let mut params = CertificateParams::new(
            content.hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>(),
        )
        .unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in content.names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        if let Some(uri) = content.uri {
            params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().unwrap()));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = content.uses.to_vec();
        params.serial_number = Some(SerialNumber::from(number));
        params.not_before = date_time_ymd(content.years.0, 1, 1);
        params.not_after = date_time_ymd(content.years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str| self.path(&format!("{number}.{kind}.pem"));
        let card = Card { cert: file("cert"), key: file("key"), number };
        fs::write(&card.cert, cert.pem()).unwrap();
        fs::write(&card.key, key.serialize_pem()).unwrap();
        card
    }

    /// Issues a certificate for a client with this common name.
    pub(crate) fn client(&mut self, name: &str) -> Card {
        self.issue(CertificateContent { names: &[name], ..GOOD })
    }

    /// Issues a certificate for a member of the cluster `shop`.
    pub(crate) fn member(&mut self, name: &str) -> Card {
        self.issue(CertificateContent { uri: Some(&format!("bowline://shop/{name}")), ..GOOD })
    }

    /// Writes a revocation list with exactly these certificates.
    pub(crate) fn revoke(&self, cards: &[&Card]) {
        let revoked = |card: &&Card| RevokedCertParams {
            serial_number: SerialNumber::from(card.number),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: cards.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).unwrap();
        put(&self.crl(), list.pem().unwrap().as_bytes());
        put(&self.crl().with_extension("der"), list.der());
    }

    /// Returns the TLS configuration of a client that trusts this authority and presents a certificate, if one is
    /// given.
    pub(crate) fn config(
        &self,
        card: Option<&Card>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match card {
            None => config.with_no_client_auth(),
            Some(card) => {
                let cert = CertificateDer::from_pem_file(&card.cert).unwrap();
                let key = PrivateKeyDer::from_pem_file(&card.key).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        Arc::new(config)
    }

    /// Connects. The TLS handshake has not begun.
    pub(crate) fn connect(
        &self,
        address: &str,
        card: Option<&Card>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let config = self.config(card, versions);
        let session = ClientConnection::new(config, "127.0.0.1".try_into().unwrap()).unwrap();
        StreamOwned::new(session, TcpStream::connect(address).unwrap())
    }

    /// Sends a request over HTTP/1. Returns the whole response, or the error.
    pub(crate) fn http(
        &self,
        address: &str,
        card: Option<&Card>,
        versions: &[&'static SupportedProtocolVersion],
        request: &str,
    ) -> Result<String, String> {
        let mut stream = self.connect(address, card, versions);
        let mut answer = String::new();
        let asked = stream.write_all(request.as_bytes()).and_then(|()| stream.flush());
        // The server may reject the request before all of it is written. Then the response counts.
        match stream.read_to_string(&mut answer) {
            Ok(_) => asked.map(|()| answer).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns a gRPC endpoint that connects at the first call.
    pub(crate) fn endpoint(&self, address: &str, card: Option<&Card>) -> Endpoint {
        let read = |path: &Path| fs::read(path).unwrap();
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&self.ca())));
        if let Some(card) = card {
            config = config.identity(Identity::from_pem(read(&card.cert), read(&card.key)));
        }
        let endpoint = Channel::from_shared(format!("https://{address}")).unwrap();
        endpoint.tls_config(config).unwrap()
    }

    /// Returns a connected gRPC channel.
    pub(crate) async fn channel(&self, address: &str, card: Option<&Card>) -> Channel {
        self.endpoint(address, card).connect().await.unwrap()
    }
}

/// Replaces a file atomically, so that no reader sees half of it.
pub(crate) fn put(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(new, path).unwrap();
}
