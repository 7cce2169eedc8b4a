//! Tests of TLS with clients: which clients are accepted, which are rejected with which error, and that rejected
//! connections cost the server little.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rcgen::ExtendedKeyUsagePurpose;
use rustls::version::{TLS12, TLS13};
use tempfile::tempdir;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::office::{Card, CertificateContent, GOOD, Office, put};
use crate::tools::etcdctl;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, bowline, flags, free_ports};
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;

const BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Timeouts longer than any command takes on a busy machine.
const PATIENT: [&str; 4] = ["--command-timeout", "60s", "--dial-timeout", "60s"];

/// The error of a client that does not trust the authority of the server's certificate.
const UNTRUSTED: &str = "invalid peer certificate: ";

/// How often to check a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the server may take to use changed files: longer than the interval of its checks.
const SEEN_MAX: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a server with a certificate of the authority.
fn secure(office: &mut Office, more: &[&str]) -> Server {
    let card = office.issue(GOOD);
    let cert = format!("--cert-file={}", text(&card.cert));
    let key = format!("--key-file={}", text(&card.key));
    Server::with_tls(&[&[cert.as_str(), &key], more].concat())
}

/// Like [`secure`], with client certificates required.
fn mutual(office: &mut Office, more: &[&str]) -> Server {
    let ca = format!("--trusted-ca-file={}", text(&office.ca()));
    let flags = [&[ca.as_str(), "--client-cert-auth"], more].concat();
    secure(office, &flags)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

fn post(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

async fn put_key(channel: &Channel, key: &str) -> Result<(), tonic::Status> {
    let request =
        pb::PutRequest { key: key.to_owned().into(), value: "v".into(), ..Default::default() };
    KvClient::new(channel.clone()).put(request).await.map(drop)
}

fn printed(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn etcdctl_and_bowline_need_a_client_certificate() {
    let mut office = Office::new();
    let server = mutual(&mut office, &[]);
    let card = office.client("ann");
    let ca = office.ca();
    let url = format!("https://{}", server.address);
    let trusts = ["--cacert", text(&ca)];
    let shows = ["--cert", text(&card.cert), "--key", text(&card.key)];
    let with = |mut command: Command, more: &[&[&str]]| {
        command.env_remove("SSL_CERT_FILE").args(more.concat()).output().unwrap()
    };
    let ours = |more: &[&[&str]], what: &[&str]| {
        let endpoints = ["--endpoints", &url];
        with(bowline(), &[&[what, &endpoints, &PATIENT], more].concat())
    };
    let done = ours(&[&trusts, &shows], &["put", "k", "v"]);
    assert!(done.status.success(), "{}", printed(&done));
    let done = ours(&[&trusts, &shows], &["get", "k"]);
    assert_eq!(printed(&done), "k\nv\n");
    let done = ours(&[&trusts], &["get", "k"]);
    // The client's side of the handshake ends before the server rejects it, and the client may have sent a request by
    // then.
    let words = ["CertificateRequired", "the connection broke"];
    let is_refused = words.iter().any(|words| printed(&done).contains(words));
    assert!(!done.status.success() && is_refused, "{}", printed(&done));
    // Bound to a name, because its temporary files are deleted when it is dropped.
    let foreign = Office::new();
    let done = ours(&[&["--cacert", text(&foreign.ca())], &shows], &["get", "k"]);
    assert!(!done.status.success() && printed(&done).contains(UNTRUSTED), "{}", printed(&done));
    let Some(_) = etcdctl(&server) else { return };
    let theirs = |more: &[&[&str]], what: &[&str]| {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &url]);
        with(command, &[more, &[what]].concat())
    };
    let done = theirs(&[&trusts, &shows, &PATIENT], &["get", "k"]);
    assert_eq!(printed(&done), "k\nv\n");
    let done = theirs(&[&trusts, &["--command-timeout", "3s"]], &["get", "k"]);
    assert!(!done.status.success(), "{}", printed(&done));
}

/// HTTP/1 and HTTP/2, JSON, health and metrics: nothing is served without a certificate.
#[tokio::test]
async fn all_protocols_share_the_tls_listener() {
    let mut office = Office::new();
    let server = mutual(&mut office, &[]);
    let card = office.client("ann");
    let http = |request: &str| office.http(&server.address, Some(&card), &BOTH, request).unwrap();
    for (path, words) in [
        ("/health", r#""health":"true""#),
        ("/version", "3.7"),
        ("/metrics", "bowline_"),
        ("/livez", "ok"),
    ] {
        let answer = http(&get(path));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(words), "{path}: {answer}");
        let refused = office.http(&server.address, None, &BOTH, &get(path)).unwrap_err();
        assert!(refused.contains("CertificateRequired"), "{path}: {refused}");
    }
    let answer = http(&post("/v3/kv/put", "", r#"{"key":"Zm9v","value":"YmFy"}"#));
    assert!(answer.contains(r#""revision":"2""#), "{answer}");
    let channel = office.channel(&server.address, Some(&card)).await;
    let found = KvClient::new(channel)
        .range(pb::RangeRequest { key: "foo".into(), ..Default::default() })
        .await
        .unwrap();
    assert_eq!(found.into_inner().kvs[0].value, "bar");
    // One connection uses no ALPN, and one uses another protocol in ALPN.
    let mut config = (*office.config(Some(&card), &BOTH)).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let mut speak = |protocols: &[&[u8]]| {
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = "127.0.0.1".try_into().unwrap();
        let session = rustls::ClientConnection::new(config.clone().into(), name).unwrap();
        let stream = TcpStream::connect(&server.address).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let asked = stream.write_all(get("/version").as_bytes());
        (asked.map_err(|error| error.to_string()), stream.conn.alpn_protocol().map(<[u8]>::to_vec))
    };
    assert_eq!(speak(&[b"http/1.1"]), (Ok(()), Some(b"http/1.1".to_vec())));
    assert_eq!(speak(&[b"http/1.1", b"h2"]), (Ok(()), Some(b"h2".to_vec())));
    assert!(speak(&[b"spdy/3"]).0.unwrap_err().contains("NoApplicationProtocol"));
}

/// Returns certificates that must be rejected, each with the reason that the server logs.
fn wrong_cards(office: &mut Office, foreign: &mut Office) -> Vec<(&'static str, Option<Card>)> {
    let server_only = [ExtendedKeyUsagePurpose::ServerAuth];
    let revoked = office.client("ann");
    let cards = vec![
        ("the client has presented no certificate", None),
        (
            "the client's certificate has expired",
            Some(CertificateContent { years: (2019, 2020), ..GOOD }),
        ),
        (
            "the client's certificate is not valid yet",
            Some(CertificateContent { years: (2098, 2099), ..GOOD }),
        ),
        (
            "the client's certificate is not for clients (extended key usage)",
            Some(CertificateContent { uses: &server_only, ..GOOD }),
        ),
        (
            "the client's certificate names none of the hosts of --client-cert-allowed-hostname",
            Some(CertificateContent { hosts: &["elsewhere.example"], ..GOOD }),
        ),
    ];
    let issue = |(why, content): (&'static str, Option<CertificateContent<'_>>)| {
        (
            why,
            content.map(|content| office.issue(CertificateContent { names: &["ann"], ..content })),
        )
    };
    let mut cards: Vec<_> = cards.into_iter().map(issue).collect();
    office.revoke(&[&revoked]);
    cards.push(("the client's certificate was revoked", Some(revoked)));
    let card = foreign.client("ann");
    let own = "the client's certificate is that of an authority (CA:TRUE): sign a client certificate with it";
    cards.push((own, Some(office.own())));
    cards.push((
        "the client's certificate is not signed by an authority of --trusted-ca-file",
        Some(card),
    ));
    cards
}

#[tokio::test]
async fn only_a_valid_client_certificate_connects_and_rejections_have_a_reason() {
    let (mut office, mut foreign) = (Office::new(), Office::new());
    let cards = wrong_cards(&mut office, &mut foreign);
    let crl = format!("--client-crl-file={}", text(&office.crl()));
    let host = "--client-cert-allowed-hostname=127.0.0.1,clients.example";
    let server = mutual(&mut office, &[&crl, host]);
    let right = office.client("ann");
    let named = office.issue(CertificateContent { hosts: &["clients.example"], ..GOOD });
    for version in BOTH {
        for card in [&right, &named] {
            let answer = office.http(&server.address, Some(card), &[version], &get("/health"));
            assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
        }
        for (why, card) in &cards {
            let got = office.http(&server.address, card.as_ref(), &[version], &get("/health"));
            // The client must receive a TLS alert, not only a broken connection.
            let refused = got.expect_err(why);
            assert!(refused.contains("received fatal alert: "), "{why}, {version:?}: {refused}");
        }
    }
    for (why, card) in &cards {
        let channel = office.endpoint(&server.address, card.as_ref()).connect_lazy();
        let refused = put_key(&channel, "k").await.expect_err(why);
        assert!(format!("{refused:?}").contains("received fatal alert: "), "{why}: {refused:?}");
    }
    put_key(&office.channel(&server.address, Some(&right)).await, "k").await.unwrap();
    let (_, printed) = server.stop();
    for (why, _) in &cards {
        let count = printed.matches(&format!("client connection rejected: {why}\n")).count();
        assert!(count >= 2, "{count} times {why:?} in {printed}");
    }
}

/// As in etcd's GHSA-3wh4, where one listener used a revocation list and another did not.
#[test]
fn all_listeners_check_the_same_revocation_list() {
    let (mut office, mut foreign) = (Office::new(), Office::new());
    let cards = wrong_cards(&mut office, &mut foreign);
    let crl = format!("--client-crl-file={}", text(&office.crl()));
    let host = "--client-cert-allowed-hostname=127.0.0.1";
    let [json, health] = free_ports().map(|port: u16| format!("127.0.0.1:{port}"));
    let http_urls = format!("--listen-client-http-urls=https://{json}");
    let metrics_urls = format!("--listen-metrics-urls=https://{health}");
    let server = mutual(&mut office, &[&crl, host, &http_urls, &metrics_urls]);
    let right = office.client("ann");
    for address in [&server.address, &json, &health] {
        let code = if *address == server.address { "HTTP/1.1 404" } else { "HTTP/1.1 200" };
        for version in BOTH {
            let answer = office.http(address, Some(&right), &[version], &get("/health")).unwrap();
            assert!(answer.starts_with(code), "{answer}");
            for (why, card) in &cards {
                let got = office.http(address, card.as_ref(), &[version], &get("/health"));
                let refused = got.expect_err(why);
                assert!(refused.contains("received fatal alert: "), "{address}, {why}: {refused}");
            }
        }
    }
}

#[test]
fn unusable_tls_files_are_rejected_before_startup() {
    let (mut office, dir) = (Office::new(), tempdir().unwrap());
    let (card, other) = (office.issue(GOOD), office.issue(GOOD));
    let junk = office.path("junk.pem");
    std::fs::write(&junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    let empty = office.path("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let none = office.path("none.pem");
    let (ca, crl) = (office.ca(), office.crl());
    let twice = office.path("twice.pem");
    std::fs::write(&twice, std::fs::read_to_string(&crl).unwrap().repeat(2)).unwrap();
    type Case<'a> = ([&'a Path; 2], &'a [(&'a str, &'a Path)], &'a str);
    let cases: &[Case<'_>] = &[
        ([&none, &card.key], &[], "cannot read"),
        ([&empty, &card.key], &[], "empty.pem: no certificate in the file"),
        ([&card.cert, &empty], &[], "empty.pem: no private key"),
        ([&card.cert, &other.key], &[], "keys may not be consistent"),
        ([&junk, &card.key], &[], "the TLS certificates for clients"),
        ([&card.cert, &card.key], &[("trusted-ca-file", &empty)], "empty.pem: no certificate"),
        ([&card.cert, &card.key], &[("trusted-ca-file", &junk)], "junk.pem"),
        (
            [&card.cert, &card.key],
            &[("trusted-ca-file", &ca), ("client-crl-file", &ca)],
            "ca.pem: no revocation list in the file",
        ),
        (
            [&card.cert, &card.key],
            &[("trusted-ca-file", &ca), ("client-crl-file", &twice)],
            "twice.pem: two revocation lists of the same authority: keep only the newest",
        ),
        (
            [&card.cert, &card.key],
            &[("trusted-ca-file", &crl)],
            "crl.pem: no certificate in the file",
        ),
    ];
    let data = dir.path().join("data");
    for ([cert, key], more, words) in cases {
        let mut command = bowline();
        command.arg("serve");
        command.args(
            ["listen", "advertise"].map(|at| format!("--{at}-client-urls=https://127.0.0.1:0")),
        );
        command.arg(format!("--data-dir={}", text(&data)));
        command.arg(format!("--cert-file={}", text(cert)));
        command.arg(format!("--key-file={}", text(key)));
        command.args(more.iter().map(|(name, path)| format!("--{name}={}", text(path))));
        let output = command.output().unwrap();
        assert!(
            !output.status.success() && printed(&output).contains(words),
            "{words}: {}",
            printed(&output)
        );
        assert!(!data.exists(), "{words}: nothing was written");
    }
}

/// Creates users and roles for certificates: `ann` may write below `app/`, `root` may do everything.
async fn guard(channel: &Channel) {
    let mut auth = pb::auth_client::AuthClient::new(channel.clone());
    for name in ["root", "ann"] {
        let (name, password) = (name.to_owned(), format!("{name}'s"));
        let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
        auth.user_add(add).await.unwrap();
    }
    auth.role_add(pb::AuthRoleAddRequest { name: "app".into() }).await.unwrap();
    let (key, range_end) = (b"app/".to_vec(), b"app0".to_vec());
    let perm_type = bowline_proto::authpb::permission::Type::Readwrite.into();
    let perm = Some(bowline_proto::authpb::Permission { perm_type, key, range_end });
    let grant = pb::AuthRoleGrantPermissionRequest { name: "app".into(), perm };
    auth.role_grant_permission(grant).await.unwrap();
    for (user, role) in [("root", "root"), ("ann", "app")] {
        let grant = pb::AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        auth.user_grant_role(grant).await.unwrap();
    }
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}

#[tokio::test]
async fn certificate_names_the_user_of_a_call_without_a_token() {
    let mut office = Office::new();
    let server = mutual(&mut office, &["--bcrypt-cost=4"]);
    let [root, ann, eve] = ["root", "ann", "eve"].map(|name| office.client(name));
    let nameless = office.issue(GOOD);
    let address = server.address.clone();
    let as_root = office.channel(&address, Some(&root)).await;
    guard(&as_root).await;
    let as_ann = office.channel(&address, Some(&ann)).await;
    put_key(&as_root, "secret").await.unwrap();
    put_key(&as_ann, "app/a").await.unwrap();
    let refused = |result: Result<(), tonic::Status>| {
        let status = result.unwrap_err();
        (status.code(), status.message().to_owned())
    };
    let denied = (Code::PermissionDenied, "etcdserver: permission denied".to_owned());
    let no_user = (Code::InvalidArgument, "etcdserver: user name is empty".to_owned());
    assert_eq!(refused(put_key(&as_ann, "secret").await), denied);
    let as_eve = office.channel(&address, Some(&eve)).await;
    assert_eq!(refused(put_key(&as_eve, "app/a").await), denied, "no such user exists");
    let not_found = (Code::FailedPrecondition, "etcdserver: user name not found".to_owned());
    let hash = MaintenanceClient::new(as_eve).hash(pb::HashRequest {}).await.map(drop);
    assert_eq!(refused(hash), not_found, "etcd reports the missing user here, too");
    let without_user = office.channel(&address, Some(&nameless)).await;
    assert_eq!(refused(put_key(&without_user, "app/a").await), no_user);
    // A token has precedence over the certificate, whichever of them permits more, and an invalid token is not ignored.
    let token = {
        let request = pb::AuthenticateRequest { name: "ann".into(), password: "ann's".into() };
        let mut auth = pb::auth_client::AuthClient::new(as_root.clone());
        auth.authenticate(request).await.unwrap().into_inner().token
    };
    let by = |name: &'static str, value: &str| {
        let put = pb::PutRequest { key: "secret".into(), ..Default::default() };
        let mut request = Request::new(put);
        request.metadata_mut().insert(name, value.parse().unwrap());
        request
    };
    let mut kv = KvClient::new(as_root.clone());
    assert_eq!(refused(kv.put(by("token", &token)).await.map(drop)), denied);
    let bearer = format!("Bearer {token}");
    for name in ["token", "authorization"] {
        assert_eq!(refused(kv.put(by(name, &bearer)).await.map(drop)), denied, "ann's");
    }
    let void = (Code::Unauthenticated, "etcdserver: invalid auth token".to_owned());
    for none in ["x", &bearer.to_lowercase()] {
        assert_eq!(refused(kv.put(by("token", none)).await.map(drop)), void);
    }
    // The certificate of a proxying gateway does not identify the gateway's clients. This holds for a gateway in
    // another process and for the gateway of this server.
    assert_eq!(refused(kv.put(by("grpcgateway-accept", "*/*")).await.map(drop)), no_user);
    let body = r#"{"key":"c2VjcmV0"}"#;
    let answer =
        office.http(&address, Some(&root), &BOTH, &post("/v3/kv/range", "", body)).unwrap();
    assert!(answer.contains("user name is empty"), "{answer}");
    let header = format!("Authorization: {token}\r\n");
    let answer = office.http(&address, Some(&root), &BOTH, &post("/v3/kv/range", &header, body));
    assert!(answer.as_ref().unwrap().contains("permission denied"), "{answer:?}");
    // A deleted user loses its permissions on an open connection, too.
    let mut auth = pb::auth_client::AuthClient::new(as_root.clone());
    auth.user_delete(pb::AuthUserDeleteRequest { name: "ann".into() }).await.unwrap();
    assert_eq!(refused(put_key(&as_ann, "app/a").await), denied);
}

/// If client certificates are verified without `--client-cert-auth`, they permit the connection but name no user. If
/// they are not verified, they are ignored.
#[tokio::test]
async fn certificates_name_no_user_without_client_cert_auth() {
    let mut office = Office::new();
    let ca = format!("--trusted-ca-file={}", text(&office.ca()));
    let asks = secure(&mut office, &[&ca, "--bcrypt-cost=4"]);
    let open = secure(&mut office, &["--bcrypt-cost=4"]);
    let root = office.client("root");
    for server in [&asks, &open] {
        let channel = office.channel(&server.address, Some(&root)).await;
        guard(&channel).await;
        let status = put_key(&channel, "k").await.unwrap_err();
        assert_eq!(status.message(), "etcdserver: user name is empty");
    }
    let refused = office.http(&asks.address, None, &BOTH, &get("/health")).unwrap_err();
    assert!(refused.contains("CertificateRequired"), "{refused}");
    let answer = office.http(&open.address, None, &BOTH, &get("/health")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Waits for a condition.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SEEN_MAX, "{what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_tls_files_are_reloaded_and_broken_ones_ignored() {
    let mut office = Office::new();
    let mut next = Office::new();
    let files = ["cert", "key", "ca"].map(|name| office.path(&format!("in-use.{name}.pem")));
    let copy = |from: &Path, to: &Path| put(to, &std::fs::read(from).unwrap());
    let first = office.issue(GOOD);
    for (from, to) in [&first.cert, &first.key, &office.ca()].into_iter().zip(&files) {
        copy(from, to);
    }
    let [ann, bob] = ["ann", "bob"].map(|name| office.client(name));
    let flags = ["cert-file", "key-file", "trusted-ca-file"];
    let mut flags: Vec<_> =
        flags.iter().zip(&files).map(|(name, path)| format!("--{name}={}", text(path))).collect();
    flags.push(format!("--client-crl-file={}", text(&office.crl())));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let server = secure(&mut office, &flags);
    let (of_ann, of_bob) = (
        office.channel(&server.address, Some(&ann)).await,
        office.channel(&server.address, Some(&bob)).await,
    );
    put_key(&of_ann, "k").await.unwrap();
    put_key(&of_bob, "k").await.unwrap();
    // The file is incomplete. Until it is complete, new connections use the previous certificates.
    put(&files[0], b"-----BEGIN CERTIFICATE-----\n");
    let health = |office: &Office, card: &Card| {
        office.http(&server.address, Some(card), &BOTH, &get("/health")).is_ok()
    };
    assert!(health(&office, &bob));
    // The server gets the certificate of another authority, and its key. Open connections stay open.
    let second = next.issue(GOOD);
    copy(&second.cert, &files[0]);
    copy(&second.key, &files[1]);
    until("the new certificate is used", || {
        // The server still requires client certificates of the old authority.
        next.http(&server.address, Some(&bob), &BOTH, &get("/health")).is_ok()
    });
    assert!(!health(&office, &bob), "the old certificate is still used");
    put_key(&of_ann, "k").await.unwrap();
    // The connections of a revoked client are closed. Other connections stay open.
    office.revoke(&[&ann]);
    let runtime = tokio::runtime::Handle::current();
    let is_out = || {
        let put = async { put_key(&of_ann, "k").await };
        tokio::task::block_in_place(|| runtime.block_on(put)).is_err()
    };
    until("the connection of the revoked client is closed", is_out);
    assert!(next.http(&server.address, Some(&ann), &BOTH, &get("/health")).is_err());
    put_key(&of_bob, "k").await.unwrap();
    // The server gets another authority for clients. Certificates of the old authority are rejected from now on.
    next.revoke(&[]);
    copy(&next.crl(), &office.crl());
    copy(&next.ca(), &files[2]);
    let carl = next.client("carl");
    until("clients of the new authority are accepted", || health(&next, &carl));
    assert!(next.http(&server.address, Some(&bob), &BOTH, &get("/health")).is_err());
    let (status, printed) = server.stop();
    assert!(status.success(), "{printed}");
    assert!(printed.contains("reloaded the TLS certificates for clients"), "{printed}");
    assert!(printed.contains("the client's certificate was revoked"), "{printed}");
}

#[test]
fn broken_tls_file_is_logged_once_and_the_old_one_stays() {
    let mut office = Office::new();
    let (card, cert, key) = (office.issue(GOOD), office.path("cert"), office.path("key"));
    put(&cert, &std::fs::read(&card.cert).unwrap());
    put(&key, &std::fs::read(&card.key).unwrap());
    let files = [format!("--cert-file={}", text(&cert)), format!("--key-file={}", text(&key))];
    let server = secure(&mut office, &[&files[0], &files[1]]);
    let complains = "cannot reload the TLS certificates for clients, keeping the current ones: ";
    put(&cert, b"broken");
    server.until_logged(complains);
    // Wait for several checks of the files while they are broken.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        let answer = office.http(&server.address, None, &BOTH, &get("/health"));
        assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
        std::thread::sleep(POLL_INTERVAL);
    }
    let (_, printed) = server.stop();
    let problems = printed.matches(complains).count();
    assert_eq!(problems, 1, "{printed}");
}

#[tokio::test]
async fn tls_mismatch_is_reported_in_both_directions() {
    let (mut office, dir) = (Office::new(), tempdir().unwrap());
    let [plain] = free_ports();
    let server = {
        let card = office.issue(GOOD);
        let [peer, client] = free_ports();
        let mut all = flags(0, &[peer], client, dir.path());
        let urls = format!("https://127.0.0.1:{client},http://127.0.0.1:{plain}");
        all.push(format!("--listen-client-urls={urls}"));
        all.push(format!("--cert-file={}", text(&card.cert)));
        all.push(format!("--key-file={}", text(&card.key)));
        Server::start(&all, client, &[]).ready()
    };
    let secure = server.address.clone();
    let plain = format!("127.0.0.1:{plain}");
    // The server has both kinds of listeners.
    let channel = Channel::from_shared(format!("http://{plain}")).unwrap().connect().await.unwrap();
    put_key(&channel, "k").await.unwrap();
    put_key(&office.channel(&secure, None).await, "k").await.unwrap();
    let speak = |address: &str, words: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(words).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = speak(&secure, get("/health").as_bytes());
    assert!(
        answer.contains("400 Bad Request") && answer.contains("to an HTTPS server"),
        "{answer}"
    );
    let lazy = Channel::from_shared(format!("http://{secure}")).unwrap().connect_lazy();
    let status = put_key(&lazy, "k").await.unwrap_err();
    assert!(format!("{status:?}").contains("use https://"), "{status:?}");
    let refused = office.http(&plain, None, &BOTH, &get("/health")).unwrap_err();
    assert!(refused.contains("received corrupt message"), "{refused}");
    // The bytes are neither TLS nor HTTP.
    for garbage in [&[0x16, 3, 1, 0xff, 0xff][..], &[0x16; 600], &[0; 600], &[0x80, 0x2e, 1, 0, 2]]
    {
        let mut stream = TcpStream::connect(&secure).unwrap();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
    }
    put_key(&channel, "k").await.unwrap();
    let (_, printed) = server.stop();
    for words in [
        "plaintext connection to an https:// port",
        "TLS connection to an http:// port",
        "is not encrypted: certificates apply to https:// only",
    ] {
        assert!(printed.contains(words), "{words:?} is not in {printed}");
    }
}

/// Sends some bytes and returns how long the server keeps the connection.
fn stays(address: &str, words: &[u8]) -> Duration {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(words).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{words:?}"),
    }
    begun.elapsed()
}

#[test]
fn unfinished_handshake_is_closed_at_its_deadline() {
    let mut office = Office::new();
    let server = mutual(&mut office, &[]);
    let plain = Server::alone(&[]);
    // The bytes are the beginning of a ClientHello that declares 512 bytes.
    let half: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let silent: [(&str, &[u8]); 4] = [
        (&server.address, b""),
        (&server.address, &half[..1]),
        (&server.address, half),
        (&plain.address, b""),
    ];
    std::thread::scope(|scope| {
        let ends = silent.map(|(address, words)| scope.spawn(move || stays(address, words)));
        for (end, (_, words)) in ends.into_iter().zip(silent) {
            let stayed = end.join().unwrap();
            let right = Duration::from_secs(9)..Duration::from_secs(20);
            assert!(right.contains(&stayed), "{words:?} stayed for {stayed:?}");
        }
    });
    let (_, printed) = server.stop();
    assert!(printed.contains("the handshake took longer than 10s"), "{printed}");
}

#[test]
fn silent_connections_do_not_lock_clients_out() {
    let mut office = Office::new();
    let server = mutual(&mut office, &[]);
    let card = office.client("ann");
    let mut silent = Vec::new();
    for number in 0..1200 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        if number % 2 == 0 {
            stream.write_all(&[0x16, 3, 1, 2, 0]).unwrap();
        }
        silent.push(stream);
        if number % 400 == 399 {
            let begun = Instant::now();
            let answer = office.http(&server.address, Some(&card), &BOTH, &get("/health"));
            assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(20), "{took:?} among {number}");
        }
    }
    // The server closes the oldest connections to accept new ones.
    let mut first = silent.swap_remove(0);
    first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match first.read(&mut [0]) {
        Ok(read) => assert_eq!(read, 0),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(server.stop().0.success());
}

/// `--auto-tls`: encrypted, with a new certificate at each start.
#[test]
fn auto_tls_generates_a_certificate() {
    let server = Server::with_tls(&["--auto-tls"]);
    let url = format!("https://{}", server.address);
    let ask = |more: &[&str]| {
        let what = ["put", "k", "v", "--endpoints", &url];
        bowline().args(what).args(PATIENT).args(more).output().unwrap()
    };
    let done = ask(&["--insecure-skip-tls-verify"]);
    assert!(done.status.success(), "{}", printed(&done));
    let office = Office::new();
    let done = ask(&["--cacert", text(&office.ca())]);
    assert!(!done.status.success() && printed(&done).contains(UNTRUSTED), "{}", printed(&done));
    let (_, printed) = server.stop();
    assert!(
        printed.contains("using a self-signed certificate for clients")
            && printed.contains("sha256="),
        "{printed}"
    );
}

/// etcd requires a revocation list in DER, not PEM.
#[test]
fn der_revocation_list_of_clients_is_accepted() {
    let mut office = Office::new();
    let (ann, bob) = (office.client("ann"), office.client("bob"));
    office.revoke(&[&bob]);
    let crl = format!("--client-crl-file={}", text(&office.crl().with_extension("der")));
    let server = mutual(&mut office, &[&crl]);
    let ask = |card| office.http(&server.address, Some(card), &BOTH, &get("/health"));
    assert!(ask(&ann).unwrap().starts_with("HTTP/1.1 200"));
    assert!(ask(&bob).unwrap_err().contains("CertificateRevoked"), "{:?}", ask(&bob));
}

/// Writes a key with this client certificate.
async fn comes_in(office: &Office, server: &Server, card: &Card) -> Result<(), String> {
    let channel = office.endpoint(&server.address, Some(card)).connect_lazy();
    put_key(&channel, "k").await.map_err(|refused| format!("{refused:?}"))
}

/// Returns the same certificate followed by that of its authority.
fn chained(card: &Card, authority: &Office) -> Card {
    let chain = [std::fs::read(&card.cert).unwrap(), std::fs::read(authority.ca()).unwrap()];
    let cert = card.cert.with_extension("chain.pem");
    std::fs::write(&cert, chain.concat()).unwrap();
    Card { cert, ..card.clone() }
}

#[tokio::test]
async fn client_of_an_intermediate_authority_needs_its_chain() {
    let mut office = Office::new();
    let (mut between, _) = office.intermediate();
    let server = mutual(&mut office, &[]);
    let ann = between.client("ann");
    comes_in(&office, &server, &chained(&ann, &between)).await.unwrap();
    comes_in(&office, &server, &ann).await.expect_err("no chain leads to the authority");
    let (foreign, _) = Office::new().intermediate();
    comes_in(&office, &server, &chained(&ann, &foreign))
        .await
        .expect_err("the chain ends at another authority");
}

#[tokio::test]
async fn revocation_covers_intermediate_authorities_and_their_clients() {
    let (mut office, dir) = (Office::new(), tempdir().unwrap());
    let (mut left, left_card) = office.intermediate();
    let (mut right, _) = office.intermediate();
    let (ann, bob, eve) = (left.client("ann"), right.client("bob"), right.client("eve"));
    let cards = [chained(&ann, &left), chained(&bob, &right), chained(&eve, &right)];
    let path = dir.path().join("all.crl");
    let write = |office: &Office, left: &Office, right: &Office| {
        let lists = [office, left, right].map(|office| std::fs::read(office.crl()).unwrap());
        crate::office::put(&path, &lists.concat());
    };
    write(&office, &left, &right);
    let crl = format!("--client-crl-file={}", text(&path));
    let server = mutual(&mut office, &[&crl]);
    let let_in = async |office: &Office, expected: [bool; 3]| {
        let begun = Instant::now();
        loop {
            let mut found = [false; 3];
            for (found, card) in found.iter_mut().zip(&cards) {
                *found = comes_in(office, &server, card).await.is_ok();
            }
            if found == expected {
                return;
            }
            assert!(begun.elapsed() < SEEN_MAX, "{found:?}, not {expected:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let_in(&office, [true, true, true]).await;
    // The authority that signed the end entity's certificate revokes this certificate.
    right.revoke(&[&eve]);
    write(&office, &left, &right);
    let_in(&office, [true, true, false]).await;
    // The root revokes the certificate of an authority: every certificate that the authority has signed is rejected.
    office.revoke(&[&left_card]);
    write(&office, &left, &right);
    let_in(&office, [false, true, false]).await;
    let (_, printed) = server.stop();
    assert!(
        printed.contains("client connection rejected: the client's certificate was revoked"),
        "{printed}"
    );
}

/// A certificate that no revocation list covers might be revoked, so it is rejected.
#[tokio::test]
async fn client_of_an_authority_without_a_revocation_list_is_rejected() {
    let mut office = Office::new();
    let (mut between, _) = office.intermediate();
    let crl = format!("--client-crl-file={}", text(&office.crl()));
    let server = mutual(&mut office, &[&crl]);
    let (ann, bob) = (between.client("ann"), office.client("bob"));
    comes_in(&office, &server, &bob).await.unwrap();
    comes_in(&office, &server, &chained(&ann, &between))
        .await
        .expect_err("no list covers the certificate");
}
