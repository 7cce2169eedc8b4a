//! Tests of client ports: the services on each port, and the listeners that may share a port.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tempfile::tempdir;
use tonic::Code;
use tonic::transport::Channel;

use crate::office::{GOOD, Office};
use crate::requests::put;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{HttpBody, Server, bowline, flags, free_ports, http};
use pb::kv_client::KvClient;

async fn put_at(channel: Channel) -> Result<(), tonic::Status> {
    KvClient::new(channel).put(put("k")).await.map(drop)
}

async fn plain(address: &str) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn code(address: &str, path: &str) -> u16 {
    http(address, "GET", path, "").0
}

#[tokio::test]
async fn json_and_health_may_have_their_own_ports() {
    let [json, health] = free_ports();
    let http_urls = format!("--listen-client-http-urls=http://127.0.0.1:{json}");
    let metrics_urls = format!("--listen-metrics-urls=http://127.0.0.1:{health}");
    let server = Server::alone(&[&http_urls, &metrics_urls]);
    let (json, health) = (format!("127.0.0.1:{json}"), format!("127.0.0.1:{health}"));
    put_at(plain(&server.address).await).await.unwrap();
    for elsewhere in [&json, &health] {
        let status = put_at(plain(elsewhere).await).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{elsewhere}: {status:?}");
        assert!(status.message().contains("--listen-client-urls"), "{status:?}");
    }
    let (found, mut range) = http(&json, "POST", "/v3/kv/range", r#"{"key":"aw=="}"#);
    assert_eq!(found, 200);
    assert!(range.text().contains(r#""value":"dg==""#));
    // Each row has the expected status codes on the three ports.
    for (path, codes) in [
        ("/metrics", [404, 200, 200]),
        ("/health", [404, 200, 200]),
        ("/livez", [404, 200, 200]),
        ("/readyz", [404, 200, 200]),
        ("/version", [404, 200, 404]),
        ("/debug/vars", [404, 200, 404]),
        ("/v3/kv/range", [404, 501, 404]),
    ] {
        let found = [&server.address, &json, &health].map(|address| code(address, path));
        assert_eq!(found, codes, "{path}");
    }
}

#[tokio::test]
async fn default_port_serves_everything_and_metrics_port_serves_health_too() {
    let [health] = free_ports();
    let metrics_urls = format!("--listen-metrics-urls=http://127.0.0.1:{health}");
    let server = Server::alone(&[&metrics_urls]);
    put_at(plain(&server.address).await).await.unwrap();
    assert_eq!(code(&server.address, "/health"), 200);
    assert_eq!(code(&format!("127.0.0.1:{health}"), "/health"), 200);
    let (found, mut vars) = http(&server.address, "GET", "/debug/vars", "");
    assert_eq!(found, 200);
    let vars: serde_json::Value = serde_json::from_str(&vars.text()).unwrap();
    assert_eq!(vars["raft.status"]["raftState"], "StateLeader", "{vars}");
    assert!(vars["raft.status"]["applied"].as_u64().unwrap() > 0, "{vars}");
}

#[test]
fn unspecified_urls_answer_on_both_families() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return bowline_testkit::process::skip("this machine has no IPv6");
    }
    for any in ["0.0.0.0", "[::]"] {
        let dir = tempdir().unwrap();
        let [client, metrics, json, peer] = free_ports();
        let mut command = bowline();
        let mut flags = flags(0, &[peer], client, dir.path());
        flags.retain(|flag| !flag.starts_with("--listen-client-urls"));
        command.arg("serve").args(flags).args([
            format!("--listen-client-urls=http://{any}:{client}"),
            format!("--listen-metrics-urls=http://{any}:{metrics}"),
            format!("--listen-client-http-urls=http://{any}:{json}"),
        ]);
        let server = Server::run(command, client).ready();
        for host in ["127.0.0.1", "[::1]"] {
            for port in [metrics, json] {
                assert_eq!(code(&format!("{host}:{port}"), "/health"), 200, "{any}: {host}:{port}");
            }
            TcpStream::connect(format!("{host}:{client}")).unwrap();
        }
        drop(server);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn service_manager_is_notified_of_ready_watchdog_and_stopping() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let dir = tempdir().unwrap();
    let path = dir.path().join("notify");
    let abstract_name = format!("bowline-test-{}", std::process::id());
    let in_abstract = {
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        UnixDatagram::bind_addr(&address).unwrap()
    };
    let sockets = [
        (path.to_str().unwrap().to_owned(), UnixDatagram::bind(&path).unwrap()),
        (format!("@{abstract_name}"), in_abstract),
    ];
    for (name, socket) in sockets {
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let next = || {
            let mut message = [0; 256];
            let length = socket.recv(&mut message).unwrap();
            String::from_utf8_lossy(&message[..length]).into_owned()
        };
        let until = |word: &str| while !next().lines().any(|line| line == word) {};
        let (data, [client, peer]) = (tempdir().unwrap(), free_ports());
        let mut command = bowline();
        command.arg("serve").args(flags(0, &[peer], client, data.path()));
        command.env("NOTIFY_SOCKET", &name).env("WATCHDOG_USEC", "200000");
        let server = Server::run(command, client);
        assert!(next().starts_with("STATUS="), "{name}");
        until("READY=1");
        assert_eq!(code(&server.address, "/health"), 200);
        until("WATCHDOG=1");
        until("WATCHDOG=1");
        // A paused process sends nothing. Data that it sent before the pause is read first.
        server.pause();
        socket.set_nonblocking(true).unwrap();
        while socket.recv(&mut [0; 256]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        server.resume();
        until("WATCHDOG=1");
        let _stopped = server.stop();
        until("STOPPING=1");
    }
}

/// How long a member may take to report its health.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn member_without_a_quorum_reports_its_health() {
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let [health] = free_ports();
    let metrics_urls = format!("--listen-metrics-urls=http://127.0.0.1:{health}");
    let start = |at: usize, more: &[&str]| {
        Server::start(&flags(at, &peers, clients[at], dirs[at].path()), clients[at], more)
    };
    // The status must be the same whether or not there ever was a quorum.
    for has_met_the_others in [false, true] {
        if has_met_the_others {
            drop([0, 1, 2].map(|at| start(at, &[])).map(Server::ready));
        }
        let alone = start(0, &[&metrics_urls]);
        let ask = |path: &str| {
            let begun = Instant::now();
            let mut stream = loop {
                match TcpStream::connect(("127.0.0.1", health)) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(begun.elapsed() < LIMIT, "{error}"),
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            HttpBody::of(stream).0
        };
        // On a busy machine the status may change only after many ticks.
        let begun = Instant::now();
        loop {
            let found = ["/livez", "/metrics", "/health", "/readyz/serving"].map(ask);
            if found == [200, 200, 503, 503] {
                break;
            }
            assert!(begun.elapsed() < LIMIT, "{has_met_the_others}: {found:?}");
        }
        // All other checks pass.
        assert_eq!(ask("/readyz?exclude=linearizable_read"), 200, "{has_met_the_others}");
        assert!(!alone.has_logged("ready to serve client requests"));
        assert!(alone.stop().0.success());
    }
}

#[tokio::test]
async fn one_port_serves_tls_and_plaintext() {
    let (mut office, dir) = (Office::new(), tempdir().unwrap());
    let card = office.issue(GOOD);
    let [peer, client] = free_ports();
    let mut all = flags(0, &[peer], client, dir.path());
    let urls = format!("http://127.0.0.1:{client},https://127.0.0.1:{client}");
    all.extend([
        format!("--listen-client-urls={urls}"),
        format!("--advertise-client-urls={urls}"),
        format!("--cert-file={}", card.cert.display()),
        format!("--key-file={}", card.key.display()),
    ]);
    let server = Server::start(&all, client, &[]).ready();
    put_at(plain(&server.address).await).await.unwrap();
    put_at(office.channel(&server.address, None).await).await.unwrap();
    assert_eq!(code(&server.address, "/health"), 200);
    drop(server);
    // The same URL twice is an error.
    let dir = tempdir().unwrap();
    let twice = format!("http://127.0.0.1:{client},http://127.0.0.1:{client}");
    let refused = bowline()
        .arg("serve")
        .args(flags(0, &[peer], client, dir.path()))
        .args(["--listen-client-urls", &twice])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let printed = String::from_utf8(refused.stderr).unwrap();
    assert!(printed.contains("cannot listen for clients on 127.0.0.1"), "{printed}");
}

/// Connection pools keep idle connections for longer than the default of the HTTP library, 30 s.
#[test]
fn idle_http_connection_is_kept_open() {
    let server = Server::alone(&[]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let asks = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(asks.as_bytes()).unwrap();
    let mut answer = [0; 4096];
    assert!(stream.read(&mut answer).unwrap() > 0);
    stream.set_read_timeout(Some(Duration::from_secs(33))).unwrap();
    let silent = stream.read(&mut answer).expect_err("the connection is closed");
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
    stream.write_all(asks.as_bytes()).unwrap();
    assert!(stream.read(&mut answer).unwrap() > 0);
}

#[test]
fn version_flag_prints_both_versions() {
    let output = bowline().args(["serve", "--version"]).output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(printed, format!("etcd Version: 3.7.3\nBowline Version: {own}\n"));
}

#[test]
fn bootstrapping_member_is_live_and_names_absent_peers() {
    let dir = tempdir().unwrap();
    let (peers, [client, health]): ([u16; 3], _) = (free_ports(), free_ports());
    let metrics_urls = format!("--listen-metrics-urls=http://127.0.0.1:{health}");
    let server = Server::start(&flags(0, &peers, client, dir.path()), client, &[&metrics_urls]);
    let absent = format!("waiting for m1 (127.0.0.1:{}), m2 (127.0.0.1:{})", peers[1], peers[2]);
    server.until_logged(&absent);
    let ask = |path: &str| {
        let (code, mut body) = http(&format!("127.0.0.1:{health}"), "GET", path, "");
        (code, body.text())
    };
    // kubeadm's probes request these. They must not cause a restart of the process.
    let (code, body) = ask("/health?serializable=true");
    assert_eq!((code, body.as_str()), (200, r#"{"health":"true","reason":""}"#));
    assert_eq!(ask("/health").0, 503);
    assert_eq!(ask("/livez").0, 200);
    let (code, body) = ask("/readyz/serving");
    assert!(code == 503 && body.contains(&absent), "{code} {body}");
}
