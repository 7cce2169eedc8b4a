//! Uses the crate `etcd-client` as in its own examples, against the server whose address is the argument. Panics on any
//! unexpected result.

use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmType, Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error,
    EventType, GetOptions, LockOptions, MemberAddOptions, Permission, ProclaimOptions, PutOptions,
    ResignOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchResponse,
    WatchStream,
};

type Done = Result<(), Error>;

/// Time limit for expected responses.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let address = std::env::args().nth(1).expect("an address");
    let client = Client::connect([&address], None).await?;
    kv(client.clone()).await?;
    transactions(client.clone()).await?;
    watch(client.clone()).await?;
    leases(client.clone()).await?;
    locks(client.clone()).await?;
    elections(client.clone()).await?;
    cluster(client.clone()).await?;
    maintenance(client.clone()).await?;
    users(client, &address).await
}

async fn kv(mut client: Client) -> Done {
    for (key, value) in [("a1", "1"), ("a2", "2"), ("b1", "3")] {
        client.put(key, value, None).await?;
    }
    let put = client.put("a1", "one", Some(PutOptions::new().with_prev_key())).await?;
    assert_eq!(put.prev_key().unwrap().value(), b"1");
    let old = put.header().unwrap().revision() - 1;
    let options = GetOptions::new().with_prefix().with_sort(SortTarget::Mod, SortOrder::Descend);
    let rows = client.get("a", Some(options.with_limit(1))).await?;
    assert_eq!((rows.kvs()[0].key(), rows.count(), rows.more()), (&b"a1"[..], 2, true));
    let rows = client.get("a1", Some(GetOptions::new().with_revision(old))).await?;
    assert_eq!(rows.kvs()[0].value(), b"1");
    let from = GetOptions::new().with_from_key().with_keys_only().with_serializable();
    assert_eq!(client.get("a2", Some(from)).await?.kvs().len(), 2);
    let gone = client.delete("a", Some(DeleteOptions::new().with_prefix().with_prev_key())).await?;
    assert_eq!((gone.deleted(), gone.prev_kvs().len()), (2, 2));
    client.compact(old, None).await?;
    client.get("a1", Some(GetOptions::new().with_revision(old - 1))).await.unwrap_err();
    Ok(())
}

async fn transactions(mut client: Client) -> Done {
    client.put("x", "1", None).await?;
    let txn = |is: &'static str| {
        let nested = Txn::new().and_then([TxnOp::put("y", "nested", None)]);
        Txn::new()
            .when([Compare::value("x", CompareOp::Equal, is)])
            .and_then([TxnOp::put("x", "2", None), TxnOp::txn(nested)])
            .or_else([TxnOp::get("x", None)])
    };
    assert!(client.txn(txn("1")).await?.succeeded());
    let failed = client.txn(txn("1")).await?;
    assert!(!failed.succeeded());
    match &failed.op_responses()[..] {
        [TxnOpResponse::Get(rows)] => assert_eq!(rows.kvs()[0].value(), b"2"),
        others => panic!("{others:?}"),
    }
    assert_eq!(client.get("y", None).await?.kvs()[0].value(), b"nested");
    Ok(())
}

async fn next(stream: &mut WatchStream) -> WatchResponse {
    let next = tokio::time::timeout(WAIT_MAX, stream.message()).await;
    next.expect("a response in time").expect("no error").expect("the stream is open")
}

async fn watch(mut client: Client) -> Done {
    let begun = client.put("w/1", "1", None).await?.header().unwrap().revision();
    let options = WatchOptions::new().with_prefix().with_prev_key().with_start_revision(begun);
    let mut stream = client.watch("w/", Some(options.with_watch_id(7))).await?;
    assert!(next(&mut stream).await.created());
    client.put("w/1", "2", None).await?;
    client.delete("w/1", None).await?;
    let mut received = Vec::new();
    while received.len() < 3 {
        let response = next(&mut stream).await;
        assert_eq!(response.watch_id(), 7);
        for event in response.events() {
            let before = event.prev_kv().map(|row| row.value().to_vec());
            received.push((event.event_type(), before));
        }
    }
    let before = |value: &[u8]| Some(value.to_vec());
    let all = [(EventType::Put, None), (EventType::Put, before(b"1"))];
    assert_eq!(received[..2], all);
    assert_eq!(received[2], (EventType::Delete, before(b"2")));
    // A second watch is created on the same stream. The progress of both is requested, and both are cancelled.
    stream.watch("other", Some(WatchOptions::new().with_watch_id(8))).await?;
    assert!(next(&mut stream).await.created());
    stream.request_progress().await?;
    let progress = next(&mut stream).await;
    assert!(progress.events().is_empty() && !progress.created() && !progress.canceled());
    assert!(progress.header().unwrap().revision() >= begun + 2);
    for id in [7, 8] {
        stream.cancel(id).await?;
        let ended = next(&mut stream).await;
        assert!(ended.canceled() && ended.watch_id() == id);
    }
    Ok(())
}

async fn leases(mut client: Client) -> Done {
    let lease = client.lease_grant(60, None).await?.id();
    client.put("leased", "v", Some(PutOptions::new().with_lease(lease))).await?;
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    for _ in 0..3 {
        keeper.keep_alive().await?;
        assert_eq!(answers.message().await?.unwrap().ttl(), 60);
    }
    let options = etcd_client::LeaseTimeToLiveOptions::new().with_keys();
    let left = client.lease_time_to_live(lease, Some(options)).await?;
    assert_eq!((left.granted_ttl(), left.keys()), (60, &[b"leased".to_vec()][..]));
    assert!(client.leases().await?.leases().iter().any(|status| status.id() == lease));
    client.lease_revoke(lease).await?;
    assert_eq!(client.get("leased", None).await?.count(), 0);
    assert!(client.lease_keep_alive(lease).await.is_err());
    client.lease_revoke(lease).await.unwrap_err();
    Ok(())
}

async fn locks(mut client: Client) -> Done {
    let lease = client.lease_grant(60, None).await?.id();
    let options = LockOptions::new().with_lease(lease);
    let held = client.lock("lock", Some(options)).await?.key().to_vec();
    assert_eq!(held, format!("lock/{lease:x}").into_bytes());
    let mut other = client.clone();
    let waits = tokio::spawn(async move { other.lock("lock", None).await });
    let line = GetOptions::new().with_prefix().with_count_only();
    while client.get("lock/", Some(line.clone())).await?.count() < 2 {}
    assert!(!waits.is_finished());
    client.unlock(held).await?;
    let held = waits.await.unwrap()?.key().to_vec();
    client.unlock(held).await?;
    assert_eq!(client.get("lock/", Some(line)).await?.count(), 0);
    Ok(())
}

async fn elections(mut client: Client) -> Done {
    let lease = client.lease_grant(60, None).await?.id();
    let won = client.campaign("election", "first", lease).await?;
    let leader = won.leader().unwrap().clone();
    let mut observed = client.observe("election").await?;
    let sees = observed.message().await?.unwrap();
    assert_eq!(sees.kv().unwrap().value(), b"first");
    let options = ProclaimOptions::new().with_leader(leader.clone());
    client.proclaim("second", Some(options)).await?;
    let sees = observed.message().await?.unwrap();
    assert_eq!(sees.kv().unwrap().value(), b"second");
    let leads = client.leader("election").await?;
    assert_eq!(leads.kv().unwrap().key(), leader.key());
    client.resign(Some(ResignOptions::new().with_leader(leader))).await?;
    client.leader("election").await.unwrap_err();
    Ok(())
}

async fn cluster(mut client: Client) -> Done {
    let before = client.member_list().await?.members().len();
    let options = MemberAddOptions::new().with_is_learner();
    let added = client.member_add(["http://127.0.0.1:1"], Some(options)).await?;
    let id = added.member().unwrap().id();
    let members = client.member_list().await?;
    assert!(members.members().iter().any(|member| member.id() == id && member.is_learner()));
    client.member_promote(id).await.unwrap_err();
    client.member_remove(id).await?;
    assert_eq!(client.member_list().await?.members().len(), before);
    Ok(())
}

async fn maintenance(mut client: Client) -> Done {
    let status = client.status().await?;
    assert!(status.db_size() > 0 && status.leader() > 0 && status.version().starts_with("3."));
    assert!(client.hash().await?.hash() > 0 && client.hash_kv(0).await?.hash() > 0);
    assert!(client.alarm(AlarmAction::Get, AlarmType::None, None).await?.alarms().is_empty());
    client.defragment().await?;
    let mut parts = client.snapshot().await?;
    let mut bytes = 0;
    loop {
        let part = parts.message().await?.expect("the stream ended before the last part");
        bytes += part.blob().len();
        if part.remaining_bytes() == 0 {
            break;
        }
    }
    assert!(bytes > 512, "{bytes}");
    Ok(())
}

async fn users(mut client: Client, address: &str) -> Done {
    client.user_add("root", "secret", None).await?;
    client.user_grant_role("root", "root").await?;
    client.user_add("reader", "quiet", None).await?;
    client.role_add("reads").await?;
    client.role_grant_permission("reads", Permission::read("public/").with_prefix()).await?;
    client.user_grant_role("reader", "reads").await?;
    assert_eq!(client.user_get("reader").await?.roles(), ["reads"]);
    client.auth_enable().await?;
    client.put("public/1", "v", None).await.unwrap_err();
    let with = |user: &str, password: &str| Some(ConnectOptions::new().with_user(user, password));
    Client::connect([address], with("root", "wrong")).await.err().expect("a wrong password is rejected");
    let mut root = Client::connect([address], with("root", "secret")).await?;
    root.put("public/1", "v", None).await?;
    let mut reader = Client::connect([address], with("reader", "quiet")).await?;
    assert_eq!(reader.get("public/1", None).await?.count(), 1);
    reader.get("private", None).await.unwrap_err();
    reader.put("public/1", "w", None).await.unwrap_err();
    root.auth_disable().await?;
    client.put("public/1", "x", None).await?;
    Ok(())
}
