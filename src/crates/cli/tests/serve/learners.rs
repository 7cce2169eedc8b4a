//! Tests of the calls that learners serve.

use tempfile::tempdir;
use tonic::Code;
use tonic::transport::Channel;

use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, flags, free_ports};
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;

const NOT_SERVED: &str = "etcdserver: rpc not supported for learner";

/// Starts a voter, and a learner with a flag.
async fn voter_and_learner(more: &str) -> (Server, Server) {
    let dirs = [(); 2].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 2], [u16; 2]) = (free_ports(), free_ports());
    let voter = Server::start(&flags(0, &peers[..1], clients[0], dirs[0].path()), clients[0], &[]);
    let voter = voter.ready();
    let mut cluster = ClusterClient::new(voter.channel().await);
    let peer_ur_ls = vec![format!("http://127.0.0.1:{}", peers[1])];
    cluster.member_add(pb::MemberAddRequest { peer_ur_ls, is_learner: true }).await.unwrap();
    let own = flags(1, &peers, clients[1], dirs[1].path());
    let learner = Server::start(&own, clients[1], &["--initial-cluster-state=existing", more]);
    let [voters, learners] = dirs;
    (voter.owning(voters), learner.ready().owning(learners))
}

fn range(serializable: bool) -> pb::RangeRequest {
    pb::RangeRequest { key: "a".into(), serializable, ..Default::default() }
}

async fn put(channel: Channel, value: &str) -> Result<(), tonic::Status> {
    let put =
        pb::PutRequest { key: "a".into(), value: value.to_owned().into(), ..Default::default() };
    KvClient::new(channel).put(put).await.map(drop)
}

/// Returns the count of a range that is sent as a stream.
async fn streamed(kv: &mut KvClient<Channel>, serializable: bool) -> i64 {
    let mut chunks = kv.range_stream(range(serializable)).await.unwrap().into_inner();
    let only = chunks.message().await.unwrap().unwrap();
    assert!(chunks.message().await.unwrap().is_none());
    only.range_response.unwrap().count
}

/// Opens a watch, and returns its stream and the sender of its requests.
async fn watch(channel: Channel) -> Result<tonic::Streaming<pb::WatchResponse>, tonic::Status> {
    let create = pb::WatchCreateRequest { key: "a".into(), ..Default::default() };
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::once(create.into()),
        tokio_stream::pending::<pb::WatchRequest>(),
    );
    Ok(WatchClient::new(channel).watch(requests).await?.into_inner())
}

#[tokio::test]
async fn learner_serves_watches_and_no_linearizable_ranges_by_default() {
    let (voter, learner) = voter_and_learner("--learner-calls=").await;
    let mut events = watch(learner.channel().await).await.unwrap();
    assert!(events.message().await.unwrap().unwrap().created);
    for value in ["1", "2", "3"] {
        put(voter.channel().await, value).await.unwrap();
        let response = events.message().await.unwrap().unwrap();
        let kv = response.events[0].kv.clone().unwrap();
        assert_eq!((response.events.len(), kv.value), (1, value.into()));
    }
    let mut kv = KvClient::new(learner.channel().await);
    let refused = kv.range(range(false)).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, NOT_SERVED));
    assert_eq!(kv.range(range(true)).await.unwrap().into_inner().count, 1);
    let refused = kv.range_stream(range(false)).await.unwrap_err();
    assert_eq!(refused.message(), NOT_SERVED);
    assert_eq!(streamed(&mut kv, true).await, 1);
    let refused = put(learner.channel().await, "4").await.unwrap_err();
    assert_eq!(refused.message(), NOT_SERVED);
}

#[tokio::test]
async fn learner_serves_linearizable_ranges_if_configured() {
    let (voter, learner) = voter_and_learner("--learner-calls=watch,range").await;
    let mut kv = KvClient::new(learner.channel().await);
    for at in 0..200 {
        let value = at.to_string();
        put(voter.channel().await, &value).await.unwrap();
        let read = kv.range(range(false)).await.unwrap().into_inner();
        assert_eq!(
            read.kvs[0].value,
            value.as_bytes(),
            "the put was acknowledged before the range"
        );
    }
    assert_eq!(streamed(&mut kv, false).await, 1);
    watch(learner.channel().await).await.unwrap();
}

#[tokio::test]
async fn learner_rejects_what_etcds_rejects_if_configured() {
    let (_voter, learner) = voter_and_learner("--learner-calls=etcd").await;
    let refused = watch(learner.channel().await).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, NOT_SERVED));
    let refused = KvClient::new(learner.channel().await).range(range(false)).await.unwrap_err();
    assert_eq!(refused.message(), NOT_SERVED);
}
