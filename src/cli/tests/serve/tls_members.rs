//! TLS between members of `bowline serve`: who is let in at the port where members talk.

use std::io::Read;
use std::path::Path;

use rustls::version::{TLS12, TLS13};
use tempfile::{TempDir, tempdir};

use crate::generated::etcdserverpb as pb;
use crate::office::{Card, GOOD, Office, Says};
use crate::process::{Server, bowline, free_ports};
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;

const BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The flags of one member, whose URLs among members are encrypted.
fn flags(
    own: usize,
    peers: &[u16],
    client: u16,
    dir: &TempDir,
    office: &Office,
    card: &Card,
) -> Vec<String> {
    let all = crate::process::flags(own, peers, client, dir.path()).into_iter();
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
async fn three_members_with_certificates_are_a_cluster_whose_urls_are_encrypted() {
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
    let put = pb::PutRequest { key: "k".into(), value: "v".into(), ..Default::default() };
    kv.put(put).await.unwrap();
    let mut members = ClusterClient::new(servers[2].channel().await);
    let list = members.member_list(pb::MemberListRequest::default()).await.unwrap().into_inner();
    let mut urls: Vec<_> =
        list.members.iter().flat_map(|member| member.peer_ur_ls.clone()).collect();
    urls.sort();
    let mut expected = peers.map(|port| format!("https://127.0.0.1:{port}"));
    expected.sort();
    assert_eq!(urls, expected);
    let add = |url: &str| pb::MemberAddRequest { peer_ur_ls: vec![url.into()], is_learner: true };
    let refused = members.member_add(add("http://127.0.0.1:9")).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: given member URLs are invalid");
    members.member_add(add("https://127.0.0.1:9")).await.unwrap();
}

/// Whatever else the authority has signed for, etcd's kind of certificate among it, and whatever it has not.
#[test]
fn no_certificate_but_a_members_lets_anybody_in_among_members_and_the_log_says_why() {
    let (mut office, mut foreign) = (Office::new(), Office::new());
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let card = office.member("m0");
    let uri = Some("bowline://shop/m1");
    let revoked = office.member("m1");
    let mut issue = |says: Says<'_>| Some(office.issue(says));
    let cards = [
        ("shows no certificate", None),
        ("has expired", issue(Says { uri, years: (2019, 2020), ..GOOD })),
        ("is not valid yet", issue(Says { uri, years: (2098, 2099), ..GOOD })),
        ("has no URI of the form bowline://CLUSTER/MEMBER", issue(GOOD)),
        ("another cluster than \"shop\"", issue(Says { uri: Some("bowline://mill/m1"), ..GOOD })),
        ("was revoked", Some(revoked.clone())),
        ("is not signed by an authority that is trusted here", Some(foreign.member("m1"))),
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
    }
    let (status, said) = server.stop();
    assert!(status.success(), "{said}");
    for (why, _) in &cards {
        assert!(said.contains(why), "{why:?} is not in {said}");
    }
}

#[test]
fn a_server_whose_own_certificate_is_not_its_own_does_not_start_and_says_what_it_needs() {
    let mut office = Office::new();
    let cards = [
        (office.issue(GOOD), "has no URI of the form bowline://CLUSTER/MEMBER"),
        (
            office.member("m1"),
            "this member is called \"m0\", and its certificate is that of \"m1\"",
        ),
    ];
    for (card, words) in cards {
        let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
        let all = flags(0, &[peer], client, &dir, &office, &card);
        let output = bowline().arg("serve").args(&all).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{words}: {said}");
    }
}
