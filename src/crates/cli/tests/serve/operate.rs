//! Tests of member management, maintenance, health, and methods that are not supported.

use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::tempdir;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::requests::{get, put};
use crate::tokens::until_begun;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::grpc::health::v1::HealthCheckRequest;
use bowline_proto::grpc::health::v1::health_client::HealthClient;
use bowline_testkit::process::{Server, SingleMember, flags, free_ports};
use pb::AlarmType;
use pb::alarm_request::AlarmAction;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;

/// How long any step may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a member reports no errors, and returns its status. A member updates its health only at each tick.
async fn settled(maintenance: &mut MaintenanceClient<Channel>) -> pb::StatusResponse {
    let began = Instant::now();
    loop {
        let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        if status.errors.is_empty() || began.elapsed() > Duration::from_secs(20) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Test suites of clients call these on a new server, and treat an empty value as a missing response.
#[tokio::test]
async fn an_empty_server_has_a_size_and_a_hash() {
    let server = Server::alone(&[]);
    let mut maintenance = MaintenanceClient::new(server.channel().await);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert!(0 < status.db_size_in_use && status.db_size_in_use <= status.db_size, "{status:?}");
    let hash = maintenance.hash(pb::HashRequest {}).await.unwrap().into_inner().hash;
    let asked = pb::HashKvRequest::default();
    let of_keys = maintenance.hash_kv(asked).await.unwrap().into_inner();
    assert!(hash != 0 && of_keys.hash != 0, "{hash} {of_keys:?}");
    assert_eq!(of_keys.compact_revision, -1, "nothing was compacted");
}

#[tokio::test]
async fn members_can_be_listed_hashed_led_and_removed() {
    let servers = Server::three();
    let channel = servers[0].channel().await;
    KvClient::new(channel.clone()).put(put("k")).await.unwrap();

    let mut cluster = ClusterClient::new(channel.clone());
    let list = pb::MemberListRequest { linearizable: true };
    let listed = cluster.member_list(list).await.unwrap().into_inner();
    assert_eq!(listed.header.unwrap().revision, 0);
    let mut names: Vec<_> = listed.members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["m0", "m1", "m2"]);
    assert!(listed.members.iter().all(|member| !member.is_learner && member.peer_ur_ls.len() == 1));

    let mut hashes = Vec::new();
    for server in &servers {
        let mut maintenance = MaintenanceClient::new(server.channel().await);
        // This linearizable read ensures that the member has applied the writes before it computes the hash.
        let mut kv = KvClient::new(server.channel().await);
        kv.range(get("k")).await.unwrap();
        let hash =
            maintenance.hash_kv(pb::HashKvRequest { revision: 2 }).await.unwrap().into_inner();
        hashes.push((hash.hash, hash.hash_revision));
        let status = settled(&mut maintenance).await;
        assert!(status.version.starts_with("3.7.") && status.errors.is_empty(), "{status:?}");
        assert!(status.db_size > 0 && status.raft_index >= status.raft_applied_index);
    }
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");

    let begun = Instant::now();
    let members = loop {
        let Led { leader, term, members } = led(&servers).await;
        let follower = members[(leader + 1) % 3];
        let mut at_leader = MaintenanceClient::new(servers[leader].channel().await);
        let mut elsewhere = MaintenanceClient::new(servers[(leader + 1) % 3].channel().await);
        let to = |target_id| pb::MoveLeaderRequest { target_id };
        let outcome_of = |done: Result<Response<pb::MoveLeaderResponse>, Status>| {
            done.map_or_else(|refused| refused.message().to_owned(), |_| "done".to_owned())
        };
        let mut received = vec![
            outcome_of(elsewhere.move_leader(to(follower)).await),
            outcome_of(at_leader.move_leader(to(99)).await),
        ];
        let refused = ["etcdserver: not leader", "etcdserver: bad leader transferee"];
        if received == refused {
            received.push(outcome_of(at_leader.move_leader(to(follower)).await));
            if received[2] == "done" {
                break members;
            }
        }
        // Either another member leads by now, or the intended leader was paused.
        let moved = led(&servers).await.term > term;
        assert!(moved || received.last().unwrap().contains("timed out"), "{received:?}");
        assert!(begun.elapsed() < LIMIT, "{received:?}");
    };

    let unknown = cluster.member_remove(pb::MemberRemoveRequest { id: 99 }).await.unwrap_err();
    let expected = (Code::NotFound, "etcdserver: member not found");
    assert_eq!((unknown.code(), unknown.message()), expected);
    let voter =
        cluster.member_promote(pb::MemberPromoteRequest { id: members[0] }).await.unwrap_err();
    assert_eq!(voter.message(), "etcdserver: can only promote a learner member");
    let begun = Instant::now();
    let left = loop {
        match cluster.member_remove(pb::MemberRemoveRequest { id: members[2] }).await {
            Ok(left) => break left.into_inner(),
            // A new leader knows that the others are alive only after they respond.
            Err(refused) => {
                assert_eq!(refused.message(), "etcdserver: unhealthy cluster");
                assert!(begun.elapsed() < LIMIT, "{refused:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    assert_eq!(left.members.len(), 2);
}

/// The leader of a cluster.
struct Led {
    /// The index of the leader in the list of servers.
    leader: usize,
    term: u64,
    /// The member IDs, in the order of the servers.
    members: Vec<u64>,
}

/// Waits until all servers name the same leader, in one term.
async fn led(servers: &[Server]) -> Led {
    let began = Instant::now();
    loop {
        let mut all = Vec::new();
        for server in servers {
            let mut maintenance = MaintenanceClient::new(server.channel().await);
            let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
            all.push((status.leader, status.raft_term, status.header.unwrap().member_id));
        }
        let is_one = all.windows(2).all(|two| (two[0].0, two[0].1) == (two[1].0, two[1].1));
        let leader = all.iter().position(|(leader, _, member)| leader == member);
        if let (true, Some(leader)) = (is_one, leader) {
            let members = all.iter().map(|(.., member)| *member).collect();
            return Led { leader, term: all[0].1, members };
        }
        assert!(began.elapsed() < LIMIT, "{all:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn maintenance_calls_without_work_answer_as_in_etcd() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut maintenance = MaintenanceClient::new(channel.clone());
    let alarms = maintenance.alarm(pb::AlarmRequest::default()).await.unwrap().into_inner();
    assert_eq!(alarms.alarms, []);
    maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
    let future = maintenance.hash_kv(pb::HashKvRequest { revision: 99 }).await.unwrap_err();
    assert_eq!(future.code(), Code::OutOfRange);
    let cancel = pb::DowngradeRequest { action: 2, version: String::new() };
    // As in etcd, it is no error if no downgrade is in progress.
    assert_eq!(maintenance.downgrade(cancel).await.unwrap().into_inner().version, "3.7");

    let mut health = HealthClient::new(channel);
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for service in ["", "etcdserverpb.KV"] {
        let answer = health.check(check(service)).await.unwrap().into_inner();
        assert_eq!(answer.status, 1, "{service}");
    }
    assert_eq!(health.check(check("x")).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn no_space_alarm_ends_with_free_space_or_on_request() {
    let server = Server::alone(&["--quota-backend-bytes=65536"]);
    let channel = server.channel().await;
    let mut operator = MaintenanceClient::new(channel.clone());
    let (mut kv, mut maintenance) =
        (KvClient::new(channel.clone()), MaintenanceClient::new(channel));
    let large =
        || pb::PutRequest { key: "k".into(), value: vec![7; 4096].into(), ..Default::default() };
    let mut alarms = async |action: AlarmAction| {
        let request = pb::AlarmRequest { action: action.into(), ..Default::default() };
        maintenance.alarm(request).await.unwrap().into_inner().alarms
    };
    assert_eq!(alarms(AlarmAction::Get).await, []);
    let mut revision = 0;
    let refused = loop {
        match kv.put(large()).await {
            Ok(put) => revision = put.into_inner().header.unwrap().revision,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
    let raised = alarms(AlarmAction::Get).await;
    assert_eq!(raised.iter().map(pb::AlarmMember::alarm).collect::<Vec<_>>(), [AlarmType::Nospace]);
    assert_eq!(alarms(AlarmAction::Deactivate).await, raised);
    assert_eq!(alarms(AlarmAction::Get).await, []);
    assert_eq!(alarms(AlarmAction::Deactivate).await, [], "no alarm is active any more");
    kv.put(large()).await.unwrap_err();
    assert_eq!(alarms(AlarmAction::Get).await, raised);
    // A member updates its health only at each tick.
    let mut until = async |is_done: fn(&pb::StatusResponse) -> bool| {
        let began = Instant::now();
        while !is_done(&operator.status(pb::StatusRequest {}).await.unwrap().into_inner()) {
            assert!(began.elapsed() < Duration::from_secs(20));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until(|status| status.db_size > 60_000).await;
    assert_eq!(alarms(AlarmAction::Get).await, raised, "the store is still full");
    kv.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    // The space of compacted revisions is freed a little later.
    let began = Instant::now();
    while kv.put(large()).await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(|status| status.errors.is_empty()).await;
    assert_eq!(alarms(AlarmAction::Get).await, [], "there is enough space");
}

/// Longer than a shutdown takes on a busy machine, and much shorter than what it must not wait for.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// A joining member retries for a minute.
#[test]
fn joining_server_without_peers_stops_on_request() {
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    // The peer accepts connections and never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let peers = [peer, silent.local_addr().unwrap().port()];
    let more = ["--initial-cluster-state", "existing"];
    let server = Server::start(&flags(0, &peers, client, dir.path()), client, &more);
    let begun = Instant::now();
    let _asks = loop {
        if let Ok((connection, _)) = silent.accept() {
            break connection;
        }
        assert!(begun.elapsed() < LIMIT, "it does not contact the other member");
        std::thread::sleep(Duration::from_millis(20));
    };
    let signalled = Instant::now();
    let (status, _) = server.stop();
    assert!(status.success(), "{status}");
    assert!(signalled.elapsed() < STOPS_WITHIN, "it took {:?}", signalled.elapsed());
}

#[tokio::test]
async fn server_stops_while_it_hashes_a_password() {
    // With this cost, a hash would take hours.
    let server = Server::alone(&["--bcrypt-cost", "25"]);
    let channel = server.channel().await;
    let (name, password) = ("ann".to_owned(), "ann's".to_owned());
    let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
    let mut auth = pb::auth_client::AuthClient::new(channel);
    let adds = tokio::spawn(async move { auth.user_add(add).await.map(drop) });
    until_begun(&server, "UserAdd", 1).await;
    let signalled = Instant::now();
    let (status, log) = server.stop();
    assert!(status.success() && log.contains("stopped cleanly"), "{status}: {log}");
    assert!(signalled.elapsed() < STOPS_WITHIN, "it took {:?}", signalled.elapsed());
    adds.await.unwrap().unwrap_err();
}

/// A full disk, or a pipe whose reader has exited.
#[test]
fn unwritable_log_does_not_affect_the_server() {
    let member = SingleMember::prepare();
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" serve \"$@\" 2>/dev/full", env!("CARGO_BIN_EXE_bowline")]);
    command.args(&member.flags).arg("--log-level=debug");
    let server = Server::run(command, member.client);
    let begun = Instant::now();
    while std::net::TcpStream::connect(&server.address).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not accept connections");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.wait_until_healthy("/readyz");
    let (code, body) = server.http("POST", "/v3/kv/put", r#"{"key":"aw==","value":"dg=="}"#);
    assert_eq!(code, 200, "{body}");
    let (status, _) = server.stop();
    assert!(status.success(), "{status}");
}
