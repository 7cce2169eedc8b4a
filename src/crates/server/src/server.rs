//! Builds, starts and stops a server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bowline::{Node, NodeStatus, Role};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};

use crate::dispatch::Dispatch;
use crate::endpoint::Endpoint;
use crate::listen::{Accepting, BindError, Listeners};
use crate::member::Member;
use crate::settings::Settings;
use crate::tls::ServerTls;
use crate::token::Tokens;
use crate::version::EtcdVersion;

/// Time to wait for blocking work of the server, such as hashing a password, after the last connection has ended.
const HANGING_MAX: Duration = Duration::from_millis(200);

/// Lifetime of unused tokens, unless set otherwise: etcd's default.
const TOKEN_TTL: Duration = Duration::from_secs(300);

type Condition = Box<dyn FnMut(&NodeStatus) -> bool + Send>;

/// A server of etcd's protocol for a node, before its start.
pub struct Server {
    node: Arc<Node>,
    addresses: Vec<String>,
    listeners: Option<Listeners>,
    tls: Option<ServerTls>,
    tokens: Tokens,
    settings: Settings,
    announced: EtcdVersion,
    opens_when: Condition,
}

/// A reason why a server does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The operating system provides no thread or no event queue.
    #[error("cannot start the async runtime: {0}")]
    Runtime(#[source] io::Error),
}

impl Server {
    /// Creates a server for a node. The server keeps the node until it ends, and does not stop it.
    pub fn new(node: &Arc<Node>) -> Self {
        Self {
            node: Arc::clone(node),
            addresses: Vec::new(),
            listeners: None,
            tls: None,
            tokens: Tokens::simple(TOKEN_TTL),
            settings: Settings::default(),
            announced: EtcdVersion::default(),
            opens_when: Box::new(|status| status.leader.is_some()),
        }
    }

    /// Adds a TCP address, `host:port`, on which to accept clients. With port 0 the system chooses a port.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Accepts clients on ports that are bound already, in addition to the addresses of [`Server::listen`].
    #[must_use]
    pub fn listeners(self, listeners: Listeners) -> Self {
        Self { listeners: Some(listeners), ..self }
    }

    /// Sets the certificates. Without this setting there is no TLS. With it, the addresses of [`Server::listen`] require
    /// TLS.
    #[must_use]
    pub fn tls(self, tls: ServerTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Sets the tokens that users get at login.
    #[must_use]
    pub fn auth(self, tokens: Tokens) -> Self {
        Self { tokens, ..self }
    }

    /// Sets limits and intervals.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Sets the release of etcd to announce to clients. Default: the newest that this server emulates.
    #[must_use]
    pub fn announce(self, version: EtcdVersion) -> Self {
        Self { announced: version, ..self }
    }

    /// Sets the state of the node from which on clients are accepted. By default, the node must know a leader.
    #[must_use]
    pub fn open_when(self, condition: impl FnMut(&NodeStatus) -> bool + Send + 'static) -> Self {
        Self { opens_when: Box::new(condition), ..self }
    }

    /// Starts the server on threads of its own. Clients can connect at once, and are served when the server
    /// [opens](RunningServer::opened).
    ///
    /// # Errors
    /// Fails if an address cannot be bound, or if the system provides no threads.
    pub async fn start(self) -> Result<RunningServer, ServerError> {
        let (stop, stopping) = watch::channel(false);
        let (open, opened) = watch::channel(false);
        let (report, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let run = move || {
            self.run(report, open, stopping);
            // Nothing is sent on this channel. When the thread ends, even by a panic, `end` is dropped, which closes
            // the channel.
            drop::<oneshot::Sender<()>>(end);
        };
        let thread = thread::Builder::new().name("bowline-server".to_owned()).spawn(run);
        thread.map_err(ServerError::Runtime)?;
        let panicked = || Err(ServerError::Runtime(io::Error::other("the server panicked")));
        let addresses = started.await.unwrap_or_else(|_| panicked())?;
        Ok(RunningServer { addresses, stop, opened, ended })
    }

    /// Binds the addresses, reports them, and serves until the server is stopped.
    fn run(
        mut self,
        report: oneshot::Sender<Result<Vec<SocketAddr>, ServerError>>,
        open: watch::Sender<bool>,
        stopping: watch::Receiver<bool>,
    ) {
        match self.begin() {
            Ok((runtime, addresses, accepting)) => {
                drop(report.send(Ok(addresses)));
                runtime.block_on(self.serve(accepting, open, stopping));
                // The shutdown does not wait for threads that are blocked on the disk or are hashing a password.
                runtime.shutdown_timeout(HANGING_MAX);
            }
            Err(error) => drop(report.send(Err(error))),
        }
    }

    fn begin(&mut self) -> Result<(Runtime, Vec<SocketAddr>, Accepting), ServerError> {
        let is_secure = self.tls.is_some();
        let endpoints = self.addresses.drain(..).map(|at| Endpoint::tcp(at).secure(is_secure));
        let listeners = Listeners::bind(&endpoints.collect::<Vec<_>>())?;
        let listeners = listeners.and(self.listeners.take());
        let addresses = listeners.addresses();
        let runtime = Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(ServerError::Runtime)?;
        let accepting = {
            let _within = runtime.enter();
            listeners.accepting().map_err(ServerError::Runtime)?
        };
        Ok((runtime, addresses, accepting))
    }

    async fn serve(
        self,
        accepting: Accepting,
        open: watch::Sender<bool>,
        stopping: watch::Receiver<bool>,
    ) {
        let member = Member::new(self.node, self.settings, self.tokens, self.announced);
        let ready = async {
            if member.node().wait_for(self.opens_when).await.role != Role::Stopped {
                open.send_replace(true);
            }
        };
        let dispatch = Dispatch::new(&member);
        let tls = self.tls.map(Arc::new);
        accepting.serve(&dispatch, member.settings(), tls, ready, stopping).await;
    }
}

/// A server that was started. Dropping it stops the server without waiting for its end.
#[derive(Debug)]
pub struct RunningServer {
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    opened: watch::Receiver<bool>,
    /// Closed when the last thread has ended.
    ended: oneshot::Receiver<()>,
}

impl RunningServer {
    /// Returns the TCP addresses, those of [`Server::listen`] first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Waits until clients are accepted: see [`Server::open_when`]. Returns false if the node stops before that.
    pub async fn opened(&self) -> bool {
        self.opened.clone().wait_for(|is_open| *is_open).await.is_ok()
    }

    /// Stops the server: accepts no more clients, gives running calls half a second to finish, and closes all
    /// connections. The node keeps running.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        // The result is always an error, because nothing is sent.
        drop(self.ended.await);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("node", &self.node).finish_non_exhaustive()
    }
}
