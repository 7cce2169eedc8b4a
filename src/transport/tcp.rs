//! The TCP transport: its settings, and how it is started and stopped.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::context::Context;
use super::frame::{self, FrameKind};
use super::handshake::Admission;
use super::peers::{LANES, Peer};
use super::pipe::QueueLimit;
use super::runtime::NetRuntime;
use super::security::Security;
use super::{Introducer, Receiver, TransportError, acceptor, dialer};
use crate::codec;
use crate::env::{Env, Network, SendOutcome, accept_ipv4};
use crate::model::{Lane, NodeId, PeerMessage, addresses, is_address};

/// Minimum number of keepalives that the dialer sends in one idle timeout.
const KEEPALIVES_PER_IDLE_TIMEOUT: u32 = 3;
/// Minimum idle timeout of a member. This timeout is longer than the pauses of a busy machine.
const IDLE_MIN: Duration = Duration::from_secs(2);
/// Maximum idle timeout of a member.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Minimum and maximum time between two attempts to reach a peer.
const REDIAL_MIN: Duration = Duration::from_millis(100);
const REDIAL_MAX: Duration = Duration::from_millis(500);
/// Length of the accept queue. If the queue is full, the operating system drops connection
/// attempts, and the dialer retries only after a second. The system may impose a lower limit.
const BACKLOG: u32 = 4096;
/// Minimum interval of keepalives, however short the idle timeout is.
const TICK_MIN: Duration = Duration::from_millis(1);
/// Maximum time that a stop waits for a receiver that does not return.
const STOP_WAIT_MAX: Duration = Duration::from_secs(1);
/// If the encoding buffer is larger than this, its memory is released after use.
const SCRATCH_KEPT_BYTES_MAX: usize = 1 << 20;

/// Timeouts and limits of a member's connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpSettings {
    /// Whether members may listen on and dial non-loopback addresses without encryption and
    /// authentication. Default: false.
    pub(crate) insecure_peers: bool,
    /// The token that a joining process must know.
    pub(crate) token: String,
    /// The certificates, if connections are to be encrypted.
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<super::PeerTls>,
    /// Interval at which the certificate files are read again. Default: 10 s.
    #[cfg(feature = "tls")]
    pub(crate) tls_reload_every: Duration,
    /// Time limit from connecting to the end of the handshake. The limit applies to accepted
    /// connections, and to the longest of the dialer's parallel attempts. Default: 5 s.
    pub(crate) handshake_timeout: Duration,
    /// Maximum number of connections in their handshake. If there are more, one of them is closed;
    /// [`acceptor`](super::acceptor) describes which. Default: 64.
    pub(crate) handshakes_max: usize,
    /// Maximum number of joiners that wait for a reply. Default: 16.
    pub(crate) joiners_max: usize,
    /// Maximum time that a joiner waits for a reply. Default: 10 s.
    pub(crate) join_timeout: Duration,
    /// Time limit of a connect to one address. Default: 1 s.
    pub(crate) connect_timeout: Duration,
    /// A connection without incoming data is closed after this time, or up to a third later.
    /// Default: 10 s.
    pub(crate) idle_timeout: Duration,
    /// Maximum interval between keepalives. The interval must be short enough for the peer with the
    /// shortest idle timeout. Default: a third of the shortest possible idle timeout.
    pub(crate) alive_every: Duration,
    /// Interval of further connection attempts while an attempt hangs or a connection is silent.
    /// Default: 500 ms.
    pub(crate) redial_every: Duration,
    /// First pause before dialing again. Default: 20 ms.
    pub(crate) pause_min: Duration,
    /// Maximum pause before dialing again. Default: 500 ms.
    pub(crate) pause_max: Duration,
    /// Limit of the queue to one peer on the control lane. Default: 4 MiB, 16,384 messages.
    pub(crate) control_queue: QueueLimit,
    /// Limit of the queue to one peer on the bulk lane. Default: 32 MiB, 16,384 messages.
    pub(crate) bulk_queue: QueueLimit,
    /// Limit of the queue to one peer on the snapshot lane. Default: 16 MiB, 1,024 messages.
    pub(crate) snapshot_queue: QueueLimit,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            insecure_peers: false,
            token: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "tls")]
            tls_reload_every: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            handshakes_max: 64,
            joiners_max: 16,
            join_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(1),
            idle_timeout: IDLE_MAX,
            alive_every: IDLE_MIN / KEEPALIVES_PER_IDLE_TIMEOUT,
            redial_every: REDIAL_MAX,
            pause_min: Duration::from_millis(20),
            pause_max: REDIAL_MAX,
            control_queue: QueueLimit { bytes: 4 << 20, messages: 16_384 },
            bulk_queue: QueueLimit { bytes: 32 << 20, messages: 16_384 },
            snapshot_queue: QueueLimit { bytes: 16 << 20, messages: 1024 },
        }
    }
}

impl TcpSettings {
    /// Returns the settings for a member with this election timeout. A session lives for at least
    /// four election timeouts. A connection that broke silently is detected and redialed in less
    /// than half of that, or within two seconds if that is longer. A peer that becomes reachable
    /// again is found within a quarter of the election timeout.
    pub(crate) fn with_election_timeout(timeout: Duration) -> Self {
        let idle_timeout = (timeout * 3 / 2).clamp(IDLE_MIN, IDLE_MAX);
        let redial_every = (timeout / 4).clamp(REDIAL_MIN, REDIAL_MAX);
        Self {
            handshake_timeout: idle_timeout,
            connect_timeout: idle_timeout / 2,
            idle_timeout,
            redial_every,
            pause_max: redial_every,
            ..Self::default()
        }
    }

    /// Returns the interval at which a connection checks for incoming data, and at which both ends
    /// send keepalives.
    pub(super) fn tick(&self) -> Duration {
        (self.idle_timeout / self.silent_ticks_max()).max(TICK_MIN)
    }

    /// Returns the number of consecutive checks without incoming data after which the other end
    /// counts as dead.
    pub(super) fn silent_ticks_max(&self) -> u32 {
        let ticks = self.idle_timeout.as_nanos().div_ceil(self.alive_every.as_nanos().max(1));
        u32::try_from(ticks).unwrap_or(u32::MAX).max(KEEPALIVES_PER_IDLE_TIMEOUT)
    }

    /// Returns whether connections to and from other machines are permitted.
    pub(super) fn allows_other_machines(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.as_ref().is_some_and(|tls| tls.proof != super::PeerProof::Nothing) {
            return true;
        }
        self.insecure_peers
    }

    pub(super) fn security(
        &self,
        env: &Env,
        name: Option<&str>,
    ) -> Result<Security, TransportError> {
        #[cfg(feature = "tls")]
        if let Some(paths) = &self.tls {
            let tls = super::tls::Tls::load(env, paths.clone(), name)?;
            return Ok(Security::Tls(Arc::new(tls)));
        }
        let _ = (env, name);
        Ok(Security::None)
    }

    /// Checks whether a peer may be dialed at `address`, without resolving it.
    ///
    /// # Errors
    /// Fails if the address is invalid, or is a non-loopback address and those are not permitted.
    pub(crate) fn check_peer(&self, peer: NodeId, address: &str) -> Result<(), TransportError> {
        let what = format!("address of member {peer}");
        check_address(&what, address)?;
        if !self.allows_other_machines() && !is_loopback_text(address) {
            return Err(TransportError::Insecure { what, address: address.to_owned() });
        }
        Ok(())
    }
}

/// A bound port whose connections are not accepted yet. Binding comes first, so that the port
/// number is known before the node announces it.
pub(crate) struct TcpBound {
    runtime: Arc<NetRuntime>,
    /// The listeners: at least one.
    listeners: Vec<TcpListener>,
    /// Address of the first listener.
    address: SocketAddr,
    settings: TcpSettings,
}

impl TcpBound {
    /// Binds the port of `listen`, a `host:port` or a comma-separated list of them. Port 0 selects
    /// a free port.
    ///
    /// # Errors
    /// Fails if an address is invalid or in use, or is a non-loopback address and those are not
    /// permitted.
    pub(crate) fn bind(listen: &str, settings: TcpSettings) -> Result<Self, TransportError> {
        let runtime = NetRuntime::shared().map_err(TransportError::Threads)?;
        let entered = runtime.handle().enter();
        let listeners = addresses(listen).map(|one| Self::listener(one, &settings));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        drop(entered);
        let bind = |error| TransportError::Bind { address: listen.to_owned(), error };
        let address = listeners[0].local_addr().map_err(bind)?;
        Ok(Self { runtime, listeners, address, settings })
    }

    /// Binds one port on the network's runtime.
    fn listener(listen: &str, settings: &TcpSettings) -> Result<TcpListener, TransportError> {
        let bind = |error| TransportError::Bind { address: listen.to_owned(), error };
        check_address("listen address", listen)?;
        let mut addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(bind)?.collect();
        // IPv4 addresses come first, because clients without IPv6 can only connect to these.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        if !settings.allows_other_machines()
            && !addresses.iter().all(|address| is_loopback(address.ip()))
        {
            let (what, address) = ("listen address".to_owned(), listen.to_owned());
            return Err(TransportError::Insecure { what, address });
        }
        listen_on(&both_families(addresses)).map_err(bind)
    }

    /// Returns the address that is listened on.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all addresses that are listened on.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect()
    }

    /// Starts member `me`, which dials `peers` until [`set_peers`](Network::set_peers) replaces
    /// them.
    ///
    /// # Errors
    /// Fails if the threads cannot be started.
    pub(crate) fn start(
        self,
        env: &Env,
        me: NodeId,
        peers: &BTreeMap<NodeId, Vec<String>>,
        introducer: Arc<dyn Introducer>,
        receiver: Arc<dyn Receiver>,
    ) -> Result<(TcpNetwork, TcpHandle), TransportError> {
        let name = introducer.name(me);
        let security = self.settings.security(env, name.as_deref())?;
        let runtime = self.runtime;
        let (stopping, stopped) = watch::channel(false);
        let (alive, ended) = mpsc::channel();
        let context = Arc::new(Context::new(
            env.clone(),
            self.settings,
            security,
            Admission::new(me, introducer),
            receiver,
            stopped,
            alive,
        ));
        let stopping = Arc::new(stopping);
        let mut network = TcpNetwork {
            me,
            peers: BTreeMap::new(),
            context: Arc::downgrade(&context),
            runtime: runtime.handle().clone(),
            scratch: Vec::new(),
            stopping: Arc::clone(&stopping),
        };
        for listener in self.listeners {
            network.spawn(&context, acceptor::listen(context.clone(), listener));
        }
        #[cfg(feature = "tls")]
        if let Security::Tls(tls) = &context.security {
            let every = context.settings.tls_reload_every;
            network.spawn(&context, tls.clone().reload_when_changed(every));
        }
        network.set_peers(peers);
        let running = Mutex::new(Some(TcpRunning { stopping, ended, runtime }));
        Ok((network, TcpHandle { address: self.address, running }))
    }
}

/// The sending half of the TCP transport. Dropping the value closes the port and all connections
/// soon afterwards, without waiting. Use [`TcpHandle`] to wait.
pub(crate) struct TcpNetwork {
    me: NodeId,
    peers: BTreeMap<NodeId, Arc<Peer>>,
    context: Weak<Context>,
    runtime: Handle,
    /// Buffer for the frame being sent.
    scratch: Vec<u8>,
    stopping: Arc<watch::Sender<bool>>,
}

impl Drop for TcpNetwork {
    fn drop(&mut self) {
        // A node that has stopped by itself must not seem alive to its peers.
        self.stopping.send_replace(true);
    }
}

impl TcpNetwork {
    fn spawn(&self, context: &Arc<Context>, task: impl Future<Output = ()> + Send + 'static) {
        let context = context.clone();
        drop(self.runtime.spawn(async move { context.until_stopped(task).await }));
    }
}

impl Network for TcpNetwork {
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome {
        let Some(peer) = self.peers.get(&to) else { return SendOutcome::Unreachable };
        if !fits(self.me, to, lane, &message) {
            return SendOutcome::Full;
        }
        self.scratch.clear();
        frame::put_frame(&mut self.scratch, FrameKind::Message, |out| {
            codec::encode_message(&message, out);
        });
        let outcome = peer.pipe(lane).send(&self.scratch);
        if self.scratch.capacity() > SCRATCH_KEPT_BYTES_MAX {
            self.scratch = Vec::new();
        }
        outcome
    }

    fn queued_bytes(&self, to: NodeId) -> usize {
        let lanes = [Lane::Control, Lane::Bulk, Lane::Snapshot];
        self.peers
            .get(&to)
            .map_or(0, |peer| lanes.into_iter().map(|lane| peer.pipe(lane).queued_bytes()).sum())
    }

    fn set_peers(&mut self, peers: &BTreeMap<NodeId, Vec<String>>) {
        // This reference to the context is dropped soon, so it does not delay the end of the
        // transport.
        let Some(context) = self.context.upgrade() else { return };
        let may_be_dialed = |peer: NodeId, address: &str| {
            let checked = context.settings.check_peer(peer, address);
            if let Err(error) = &checked {
                tracing::warn!(me = %self.me, %peer, %error, "cannot dial member");
            }
            checked.is_ok()
        };
        let others = peers.iter().filter(|(peer, _)| **peer != self.me);
        let targets = others.filter_map(|(peer, places)| {
            let places = places.iter().filter(|address| may_be_dialed(*peer, address));
            let places: Vec<String> = places.cloned().collect();
            (!places.is_empty()).then_some((*peer, places))
        });
        let targets = targets.collect();
        let (new, all) = context.peers.set(&targets, &context.settings);
        for peer in new {
            for lane in LANES {
                self.spawn(&context, dialer::keep(context.clone(), peer.clone(), lane));
            }
        }
        for removed in self.peers.keys().filter(|peer| !all.contains_key(peer)) {
            context.presence.forget(*removed);
        }
        self.peers = all;
        context.incoming.recheck();
    }
}

/// Returns whether a message fits into a frame of its lane. A message that does not fit never
/// arrives, however often it is repeated. Such a message is a bug, so it is logged as an error.
pub(super) fn fits(me: NodeId, to: NodeId, lane: Lane, message: &PeerMessage) -> bool {
    let (bytes, max) = (codec::message_len(message), frame::body_bytes_max(lane));
    if bytes > max {
        tracing::error!(%me, %to, ?lane, bytes, max, "dropped message: too large for a frame");
    }
    bytes <= max
}

/// A handle that stops a member's connections. Dropping the handle stops the connections too.
pub(crate) struct TcpHandle {
    address: SocketAddr,
    running: Mutex<Option<TcpRunning>>,
}

struct TcpRunning {
    stopping: Arc<watch::Sender<bool>>,
    ended: mpsc::Receiver<()>,
    runtime: Arc<NetRuntime>,
}

impl TcpHandle {
    /// Returns the address that is listened on.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and all connections, and waits until no call of the receiver is in progress
    /// or can follow. The last transport to stop in a process ends the network's threads. Stopping
    /// takes milliseconds, or at most two seconds if a receiver or the resolver hangs. Must not be
    /// called by a receiver.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(TcpRunning { stopping, ended, runtime }) = running else { return };
        stopping.send_replace(true);
        // Nothing is ever sent on this channel. The channel closes when the last task has ended.
        if ended.recv_timeout(STOP_WAIT_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(address = %self.address, "network threads did not stop in time: a call into the node is blocked");
        }
        drop(runtime);
    }
}

impl Drop for TcpHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Listens on the first of the addresses that this machine has. If the port is in use at that
/// address, fails instead of trying the next one: clients that resolve the name would reach the
/// other program.
fn listen_on(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut first = None;
    for address in addresses {
        match listen_at(*address) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                // Report the error of the first address. The errors of later addresses may only
                // mean that this machine has no IPv6.
                first.get_or_insert(error);
            }
            listener_or_taken => return listener_or_taken,
        }
    }
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    Err(first.unwrap_or_else(nowhere))
}

/// Replaces an unspecified address (all interfaces) by two candidates: first the address for IPv6
/// and IPv4 together, then the one for IPv4 alone, for machines without IPv6.
fn both_families(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    match addresses.iter().find(|address| address.ip().is_unspecified()) {
        Some(any) => {
            let port = any.port();
            vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]
        }
        None => addresses,
    }
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.is_ipv6() && address.ip().is_unspecified() {
        // On machines with `net.ipv6.bindv6only`, IPv4 must be allowed explicitly.
        accept_ipv4(&socket)?;
    }
    // Without this option, the port stays in use for minutes after a member has stopped.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Returns whether an address is a loopback address or `localhost`. The name may still resolve to
/// another address, so the resolved address is checked again.
fn is_loopback_text(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => is_loopback(address.ip()),
        Err(_) => address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"),
    }
}

pub(super) fn check_address(what: &str, address: &str) -> Result<(), TransportError> {
    if is_address(address) {
        return Ok(());
    }
    Err(TransportError::Address { what: what.to_owned(), address: address.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_needs_no_permission() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(is_loopback_text(address), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1", "localhost.evil:1"] {
            assert!(!is_loopback_text(address), "{address}");
        }
    }

    #[tokio::test]
    async fn port_in_use_at_the_first_address_fails_the_bind() {
        let taken = listen_on(&["127.0.0.1:0".parse().unwrap()]).unwrap().into_std().unwrap();
        let first = taken.local_addr().unwrap();
        let next = SocketAddr::new("127.0.0.2".parse().unwrap(), first.port());
        let error = listen_on(&[first, next]).expect_err("the first is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // Binding skips an address that this machine does not have.
        let foreign = SocketAddr::new("192.0.2.1".parse().unwrap(), first.port());
        assert_eq!(listen_on(&[foreign, next]).unwrap().local_addr().unwrap(), next);
        let error = listen_on(&[foreign]).expect_err("nothing else");
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[tokio::test]
    async fn unspecified_address_answers_on_both_families() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let listener = listen_on(&both_families(vec![any.parse().unwrap()])).unwrap();
            let address = listener.local_addr().unwrap();
            let at = |host: &str| std::net::TcpStream::connect((host, address.port()));
            at("127.0.0.1").unwrap_or_else(|error| panic!("{any}: {error}"));
            // On a machine without IPv6, only the IPv4 address is bound.
            if std::net::TcpListener::bind("[::1]:0").is_ok() {
                at("::1").unwrap_or_else(|error| panic!("{any}: {error}"));
            }
        }
        let specific = vec!["127.0.0.1:0".parse().unwrap()];
        assert_eq!(both_families(specific.clone()), specific);
    }

    #[test]
    fn dead_connection_is_noticed_before_sessions_end() {
        for (election, idle) in
            [(60, 2_000), (500, 2_000), (1_000, 2_000), (2_000, 3_000), (60_000, 10_000)]
        {
            let settings = TcpSettings::with_election_timeout(Duration::from_millis(election));
            assert_eq!(settings.idle_timeout, Duration::from_millis(idle));
            assert_eq!(settings.handshake_timeout, settings.idle_timeout);
            assert!(settings.connect_timeout < settings.handshake_timeout);
            let redial_every = Duration::from_millis((election / 4).clamp(100, 500));
            assert_eq!((settings.redial_every, settings.pause_max), (redial_every, redial_every));
            let (tick, ticks) = (settings.tick(), settings.silent_ticks_max());
            let longest = settings.idle_timeout * 4 / 3;
            assert!(tick * (ticks + 1) <= longest, "{tick:?}, {ticks} times");
            // A member with the shortest timeout receives enough keepalives from one with the
            // longest timeout.
            assert!(tick * KEEPALIVES_PER_IDLE_TIMEOUT <= IDLE_MIN, "{tick:?}");
        }
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for address in ["127.0.0.1:7400", "[::1]:7400", "n1.example:7400"] {
            assert!(check_address("address", address).is_ok(), "{address}");
        }
        for address in ["", "n1", ":7400", "n1:", "n1:x", "n1:70000", "::1:7400"] {
            let error = check_address("address of member 2", address).expect_err(address);
            assert!(error.to_string().contains("host:port"), "{error}");
        }
    }
}
