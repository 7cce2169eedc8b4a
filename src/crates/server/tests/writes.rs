//! Counts how often the server writes to a connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bowline::{Config, Node};
use bowline_proto::etcdserverpb::kv_client::KvClient;
use bowline_proto::etcdserverpb::{PutRequest, RangeRequest};
use bowline_server::Server;
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

/// Number of concurrent calls.
const CALLS: usize = 8;

const ROUNDS: usize = 100;

/// Counts the reads that return data. On a connection within one machine, each write of the server is one read, or two
/// if the client reads meanwhile.
struct Counted(TcpStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.0).poll_read(context, into);
        if polled.is_ready() {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[tokio::test]
async fn responses_that_are_ready_together_are_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let node = Arc::new(Node::start(Config::new(dir.path(), "solo")).await.unwrap());
    let server = Server::new(&node).listen("127.0.0.1:0").start().await.unwrap();
    assert!(server.opened().await);
    let (address, reads) = (server.addresses()[0], Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&reads);
    let connect = move |_| {
        let reads = Arc::clone(&counter);
        async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok::<_, io::Error>(TokioIo::new(Counted(stream, reads)))
        }
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap();
    let client = KvClient::new(channel);
    // Values of this size are written separately from their headers and trailers if nothing collects them.
    let put = PutRequest { key: "k".into(), value: vec![0; 1000].into(), ..PutRequest::default() };
    client.clone().put(put).await.unwrap();
    let before = reads.load(Ordering::Relaxed);
    for _ in 0..ROUNDS {
        let calls = (0..CALLS).map(|_| {
            let mut client = client.clone();
            let key = "k".into();
            async move {
                let range = RangeRequest { key, serializable: true, ..RangeRequest::default() };
                client.range(range).await.unwrap().into_inner().count
            }
        });
        assert_eq!(join_all(calls).await, [1; CALLS]);
    }
    let reads = reads.load(Ordering::Relaxed) - before;
    // One or two for each round. Without collecting, there are at least as many as responses.
    assert!(reads < ROUNDS * CALLS / 2, "{reads} reads of {} responses", ROUNDS * CALLS);
    server.shutdown().await;
    node.shutdown().await;
}
