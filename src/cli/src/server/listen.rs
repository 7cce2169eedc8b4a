//! Sockets: accepts clients, and ends their connections when the server stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::dispatch::Dispatch;
use super::flags::Options;

/// How long calls that are under way may go on when the server stops.
const GRACE: Duration = Duration::from_millis(500);

/// How long to wait when the process has no room for another connection.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// How much of a stream, and of a connection, may be under way, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// The sockets that clients connect to.
pub(super) struct Doors {
    listeners: Vec<TcpListener>,
}

impl Doors {
    /// Takes the ports. Whoever connects waits until they are opened.
    ///
    /// # Errors
    /// The first address that cannot be had.
    pub(super) async fn take(addresses: &[String]) -> Result<Self, (String, io::Error)> {
        let mut listeners = Vec::new();
        for address in addresses {
            let named = |error| (address.clone(), error);
            let mut found =
                tokio::net::lookup_host(address).await.map_err(named)?.collect::<Vec<_>>();
            // A name can stand for several; etcd listens on the first one.
            found.truncate(1);
            for at in found {
                listeners.push(TcpListener::bind(at).await.map_err(named)?);
            }
        }
        Ok(Self { listeners })
    }

    /// Lets clients in until `stop` says so; then ends their connections, and returns when none is left.
    pub(super) async fn open(
        self,
        dispatch: &Dispatch,
        options: &Options,
        stop: watch::Receiver<bool>,
    ) {
        let builder = Arc::new(builder(options));
        let mut doors = JoinSet::new();
        for listener in self.listeners {
            let (builder, dispatch) = (Arc::clone(&builder), dispatch.clone());
            doors.spawn(accept(listener, builder, dispatch, stop.clone()));
        }
        while doors.join_next().await.is_some() {}
    }
}

fn builder(options: &Options) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.streams_max)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(options.ping_after)
        .keep_alive_timeout(options.ping_timeout);
    builder.http1().timer(TokioTimer::new());
    builder
}

async fn accept(
    listener: TcpListener,
    builder: Arc<Builder<TokioExecutor>>,
    dispatch: Dispatch,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = told(&mut stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (builder, dispatch) = (Arc::clone(&builder), dispatch.clone());
                connections.spawn(serve(stream, builder, dispatch, stop.clone()));
            }
            // The client is gone already, or there are no descriptors left: the next one may fare better.
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(NO_ROOM_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    drop(tokio::time::timeout(GRACE, ended).await);
    connections.shutdown().await;
}

async fn serve(
    stream: TcpStream,
    builder: Arc<Builder<TokioExecutor>>,
    dispatch: Dispatch,
    mut stop: watch::Receiver<bool>,
) {
    drop(stream.set_nodelay(true));
    let connection = builder.serve_connection(TokioIo::new(stream), dispatch);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Waits until the server is to stop.
async fn told(stop: &mut watch::Receiver<bool>) {
    // Who could say it is gone: that says it too.
    drop(stop.wait_for(|stop| *stop).await);
}
