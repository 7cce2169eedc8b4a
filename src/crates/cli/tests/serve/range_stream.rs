//! Tests of `KV.RangeStream`: the chunks, their revision, and the ends of a stream.

use std::io::Write as _;
use std::time::{Duration, Instant};

use bowline_client::{Client, Error};
use prost::Message as _;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tonic::codec::CompressionEncoding::Gzip;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::auth::{CHEAP, by, guarded, login};
use crate::hostile::Dice;
use crate::requests::all;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::Server;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;

type Kv = KvClient<Channel>;
type Chunks = Streaming<pb::RangeStreamResponse>;

/// Size of the rows of a large range, and their number. The range exceeds all windows and buffers many times.
const ROW_BYTES: usize = 200_000;
const ROWS: usize = 200;

async fn put(kv: &mut Kv, key: impl Into<String>, value: Vec<u8>) -> i64 {
    let (key, value) = (key.into().into(), value.into());
    let put = pb::PutRequest { key, value, ..Default::default() };
    kv.put(put).await.unwrap().into_inner().header.unwrap().revision
}

fn range(key: &str, range_end: &str) -> pb::RangeRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    pb::RangeRequest { key, range_end, ..Default::default() }
}

/// Returns the next chunk, or `None` at the end of the stream.
async fn next(chunks: &mut Chunks) -> Result<Option<pb::RangeResponse>, Status> {
    Ok(chunks.message().await?.map(|chunk| chunk.range_response.unwrap()))
}

/// Returns the remaining chunks of a stream.
async fn rest(chunks: &mut Chunks) -> Result<Vec<pb::RangeResponse>, Status> {
    let mut all = Vec::new();
    while let Some(chunk) = next(chunks).await? {
        all.push(chunk);
    }
    Ok(all)
}

async fn stream(kv: &mut Kv, request: pb::RangeRequest) -> Result<Vec<pb::RangeResponse>, Status> {
    rest(&mut kv.range_stream(request).await?.into_inner()).await
}

/// Checks the form of the chunks, and merges them.
fn merged(chunks: Vec<pb::RangeResponse>) -> pb::RangeResponse {
    let count = chunks.len();
    assert!(count > 0, "at least one chunk");
    let mut all = pb::RangeResponse::default();
    for (at, chunk) in chunks.into_iter().enumerate() {
        let is_last = at + 1 == count;
        assert_eq!(chunk.header.is_some(), is_last, "only the last chunk has a header");
        assert!(is_last || (!chunk.more && chunk.count == 0), "{chunk:?}");
        assert!(is_last || !chunk.kvs.is_empty(), "an empty chunk");
        let kvs = [std::mem::take(&mut all.kvs), chunk.kvs].concat();
        all = pb::RangeResponse { kvs, ..chunk };
    }
    assert!(all.kvs.windows(2).all(|pair| pair[0].key < pair[1].key), "in key order");
    all
}

/// Returns a channel whose windows hold less than one row of a large range.
async fn narrow(server: &Server) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let endpoint = endpoint.initial_stream_window_size(64 << 10);
    endpoint.initial_connection_window_size(64 << 10).connect().await.unwrap()
}

/// Fills a large range below `prefix`. Returns the revision of the last put.
async fn fill(kv: &mut Kv, prefix: &str) -> i64 {
    let mut revision = 0;
    for row in 0..ROWS {
        revision = put(kv, format!("{prefix}{row:04}"), vec![b'v'; ROW_BYTES]).await;
    }
    revision
}

/// Opens a stream of the large range, and reads its first chunk. The server then waits for the client.
async fn begun(server: &Server) -> Chunks {
    let mut kv = KvClient::new(narrow(server).await);
    let mut chunks = kv.range_stream(range("r", "s")).await.unwrap().into_inner();
    let first = next(&mut chunks).await.unwrap().unwrap();
    assert!(first.kvs.len() < ROWS && first.header.is_none());
    chunks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_chunks_equal_the_response_of_range() {
    let bytes_max = 16_384;
    let server = Server::alone(&[&format!("--max-request-bytes={bytes_max}")]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let mut compressed = KvClient::new(channel).send_compressed(Gzip).accept_compressed(Gzip);
    let mut dice = Dice(37);
    for _ in 0..1200 {
        let bytes = if dice.below(10) == 0 { dice.below(9000) } else { dice.below(50) };
        put(&mut kv, format!("k{:03}", dice.below(600)), vec![b'v'; bytes as usize]).await;
        if dice.below(8) == 0 {
            let key = format!("k{:03}", dice.below(600)).into();
            kv.delete_range(pb::DeleteRangeRequest { key, ..Default::default() }).await.unwrap();
        }
    }
    let newest = kv.range(range("x", "")).await.unwrap().into_inner().header.unwrap().revision;
    let mut most = 0;
    for round in 0..400 {
        let key = |dice: &mut Dice| format!("k{:03}", dice.below(600));
        let end = match dice.below(4) {
            0 => String::new(),
            1 => "\0".to_owned(),
            _ => key(&mut dice),
        };
        let request = pb::RangeRequest {
            limit: [0, 0, -1, 1, 9, 10, 11, 100][dice.below(8) as usize],
            revision: [0, 0, -1, 1 + dice.below(newest as u64) as i64][dice.below(4) as usize],
            keys_only: dice.below(3) == 0,
            count_only: dice.below(6) == 0,
            serializable: dice.below(2) == 0,
            sort_order: dice.below(2) as i32,
            ..range(&key(&mut dice), &end)
        };
        let expected = kv.range(request.clone()).await.unwrap().into_inner();
        let client = if round % 2 == 0 { &mut kv } else { &mut compressed };
        let chunks = stream(client, request.clone()).await.unwrap();
        for chunk in &chunks {
            assert!(chunk.encoded_len() <= bytes_max, "{} bytes", chunk.encoded_len());
        }
        most = most.max(chunks.len());
        assert!(!request.count_only || chunks.len() == 1, "{request:?}");
        assert_eq!(merged(chunks), expected, "{request:?}");
    }
    assert!(most > 10, "{most} chunks at most");
}

#[tokio::test]
async fn sort_orders_and_revision_filters_are_unimplemented() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    let (orders, filters) = (
        "RangeStream does not support custom sort orders",
        "RangeStream does not support revision filters",
    );
    let unimplemented = Code::Unimplemented;
    for (request, code, words) in [
        (pb::RangeRequest { sort_order: 2, ..all() }, unimplemented, orders),
        (pb::RangeRequest { sort_order: 1, sort_target: 1, ..all() }, unimplemented, orders),
        (pb::RangeRequest { sort_target: 4, ..all() }, unimplemented, orders),
        (pb::RangeRequest { min_mod_revision: 1, ..all() }, unimplemented, filters),
        (pb::RangeRequest { max_mod_revision: -1, ..all() }, unimplemented, filters),
        (pb::RangeRequest { min_create_revision: 1, ..all() }, unimplemented, filters),
        (pb::RangeRequest { max_create_revision: 1, ..all() }, unimplemented, filters),
        (range("", ""), Code::InvalidArgument, "etcdserver: key is not provided"),
        (
            pb::RangeRequest { sort_order: 7, ..all() },
            Code::InvalidArgument,
            "etcdserver: invalid sort option",
        ),
        (
            pb::RangeRequest { revision: 99, ..all() },
            Code::OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        ),
    ] {
        let status = stream(&mut kv, request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, words));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_pinned_to_its_first_revision() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    let revision = fill(&mut kv, "r").await;
    let expected = kv.range(pb::RangeRequest { keys_only: true, ..range("r", "s") }).await;
    let expected = expected.unwrap().into_inner();
    let mut chunks = begun(&server).await;
    // Change rows, delete rows and add rows that the stream has not reached yet.
    for row in (ROWS / 2..ROWS).step_by(2) {
        put(&mut kv, format!("r{row:04}"), b"new".to_vec()).await;
        put(&mut kv, format!("r{row:04}+"), b"new".to_vec()).await;
        let key = format!("r{:04}", row + 1).into();
        kv.delete_range(pb::DeleteRangeRequest { key, ..Default::default() }).await.unwrap();
    }
    let rows = rest(&mut chunks).await.unwrap();
    let last = rows.last().unwrap().clone();
    assert_eq!((last.header.unwrap().revision, last.count, last.more), (revision, 200, false));
    let rows: Vec<_> = rows.into_iter().flat_map(|chunk| chunk.kvs).collect();
    assert!(rows.iter().all(|row| row.value.len() == ROW_BYTES));
    let skipped = ROWS - rows.len();
    assert!(skipped < ROWS / 2, "the first chunk has {skipped} rows");
    let keys = |rows: &[bowline_client::KeyValue]| -> Vec<_> {
        rows.iter().map(|row| (row.key.clone(), row.mod_revision)).collect()
    };
    assert_eq!(keys(&rows), keys(&expected.kvs[skipped..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_in_mid_stream_ends_the_stream_with_an_error() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    let pinned = fill(&mut kv, "r").await;
    let (mut at_the_pinned, mut above) = (begun(&server).await, begun(&server).await);
    let compact = async |kv: &mut Kv, revision| {
        kv.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    };
    // The compacted revision itself can still be read.
    compact(&mut kv, pinned).await;
    let rows = rest(&mut at_the_pinned).await.unwrap();
    assert_eq!(rows.last().unwrap().count, ROWS as i64);
    let newer = put(&mut kv, "x", Vec::new()).await;
    compact(&mut kv, newer).await;
    let status = rest(&mut above).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(status.message(), "etcdserver: mvcc: required revision has been compacted");
    assert!(above.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_or_stopped_server_in_mid_stream_is_an_error_at_the_client() {
    for is_killed in [true, false] {
        let server = Server::alone(&[]);
        fill(&mut KvClient::new(server.channel().await), "r").await;
        let mut chunks = begun(&server).await;
        let client = Client::connect([format!("http://{}", server.address)]).await.unwrap();
        let mut same = client.range_stream(range("r", "s")).await.unwrap();
        same.next().await.unwrap().unwrap();
        if is_killed {
            drop(server);
        } else {
            let (status, log) = server.stop();
            assert!(status.success() && !log.contains("panicked"), "{log}");
        }
        rest(&mut chunks).await.unwrap_err();
        let failed = loop {
            match same.next().await {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        assert!(matches!(failed, Some(Error::Refused(_))), "{failed:?}");
    }
}

/// An unread stream holds one chunk, however large its range is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_streams_hold_one_chunk_each_and_end_with_their_client() {
    let (megabyte, rows, streams) = (1 << 20, 96, 100);
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    for row in 0..rows {
        put(&mut kv, format!("r{row:04}"), vec![b'v'; megabyte]).await;
    }
    let before = server.memory_bytes();
    let mut unread = vec![begun(&server).await];
    let one = server.memory_bytes().saturating_sub(before);
    assert!(one < 32 << 20, "{one} bytes more for one stream");
    for _ in 1..streams {
        unread.push(begun(&server).await);
        put(&mut kv, "w", Vec::new()).await;
    }
    // The ranges of all streams have 9.4 GiB, and the response budget has 512 MiB.
    let more = server.memory_bytes().saturating_sub(before);
    assert!(more < 400 << 20, "{more} bytes more for {streams} streams");
    // A client that reads gets all of its range meanwhile.
    let chunks = stream(&mut KvClient::new(server.channel().await), range("r", "s")).await;
    assert_eq!(chunks.unwrap().last().unwrap().count, rows);
    drop(unread);
    let count = |outcome: &str| {
        let name = format!("grpc_server_{outcome}_total{{");
        let (_, text) = server.http("GET", "/metrics", "");
        let lines = text.lines().filter(|line| line.starts_with(&name));
        let lines = lines.filter(|line| line.contains("grpc_method=\"RangeStream\""));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum::<u64>()
    };
    let begun = Instant::now();
    while count("handled") != streams + 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} have ended", count("handled"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(count("started"), streams + 1);
}

/// Writes a small key `puts` times and returns the 99th percentile of the latencies.
async fn put_latency(kv: &mut Kv, puts: usize) -> Duration {
    let mut latencies = Vec::new();
    for _ in 0..puts {
        let begun = Instant::now();
        put(kv, "w", vec![b'v'; 256]).await;
        latencies.push(begun.elapsed());
    }
    latencies.sort();
    latencies[puts * 99 / 100]
}

/// `BOWLINE_STREAM_MIB` sets the size of the range. The latencies of a writer are printed, not checked: they depend on the
/// machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_range_is_streamed_in_little_memory() {
    let rows =
        std::env::var("BOWLINE_STREAM_MIB").map_or(128, |mib| mib.parse().expect("a number"));
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    for row in 0..rows {
        put(&mut kv, format!("r{row:05}"), vec![b'v'; 1 << 20]).await;
    }
    let puts = rows * 8;
    let alone = put_latency(&mut kv, puts).await;
    let before = server.peak_memory_bytes();
    let mut reader = KvClient::new(server.channel().await);
    let (writer, mut written) = oneshot::channel::<()>();
    let reading = tokio::spawn(async move {
        let (mut streams, mut first) = (0, None);
        let begun = Instant::now();
        loop {
            let mut chunks = reader.range_stream(range("r", "s")).await.unwrap().into_inner();
            let (mut rows, mut count) = (0, 0);
            while let Some(chunk) = next(&mut chunks).await.unwrap() {
                (rows, count) = (rows + chunk.kvs.len() as i64, chunk.count);
            }
            assert_eq!(rows, count, "the stream is complete");
            streams += 1;
            first.get_or_insert_with(|| begun.elapsed());
            if written.try_recv() != Err(TryRecvError::Empty) {
                return (streams, first.expect("one stream has ended"));
            }
        }
    });
    let beside = put_latency(&mut kv, puts).await;
    drop(writer);
    let (streams, first) = reading.await.unwrap();
    let growth = server.peak_memory_growth_bytes(before);
    let report = format!(
        "{rows} MiB, {streams} streams, the first in {first:?}: {} MiB more memory; a writer's 99th percentile is \
         {alone:?} alone and {beside:?} beside the streams\n",
        growth >> 20
    );
    std::io::stderr().write_all(report.as_bytes()).unwrap();
    assert!(growth < 64 << 20, "{growth} bytes more memory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_permission_ends_a_stream_and_other_changes_of_users_do_not() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let (root, ann) = (login(&channel, "root").await.unwrap(), login(&channel, "ann").await);
    let ann = ann.unwrap();
    let mut kv = KvClient::new(channel.clone());
    for row in 0..ROWS {
        let (key, value) = (format!("app/{row:04}").into(), vec![b'v'; ROW_BYTES].into());
        kv.put(by(&ann, pb::PutRequest { key, value, ..Default::default() })).await.unwrap();
    }
    let mut auth = AuthClient::new(channel);
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut kv = KvClient::new(narrow(&server).await);
        let chunks = kv.range_stream(by(&ann, range("app/", "app0"))).await.unwrap();
        let mut chunks = chunks.into_inner();
        next(&mut chunks).await.unwrap().unwrap();
        streams.push(chunks);
    }
    let bob = pb::AuthUserDeleteRequest { name: "bob".into() };
    auth.user_delete(by(&root, bob)).await.unwrap();
    let rows = rest(&mut streams.remove(0)).await.unwrap();
    assert_eq!(rows.last().unwrap().count, ROWS as i64);
    let revoke = pb::AuthUserRevokeRoleRequest { name: "ann".into(), role: "app".into() };
    auth.user_revoke_role(by(&root, revoke)).await.unwrap();
    let status = rest(&mut streams.remove(0)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "etcdserver: permission denied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_in_mid_stream_is_an_error() {
    let server = Server::alone(&[]);
    fill(&mut KvClient::new(server.channel().await), "r").await;
    let mut kv = KvClient::new(narrow(&server).await);
    let mut request = Request::new(range("r", "s"));
    request.metadata_mut().insert("grpc-timeout", "2S".parse().unwrap());
    let mut chunks = kv.range_stream(request).await.unwrap().into_inner();
    next(&mut chunks).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let status = rest(&mut chunks).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_stream_acknowledged_writes_and_serializable_needs_no_quorum() {
    let mut servers = Server::three();
    for number in 0..30 {
        let mut at = KvClient::new(servers[number % 3].channel().await);
        put(&mut at, format!("k{number:02}"), b"v".to_vec()).await;
        for server in &servers {
            let mut kv = KvClient::new(server.channel().await);
            let chunks = stream(&mut kv, all()).await.unwrap();
            assert_eq!(merged(chunks).count, number as i64 + 1);
        }
    }
    let left = servers.pop().unwrap();
    drop(servers);
    let mut kv = KvClient::new(left.channel().await);
    let local = pb::RangeRequest { serializable: true, ..all() };
    assert_eq!(merged(stream(&mut kv, local).await.unwrap()).count, 30);
    let status = stream(&mut kv, all()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
}
