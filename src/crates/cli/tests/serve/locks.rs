//! Tests of `v3lockpb` and `v3electionpb`: all kinds of clients share the same lock queue.

use std::time::{Duration, Instant};

use tonic::Code;
use tonic::transport::Channel;

use bowline_proto::{etcdserverpb as pb, v3electionpb, v3lockpb};
use bowline_testkit::process::Server;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use v3electionpb::election_client::ElectionClient;
use v3lockpb::lock_client::LockClient;

async fn grant(channel: &Channel) -> i64 {
    let request = pb::LeaseGrantRequest { ttl: 60, id: 0 };
    LeaseClient::new(channel.clone()).lease_grant(request).await.unwrap().into_inner().id
}

async fn rows(channel: &Channel, prefix: &'static str, end: &'static str) -> Vec<String> {
    let (key, range_end) = (prefix.into(), end.into());
    let range = pb::RangeRequest { key, range_end, sort_target: 2, ..Default::default() };
    let reply = KvClient::new(channel.clone()).range(range).await.unwrap().into_inner();
    reply.kvs.iter().map(|row| String::from_utf8(row.key.to_vec()).unwrap()).collect()
}

async fn until(channel: &Channel, prefix: &'static str, end: &'static str, count: usize) {
    let begun = Instant::now();
    while rows(channel, prefix, end).await.len() != count {
        assert!(begun.elapsed() < Duration::from_secs(30), "never {count} in the queue");
    }
}

fn lock(name: &'static str, lease: i64) -> v3lockpb::LockRequest {
    v3lockpb::LockRequest { name: name.into(), lease }
}

#[tokio::test]
async fn lock_has_one_holder_and_passes_in_queue_order() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut locks = LockClient::new(channel.clone());
    let (one, two) = (grant(&channel).await, grant(&channel).await);
    let held = locks.lock(lock("m", one)).await.unwrap().into_inner();
    assert_eq!(held.key, format!("m/{one:x}"));
    // Another call with the same lease returns the same hold.
    assert_eq!(locks.lock(lock("m", one)).await.unwrap().into_inner().key, held.key);

    let mut other = LockClient::new(channel.clone());
    let waits = tokio::spawn(async move { other.lock(lock("m", two)).await });
    until(&channel, "m/", "m0", 2).await;
    assert!(!waits.is_finished());
    let unlock = v3lockpb::UnlockRequest { key: held.key };
    locks.unlock(unlock.clone()).await.unwrap();
    let next = waits.await.unwrap().unwrap().into_inner();
    assert_eq!(next.key, format!("m/{two:x}"));
    assert!(next.header.unwrap().revision >= 4);
    locks.unlock(unlock).await.expect("a missing key may be unlocked");
    // Without a lease, the server grants one.
    let lent = locks.lock(lock("n", 0)).await.unwrap().into_inner();
    assert!(lent.key.starts_with(b"n/"));
    let unknown = locks.lock(lock("n", 77)).await.unwrap_err();
    assert_eq!(unknown.message(), "etcdserver: requested lease not found");
}

#[tokio::test]
async fn canceled_or_expired_waiter_leaves_the_queue() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut locks = LockClient::new(channel.clone());
    let first = grant(&channel).await;
    let held = locks.lock(lock("m", first)).await.unwrap().into_inner().key;
    for _ in 0..5 {
        let (mut impatient, lease) = (LockClient::new(channel.clone()), grant(&channel).await);
        let call = tokio::spawn(async move { impatient.lock(lock("m", lease)).await });
        until(&channel, "m/", "m0", 2).await;
        call.abort();
        until(&channel, "m/", "m0", 1).await;
    }
    let (mut doomed, lease) = (LockClient::new(channel.clone()), grant(&channel).await);
    let call = tokio::spawn(async move { doomed.lock(lock("m", lease)).await });
    until(&channel, "m/", "m0", 2).await;
    let revoke = pb::LeaseRevokeRequest { id: lease };
    LeaseClient::new(channel.clone()).lease_revoke(revoke).await.unwrap();
    let lost = call.await.unwrap().unwrap_err();
    assert_eq!(lost.message(), "mutex: session is expired", "the error arrives while it waits");
    assert_eq!(rows(&channel, "m/", "m0").await, [String::from_utf8(held.to_vec()).unwrap()]);
}

/// A client whose call has timed out calls again with its lease: the cancelled call must not delete the key of the new
/// one.
#[tokio::test]
async fn canceled_lock_call_spares_the_next_call_of_its_lease() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut locks = LockClient::new(channel.clone());
    let [first, own, other] = [grant(&channel).await, grant(&channel).await, grant(&channel).await];
    let held = locks.lock(lock("m", first)).await.unwrap().into_inner();
    let wait = |lease| {
        let mut locks = LockClient::new(channel.clone());
        tokio::spawn(async move { locks.lock(lock("m", lease)).await })
    };
    let given_up = wait(own);
    until(&channel, "m/", "m0", 2).await;
    let again = wait(own);
    let versions = async || {
        let key = format!("m/{own:x}").into();
        let range = pb::RangeRequest { key, ..Default::default() };
        KvClient::new(channel.clone()).range(range).await.unwrap().into_inner().kvs[0].version
    };
    while versions().await < 2 {}
    given_up.abort();
    given_up.await.unwrap_err();
    let waits = wait(other);
    until(&channel, "m/", "m0", 3).await;
    locks.unlock(v3lockpb::UnlockRequest { key: held.key }).await.unwrap();
    let key = again.await.unwrap().expect("the call still waits").into_inner().key;
    assert_eq!(key, format!("m/{own:x}"));
    // If the cancelled call deletes its key, the deletion is applied before another lock is taken and released.
    for _ in 0..20 {
        let lock = locks.lock(lock("n", own)).await.unwrap().into_inner();
        locks.unlock(v3lockpb::UnlockRequest { key: lock.key }).await.unwrap();
    }
    assert_eq!(rows(&channel, "m/", "m0").await.len(), 2);
    assert!(!waits.is_finished(), "the lock is still held");
}

/// All calls of a lease wait for the same key. When the last of them is cancelled the key is deleted, no matter which
/// call created it.
#[tokio::test]
async fn canceled_lock_calls_of_one_lease_leave_no_key() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut locks = LockClient::new(channel.clone());
    let (first, own) = (grant(&channel).await, grant(&channel).await);
    let held = locks.lock(lock("m", first)).await.unwrap().into_inner();
    let version = async || {
        let key = format!("m/{own:x}").into();
        let range = pb::RangeRequest { key, ..Default::default() };
        let rows = KvClient::new(channel.clone()).range(range).await.unwrap().into_inner().kvs;
        rows.first().map_or(0, |row| row.version)
    };
    for first_goes_first in [true, false] {
        let mut calls = Vec::new();
        for at in 1..=3 {
            let mut locks = LockClient::new(channel.clone());
            calls.push(tokio::spawn(async move { locks.lock(lock("m", own)).await }));
            while version().await < at {}
        }
        if !first_goes_first {
            calls.reverse();
        }
        for call in calls {
            assert_eq!(rows(&channel, "m/", "m0").await.len(), 2);
            call.abort();
            call.await.unwrap_err();
        }
        until(&channel, "m/", "m0", 1).await;
    }
    // If a call was answered, its key stays, even if later calls with the same lease are cancelled.
    let holds = format!("m/{first:x}");
    assert_eq!(locks.lock(lock("m", first)).await.unwrap().into_inner().key, holds);
    for _ in 0..20 {
        let lock = locks.lock(lock("n", own)).await.unwrap().into_inner();
        locks.unlock(v3lockpb::UnlockRequest { key: lock.key }).await.unwrap();
    }
    assert_eq!(rows(&channel, "m/", "m0").await, [holds]);
    locks.unlock(v3lockpb::UnlockRequest { key: held.key }).await.unwrap();
}

/// A call that has timed out without a quorum may still be applied when the other members are back. Its key is then
/// deleted.
#[tokio::test]
async fn timed_out_lock_calls_of_one_lease_hold_nothing() {
    let servers = Server::three();
    let channel = servers[0].channel().await;
    let lease = grant(&channel).await;
    for others in &servers[1..] {
        others.pause();
    }
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let mut locks = LockClient::new(channel.clone());
            tokio::spawn(async move { locks.lock(lock("m", lease)).await })
        })
        .collect();
    for call in calls {
        let refused = call.await.unwrap().unwrap_err();
        assert_eq!(refused.message(), "etcdserver: request timed out");
    }
    for others in &servers[1..] {
        others.resume();
    }
    let create = pb::WatchCreateRequest {
        key: format!("m/{lease:x}").into(),
        start_revision: 1,
        ..Default::default()
    };
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::once(create.into()),
        tokio_stream::pending::<pb::WatchRequest>(),
    );
    let mut watch = pb::watch_client::WatchClient::new(channel.clone());
    let mut responses = watch.watch(requests).await.unwrap().into_inner();
    let is_taken_back = async {
        loop {
            let response = responses.message().await.unwrap().unwrap();
            // The event is a DELETE event.
            if response.events.iter().any(|event| event.r#type == 1) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_taken_back).await.expect("the key stays");
    assert!(rows(&channel, "m/", "m0").await.is_empty());
}

#[tokio::test]
async fn an_election_has_one_leader_that_proclaims_and_resigns() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut elections = ElectionClient::new(channel.clone());
    let asked = || v3electionpb::LeaderRequest { name: "e".into() };
    let error = elections.leader(asked()).await.unwrap_err();
    assert_eq!(error.message(), "election: no leader");
    let mut observed = elections.observe(asked()).await.unwrap().into_inner();
    let campaign = |lease, value: &'static str| v3electionpb::CampaignRequest {
        name: "e".into(),
        lease,
        value: value.into(),
    };
    let (one, two) = (grant(&channel).await, grant(&channel).await);
    let won = elections.campaign(campaign(one, "a")).await.unwrap().into_inner();
    let leader = won.leader.unwrap();
    assert_eq!(
        (leader.rev, leader.lease, &leader.key[..]),
        (2, one, format!("e/{one:x}").as_bytes())
    );
    let mut second = ElectionClient::new(channel.clone());
    let waits = tokio::spawn(async move { second.campaign(campaign(two, "b")).await });
    until(&channel, "e/", "e0", 2).await;

    let mut sees = async |value: &str| {
        let seen = tokio::time::timeout(Duration::from_secs(60), observed.message()).await;
        let kv = seen.expect("the stream is open").unwrap().unwrap().kv.unwrap();
        assert_eq!(kv.value, value);
    };
    sees("a").await;
    let proclaim = |leader: &v3electionpb::LeaderKey| v3electionpb::ProclaimRequest {
        leader: Some(leader.clone()),
        value: "a2".into(),
    };
    // A proclaim request without a lease keeps the lease of the campaign.
    let unleased = v3electionpb::LeaderKey { lease: 0, ..leader.clone() };
    elections.proclaim(proclaim(&unleased)).await.unwrap();
    sees("a2").await;
    let now = elections.leader(asked()).await.unwrap().into_inner().kv.unwrap();
    assert_eq!((&now.value[..], now.lease), (&b"a2"[..], one));

    let resign = v3electionpb::ResignRequest { leader: Some(leader.clone()) };
    elections.resign(resign.clone()).await.unwrap();
    let won = waits.await.unwrap().unwrap().into_inner().leader.unwrap();
    assert_eq!(won.lease, two);
    sees("b").await;
    let late = elections.proclaim(proclaim(&leader)).await.unwrap_err();
    assert_eq!(late.message(), "election: not leader");
    elections.resign(resign).await.expect("a second resignation succeeds");
    let error = elections.resign(v3electionpb::ResignRequest { leader: None }).await.unwrap_err();
    assert_eq!(error.message(), "\"leader\" field must be provided");
}

/// etcd's clients format a lease ID as Go does, with a sign: both formats must mean the same queue entry.
#[tokio::test]
async fn negative_lease_id_maps_to_the_queue_entry_of_etcd_clients() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let grant = pb::LeaseGrantRequest { ttl: 60, id: -26 };
    LeaseClient::new(channel.clone()).lease_grant(grant).await.unwrap();
    let held = LockClient::new(channel.clone()).lock(lock("m", -26)).await.unwrap().into_inner();
    assert_eq!(held.key, "m/-1a");
    let campaign =
        v3electionpb::CampaignRequest { name: "e".into(), lease: -26, value: "v".into() };
    let won = ElectionClient::new(channel).campaign(campaign).await.unwrap().into_inner();
    assert_eq!(won.leader.unwrap().key, "e/-1a");
}

/// An observer that requires a leader gets an error when there is none. Other observers keep waiting.
#[tokio::test]
async fn observer_that_requires_a_leader_is_notified_of_its_absence() {
    let mut servers = Server::three();
    let channel = servers[0].channel().await;
    let mut elections = ElectionClient::new(channel.clone());
    let lease = grant(&channel).await;
    let campaign = v3electionpb::CampaignRequest { name: "e".into(), lease, value: "v".into() };
    elections.campaign(campaign).await.unwrap();
    let asked = || tonic::Request::new(v3electionpb::LeaderRequest { name: "e".into() });
    let mut wants = asked();
    wants.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let mut wants = elections.observe(wants).await.unwrap().into_inner();
    let mut waits = elections.observe(asked()).await.unwrap().into_inner();
    for observed in [&mut wants, &mut waits] {
        assert_eq!(observed.message().await.unwrap().unwrap().kv.unwrap().value, "v");
    }
    servers.truncate(1);
    let answer = tokio::time::timeout(Duration::from_secs(60), wants.message());
    let lost = answer.await.expect("the stream is open").unwrap_err();
    assert_eq!((lost.code(), lost.message()), (Code::Unavailable, "etcdserver: no leader"));
    let continues = tokio::time::timeout(Duration::ZERO, waits.message()).await;
    assert!(continues.is_err(), "{continues:?}");
}

/// As in etcd: no key was created at such a revision, whether the key exists or not.
#[tokio::test]
async fn leadership_with_a_negative_revision_is_invalid() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut election = ElectionClient::new(channel.clone());
    let leader = |key: &'static str| {
        Some(v3electionpb::LeaderKey { key: key.into(), rev: -1, ..Default::default() })
    };
    let put = pb::PutRequest { key: "e/there".into(), ..Default::default() };
    KvClient::new(channel.clone()).put(put).await.unwrap();
    for key in ["e/there", "e/absent"] {
        let proclaim = v3electionpb::ProclaimRequest { leader: leader(key), value: "v".into() };
        let refused = election.proclaim(proclaim).await.unwrap_err();
        assert_eq!(refused.message(), "election: not leader");
        let resign = v3electionpb::ResignRequest { leader: leader(key) };
        election.resign(resign).await.unwrap();
    }
    assert_eq!(rows(&channel, "e/", "e0").await, ["e/there"]);
}
