//! TLS with clients: the server's certificate, and verification of client certificates.
//!
//! ```text
//!   files ── read at the start, and again when they change ──► Trust ──► every later handshake
//!                                                               │
//!                                                               └──► every open connection:
//!                                                                    verified again, closed if that fails
//! ```
//!
//! If the certificate files become invalid, the server logs the error and keeps using the previous certificates. TLS
//! sessions are never resumed, so a returning client must present its certificate again.
//!
//! The sockets, the timeouts and the limit of concurrent handshakes are in [`crate::listen`]. The permissions of the
//! user that a certificate names are checked in [`crate::identity`].

mod files;
mod self_signed;
mod settings;
mod subject;
mod trust;
mod verifier;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

pub use files::TlsError;
use files::{Files, Look, Seen, SelfSignedPem, Stamps};
pub use self_signed::make as self_signed;
pub use settings::{Certificate, TlsSettings};
pub(crate) use subject::common_name;
pub(crate) use trust::Trust;
pub(crate) use verifier::{words, words_of};

/// Interval between checks of the files. A check takes three system calls.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The certificates in use, reloaded when they change.
pub struct ServerTls {
    settings: TlsSettings,
    /// The generated certificate, if there are no files.
    made: Option<SelfSignedPem>,
    seen: Mutex<Seen>,
    trust: watch::Sender<Arc<Trust>>,
}

impl ServerTls {
    /// Reads the files for the first time, or generates a certificate.
    ///
    /// # Errors
    /// Fails if a file cannot be used.
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let seen = Mutex::new(Seen::new(Stamps::of(&settings)));
        let made = SelfSignedPem::new(&settings)?;
        let files = Files::read(&settings, made.as_ref())?;
        let trust = Trust::new(&files, &settings)?;
        if let Certificate::SelfSigned { .. } = settings.certificate {
            tracing::warn!(
                sha256 = trust.fingerprint(),
                "using a self-signed certificate for clients; a new one is created at each start"
            );
        }
        Ok(Self { settings, made, seen, trust: watch::Sender::new(Arc::new(trust)) })
    }

    /// Returns a receiver of the current certificates and their changes.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Trust>> {
        self.trust.subscribe()
    }

    /// Returns whether a client without a token is the user named in its certificate.
    pub(crate) fn names_users(&self) -> bool {
        self.settings.names_users
    }

    /// Checks the files periodically.
    pub(crate) async fn reload_when_changed(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let tls = Arc::clone(&self);
            // The file system may hang, so the check runs on another thread. If a check fails, the error is ignored,
            // because the check is repeated.
            drop(tokio::task::spawn_blocking(move || tls.refresh()).await);
        }
    }

    /// Reloads the files if they have changed or could not be read before. Reports each problem once.
    fn refresh(&self) {
        // The metadata is read first, so that a change during the read is noticed at the next check.
        let now = Stamps::of(&self.settings);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let look = seen.look(now, || {
            let files = Files::read(&self.settings, self.made.as_ref())?;
            Trust::new(&files, &self.settings)
        });
        match look {
            Look::Same | Look::StillBad => {}
            Look::New(trust) => {
                self.trust.send_replace(Arc::new(trust));
                tracing::info!("reloaded the TLS certificates for clients");
            }
            Look::Bad(error) => {
                tracing::warn!(
                    "cannot reload the TLS certificates for clients, keeping the current ones: {error}"
                );
            }
        }
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    fn authority() -> String {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    /// Users who have verified the fingerprint of the certificate rely on it.
    #[test]
    fn generated_certificate_survives_changes_of_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let authorities = dir.path().join("ca.pem");
        std::fs::write(&authorities, authority()).unwrap();
        let hosts = vec!["localhost".to_owned()];
        let settings = TlsSettings {
            authorities: Some(authorities.clone()),
            ..TlsSettings::new(Certificate::SelfSigned { hosts, years: 1 })
        };
        let tls = ServerTls::load(settings).unwrap();
        let before = Arc::clone(&tls.changes().borrow());
        tls.refresh();
        assert!(Arc::ptr_eq(&before, &tls.changes().borrow()), "nothing has changed");
        std::fs::write(&authorities, [authority(), authority()].concat()).unwrap();
        tls.refresh();
        let after = Arc::clone(&tls.changes().borrow());
        assert!(!Arc::ptr_eq(&before, &after), "the new authorities are used");
        assert_eq!(before.fingerprint(), after.fingerprint());
    }
}
