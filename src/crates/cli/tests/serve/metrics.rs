//! Tests of the metrics under etcd's names, compared with a real etcd's metrics after the same requests. Also tests of
//! the log line for a slow request, which contains the duration of each step.

use std::collections::BTreeMap;

use tonic::transport::Channel;

use crate::crew::Crew;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, http};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;

/// Metric families that count requests: the same requests must increase them equally in both servers.
const SAME: [&str; 7] = [
    "etcd_mvcc_put_total",
    "etcd_mvcc_delete_total",
    "etcd_mvcc_range_total",
    "etcd_mvcc_txn_total",
    "etcd_debugging_lease_granted_total",
    "etcd_debugging_lease_revoked_total",
    "etcd_network_client_grpc_received_bytes_total",
];

/// A metrics page: the types of the families, and the samples without labels.
#[derive(Default)]
struct Page {
    types: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Page {
    fn of(address: &str) -> Self {
        let (code, mut body) = http(address, "GET", "/metrics", "");
        assert_eq!(code, 200);
        let mut page = Self::default();
        for line in body.text().lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap();
                page.types.insert(name.to_owned(), kind.to_owned());
            } else if let Some((name, value)) = line.split_once(' ')
                && !name.contains('{')
                && !line.starts_with('#')
            {
                page.samples.insert(name.to_owned(), value.parse().unwrap());
            }
        }
        page
    }

    fn at(&self, name: &str) -> f64 {
        *self.samples.get(name).unwrap_or_else(|| panic!("no {name}"))
    }
}

fn put(key: &'static str) -> pb::PutRequest {
    pb::PutRequest { key: key.into(), value: "value".into(), ..Default::default() }
}

fn range(key: &'static str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.into(), ..Default::default() }
}

/// Sends a few requests of every kind.
async fn ask(channel: Channel) {
    let mut kv = KvClient::new(channel.clone());
    for key in ["a", "b", "c"] {
        kv.put(put(key)).await.unwrap();
    }
    for key in ["a", "nothing"] {
        kv.range(range(key)).await.unwrap();
    }
    kv.range(pb::RangeRequest { range_end: "z".into(), serializable: true, ..range("a") })
        .await
        .unwrap();
    let two =
        pb::DeleteRangeRequest { key: "a".into(), range_end: "c".into(), ..Default::default() };
    kv.delete_range(two).await.unwrap();
    let writes = vec![put("d").into(), range("d").into()];
    kv.txn(pb::TxnRequest { success: writes, ..Default::default() }).await.unwrap();
    let reads = vec![range("c").into(), range("d").into()];
    kv.txn(pb::TxnRequest { success: reads, ..Default::default() }).await.unwrap();
    let one = vec![put("e").into()];
    kv.txn(pb::TxnRequest { success: one, ..Default::default() }).await.unwrap();
    let mut leases = LeaseClient::new(channel);
    for id in [77, 78] {
        leases.lease_grant(pb::LeaseGrantRequest { ttl: 100, id }).await.unwrap();
    }
    kv.put(pb::PutRequest { lease: 77, ..put("leased") }).await.unwrap();
    leases.lease_revoke(pb::LeaseRevokeRequest { id: 77 }).await.unwrap();
}

/// Returns how much the same requests increase the counters.
async fn moved(address: &str) -> Vec<(&'static str, f64)> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await;
    let before = Page::of(address);
    ask(channel.unwrap()).await;
    let after = Page::of(address);
    SAME.map(|name| (name, after.at(name) - before.at(name))).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_move_like_those_of_etcd() {
    let Some(etcd) = Server::etcd(&["--metrics=extensive"]) else { return };
    let server = Server::alone(&["--metrics=extensive"]);
    let (ours, theirs) = (moved(&server.address).await, moved(&etcd.address).await);
    assert_eq!(ours, theirs);
    assert!(ours.iter().all(|(_, moved)| *moved > 0.0), "{ours:?}");
    let (ours, theirs) = (Page::of(&server.address), Page::of(&etcd.address));
    let mut shared = 0;
    for (name, kind) in &ours.types {
        if let Some(theirs) = theirs.types.get(name) {
            assert_eq!(kind, theirs, "{name}");
            shared += 1;
        }
    }
    assert!(shared > 40, "{shared} families have a name of etcd's");
    // Every metric that the page names exists, and every other metric of etcd's is listed there as missing. `a_b_...`
    // means all names with that prefix.
    let page = include_str!("../../../../../docs/operating/metrics.md");
    let (_, there) = page.split_once("## Under etcd's names").unwrap();
    let (there, _) = there.split_once("These metrics do not exist:").unwrap();
    let is_name = |word: &&str| {
        ["etcd_", "grpc_", "process_", "os_"].iter().any(|start| word.starts_with(start))
    };
    for name in there.split('`').filter(is_name) {
        assert!(
            ours.types.contains_key(name),
            "{name} is in docs/operating/metrics.md, and not here"
        );
    }
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let named: Vec<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
    for name in theirs.types.keys().filter(|name| !ours.types.contains_key(*name)) {
        let is_named = named.iter().any(|word| match word.strip_suffix("...") {
            Some(start) if start.starts_with('_') => name.contains(start),
            Some(start) => name.starts_with(start),
            // `_suffix` stands for the name before it with another suffix.
            None if word.starts_with('_') => name.ends_with(word),
            None => name == word,
        });
        assert!(is_named, "{name} is neither served nor in docs/operating/metrics.md");
    }
}

/// Every series in the alert rules and in the Grafana dashboard of etcd's mixin.
const MIXIN: [&str; 23] = [
    "etcd_disk_backend_commit_duration_seconds_bucket",
    "etcd_disk_wal_fsync_duration_seconds_bucket",
    "etcd_mvcc_db_total_size_in_bytes",
    "etcd_mvcc_db_total_size_in_use_in_bytes",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_network_client_grpc_sent_bytes_total",
    "etcd_network_peer_received_bytes_total",
    "etcd_network_peer_round_trip_time_seconds_bucket",
    "etcd_network_peer_sent_bytes_total",
    "etcd_network_peer_sent_failures_total",
    "etcd_server_has_leader",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_applied_total",
    "etcd_server_proposals_committed_total",
    "etcd_server_proposals_failed_total",
    "etcd_server_proposals_pending",
    "etcd_server_quota_backend_bytes",
    "grpc_server_handled_total",
    "grpc_server_handling_seconds_bucket",
    "grpc_server_started_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
];

#[test]
fn series_of_etcd_alerts_and_dashboard_are_served_or_documented() {
    let page = include_str!("../../../../../docs/operating/metrics.md");
    let (_, table) = page.split_once("### Alerts and dashboards made for etcd").unwrap();
    let (table, _) = table.split_once("## Slow requests").unwrap();
    let crew = Crew::of_three_with(&["--metrics=extensive"]);
    for address in crew.addresses() {
        let (code, mut body) = http(&address, "GET", "/metrics", "");
        assert_eq!(code, 200);
        let body = body.text();
        for name in MIXIN {
            let is_served = body.lines().any(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            let family = name.strip_suffix("_bucket").unwrap_or(name);
            let is_named = table.contains(&format!("`{family}`"));
            assert_eq!(is_served, !is_named, "{name} at {address}");
        }
    }
}

/// Returns the histogram of a method: the buckets by their bounds, and the count.
fn handling(server: &Server, method: &str) -> (Vec<(String, u64)>, u64) {
    let page = server.http("GET", "/metrics", "").1;
    let samples = |suffix: &str| {
        let start = format!("grpc_server_handling_seconds_{suffix}{{grpc_method=\"{method}\",");
        let of = |line: &str| {
            let rest = line.strip_prefix(&start)?;
            let (labels, value) = rest.rsplit_once("} ")?;
            let bound = labels.split_once("le=\"").map_or("", |(_, bound)| bound);
            Some((bound.trim_end_matches('"').to_owned(), value.parse::<f64>().unwrap() as u64))
        };
        page.lines().filter_map(of).collect::<Vec<_>>()
    };
    (samples("bucket"), samples("count").first().map_or(0, |(_, count)| *count))
}

#[tokio::test]
async fn extensive_metrics_measure_handling_time_of_calls_and_streams() {
    let basic = Server::alone(&[]);
    assert_eq!(handling(&basic, "Put"), (Vec::new(), 0));
    let server = Server::alone(&["--metrics=extensive"]);
    let channel = server.channel().await;
    for _ in 0..7 {
        KvClient::new(channel.clone()).put(put("k")).await.unwrap();
    }
    let (buckets, count) = handling(&server, "Put");
    let bounds: Vec<_> = buckets.iter().map(|(bound, _)| bound.as_str()).collect();
    let expected =
        ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"];
    assert_eq!((bounds, count), (expected.to_vec(), 7));
    assert!(buckets.is_sorted_by_key(|(_, count)| *count), "{buckets:?}");
    assert_eq!(buckets.last().unwrap().1, 7);
    // The duration of a stream is observed when it ends.
    let mut leases = LeaseClient::new(channel);
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let mut renewed = leases.lease_keep_alive(requests).await.unwrap().into_inner();
    assert_eq!(handling(&server, "LeaseKeepAlive").1, 0);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    drop(sender);
    assert!(renewed.message().await.unwrap().is_none());
    let (buckets, count) = handling(&server, "LeaseKeepAlive");
    let within = buckets.iter().find(|(bound, _)| bound == "0.25").unwrap().1;
    assert_eq!((count, within), (1, 0), "{buckets:?}");
}

/// Checks `etcd_server_request_duration_seconds`, which is new in etcd 3.7.
#[tokio::test]
async fn durations_of_requests_have_the_types_of_etcd() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut kv = KvClient::new(channel.clone());
    let get = |revision| pb::RangeRequest { key: "k".into(), revision, ..Default::default() };
    let read =
        |revision| pb::TxnRequest { success: vec![get(revision).into()], ..Default::default() };
    let write = pb::TxnRequest { success: vec![put("k").into()], ..Default::default() };
    kv.put(put("k")).await.unwrap();
    // In etcd, a change that is applied with an error counts as a success.
    let unknown_lease = pb::PutRequest { lease: 99, ..put("k") };
    kv.put(unknown_lease).await.unwrap_err();
    for revision in [0, 0, 100] {
        assert_eq!(kv.range(get(revision)).await.is_ok(), revision == 0);
        assert_eq!(kv.txn(read(revision)).await.is_ok(), revision == 0);
    }
    kv.txn(write).await.unwrap();
    kv.compact(pb::CompactionRequest { revision: 2, ..Default::default() }).await.unwrap();
    pb::auth_client::AuthClient::new(channel).user_list(pb::AuthUserListRequest {}).await.unwrap();
    let page = server.http("GET", "/metrics", "").1;
    let name = "etcd_server_request_duration_seconds";
    let lines: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(name)).collect();
    let counts = lines.iter().filter_map(|line| line.strip_prefix("_count"));
    let counts: Vec<_> = counts.map(|line| line.trim()).collect();
    let expected = [
        (true, "AuthUserList", 1),
        (true, "Compaction", 1),
        (true, "Put", 2),
        (true, "Range", 2),
        (false, "Range", 1),
        (true, "Txn", 1),
        (true, "ReadonlyTxn", 2),
        (false, "ReadonlyTxn", 1),
    ];
    let expected = expected
        .map(|(success, kind, count)| format!("{{success=\"{success}\",type=\"{kind}\"}} {count}"));
    assert_eq!(counts, expected);
    let start = "_bucket{success=\"true\",type=\"Put\",le=\"";
    let buckets = lines.iter().filter_map(|line| line.strip_prefix(start)?.split_once("\"} "));
    let (bounds, below): (Vec<_>, Vec<_>) = buckets.unzip();
    assert_eq!((bounds[0], bounds[13], bounds[14], bounds.len()), ("0.001", "8.192", "+Inf", 15));
    assert_eq!(below[14], "2");
}

/// etcd's alert on fragmentation uses the ratio of the two.
#[tokio::test]
async fn size_in_use_equals_total_size() {
    let server = Server::alone(&[]);
    let mut kv = KvClient::new(server.channel().await);
    for round in 0..50_u8 {
        let value = vec![round; 1 << 10];
        let request = pb::PutRequest { key: "k".into(), value: value.into(), ..Default::default() };
        kv.put(request).await.unwrap();
    }
    let page = server.http("GET", "/metrics", "").1;
    let at = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse::<f64>().unwrap()
    };
    let total = at("etcd_mvcc_db_total_size_in_bytes");
    assert!(total > 50.0 * 1024.0, "{total}");
    assert_eq!(at("etcd_mvcc_db_total_size_in_use_in_bytes").to_bits(), total.to_bits());
    let mut maintenance = pb::maintenance_client::MaintenanceClient::new(server.channel().await);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.db_size_in_use, status.db_size, "{status:?}");
}

#[test]
fn process_and_health_metrics_are_served() {
    let server = Server::alone(&[]);
    for _ in 0..3 {
        assert_eq!(server.http("GET", "/health", "").0, 200);
    }
    let page = Page::of(&server.address);
    assert_eq!(page.at("etcd_server_health_success"), 3.0);
    assert_eq!(page.at("etcd_server_health_failures"), 0.0);
    assert_eq!(page.at("etcd_server_proposals_failed_total"), 0.0);
    let memory = page.at("process_resident_memory_bytes") / server.memory_bytes() as f64;
    assert!((0.5..2.0).contains(&memory), "{memory}");
    let files = page.at("process_open_fds") - server.descriptors() as f64;
    assert!(files.abs() <= 3.0, "{files} more than expected");
    assert!(page.at("process_max_fds") >= page.at("process_open_fds"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - page.at("process_start_time_seconds");
    assert!((-2.0..600.0).contains(&age), "{age} seconds old");
}

/// Starts a server for which every request is slow, and puts until the server logs a slow put. Returns the log.
async fn log_of_a_slow_put(more: &[&str]) -> String {
    let flags = [&["--log-level=debug", "--warning-unary-request-duration=1ns"], more].concat();
    let server = Server::alone(&flags);
    let mut kv = KvClient::new(server.channel().await);
    // At most one line a second is logged, and one of the member's own requests may have been slow.
    let begun = std::time::Instant::now();
    while !server.has_logged(SLOW_PUT) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "no request was slow");
        kv.put(put("k")).await.unwrap();
    }
    let (status, log) = server.stop();
    assert!(status.success());
    log
}

const SLOW_PUT: &str = "slow request (put): took";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debug_log_reports_a_slow_request_inside_its_call() {
    let log = log_of_a_slow_put(&[]).await;
    let line = log.lines().find(|line| line.contains(SLOW_PUT));
    let line = line.unwrap_or_else(|| panic!("no line: {log}"));
    for words in [
        "request{method=\"/etcdserverpb.KV/Put\" id=",
        ":write{kind=\"put\" request=",
        "mostly ",
        "logging=",
        "outcome=\"ok\"",
    ] {
        assert!(line.contains(words), "{words} in {line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_log_has_one_object_per_line() {
    let log = log_of_a_slow_put(&["--log-format=json"]).await;
    let of = |line: &str| -> serde_json::Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    let lines: Vec<_> = log.lines().map(of).collect();
    for line in &lines {
        for field in ["level", "ts", "caller", "msg"] {
            assert!(line[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {line}");
        }
    }
    let logged = |words: &str| {
        let found = lines.iter().find(|line| line["msg"].as_str().unwrap().contains(words));
        found.unwrap_or_else(|| panic!("no line with {words:?}: {log}"))
    };
    assert_eq!(logged("is ready to serve client requests")["level"], "info");
    let slow = logged(SLOW_PUT);
    assert_eq!((&slow["level"], &slow["outcome"]), (&"warn".into(), &"ok".into()));
    let method = slow["spans"][0].as_str().unwrap();
    assert!(method.starts_with("request{method=\"/etcdserverpb.KV/Put\""), "{slow}");
}
