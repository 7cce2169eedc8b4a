//! Keys on the curve P-521, made by openssl, for servers, clients and authorities.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::tempdir;

use crate::process::{Server, bowline, etcdctl_is_installed, flags, free_ports, skip};

/// Runs openssl in a directory. Returns whether it is installed.
fn openssl(dir: &Path, words: &str) -> bool {
    let mut command = Command::new("openssl");
    command.args(words.split(' ')).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::piped());
    let Ok(done) = command.output() else { return false };
    assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
    true
}

/// Makes an authority, and certificates of a server and a client that it has signed, in a directory.
fn make_certificates(dir: &Path, hash: &str) -> bool {
    const NEW: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -days 3650";
    std::fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1").unwrap();
    if !openssl(dir, &format!("req -x509 {NEW} -{hash} -subj /CN=ca -keyout ca.key -out ca.pem")) {
        return false;
    }
    for name in ["server", "client"] {
        openssl(
            dir,
            &format!("req {NEW} -{hash} -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -{hash} -extfile ext \
                 -out {name}.pem"
            ),
        );
    }
    // The older file format for private keys.
    openssl(dir, "ec -in server.key -out server.sec1.key")
}

fn ask(mut command: Command, server: &Server, dir: &Path) {
    command.args(["put", "k", "v", "--command-timeout=20s"]).env("ETCDCTL_API", "3");
    for (name, file) in [("cacert", "ca.pem"), ("cert", "client.pem"), ("key", "client.key")] {
        command.arg(format!("--{name}={}", dir.join(file).display()));
    }
    command.arg(format!("--endpoints=https://{}", server.address));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn p521_keys_work_for_servers_clients_and_authorities() {
    for (hash, key, version) in [
        ("sha256", "server.key", "TLS1.2"),
        ("sha384", "server.sec1.key", "TLS1.3"),
        ("sha512", "server.key", "TLS1.3"),
    ] {
        let (files, dir) = (tempdir().unwrap(), tempdir().unwrap());
        if !make_certificates(files.path(), hash) {
            return skip("openssl is not installed (Debian: openssl)");
        }
        let [peer, client] = free_ports();
        let mut all = flags(0, &[peer], client, dir.path());
        all.retain(|flag| !flag.contains("client-urls"));
        all.push(format!("--listen-client-urls=https://127.0.0.1:{client}"));
        all.push(format!("--advertise-client-urls=https://127.0.0.1:{client}"));
        all.push(format!("--tls-max-version={version}"));
        all.push("--client-cert-auth".to_owned());
        for (name, file) in
            [("cert-file", "server.pem"), ("key-file", key), ("trusted-ca-file", "ca.pem")]
        {
            all.push(format!("--{name}={}", files.path().join(file).display()));
        }
        let server = Server::start(&all, client, &[]).ready();
        ask(bowline(), &server, files.path());
        if etcdctl_is_installed() {
            ask(Command::new("etcdctl"), &server, files.path());
        }
    }
}

#[test]
fn unsupported_key_type_fails_the_start_and_lists_supported_ones() {
    let (files, dir) = (tempdir().unwrap(), tempdir().unwrap());
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:secp256k1 -nodes -subj /CN=x -keyout key -out cert";
    if !openssl(files.path(), new) {
        return skip("openssl is not installed (Debian: openssl)");
    }
    let [peer, client] = free_ports();
    let mut command = bowline();
    command.arg("serve").args(flags(0, &[peer], client, dir.path()));
    command.arg(format!("--listen-client-urls=https://127.0.0.1:{client}"));
    for (name, file) in [("cert-file", "cert"), ("key-file", "key")] {
        command.arg(format!("--{name}={}", files.path().join(file).display()));
    }
    let done = command.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains(
            "keys are RSA of 2048 bits or more, ECDSA on P-256, P-384 or P-521, or Ed25519"
        ),
        "{said}"
    );
}
