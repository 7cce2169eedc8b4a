//! Tests with self-signed certificates, in the forms that `openssl req -x509` makes. The clients trust exactly the
//! server's certificate.

use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use tempfile::{TempDir, tempdir};

use bowline_testkit::process::{Server, bowline, etcdctl_is_installed};

/// A certificate and its key, in files.
struct Own {
    cert: PathBuf,
    key: PathBuf,
}

/// Writes a certificate for a host, which is valid until the year `until`.
fn certificate(dir: &TempDir, name: &str, is_ca: IsCa, host: &str, until: i32) -> Own {
    let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    params.is_ca = is_ca;
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    let own = Own {
        cert: dir.path().join(format!("{name}.pem")),
        key: dir.path().join(format!("{name}.key")),
    };
    std::fs::write(&own.cert, cert.pem()).unwrap();
    std::fs::write(&own.key, key.serialize_pem()).unwrap();
    own
}

fn authority() -> IsCa {
    IsCa::Ca(BasicConstraints::Unconstrained)
}

fn serve(own: &Own) -> Server {
    let cert = format!("--cert-file={}", own.cert.display());
    let key = format!("--key-file={}", own.key.display());
    Server::with_tls(&[&cert, &key])
}

/// Gets a key from a server. Returns the error if that fails.
fn ask(mut command: Command, server: &Server, trusted: &Path) -> Result<(), String> {
    command.args(["get", "k", "--command-timeout=20s", "--cacert"]).arg(trusted);
    command.arg(format!("--endpoints=https://{}", server.address)).env("ETCDCTL_API", "3");
    let done = command.output().unwrap();
    let printed = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    if done.status.success() { Ok(()) } else { Err(printed) }
}

#[test]
fn self_signed_certificate_in_the_ca_file_authenticates_its_server() {
    let files = tempdir().unwrap();
    for (name, is_ca) in
        [("ca", authority()), ("no-ca", IsCa::ExplicitNoCa), ("unsaid", IsCa::NoCa)]
    {
        let own = certificate(&files, name, is_ca, "127.0.0.1", 2100);
        let server = serve(&own);
        ask(bowline(), &server, &own.cert).unwrap_or_else(|printed| panic!("{name}: {printed}"));
        // The server's certificate is also trusted if it is not the first one in the client's file.
        let other = certificate(&files, "other", authority(), "127.0.0.1", 2100);
        let both = files.path().join("both.pem");
        let pem = [&other.cert, &own.cert].map(|path| std::fs::read(path).unwrap()).concat();
        std::fs::write(&both, pem).unwrap();
        ask(bowline(), &server, &both).unwrap_or_else(|printed| panic!("{name}: {printed}"));
        if etcdctl_is_installed() {
            ask(Command::new("etcdctl"), &server, &own.cert)
                .unwrap_or_else(|printed| panic!("{name}: {printed}"));
        }
    }
}

#[test]
fn serving_ca_certificate_is_rejected_unless_trusted_itself() {
    let files = tempdir().unwrap();
    let trusted = certificate(&files, "trusted", authority(), "127.0.0.1", 2100);
    for (name, host, until, trusts_own, words) in [
        ("not trusted", "127.0.0.1", 2100, false, "does not contain it"),
        ("of another host", "other.example", 2100, true, "not valid for name"),
        ("expired", "127.0.0.1", 2021, true, "Expired"),
    ] {
        let own = certificate(&files, "own", authority(), host, until);
        let server = serve(&own);
        let printed = ask(bowline(), &server, if trusts_own { &own.cert } else { &trusted.cert });
        let printed = printed.expect_err(name);
        let is_refused = printed.contains(words) || printed.contains(&words.to_lowercase());
        assert!(is_refused, "{name}: {printed}");
    }
}
