//! TLS between members: both ends show a certificate, and it must be the right one.
//!
//! ```text
//!   files ── read at the start, and again when they change ──► Trust ──► every later handshake
//!                                                               │
//!                                                               └──► every connection that is up:
//!                                                                    judged again, ended if it fails
//! ```
//!
//! **Who is there.** A member's certificate is signed by the cluster's authority and holds one URI of
//! the form `bowline://CLUSTER/MEMBER` among its alternative names: [`MemberUri`]. `CLUSTER` is
//! whatever the operator calls the cluster; each member takes it from its own certificate and accepts
//! only others with the same. `MEMBER` is the member's name; once the hello says which member it is,
//! the handshake compares it with the name that the cluster knows that member by. Host names and
//! addresses are not looked at: they change, and a name service proves nothing.
//!
//! **What is checked.** On each connection, in both directions and on all lanes, by one piece of code
//! ([`verifier`]): the chain up to the authority, validity in time, use for clients or servers, and the
//! revocation list, if there is one. Sessions are never resumed, for that would skip it. TLS is 1.3.
//!
//! **What is not there.** No knowledge of members: names are compared in [`super::handshake`].

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

pub(super) use trust::Trust;
use trust::{Files, TrustError};
pub use uri::MemberUri;
pub(super) use wire::{TlsWire, Untrusted, may_lack_tls};

/// The files with which a member proves who it is, and finds out who the others are. All are PEM.
/// They are read again while the node runs, so that a new certificate or a new revocation list needs
/// no restart.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerTls {
    /// The certificates of the authorities that sign members' certificates. An authority that signs for
    /// others than this cluster's members too is safe only because of the URI: see [`MemberUri`].
    pub ca: PathBuf,
    /// This member's certificate, followed by those between it and the authority, if any. Good for
    /// clients and for servers, and with the member's [`MemberUri`] among its alternative names.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities' revocation lists, one for each authority in use. An outdated one still counts.
    pub crl: Option<PathBuf>,
    /// Whose certificates are taken for members'.
    pub proof: PeerProof,
    /// Whether members without TLS are talked with, too: see [`PeerTls::migrating`].
    pub migrating: bool,
}

/// Whose certificates are taken for members'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum PeerProof {
    /// Those that an authority has signed for the member of that name: see [`MemberUri`].
    #[default]
    Named,
    /// The same if this member's own certificate is of that kind. If there is no such URI in it, it is etcd's kind and
    /// etcd's rule holds at this member: whatever an authority has signed is any member's. Whoever holds a certificate of
    /// that authority, for whatever purpose, can then speak as any member, so it must sign for nobody else.
    OwnKind,
    /// All: it is encrypted, and nobody proves anything. No better than [`Config::insecure_peers`] against who can reach
    /// the ports, and needed beside it off this machine.
    ///
    /// [`Config::insecure_peers`]: crate::Config::insecure_peers
    Nothing,
}

impl PeerTls {
    /// These files, and nothing is ever revoked.
    pub fn new(ca: impl Into<PathBuf>, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let (ca, cert, key) = (ca.into(), cert.into(), key.into());
        Self { ca, cert, key, crl: None, proof: PeerProof::Named, migrating: false }
    }

    /// A certificate that may be signed by anybody, to encrypt and to prove nothing: [`PeerProof::Nothing`].
    pub fn unproven(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { proof: PeerProof::Nothing, ..Self::new("", cert, key) }
    }

    /// With another rule for others' certificates.
    #[must_use]
    pub fn proof(mut self, proof: PeerProof) -> Self {
        self.proof = proof;
        self
    }

    /// While a running cluster moves to TLS, one member after the other: accepts members with and without TLS, and dials
    /// a member without TLS if it does not speak TLS. A certificate that is not accepted ends a connection as always.
    ///
    /// While this is set, certificates do not protect: any process that reaches the port can pose as a member,
    /// and whoever can change what is sent can turn TLS off, as without certificates.
    #[must_use]
    pub fn migrating(mut self) -> Self {
        self.migrating = true;
        self
    }

    /// With revocation lists.
    #[must_use]
    pub fn crl(mut self, crl: impl Into<PathBuf>) -> Self {
        self.crl = Some(crl.into());
        self
    }
}

/// What a member trusts, kept fresh.
pub(super) struct Tls {
    env: Env,
    paths: PeerTls,
    seen: Mutex<Seen>,
    trust: watch::Sender<Arc<Trust>>,
}

/// What has come of reading the files.
struct Seen {
    /// What they held when they were last read, good or bad.
    files: Files,
    /// Why they could not be read this time.
    unreadable: Option<String>,
}

/// Says so if nobody will accept this member's own certificate.
fn warn_of_own(trust: &Trust) {
    if let Err(why) = trust.check_own() {
        tracing::warn!("other members will refuse this one: its own certificate {why}");
    }
}

impl Tls {
    /// Reads the files for the first time. `name` is what this member is called, as far as is known.
    pub(super) fn load(
        env: &Env,
        paths: PeerTls,
        name: Option<&str>,
    ) -> Result<Self, TransportError> {
        let unusable = |error: TrustError| TransportError::Certificates(error.to_string());
        let files = Files::read(&*env.disk, &paths).map_err(unusable)?;
        let trust = Trust::new(&files, &paths).map_err(unusable)?;
        match (trust.uri(), name) {
            (Some(MemberUri { member, .. }), Some(name)) if name != member => {
                return Err(TransportError::Certificates(format!(
                    "this member is called {name:?}, and its certificate is that of {member:?}"
                )));
            }
            (None, _) if paths.proof == PeerProof::Nothing => tracing::warn!(
                "members encrypt and prove nothing: whoever reaches their ports can pose as one"
            ),
            (None, _) => tracing::warn!(
                "this member's certificate has no URI of the form bowline://CLUSTER/MEMBER: whoever has a certificate \
                 of its authority can pose as any member"
            ),
            _ => {}
        }
        if paths.migrating {
            tracing::warn!(
                "migrating to TLS: connections between members are accepted and made without TLS, too; end the migration \
                 when all members use TLS"
            );
        }
        warn_of_own(&trust);
        let seen = Mutex::new(Seen { files, unreadable: None });
        let trust = watch::Sender::new(Arc::new(trust));
        Ok(Self { env: env.clone(), paths, seen, trust })
    }

    /// Whether members without TLS are talked with, too.
    pub(super) fn is_migrating(&self) -> bool {
        self.paths.migrating
    }

    /// What is trusted now.
    pub(super) fn trust(&self) -> Arc<Trust> {
        self.trust.borrow().clone()
    }

    /// Hears when that changes.
    pub(super) fn changes(&self) -> watch::Receiver<Arc<Trust>> {
        self.trust.subscribe()
    }

    /// Reads the files again and again.
    pub(super) async fn keep_fresh(self: Arc<Self>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            let tls = self.clone();
            // A file system may hang.
            let _ = tokio::task::spawn_blocking(move || tls.refresh()).await;
        }
    }

    /// Reads the files again. What cannot be used changes nothing, and is said once.
    pub(super) fn refresh(&self) {
        let files = Files::read(&*self.env.disk, &self.paths);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match files {
            Ok(files) => files,
            // Perhaps it is just being replaced.
            Err(error) => {
                let why = Some(error.to_string());
                if seen.unreadable != why {
                    tracing::warn!("the certificates in use stay: {error}");
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
            if trust.uri() == self.trust().uri() {
                return Ok(trust);
            }
            let named = |uri: Option<&MemberUri>| {
                uri.map_or_else(|| "no member by name".to_owned(), ToString::to_string)
            };
            Err(TrustError::Name { was: named(self.trust().uri()), is: named(trust.uri()) })
        });
        seen.files = files;
        drop(seen);
        match trust {
            Ok(trust) => {
                let member = trust.uri().map(|uri| uri.member.as_str());
                tracing::info!(member, "new certificates are in use");
                warn_of_own(&trust);
                self.trust.send_replace(Arc::new(trust));
            }
            Err(error) => tracing::warn!("the certificates in use stay: {error}"),
        }
    }
}
