//! The self-signed certificate of `--peer-auto-tls`, in files from which the member reads it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use bowline_server::{TlsError, self_signed};

/// Validity of a peer certificate in years. Peers do not check it.
const PEER_YEARS: u32 = 1;

/// Generates a peer certificate, which proves no identity, and writes it and its key. Replaces existing files.
///
/// # Errors
/// Fails if a file cannot be written.
pub(super) fn make(name: &str, cert: &Path, key: &Path) -> Result<(), TlsError> {
    let (cert_pem, key_pem) = self_signed(&[], PEER_YEARS)?;
    for (path, pem) in [(key, key_pem), (cert, cert_pem)] {
        let failed = |source| TlsError::Write { path: path.to_owned(), source };
        write_private(path, &pem).map_err(failed)?;
    }
    tracing::info!(member = name, cert = %cert.display(), "created a self-signed peer certificate");
    Ok(())
}

/// Writes a file that only its owner can read, in directories that only the owner can enter.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let new = path.with_extension("new");
    let mut file: File =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    std::fs::rename(new, path)
}
