//! The contents of the certificate files, or of certificates in memory: this member's identity, and
//! the authorities that it trusts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, TrustAnchor, UnixTime,
};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig};
use thiserror::Error;
use webpki::{EndEntityCert, OwnedCertRevocationList};

use super::memory::PeerPem;
use super::uri::MemberUri;
use super::verifier::{Use, Verifier, Wanted, words};
use super::{PeerProof, PeerTls};
use crate::env::{Disk, OpenMode};

/// Maximum size of a file. Revocation lists can be long.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The first byte of a revocation list in DER format.
const DER_SEQUENCE: u8 = 0x30;
/// The application protocol (ALPN), so that a connection meant for another server with the same
/// certificate fails.
const PROTOCOL: &[u8] = b"bowline-peer";

/// The reason why the files cannot be used.
#[derive(Debug, Error)]
pub(super) enum TrustError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// A file, or a part of the certificates in memory, has invalid contents.
    #[error("cannot use {place}: {why}")]
    Content {
        /// Path of the file, or name of the part.
        place: String,
        /// The reason.
        why: String,
    },
    /// The cryptography of the process lacks what connections between members need.
    #[error("cannot use the default CryptoProvider of this process: {0}")]
    Provider(String),
    /// The new certificate belongs to another member than the current one.
    #[error("the new certificate is for {is}, but the current one is for {was}")]
    Name {
        /// The current name.
        was: String,
        /// The new name.
        is: String,
    },
}

/// Reads the files, or the certificates in memory.
pub(super) fn read_pem(disk: &dyn Disk, paths: &PeerTls) -> Result<PeerPem, TrustError> {
    if let Some(memory) = &paths.memory {
        return Ok(memory.pem());
    }
    let read = |path: &Path| {
        read(disk, path).map_err(|source| TrustError::File { path: path.to_owned(), source })
    };
    let ca = match paths.proof {
        PeerProof::Nothing => Vec::new(),
        _ => read(&paths.ca)?,
    };
    let pem = PeerPem::new(ca, read(&paths.cert)?, read(&paths.key)?);
    Ok(PeerPem { crl: paths.crl.as_deref().map(read).transpose()?, ..pem })
}

/// Returns an error if a new certificate is for another member than the current one.
pub(super) fn same_member(
    was: Option<&MemberUri>,
    is: Option<&MemberUri>,
) -> Result<(), TrustError> {
    if was == is {
        return Ok(());
    }
    let named = |uri: Option<&MemberUri>| {
        uri.map_or_else(|| "no named member".to_owned(), ToString::to_string)
    };
    Err(TrustError::Name { was: named(was), is: named(is) })
}

/// Returns the cryptography for connections between members: the default of the process, or ring.
///
/// ```standalone_crate
/// use bowline::{Blocking, Config, Node, cluster::PeerTls, testing::DevAuthority};
///
/// let dir = tempfile::tempdir()?;
/// let files = DevAuthority::new(dir.path(), "shop")?.issue("n1")?;
/// let mut provider = rustls::crypto::ring::default_provider();
/// provider.cipher_suites.clear();
/// provider.install_default().expect("the first");
/// let config = Config::new(dir.path().join("data"), "n1").peer_tls(files);
/// let config = config.members([("n1", "127.0.0.1:0")]);
/// let error = Node::start(config).block().unwrap_err().to_string();
/// assert!(error.contains("cannot use the default CryptoProvider of this process"), "{error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
fn provider() -> Arc<CryptoProvider> {
    let default = CryptoProvider::get_default().cloned();
    default.unwrap_or_else(|| Arc::new(ring::default_provider()))
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "file of {len} bytes is too large: at most {FILE_BYTES_MAX}"
        )));
    }
    let mut bytes = vec![0; usize::try_from(len).expect("below the limit")];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The verified certificates. See the module page.
pub(crate) struct Trust {
    /// The identity of this member, if its certificate contains one.
    uri: Option<MemberUri>,
    chain: Vec<CertificateDer<'static>>,
    pub(super) verifier: Arc<Verifier>,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl Trust {
    pub(super) fn new(files: &PeerPem, paths: &PeerTls) -> Result<Self, TrustError> {
        let content = |path: &Path, part: &str, why: String| {
            let place = match paths.memory {
                Some(_) => format!("the {part} in memory"),
                None => path.display().to_string(),
            };
            TrustError::Content { place, why }
        };
        let anchors = match paths.proof {
            PeerProof::Nothing => Vec::new(),
            _ => anchors(&files.ca)
                .map_err(|why| content(&paths.ca, "certificates of the authorities", why))?,
        };
        let chain =
            certificates(&files.cert).map_err(|why| content(&paths.cert, "certificate", why))?;
        let uri = EndEntityCert::try_from(&chain[0])
            .map_err(|error| error.to_string())
            .and_then(|cert| match paths.proof {
                PeerProof::Nothing => Ok(None),
                PeerProof::OwnKind if !MemberUri::is_in(cert.valid_uri_names()) => Ok(None),
                _ => MemberUri::only(cert.valid_uri_names()).map(Some),
            })
            .map_err(|why| content(&paths.cert, "certificate", format!("the certificate {why}")))?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| {
            content(&paths.key, "private key", format!("no private key: {error}"))
        })?;
        let crls = match &files.crl {
            Some(crl) => revocations(crl).map_err(|why| {
                content(paths.crl.as_deref().unwrap_or(Path::new("")), "revocation lists", why)
            })?,
            None => Vec::new(),
        };
        let provider = provider();
        let wanted = match &uri {
            _ if paths.proof == PeerProof::Nothing => Wanted::Nothing,
            None => Wanted::Signature,
            Some(uri) => Wanted::Member { cluster: uri.cluster.clone() },
        };
        let verifier = Arc::new(Verifier { anchors, crls, wanted, provider: provider.clone() });
        let unusable = |error: rustls::Error| content(&paths.key, "private key", error.to_string());
        let no_tls = |error: rustls::Error| TrustError::Provider(error.to_string());
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(no_tls)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(no_tls)?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(chain.clone(), key)
            .map_err(unusable)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { uri, chain, verifier, client: Arc::new(client), server: Arc::new(server) })
    }

    pub(super) fn uri(&self) -> Option<&MemberUri> {
        self.uri.as_ref()
    }

    /// Checks whether another member with the same files would accept this member's own
    /// certificate.
    pub(super) fn check_own(&self) -> Result<(), String> {
        for used in [Use::Client, Use::Server] {
            self.verifier
                .check(&self.chain[0], &self.chain[1..], UnixTime::now(), used)
                .map_err(|error| words(&error, "this member"))?;
        }
        Ok(())
    }
}

fn anchors(pem: &[u8]) -> Result<Vec<TrustAnchor<'static>>, String> {
    let anchor = |cert: &CertificateDer<'static>| {
        let anchor = webpki::anchor_from_trusted_cert(cert);
        Ok(anchor.map_err(|error| error.to_string())?.to_owned())
    };
    certificates(pem)?.iter().map(anchor).collect()
}

/// Parses at least one certificate.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("it contains no certificate".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses at least one revocation list: several in PEM format, or one in DER format, as etcd
/// expects it.
fn revocations(bytes: &[u8]) -> Result<Vec<webpki::CertRevocationList<'static>>, String> {
    let lists: Result<Vec<_>, _> = match bytes.first() {
        Some(&DER_SEQUENCE) => Ok(vec![CertificateRevocationListDer::from(bytes.to_vec())]),
        _ => CertificateRevocationListDer::pem_slice_iter(bytes).collect(),
    };
    let mut found: Vec<webpki::CertRevocationList<'static>> = Vec::new();
    for der in lists.map_err(|error| error.to_string())? {
        let list = OwnedCertRevocationList::from_der(&der).map_err(|error| error.to_string())?;
        let list = webpki::CertRevocationList::from(list);
        // With two lists of one issuer, only one of them would be used, so this is an error.
        if found.iter().any(|other| other.issuer() == list.issuer()) {
            return Err("two revocation lists of one authority: keep the newest".to_owned());
        }
        found.push(list);
    }
    if found.is_empty() {
        return Err("it contains no revocation list".to_owned());
    }
    Ok(found)
}
