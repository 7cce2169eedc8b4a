//! Tests of faults that etcd has published as advisories or fixed in 3.7. `docs/assurance/incidents.md` lists all of them,
//! with the tests in other files.

use tonic::{Code, Status};

use crate::auth::{CHEAP, by, guarded, login};
use crate::requests::{all, get, put};
use bowline_proto::authpb;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::Server;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;

/// GHSA-xg4h-6gfc-h4m8.
#[tokio::test]
async fn user_with_one_key_cannot_read_or_watch_all_keys_from_it_on() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let mut auth = AuthClient::new(channel.clone());
    let perm_type = authpb::permission::Type::Read.into();
    let perm = Some(authpb::Permission { perm_type, key: b"one".to_vec(), range_end: Vec::new() });
    auth.role_add(by(&root, pb::AuthRoleAddRequest { name: "one".into() })).await.unwrap();
    let grant = pb::AuthRoleGrantPermissionRequest { name: "one".into(), perm };
    auth.role_grant_permission(by(&root, grant)).await.unwrap();
    let grant = pb::AuthUserGrantRoleRequest { user: "bob".into(), role: "one".into() };
    auth.user_grant_role(by(&root, grant)).await.unwrap();
    let bob = login(&channel, "bob").await.unwrap();
    for (range_end, is_permitted) in [("", true), ("\0", false), ("onf", false), ("two", false)] {
        let create = pb::WatchCreateRequest {
            key: "one".into(),
            range_end: range_end.into(),
            ..Default::default()
        };
        let mut watch = WatchClient::new(channel.clone());
        let answers = watch.watch(by(&bob, tokio_stream::once(create.into()))).await;
        let answer = answers.unwrap().into_inner().message().await.unwrap().unwrap();
        assert_eq!(!answer.canceled, is_permitted, "{range_end:?}: {answer:?}");
        let denied = "etcdserver: permission denied";
        assert!(is_permitted || answer.cancel_reason.contains(denied), "{answer:?}");
        let range = || pb::RangeRequest { key: "one".into(), range_end: range_end.into(), ..all() };
        let mut kv = KvClient::new(channel.clone());
        let read = kv.range(by(&bob, range())).await.map(drop);
        let streamed = kv.range_stream(by(&bob, range())).await.map(drop);
        for result in [read, streamed] {
            let code = result.as_ref().err().map(Status::code);
            let expected = (!is_permitted).then_some(Code::PermissionDenied);
            assert_eq!(code, expected, "{range_end:?}: {result:?}");
        }
    }
}

/// See etcd's pull request 21432.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_with_a_range_at_a_revision_leaves_equal_replicas() {
    let servers = Server::three();
    let channels =
        [servers[0].channel().await, servers[1].channel().await, servers[2].channel().await];
    for round in 0..20 {
        KvClient::new(channels[round % 3].clone()).put(put("k")).await.unwrap();
    }
    let compact = pb::CompactionRequest { revision: 15, physical: true };
    KvClient::new(channels[0].clone()).compact(compact).await.unwrap();
    for (revision, error) in [
        (14, Some("etcdserver: mvcc: required revision has been compacted")),
        (15, None),
        (999, Some("etcdserver: mvcc: required revision is a future revision")),
    ] {
        for (at, channel) in channels.iter().enumerate() {
            let key = format!("t{revision}/{at}");
            let range = pb::RangeRequest { revision, ..all() };
            let nested = pb::TxnRequest { success: vec![range.into()], ..Default::default() };
            let ops = vec![put(&key).into(), nested.into()];
            let txn = pb::TxnRequest { success: ops, ..Default::default() };
            let result = KvClient::new(channel.clone()).txn(txn).await;
            let words = result.err().map(|status| status.message().to_owned());
            assert_eq!(words.as_deref(), error, "at {revision}");
            // A rejected transaction has no effect at any member.
            for channel in &channels {
                let count = KvClient::new(channel.clone()).range(get(&key)).await.unwrap();
                assert_eq!(count.into_inner().count == 1, error.is_none(), "{key}");
            }
        }
    }
    let mut hashes = Vec::new();
    for channel in &channels {
        let mut maintenance = MaintenanceClient::new(channel.clone());
        let hash = maintenance.hash_kv(pb::HashKvRequest::default()).await.unwrap().into_inner();
        hashes.push((hash.hash, hash.hash_revision));
    }
    assert!(hashes.windows(2).all(|pair| pair[0] == pair[1]), "{hashes:?}");
}
