//! TLS with clients: what they are shown, and whose certificates are good.
//!
//! ```text
//!   files ── read at the start, and again when they change ──► Trust ──► every later handshake
//!                                                               │
//!                                                               └──► every connection that is up:
//!                                                                    judged again, ended if it fails
//! ```
//!
//! Files that cannot be used change nothing, and are said so. Sessions are never resumed: a client that comes back
//! shows its certificate again.
//!
//! What is not here: sockets, deadlines and how many may be in their handshake at once, which is [`super::listen`]'s; and what
//! the user may do who is named in a certificate, which is [`super::identity`]'s.

mod files;
mod judge;
mod made;
mod subject;
mod trust;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::flags::{ClientTls, Shown};
pub(super) use files::TlsError;
use files::{Files, Look, Made, Seen, Stamps};
pub(super) use judge::{words, words_of};
pub(super) use made::make_files;
pub(super) use subject::common_name;
pub(super) use trust::Trust;

/// How often to look whether the files have changed. A look is three calls of the file system.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What clients are shown and asked for, kept fresh.
pub(super) struct Tls {
    options: ClientTls,
    /// What is shown, where that is not in files.
    made: Option<Made>,
    seen: Mutex<Seen>,
    trust: watch::Sender<Arc<Trust>>,
}

impl Tls {
    /// Reads the files for the first time, or makes what they would hold.
    ///
    /// # Errors
    /// Which of them cannot be used, and why.
    pub(super) fn load(options: ClientTls) -> Result<Self, TlsError> {
        let seen = Mutex::new(Seen::new(Stamps::of(&options)));
        let made = Made::new(&options)?;
        let files = Files::read(&options, made.as_ref())?;
        let trust = Trust::new(&files, &options)?;
        if let Shown::Made { .. } = options.shown {
            tracing::warn!(
                sha256 = trust.fingerprint(),
                "clients are shown a certificate that nobody has signed, and that is another one after the next start"
            );
        }
        Ok(Self { options, made, seen, trust: watch::Sender::new(Arc::new(trust)) })
    }

    /// What holds now, and when that changes.
    pub(super) fn changes(&self) -> watch::Receiver<Arc<Trust>> {
        self.trust.subscribe()
    }

    /// Whether who shows no token is the user named in its certificate.
    pub(super) fn names_users(&self) -> bool {
        self.options.names_users
    }

    /// Looks at the files again and again.
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let tls = Arc::clone(&self);
            // A file system may hang. A look that fails is followed by the next one.
            drop(tokio::task::spawn_blocking(move || tls.refresh()).await);
        }
    }

    /// Reads the files if they have changed, or could not be read before. What cannot be used is said once.
    fn refresh(&self) {
        // Looked at before they are read: what changes in between is read again.
        let now = Stamps::of(&self.options);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let look = seen.look(now, || {
            let files = Files::read(&self.options, self.made.as_ref())?;
            Trust::new(&files, &self.options)
        });
        match look {
            Look::Same | Look::StillBad => {}
            Look::New(trust) => {
                self.trust.send_replace(Arc::new(trust));
                tracing::info!("new certificates are in use with clients");
            }
            Look::Bad(error) => {
                tracing::warn!("the certificates in use with clients stay: {error}");
            }
        }
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

    /// Whoever has looked at its fingerprint relies on it.
    #[test]
    fn a_certificate_that_was_made_stays_when_other_files_change() {
        let dir = tempfile::tempdir().unwrap();
        let authorities = dir.path().join("ca.pem");
        std::fs::write(&authorities, authority()).unwrap();
        let options = ClientTls {
            shown: Shown::Made { hosts: vec!["localhost".to_owned()], years: 1 },
            authorities: Some(authorities.clone()),
            revoked: None,
            hosts: Vec::new(),
            names_users: false,
            versions: vec![&rustls::version::TLS13],
            suites: rustls::crypto::ring::ALL_CIPHER_SUITES.to_vec(),
        };
        let tls = Tls::load(options).unwrap();
        let before = Arc::clone(&tls.changes().borrow());
        tls.refresh();
        assert!(Arc::ptr_eq(&before, &tls.changes().borrow()), "nothing has changed");
        std::fs::write(&authorities, [authority(), authority()].concat()).unwrap();
        tls.refresh();
        let after = Arc::clone(&tls.changes().borrow());
        assert!(!Arc::ptr_eq(&before, &after), "the new authorities count");
        assert_eq!(before.fingerprint(), after.fingerprint());
    }
}
