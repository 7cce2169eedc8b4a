//! Generates self-signed certificates for testing with TLS. `--auto-tls` keeps one in memory, `--peer-auto-tls` writes
//! files from which the member reads it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};

use super::files::TlsError;

/// A year including its share of a leap day.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// Maximum difference by which clients' clocks may be behind.
const CLOCKS: Duration = Duration::from_secs(3600);

/// Returns a certificate for these hosts and its key, as PEM.
pub(super) fn make(hosts: &[String], years: u32) -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, "bowline serve --auto-tls");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at = |since: Duration| date_time_ymd(1970, 1, 1) + since;
    params.not_before = at(now.saturating_sub(CLOCKS));
    params.not_after = at(now + YEAR * years);
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    Ok((cert.pem().into_bytes(), key.serialize_pem().into_bytes()))
}

/// Validity of a peer certificate in years. Peers do not check it.
const PEER_YEARS: u32 = 1;

/// Generates a peer certificate, which proves no identity, and writes it and its key. Replaces existing files.
///
/// # Errors
/// Fails if a file cannot be written.
pub(in crate::server) fn make_files(name: &str, cert: &Path, key: &Path) -> Result<(), TlsError> {
    let (cert_pem, key_pem) = make(&[], PEER_YEARS)?;
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
