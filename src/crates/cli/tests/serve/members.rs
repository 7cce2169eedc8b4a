//! Tests of adding members in etcd's way: a member is added to the cluster first, and its server is started
//! afterwards.

use std::time::{Duration, Instant};

use tempfile::tempdir;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::requests::put;
use crate::tools::etcdctl;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, flags, free_ports, http};
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;

pub(crate) type Cluster = ClusterClient<Channel>;

pub(crate) async fn add(
    cluster: &mut Cluster,
    port: u16,
    is_learner: bool,
) -> Result<pb::MemberAddResponse, Status> {
    let peer_ur_ls = vec![format!("http://127.0.0.1:{port}")];
    let request = pb::MemberAddRequest { peer_ur_ls, is_learner };
    cluster.member_add(request).await.map(tonic::Response::into_inner)
}

async fn list(cluster: &mut Cluster) -> Vec<pb::Member> {
    let list = pb::MemberListRequest { linearizable: true };
    cluster.member_list(list).await.unwrap().into_inner().members
}

/// Waits until the member list shows the member as wanted.
pub(crate) async fn until(
    cluster: &mut Cluster,
    id: u64,
    wanted: impl Fn(&pb::Member) -> bool,
) -> pb::Member {
    let began = Instant::now();
    loop {
        let member = list(cluster).await.into_iter().find(|member| member.id == id).unwrap();
        if wanted(&member) {
            return member;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{member:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn put_at(channel: &Channel) {
    KvClient::new(channel.clone()).put(put("k")).await.unwrap();
}

#[tokio::test]
async fn added_member_starts_as_learner_and_votes_once_caught_up() {
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let first = Server::start(&flags(0, &peers[..1], clients[0], dirs[0].path()), clients[0], &[]);
    let first = first.ready();
    let channel = first.channel().await;
    let mut cluster = ClusterClient::new(channel.clone());

    let added = add(&mut cluster, peers[1], false).await.unwrap();
    let second = added.member.unwrap();
    assert!(second.name.is_empty() && second.client_ur_ls.is_empty() && !second.is_learner);
    assert!(added.members.iter().any(|member| member.id == second.id && member.is_learner));
    assert_eq!(added.members.len(), 2);
    put_at(&channel).await;
    // Invalid lists: a URL of another member, no URL, a URL without a scheme, two schemes, not HTTP, and a URL without
    // a port.
    let again = add(&mut cluster, peers[1], true).await.unwrap_err();
    let expected = (Code::FailedPrecondition, "etcdserver: Peer URLs already exists");
    assert_eq!((again.code(), again.message()), expected);
    for urls in [&[][..], &["x"], &["http://a:1", "https://b:1"], &["unix://a:1"], &["http://a"]] {
        let peer_ur_ls = urls.iter().map(|&url| url.to_owned()).collect();
        let request = pb::MemberAddRequest { peer_ur_ls, is_learner: false };
        let bad = cluster.member_add(request).await.unwrap_err();
        assert_eq!(bad.message(), "etcdserver: given member URLs are invalid", "{urls:?}");
    }
    let early = pb::MemberPromoteRequest { id: second.id };
    let early = cluster.member_promote(early).await.unwrap_err();
    let words = "etcdserver: can only promote a learner member which is in sync with leader";
    assert_eq!(early.message(), words);
    // This member is removed before it has started.
    let spare = add(&mut cluster, 1, false).await.unwrap().member.unwrap();
    cluster.member_remove(pb::MemberRemoveRequest { id: spare.id }).await.unwrap();
    assert_eq!(list(&mut cluster).await.len(), 2);

    let existing = ["--initial-cluster-state=existing"];
    let start = |at: usize| {
        let flags = flags(at, &peers[..=at], clients[at], dirs[at].path());
        Server::start(&flags, clients[at], &existing).ready()
    };
    let other = start(1);
    let voter = until(&mut cluster, second.id, |member| !member.is_learner).await;
    assert_eq!((voter.name.as_str(), &voter.peer_ur_ls), ("m1", &second.peer_ur_ls));
    assert_eq!(list(&mut cluster).await.len(), 2, "it took the reserved member's place");

    let third = add(&mut cluster, peers[2], true).await.unwrap().member.unwrap();
    let last = start(2);
    let learner = until(&mut cluster, third.id, |member| member.name == "m2").await;
    assert!(learner.is_learner);
    // The promotion may fail because the learner lags, because another voter lags, or because the change takes longer
    // than the call's deadline. In the last case the change may still be applied.
    let (begun, mut is_unknown) = (Instant::now(), false);
    loop {
        let promoted = cluster.member_promote(pb::MemberPromoteRequest { id: third.id }).await;
        let Err(not_yet) = promoted else { break };
        let message_text = not_yet.message();
        if is_unknown && message_text == "etcdserver: can only promote a learner member" {
            break;
        }
        is_unknown |= message_text.contains("request timed out");
        let may_be = [words, "etcdserver: unhealthy cluster", "request timed out"];
        assert!(may_be.iter().any(|words| message_text.contains(words)), "{not_yet:?}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{not_yet:?}");
    }
    let same = pb::MemberUpdateRequest { id: third.id, peer_ur_ls: third.peer_ur_ls.clone() };
    assert_eq!(cluster.member_update(same).await.unwrap().into_inner().members.len(), 3);
    let elsewhere = || vec!["http://127.0.0.1:1".to_owned()];
    let moved = |id: u64| pb::MemberUpdateRequest { id, peer_ur_ls: elsewhere() };
    let updated = cluster.member_update(moved(third.id)).await.unwrap().into_inner();
    let row = |member: &&pb::Member| member.id == third.id;
    assert_eq!(updated.members.iter().find(row).unwrap().peer_ur_ls, elsewhere());
    for (id, message_text) in
        [(second.id, "etcdserver: Peer URLs already exists"), (99, "etcdserver: member not found")]
    {
        assert_eq!(cluster.member_update(moved(id)).await.unwrap_err().message(), message_text);
    }
    // The promoted member has the same URL as before, and counts for the quorum.
    put_at(&last.channel().await).await;
    // Each member knows the client URLs of the others.
    for server in [&first, &other, &last] {
        let mut cluster = ClusterClient::new(server.channel().await);
        for (member, port) in list(&mut cluster).await.into_iter().zip(clients) {
            let urls = vec![format!("http://127.0.0.1:{port}")];
            until(&mut cluster, member.id, |member| member.client_ur_ls == urls).await;
        }
    }
    // The other two members continue without the first.
    drop(first);
    put_at(&last.channel().await).await;
    put_at(&other.channel().await).await;
}

#[test]
fn etcdctl_member_add_prints_the_start_flags() {
    let server = Server::alone(&[]);
    let Some(mut command) = etcdctl(&server) else { return };
    let output = command.args(["member", "add", "m1", "--peer-urls=http://127.0.0.1:1"]).output();
    let output = output.unwrap();
    let message_text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{message_text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(message_text.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{message_text}");
    assert!(message_text.contains("m1=http://127.0.0.1:1"), "{message_text}");
    let listed = etcdctl(&server).unwrap().args(["member", "list"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert_eq!(listed.lines().filter(|line| line.contains("unstarted")).count(), 1, "{listed}");
}

#[tokio::test]
async fn last_voter_cannot_be_removed() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut cluster = Cluster::new(channel.clone());
    let id = list(&mut cluster).await[0].id;
    let refused = cluster.member_remove(pb::MemberRemoveRequest { id }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(
        refused.message(),
        "etcdserver: re-configuration failed due to not enough started members"
    );
    // The response already shows a voter, though the member is a learner at first.
    let added = add(&mut cluster, 9, false).await.unwrap();
    let message_text = added.member.unwrap();
    assert!(!message_text.is_learner);
    assert!(
        list(&mut cluster)
            .await
            .iter()
            .any(|member| member.id == message_text.id && member.is_learner)
    );
    put_at(&channel).await;
}

/// Two first members that cannot connect: they log the difference in a few lines at most, and health reports it.
#[test]
fn founders_with_different_lists_or_tokens_report_the_difference() {
    type Change<'a> = &'a dyn Fn(&mut Vec<String>);
    let other_list = |flags: &mut Vec<String>| {
        let list = flags.iter_mut().find(|flag| flag.starts_with("--initial-cluster=")).unwrap();
        *list = list.replace("m2=", "x2=");
    };
    let other_token = |flags: &mut Vec<String>| flags.push("--initial-cluster-token=b".to_owned());
    let cases: [(Change<'_>, &[&str]); 2] = [
        (&other_list, &["different lists of founding members", "lists m2", "lists x2"]),
        (&other_token, &["different cluster tokens", "the lists are equal"]),
    ];
    for (differs, words) in cases {
        let dirs = [(); 2].map(|()| tempdir().unwrap());
        let (peers, clients): ([u16; 3], [u16; 2]) = (free_ports(), free_ports());
        // The client port opens after bootstrap; the metrics port is open before.
        let health: [u16; 2] = free_ports();
        let begun = Instant::now();
        let start = |at: usize| {
            let mut flags = flags(at, &peers, clients[at], dirs[at].path());
            if at == 1 {
                differs(&mut flags);
            }
            let at_once = format!("--listen-metrics-urls=http://127.0.0.1:{}", health[at]);
            Server::start(&flags, clients[at], &[&at_once])
        };
        let servers = [0, 1].map(start);
        for (server, port) in servers.iter().zip(health) {
            words.iter().for_each(|words| server.until_logged(words));
            // The health changes within one tick of the member.
            loop {
                let address = format!("127.0.0.1:{port}");
                let (code, mut body) = http(&address, "GET", "/readyz/serving?verbose", "");
                let health = body.text();
                assert_ne!(code, 200, "{health}");
                if words.iter().all(|words| health.contains(words)) {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "{health}");
            }
        }
        let minutes = 1 + begun.elapsed().as_secs() / 60;
        for server in servers {
            let (_, message_text) = server.stop();
            let lines = message_text.matches("peer connection rejected").count();
            // The first rejection may come before this member has seen the other's list.
            assert!(lines as u64 <= 1 + minutes, "{message_text}");
        }
    }
}

/// Each member listens at two addresses and advertises both. The first URL of two members is unreachable.
#[tokio::test]
async fn members_with_two_urls_each_form_a_cluster() {
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let urls =
        |at: usize| ["127.0.0.1", "127.0.0.2"].map(|host| format!("http://{host}:{}", peers[at]));
    let cluster: Vec<_> =
        (0..3).flat_map(|at| urls(at).map(|url| format!("m{at}={url}"))).collect();
    let start = |at: usize| {
        let flags = flags(at, &peers, clients[at], dirs[at].path()).into_iter().map(|flag| {
            let listen = if at == 0 { urls(at).join(",") } else { urls(at)[1].clone() };
            match flag.split_once('=').unwrap().0 {
                "--listen-peer-urls" => format!("--listen-peer-urls={listen}"),
                name @ "--initial-advertise-peer-urls" => format!("{name}={}", urls(at).join(",")),
                name @ "--initial-cluster" => format!("{name}={}", cluster.join(",")),
                _ => flag,
            }
        });
        Server::start(&flags.collect::<Vec<_>>(), clients[at], &[])
    };
    let servers = [0, 1, 2].map(start).map(Server::ready);
    let channel = servers[2].channel().await;
    put_at(&channel).await;
    let mut cluster = ClusterClient::new(channel);
    let members = list(&mut cluster).await;
    let mut known: Vec<_> = members.iter().map(|member| member.peer_ur_ls.clone()).collect();
    known.sort();
    let mut expected = [0, 1, 2].map(|at| urls(at).to_vec());
    expected.sort();
    assert_eq!(known, expected);
    // An added member may have two URLs as well, and neither may belong to another member.
    let add = |urls: &[&str]| pb::MemberAddRequest {
        peer_ur_ls: urls.iter().map(|url| (*url).to_owned()).collect(),
        is_learner: true,
    };
    let taken = cluster.member_add(add(&["http://127.0.0.9:1", &urls(1)[1]])).await.unwrap_err();
    assert_eq!(taken.message(), "etcdserver: Peer URLs already exists");
    let mixed = cluster.member_add(add(&["http://127.0.0.9:1", "https://127.0.0.9:2"])).await;
    assert_eq!(mixed.unwrap_err().message(), "etcdserver: given member URLs are invalid");
    let two = ["http://127.0.0.9:1", "http://127.0.0.9:2"];
    let added = cluster.member_add(add(&two)).await.unwrap().into_inner();
    assert_eq!(added.member.unwrap().peer_ur_ls, two);
}

#[tokio::test]
async fn max_learners_limits_learners_and_not_members_that_vote() {
    let ports = free_ports::<4>();
    let server = Server::alone(&["--max-learners=2"]);
    let mut cluster = ClusterClient::new(server.channel().await);
    add(&mut cluster, ports[0], true).await.unwrap();
    add(&mut cluster, ports[1], true).await.unwrap();
    let refused = add(&mut cluster, ports[2], true).await.unwrap_err();
    let words = "etcdserver: too many learner members in cluster";
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, words));
    add(&mut cluster, ports[3], false).await.unwrap();
}
