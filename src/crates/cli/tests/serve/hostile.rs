//! Tests with hostile clients, which send garbage, send too much, or hold idle connections. The server then still
//! serves its other clients, keeps its memory and its file descriptors bounded, and shuts down cleanly.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use prost::Message;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::task::JoinHandle;
use tonic::codegen::Service as _;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::auth::{CHEAP, Raw, by, guarded, login};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::grpc::health::v1::HealthCheckRequest;
use bowline_proto::grpc::health::v1::health_client::HealthClient;
use bowline_testkit::process::{Server, SingleMember, flags, free_ports, http, http_with, skip};
use pb::kv_client::KvClient;
use pb::watch_client::WatchClient;

/// How soon a put must be answered under any load. The machine may be busy with other tests.
const IN_TIME: Duration = Duration::from_secs(20);

/// How many bytes of memory the server may keep afterwards: allocators do not return all of it.
const LEFT_MAX: u64 = 96 << 20;

/// The HTTP/2 preface and an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A generator of pseudo-random numbers that are the same in every run: splitmix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn bytes(&mut self, length_max: u64) -> Vec<u8> {
        let length = self.below(length_max);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

async fn put(channel: &Channel, value: Vec<u8>) -> Result<(), Status> {
    let request = pb::PutRequest { key: "k".into(), value: value.into(), ..Default::default() };
    KvClient::new(channel.clone()).put(request).await.map(drop)
}

/// Checks that a put is answered in time.
async fn answers(channel: &Channel) {
    let put = tokio::time::timeout(IN_TIME, put(channel, b"v".to_vec()));
    put.await.expect("in time").expect("answered");
}

/// Sends bytes, closes the sending side, and returns what the server sends.
fn say(address: &str, words: &[u8]) -> Vec<u8> {
    let Ok(mut stream) = TcpStream::connect(address) else { return Vec::new() };
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server may close the connection while the bytes are sent.
    if stream.write_all(words).is_ok() {
        stream.shutdown(std::net::Shutdown::Write).ok();
    }
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_ne!(
            error.kind(),
            std::io::ErrorKind::WouldBlock,
            "no response, and the connection stays open: {words:?}"
        );
    }
    answer
}

/// Stops the server, and checks that it stops cleanly and has logged no errors.
fn is_well(server: Server) {
    let (status, text) = server.stop();
    assert!(status.success(), "{text}");
    for word in ["panicked", "overflow", "ERROR"] {
        assert!(!text.contains(word), "{word:?} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_only_its_own_connection() {
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let server = Server::start(&flags(0, &[peer], client, dir.path()), client, &[]).ready();
    let channel = server.channel().await;
    answers(&channel).await;
    let before = (server.memory_bytes(), server.descriptors());
    let begins: [&[u8]; 8] = [
        b"",
        HTTP2,
        b"PRI * HTTP/2.0\r\n",
        b"POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nContent-Length: 4096\r\n\r\n",
        b"POST /v3/watch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /",
        b"\x16\x03\x01",
        // The bytes contain a HEADERS frame on stream 1.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x40\x01\x05\0\0\0\x01",
    ];
    let address = server.address.clone();
    let peer = format!("127.0.0.1:{peer}");
    let speaking = tokio::task::spawn_blocking(move || {
        let mut dice = Dice(20_261_122);
        for round in 0..160 {
            let begin = begins[round % begins.len()];
            let words = [begin, &dice.bytes(4096)].concat();
            say(&address, &words);
            say(&peer, &words);
        }
    });
    speaking.await.unwrap();
    answers(&channel).await;
    // Random bytes are sent as messages of every method, in valid frames.
    let mut dice = Dice(7);
    let pool = prost_reflect::DescriptorPool::decode(bowline_proto::DESCRIPTORS);
    for service in pool.unwrap().services() {
        for method in service.methods() {
            // These methods would stop the server or change its configuration.
            if ["Snapshot", "Defragment", "AuthEnable"].contains(&method.name()) {
                continue;
            }
            let path = format!("/{}/{}", service.full_name(), method.name());
            for _ in 0..4 {
                let mut grpc = tonic::client::Grpc::new(channel.clone());
                grpc.ready().await.unwrap();
                let message = Bytes::from(dice.bytes(200));
                let asked = by("", tokio_stream::once(message));
                let received = async {
                    let answers = grpc.streaming(asked, path.parse().unwrap(), Raw).await?;
                    answers.into_inner().message().await
                };
                // Any response is acceptable, including none.
                drop(tokio::time::timeout(Duration::from_millis(300), received).await);
            }
        }
    }
    answers(&channel).await;
    let (bytes, descriptors) = (server.memory_bytes(), server.descriptors());
    assert!(bytes < before.0 + LEFT_MAX, "{bytes} bytes, before {}", before.0);
    assert!(descriptors < before.1 + 32, "{descriptors} descriptors, before {}", before.1);
    is_well(server);
}

/// Encodes nested transactions as protobuf bytes: from the innermost outwards, because no library would encode them.
fn nested_txn(depth: usize) -> Bytes {
    let put = pb::PutRequest { key: "n".into(), ..Default::default() };
    let inner = pb::TxnRequest { success: vec![put.into()], ..Default::default() };
    let mut bytes = Bytes::from(inner.encode_to_vec());
    let field = |tag: u8, inside: &[u8]| {
        let mut field = BytesMut::new();
        field.put_u8(tag << 3 | 2);
        prost::encode_length_delimiter(inside.len(), &mut field).unwrap();
        field.put_slice(inside);
        field.freeze()
    };
    for _ in 1..depth {
        // The field `success` of a transaction contains an operation that is a transaction.
        bytes = field(2, &field(4, &bytes));
    }
    bytes
}

async fn transact(channel: &Channel, message: Bytes) -> Result<Bytes, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = "/etcdserverpb.KV/Txn".parse().unwrap();
    Ok(grpc.unary(by("", message), path, Raw).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_nesting_is_rejected_in_protobuf_and_json() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    for depth in [1, 2, 16] {
        transact(&channel, nested_txn(depth)).await.unwrap();
    }
    for depth in [17, 33, 49, 50, 51, 99, 100, 101, 1000, 10_000] {
        let refused = transact(&channel, nested_txn(depth)).await.unwrap_err();
        let codes = [Code::InvalidArgument, Code::Internal];
        assert!(codes.contains(&refused.code()), "{depth} deep: {refused:?}");
    }
    let transaction = |depth: usize| {
        let (begin, end) = (r#"{"success":[{"request_txn":"#, "}]}");
        format!("{}{{}}{}", begin.repeat(depth - 1), end.repeat(depth - 1))
    };
    let answer = |body: &str| {
        let (code, mut answer) = http(&server.address, "POST", "/v3/kv/txn", body);
        (code, answer.text())
    };
    for depth in [1, 2, 16] {
        let (code, text) = answer(&transaction(depth));
        assert_eq!(code, 200, "{depth} deep: {text}");
    }
    for depth in [17, 42, 43, 100, 10_000] {
        let (code, text) = answer(&transaction(depth));
        assert_eq!(code, 400, "{depth} deep: {text}");
    }
    let lists = "[".repeat(100_000);
    let objects = r#"{"a":"#.repeat(100_000);
    let unknown = format!(r#"{{"unknown":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    for (body, expected) in [(&lists, 400), (&objects, 400), (&unknown, 200)] {
        let (code, text) = answer(body);
        assert_eq!(code, expected, "{}: {text}", &body[..20]);
    }
    answers(&channel).await;
    is_well(server);
}

/// Sends a gRPC message whose frame header is written by hand, and may be wrong.
async fn framed(channel: &Channel, message: Vec<u8>) -> Result<(), Status> {
    put(channel, message).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_requests_are_rejected_before_they_use_memory() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    framed(&channel, vec![1; 1_500_000]).await.unwrap();
    let before = server.memory_bytes();
    let refused = framed(&channel, vec![1; 1_600_000]).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: request is too large");
    for bytes in [2_200_000, 8 << 20, 64 << 20] {
        let refused = framed(&channel, vec![1; bytes]).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(refused.message().starts_with("grpc: received message larger than max"));
    }
    // The requests have more operations, keys and members than the limits allow.
    let ops = vec![pb::PutRequest::default().into(); 129];
    let many = pb::TxnRequest { success: ops, ..Default::default() };
    let refused = KvClient::new(channel.clone()).txn(many).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: too many operations in txn request");
    // The JSON is too long by its declared length, or too long by its content, or has no end.
    let post = |head: &str, body: &[u8]| {
        let head =
            format!("POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n");
        let answer = say(&server.address, &[head.as_bytes(), body].concat());
        String::from_utf8_lossy(&answer).into_owned()
    };
    let large = vec![b' '; 6 << 20];
    let answer = post(&format!("Content-Length: {}", large.len()), &large);
    assert!(answer.contains("429") || answer.is_empty(), "{answer}");
    let chunk = [format!("{:x}\r\n", large.len()).as_bytes(), &large, b"\r\n"].concat();
    let answer = post("Transfer-Encoding: chunked", &chunk);
    assert!(answer.contains("429") || answer.is_empty(), "{answer}");
    for length in ["-1", "18446744073709551616", "99999999999999999999999", "1, 2", "0x10"] {
        let answer = post(&format!("Content-Length: {length}"), b"{}");
        assert!(answer.starts_with("HTTP/1.1 400"), "{length}: {answer}");
    }
    answers(&channel).await;
    let after = server.memory_bytes();
    assert!(after < before + LEFT_MAX, "{after} bytes, before {before}");
    is_well(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absurd_headers_are_rejected_or_ignored() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let ask = |line: &str, headers: &str| {
        let request = format!("{line}\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        String::from_utf8_lossy(&say(&server.address, request.as_bytes())).into_owned()
    };
    let many: String = (0..5000).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(2 << 20));
    let long_line = format!("GET /{} HTTP/1.1", "y".repeat(2 << 20));
    for answer in [
        ask("GET /health HTTP/1.1", &many),
        ask("GET /health HTTP/1.1", &long),
        ask(&long_line, ""),
        ask("GET /health HTTP/9.9", ""),
        ask("GET /health HTTP/1.1", "Content-Length: 1\r\nContent-Length: 2\r\n"),
        ask("GET /health HTTP/1.1", "a b: c\r\n"),
    ] {
        let refused = ["HTTP/1.1 400", "HTTP/1.1 414", "HTTP/1.1 431"];
        let is_refused = refused.iter().any(|code| answer.starts_with(code)) || answer.is_empty();
        assert!(is_refused, "{answer}");
    }
    for path in ["/../../etc/passwd", "//", "/%00", "/v3/../v3/kv/put", "/v3/kv/put/../range", "*"]
    {
        let answer = ask(&format!("GET {path} HTTP/1.1"), "");
        assert!(!answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    // The same requests are sent over HTTP/2.
    let request = |name: &'static str, value: String| {
        let mut request = by("", pb::RangeRequest { key: "k".into(), ..Default::default() });
        request.metadata_mut().insert(name, value.parse().unwrap());
        request
    };
    let mut kv = KvClient::new(channel.clone());
    for (name, value) in [
        ("token", "x".repeat(8 << 10)),
        ("grpc-timeout", "99999999999999999H".to_owned()),
        ("grpc-timeout", "-1S".to_owned()),
        ("hasleader", "maybe".to_owned()),
        ("grpc-encoding", "gzip".to_owned()),
        ("grpc-encoding", "nonsense".to_owned()),
    ] {
        // Any answer is acceptable.
        let answered = tokio::time::timeout(IN_TIME, kv.range(request(name, value))).await;
        drop(answered.unwrap_or_else(|_| panic!("no response to {name}")));
    }
    let refused = kv.range(request("x", "y".repeat(1 << 20))).await;
    assert!(refused.is_err(), "{refused:?}");
    let other = server.channel().await;
    answers(&other).await;
    is_well(server);
}

/// A JSON stream request that arrives one byte at a time: a parser that restarts with each byte would take quadratic
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dripping_json_request_costs_linear_time() {
    let server = Server::alone(&[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let head = "POST /v3/watch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    // Any amount of white space may precede a request. It is not buffered.
    let space = [b' '; 64 << 10];
    for _ in 0..64 {
        write!(stream, "{:x}\r\n", space.len()).unwrap();
        stream.write_all(&space).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    let begin = r#"{"create_request":{"key":"","nobody":["#;
    write!(stream, "{:x}\r\n{begin}\r\n", begin.len()).unwrap();
    let before = server.worked();
    for _ in 0..60_000 {
        stream.write_all(b"4\r\n0,0,\r\n").unwrap();
    }
    // A response shows that the whole request was read.
    let end = "0]}}";
    write!(stream, "{:x}\r\n{end}\r\n", end.len()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 200"));
    let took = server.worked().saturating_sub(before);
    assert!(took < Duration::from_secs(20), "{took:?} of CPU time");
    drop(stream);
    is_well(server);
}

/// An incomplete gRPC message: its length prefix, and only some of the bytes.
struct Half {
    begin: Option<Bytes>,
}

impl Half {
    /// Returns a message that declares `declared` bytes and sends only `sends`.
    fn of(declared: u32, sends: usize) -> Self {
        let mut begin = BytesMut::new();
        begin.put_u8(0);
        begin.put_u32(declared);
        begin.put_bytes(1, sends);
        Self { begin: Some(begin.freeze()) }
    }
}

impl HttpBody for Half {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.begin.take().map_or(Poll::Pending, |begin| Poll::Ready(Some(Ok(Frame::data(begin)))))
    }
}

/// Begins a call with an incomplete message. The task returns the response's status, if there is one.
fn half(channel: &Channel, path: &'static str, body: Half) -> JoinHandle<Option<Status>> {
    let mut channel = channel.clone();
    tokio::spawn(async move {
        poll_fn(|context| channel.poll_ready(context)).await.ok()?;
        let request = ::http::Request::post(path).header("content-type", "application/grpc");
        let request = request.header("te", "trailers").body(tonic::body::Body::new(body)).unwrap();
        let response = channel.call(request).await.ok()?;
        Status::from_header_map(response.headers())
    })
}

/// Methods that need no token while authentication is enabled must be cheap, however many calls are begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_logins_and_unread_health_watches_are_cheap() {
    let many = 400;
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let is_answered = async || {
        let request = pb::PutRequest { key: "k".into(), ..Default::default() };
        let mut kv = KvClient::new(channel.clone());
        let put = tokio::time::timeout(IN_TIME, kv.put(by(&root, request)));
        put.await.expect("in time").expect("answered");
    };
    is_answered().await;
    let before = server.memory_bytes();
    let path = "/etcdserverpb.Auth/Authenticate";
    let hostile = server.channel().await;
    // The bodies are much too long, so all of them are rejected by their declared length.
    let begin = |_| half(&hostile, path, Half::of(2_000_000, 1 << 20));
    for call in (0..many).map(begin).collect::<Vec<_>>() {
        let refused = tokio::time::timeout(IN_TIME * 4, call)
            .await
            .expect("rejected without waiting for the rest");
        if let Some(refused) = refused.unwrap() {
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        }
    }
    // The declared lengths are allowed. The server waits for the rest of some bodies, and rejects the other requests.
    let begin = |_| half(&hostile, path, Half::of(16_000, 8_000));
    let calls: Vec<_> = (0..many).map(begin).collect();
    let begun = Instant::now();
    while calls.iter().filter(|call| !call.is_finished()).count() > 128 {
        assert!(begun.elapsed() < IN_TIME * 4, "the server waits for all of them");
        is_answered().await;
    }
    // The watches are on a separate connection, apart from the calls above.
    let watches = server.channel().await;
    let mut watching = Vec::new();
    for _ in 0..many {
        let mut health = HealthClient::new(watches.clone());
        match health.watch(HealthCheckRequest::default()).await {
            Ok(health) => watching.push(health.into_inner()),
            Err(refused) => assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}"),
        }
    }
    assert_eq!(watching.len(), 128);
    for health in &mut watching {
        let health = tokio::time::timeout(IN_TIME, health.message()).await.expect("in time");
        assert_eq!(health.unwrap().unwrap().status, 1);
    }
    is_answered().await;
    let during = server.memory_bytes();
    assert!(during < before + LEFT_MAX, "{during} bytes, before {before}");
    // When clients disconnect, further clients are accepted in their place.
    drop(watching);
    let begun = Instant::now();
    while HealthClient::new(watches.clone()).watch(HealthCheckRequest::default()).await.is_err() {
        assert!(begun.elapsed() < IN_TIME * 4, "no place has become free");
    }
    login(&server.channel().await, "ann").await.unwrap();
    for call in calls {
        call.abort();
    }
    drop((hostile, watches));
    is_well(server);
}

/// Raises the limit of file descriptors of this process to the hard limit, and returns it.
fn raise_descriptors() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).ok();
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize)
}

/// Opens idle connections, waits until all are accepted, and closes them. Returns the server's memory while they are
/// open.
async fn idle(server: &Server, count: usize) -> u64 {
    let before = server.descriptors();
    let address = server.address.clone();
    let connecting = tokio::task::spawn_blocking(move || {
        let connect = |_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(HTTP2).unwrap();
            // The server's SETTINGS frame shows that the connection is accepted.
            stream.read_exact(&mut [0; 9]).unwrap();
            stream
        };
        (0..count).map(connect).collect::<Vec<_>>()
    });
    let idle = connecting.await.unwrap();
    assert!(server.descriptors() >= count, "all connections are open");
    let channel = server.channel().await;
    answers(&channel).await;
    let during = server.memory_bytes();
    drop(idle);
    let begun = Instant::now();
    while server.descriptors() > before + 32 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} descriptors", server.descriptors());
        answers(&channel).await;
    }
    during
}

/// Ten thousand connections, if there are enough file descriptors. The allocator keeps the memory of the first batch in
/// fragments, so the second batch may need a part of it again. If the server leaked connections, the second batch would
/// need as much again, or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_cheap_and_leave_no_memory() {
    let wanted = 10_000;
    let server = Server::alone(&[]);
    answers(&server.channel().await).await;
    let before = server.memory_bytes();
    // Other tests of this process need file descriptors too, and so does the server.
    let count = raise_descriptors().saturating_sub(2048).min(wanted);
    if count < 100 {
        skip(&format!("only {count} descriptors are left for idle connections: see ulimit -Hn"));
        return;
    }
    if count < wanted {
        // Written to standard error directly, because the test harness captures `eprintln!`.
        let words = format!("SHORT: {count} idle connections and not {wanted}: see ulimit -Hn");
        drop(writeln!(std::io::stderr(), "{words}"));
    }
    let first = idle(&server, count).await;
    let each = first.saturating_sub(before) / count as u64;
    assert!(each < 48 << 10, "{each} bytes for each");
    let others = count / 2;
    let second = idle(&server, others).await;
    let grown = second.saturating_sub(first) / others as u64;
    assert!(grown < each, "{each} bytes for each, and {grown} for each of the second batch");
    is_well(server);
}

/// In JSON over HTTP/1, a stream's requests and responses share a connection, and only the side that writes notices
/// that the client has disconnected.
#[test]
fn client_that_disconnects_mid_request_leaves_nothing() {
    let server = Server::alone(&[]);
    let before = server.descriptors();
    let begins: [&[u8]; 4] = [b"", b"2\r\n{}\r\n", b"9\r\n{\"create", b"'\x82\r\n"];
    for path in ["/v3/watch", "/v3/lease/keepalive", "/v3/kv/put", "/v3/election/observe"] {
        for begin in begins.iter().cycle().take(40) {
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut stream = TcpStream::connect(&server.address).unwrap();
            stream.write_all(&[head.as_bytes(), begin].concat()).unwrap();
            if path == "/v3/watch" {
                // The response shows that the call has begun.
                stream.read_exact(&mut [0; 12]).unwrap();
            }
        }
    }
    let begun = Instant::now();
    while server.descriptors() > before + 4 {
        let open = server.descriptors();
        assert!(begun.elapsed() < Duration::from_secs(60), "{open} descriptors, before {before}");
        std::thread::sleep(Duration::from_millis(20));
    }
    is_well(server);
}

/// A byte after a request belongs to the next request, which is not read before the first request is answered. The
/// first requests here are never answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_disconnects_with_unread_bytes_leaves_nothing() {
    let server = Server::alone(&[]);
    let lock = |lease: u64| format!(r#"{{"name":"bQ==","lease":"{lease}"}}"#);
    let campaign = |lease: u64| format!(r#"{{"name":"bQ==","lease":"{lease}","value":"dg=="}}"#);
    for lease in 1..=9 {
        let grant = format!(r#"{{"ID":"{lease}","TTL":"600"}}"#);
        assert_eq!(server.http("POST", "/v3/lease/grant", &grant).0, 200);
    }
    assert_eq!(server.http("POST", "/v3/lock/lock", &lock(1)).0, 200);
    let before = server.sockets();
    let mut gone = Vec::new();
    for (at, kind) in ["json", "json", "json", "grpc"].iter().cycle().take(16).enumerate() {
        // Lock and campaign calls that wait come in pairs of the same lease.
        let (path, body) = match at % 4 {
            0 if at < 8 => ("/v3/lock/lock", lock(2 + at as u64)),
            0 => ("/v3/watch", "{}".to_owned()),
            1 if at < 8 => ("/v3/election/campaign", campaign(2 + at as u64)),
            1 => ("/v3/watch", r#"{"create_request":{"key":"Zm9v"}}"#.to_owned()),
            2 => ("/v3/election/observe", r#"{"name":"bm9uZQ=="}"#.to_owned()),
            _ => ("/etcdserverpb.Watch/Watch", "\0\0\0\0\0".to_owned()),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/{kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(&server.address).unwrap();
        // Some clients send more than the server reads.
        let unread = if at % 2 == 0 { "X".to_owned() } else { "GET / HTTP/1.1\r\n".repeat(1000) };
        stream.write_all(&[head, body, unread].concat().into_bytes()).unwrap();
        gone.push(stream);
    }
    let in_line = || {
        let range = r#"{"key":"bS8=","range_end":"bTA=","count_only":true}"#;
        let (code, answer) = server.http("POST", "/v3/kv/range", range);
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).unwrap()["count"].as_str().unwrap().to_owned()
    };
    let begun = Instant::now();
    while in_line() != "5" {
        assert!(begun.elapsed() < IN_TIME, "{} in the queue", in_line());
    }
    drop(gone);
    let begun = Instant::now();
    while server.sockets() > before || in_line() != "1" {
        let (open, in_line) = (server.sockets(), in_line());
        assert!(begun.elapsed() < IN_TIME * 3, "{open} sockets, before {before}; {in_line}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_well(server);
}

/// After a pause that is longer than its clients' timeouts, a server finds calls that were cancelled before it read
/// them. That is no reason to close the connection and with it all other calls.
#[test]
fn canceled_unread_calls_do_not_end_the_connection() {
    let server = Server::alone(&[]);
    let mut words = HTTP2.to_vec();
    for call in 0..500u32 {
        let stream = (2 * call + 1).to_be_bytes();
        // The bytes are the headers of `GET /` in HPACK's short form, followed by RST_STREAM.
        words.extend([&[0, 0, 3, 1, 4], &stream[..], &[0x82, 0x86, 0x84]].concat());
        words.extend([&[0, 0, 4, 3, 0], &stream[..], &8u32.to_be_bytes()].concat());
    }
    words.extend(b"\0\0\x08\x06\0\0\0\0\0are you?");
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(&words).unwrap();
    let answer = loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("the connection is open");
        let mut frame = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut frame).unwrap();
        assert_ne!(head[3], 7, "GOAWAY: {}", String::from_utf8_lossy(&frame));
        if head[3] == 6 {
            break frame;
        }
    };
    assert_eq!(answer, b"are you?");
    drop(stream);
    is_well(server);
}

/// Starts a server with a limit of 256 file descriptors, half of which are for client connections.
fn with_few_descriptors() -> Server {
    let member = SingleMember::prepare();
    let mut command = Command::new("sh");
    let words = "ulimit -n 256 && exec \"$0\" serve \"$@\"";
    command.args(["-c", words, env!("CARGO_BIN_EXE_bowline")]);
    command.args(&member.flags);
    Server::run(command, member.client).ready().owning(member.dir)
}

/// A silent connection keeps its place until an active client needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_yield_their_slot_to_active_ones() {
    let server = with_few_descriptors();
    let silent: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    answers(&server.channel().await).await;
    drop(silent);
    let (status, text) = server.stop();
    assert!(status.success(), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_never_get_the_last_file_descriptors() {
    let server = with_few_descriptors();
    let channel = server.channel().await;
    answers(&channel).await;
    let mut idle = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(HTTP2).ok();
        idle.push(stream);
    }
    let mut let_in = 0;
    for stream in &mut idle {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let_in += usize::from(stream.read_exact(&mut [0; 9]).is_ok());
    }
    // The expected number is half of the limit, minus the channel's own connection.
    assert_eq!(let_in, 127);
    assert!(server.descriptors() < 200, "{} descriptors", server.descriptors());
    answers(&channel).await;
    drop(idle);
    let begun = Instant::now();
    loop {
        let endpoint = Channel::from_shared(format!("http://{}", server.address)).unwrap();
        let asked = async { put(&endpoint.connect().await.ok()?, Vec::new()).await.ok() };
        match tokio::time::timeout(IN_TIME, asked).await {
            Ok(Some(())) => break,
            _ => assert!(
                begun.elapsed() < Duration::from_secs(30),
                "new connections are not accepted any more"
            ),
        }
    }
    let (status, text) = server.stop();
    assert!(status.success() && text.contains("no connection slots left"), "{text}");
}

/// Each progress request concerns all watches of the stream, and the client sends many at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_progress_requests_do_not_slow_other_clients() {
    let (watches, asks) = (200, 100_000);
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    // The flow-control window has room for all responses: a server that cannot send does not read requests either.
    let roomy = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let roomy = roomy.initial_stream_window_size(64 << 20).initial_connection_window_size(64 << 20);
    let (requests, receiver) = tokio::sync::mpsc::channel(1024);
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut watch = WatchClient::new(roomy.connect().await.unwrap());
    let mut received = watch.watch(stream).await.unwrap().into_inner();
    let create =
        || pb::WatchRequest::from(pb::WatchCreateRequest { key: "w".into(), ..Default::default() });
    for _ in 0..watches {
        requests.send(create()).await.unwrap();
        assert!(received.message().await.unwrap().unwrap().created);
    }
    let before = server.memory_bytes();
    let flood = tokio::spawn(async move {
        for _ in 0..asks {
            requests.send(pb::WatchProgressRequest {}.into()).await.unwrap();
        }
        // The metric for this watch shows that all requests before it were read.
        requests.send(create()).await.unwrap();
        requests
    });
    let all = format!("etcd_debugging_mvcc_watcher_total {}", watches + 1);
    let begun = Instant::now();
    loop {
        answers(&channel).await;
        let bytes = server.memory_bytes();
        assert!(bytes < before + LEFT_MAX, "{bytes} bytes, before {before}");
        if server.http("GET", "/metrics", "").1.contains(&all) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "the requests are not read");
    }
    // A client that finally reads gets its responses.
    let requests = flood.await.unwrap();
    let received = async {
        let (mut created, mut progress) = (false, 0u32);
        while !created || progress == 0 {
            let response = received.message().await.unwrap().unwrap();
            created |= response.created;
            progress += u32::from(response.watch_id == -1);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), received).await.expect("in time");
    drop(requests);
    is_well(server);
}

/// JSON values of every kind where another kind is expected: each is the client's error, never an internal error.
#[test]
fn json_of_the_wrong_type_is_a_client_error() {
    let server = Server::alone(&[]);
    let strange: [Value; 8] = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!("text"),
        json!([[]]),
        json!({"a": {}}),
        json!("\u{0}\u{ffff}"),
    ];
    for field in ["key", "range_end", "limit", "revision", "sort_order", "serializable"] {
        for value in &strange {
            let body = json!({ "key": "Zm9v", field: value }).to_string();
            let (code, mut answer) =
                http_with(&server.address, "POST", "/v3/kv/range", "Grpc-Metadata-X: y\r\n", &body);
            let text = answer.text();
            assert!([200, 400].contains(&code), "{body}: {code} {text}");
        }
    }
    is_well(server);
}

/// A range of all keys, requested on many streams and never read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_large_responses_stay_within_the_response_budget() {
    let (rows, streams) = (48, 30);
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    for row in 0..rows {
        let put = pb::PutRequest {
            key: format!("r{row}").into(),
            value: vec![b'v'; 1 << 20].into(),
            ..Default::default()
        };
        KvClient::new(channel.clone()).put(put).await.unwrap();
    }
    let all = || pb::RangeRequest { key: "r".into(), range_end: "s".into(), ..Default::default() };
    let reads_all = async || {
        let mut kv = KvClient::new(server.channel().await).max_decoding_message_size(usize::MAX);
        let read = kv.range(all()).await?.into_inner();
        assert_eq!(read.kvs.len(), rows);
        Ok::<_, Status>(())
    };
    reads_all().await.unwrap();
    let before = server.memory_bytes();
    // The client reads only the beginning of each response.
    let narrow = Channel::from_shared(format!("http://{}", server.address)).unwrap();
    let narrow =
        narrow.initial_stream_window_size(64 << 10).initial_connection_window_size(8 << 20);
    let narrow = narrow.connect().await.unwrap();
    let ask = |_| {
        let mut grpc = tonic::client::Grpc::new(narrow.clone());
        tokio::spawn(async move {
            grpc.ready().await.unwrap();
            let path = "/etcdserverpb.KV/Range".parse().unwrap();
            let message = Bytes::from(all().encode_to_vec());
            grpc.streaming(by("", tokio_stream::once(message)), path, Raw).await
        })
    };
    let asked: Vec<_> = (0..streams).map(ask).collect();
    let mut unread = Vec::new();
    for asked in asked {
        answers(&channel).await;
        match asked.await.unwrap() {
            Ok(answer) => unread.push(answer),
            Err(refused) => assert_eq!(refused.message(), "etcdserver: too many requests"),
        }
    }
    // The unread responses have 512 MiB in total.
    assert_eq!(unread.len(), 512 / rows);
    let during = server.memory_bytes();
    assert!(during < before + (640 << 20) + LEFT_MAX, "{during} bytes, before {before}");
    // The next request must wait until some of the unread responses are dropped.
    let (waits, ()) = tokio::join!(reads_all(), async {
        answers(&channel).await;
        unread.truncate(unread.len() / 2);
    });
    waits.unwrap();
    drop(unread);
    // The JSON gateway must behave in the same way.
    for _ in 0..2 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let body = r#"{"key":"cg==","range_end":"cw=="}"#;
        let length = body.len();
        write!(
            stream,
            "POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        assert_eq!(&begin, b"HTTP/1.1 200");
    }
    reads_all().await.unwrap();
    is_well(server);
}
