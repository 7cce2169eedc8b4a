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
use files::{Files, Stamps};
pub(super) use judge::{words, words_of};
pub(super) use subject::common_name;
pub(super) use trust::Trust;

/// How often to look whether the files have changed. A look is three calls of the file system.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What clients are shown and asked for, kept fresh.
pub(super) struct Tls {
    options: ClientTls,
    /// What the files looked like when they were last read, good or bad.
    seen: Mutex<Stamps>,
    trust: watch::Sender<Arc<Trust>>,
}

impl Tls {
    /// Reads the files for the first time, or makes what they would hold.
    ///
    /// # Errors
    /// Which of them cannot be used, and why.
    pub(super) fn load(options: ClientTls) -> Result<Self, TlsError> {
        let seen = Stamps::of(&options);
        let files = Files::read(&options)?;
        let trust = Trust::new(&files, &options)?;
        if let Shown::Made { .. } = options.shown {
            tracing::warn!(
                sha256 = trust.fingerprint(),
                "clients are shown a certificate that nobody has signed, and that is another one after the next start"
            );
        }
        Ok(Self { options, seen: Mutex::new(seen), trust: watch::Sender::new(Arc::new(trust)) })
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

    /// Reads the files if they have changed. What cannot be used is said once.
    fn refresh(&self) {
        // Looked at before they are read: what changes in between is read again.
        let now = Stamps::of(&self.options);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return;
        }
        *seen = now;
        drop(seen);
        let read = Files::read(&self.options);
        match read.and_then(|files| Trust::new(&files, &self.options)) {
            Ok(trust) => {
                self.trust.send_replace(Arc::new(trust));
                tracing::info!("new certificates are in use with clients");
            }
            Err(error) => {
                tracing::warn!("the certificates in use with clients stay: {error}");
            }
        }
    }
}
