//! The files of certificates: read, and looked at for changes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::made;
use crate::server::flags::{ClientTls, Shown};

/// The longest file that is read, in bytes: revocation lists can be long.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub(in crate::server) enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Content { path: PathBuf, why: String },
    #[error("no certificate could be made: {0}")]
    Making(#[from] rcgen::Error),
}

/// What the files hold, as PEM.
pub(super) struct Files {
    pub(super) cert: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) authorities: Option<Vec<u8>>,
    pub(super) revoked: Option<Vec<u8>>,
}

impl Files {
    pub(super) fn read(options: &ClientTls) -> Result<Self, TlsError> {
        let (cert, key) = match &options.shown {
            Shown::Files { cert, key } => (read(cert)?, read(key)?),
            Shown::Made { hosts, years } => made::make(hosts, *years)?,
        };
        let authorities = options.authorities.as_deref().map(read).transpose()?;
        let revoked = options.revoked.as_deref().map(read).transpose()?;
        Ok(Self { cert, key, authorities, revoked })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(io::Error::other(format!("more than {FILE_BYTES_MAX} bytes"))));
    }
    Ok(bytes)
}

/// What the files look like from outside. Whoever replaces one changes it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Stamps(Vec<Option<Stamp>>);

/// Device, file, length, and the times at which content and file changed.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamps {
    pub(super) fn of(options: &ClientTls) -> Self {
        let shown: [Option<&PathBuf>; 2] = match &options.shown {
            Shown::Files { cert, key } => [Some(cert), Some(key)],
            Shown::Made { .. } => [None, None],
        };
        let asked = [options.authorities.as_ref(), options.revoked.as_ref()];
        Self(shown.into_iter().chain(asked).flatten().map(|path| stamp(path)).collect())
    }
}

/// None where there is no such file, for now.
fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    let content = (found.mtime(), found.mtime_nsec());
    let changed = (found.ctime(), found.ctime_nsec());
    Some((found.dev(), found.ino(), found.len(), content, changed))
}
