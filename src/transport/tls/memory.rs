//! [`PeerCertificates`]: certificates and a key in memory, which the program renews.

use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

use super::trust::{Trust, TrustError, same_member};
use super::{PeerProof, PeerTls};
use crate::transport::TransportError;

/// The certificates and the key of a member as PEM text, for [`PeerCertificates`]. The parts are
/// those of [`PeerTls`].
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerPem {
    /// Certificates of the authorities that sign members' certificates. Empty only with
    /// [`PeerProof::Nothing`].
    pub ca: Vec<u8>,
    /// This member's certificate, followed by the intermediate certificates, if any.
    pub cert: Vec<u8>,
    /// The private key of the certificate.
    pub key: Vec<u8>,
    /// The revocation lists of the authorities.
    pub crl: Option<Vec<u8>>,
}

impl PeerPem {
    /// Uses these texts, without revocation lists.
    pub fn new(ca: impl Into<Vec<u8>>, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { ca: ca.into(), cert: cert.into(), key: key.into(), crl: None }
    }

    /// Sets the revocation lists.
    #[must_use]
    pub fn crl(mut self, crl: impl Into<Vec<u8>>) -> Self {
        self.crl = Some(crl.into());
        self
    }
}

/// Does not show the private key.
impl fmt::Debug for PeerPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerPem").finish_non_exhaustive()
    }
}

/// Certificates and a key in memory, for programs that get them from a secret store or an
/// authority's API instead of files. Pass the value to [`PeerTls::in_memory`], and keep it to renew
/// the certificates while the node runs. Clones share the certificates.
///
/// ```
/// # use bowline::{Blocking, Config, Node, testing::DevAuthority};
/// use bowline::cluster::{PeerCertificates, PeerPem, PeerTls};
///
/// # let dir = tempfile::tempdir()?;
/// # let authority = DevAuthority::new(dir.path(), "shop")?;
/// # let fetch = || -> std::io::Result<_> {
/// #     let files = authority.issue("n1")?;
/// #     Ok((std::fs::read(files.ca)?, std::fs::read(files.cert)?, std::fs::read(files.key)?))
/// # };
/// let (ca, cert, key) = fetch()?; // from a secret store
/// let certificates = PeerCertificates::new(PeerPem::new(ca, cert, key));
/// let config = Config::new(dir.path().join("data"), "n1")
///     .members([("n1", "127.0.0.1:0")])
///     .peer_tls(PeerTls::in_memory(&certificates));
/// let node = Node::start(config).block()?;
///
/// // Before the certificate expires:
/// let (ca, cert, key) = fetch()?;
/// certificates.renew(PeerPem::new(ca, cert, key))?;
/// assert!(certificates.renew(PeerPem::new("", "no PEM", "")).is_err()); // changes nothing
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PeerCertificates(Arc<watch::Sender<PeerPem>>);

impl PeerCertificates {
    /// Stores these certificates, which are validated when a node starts with them.
    pub fn new(pem: PeerPem) -> Self {
        Self(Arc::new(watch::Sender::new(pem)))
    }

    /// Replaces the certificates and the key. All nodes of this process that use this value then
    /// open new connections with the new certificates. Open connections stay, unless their peer's
    /// certificate is not valid by the new authorities or revocation lists. The same rule applies
    /// to files that change.
    ///
    /// # Errors
    /// Returns [`TransportError::Certificates`] if a part is not valid PEM, the key does not belong
    /// to the certificate, or the certificate is for another member than the current one. The
    /// current certificates then stay in use.
    pub fn renew(&self, pem: PeerPem) -> Result<(), TransportError> {
        let usable = |pem: &PeerPem| {
            let proof = match pem.ca.is_empty() {
                true => PeerProof::Nothing,
                false => PeerProof::OwnKind,
            };
            Trust::new(pem, &PeerTls::in_memory(self).proof(proof))
        };
        let unusable = |error: TrustError| TransportError::Certificates(error.to_string());
        let new = usable(&pem).map_err(unusable)?;
        // The member's name must not change, unless the current certificates are unusable.
        if let Ok(current) = usable(&self.0.borrow()) {
            same_member(current.uri(), new.uri()).map_err(unusable)?;
        }
        self.0.send_replace(pem);
        Ok(())
    }

    /// Returns the current certificates.
    pub(in crate::transport) fn pem(&self) -> PeerPem {
        self.0.borrow().clone()
    }

    /// Returns a receiver of changes. The current certificates count as a change.
    pub(super) fn changes(&self) -> watch::Receiver<PeerPem> {
        let mut changes = self.0.subscribe();
        changes.mark_changed();
        changes
    }
}

/// Clones are equal, because they share the certificates.
impl PartialEq for PeerCertificates {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PeerCertificates {}
