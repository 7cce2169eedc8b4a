//! `bowline up --tls`: creates a CA at each start, which signs certificates for the servers and for one client. The key
//! of the CA is never written to disk.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bowline::cluster::MemberUri;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

/// Cluster name in the members' certificates.
const CLUSTER: &str = "up";

/// Hosts at which clients and members reach the servers.
const HOSTS: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

/// Validity of certificates; longer than any test without a restart.
const VALIDITY: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Maximum difference by which other clocks may be behind.
const CLOCKS: Duration = Duration::from_secs(3600);

/// The certificate files, in one directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Certificates(PathBuf);

/// Paths of a certificate and its key.
pub(super) struct Card {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

impl Certificates {
    /// Returns the files in a directory, which need not exist yet.
    pub(super) fn in_directory(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// Returns the CA certificate.
    pub(super) fn authority(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// Returns the files of a server or of the client.
    pub(super) fn of(&self, name: &str) -> Card {
        let file = |kind: &str| self.0.join(format!("{name}.{kind}"));
        Card { cert: file("pem"), key: file("key") }
    }

    /// Returns the client's files.
    pub(super) fn client(&self) -> Card {
        self.of("client")
    }

    /// Creates all certificates, for servers with these names.
    pub(super) fn make(&self, servers: &[String]) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "bowline up --tls");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = key().and_then(|key| {
            CertifiedIssuer::self_signed(valid_from_now(params), key).map_err(io::Error::other)
        })?;
        fs::write(self.authority(), authority.pem())?;
        for name in servers {
            let mut params = named(name, &HOSTS)?;
            let uri = MemberUri::new(CLUSTER, name).to_string();
            let uri = uri.try_into().map_err(io::Error::other)?;
            params.subject_alt_names.push(SanType::URI(uri));
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            self.sign(name, params, &authority)?;
        }
        self.sign("client", named("root", &[])?, &authority)
    }

    fn sign(
        &self,
        name: &str,
        params: CertificateParams,
        authority: &CertifiedIssuer<'_, KeyPair>,
    ) -> io::Result<()> {
        let (card, key) = (self.of(name), key()?);
        let cert = params.signed_by(&key, authority).map_err(io::Error::other)?;
        secret(&card.key, &key.serialize_pem())?;
        fs::write(&card.cert, cert.pem())
    }
}

fn key() -> io::Result<KeyPair> {
    KeyPair::generate().map_err(io::Error::other)
}

/// Returns the parameters of a client certificate with a common name.
fn named(name: &str, hosts: &[&str]) -> io::Result<CertificateParams> {
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut params = CertificateParams::new(hosts).map_err(io::Error::other)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(valid_from_now(params))
}

fn valid_from_now(mut params: CertificateParams) -> CertificateParams {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    params.not_before = date_time_ymd(1970, 1, 1) + now.saturating_sub(CLOCKS);
    params.not_after = date_time_ymd(1970, 1, 1) + now + VALIDITY;
    params
}

/// Writes a file that only its owner can read.
fn secret(path: &Path, text: &str) -> io::Result<()> {
    // An existing file is removed first, because it would keep its permissions.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
