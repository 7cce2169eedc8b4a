//! Tests of gzip-compressed messages: unary calls and streams, and requests that exceed a size limit after
//! decompression.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName, TE};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use prost_reflect::DescriptorPool;
use tonic::codec::CompressionEncoding::Gzip;
use tonic::codegen::Service as _;
use tonic::transport::Channel;
use tonic::{Code, Status};

use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::Server;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Returns the encoding in the headers of a response.
fn encoding<T>(response: &tonic::Response<T>) -> Option<String> {
    let headers = response.metadata().clone().into_headers();
    headers.get(ENCODING).map(|encoding| encoding.to_str().unwrap().to_owned())
}

fn put(value: Vec<u8>) -> pb::PutRequest {
    pb::PutRequest { key: "k".into(), value: value.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_ranges_watches_and_leases_support_gzip() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let value = vec![7; 1 << 20];
    let mut kv = KvClient::new(channel.clone()).send_compressed(Gzip).accept_compressed(Gzip);
    let put = kv.put(put(value.clone())).await.unwrap();
    assert_eq!(encoding(&put).as_deref(), Some("gzip"));
    let revision = put.into_inner().header.unwrap().revision;
    let range = pb::RangeRequest { key: "k".into(), ..Default::default() };
    let range = kv.range(range).await.unwrap();
    assert_eq!(encoding(&range).as_deref(), Some("gzip"));
    assert_eq!(range.into_inner().kvs[0].value, value);

    let mut watch = WatchClient::new(channel.clone()).send_compressed(Gzip).accept_compressed(Gzip);
    let create =
        pb::WatchCreateRequest { key: "k".into(), start_revision: revision, ..Default::default() };
    let watched = watch.watch(tokio_stream::iter([create.into()])).await.unwrap();
    assert_eq!(encoding(&watched).as_deref(), Some("gzip"));
    let mut watched = watched.into_inner();
    assert!(watched.message().await.unwrap().unwrap().created);
    let events = watched.message().await.unwrap().unwrap().events;
    assert_eq!(events[0].kv.as_ref().unwrap().value, value);

    let mut leases = LeaseClient::new(channel).send_compressed(Gzip).accept_compressed(Gzip);
    leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 7 }).await.unwrap();
    let renew = pb::LeaseKeepAliveRequest { id: 7 };
    let renewed = leases.lease_keep_alive(tokio_stream::iter([renew, renew])).await.unwrap();
    assert_eq!(encoding(&renewed).as_deref(), Some("gzip"));
    let mut renewed = renewed.into_inner();
    for _ in 0..2 {
        assert_eq!(renewed.message().await.unwrap().unwrap().ttl, 60);
    }
}

/// Like Go servers: a client that accepts gzip need not send it.
#[tokio::test]
async fn replies_to_uncompressed_requests_are_uncompressed() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await).accept_compressed(Gzip);
    let put = kv.put(put(vec![7; 1 << 20])).await.unwrap();
    assert_eq!(encoding(&put), None);
}

/// Returns a truncated gzip file of zeros, in which every 13 bits expand to 258 bytes.
fn zeros(compressed_bytes: usize) -> Vec<u8> {
    let mut file = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let (mut bits, mut count) = (0_u64, 0);
    let mut write = |value: u64, length: u32| {
        bits |= value << count;
        count += length;
        while count >= 8 {
            file.push(bits as u8);
            (bits, count) = (bits >> 8, count - 8);
        }
        file.len()
    };
    // The last block uses the fixed codes: one zero byte, followed by copies of 258 bytes from a distance of 1.
    write(0b011, 3);
    write(0b0000_1100, 8);
    while write(0b1010_0011, 8) + 2 < compressed_bytes {
        write(0, 5);
    }
    file
}

/// Sends one compressed message to a method, ends the request, and returns the status.
async fn send(mut channel: Channel, path: String, message: &[u8]) -> Status {
    let mut frame = BytesMut::new();
    frame.put_u8(1);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    let body = tonic::body::Body::new(Full::<Bytes>::new(frame.freeze()));
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().unwrap();
    let headers: [(HeaderName, &str); 3] =
        [(CONTENT_TYPE, "application/grpc"), (TE, "trailers"), (ENCODING, "gzip")];
    let headers = headers.map(|(name, value)| (name, value.parse().unwrap()));
    request.headers_mut().extend(HeaderMap::from_iter(headers));
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = channel.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
    let status = Status::from_header_map(&head.headers);
    status.or_else(|| Status::from_header_map(&trailers)).expect(&path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compression_bombs_are_rejected_by_every_method_in_bounded_memory() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let pool = DescriptorPool::decode(bowline_proto::DESCRIPTORS);
    let mut methods = 0;
    for service in pool.unwrap().services() {
        for method in service.methods() {
            let path = format!("/{}/{}", service.full_name(), method.name());
            // The compressed message is below the limit, and the decompressed message is above it.
            let (bytes, max) = match path.as_str() {
                "/etcdserverpb.Auth/Authenticate" => (1 << 10, 16 << 10),
                "/etcdserverpb.Auth/AuthStatus" => (1 << 10, 4 << 10),
                _ if path.starts_with("/grpc.health") => (1 << 10, 4 << 10),
                "/etcdserverpb.Watch/Watch" | "/v3electionpb.Election/Observe" => {
                    (8 << 10, 256 << 10)
                }
                _ if path.starts_with("/etcdserverpb.Lease/") => (8 << 10, 256 << 10),
                _ => (40 << 10, 2_097_152),
            };
            let refused = send(channel.clone(), path.clone(), &zeros(bytes)).await;
            let words = format!("grpc: received message after decompression larger than max {max}");
            assert_eq!(
                (refused.code(), refused.message()),
                (Code::ResourceExhausted, &*words),
                "{path}"
            );
            methods += 1;
        }
    }
    assert!(methods > 40, "{methods}");
    // If the server accepted these messages, each would take 300 MB of memory.
    let before = server.peak_memory_bytes();
    let bomb: Bytes = zeros(2 << 20).into();
    let mut sent = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (channel, bomb) = (channel.clone(), bomb.clone());
        sent.spawn(async move { send(channel, "/etcdserverpb.KV/Put".into(), &bomb).await });
    }
    for refused in sent.join_all().await {
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    }
    let more = server.peak_memory_growth_bytes(before);
    assert!(more < 128 << 20, "{more} bytes more");
}

/// A stream keeps the memory of its largest message. Small messages must not become large ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_compressed_streams_keep_little_memory() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let before = server.peak_memory_bytes();
    let mut streams = Vec::new();
    for _ in 0..300 {
        // The key has 200 KB, and takes about a hundred bytes on the wire.
        let create = pb::WatchCreateRequest { key: vec![7; 200_000].into(), ..Default::default() };
        let mut client = WatchClient::new(channel.clone()).send_compressed(Gzip);
        let (sender, requests) = tokio::sync::mpsc::channel(1);
        sender.send(create.into()).await.unwrap();
        let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
        let mut watched = client.watch(requests).await.unwrap().into_inner();
        assert!(watched.message().await.unwrap().unwrap().created);
        streams.push((sender, watched));
    }
    let each = server.peak_memory_growth_bytes(before) / streams.len() as u64;
    assert!(each < 1 << 20, "{each} bytes a stream");
}
