//! Tests of what browsers need: WebSockets and the permissions for web pages.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::error::Error as SocketError;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::Response;
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use bowline_testkit::process::{Server, http_with};

/// Time to wait for a message. A test that waits longer has failed.
const WAIT_MAX: Duration = Duration::from_secs(20);

struct Socket(WebSocket<TcpStream>);

impl Socket {
    fn open(address: &str, path: &str) -> Self {
        Self::with(address, path, &[]).unwrap_or_else(|code| panic!("{path}: {code}")).0
    }

    /// Opens a WebSocket with more headers. A rejection returns the status code.
    fn with(
        address: &str,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(Self, Response), u16> {
        let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        match tungstenite::client(request, stream) {
            Ok((socket, response)) => Ok((Self(socket), response)),
            Err(HandshakeError::Failure(SocketError::Http(response))) => {
                Err(response.status().as_u16())
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn send(&mut self, request: &Value) {
        self.0.send(Message::text(request.to_string())).unwrap();
    }

    /// Returns the next message without the fields that differ between servers.
    fn next(&mut self) -> Value {
        let text = self.0.read().unwrap().into_text().unwrap();
        let mut message: Value = serde_json::from_str(&text).unwrap();
        for parent in ["", "/result"] {
            let header = message.pointer_mut(&format!("{parent}/header"));
            if let Some(header) = header.and_then(Value::as_object_mut) {
                header.retain(|name, _| name == "revision");
            }
        }
        message
    }

    /// Waits for the end of the WebSocket. Returns its code; none if the connection was closed without one.
    fn end(&mut self) -> Option<CloseCode> {
        loop {
            match self.0.read() {
                Ok(Message::Close(frame)) => return frame.map(|frame| frame.code),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(other) => panic!("a further message: {other}"),
                Err(SocketError::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("the WebSocket is still open")
                }
                Err(_) => return None,
            }
        }
    }
}

fn put(address: &str, value: &str) {
    let body = json!({"key": "YQ==", "value": value}).to_string();
    let (code, mut answered) = http_with(address, "POST", "/v3/kv/put", "", &body);
    assert_eq!(code, 200, "{}", answered.text());
}

/// Runs the same calls at Bowline and at etcd.
fn watch_and_put(address: &str) {
    let mut watch = Socket::open(address, "/v3/watch");
    watch.send(&json!({"create_request": {"key": "YQ=="}}));
    let created = watch.next();
    assert_eq!(created["result"]["created"], json!(true), "{created}");
    put(address, "MQ==");
    let event = watch.next();
    assert_eq!(event["result"]["events"][0]["kv"]["value"], json!("MQ=="), "{event}");
    watch.send(&json!({"create_request": {"key": "Yg==", "watch_id": "7"}}));
    assert_eq!(watch.next()["result"]["watch_id"], json!("7"), "a second watch on the stream");
    watch.send(&json!({"cancel_request": {"watch_id": "7"}}));
    assert_eq!(watch.next()["result"]["canceled"], json!(true));
    put(address, "Mg==");
    assert_eq!(watch.next()["result"]["events"][0]["kv"]["value"], json!("Mg=="));
    let mut unary = Socket::open(address, "/v3/kv/range");
    unary.send(&json!({"key": "YQ==", "count_only": true}));
    assert_eq!(unary.next()["count"], json!("1"));
    unary.end();
    let mut wrong = Socket::open(address, "/v3/kv/range");
    wrong.send(&json!({}));
    assert_eq!(wrong.next()["message"], json!("etcdserver: key is not provided"));
    wrong.end();
}

#[test]
fn websocket_carries_a_stream_in_both_directions() {
    watch_and_put(&Server::alone(&[]).address);
}

#[test]
fn websocket_is_as_in_etcd() {
    let Some(etcd) = Server::etcd(&[]) else { return };
    watch_and_put(&etcd.address);
}

#[test]
fn websocket_is_closed_when_its_call_ends() {
    let server = Server::alone(&[]);
    let mut unary = Socket::open(&server.address, "/v3/kv/put");
    unary.send(&json!({"key": "YQ==", "value": "MQ=="}));
    assert_eq!(unary.next(), json!({"header": {"revision": "2"}}));
    assert_eq!(unary.end(), Some(CloseCode::Normal));
    let mut unknown = Socket::open(&server.address, "/v3/no/such");
    assert_eq!(unknown.next()["message"], json!("Not Found"));
    assert_eq!(unknown.end(), Some(CloseCode::Normal));
    let mut broken = Socket::open(&server.address, "/v3/watch");
    broken.0.send(Message::text("{]")).unwrap();
    assert_eq!(broken.next()["error"]["grpc_code"], json!(3));
    assert_eq!(broken.end(), Some(CloseCode::Normal));
}

#[test]
fn websocket_keeps_a_lease_alive() {
    let server = Server::alone(&[]);
    let (_, granted) = server.http("POST", "/v3/lease/grant", r#"{"ID":"7","TTL":"60"}"#);
    assert!(granted.contains(r#""TTL":"60""#), "{granted}");
    let mut renewals = Socket::open(&server.address, "/v3/lease/keepalive");
    for _ in 0..3 {
        renewals.send(&json!({"ID": "7"}));
        let renewed = renewals.next();
        assert_eq!(
            (&renewed["result"]["ID"], &renewed["result"]["TTL"]),
            (&json!("7"), &json!("60"))
        );
    }
}

#[test]
fn closed_websocket_cancels_its_watch() {
    let server = Server::alone(&[]);
    let watchers = |expected: u32| {
        let line = format!("etcd_debugging_mvcc_watcher_total {expected}\n");
        server.http("GET", "/metrics", "").1.contains(&line)
    };
    let create = json!({"create_request": {"key": "YQ=="}});
    let mut closed = Socket::open(&server.address, "/v3/watch");
    closed.send(&create);
    closed.next();
    let mut dropped = Socket::open(&server.address, "/v3/watch");
    dropped.send(&create);
    dropped.next();
    assert!(watchers(2), "{}", server.http("GET", "/metrics", "").1);
    closed.0.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })).unwrap();
    assert_eq!(closed.end(), Some(CloseCode::Normal), "the reply");
    drop(dropped);
    let begun = Instant::now();
    while !watchers(0) {
        assert!(begun.elapsed() < WAIT_MAX, "{}", server.http("GET", "/metrics", "").1);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn stopping_server_closes_websockets() {
    let server = Server::alone(&[]);
    let mut watch = Socket::open(&server.address, "/v3/watch");
    watch.send(&json!({"create_request": {"key": "YQ=="}}));
    watch.next();
    let mut idle = Socket::open(&server.address, "/v3/watch");
    server.stop();
    assert_eq!(watch.end(), Some(CloseCode::Away));
    assert_eq!(idle.end(), Some(CloseCode::Away));
}

#[test]
fn oversized_websocket_message_ends_only_that_websocket() {
    let server = Server::alone(&["--max-request-bytes=40000"]);
    for path in ["/v3/kv/put", "/v3/watch"] {
        let mut socket = Socket::open(&server.address, path);
        // The server may close the connection while the client still sends.
        socket.0.send(Message::text(" ".repeat(2 << 20))).ok();
        assert!([Some(CloseCode::Size), None].contains(&socket.end()), "{path}");
    }
    put(&server.address, "MQ==");
}

#[test]
fn websocket_takes_its_token_from_the_subprotocol() {
    let server = Server::alone(&["--bcrypt-cost=4"]);
    for (path, body) in [
        ("role/add", r#"{"name":"root"}"#),
        ("user/add", r#"{"name":"root","password":"p"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        let (code, answered) = server.http("POST", &format!("/v3/auth/{path}"), body);
        assert_eq!(code, 200, "{path}: {answered}");
    }
    let login = r#"{"name":"root","password":"p"}"#;
    let (_, answered) = server.http("POST", "/v3/auth/authenticate", login);
    let answered: Value = serde_json::from_str(&answered).unwrap();
    let bearer = format!("Bearer, {}", answered["token"].as_str().unwrap());
    let read = |headers: &[(&'static str, &str)]| {
        let (mut socket, response) =
            Socket::with(&server.address, "/v3/kv/range", headers).unwrap();
        socket.send(&json!({"key": "YQ=="}));
        let chosen = response.headers().get("sec-websocket-protocol").cloned();
        (socket.next(), chosen)
    };
    let (answer, chosen) = read(&[("sec-websocket-protocol", &bearer)]);
    assert_eq!(answer["header"]["revision"], json!("1"), "{answer}");
    assert_eq!(chosen.unwrap(), "Bearer");
    let (answer, _) = read(&[("sec-websocket-protocol", "Bearer, wrong.1")]);
    assert_eq!(answer["message"], json!("etcdserver: invalid auth token"));
    let (answer, chosen) = read(&[]);
    assert_eq!(answer["message"], json!("etcdserver: user name is empty"));
    assert_eq!(chosen, None);
}

#[test]
fn invalid_websocket_request_is_rejected() {
    let server = Server::alone(&[]);
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for missing in
        ["", "Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"]
    {
        let headers = format!("{upgrade}{missing}");
        let (code, mut answered) = http_with(&server.address, "GET", "/v3/watch", &headers, "");
        assert_eq!(code, 400, "{}", answered.text());
    }
}

/// Returns the headers of a response that are for browsers.
fn permissions(address: &str, method: &str, path: &str, origin: &str) -> (u16, String) {
    let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
    let body = if method == "POST" { "{}" } else { "" };
    let (code, response) = http_with(address, method, path, &origin, body);
    let named =
        |of: &str| response.header(&format!("access-control-allow-{of}")).unwrap_or_default();
    let all = ["origin", "methods", "headers"].map(named);
    (code, all.join(" | "))
}

const ALL: &str = "* | POST, GET, OPTIONS, PUT, DELETE | accept, content-type, authorization";

#[test]
fn web_pages_of_all_origins_are_allowed_by_default() {
    let server = Server::alone(&[]);
    for (method, path, code) in [
        ("OPTIONS", "/v3/kv/put", 200),
        ("OPTIONS", "/version", 200),
        ("POST", "/v3/kv/range", 400),
        ("POST", "/v3/no/such", 404),
        ("GET", "/version", 200),
        ("GET", "/metrics", 200),
    ] {
        for origin in ["", "https://example.com"] {
            let found = permissions(&server.address, method, path, origin);
            assert_eq!(found, (code, ALL.to_owned()), "{method} {path}");
        }
    }
}

#[test]
fn permissions_for_web_pages_are_those_of_etcd() {
    let Some(etcd) = Server::etcd(&[]) else { return };
    for (method, path) in [("OPTIONS", "/v3/kv/put"), ("OPTIONS", "/version"), ("GET", "/version")]
    {
        assert_eq!(permissions(&etcd.address, method, path, ""), (200, ALL.to_owned()));
    }
}

#[test]
fn only_listed_origins_are_allowed() {
    let server = Server::alone(&["--cors=https://example.com,http://localhost:3000"]);
    let of = |origin| permissions(&server.address, "GET", "/version", origin);
    for origin in ["https://example.com", "http://localhost:3000"] {
        assert_eq!(of(origin), (200, ALL.replace('*', origin)));
        assert!(Socket::with(&server.address, "/v3/watch", &[("origin", origin)]).is_ok());
    }
    for origin in ["http://example.com", "https://example.com.evil.org", "null"] {
        assert_eq!(of(origin), (200, " |  | ".to_owned()));
        let refused = Socket::with(&server.address, "/v3/watch", &[("origin", origin)]);
        assert_eq!(refused.err(), Some(403));
    }
    assert_eq!(of(""), (200, " |  | ".to_owned()), "no browser");
    assert!(Socket::with(&server.address, "/v3/watch", &[]).is_ok(), "no browser");
}
