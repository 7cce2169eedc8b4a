//! Reads certificate files and detects changes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::tls::self_signed;
use crate::tls::settings::{Certificate, TlsSettings};

/// Maximum size of a file, in bytes. Revocation lists can be long.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reason why certificates cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the TLS file {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A file has invalid contents.
    #[error("invalid TLS file {}: {why}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file cannot be written.
    #[error("cannot write the TLS file {}: {source}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A self-signed certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Making(#[from] rcgen::Error),
}

/// Contents of the files, as PEM.
pub(crate) struct Files {
    pub(crate) cert: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) authorities: Option<Vec<u8>>,
    pub(crate) revoked: Option<Vec<u8>>,
}

/// A generated certificate and its key, as PEM. It stays the same while the server runs.
pub(crate) struct SelfSignedPem {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl SelfSignedPem {
    /// Generates a certificate, unless files are configured.
    pub(crate) fn new(settings: &TlsSettings) -> Result<Option<Self>, TlsError> {
        let Certificate::SelfSigned { hosts, years } = &settings.certificate else {
            return Ok(None);
        };
        let (cert, key) = self_signed::make(hosts, *years)?;
        Ok(Some(Self { cert, key }))
    }
}

impl Files {
    /// Reads the files, or uses the generated certificate in their place.
    pub(crate) fn read(
        settings: &TlsSettings,
        made: Option<&SelfSignedPem>,
    ) -> Result<Self, TlsError> {
        let (cert, key) = match (&settings.certificate, made) {
            (Certificate::Files { cert, key }, _) => (read(cert)?, read(key)?),
            (Certificate::SelfSigned { .. }, made) => {
                made.map(|made| (made.cert.clone(), made.key.clone())).unwrap_or_default()
            }
        };
        let authorities = settings.authorities.as_deref().map(read).transpose()?;
        let revoked = settings.revoked.as_deref().map(read).transpose()?;
        Ok(Self { cert, key, authorities, revoked })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let why = format!("the file has more than {FILE_BYTES_MAX} bytes");
        return Err(TlsError::Content { path: path.to_owned(), why });
    }
    Ok(bytes)
}

/// Observed state of the files.
pub(crate) struct Seen {
    stamps: Stamps,
    /// Reported reason why the files could not be read, which is retried even without a change.
    unread: Option<String>,
}

/// Result of a check.
pub(crate) enum Look<T> {
    /// The files are unchanged.
    Same,
    /// The files have changed and were loaded.
    New(T),
    /// The files cannot be used. The reason is to be reported.
    Bad(TlsError),
    /// The files still cannot be read. The reason was reported already.
    StillBad,
}

impl Seen {
    /// Returns the state after the first read.
    pub(crate) fn new(stamps: Stamps) -> Self {
        Self { stamps, unread: None }
    }

    /// Reads the files if they have changed or could not be read last time.
    pub(crate) fn look<T>(
        &mut self,
        now: Stamps,
        read: impl FnOnce() -> Result<T, TlsError>,
    ) -> Look<T> {
        if self.stamps == now && self.unread.is_none() {
            return Look::Same;
        }
        self.stamps = now;
        let before = self.unread.take();
        match read() {
            Ok(files) => Look::New(files),
            Err(error @ TlsError::File { .. }) => {
                let words = error.to_string();
                let is_known = before.as_ref() == Some(&words);
                self.unread = Some(words);
                if is_known { Look::StillBad } else { Look::Bad(error) }
            }
            Err(error) => Look::Bad(error),
        }
    }
}

/// Metadata of the files, which changes when a file is replaced.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Stamps(Vec<Option<Stamp>>);

/// Device, inode, length, modification time and status change time.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamps {
    pub(crate) fn of(settings: &TlsSettings) -> Self {
        let shown: [Option<&PathBuf>; 2] = match &settings.certificate {
            Certificate::Files { cert, key } => [Some(cert), Some(key)],
            Certificate::SelfSigned { .. } => [None, None],
        };
        let asked = [settings.authorities.as_ref(), settings.revoked.as_ref()];
        Self(shown.into_iter().chain(asked).flatten().map(|path| stamp(path)).collect())
    }
}

/// Returns `None` while there is no such file.
fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    let content = (found.mtime(), found.mtime_nsec());
    let changed = (found.ctime(), found.ctime_nsec());
    Some((found.dev(), found.ino(), found.len(), content, changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(length: u64) -> Stamps {
        Stamps(vec![Some((1, 2, length, (3, 4), (5, 6)))])
    }

    fn unreadable(words: &str) -> TlsError {
        TlsError::File { path: "f".into(), source: io::Error::other(words.to_owned()) }
    }

    fn broken() -> TlsError {
        TlsError::Content { path: "f".into(), why: "no certificate in the file".to_owned() }
    }

    #[test]
    fn files_are_reread_after_a_change_or_an_io_error() {
        type Read = fn() -> Result<(), TlsError>;
        let never: Read = || panic!("nothing has changed");
        let script: [(u64, Read, &str); 10] = [
            (1, never, "same"),
            (2, || Err(unreadable("too many open files")), "bad"),
            (2, || Err(unreadable("too many open files")), "still bad"),
            (2, || Err(unreadable("input/output error")), "bad"),
            (3, || Err(unreadable("input/output error")), "still bad"),
            (3, || Ok(()), "new"),
            (3, never, "same"),
            // Invalid contents are not read again until the file changes.
            (4, || Err(broken()), "bad"),
            (4, never, "same"),
            (5, || Ok(()), "new"),
        ];
        let mut seen = Seen::new(stamps(1));
        for (at, (length, read, expected)) in script.into_iter().enumerate() {
            let found = match seen.look(stamps(length), read) {
                Look::Same => "same",
                Look::New(()) => "new",
                Look::Bad(_) => "bad",
                Look::StillBad => "still bad",
            };
            assert_eq!(found, expected, "look {at}");
        }
    }
}
