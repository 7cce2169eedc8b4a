//! Tests of leases: grants, keep-alives, expiry and revocation.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

use crate::requests::all;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::Server;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;

type Lease = LeaseClient<Channel>;

async fn grant(lease: &mut Lease, ttl: i64, id: i64) -> pb::LeaseGrantResponse {
    lease.lease_grant(pb::LeaseGrantRequest { ttl, id }).await.unwrap().into_inner()
}

async fn to_live(lease: &mut Lease, id: i64) -> pb::LeaseTimeToLiveResponse {
    let request = pb::LeaseTimeToLiveRequest { id, keys: true };
    lease.lease_time_to_live(request).await.unwrap().into_inner()
}

async fn keep_alive(lease: &mut Lease, id: i64) -> pb::LeaseKeepAliveResponse {
    let (sender, requests) = mpsc::channel(1);
    sender.send(pb::LeaseKeepAliveRequest { id }).await.unwrap();
    let answers = lease.lease_keep_alive(ReceiverStream::new(requests)).await.unwrap();
    answers.into_inner().message().await.unwrap().unwrap()
}

async fn put(kv: &mut KvClient<Channel>, key: &'static str, lease: i64) {
    let request = pb::PutRequest { key: key.into(), lease, ..Default::default() };
    kv.put(request).await.unwrap();
}

async fn count(kv: &mut KvClient<Channel>) -> i64 {
    kv.range(all()).await.unwrap().into_inner().count
}

#[tokio::test]
async fn lease_ttl_is_granted_as_requested_or_slightly_longer() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let (mut lease, mut kv) = (LeaseClient::new(channel.clone()), KvClient::new(channel));
    let minted = grant(&mut lease, 100, 0).await;
    assert!(minted.id > 0 && minted.ttl == 100, "{minted:?}");
    assert_eq!(minted.header.unwrap().revision, 1);
    let asked = Instant::now();
    assert_eq!(grant(&mut lease, 100, -7).await.id, -7);
    let taken = lease.lease_grant(pb::LeaseGrantRequest { ttl: 100, id: -7 }).await.unwrap_err();
    assert_eq!(
        (taken.code(), taken.message()),
        (Code::FailedPrecondition, "etcdserver: lease already exists")
    );
    let long = pb::LeaseGrantRequest { ttl: 9_000_000_001, id: 0 };
    let long = lease.lease_grant(long).await.unwrap_err();
    assert_eq!(
        (long.code(), long.message()),
        (Code::OutOfRange, "etcdserver: too large lease TTL")
    );

    put(&mut kv, "a", -7).await;
    put(&mut kv, "b", -7).await;
    let status = to_live(&mut lease, -7).await;
    assert_eq!((status.granted_ttl, status.keys.len()), (100, 2));
    // The TTL is in whole seconds, rounded down.
    let least = 99.0 - asked.elapsed().as_secs_f64();
    assert!(status.ttl <= 100 && status.ttl as f64 >= least, "{least} {status:?}");
    assert_eq!(to_live(&mut lease, 12345).await.ttl, -1);
    let all = lease.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(all.leases.len(), 2);
    for short in [0, 1, -5] {
        assert_eq!(
            grant(&mut lease, short, 0).await.ttl,
            2,
            "the TTL must be longer than an election"
        );
    }

    lease.lease_revoke(pb::LeaseRevokeRequest { id: -7 }).await.unwrap();
    assert_eq!(count(&mut kv).await, 0);
    for id in [-7, 0, 99] {
        let gone = lease.lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap_err();
        let expected = (Code::NotFound, "etcdserver: requested lease not found");
        assert_eq!((gone.code(), gone.message()), expected);
        assert_eq!(keep_alive(&mut lease, id).await.ttl, 0);
    }
}

#[tokio::test]
async fn keep_alive_stream_answers_in_order() {
    let server = Server::alone(&[]);
    let mut lease = LeaseClient::new(server.channel().await);
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(grant(&mut lease, 100, 0).await.id);
    }
    let (sender, requests) = mpsc::channel(1);
    let mut answers =
        lease.lease_keep_alive(ReceiverStream::new(requests)).await.unwrap().into_inner();
    // The stream has more renewals than are processed at a time, and some leases do not exist.
    let asked: Vec<_> = ids.iter().cycle().take(1000).chain(&[7, 0, -9]).copied().collect();
    let ask = asked.clone();
    let asks = tokio::spawn(async move {
        for id in ask {
            sender.send(pb::LeaseKeepAliveRequest { id }).await.unwrap();
        }
        sender
    });
    let (mut answered, mut revision) = (Vec::new(), 0);
    while answered.len() < asked.len() {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!(answer.ttl, if ids.contains(&answer.id) { 100 } else { 0 });
        let newest = answer.header.unwrap().revision;
        assert!(newest >= revision, "{newest} after {revision}");
        answered.push(answer.id);
        revision = newest;
    }
    assert_eq!(answered, asked);
    // The response stream ends when the request stream ends.
    drop(asks.await.unwrap());
    assert!(answers.message().await.unwrap().is_none());
}

/// The HTTP/2 library closes a connection, with all its calls, if some thousands of small messages on it are unread. A
/// client that renews leases without a quorum would otherwise break all other calls on its connection.
#[tokio::test]
async fn keep_alives_without_a_quorum_are_still_read() {
    let mut servers = Server::three();
    let mut lease = LeaseClient::new(servers[0].channel().await);
    let id = grant(&mut lease, 600, 0).await.id;
    servers.truncate(1);
    // The requests are sent one at a time on one thread, so that each is a separate frame on the wire.
    let (sender, requests) = mpsc::channel(1);
    let mut answers =
        lease.lease_keep_alive(ReceiverStream::new(requests)).await.unwrap().into_inner();
    let asks = tokio::spawn(async move {
        let mut asked = 0;
        while asked < 20_000 && sender.send(pb::LeaseKeepAliveRequest { id }).await.is_ok() {
            asked += 1;
        }
        (asked, sender)
    });
    let ended = loop {
        match answers.message().await {
            Ok(answer) => assert!(answer.is_some(), "the stream must end with an error"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
    assert_eq!(ended.message(), "etcdserver: no leader");
    let asked = pb::LeaseTimeToLiveRequest { id, keys: false };
    let unknown = lease.lease_time_to_live(asked).await.unwrap_err();
    let expected = (Code::Unavailable, "etcdserver: no leader");
    assert_eq!((unknown.code(), unknown.message()), expected);
    assert_eq!(asks.await.unwrap().0, 20_000);
}

/// The TTL of the short leases.
const TTL: Duration = Duration::from_secs(2);

/// Keeps a lease alive for twice its TTL, and checks that it and its key then expire. Returns `None` if this test was
/// itself paused for longer than the TTL, because the lease may have expired then.
async fn kept_alive(through: &mut [Lease], kv: &mut KvClient<Channel>) -> Option<i64> {
    let mut renewed = Instant::now();
    let kept = grant(&mut through[0], 2, 0).await.id;
    let put = pb::PutRequest { key: "kept".into(), lease: kept, ..Default::default() };
    if let Err(refused) = kv.put(put).await {
        assert!(renewed.elapsed() >= TTL, "{refused:?}");
        return None;
    }
    let began = Instant::now();
    for turn in 0.. {
        if began.elapsed() > 2 * TTL {
            break;
        }
        let asked = Instant::now();
        let answer = keep_alive(&mut through[turn % 3], kept).await;
        if answer.ttl == 0 {
            assert!(renewed.elapsed() >= TTL, "the lease expired after {:?}", renewed.elapsed());
            return None;
        }
        assert_eq!((answer.ttl, answer.id), (2, kept));
        renewed = asked;
        let left = to_live(&mut through[(turn + 1) % 3], kept).await;
        let least = 1.0 - renewed.elapsed().as_secs_f64();
        assert!(left.ttl <= 2 && left.ttl as f64 >= least, "{least} {left:?}");
        let count = count(kv).await;
        assert!(count == 1 || renewed.elapsed() >= TTL, "{:?}", renewed.elapsed());
    }
    Some(kept)
}

#[tokio::test]
async fn lease_lives_while_any_member_renews_it() {
    let servers = Server::three();
    let mut kv = KvClient::new(servers[0].channel().await);
    let mut through = Vec::new();
    for server in &servers {
        through.push(LeaseClient::new(server.channel().await));
    }
    let began = Instant::now();
    let kept = loop {
        if let Some(kept) = kept_alive(&mut through, &mut kv).await {
            break kept;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "this test is paused all the time");
    };
    let began = Instant::now();
    // The lease is not renewed any more, so it expires.
    while count(&mut kv).await > 0 {
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(keep_alive(&mut through[1], kept).await.ttl, 0);
    assert_eq!(to_live(&mut through[2], kept).await.ttl, -1);
}

/// Puts a key again and again.
async fn writer(channel: Channel, number: usize) {
    let mut kv = KvClient::new(channel);
    loop {
        let key = format!("busy/{number}").into();
        kv.put(pb::PutRequest { key, ..Default::default() }).await.unwrap();
    }
}

/// A client that watches from the next revision must not miss what others have written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoke_returns_the_revision_that_deleted_the_keys() {
    const LEASES: i64 = 200;
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let (mut lease, mut kv) = (LeaseClient::new(channel.clone()), KvClient::new(channel.clone()));
    let mut writers = JoinSet::new();
    for number in 0..8 {
        writers.spawn(writer(server.channel().await, number));
    }
    let mut answered = Vec::new();
    for id in 1..=LEASES {
        grant(&mut lease, 100, id).await;
        let key = format!("leased/{id}");
        kv.put(pb::PutRequest { key: key.into(), lease: id, ..Default::default() }).await.unwrap();
        let revoked = lease.lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap();
        answered.push(revoked.into_inner().header.unwrap().revision);
    }
    writers.abort_all();
    let deleted = deletions(channel, LEASES as usize).await;
    assert_eq!(answered, deleted);
}

/// Returns the revisions of the first deletions below `leased/`.
async fn deletions(channel: Channel, wanted: usize) -> Vec<i64> {
    let create = pb::WatchCreateRequest {
        key: "leased/".into(),
        range_end: "leased0".into(),
        start_revision: 1,
        filters: vec![pb::watch_create_request::FilterType::Noput.into()],
        ..Default::default()
    };
    let (sender, requests) = mpsc::channel(1);
    sender.send(create.into()).await.unwrap();
    let stream = WatchClient::new(channel).watch(ReceiverStream::new(requests)).await.unwrap();
    let (mut stream, mut found) = (stream.into_inner(), Vec::new());
    while found.len() < wanted {
        let events = stream.message().await.unwrap().expect("the stream is open").events;
        found.extend(events.into_iter().map(|event| event.kv.unwrap().mod_revision));
    }
    found
}

/// Go's sessions compare the remaining TTL with the granted one.
#[tokio::test]
async fn ttl_after_a_grant_is_below_the_full_ttl() {
    let server = Server::alone(&[]);
    let mut lease = LeaseClient::new(server.channel().await);
    for id in 1..=20 {
        grant(&mut lease, 90, id).await;
        let asked = to_live(&mut lease, id).await;
        assert!((80..90).contains(&asked.ttl), "{asked:?}");
        assert_eq!(asked.granted_ttl, 90);
    }
}
