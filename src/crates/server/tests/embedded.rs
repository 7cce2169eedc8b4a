//! A program that embeds a node and serves etcd's protocol on it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use bowline::{Blocking, Config, Node};
use bowline_proto::etcdserverpb::kv_client::KvClient;
use bowline_proto::etcdserverpb::{PutRequest, RangeRequest};
use bowline_proto::v3lockpb::LockRequest;
use bowline_proto::v3lockpb::lock_client::LockClient;
use bowline_server::{RunningServer, Server};
use tonic::transport::{Channel, Endpoint};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

fn started(dir: &tempfile::TempDir) -> (Arc<Node>, RunningServer) {
    let node = Arc::new(Node::start(Config::new(dir.path(), "solo")).block().unwrap());
    let server = Server::new(&node).listen("127.0.0.1:0").start().block().unwrap();
    assert!(server.opened().block());
    (node, server)
}

fn url(server: &RunningServer) -> String {
    format!("http://{}", server.addresses()[0])
}

async fn connected(url: String) -> Channel {
    Endpoint::from_shared(url).unwrap().connect().await.unwrap()
}

#[test]
fn served_client_gets_the_lock_that_the_program_releases() {
    let dir = tempfile::tempdir().unwrap();
    let (node, server) = started(&dir);
    let session = node.session().block().unwrap();
    let guard = session.mutex("a").lock().block().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = url(&server);
    let mut waiting = runtime.spawn(async move {
        let mut client = LockClient::new(connected(url).await);
        let request = LockRequest { name: "a".into(), lease: 0 };
        client.lock(request).await.unwrap().into_inner()
    });
    let queue = || session.mutex("a").queue().unwrap();
    while queue().len() < 2 {
        thread::sleep(Duration::from_millis(10));
    }
    let early = runtime
        .block_on(async { tokio::time::timeout(Duration::from_millis(100), &mut waiting).await });
    assert!(early.is_err(), "the program still holds the lock");
    guard.release().block().unwrap();
    let reply = runtime.block_on(async { tokio::time::timeout(LONG, waiting).await });
    let reply = reply.expect("the lock was released").unwrap();
    let first = node.client().get(reply.key.clone()).block().unwrap();
    assert!(first.is_some() && reply.key.starts_with(b"a/"), "{reply:?}");
    server.shutdown().block();
    node.shutdown().block();
}

#[test]
fn blocked_executor_of_the_program_does_not_stop_served_calls() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (node, server) = runtime.block_on(async {
        let node = Arc::new(Node::start(Config::new(dir.path(), "solo")).await.unwrap());
        let server = Server::new(&node).listen("127.0.0.1:0").start().await.unwrap();
        assert!(server.opened().await);
        (node, server)
    });
    let (sender, receiver) = channel();
    let url = url(&server);
    let client = thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let mut client = KvClient::new(connected(url).await);
            let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
            client.put(put).await.unwrap();
            let range = RangeRequest { key: "k".into(), ..RangeRequest::default() };
            sender.send(client.range(range).await.unwrap().into_inner().count).unwrap();
        });
    });
    let count = runtime.block_on(async {
        // Block the only thread of the program's executor.
        receiver.recv_timeout(LONG)
    });
    assert_eq!(count, Ok(1));
    client.join().unwrap();
    runtime.block_on(async {
        server.shutdown().await;
        assert!(node.client().get("k").await.unwrap().is_some(), "the node keeps running");
        node.shutdown().await;
    });
}
