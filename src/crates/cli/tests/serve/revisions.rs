//! Tests of the revisions in response headers, and of reads at members that are partitioned from the rest of the
//! cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::auth::{by, login};
use crate::requests::put;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::v3electionpb::election_client::ElectionClient;
use bowline_proto::{v3electionpb, v3lockpb};
use bowline_testkit::process::Server;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::response_op::Response as Answered;
use v3lockpb::lock_client::LockClient;

fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.expect("every response has a header").revision
}

/// Starts tasks that write keys of their own until the set is dropped.
fn writers(channel: &Channel) -> JoinSet<()> {
    let mut writers = JoinSet::new();
    for at in 0..8 {
        let mut kv = KvClient::new(channel.clone());
        writers.spawn(async move { while kv.put(put(&format!("writer/{at}"))).await.is_ok() {} });
    }
    writers
}

async fn get(kv: &mut KvClient<Channel>, key: &[u8]) -> pb::RangeResponse {
    let range = pb::RangeRequest { key: key.to_vec().into(), ..Default::default() };
    kv.range(range).await.unwrap().into_inner()
}

/// A change takes one revision, and its response has that revision, whatever other clients write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_header_has_the_revision_of_the_write() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let _writers = writers(&channel);
    let mut kv = KvClient::new(channel.clone());
    let mut leases = LeaseClient::new(channel.clone());
    let mut lock = LockClient::new(channel.clone());
    let mut election = ElectionClient::new(channel.clone());
    leases.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 9 }).await.unwrap();
    let of_key =
        async |key: &[u8]| get(&mut KvClient::new(channel.clone()), key).await.kvs[0].clone();
    // Checks that the key was deleted at `revision`: it exists at `revision - 1`, but not at `revision`.
    let deleted_at = async |key: &[u8], revision: i64| {
        let mut kv = KvClient::new(channel.clone());
        for (at, count) in [(revision - 1, 1), (revision, 0)] {
            let range =
                pb::RangeRequest { key: key.to_vec().into(), revision: at, ..Default::default() };
            let found = kv.range(range).await.unwrap().into_inner();
            assert_eq!(found.count, count, "{key:?} at {at}");
        }
    };
    for round in 0..50 {
        let own = kv.put(put("own")).await.unwrap().into_inner();
        assert_eq!(of_key(b"own").await.mod_revision, revision(own.header), "put, {round}");
        let txn = pb::TxnRequest { success: vec![put("txn").into()], ..Default::default() };
        let txn = kv.txn(txn).await.unwrap().into_inner();
        assert_eq!(of_key(b"txn").await.mod_revision, revision(txn.header), "txn, {round}");
        let delete = pb::DeleteRangeRequest { key: "own".into(), ..Default::default() };
        let delete = kv.delete_range(delete).await.unwrap().into_inner();
        deleted_at(b"own", revision(delete.header)).await;

        leases.lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 7 }).await.unwrap();
        kv.put(pb::PutRequest { lease: 7, ..put("leased") }).await.unwrap();
        let revoke = leases.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap();
        deleted_at(b"leased", revision(revoke.into_inner().header)).await;

        let locked = v3lockpb::LockRequest { name: "lock".into(), lease: 9 };
        let locked = lock.lock(locked).await.unwrap().into_inner();
        let own = of_key(&locked.key).await;
        assert_eq!(own.create_revision, revision(locked.header), "lock, {round}");
        let unlock = v3lockpb::UnlockRequest { key: locked.key.clone() };
        let unlock = lock.unlock(unlock).await.unwrap().into_inner();
        deleted_at(&locked.key, revision(unlock.header)).await;

        let campaign =
            v3electionpb::CampaignRequest { name: "vote".into(), lease: 9, value: "a".into() };
        let campaign = election.campaign(campaign).await.unwrap().into_inner();
        let leader = campaign.leader.unwrap();
        assert_eq!(of_key(&leader.key).await.create_revision, revision(campaign.header));
        let proclaim =
            v3electionpb::ProclaimRequest { leader: Some(leader.clone()), value: "b".into() };
        let proclaim = election.proclaim(proclaim).await.unwrap().into_inner();
        assert_eq!(of_key(&leader.key).await.mod_revision, revision(proclaim.header));
        let resign = v3electionpb::ResignRequest { leader: Some(leader.clone()) };
        let resign = election.resign(resign).await.unwrap().into_inner();
        deleted_at(&leader.key, revision(resign.header)).await;
    }
}

/// Like the test above, for puts and revocations in JSON.
#[test]
fn json_write_header_has_the_revision_of_the_write() {
    let server = Server::alone(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let channel = runtime.block_on(server.channel());
    let _writers = runtime.block_on(async { writers(&channel) });
    let ask = |path: &str, body: Value| -> Value {
        let (code, answer) = server.http("POST", &format!("/v3/{path}"), &body.to_string());
        assert_eq!(code, 200, "{path}: {answer}");
        serde_json::from_str(&answer).unwrap()
    };
    for _ in 0..20 {
        ask("lease/grant", json!({"ID": 7, "TTL": 600}));
        let put = ask("kv/put", json!({"key": "YQ==", "lease": 7}));
        let found = ask("kv/range", json!({"key": "YQ=="}));
        assert_eq!(found["kvs"][0]["mod_revision"], put["header"]["revision"]);
        let revoke = ask("lease/revoke", json!({"ID": 7}));
        let at: i64 = revoke["header"]["revision"].as_str().unwrap().parse().unwrap();
        let count =
            |at: i64| ask("kv/range", json!({"key": "YQ==", "revision": at}))["count"].clone();
        assert_eq!((count(at - 1), count(at)), (json!("1"), Value::Null));
    }
}

/// A read sees every change up to the revision in its header, so a client that watches from the next revision misses
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_header_is_not_newer_than_the_read_data() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    // One writer adds a user, a role and a leased key in each round, and then puts a key that marks the end of the
    // round.
    LeaseClient::new(channel.clone())
        .lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 7 })
        .await
        .unwrap();
    let log = Arc::new([(); 4000].map(|()| AtomicI64::new(i64::MAX)));
    let done = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(channel.clone(), Arc::clone(&log), Arc::clone(&done)));
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        readers.spawn(read(channel.clone(), Arc::clone(&log), Arc::clone(&done)));
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    // A busy machine needs longer for enough rounds.
    let enough = async {
        while log[21].load(Ordering::Relaxed) == i64::MAX {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), enough).await.expect("21 rounds in a minute");
    done.store(true, Ordering::Relaxed);
    let written = writer.await.unwrap();
    let reads: usize = readers.join_all().await.iter().sum();
    assert!(written > 20 && reads > 50, "{written} rounds, {reads} reads");
}

/// Adds a user, a role and a key of the lease, and then puts the round's number. `log[n]` is the revision of round n's
/// put.
async fn write(channel: Channel, log: Arc<[AtomicI64; 4000]>, done: Arc<AtomicBool>) -> usize {
    let (mut kv, mut auth) = (KvClient::new(channel.clone()), AuthClient::new(channel));
    for (round, revision_of) in log.iter().enumerate() {
        if done.load(Ordering::Relaxed) {
            return round;
        }
        let name = format!("{round:04}");
        let options = Some(bowline_proto::authpb::UserAddOptions { no_password: true });
        let user = pb::AuthUserAddRequest { name: name.clone(), options, ..Default::default() };
        auth.user_add(user).await.unwrap();
        auth.role_add(pb::AuthRoleAddRequest { name: name.clone() }).await.unwrap();
        kv.put(pb::PutRequest { lease: 7, ..put(&format!("leased/{name}")) }).await.unwrap();
        let rounds = kv.put(put("rounds")).await.unwrap().into_inner();
        revision_of.store(revision(rounds.header), Ordering::SeqCst);
    }
    log.len()
}

/// Calls each read in turn, and compares its response with the rounds that had ended at the revision in the header.
async fn read(channel: Channel, log: Arc<[AtomicI64; 4000]>, done: Arc<AtomicBool>) -> usize {
    let (mut kv, mut auth) = (KvClient::new(channel.clone()), AuthClient::new(channel.clone()));
    let mut leases = LeaseClient::new(channel);
    let mut reads = 0;
    while !done.load(Ordering::Relaxed) {
        let users = auth.user_list(pb::AuthUserListRequest {}).await.unwrap().into_inner();
        let roles = auth.role_list(pb::AuthRoleListRequest {}).await.unwrap().into_inner();
        let lease = pb::LeaseTimeToLiveRequest { id: 7, keys: true };
        let lease = leases.lease_time_to_live(lease).await.unwrap().into_inner();
        let status = auth.auth_status(pb::AuthStatusRequest {}).await.unwrap().into_inner();
        let rounds = get(&mut kv, b"rounds").await;
        let version = rounds.kvs.first().map_or(0, |row| row.version);
        let seen = [
            ("UserList", users.header, users.users.len()),
            ("RoleList", roles.header, roles.roles.len()),
            ("LeaseTimeToLive", lease.header, lease.keys.len()),
            // Each round has two changes of users and roles.
            ("AuthStatus", status.header, (status.auth_revision as usize).saturating_sub(1) / 2),
            ("Range", rounds.header, version as usize),
        ];
        for (method, header, seen) in seen {
            let revision = revision(header);
            let over = log.iter().take_while(|at| at.load(Ordering::SeqCst) <= revision).count();
            assert!(seen >= over, "{method} sees {seen} rounds of {over} at revision {revision}");
            reads += 1;
        }
    }
    reads
}

/// Checking a password takes long. A user that is deleted meanwhile can still log in: the header must then be older
/// than everything that was written after the deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_header_is_not_newer_than_the_checked_user_table() {
    let server = Server::alone(&["--bcrypt-cost=10"]);
    let channel = crate::auth::guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let (mut kv, mut auth) = (KvClient::new(channel.clone()), AuthClient::new(channel.clone()));
    let mut authorized_before = 0;
    for round in 0..100 {
        let name = format!("user{round}");
        let add = pb::AuthUserAddRequest {
            name: name.clone(),
            password: format!("{name}'s"),
            ..Default::default()
        };
        auth.user_add(by(&root, add)).await.unwrap();
        let asked = tokio::spawn({
            let (name, password) = (name.clone(), format!("{name}'s"));
            let mut auth = AuthClient::new(channel.clone());
            async move { auth.authenticate(pb::AuthenticateRequest { name, password }).await }
        });
        // Some logins begin before the deletion, some after it.
        tokio::time::sleep(Duration::from_millis(round % 10 * 5)).await;
        auth.user_delete(by(&root, pb::AuthUserDeleteRequest { name })).await.unwrap();
        let put = kv.put(by(&root, put("k"))).await.unwrap().into_inner();
        if let Ok(answered) = asked.await.unwrap() {
            let (answered, written) =
                (revision(answered.into_inner().header), revision(put.header));
            assert!(answered < written, "{answered}, but the user was deleted before {written}");
            authorized_before += 1;
        }
        if authorized_before == 5 {
            return;
        }
    }
    panic!("{authorized_before} logins began before the deletion");
}

fn ranges(serializable: &[bool]) -> Vec<pb::RequestOp> {
    let range = |serializable: &bool| {
        let (key, serializable) = ("k".into(), *serializable);
        pb::RequestOp::from(pb::RangeRequest { key, serializable, ..Default::default() })
    };
    serializable.iter().map(range).collect()
}

async fn ask(channel: &Channel, txn: pb::TxnRequest) -> Result<pb::TxnResponse, Status> {
    let mut request = Request::new(txn);
    request.set_timeout(Duration::from_secs(2));
    KvClient::new(channel.clone()).txn(request).await.map(tonic::Response::into_inner)
}

/// One linearizable range makes the whole transaction linearizable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_transaction_on_a_partitioned_member_is_not_stale() {
    let servers = Server::three();
    let own = servers[2].channel().await;
    KvClient::new(own.clone()).put(put("k")).await.unwrap();
    let both = |success: &[bool], failure: &[bool]| pb::TxnRequest {
        success: ranges(success),
        failure: ranges(failure),
        ..Default::default()
    };
    let nested = vec![both(&[false], &[]).into()];
    let nested =
        pb::TxnRequest { success: [ranges(&[true]), nested].concat(), ..Default::default() };
    let mixed = [
        both(&[true, false], &[]),
        both(&[false, true], &[]),
        both(&[true], &[false]),
        both(&[], &[true, false]),
        nested,
    ];
    for server in &servers[..2] {
        server.pause();
    }
    ask(&own, both(&[true, true], &[true])).await.expect("a local read contacts no other member");
    for txn in &mixed {
        let answered = ask(&own, txn.clone()).await;
        assert!(answered.is_err(), "no quorum has confirmed this read: {answered:?}");
    }
    for server in &servers[..2] {
        server.resume();
    }
    let newest = loop {
        // An election may be in progress.
        let put = KvClient::new(servers[0].channel().await).put(put("k")).await;
        if let Ok(put) = put {
            break revision(put.into_inner().header);
        }
    };
    for txn in mixed {
        let answered = loop {
            if let Ok(answered) = ask(&own, txn.clone()).await {
                break answered;
            }
        };
        for answer in &answered.responses {
            if let Some(Answered::ResponseRange(range)) = &answer.response {
                assert!(range.kvs[0].mod_revision >= newest, "{range:?}");
            }
        }
    }
}
