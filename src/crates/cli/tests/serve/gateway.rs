//! Tests of the JSON gateway, with requests and responses as text.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use bowline_testkit::process::{HttpBody, Server, http, http_with};

/// Requests to a new store, in this order, with the expected status code and body (without what differs between
/// servers). Rows marked `Both` have the same answer in etcd 3.4, except for the error messages for invalid JSON.
const TABLE: &[(&str, &str, u16, &str, Where)] = &[
    ("kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#, 200, r#"{"header":{"revision":"2"}}"#, Both),
    (
        "kv/put",
        r#"{"key":"Zm9v","value":"YmF6","prev_kv":true}"#,
        200,
        r#"{"header":{"revision":"3"},"prev_kv":{"key":"Zm9v","create_revision":"2","mod_revision":"2","version":"1","value":"YmFy"}}"#,
        Both,
    ),
    (
        "kv/range",
        r#"{"key":"Zm9v"}"#,
        200,
        r#"{"header":{"revision":"3"},"kvs":[{"key":"Zm9v","create_revision":"2","mod_revision":"3","version":"2","value":"YmF6"}],"count":"1"}"#,
        Both,
    ),
    // Numbers may be given as numbers or strings, enums by name or number, and field names in either spelling.
    (
        "kv/range",
        r#"{"key":"AA==","rangeEnd":"AA==","limit":"1","sort_order":"DESCEND","sortTarget":2,"revision":2,"keys_only":true}"#,
        200,
        r#"{"header":{"revision":"3"},"kvs":[{"key":"Zm9v","create_revision":"2","mod_revision":"2","version":"1"}],"count":"1"}"#,
        Both,
    ),
    (
        "kv/range",
        r#"{"key":"Zm9v","serializable":true,"count_only":true}"#,
        200,
        r#"{"header":{"revision":"3"},"count":"1"}"#,
        Both,
    ),
    (
        "kv/range",
        r#"{"key":"Zm9v","colour":"blue","limit":1,"count_only":true}"#,
        200,
        r#"{"header":{"revision":"3"},"count":"1"}"#,
        Both,
    ),
    ("kv/range", r#"{"key":"Zm9w"} and so on"#, 200, r#"{"header":{"revision":"3"}}"#, Both),
    (
        "kv/range",
        r#"{"key":null,"range_end":null}"#,
        400,
        r#"{"error":"etcdserver: key is not provided","message":"etcdserver: key is not provided","code":3}"#,
        Both,
    ),
    (
        "kv/range",
        "{}",
        400,
        r#"{"error":"etcdserver: key is not provided","message":"etcdserver: key is not provided","code":3}"#,
        Both,
    ),
    (
        "kv/range",
        "",
        400,
        r#"{"error":"etcdserver: key is not provided","message":"etcdserver: key is not provided","code":3}"#,
        Both,
    ),
    (
        "kv/range",
        r#"{"key":"Zm9v","revision":"99"}"#,
        400,
        r#"{"error":"etcdserver: mvcc: required revision is a future revision","message":"etcdserver: mvcc: required revision is a future revision","code":11}"#,
        Both,
    ),
    ("kv/range", r#"{"key""#, 400, r#"{"code":3}"#, Both),
    ("kv/range", r#"["key"]"#, 400, r#"{"code":3}"#, Both),
    ("kv/range", r#"{"key":"Zm9v","limit":"x"}"#, 400, r#"{"code":3}"#, Both),
    ("kv/range", r#"{"key":"Zm9v","limit":1.5}"#, 400, r#"{"code":3}"#, Both),
    ("kv/range", r#"{"key":"not base64"}"#, 400, r#"{"code":3}"#, Both),
    ("kv/range", r#"{"key":"Zm9v","sort_target":"BEAUTY"}"#, 400, r#"{"code":3}"#, Both),
    // The URL-safe base64 alphabet and base64 without padding are accepted.
    ("kv/put", r#"{"key":"_-8","value":"_w=="}"#, 200, r#"{"header":{"revision":"4"}}"#, Ours),
    (
        "kv/range",
        r#"{"key":"/+8="}"#,
        200,
        r#"{"header":{"revision":"4"},"kvs":[{"key":"/+8=","create_revision":"4","mod_revision":"4","version":"1","value":"/w=="}],"count":"1"}"#,
        Ours,
    ),
    (
        "kv/deleterange",
        r#"{"key":"/+8="}"#,
        200,
        r#"{"header":{"revision":"5"},"deleted":"1"}"#,
        Ours,
    ),
    ("kv/put", r#"{"key":"eA==","value":""}"#, 200, r#"{"header":{"revision":"4"}}"#, Theirs),
    ("kv/put", r#"{"key":"eA==","value":""}"#, 200, r#"{"header":{"revision":"5"}}"#, Theirs),
    (
        "kv/txn",
        r#"{"compare":[{"key":"Zm9v","result":"EQUAL","target":"CREATE","create_revision":"2"},{"key":"Zm9v","target":3,"value":"YmF6"}],
            "success":[{"request_put":{"key":"YQ=="}},{"requestRange":{"key":"YQ=="}},{"request_delete_range":{"key":"Yg=="}},
                       {"request_txn":{"failure":[]}}]}"#,
        200,
        r#"{"header":{"revision":"6"},"succeeded":true,"responses":[
            {"response_put":{"header":{"revision":"6"}}},
            {"response_range":{"header":{"revision":"6"},"kvs":[{"key":"YQ==","create_revision":"6","mod_revision":"6","version":"1"}],"count":"1"}},
            {"response_delete_range":{"header":{"revision":"6"}}},
            {"response_txn":{"header":{},"succeeded":true}}]}"#,
        Both,
    ),
    (
        "kv/txn",
        r#"{"compare":[{"key":"Zm9v","result":"NOT_EQUAL","target":"VERSION","version":"2"}]}"#,
        200,
        r#"{"header":{"revision":"6"}}"#,
        Both,
    ),
    (
        "kv/txn",
        r#"{"success":[{"request_put":{"key":"YQ=="}},{"request_put":{"key":"YQ=="}}]}"#,
        400,
        r#"{"error":"etcdserver: duplicate key given in txn request","message":"etcdserver: duplicate key given in txn request","code":3}"#,
        Both,
    ),
    (
        "kv/deleterange",
        r#"{"key":"YQ==","prev_kv":true}"#,
        200,
        r#"{"header":{"revision":"7"},"deleted":"1","prev_kvs":[{"key":"YQ==","create_revision":"6","mod_revision":"6","version":"1"}]}"#,
        Both,
    ),
    (
        "kv/compaction",
        r#"{"revision":"6","physical":true}"#,
        200,
        r#"{"header":{"revision":"7"}}"#,
        Both,
    ),
    (
        "kv/compaction",
        r#"{"revision":6}"#,
        400,
        r#"{"error":"etcdserver: mvcc: required revision has been compacted","message":"etcdserver: mvcc: required revision has been compacted","code":11}"#,
        Both,
    ),
    (
        "lease/grant",
        r#"{"TTL":"600","ID":"77"}"#,
        200,
        r#"{"header":{"revision":"7"},"ID":"77","TTL":"600"}"#,
        Both,
    ),
    (
        "lease/grant",
        r#"{"TTL":"600","ID":77}"#,
        400,
        r#"{"error":"etcdserver: lease already exists","message":"etcdserver: lease already exists","code":9}"#,
        Ours,
    ),
    ("kv/lease/leases", "{}", 200, r#"{"header":{"revision":"7"},"leases":[{"ID":"77"}]}"#, Both),
    ("lease/leases", "{}", 200, r#"{"header":{"revision":"7"},"leases":[{"ID":"77"}]}"#, Both),
    (
        "lease/timetolive",
        r#"{"ID":"99"}"#,
        200,
        r#"{"header":{"revision":"7"},"ID":"99","TTL":"-1"}"#,
        Both,
    ),
    (
        "lease/keepalive",
        r#"{"ID":"77"} {"ID":99}"#,
        200,
        r#"{"result":{"header":{"revision":"7"},"ID":"77","TTL":"600"}} {"result":{"header":{"revision":"7"},"ID":"99"}}"#,
        Both,
    ),
    ("kv/lease/revoke", r#"{"ID":"77"}"#, 200, r#"{"header":{"revision":"7"}}"#, Both),
    (
        "lease/revoke",
        r#"{"ID":"77"}"#,
        404,
        r#"{"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5}"#,
        Both,
    ),
    (
        "election/leader",
        r#"{"name":"ZQ=="}"#,
        500,
        r#"{"error":"election: no leader","message":"election: no leader","code":2}"#,
        Both,
    ),
    ("lock/unlock", r#"{"key":"bG9jay8x"}"#, 200, r#"{"header":{"revision":"7"}}"#, Both),
    (
        "cluster/member/promote",
        r#"{"ID":"12345"}"#,
        404,
        r#"{"error":"etcdserver: member not found","message":"etcdserver: member not found","code":5}"#,
        Both,
    ),
    (
        "cluster/member/remove",
        r#"{"ID":"12345"}"#,
        404,
        r#"{"error":"etcdserver: member not found","message":"etcdserver: member not found","code":5}"#,
        Both,
    ),
    ("maintenance/alarm", r#"{"action":"GET"}"#, 200, r#"{"header":{"revision":"7"}}"#, Ours),
    (
        "maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":"0","alarm":"NOSPACE"}"#,
        200,
        r#"{"header":{"revision":"7"},"alarms":[{"alarm":"NOSPACE"}]}"#,
        Ours,
    ),
    (
        "kv/put",
        r#"{"key":"Zm9v","value":"YmFy"}"#,
        429,
        r#"{"error":"etcdserver: mvcc: database space exceeded","message":"etcdserver: mvcc: database space exceeded","code":8}"#,
        Ours,
    ),
    (
        "maintenance/alarm",
        r#"{"action":1,"memberID":"12345","alarm":2}"#,
        200,
        r#"{"header":{"revision":"7"},"alarms":[{"memberID":"12345","alarm":"CORRUPT"}]}"#,
        Ours,
    ),
    (
        "kv/deleterange",
        r#"{"key":"Zm9v"}"#,
        500,
        r#"{"error":"etcdserver: corrupt cluster","message":"etcdserver: corrupt cluster","code":15}"#,
        Ours,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE"}"#,
        200,
        r#"{"header":{"revision":"7"},"alarms":[{"alarm":"NOSPACE"},{"memberID":"12345","alarm":"CORRUPT"}]}"#,
        Ours,
    ),
    (
        "maintenance/transfer-leadership",
        r#"{"targetID":"12345"}"#,
        400,
        r#"{"error":"etcdserver: bad leader transferee","message":"etcdserver: bad leader transferee","code":9}"#,
        Ours,
    ),
    ("maintenance/defragment", "{}", 200, "{}", Both),
    ("auth/status", "{}", 200, r#"{"header":{"revision":"7"},"authRevision":"1"}"#, Ours),
    (
        "auth/authenticate",
        r#"{"name":"root","password":"x"}"#,
        400,
        r#"{"error":"etcdserver: authentication is not enabled","message":"etcdserver: authentication is not enabled","code":9}"#,
        Ours,
    ),
    ("kv/nothing", "{}", 404, r#"{"error":"Not Found","message":"Not Found","code":5}"#, Ours),
];

use Where::{Both, Ours, Theirs};

/// The servers to which a row applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Both,
    /// Bowline only: etcd 3.4 answers differently, or not at all.
    Ours,
    /// etcd only: brings etcd to the state that Bowline has.
    Theirs,
}

/// Returns the parts of a body that are compared: without the answering member, and without the text of JSON parser
/// errors.
fn masked(body: &str, wanted: &[Value]) -> Vec<Value> {
    let answers = serde_json::Deserializer::from_str(body).into_iter::<Value>();
    let mut answers: Vec<_> = answers.map(|answer| answer.expect(body)).collect();
    for answer in &mut answers {
        let whole = answer.as_object_mut().unwrap();
        whole.remove("details");
        if wanted
            .first()
            .is_some_and(|wanted| wanted.get("code").is_some() && wanted.get("error").is_none())
        {
            assert!(whole.remove("error").is_some() && whole.remove("message").is_some(), "{body}");
        }
        let result = match answer.get_mut("result") {
            Some(result) => result,
            None => answer,
        };
        if let Some(header) = result.get_mut("header").and_then(Value::as_object_mut) {
            for of_the_server in ["cluster_id", "member_id", "raft_term"] {
                let number = header.remove(of_the_server).unwrap();
                assert!(number.as_str().unwrap().parse::<u64>().unwrap() > 0, "{body}");
            }
        }
    }
    answers
}

fn ask_all(address: &str, side: Where) {
    for (path, request, code, answer, at) in TABLE {
        if ![Both, side].contains(at) {
            continue;
        }
        let expected = serde_json::Deserializer::from_str(answer).into_iter::<Value>();
        let expected: Vec<_> = expected.map(Result::unwrap).collect();
        let (found_code, mut body) = http(address, "POST", &format!("/v3/{path}"), request);
        let body = body.text();
        assert_eq!(found_code, *code, "{path} {request}: {body}");
        assert_eq!(masked(&body, &expected), expected, "{path} {request}");
    }
}

#[test]
fn json_answers_match_grpc() {
    let server = Server::alone(&[]);
    ask_all(&server.address, Ours);
    let (code, body) = server.http("GET", "/v3/kv/range", "");
    assert_eq!((code, body.contains("Method Not Allowed")), (501, true), "{body}");
    let old = server.http("POST", "/v3beta/kv/range", r#"{"key":"Zm9v"}"#);
    assert!(old.0 == 200 && old.1.contains("YmF6"), "{old:?}");
    // The values of these responses vary, so only some fields are compared: the status, and the member list.
    let status: Value =
        serde_json::from_str(&server.http("POST", "/v3/maintenance/status", "{}").1).unwrap();
    for number in ["dbSize", "leader", "raftIndex", "raftTerm", "raftAppliedIndex"] {
        assert!(status[number].as_str().unwrap().parse::<u64>().unwrap() > 0, "{status}");
    }
    let list = server.http("POST", "/v3/cluster/member/list", r#"{"linearizable":true}"#).1;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["members"][0]["clientURLs"], json!([format!("http://{}", server.address)]));
    assert!(list["members"][0]["peerURLs"][0].as_str().unwrap().starts_with("http://"));
    assert!(list["members"][0]["isLearner"].is_null(), "false is omitted");
}

/// Checks the table against etcd.
#[test]
fn etcd_gives_the_same_json_answers() {
    let Some(etcd) = Server::etcd(&[]) else { return };
    ask_all(&etcd.address, Theirs);
}

#[test]
fn json_watch_sends_one_line_per_response() {
    let server = Server::alone(&[]);
    let put = |value: &str| {
        let (code, _) =
            server.http("POST", "/v3/kv/put", &format!(r#"{{"key":"YQ==","value":"{value}"}}"#));
        assert_eq!(code, 200);
    };
    put("MQ==");
    let wanted = r#"{"create_request":{"key":"YQ==","start_revision":"2","prevKv":true,"filters":["NODELETE"]}}"#;
    let (code, mut body) = http(&server.address, "POST", "/v3/watch", wanted);
    assert_eq!(code, 200);
    let mut next = || masked(&body.line().unwrap(), &[]).remove(0);
    assert_eq!(next(), json!({"result": {"header": {"revision": "2"}, "created": true}}));
    let first = json!({"key": "YQ==", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "MQ=="});
    assert_eq!(next(), json!({"result": {"header": {"revision": "2"}, "events": [{"kv": first}]}}));
    put("Mg==");
    let second = json!({"key": "YQ==", "create_revision": "2", "mod_revision": "3", "version": "2", "value": "Mg=="});
    let events = json!([{"kv": second, "prev_kv": first}]);
    assert_eq!(next(), json!({"result": {"header": {"revision": "3"}, "events": events}}));
    // If a client disconnects in the middle of a stream, no other client is affected.
    drop(body);
    put("Mw==");
}

/// Requests that arrive one by one, in pieces, over one connection whose responses are read at the same time.
#[test]
fn json_stream_reads_and_writes_concurrently() {
    let server = Server::alone(&[]);
    let stream = TcpStream::connect(&server.address).unwrap();
    let mut ask = stream.try_clone().unwrap();
    let mut chunk = |text: &str| write!(ask, "{:x}\r\n{text}\r\n", text.len()).unwrap();
    write!(&stream, "POST /v3/watch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    chunk(r#"{"create_request":{"key":"YQ==","#);
    chunk("\"watch_id\":\"5\"}}\n {");
    let (code, mut body) = HttpBody::of(stream);
    assert_eq!(code, 200);
    let mut next = || masked(&body.line().unwrap(), &[]).remove(0);
    let created =
        json!({"result": {"header": {"revision": "1"}, "watch_id": "5", "created": true}});
    assert_eq!(next(), created);
    chunk(r#""create_request":{"key":"Yg==","watch_id":5}}"#);
    let taken = next();
    assert_eq!(taken["result"]["watch_id"], json!("-1"), "{taken}");
    assert!(taken["result"]["cancel_reason"].as_str().unwrap().contains("duplicate watch ID"));
    chunk(r#"{"cancel_request":{"watch_id":5}}"#);
    assert_eq!(
        next(),
        json!({"result": {"header": {"revision": "1"}, "watch_id": "5", "canceled": true}})
    );
    chunk(r#"{"progress_request"}"#);
    let last = next();
    let error = &last["error"];
    assert_eq!(
        (&error["code"], &error["grpc_code"], &error["http_code"]),
        (&json!(3), &json!(3), &json!(400)),
        "{last}"
    );
    assert!(error["message"].as_str().unwrap().contains("line 1"), "{last}");
    assert_eq!(body.line(), None, "the stream has ended");
}

#[test]
fn oversized_json_is_rejected_and_the_largest_allowed_passes() {
    let server = Server::alone(&["--max-request-bytes=40000"]);
    let put = |zeros: usize| {
        let value = "AAAA".repeat(zeros / 3);
        let (code, body) =
            server.http("POST", "/v3/kv/put", &format!(r#"{{"key":"YQ==","value":"{value}"}}"#));
        (
            code,
            serde_json::from_str::<Value>(&body).unwrap()["message"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        )
    };
    assert_eq!(put(39_000), (200, String::new()));
    assert_eq!(put(42_000), (400, "etcdserver: request is too large".to_owned()));
    let (code, words) = put(600_000);
    assert!(
        code == 429 && words.starts_with("grpc: received message larger than max (6"),
        "{code} {words}"
    );
    let (code, words) = put(1_200_000);
    assert!(
        code == 429 && words.starts_with("bowline: cannot read the request, of at most"),
        "{code} {words}"
    );
    // A request of a stream that exceeds the limit is rejected.
    let long = format!(r#"{{"create_request":{{"key":"{}"#, "AAAA".repeat(100_000));
    let (code, mut body) = http(&server.address, "POST", "/v3/watch", &long);
    let line: Value = serde_json::from_str(&body.line().unwrap()).unwrap();
    assert_eq!((code, &line["error"]["http_code"]), (200, &json!(429)), "{line}");
    // Deeply nested JSON is rejected.
    let deep = format!("{}{{}}{}", r#"{"success":[{"request_txn":"#.repeat(200), "}]}".repeat(200));
    let (code, body) = server.http("POST", "/v3/kv/txn", &deep);
    assert!(code == 400 && body.contains("recursion limit"), "{code} {body}");
}

/// A client that receives the response while it still sends can take that for a broken connection, as curl does.
#[test]
fn rejected_small_request_is_read_before_the_reply() {
    let server = Server::alone(&["--bcrypt-cost=4"]);
    for (method, body) in [
        ("user/add", r#"{"name":"root","password":"p"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        assert_eq!(server.http("POST", &format!("/v3/auth/{method}"), body).0, 200, "{method}");
    }
    let key = r#"{"key":"YQ=="}"#;
    for (line, refused) in
        [("POST /v3/kv/range", 400), ("POST /v3/kv/rang", 404), ("PUT /v3/kv/range", 501)]
    {
        let ask = |body: &str| {
            let mut stream = TcpStream::connect(&server.address).unwrap();
            let length = key.len();
            write!(
                stream,
                "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
            HttpBody::of(stream).0
        };
        assert_eq!(ask(key), refused, "{line}");
        // The server waits for a body that does not arrive, but not for long.
        let begun = Instant::now();
        assert_eq!(ask(""), refused, "{line}");
        assert!(begun.elapsed() > Duration::from_millis(900), "{line}: {:?}", begun.elapsed());
    }
}

/// Headers that begin with `Grpc-Metadata-` become metadata. A token is sent in `Authorization`.
#[test]
fn grpc_metadata_headers_reach_the_service() {
    let mut servers = Server::three();
    let ask = |server: &Server, header: &str| {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let body = r#"{"key":"YQ==","serializable":true}"#;
        let length = body.len();
        write!(
            stream,
            "POST /v3/kv/range HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let (code, mut body) = HttpBody::of(stream);
        (code, body.text())
    };
    // A member updates its health only at each tick.
    let until = |server: &Server, wanted: u16| loop {
        let (code, body) = ask(server, "Grpc-Metadata-Hasleader: true\r\n");
        if code == wanted {
            return body;
        }
    };
    let left = servers.pop().unwrap();
    until(&left, 200);
    drop(servers);
    let body = until(&left, 503);
    assert!(body.contains("etcdserver: no leader"), "{body}");
    assert_eq!(ask(&left, "").0, 200, "a local read");
}

/// After the time in `Grpc-Timeout`, the call ends as if the client had disconnected, and the client gets an error.
#[test]
fn call_ends_at_its_grpc_timeout() {
    let server = Server::alone(&[]);
    let ask = |path: &str, timeout: &str, body: &str| {
        let header = format!("Grpc-Timeout: {timeout}\r\n");
        http_with(&server.address, "POST", path, &header, body)
    };
    // Both calls request the lock `m`.
    let lock = |timeout: &str| ask("/v3/lock/lock", timeout, r#"{"name":"bQ=="}"#);
    let (code, mut held) = lock("60S");
    assert_eq!(code, 200, "{}", held.text());
    let (code, mut late) = lock("300m");
    let late: Value = serde_json::from_str(&late.text()).unwrap();
    assert_eq!((code, &late["code"]), (504, &json!(4)), "{late}");
    assert_eq!(late["message"], json!("context deadline exceeded"));
    let begun = Instant::now();
    loop {
        let body = r#"{"key":"bS8=","range_end":"bTA=","count_only":true}"#;
        let (_, rows) = server.http("POST", "/v3/kv/range", body);
        if rows.contains(r#""count":"1""#) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "its key is still there: {rows}");
    }
    // The deadline ends the response stream after the stream has begun.
    let (code, mut watch) = ask("/v3/watch", "300m", r#"{"create_request":{"key":"YQ=="}}"#);
    assert_eq!(code, 200);
    assert!(watch.line().unwrap().contains(r#""created":true"#));
    let last: Value = serde_json::from_str(&watch.line().unwrap()).unwrap();
    assert_eq!((&last["error"]["code"], &last["error"]["http_code"]), (&json!(4), &json!(504)));
    assert_eq!(watch.line(), None, "the stream has ended");
    let (code, mut wrong) = ask("/v3/kv/range", "soon", r#"{"key":"YQ=="}"#);
    let wrong = wrong.text();
    assert!(code == 400 && wrong.contains("malformed grpc-timeout"), "{wrong}");
}

#[test]
fn empty_password_is_rejected_over_json() {
    let server = Server::alone(&crate::auth::CHEAP);
    let ask = |path: &str, body: &str| server.http("POST", &format!("/v3/auth/{path}"), body);
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"root's"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("user/add", r#"{"name":"ann","password":"ann's"}"#),
        ("user/add", r#"{"name":"eve"}"#),
        ("user/changepw", r#"{"name":"ann"}"#),
        ("enable", "{}"),
    ] {
        let (code, body) = ask(path, body);
        assert_eq!(code, 200, "{path}: {body}");
    }
    for body in [
        r#"{"name":"ann"}"#,
        r#"{"name":"ann","password":""}"#,
        r#"{"name":"ann","password":"ann's"}"#,
        r#"{"name":"eve"}"#,
    ] {
        let (code, answer) = ask("authenticate", body);
        assert!(code == 400 && answer.contains("authentication failed"), "{body}: {code} {answer}");
    }
    assert_eq!(ask("authenticate", r#"{"name":"root","password":"root's"}"#).0, 200);
    // A rejected streaming call has a stream error as its body, but still an HTTP error code, as in etcd.
    let (code, answer) = server.http("POST", "/v3/election/observe", r#"{"name":"YQ=="}"#);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let reported_error = (&answer["error"]["code"], &answer["error"]["message"]);
    assert_eq!(
        (code, reported_error),
        (400, (&json!(3), &json!("etcdserver: user name is empty")))
    );
}

/// JSON parsers disagree about which of two values counts, so a deletion could mean two ranges.
#[test]
fn duplicate_json_field_is_rejected_and_named() {
    let server = Server::alone(&[]);
    assert_eq!(server.http("POST", "/v3/kv/put", r#"{"key":"YQ=="}"#).0, 200);
    for (path, body, words) in [
        ("kv/deleterange", r#"{"key":"YQ==","key":"Yg=="}"#, r#"duplicate field "key""#),
        (
            "kv/deleterange",
            r#"{"key":"YQ==","range_end":"Yg==","rangeEnd":"AA=="}"#,
            r#"duplicate field "rangeEnd""#,
        ),
        (
            "kv/deleterange",
            r#"{"rangeEnd":"Yg==","key":"YQ==","range_end":null}"#,
            r#"duplicate field "range_end""#,
        ),
        (
            "kv/txn",
            r#"{"success":[{"requestPut":{"key":"YQ=="}},{"request_delete_range":{"key":"YQ==","key":"YQ=="}}]}"#,
            r#"duplicate field "key""#,
        ),
        (
            "kv/txn",
            r#"{"success":[{"request_txn":{"compare":[{"key":"YQ==","mod_revision":1,"modRevision":2}]}}]}"#,
            r#"duplicate field "modRevision""#,
        ),
        (
            "kv/txn",
            r#"{"success":[{"request_put":{"key":"YQ=="},"request_range":{"key":"YQ=="}}]}"#,
            "oneof etcdserverpb.RequestOp.request is already set",
        ),
        (
            "kv/txn",
            r#"{"compare":[{"key":"YQ==","version":1,"value":"YQ=="}]}"#,
            "oneof etcdserverpb.Compare.target_union is already set",
        ),
        (
            "auth/user/add",
            r#"{"name":"eve","options":{"no_password":true,"noPassword":false}}"#,
            r#""noPassword""#,
        ),
    ] {
        let (code, answer) = server.http("POST", &format!("/v3/{path}"), body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((code, &answer["code"]), (400, &json!(3)), "{body}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(words), "{body}: {answer}");
    }
    let (code, body) =
        server.http("POST", "/v3/kv/range", r#"{"key":"YQ==","a":1,"a":2,"limit":null}"#);
    assert!(code == 200 && body.contains(r#""count":"1""#), "unknown fields are skipped: {body}");
}

#[test]
fn duplicate_json_field_ends_a_stream() {
    let server = Server::alone(&[]);
    for (path, body) in [
        ("/v3/watch", r#"{"create_request":{"key":"YQ==","range_end":"Yg==","rangeEnd":"AA=="}}"#),
        ("/v3/watch", r#"{"create_request":{"key":"YQ=="},"createRequest":{"key":"YQ=="}}"#),
        ("/v3/watch", r#"{"create_request":{"key":"YQ=="},"progress_request":{}}"#),
        ("/v3/lease/keepalive", r#"{"ID":"1","ID":"2"}"#),
    ] {
        let (_, mut answer) = http(&server.address, "POST", path, body);
        let answer: Value = serde_json::from_str(&answer.line().unwrap()).unwrap();
        let reported_error = (&answer["error"]["code"], &answer["error"]["http_code"]);
        assert_eq!(reported_error, (&json!(3), &json!(400)), "{body}: {answer}");
        let words = answer["error"]["message"].as_str().unwrap();
        assert!(words.contains("duplicate field") || words.contains("is already set"), "{words}");
    }
}

/// Posts a range request. Returns the status code and the `Location` header.
fn asked_at(address: &str, path: &str) -> (u16, Option<String>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = r#"{"key":"YQ=="}"#;
    let length = body.len();
    let head = "Host: x\r\nConnection: close";
    let request =
        format!("POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let answer = std::io::read_to_string(stream).unwrap();
    let location = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location").then(|| value.to_owned())
    });
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), location)
}

#[test]
fn paths_are_cleaned_and_decoded_as_in_etcd() {
    let server = Server::alone(&[]);
    let etcd = Server::etcd(&[]);
    for (path, code, location) in [
        ("/v3/kv/range", 200, None),
        ("//v3/kv/range", 301, Some("/v3/kv/range")),
        ("/v3//kv/range?a=b//c", 301, Some("/v3/kv/range?a=b//c")),
        ("/v3/kv/./range", 301, Some("/v3/kv/range")),
        ("/v3/lease/../kv/range", 301, Some("/v3/kv/range")),
        ("/v3/%6bv/range", 200, None),
        ("/%76%33/kv/range", 200, None),
        ("/v3/kv%2Frange", 200, None),
        ("/v3/kv/range%20", 404, None),
        ("/v3/kv/%zz", 400, None),
        ("/none", 404, None),
    ] {
        let expected = (code, location.map(str::to_owned));
        assert_eq!(asked_at(&server.address, path), expected, "{path}");
        if let Some(etcd) = &etcd {
            assert_eq!(asked_at(&etcd.address, path), expected, "{path} of etcd");
        }
    }
}

#[test]
fn json_is_disabled_without_the_grpc_gateway() {
    let server = Server::alone(&["--enable-grpc-gateway=false"]);
    for path in ["/v3/kv/range", "/v3beta/kv/range", "/v3/watch", "/v3/auth/authenticate"] {
        let (code, body) = server.http("POST", path, r#"{"key":"YQ=="}"#);
        assert_eq!((code, &*body), (404, "404 page not found\n"), "{path}");
    }
    for path in ["/health", "/version", "/metrics"] {
        assert_eq!(server.http("GET", path, "").0, 200, "{path}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = server.channel().await;
        let mut kv = bowline_proto::etcdserverpb::kv_client::KvClient::new(channel);
        kv.put(bowline_proto::etcdserverpb::PutRequest { key: "a".into(), ..Default::default() })
            .await
            .unwrap();
    });
}
