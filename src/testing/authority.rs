//! A certificate authority for members' certificates, for tests only: certificates are valid for
//! decades, and their private keys are stored next to them.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

use crate::env::{Entropy, OsEntropy};
use crate::transport::{MemberUri, PeerTls};

/// A certificate authority for the members of one cluster, for tests.
///
/// ```
/// use bowline::testing::DevAuthority;
/// # let dir = tempfile::tempdir()?;
/// let authority = DevAuthority::new(dir.path(), "shop")?;
/// let files = authority.issue("n1")?;
/// let config = bowline::Config::new("data", "n1").peer_tls(files);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct DevAuthority {
    dir: PathBuf,
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
    revoked: Vec<SerialNumber>,
    lists: u64,
}

impl std::fmt::Debug for DevAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevAuthority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

fn failed(error: rcgen::Error) -> io::Error {
    io::Error::other(error)
}

impl DevAuthority {
    /// Creates an authority that writes its files to the existing directory `dir`: its certificate
    /// `ca.pem`, and an empty revocation list `crl.pem`.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn new(dir: impl Into<PathBuf>, cluster: impl Into<String>) -> io::Result<Self> {
        let (dir, cluster) = (dir.into(), cluster.into());
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("authority of {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(serial());
        let key = KeyPair::generate().map_err(failed)?;
        let cert = params.self_signed(&key).map_err(failed)?;
        write(&dir.join("ca.pem"), &cert.pem(), 0o644)?;
        let issuer = Issuer::new(params, key);
        let mut authority = Self { dir, cluster, issuer, revoked: Vec::new(), lists: 0 };
        authority.write_crl()?;
        Ok(authority)
    }

    /// Issues a certificate for a member, valid until 2100. A second call for the same member
    /// replaces its files.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn issue(&self, member: &str) -> io::Result<PeerTls> {
        self.write_cert(&self.uri(member), serial(), 2100)
    }

    /// Issues a certificate that has expired.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn issue_expired(&self, member: &str) -> io::Result<PeerTls> {
        self.write_cert(&self.uri(member), serial(), 2021)
    }

    /// Issues a certificate and revokes it at once. Members reject it after they have reloaded the
    /// revocation list.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn issue_revoked(&mut self, member: &str) -> io::Result<PeerTls> {
        let serial = serial();
        let files = self.write_cert(&self.uri(member), serial.clone(), 2100)?;
        self.revoked.push(serial);
        self.write_crl()?;
        Ok(files)
    }

    /// Issues a certificate for a member of another cluster with the same authority. Replaces the
    /// files of `member`.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn issue_for_cluster(&self, cluster: &str, member: &str) -> io::Result<PeerTls> {
        self.write_cert(&MemberUri::new(cluster, member), serial(), 2100)
    }

    /// Issues a certificate for a member, and returns with it a handle for
    /// [`DevAuthority::revoke`].
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn issue_revocable(&self, member: &str) -> io::Result<(PeerTls, Revocable)> {
        let serial = serial();
        Ok((self.write_cert(&self.uri(member), serial.clone(), 2100)?, Revocable(serial)))
    }

    /// Revokes a certificate. Members reject it after they have reloaded the revocation list.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn revoke(&mut self, revocable: Revocable) -> io::Result<()> {
        self.revoked.push(revocable.0);
        self.write_crl()
    }

    fn uri(&self, member: &str) -> MemberUri {
        MemberUri::new(&self.cluster, member)
    }

    fn write_cert(
        &self,
        uri: &MemberUri,
        serial: SerialNumber,
        last_year: i32,
    ) -> io::Result<PeerTls> {
        let (member, san) = (&uri.member, uri.to_string());
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, member.as_str());
        params.subject_alt_names = vec![SanType::URI(san.try_into().map_err(failed)?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.serial_number = Some(serial);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().map_err(failed)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let file = |what: &str| self.dir.join(format!("{member}.{what}.pem"));
        write(&file("cert"), &cert.pem(), 0o644)?;
        write(&file("key"), &key.serialize_pem(), 0o600)?;
        let (ca, crl) = (self.dir.join("ca.pem"), self.dir.join("crl.pem"));
        Ok(PeerTls::new(ca, file("cert"), file("key")).crl(crl))
    }

    fn write_crl(&mut self) -> io::Result<()> {
        self.lists += 1;
        let revoked = |serial: &SerialNumber| RevokedCertParams {
            serial_number: serial.clone(),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(self.lists),
            issuing_distribution_point: None,
            revoked_certs: self.revoked.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).map_err(failed)?;
        write(&self.dir.join("crl.pem"), &list.pem().map_err(failed)?, 0o644)
    }
}

/// A certificate that can be revoked; see [`DevAuthority::issue_revocable`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revocable(SerialNumber);

fn serial() -> SerialNumber {
    SerialNumber::from(OsEntropy.next_u64() >> 1)
}

/// Replaces a file atomically, so that readers never see a partial file.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    drop(file);
    fs::rename(new, path)
}
