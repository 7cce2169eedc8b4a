//! Generates self-signed certificates for testing with TLS.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};

/// A year including its share of a leap day.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// Maximum difference by which clients' clocks may be behind.
const CLOCKS: Duration = Duration::from_secs(3600);

/// Returns a self-signed certificate for these hosts and its key, as PEM.
///
/// # Errors
/// Fails if a host is neither a name nor an address.
pub fn make(hosts: &[String], years: u32) -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
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
