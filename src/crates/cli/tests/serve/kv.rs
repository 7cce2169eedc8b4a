//! Tests of keys: ranges, puts, deletes, transactions and compaction. Also tests of starting and stopping a server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tempfile::tempdir;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::requests::all;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, SingleMember, bowline, free_ports};
use pb::compare::{CompareResult, TargetUnion};
use pb::kv_client::KvClient;
use pb::response_op::Response;
use pb::watch_client::WatchClient;

type Kv = KvClient<Channel>;

async fn put(kv: &mut Kv, key: &'static str, value: &'static str) -> pb::PutResponse {
    let request = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
    kv.put(request).await.unwrap().into_inner()
}

fn keys(reply: &pb::RangeResponse) -> Vec<&str> {
    reply.kvs.iter().map(|row| std::str::from_utf8(&row.key).unwrap()).collect()
}

fn assert_error<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &str) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, words));
}

#[tokio::test]
async fn puts_reads_and_deletes_have_the_revisions_of_etcd() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    let empty = kv.range(all()).await.unwrap().into_inner();
    let header = empty.header.unwrap();
    assert_eq!((header.revision, empty.count), (1, 0));
    assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term != 0);

    assert_eq!(put(&mut kv, "a", "1").await.header.unwrap().revision, 2);
    put(&mut kv, "a", "2").await;
    put(&mut kv, "b", "3").await;
    let rows = kv.range(all()).await.unwrap().into_inner();
    assert_eq!((keys(&rows), rows.count, rows.more), (vec!["a", "b"], 2, false));
    let a = &rows.kvs[0];
    assert_eq!((a.create_revision, a.mod_revision, a.version), (2, 3, 2));

    let limited = pb::RangeRequest { limit: 1, keys_only: true, ..all() };
    let rows = kv.range(limited).await.unwrap().into_inner();
    assert_eq!((keys(&rows), rows.count, rows.more), (vec!["a"], 2, true));
    assert!(rows.kvs[0].value.is_empty());
    let descending =
        pb::RangeRequest { sort_order: 2, sort_target: 3, serializable: true, ..all() };
    let rows = kv.range(descending).await.unwrap().into_inner();
    assert_eq!(keys(&rows), ["b", "a"]);
    let bounded = pb::RangeRequest { max_create_revision: 2, limit: -1, revision: -1, ..all() };
    let rows = kv.range(bounded).await.unwrap().into_inner();
    assert_eq!((keys(&rows), rows.count), (vec!["a"], 2));
    let past = pb::RangeRequest { revision: 2, ..all() };
    let rows = kv.range(past).await.unwrap().into_inner();
    assert_eq!((keys(&rows), &rows.kvs[0].value[..]), (vec!["a"], &b"1"[..]));
    assert_eq!(rows.header.unwrap().revision, 4, "the revision of the store, not of the request");

    let delete = pb::DeleteRangeRequest { key: "a".into(), prev_kv: true, ..Default::default() };
    let deleted = kv.delete_range(delete.clone()).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, &deleted.prev_kvs[0].value[..]), (1, &b"2"[..]));
    let nothing = kv.delete_range(delete).await.unwrap().into_inner();
    assert_eq!((nothing.deleted, nothing.header.unwrap().revision), (0, 5));
}

#[tokio::test]
async fn rejections_have_the_codes_and_texts_of_etcd() {
    let server = Server::alone(&["--max-request-bytes=4096"]);
    let mut kv = KvClient::new(server.channel().await);
    put(&mut kv, "k", "1").await;
    put(&mut kv, "k", "2").await;
    use Code::*;
    let range = |change: fn(&mut pb::RangeRequest)| {
        let mut request = all();
        change(&mut request);
        request
    };
    let asks = [
        (range(|r| r.key.clear()), InvalidArgument, "etcdserver: key is not provided"),
        (range(|r| r.sort_order = 7), InvalidArgument, "etcdserver: invalid sort option"),
        (
            range(|r| r.revision = 9),
            OutOfRange,
            "etcdserver: mvcc: required revision is a future revision",
        ),
    ];
    for (request, code, words) in asks {
        assert_error(kv.range(request).await, code, words);
    }
    let put = || pb::PutRequest { key: "k".into(), ..Default::default() };
    let puts = [
        (pb::PutRequest::default(), InvalidArgument, "etcdserver: key is not provided"),
        (
            pb::PutRequest { value: "v".into(), ignore_value: true, ..put() },
            InvalidArgument,
            "etcdserver: value is provided",
        ),
        (
            pb::PutRequest { lease: 1, ignore_lease: true, ..put() },
            InvalidArgument,
            "etcdserver: lease is provided",
        ),
        (
            pb::PutRequest { key: "no".into(), ignore_value: true, ..put() },
            InvalidArgument,
            "etcdserver: key not found",
        ),
        (pb::PutRequest { lease: 5, ..put() }, NotFound, "etcdserver: requested lease not found"),
        (
            pb::PutRequest { value: vec![0; 4096].into(), ..put() },
            InvalidArgument,
            "etcdserver: request is too large",
        ),
        (
            pb::PutRequest { value: vec![0; 600_000].into(), ..put() },
            ResourceExhausted,
            "grpc: received message larger than max (600007 vs. 528384)",
        ),
    ];
    for (request, code, words) in puts {
        assert_error(kv.put(request).await, code, words);
    }
    let compact = |revision| pb::CompactionRequest { revision, physical: true };
    kv.compact(compact(3)).await.unwrap();
    let gone = "etcdserver: mvcc: required revision has been compacted";
    assert_error(kv.compact(compact(3)).await, OutOfRange, gone);
    assert_error(kv.compact(compact(-1)).await, OutOfRange, gone);
    assert_error(kv.range(range(|r| r.revision = 2)).await, OutOfRange, gone);
    kv.range(range(|r| r.revision = 3)).await.unwrap();
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_error(kv.compact(compact(9)).await, OutOfRange, future);
}

fn compare_create(key: &'static str, revision: i64) -> pb::Compare {
    pb::Compare::new(key, CompareResult::Equal, TargetUnion::CreateRevision(revision))
}

fn op_put(key: &'static str) -> pb::RequestOp {
    pb::PutRequest { key: key.into(), ..Default::default() }.into()
}

#[tokio::test]
async fn a_transaction_takes_one_branch_and_one_revision() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    let nested = pb::TxnRequest {
        compare: vec![compare_create("a", 0)],
        success: vec![op_put("b")],
        failure: vec![op_put("c")],
    };
    let txn = pb::TxnRequest {
        compare: vec![compare_create("a", 0)],
        success: vec![op_put("a"), nested.into(), all().into()],
        failure: vec![all().into()],
    };
    let reply = kv.txn(txn.clone()).await.unwrap().into_inner();
    assert!(reply.succeeded);
    assert_eq!(reply.header.unwrap().revision, 2);
    let [first, second, third] = &reply.responses[..] else { panic!("three operations") };
    let Some(Response::ResponsePut(first)) = &first.response else { panic!("a put") };
    let inner = first.header.as_ref().unwrap();
    assert_eq!((inner.revision, inner.member_id), (2, 0));
    let Some(Response::ResponseTxn(second)) = &second.response else { panic!("a transaction") };
    assert!(second.succeeded, "compares use the state before the transaction");
    assert_eq!(second.header, Some(pb::ResponseHeader::default()));
    let Some(Response::ResponseRange(third)) = &third.response else { panic!("a range") };
    assert_eq!(keys(third), ["a", "b"]);

    let reply = kv.txn(txn).await.unwrap().into_inner();
    assert!(!reply.succeeded);
    let Some(Response::ResponseRange(rows)) = &reply.responses[0].response else {
        panic!("a range")
    };
    assert_eq!(rows.kvs.len(), 2);

    let twice = pb::TxnRequest { failure: vec![op_put("x"), op_put("x")], ..Default::default() };
    let words = "etcdserver: duplicate key given in txn request";
    assert_error(kv.txn(twice).await, Code::InvalidArgument, words);
    let many = pb::TxnRequest { success: vec![all().into(); 129], ..Default::default() };
    let words = "etcdserver: too many operations in txn request";
    assert_error(kv.txn(many).await, Code::InvalidArgument, words);
    // A negative number is less than every revision.
    let negative = pb::TxnRequest { compare: vec![compare_create("a", -1)], ..Default::default() };
    assert!(!kv.txn(negative).await.unwrap().into_inner().succeeded);
}

#[tokio::test]
async fn server_stops_on_request_and_restarts_from_its_directory() {
    let member = SingleMember::prepare();
    for round in 1..3 {
        let server = member.start(&["--log-level=error"]);
        let mut kv = KvClient::new(server.channel().await);
        let reply = put(&mut kv, "k", "v").await;
        assert_eq!(reply.header.unwrap().revision, 1 + round);
        let (status, log) = server.stop();
        assert!(status.success(), "{status}: {log}");
    }
}

#[tokio::test]
async fn three_servers_form_one_store() {
    let servers = Server::three();
    let mut clusters = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let mut kv = KvClient::new(server.channel().await);
        clusters.push(put(&mut kv, "k", ["a", "b", "c"][at]).await.header.unwrap().cluster_id);
        for other in &servers {
            let mut kv = KvClient::new(other.channel().await);
            let rows = kv.range(all()).await.unwrap().into_inner();
            assert_eq!(rows.kvs[0].version, at as i64 + 1, "a read sees acknowledged writes");
        }
    }
    assert!(clusters.windows(2).all(|pair| pair[0] == pair[1]), "{clusters:?}");
}

#[test]
fn invalid_flags_are_rejected_before_startup() {
    let error_of = |arguments: &[&str]| {
        let output = bowline().arg("serve").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error_of(&["--nmae", "x"]).contains("unknown flag --nmae"));
    assert!(error_of(&["--discovery-srv=x"]).contains("name the members with --initial-cluster"));
    let help = bowline().args(["serve", "--help"]).output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("--initial-cluster"));
}

/// The command line of etcd's quick start, for one member in a container.
#[test]
fn single_member_may_advertise_all_interfaces() {
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let at = |port: u16| format!("http://0.0.0.0:{port}");
    let flags = [
        "--name=s1".to_owned(),
        format!("--data-dir={}", dir.path().display()),
        format!("--listen-client-urls={}", at(client)),
        format!("--advertise-client-urls={}", at(client)),
        format!("--listen-peer-urls={}", at(peer)),
        format!("--initial-advertise-peer-urls={}", at(peer)),
        format!("--initial-cluster=s1={}", at(peer)),
        "--initial-cluster-token=tkn".to_owned(),
        "--initial-cluster-state=new".to_owned(),
    ];
    // The loop covers the first start, and a restart with the same data directory.
    for _ in 0..2 {
        let server = Server::start(&flags, client, &[]).ready();
        let (status, log) = server.stop();
        assert!(status.success(), "{log}");
        assert!(log.contains("the advertised address cannot be dialed by other members"), "{log}");
    }
}

#[test]
fn version_and_health_are_served_over_plain_http() {
    let server = Server::alone(&[]);
    server.wait_until_healthy("/readyz");
    let versions = r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#;
    assert_eq!(server.http("GET", "/version", ""), (200, versions.to_owned()));
    let (code, body) = server.http("GET", "/health", "");
    assert_eq!((code, &*body), (200, "{\"health\":\"true\",\"reason\":\"\"}"));
    for (path, expected) in [
        ("/livez?verbose", "[+]alive ok\n[+]serializable_read ok\nok\n"),
        ("/livez?verbose=true&exclude=alive&exclude=nothing", "[+]serializable_read ok\nok\n"),
        ("/livez/serializable_read", "ok\n"),
        (
            "/readyz?verbose",
            "[+]serving ok\n[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner \
             ok\nok\n",
        ),
        ("/readyz/non_learner?verbose", "[+]non_learner ok\nok\n"),
    ] {
        assert_eq!(server.http("GET", path, ""), (200, expected.to_owned()), "{path}");
    }
    assert_eq!(server.http("GET", "/livez/non_learner", "").0, 404);
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.http("GET", path, ""), (200, "ok\n".to_owned()), "{path}");
    }
    for (method, path) in [
        ("POST", "/version"),
        ("HEAD", "/version"),
        ("HEAD", "/health"),
        ("PUT", "/health"),
        ("HEAD", "/livez"),
        ("POST", "/readyz/serving"),
        ("DELETE", "/debug/vars"),
    ] {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method} {path}: {answer}");
        assert!(answer.contains("\r\nallow: GET\r\n"), "{method} {path}: {answer}");
    }
    assert_eq!(server.http("HEAD", "/metrics", "").0, 200);
    let (code, body) = server.http("GET", "/metrics", "");
    assert!(code == 200 && body.contains("bowline_requests_total"), "{body}");
    for name in ["etcd_server_has_leader 1", "etcd_server_is_leader 1", "etcd_server_is_learner 0"]
    {
        assert!(body.lines().any(|line| line == name), "{name}: {body}");
    }
    assert_eq!(server.http("GET", "/nothing", "").0, 404);
}

/// Clients choose calls by the version. A server that announces 3.6 offers the same calls.
#[tokio::test]
async fn server_announces_3_6_on_request() {
    let server = Server::alone(&["--announce-version=3.6"]);
    server.wait_until_healthy("/readyz");
    let versions = r#"{"etcdserver":"3.6.9","etcdcluster":"3.6.0","storage":"3.6.0"}"#;
    assert_eq!(server.http("GET", "/version", ""), (200, versions.to_owned()));
    let (_, metrics) = server.http("GET", "/metrics", "");
    for line in [
        r#"etcd_server_version{server_version="3.6.9"} 1"#,
        r#"etcd_cluster_version{cluster_version="3.6"} 1"#,
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}");
    }
    let channel = server.channel().await;
    let mut maintenance = pb::maintenance_client::MaintenanceClient::new(channel.clone());
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((&*status.version, &*status.storage_version), ("3.6.9", "3.6.0"));
    let mut stream = KvClient::new(channel).range_stream(all()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let flag = ["serve", "--announce-version=3.5"];
    let output = bowline().args(flag).output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("3.6 or 3.7"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_counted_under_the_metric_names_of_go_servers() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    let mut watches = WatchClient::new(server.channel().await);
    let put = pb::PutRequest { key: "k".into(), ..Default::default() };
    kv.put(put.clone()).await.unwrap();
    kv.put(put).await.unwrap();
    kv.put(pb::PutRequest::default()).await.unwrap_err();
    let watch = watches.watch(tokio_stream::iter([])).await.unwrap().into_inner();
    drop(watch);
    let of = |code: &str, method: &str, service: &str, kind: &str| {
        format!(
            "grpc_server_handled_total{{grpc_code=\"{code}\",grpc_method=\"{method}\",grpc_service=\"etcdserverpb.{service}\",grpc_type=\"{kind}\"}}"
        )
    };
    let wanted = [
        format!("{} 2", of("OK", "Put", "KV", "unary")),
        format!("{} 1", of("InvalidArgument", "Put", "KV", "unary")),
        format!("{} 0", of("OK", "Compact", "KV", "unary")),
        format!("{} 0", of("Unavailable", "LeaseKeepAlive", "Lease", "bidi_stream")),
    ];
    let (_, body) = server.http("GET", "/metrics", "");
    for line in wanted {
        assert!(body.lines().any(|found| found == line), "{line}: {body}");
    }
    // The driver updates the store's metrics at its next tick.
    for line in ["etcd_debugging_mvcc_keys_total 1", "etcd_debugging_mvcc_current_revision 3"] {
        while !server.http("GET", "/metrics", "").1.lines().any(|found| found == line) {}
    }
    // A stream is counted when it ends, no matter which side has ended it.
    let streams = |body: &str| {
        let is_one = |line: &&str| {
            line.contains("handled") && line.contains("\"Watch\"") && line.contains("bidi_stream")
        };
        let counts = body
            .lines()
            .filter(is_one)
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    while streams(&server.http("GET", "/metrics", "").1) == 0 {}
}
