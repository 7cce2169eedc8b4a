//! Runs the service on a node: HTTP, the campaign for the job, and an orderly shutdown.

use std::future::{Future, IntoFuture as _};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline::{Node, StopReason};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::flags::Flags;
use crate::http::{self, App};
use crate::sweeper::{self, ELECTION, SharedReport};

/// How long open requests may take after the service has stopped accepting new ones.
const REQUESTS_GRACE: Duration = Duration::from_secs(10);

/// Why the service ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The node has stopped by itself, for example because its disk failed.
    #[error("the node has stopped: {0}")]
    NodeStopped(StopReason),
    /// HTTP cannot be served.
    #[error("cannot serve HTTP: {0}")]
    Http(#[from] io::Error),
}

/// Runs the service until `stop` completes. Then stops accepting requests, finishes the open ones,
/// resigns, and shuts the node down. In this order no request fails, and the next leader does not
/// have to wait until the session of this process expires.
///
/// # Errors
/// Returns an error if the service ends before `stop` completes. Let the supervisor of the process
/// restart it.
pub async fn run(
    node: Arc<Node>,
    listener: TcpListener,
    url: String,
    stop: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    let (stop_http, http_stops) = watch::channel(false);
    let (stop_sweeper, sweeper_stops) = watch::channel(false);
    let (flags, report) = (Flags::new(node.client()), SharedReport::default());

    let task = node.leader_task(ELECTION, url);
    let sweeper = sweeper::run(task, flags.clone(), report.clone(), sweeper_stops);
    let sweeper = tokio::spawn(sweeper);
    let app = App { node: Arc::clone(&node), flags, report, stop: http_stops.clone() };
    let http = axum::serve(listener, http::router(app));
    let http = http.with_graceful_shutdown(until_set(http_stops)).into_future();
    let mut http = tokio::spawn(http);

    let ended = tokio::select! {
        () = stop => Ok(()),
        reason = node.stopped() => Err(ServiceError::NodeStopped(reason)),
        ended = &mut http => ended.expect("the HTTP server panicked").map_err(ServiceError::Http),
    };
    tracing::info!("stopping");
    stop_http.send_replace(true);
    if !http.is_finished() && timeout(REQUESTS_GRACE, &mut http).await.is_err() {
        tracing::warn!("requests are still open, and are dropped");
    }
    stop_sweeper.send_replace(true);
    sweeper.await.expect("the sweeper panicked");
    node.shutdown().await;
    ended
}

/// Waits until the value is set, or its sender is gone.
pub(crate) async fn until_set(mut value: watch::Receiver<bool>) {
    let _ = value.wait_for(|is_set| *is_set).await;
}
