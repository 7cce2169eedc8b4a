//! TLS between members: both ends present a certificate, and both verify it.
//!
//! ```text
//!   files ── read at the start, and again when they change ──► Trust ──► every later handshake
//!   memory ── read at the start, and again when renewed ──────►  │
//!                                                                └──► every open connection:
//!                                                                     checked again, closed if it fails
//! ```
//!
//! **Identity.** A member's certificate is signed by the cluster's authority, and contains one URI
//! of the form `bowline://CLUSTER/MEMBER` among its alternative names: [`MemberUri`]. The operator
//! chooses `CLUSTER`. Each member accepts only certificates with the same `CLUSTER` as its own
//! certificate. `MEMBER` is the member's name. The first message of a peer, its hello, contains the
//! peer's id. The receiver looks up the name of the member with this id, and rejects the peer if
//! its certificate contains another name. Host names and addresses are not checked, because they
//! change and a name service proves nothing.
//!
//! **Verification.** One function ([`verifier`]) verifies every connection, in both directions and
//! on all lanes. The function checks the chain up to the authority, the validity period, the use
//! for clients or servers, and the revocation list, if there is one. Sessions are never resumed,
//! because that would skip the verification. The TLS version is 1.3.
//!
//! **Not in this module.** This module does not know the members of the cluster. The comparison of
//! names is in [`super::handshake`].

mod memory;
mod trust;
mod uri;
mod verifier;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

use super::TransportError;
use crate::env::Env;

pub use memory::{PeerCertificates, PeerPem};
pub(super) use trust::Trust;
use trust::{TrustError, read_pem, same_member};
pub use uri::MemberUri;
pub(super) use wire::{TlsWire, Untrusted, may_lack_tls};

/// The certificate files of a member, in PEM format, with which it proves its identity and verifies
/// its peers. The files are read again while the node runs, so a new certificate or revocation list
/// needs no restart. [`PeerTls::in_memory`] takes certificates from memory instead.
///
/// # Cryptography
///
/// Connections use the default [`CryptoProvider`] of the process if the program has installed one
/// before the node starts, and otherwise ring. To use aws-lc-rs, depend on rustls 0.23 with its
/// feature `aws_lc_rs`, and call `rustls::crypto::aws_lc_rs::default_provider().install_default()`
/// first. A provider without TLS 1.3 fails the start.
///
/// ```standalone_crate
/// # use bowline::{Blocking, Config, Node, testing::DevAuthority};
/// # let dir = tempfile::tempdir()?;
/// # let files = DevAuthority::new(dir.path(), "shop")?.issue("n1")?;
/// # let config = Config::new(dir.path().join("data"), "n1").members([("n1", "127.0.0.1:0")]);
/// let mut provider = rustls::crypto::ring::default_provider();
/// provider.cipher_suites.truncate(1);
/// provider.install_default().expect("no other default");
/// let node = Node::start(config.peer_tls(files)).block()?;
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`CryptoProvider`]: https://docs.rs/rustls/0.23/rustls/crypto/struct.CryptoProvider.html
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerTls {
    /// Certificates of the authorities that sign members' certificates. If such an authority also
    /// signs other certificates, only the URI in a certificate distinguishes members from other
    /// owners: see [`MemberUri`].
    pub ca: PathBuf,
    /// This member's certificate, followed by the intermediate certificates, if any. The
    /// certificate must be valid for clients and servers, and have the member's [`MemberUri`] among
    /// its alternative names.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The revocation lists of the authorities: one for each authority in use, including
    /// intermediate authorities. A list remains in force after the date of its next update.
    pub crl: Option<PathBuf>,
    /// The rule for certificates of other members.
    pub proof: PeerProof,
    /// Whether connections with members without TLS are accepted too: see [`PeerTls::migrating`].
    pub migrating: bool,
    /// Certificates and key that are used instead of the files.
    pub(super) memory: Option<PeerCertificates>,
}

/// The rule for which certificates are accepted as those of members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum PeerProof {
    /// Certificates that an authority has signed for the member of that name: see [`MemberUri`].
    #[default]
    Named,
    /// The rule [`PeerProof::Named`] if this member's own certificate contains a URI of this form.
    /// Otherwise etcd's rule: every certificate that an authority has signed is accepted for any
    /// member. Every owner of such a certificate can then pose as any member. Therefore the
    /// authority must sign certificates for members only.
    OwnKind,
    /// Every certificate is accepted. Connections are encrypted but not authenticated: any process
    /// that reaches the port can pose as a member. Therefore non-loopback addresses also need the
    /// setting [`Config::insecure_peers`].
    ///
    /// [`Config::insecure_peers`]: crate::Config::insecure_peers
    Nothing,
}

impl PeerTls {
    /// Uses these files, without revocation lists.
    pub fn new(ca: impl Into<PathBuf>, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let (ca, cert, key) = (ca.into(), cert.into(), key.into());
        let proof = PeerProof::Named;
        Self { ca, cert, key, crl: None, proof, migrating: false, memory: None }
    }

    /// Uses certificates and a key in memory instead of files. The fields for paths stay empty.
    pub fn in_memory(certificates: &PeerCertificates) -> Self {
        Self { memory: Some(certificates.clone()), ..Self::new("", "", "") }
    }

    /// Uses any certificate, such as a self-signed one, for encryption without authentication:
    /// [`PeerProof::Nothing`].
    pub fn unproven(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { proof: PeerProof::Nothing, ..Self::new("", cert, key) }
    }

    /// Returns the key of a setting without which these files cannot be used.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if self.memory.is_some() {
            return None;
        }
        let has_ca = self.proof == PeerProof::Nothing || !self.ca.as_os_str().is_empty();
        let files = [
            ("peer_tls.ca", has_ca),
            ("peer_tls.cert", !self.cert.as_os_str().is_empty()),
            ("peer_tls.key", !self.key.as_os_str().is_empty()),
        ];
        files.into_iter().find(|(_, is_set)| !is_set).map(|(key, _)| key)
    }

    /// Sets the rule for the certificates of other members.
    #[must_use]
    pub fn proof(mut self, proof: PeerProof) -> Self {
        self.proof = proof;
        self
    }

    /// Allows connections with and without TLS, while a running cluster migrates to TLS one member
    /// after the other. If a peer does not use TLS, it is dialed again without TLS. A rejected
    /// certificate still ends the connection.
    ///
    /// While this is set, certificates do not protect. Any process that reaches the port can pose
    /// as a member, and an attacker who can change the traffic can turn TLS off.
    #[must_use]
    pub fn migrating(mut self) -> Self {
        self.migrating = true;
        self
    }

    /// Sets the revocation lists.
    #[must_use]
    pub fn crl(mut self, crl: impl Into<PathBuf>) -> Self {
        self.crl = Some(crl.into());
        self
    }
}

/// The current trust of a member, updated when its files change.
pub(super) struct Tls {
    env: Env,
    paths: PeerTls,
    seen: Mutex<TlsSeen>,
    trust: watch::Sender<Arc<Trust>>,
}

/// The results of reading the files.
struct TlsSeen {
    /// The contents of the files when they were last read, valid or not.
    files: PeerPem,
    /// The reason why the last read failed, if it did.
    unreadable: Option<String>,
}

/// Logs a warning if other members will reject this member's own certificate.
fn warn_of_own(trust: &Trust) {
    if let Err(why) = trust.check_own() {
        tracing::warn!("other members will reject this member: its own certificate {why}");
    }
}

impl Tls {
    /// Reads the files for the first time. `name` is the name of this member, if known.
    pub(super) fn load(
        env: &Env,
        paths: PeerTls,
        name: Option<&str>,
    ) -> Result<Self, TransportError> {
        let unusable = |error: TrustError| TransportError::Certificates(error.to_string());
        let files = read_pem(&*env.disk, &paths).map_err(unusable)?;
        let trust = Trust::new(&files, &paths).map_err(unusable)?;
        match (trust.uri(), name) {
            (Some(MemberUri { member, .. }), Some(name)) if name != member => {
                return Err(TransportError::Certificates(format!(
                    "this member is named {name:?}, but its certificate is for {member:?}"
                )));
            }
            (None, _) if paths.proof == PeerProof::Nothing => tracing::warn!(
                "connections between members are encrypted but not authenticated: any process that reaches \
                 the ports can pose as a member"
            ),
            (None, _) => tracing::warn!(
                "this member's certificate has no URI of the form bowline://CLUSTER/MEMBER: every owner of a \
                 certificate of its authority can pose as any member"
            ),
            _ => {}
        }
        if paths.migrating {
            tracing::warn!(
                "migrating to TLS: connections between members are also allowed without TLS; end the \
                 migration when all members use TLS"
            );
        }
        warn_of_own(&trust);
        let seen = Mutex::new(TlsSeen { files, unreadable: None });
        let trust = watch::Sender::new(Arc::new(trust));
        Ok(Self { env: env.clone(), paths, seen, trust })
    }

    /// Returns whether connections with members without TLS are allowed.
    pub(super) fn is_migrating(&self) -> bool {
        self.paths.migrating
    }

    pub(super) fn trust(&self) -> Arc<Trust> {
        self.trust.borrow().clone()
    }

    pub(super) fn changes(&self) -> watch::Receiver<Arc<Trust>> {
        self.trust.subscribe()
    }

    /// Reads the files periodically, or the certificates in memory when they are renewed.
    pub(super) async fn reload_when_changed(self: Arc<Self>, every: Duration) {
        let mut renewed = self.paths.memory.as_ref().map(PeerCertificates::changes);
        loop {
            match &mut renewed {
                // This value owns a sender, so the receiver never fails.
                Some(renewed) => drop(renewed.changed().await),
                None => tokio::time::sleep(every).await,
            }
            let tls = self.clone();
            // The file system may hang, so read the files on a separate thread.
            let _ = tokio::task::spawn_blocking(move || tls.refresh()).await;
        }
    }

    /// Reads the files again. If the files cannot be used, keeps the current trust and logs the
    /// reason once.
    pub(super) fn refresh(&self) {
        let files = read_pem(&*self.env.disk, &self.paths);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match files {
            Ok(files) => files,
            // The operator may be replacing the file right now, so the current trust stays in use.
            Err(error) => {
                let why = Some(error.to_string());
                if seen.unreadable != why {
                    tracing::warn!(
                        "cannot reload the certificates, keeping the current ones: {error}"
                    );
                    seen.unreadable = why;
                }
                return;
            }
        };
        seen.unreadable = None;
        if seen.files == files {
            return;
        }
        let trust = Trust::new(&files, &self.paths).and_then(|trust| {
            same_member(self.trust().uri(), trust.uri())?;
            Ok(trust)
        });
        seen.files = files;
        drop(seen);
        match trust {
            Ok(trust) => {
                let member = trust.uri().map(|uri| uri.member.as_str());
                tracing::info!(member, "loaded new certificates");
                warn_of_own(&trust);
                self.trust.send_replace(Arc::new(trust));
            }
            Err(error) => {
                tracing::warn!("cannot reload the certificates, keeping the current ones: {error}")
            }
        }
    }
}
