//! The client of the commands: [`bowline_client`] with the settings of the options. It remembers whether a command has
//! changed something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use bowline_client::{CallKind, Link};
use bowline_client::{Login, Options};
use tonic::{Response, Status};

use super::failure::Failure;
use super::options::Settings;
use bowline_server::crypto;

/// Time limit that is long enough to count as none. If the server disappears, the keepalive of the connection detects
/// it.
pub(crate) const NO_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A client of one or more endpoints.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) settings: Settings,
    calls: Arc<bowline_client::Client>,
    /// Whether this client, or a client derived from this client, has changed something.
    has_changed: Arc<AtomicBool>,
}

impl Client {
    /// Returns a client that has not connected yet.
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Self::after(settings, Arc::default())
    }

    fn after(mut settings: Settings, has_changed: Arc<AtomicBool>) -> Arc<Self> {
        settings.tls.provider = Some(Arc::new(crypto::provider()));
        // A missing password was prompted for earlier, so it exists here.
        let login = settings
            .login
            .clone()
            .map(|login| Login { name: login.name, password: login.password.unwrap_or_default() });
        let options = Options {
            endpoints: settings.endpoints.clone(),
            dial_timeout: settings.dial_timeout,
            call_timeout: settings.command_timeout,
            keepalive_time: settings.keepalive_time,
            keepalive_timeout: settings.keepalive_timeout,
            login,
            tls: settings.tls.clone(),
        };
        let calls = bowline_client::Client::new(options).expect("there is an endpoint");
        Arc::new(Self { settings, calls, has_changed })
    }

    /// Returns the underlying client, for sessions, locks and watches.
    pub(crate) fn calls(&self) -> &Arc<bowline_client::Client> {
        &self.calls
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Returns a client of a single endpoint with the same settings.
    pub(crate) fn of_one(&self, endpoint: &str) -> Arc<Self> {
        let settings = Settings { endpoints: vec![endpoint.to_owned()], ..self.settings.clone() };
        Client::after(settings, Arc::clone(&self.has_changed))
    }

    /// Abandons a connection, so that the next request uses the next endpoint.
    pub(crate) async fn leave(&self, link: &Link) {
        self.calls.leave(link).await;
    }

    /// Sends a request within the command's timeout. Tries other endpoints if `kind` allows a retry.
    pub(crate) async fn ask<T>(
        &self,
        kind: CallKind,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        self.ask_for(self.settings.command_timeout, kind, call).await
    }

    /// Like `ask`, with the given time limit.
    pub(crate) async fn ask_for<T>(
        &self,
        limit: Duration,
        kind: CallKind,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let answer = self.calls.call_within(limit, kind, call).await?;
        if kind != CallKind::Repeatable {
            self.has_changed.store(true, Ordering::Relaxed);
        }
        Ok(answer)
    }
}
