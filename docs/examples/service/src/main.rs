//! One process of the service. Run in three terminals, with n1, n2, n3 and the ports 8081, 8082,
//! 8083:
//!
//! ```sh
//! export BOWLINE_MEMBERS=n1=127.0.0.1:7401,n2=127.0.0.1:7402,n3=127.0.0.1:7403
//! BOWLINE_NODE_NAME=n1 BOWLINE_DATA_DIR=/tmp/flags/n1 HTTP_ADDRESS=127.0.0.1:8081 \
//!     cargo run -p flag-service
//! ```
//!
//! `/readyz` answers 200 once all three have been started. Then try:
//!
//! ```sh
//! curl -i -X PUT localhost:8081/flags/dark-mode -H 'content-type: application/json' -d '{"on": true}'
//! curl -i localhost:8082/flags/dark-mode        # the etag is the version
//! curl -i -X PUT localhost:8083/flags/dark-mode -H 'if-match: "1"' \
//!     -H 'content-type: application/json' -d '{"on": false}'      # 412: that is not its version
//! curl -N localhost:8081/events                 # every change, as server-sent events
//! curl localhost:8081/leader                    # kill that process with kill -9, and look again
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use bowline::Node;
use flag_service::service;
use flag_service::settings::Settings;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    // Bowline logs with `tracing`, and is silent without a subscriber.
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::from_env()?;
    // Without a handler, the first signal would end the process at once.
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let listener = TcpListener::bind(settings.http_address).await?;
    let node = Arc::new(Node::start(settings.node).await?);
    tracing::info!(url = settings.http_url, "serving");
    // The node has no leader yet. The service listens anyway, so that probes get an answer.
    service::run(node, listener, settings.http_url, stop).await?;
    Ok(())
}
