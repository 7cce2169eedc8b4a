//! Tests of TLS between members of `bowline serve`: which connections the peer port accepts.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::version::{TLS12, TLS13};
use tempfile::{TempDir, tempdir};
use tonic::transport::Channel;

use crate::office::{Card, CertificateContent, GOOD, Office};
use crate::requests::put;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, bowline, free_ports};
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;

const BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the flags of a member with `https` peer URLs.
fn flags(
    own: usize,
    peers: &[u16],
    client: u16,
    dir: &TempDir,
    office: &Office,
    card: &Card,
) -> Vec<String> {
    let all = bowline_testkit::process::flags(own, peers, client, dir.path()).into_iter();
    let mut all: Vec<_> = all
        .map(|flag| match flag.contains("-client-urls") {
            true => flag,
            false => flag.replace("http://", "https://"),
        })
        .collect();
    all.push(format!("--peer-cert-file={}", text(&card.cert)));
    all.push(format!("--peer-key-file={}", text(&card.key)));
    all.push(format!("--peer-trusted-ca-file={}", text(&office.ca())));
    all.push(format!("--peer-crl-file={}", text(&office.crl())));
    all.push("--peer-client-cert-auth".to_owned());
    all
}

#[tokio::test]
async fn three_members_with_certificates_form_a_cluster_with_https_urls() {
    let mut office = Office::new();
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let cards = [0, 1, 2].map(|at| office.member(&format!("m{at}")));
    let start = |at: usize| {
        let flags = flags(at, &peers, clients[at], &dirs[at], &office, &cards[at]);
        Server::start(&flags, clients[at], &[])
    };
    let servers = [0, 1, 2].map(start).map(Server::ready);
    let mut kv = KvClient::new(servers[0].channel().await);
    kv.put(put("k")).await.unwrap();
    let mut members = ClusterClient::new(servers[2].channel().await);
    let list = members.member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    let mut urls: Vec<_> =
        list.members.iter().flat_map(|member| member.peer_ur_ls.clone()).collect();
    urls.sort();
    let mut expected = peers.map(|port| format!("https://127.0.0.1:{port}"));
    expected.sort();
    assert_eq!(urls, expected);
    let add = |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.into()], is_learner: true };
    let refused = members.member_add(add("unix://127.0.0.1:9")).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: given member URLs are invalid");
    members.member_add(add("https://127.0.0.1:9")).await.unwrap();
    // All members use TLS, whichever scheme the URL of a new member has.
    let added = members.member_add(add("http://127.0.0.1:10")).await.unwrap().into_inner();
    assert_eq!(added.member.unwrap().peer_ur_ls, ["https://127.0.0.1:10"]);
}

/// Other certificates of the same authority, in the style of etcd among them, and certificates of other authorities.
#[test]
fn only_member_certificates_are_accepted_by_members() {
    let (mut office, mut foreign) = (Office::new(), Office::new());
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let card = office.member("m0");
    let uri = Some("bowline://shop/m1");
    let revoked = office.member("m1");
    let mut issue = |content: CertificateContent<'_>| Some(office.issue(content));
    let cards = [
        ("presents no certificate", None),
        ("has expired", issue(CertificateContent { uri, years: (2019, 2020), ..GOOD })),
        ("is not valid yet", issue(CertificateContent { uri, years: (2098, 2099), ..GOOD })),
        ("has no URI of the form bowline://CLUSTER/MEMBER", issue(GOOD)),
        (
            "not of cluster \"shop\"",
            issue(CertificateContent { uri: Some("bowline://mill/m1"), ..GOOD }),
        ),
        ("was revoked", Some(revoked.clone())),
        ("is not signed by a trusted authority", Some(foreign.member("m1"))),
    ];
    office.revoke(&[&revoked]);
    let all = flags(0, &[peer], client, &dir, &office, &card);
    let server = Server::start(&all, client, &["--log-level=debug"]).ready();
    for (why, card) in &cards {
        let at = format!("127.0.0.1:{peer}");
        let mut config = (*office.config(card.as_ref(), &BOTH)).clone();
        config.alpn_protocols = vec![b"bowline-peer".to_vec()];
        let session =
            rustls::ClientConnection::new(config.into(), "127.0.0.1".try_into().unwrap()).unwrap();
        let stream = std::net::TcpStream::connect(at).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let refused = stream.read(&mut [0]).expect_err(why).to_string();
        assert!(refused.contains("received fatal alert: "), "{why}: {refused}");
        server.until_logged(why);
    }
    let (status, log) = server.stop();
    assert!(status.success(), "{log}");
}

#[test]
fn server_with_the_certificate_of_another_member_does_not_start() {
    let mut office = Office::new();
    let card = office.member("m1");
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let all = flags(0, &[peer], client, &dir, &office, &card);
    let output = bowline().arg("serve").args(&all).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let words = "this member is named \"m0\", but its certificate is for \"m1\"";
    assert!(!output.status.success() && log.contains(words), "{words}: {log}");
}

/// Starts three members with the same flags, checks that they work, and returns their logs.
async fn served(flags: impl Fn(usize, &[u16; 3], u16, &TempDir) -> Vec<String>) -> Vec<String> {
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let start =
        |at: usize| Server::start(&flags(at, &peers, clients[at], &dirs[at]), clients[at], &[]);
    let servers = [0, 1, 2].map(start).map(Server::ready);
    for server in &servers {
        KvClient::new(server.channel().await).put(put("k")).await.unwrap();
    }
    servers.map(|server| server.stop().1).into()
}

#[tokio::test]
async fn etcd_style_certificates_fit_any_member_and_cause_a_warning() {
    let mut office = Office::new();
    let card = office.issue(GOOD);
    let log =
        served(|own, peers, client, dir| flags(own, peers, client, dir, &office, &card)).await;
    let warning = "every owner of a certificate of its authority can pose as any member";
    assert!(log.iter().all(|log| log.contains(warning)), "{log:?}");
}

#[test]
fn member_with_an_etcd_style_certificate_checks_the_authority() {
    let (mut office, mut foreign) = (Office::new(), Office::new());
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let card = office.issue(GOOD);
    let all = flags(0, &[peer], client, &dir, &office, &card);
    let server = Server::start(&all, client, &[]).ready();
    for (why, card) in [
        ("presents no certificate", None),
        ("has expired", Some(office.issue(CertificateContent { years: (2019, 2020), ..GOOD }))),
        ("is not signed by a trusted authority", Some(foreign.issue(GOOD))),
        // Any certificate of the authority is accepted here, with or without a member's name in it.
        ("", Some(office.member("m1"))),
    ] {
        let mut config = (*office.config(card.as_ref(), &BOTH)).clone();
        config.alpn_protocols = vec![b"bowline-peer".to_vec()];
        let session =
            rustls::ClientConnection::new(config.into(), "127.0.0.1".try_into().unwrap()).unwrap();
        let stream = std::net::TcpStream::connect(format!("127.0.0.1:{peer}")).unwrap();
        // The only sign of an accepted connection is that the server does not close it.
        let patience = std::time::Duration::from_millis(if why.is_empty() { 500 } else { 60_000 });
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut stream = rustls::StreamOwned::new(session, stream);
        let received = stream.read(&mut [0]);
        let is_refused = received.is_err_and(|error| error.to_string().contains("fatal alert"));
        assert_eq!(is_refused, !why.is_empty(), "{why}");
    }
    let (_, log) = server.stop();
    assert!(log.contains("every owner of a certificate of its authority"), "{log}");
}

#[tokio::test]
async fn peer_auto_tls_encrypts_without_certificates_and_causes_a_warning() {
    let log = served(|own, peers, client, dir| {
        let all = bowline_testkit::process::flags(own, peers, client, dir.path()).into_iter();
        let secured = all.map(|flag| match flag.contains("-client-urls") {
            true => flag,
            false => flag.replace("http://", "https://"),
        });
        secured.chain(["--peer-auto-tls".to_owned()]).collect()
    })
    .await;
    let warning = "encrypted but not authenticated";
    assert!(log.iter().all(|log| log.contains(warning)), "{log:?}");
}

/// A task that writes keys one after the other, to any server that answers, until it is stopped.
struct Writer {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Writer {
    fn begin(addresses: Vec<String>) -> Self {
        let (acknowledged, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let endpoint = |at| Channel::from_shared(format!("http://{at}")).unwrap();
        let endpoints: Vec<_> = addresses.into_iter().map(endpoint).collect();
        let (count, stopped) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let channels = endpoints.iter().map(tonic::transport::Endpoint::connect_lazy);
            let mut clients: Vec<_> = channels.map(KvClient::new).collect();
            let servers = clients.len();
            for turn in 0.. {
                let next = count.load(Ordering::SeqCst);
                let put = pb::PutRequest {
                    key: format!("k{next:08}").into(),
                    value: "v".into(),
                    ..Default::default()
                };
                let put = tokio::time::timeout(SHORT, clients[turn % servers].put(put)).await;
                if matches!(put, Ok(Ok(_))) {
                    count.store(next + 1, Ordering::SeqCst);
                }
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        Self { acknowledged, stop, task }
    }

    /// Waits until some more writes are acknowledged.
    async fn continues(&self) {
        let (began, enough) = (Instant::now(), self.acknowledged.load(Ordering::SeqCst) + 10);
        while self.acknowledged.load(Ordering::SeqCst) < enough {
            assert!(began.elapsed() < LIMIT, "no write is acknowledged");
            tokio::task::yield_now().await;
        }
    }
}

const LIMIT: Duration = Duration::from_secs(60);

/// How long one server may take for a write before the next one is tried.
const SHORT: Duration = Duration::from_secs(5);

/// Returns the response of a peer port to the preface of a member without TLS.
fn answer_without_tls(port: u16) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // The rejection of an unknown version begins with the same bytes as any other response.
    std::io::Write::write_all(&mut stream, b"bowline\0\xff\xff\xff\xff\0\0\0\0").unwrap();
    let mut first = [0; 2];
    stream.read_exact(&mut first).unwrap();
    first.to_vec()
}

/// Follows the steps of docs/operating/certificates.md.
#[tokio::test(flavor = "multi_thread")]
async fn members_migrate_to_tls_one_by_one_without_lost_writes() {
    let mut office = Office::new();
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let cards = [0, 1, 2].map(|at| office.member(&format!("m{at}")));
    let bare = |at: usize| {
        let flags = bowline_testkit::process::flags(at, &peers, clients[at], dirs[at].path());
        Server::start(&flags, clients[at], &[])
    };
    let secured = |at: usize, more: &[&str]| {
        let flags = flags(at, &peers, clients[at], &dirs[at], &office, &cards[at]);
        Server::start(&flags, clients[at], more)
    };
    let mut servers: Vec<_> = [0, 1, 2].map(bare).map(Server::ready).into();
    let writer = Writer::begin(clients.map(|port| format!("127.0.0.1:{port}")).into());
    writer.continues().await;
    // A member update that does not change the scheme is rejected, and the error names the procedure that does.
    let mut cluster = ClusterClient::new(servers[0].channel().await);
    let list = cluster.member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    for member in &list.members {
        let url = member.peer_ur_ls[0].replace("http://", "https://");
        let update = pb::MemberUpdateRequest { id: member.id, peer_ur_ls: vec![url] };
        let refused = cluster.member_update(update).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        assert!(refused.message().contains("--peer-tls-migration"), "{refused:?}");
    }
    assert_eq!(peers.map(answer_without_tls), [*b"bo"; 3]);
    for more in [&["--peer-tls-migration"][..], &[]] {
        for (at, peer) in peers.into_iter().enumerate() {
            let (status, log) = servers.remove(at).stop();
            assert!(status.success(), "{log}");
            servers.insert(at, secured(at, more).ready());
            writer.continues().await;
            // Connections without TLS are accepted as long as some members may not use TLS.
            let answer: &[u8] = if more.is_empty() { &[21, 3] } else { b"bo" };
            assert_eq!(answer_without_tls(peer), answer);
        }
    }
    writer.stop.store(true, Ordering::SeqCst);
    writer.task.await.unwrap();
    let acknowledged = writer.acknowledged.load(Ordering::SeqCst);
    let range = pb::RangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        keys_only: true,
        ..Default::default()
    };
    let mut kv = KvClient::new(servers[0].channel().await).max_decoding_message_size(usize::MAX);
    let found = kv.range(range).await.unwrap().into_inner();
    let keys: Vec<_> = found.kvs.into_iter().map(|pair| pair.key).collect();
    for number in 0..acknowledged {
        let key = format!("k{number:08}").into_bytes();
        assert!(
            keys.binary_search_by(|found| found[..].cmp(&key[..])).is_ok(),
            "lost {number} of {acknowledged}"
        );
    }
    let bare = "connection is not encrypted: the member does not use TLS";
    for server in servers {
        let (_, log) = server.stop();
        assert!(!log.contains(bare) && !log.contains("migrating to TLS"), "{log}");
    }
}
