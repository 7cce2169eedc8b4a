//! Accepts client connections, with TLS where the URL requires it, and closes them when the server stops.
//!
//! Clients that have not authenticated must not be able to harm other clients; see [`crate::listen::pending_connections`]. The listener
//! reserves some of the process's file descriptors, so that client connections cannot use up the descriptors that the
//! log needs.

mod collected;
mod disconnect;
mod handshake;
mod pending_connections;
mod socket;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustix::process::{Resource, getrlimit};
use socket2::{Domain, SockRef, TcpKeepalive, Type};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::calls::{Calls, NewCalls};
use crate::dispatch::Dispatch;
use crate::endpoint::{Address, Endpoint, ListenerScope};
use crate::listen::collected::Collected;
use crate::listen::disconnect::PolledStream;
use crate::listen::handshake::{Accepted, CertificateRecheck, handshake};
use crate::listen::pending_connections::{PendingConnection, PendingConnections};
use crate::listen::socket::{Bound, ClientStream, Listener, Socket};
use crate::settings::Settings;
use crate::tls::ServerTls;

/// Time that running calls get to finish when the server stops.
const GRACE: Duration = Duration::from_millis(500);

/// Backlog of a listening socket.
const BACKLOG: i32 = 1024;

/// Pause before the next accept when no connection could be opened.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Idle time before the first TCP keepalive probe, and the interval between probes.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// Time limit for a client's first bytes and, with TLS, for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Maximum time that an HTTP/1 connection may be idle, or that the headers of a request may take. It is longer than
/// the limit for new connections, because the client has already sent its first bytes and, with TLS, completed the
/// handshake.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Number of file descriptors reserved for the log, snapshots and other members. With a low limit, half of the
/// descriptors are reserved.
const DESCRIPTORS_KEPT: usize = 512;

/// HTTP/2 flow control windows of a stream and of a connection, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Maximum number of calls on a connection that the client has reset before the server accepted them. If the number is
/// exceeded, the connection is closed with all its calls. The limit is high for this reason: if a server was suspended
/// for longer than its clients' timeouts, it finds many resets that are not an attack.
const UNSEEN_RESETS_MAX: usize = 4096;

/// Bound ports. Clients can connect, but are accepted only by a server that is started with these.
pub struct Listeners {
    bound: Vec<(Bound, ListenerMode)>,
}

/// An address cannot be bound.
#[derive(Debug, Error)]
#[error("cannot listen for clients on {address}: {source}")]
pub struct BindError {
    address: String,
    source: io::Error,
}

/// Listening sockets of a server.
pub(crate) struct Accepting(Vec<(Listener, ListenerMode)>);

/// How connections at a port are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ListenerMode {
    /// Whether the port accepts TLS, and whether it accepts plain connections. A port accepts both if two URLs differ
    /// only in the scheme.
    tls: bool,
    plain: bool,
    scope: ListenerScope,
}

/// State shared by all connections.
struct ConnectionContext {
    settings: Settings,
    dispatch: Dispatch,
    tls: Option<Arc<ServerTls>>,
    pending: Arc<PendingConnections>,
    permits: Arc<Semaphore>,
}

impl Listeners {
    /// Binds addresses. Looking up a host name may block.
    ///
    /// # Errors
    /// Fails at the first address that cannot be bound.
    pub fn bind(endpoints: &[Endpoint]) -> Result<Self, BindError> {
        let mut bound: Vec<(Bound, ListenerMode)> = Vec::new();
        for Endpoint { address, is_secure, scope } in endpoints {
            let failed = |source| BindError { address: address.to_string(), source };
            let (found, path) = match address {
                Address::Tcp(address) => {
                    (in_turn(address.to_socket_addrs().map_err(failed)?), None)
                }
                Address::Unix(path) => (Vec::new(), Some(&**path)),
            };
            let own = ListenerMode { tls: *is_secure, plain: !is_secure, scope: *scope };
            let other = ListenerMode { tls: own.plain, plain: own.tls, ..own };
            let shared = bound
                .iter_mut()
                .find(|(listener, mode)| *mode == other && listener.is_at(&found, path));
            match shared {
                Some((_, mode)) => *mode = ListenerMode { tls: true, plain: true, ..own },
                None => {
                    let listener = match path {
                        Some(path) => Bound::unix(path),
                        None => bind(&found).map(Bound::Tcp),
                    };
                    bound.push((listener.map_err(failed)?, own));
                }
            }
        }
        Ok(Self { bound })
    }

    /// Adds further ports.
    pub(crate) fn and(mut self, others: Option<Self>) -> Self {
        self.bound.extend(others.into_iter().flat_map(|others| others.bound));
        self
    }

    /// Returns the TCP addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.bound.iter().filter_map(|(listener, _)| listener.address()).collect()
    }

    /// Registers the sockets with the current runtime.
    pub(crate) fn accepting(self) -> io::Result<Accepting> {
        let open = |(listener, mode): (Bound, ListenerMode)| Ok((listener.open()?, mode));
        self.bound.into_iter().map(open).collect::<io::Result<_>>().map(Accepting)
    }
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listeners").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Accepting {
    /// Accepts clients until `stop` is set, then closes their connections and returns when none is left. Health ports
    /// accept at once, all others when the member is `ready`.
    pub(crate) async fn serve(
        self,
        dispatch: &Dispatch,
        settings: &Settings,
        tls: Option<Arc<ServerTls>>,
        ready: impl Future<Output = ()>,
        stop: watch::Receiver<bool>,
    ) {
        let context = Arc::new(ConnectionContext {
            settings: settings.clone(),
            dispatch: dispatch.clone(),
            tls,
            pending: Arc::default(),
            permits: Arc::new(Semaphore::new(connections_max().min(Semaphore::MAX_PERMITS))),
        });
        let (first, others): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|(_, mode)| mode.scope == ListenerScope::Health);
        let mut doors = JoinSet::new();
        let accept = |(listener, mode)| accept(listener, mode, Arc::clone(&context), stop.clone());
        first.into_iter().map(accept).for_each(|door| drop(doors.spawn(door)));
        let fresh = context.tls.clone().map(|tls| tokio::spawn(tls.reload_when_changed()));
        let mut stopped = stop.clone();
        let is_ready = tokio::select! {
            () = ready => true,
            () = stop_requested(&mut stopped) => false,
        };
        if is_ready {
            others.into_iter().map(accept).for_each(|door| drop(doors.spawn(door)));
        }
        while doors.join_next().await.is_some() {}
        if let Some(fresh) = fresh {
            fresh.abort();
        }
    }
}

/// Listens on the first of the addresses that belongs to this machine. The unspecified IPv4 address listens on both
/// families, as in Go.
fn bind(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match listen_at(*address) {
            Ok(listener) => return Ok(listener),
            // Another server uses this address, and clients would reach that server instead.
            Err(taken) if taken.kind() == io::ErrorKind::AddrInUse => return Err(taken),
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Some machines have `net.ipv6.bindv6only` set.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Returns the addresses in the order in which to try them: IPv4 first, as in Go. An unspecified address is tried for
/// both families, and then for IPv4 alone, for machines without IPv6.
fn in_turn(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    if let Some(any) = addresses.iter().find(|address| address.ip().is_unspecified()) {
        let port = any.port();
        return vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()];
    }
    addresses
}

/// Returns the maximum number of connections, which is the limit of file descriptors without the reserved ones.
fn connections_max() -> usize {
    let Some(all) = getrlimit(Resource::Nofile).current else { return Semaphore::MAX_PERMITS };
    let all = usize::try_from(all).unwrap_or(usize::MAX);
    all.saturating_sub(DESCRIPTORS_KEPT).max(all / 2)
}

fn builder(settings: &Settings, calls: NewCalls) -> Builder<NewCalls> {
    let mut builder = Builder::new(calls);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.streams_max)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(settings.ping_after)
        .keep_alive_timeout(settings.ping_timeout);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
    builder
}

async fn accept(
    listener: Listener,
    mode: ListenerMode,
    context: Arc<ConnectionContext>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop_requested(&mut stop) => break,
        };
        match accepted {
            Ok(stream) => {
                let Some(connection_permit) = connection_permit(&context).await else {
                    context.pending.log_rejection(&"no connection slots left (see ulimit -n)");
                    continue;
                };
                // The connection is counted before its task runs, so that the number is bounded even during a flood of
                // connections.
                let pending_connection = context.pending.add();
                let (context, stop) = (Arc::clone(&context), stop.clone());
                connections.spawn(async move {
                    handle(stream, mode, &context, pending_connection, stop).await;
                    drop(connection_permit);
                });
                // During a flood, lets connections that have sent something run before the next one is accepted.
                tokio::task::yield_now().await;
            }
            // The client has disconnected already, or no descriptors are left. The next accept may succeed.
            Err(error) => {
                context.pending.log_rejection(&error);
                tokio::time::sleep(NO_ROOM_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    drop(tokio::time::timeout(GRACE, ended).await);
    connections.shutdown().await;
}

/// Returns a permit for another connection. If no permit is free, takes that of the pending connection that has been
/// silent for the longest time.
async fn connection_permit(context: &ConnectionContext) -> Option<OwnedSemaphorePermit> {
    let permits = || Arc::clone(&context.permits);
    match permits().try_acquire_owned() {
        Ok(connection_permit) => Some(connection_permit),
        Err(_) if context.pending.evict_oldest() => {
            tokio::time::timeout(NO_ROOM_PAUSE, permits().acquire_owned()).await.ok()?.ok()
        }
        Err(_) => None,
    }
}

/// Enables TCP keepalive, which detects clients that vanish while no data is due. Errors are ignored.
fn keep_alive(stream: &Socket) {
    let Some(stream) = stream.tcp() else { return };
    drop(stream.set_nodelay(true));
    let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL);
    drop(SockRef::from(stream).set_tcp_keepalive(&probes));
}

/// Handles a connection from its first to its last byte.
async fn handle(
    stream: Socket,
    mode: ListenerMode,
    context: &ConnectionContext,
    pending_connection: PendingConnection,
    mut stop: watch::Receiver<bool>,
) {
    keep_alive(&stream);
    let tls = context.tls.as_deref().filter(|_| mode.tls);
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(HANDSHAKE_MAX, handshake(stream, tls, mode.plain)) => accepted,
        () = pending_connection.evicted() => return,
        () = stop_requested(&mut stop) => return,
    };
    drop(pending_connection);
    match accepted {
        Ok(Ok(Accepted::Plain(stream))) => {
            let dispatch = context.dispatch.of_connection(mode.scope, None);
            serve(stream, context, dispatch, CertificateRecheck::none(), stop).await;
        }
        Ok(Ok(Accepted::Secure { stream, user, recheck })) => {
            let dispatch = context.dispatch.of_connection(mode.scope, user);
            serve(stream, context, dispatch, recheck, stop).await;
        }
        // The client has disconnected without sending anything. Load balancers do that to check a port.
        Ok(Ok(Accepted::Disconnected)) => {}
        Ok(Err(why)) => context.pending.log_rejection(&why),
        Err(_) => context
            .pending
            .log_rejection(&format!("the handshake took longer than {HANDSHAKE_MAX:?}")),
    }
}

/// Serves an accepted connection.
async fn serve(
    wire: impl ClientStream,
    context: &ConnectionContext,
    dispatch: Dispatch,
    recheck: CertificateRecheck,
    mut stop: watch::Receiver<bool>,
) {
    let wire = PolledStream::new(Collected::new(wire));
    let (gone, output) = (wire.disconnected(), wire.handle());
    let upgraded = dispatch.upgraded();
    let new_calls = NewCalls::default();
    let builder = builder(&context.settings, new_calls.clone());
    let http = builder.serve_connection_with_upgrades(TokioIo::new(wire), dispatch);
    let served = async {
        let (mut http, mut calls) = (pin!(http), Calls::new(new_calls, output));
        tokio::select! {
            ended = calls.run(http.as_mut()) => ended?,
            () = stop_requested(&mut stop) => {
                http.as_mut().graceful_shutdown();
                calls.run(http).await?;
            }
        }
        match upgraded.take() {
            Some(call) => {
                // The response to the upgrade, and those before it.
                tokio::select! {
                    () = calls.released() => {}
                    () = stop_requested(&mut stop) => return Ok(()),
                }
                call.run(stop_requested(&mut stop)).await
            }
            None => Ok(()),
        }
    };
    let ended = tokio::select! {
        ended = served => ended,
        () = gone => return tracing::debug!("a client disconnected with unread data"),
        why = recheck.failed() => return context.pending.log_rejection(&why),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits until the server is to stop.
async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // A dropped sender means stop as well.
    drop(stop.wait_for(|stop| *stop).await);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostname_listens_on_ipv4_first() {
        let of = |addresses: &[&str]| in_turn(addresses.iter().map(|at| at.parse().unwrap()));
        let addresses_in_log = |addresses: Vec<SocketAddr>| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let both = of(&["[::1]:2379", "127.0.0.1:2379", "[fe80::1]:2379", "10.0.0.1:2379"]);
        let expected = ["127.0.0.1:2379", "10.0.0.1:2379", "[::1]:2379", "[fe80::1]:2379"];
        assert_eq!(addresses_in_log(both), expected);
        assert_eq!(addresses_in_log(of(&["[::1]:2379"])), ["[::1]:2379"]);
        for any in ["0.0.0.0:2379", "[::]:2379"] {
            assert_eq!(addresses_in_log(of(&[any])), ["[::]:2379", "0.0.0.0:2379"]);
        }
    }
}
