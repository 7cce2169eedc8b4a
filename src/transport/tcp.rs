//! Messages over TCP: settings, start and stop.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::watch;

use super::context::{Context, Pipes};
use super::frame::{self, FrameKind};
use super::handshake::Admission;
use super::pipe::{Pipe, QueueLimit};
use super::runtime::NetRuntime;
use super::{HelloSource, Receiver, TransportError, acceptor, dialer};
use crate::codec;
use crate::env::{Env, Network, SendOutcome};
use crate::model::{Lane, NodeId, PeerMessage};

/// How often the dialer says in one idle timeout that it lives.
pub(super) const ALIVE_PER_IDLE: u32 = 3;
/// However short the idle timeout, signs of life are not sent more often.
const TICK_MIN: Duration = Duration::from_millis(1);
/// How long a stop waits for a receiver that does not return.
const STOP_WAIT_MAX: Duration = Duration::from_secs(1);
/// A buffer for encoding larger than this is given back after use.
const SCRATCH_KEPT_BYTES_MAX: usize = 1 << 20;

/// Times and limits of a member's connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpSettings {
    /// Whether members may listen on and dial addresses off loopback, unencrypted and with peers
    /// that prove nothing. Default no.
    pub(crate) insecure_peers: bool,
    /// From connecting to the end of the handshake. Default 5 s.
    pub(crate) handshake_timeout: Duration,
    /// How many connections may be in their handshake; one more ends the oldest. Default 64.
    pub(crate) handshakes_max: usize,
    /// A connection on which nothing was heard for so long, or up to a third longer, is closed. The
    /// same on all members. Default 10 s.
    pub(crate) idle_timeout: Duration,
    /// The first pause before dialing again. Default 20 ms.
    pub(crate) pause_min: Duration,
    /// The longest pause before dialing again. Default 500 ms.
    pub(crate) pause_max: Duration,
    /// What may wait for one peer on the control lane. Default 4 MiB, 16,384 messages.
    pub(crate) control_queue: QueueLimit,
    /// What may wait for one peer on the bulk lane. Default 32 MiB, 16,384 messages.
    pub(crate) bulk_queue: QueueLimit,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            insecure_peers: false,
            handshake_timeout: Duration::from_secs(5),
            handshakes_max: 64,
            idle_timeout: Duration::from_secs(10),
            pause_min: Duration::from_millis(20),
            pause_max: Duration::from_millis(500),
            control_queue: QueueLimit { bytes: 4 << 20, messages: 16_384 },
            bulk_queue: QueueLimit { bytes: 32 << 20, messages: 16_384 },
        }
    }
}

impl TcpSettings {
    /// How often a connection looks whether the other end lives, and the dialer says that it does.
    pub(super) fn tick(&self) -> Duration {
        (self.idle_timeout / ALIVE_PER_IDLE).max(TICK_MIN)
    }
}

/// A port that is taken and not yet served, so that its number is known before anybody is told.
pub(crate) struct TcpBound {
    listener: TcpListener,
    address: SocketAddr,
    settings: TcpSettings,
}

impl TcpBound {
    /// Takes the port of `listen`, a `host:port`. Port 0 takes a free one.
    ///
    /// # Errors
    /// If the address is off loopback without leave, not an address, or taken.
    pub(crate) fn bind(listen: &str, settings: TcpSettings) -> Result<Self, TransportError> {
        let bind = |source| TransportError::Bind { address: listen.to_owned(), source };
        check_address("listen address", listen)?;
        let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(bind)?.collect();
        if !settings.insecure_peers && !addresses.iter().all(|address| is_loopback(address.ip())) {
            let (what, address) = ("listen address".to_owned(), listen.to_owned());
            return Err(TransportError::Insecure { what, address });
        }
        let listener = TcpListener::bind(&addresses[..]).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Self { listener, address, settings })
    }

    /// The address that is listened on.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts member `me` among `peers`, each with the `host:port` that leads to it. Names are
    /// resolved again at each connect.
    ///
    /// # Errors
    /// If a peer's address is off loopback without leave or not an address, or there are no threads.
    pub(crate) fn start(
        self,
        env: &Env,
        me: NodeId,
        peers: &BTreeMap<NodeId, String>,
        hello: HelloSource,
        receiver: Arc<dyn Receiver>,
    ) -> Result<(TcpNetwork, TcpHandle), TransportError> {
        let settings = self.settings;
        for (peer, address) in peers {
            let what = format!("address of member {peer}");
            check_address(&what, address)?;
            if !settings.insecure_peers && !says_loopback(address) {
                return Err(TransportError::Insecure { what, address: address.clone() });
            }
        }
        let peers: Vec<_> = peers.iter().filter(|(peer, _)| **peer != me).collect();
        let mut pipes = Pipes::new();
        for (peer, _) in &peers {
            for (lane, limit) in
                [(Lane::Control, settings.control_queue), (Lane::Bulk, settings.bulk_queue)]
            {
                pipes.insert((**peer, lane), Arc::new(Pipe::new(limit)));
            }
        }
        let members: BTreeSet<NodeId> = peers.iter().map(|(peer, _)| **peer).chain([me]).collect();
        let admission = Admission::new(me, members, hello);
        let runtime = NetRuntime::shared().map_err(TransportError::Threads)?;
        let (stopping, stopped) = watch::channel(false);
        let (alive, ended) = mpsc::channel();
        let context = Arc::new(Context::new(
            env.clone(),
            settings,
            admission,
            receiver,
            pipes.clone(),
            stopped,
            alive,
        ));
        let _entered = runtime.handle().enter();
        let listener =
            tokio::net::TcpListener::from_std(self.listener).map_err(TransportError::Threads)?;
        let spawn = |task: Task| {
            let context = context.clone();
            tokio::spawn(async move { context.until_stopped(task).await });
        };
        spawn(Box::pin(acceptor::listen(context.clone(), listener)));
        for (peer, address) in peers {
            for lane in [Lane::Control, Lane::Bulk] {
                let pipe = pipes[&(*peer, lane)].clone();
                let address = address.clone();
                spawn(Box::pin(dialer::keep(context.clone(), pipe, *peer, lane, address)));
            }
        }
        let network = TcpNetwork { me, pipes, scratch: Vec::new() };
        let running = Mutex::new(Some(Running { stopping, ended, runtime }));
        Ok((network, TcpHandle { address: self.address, running }))
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends over TCP. Dropping it stops nothing: [`TcpHandle`] does.
pub(crate) struct TcpNetwork {
    me: NodeId,
    pipes: Pipes,
    /// The frame being sent.
    scratch: Vec<u8>,
}

impl Network for TcpNetwork {
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome {
        let Some(pipe) = self.pipes.get(&(to, lane)) else { return SendOutcome::Unreachable };
        if !fits(self.me, to, lane, &message) {
            return SendOutcome::Full;
        }
        self.scratch.clear();
        frame::put_frame(&mut self.scratch, FrameKind::Message, |out| {
            codec::encode_message(&message, out);
        });
        let outcome = pipe.send(&self.scratch);
        if self.scratch.capacity() > SCRATCH_KEPT_BYTES_MAX {
            self.scratch = Vec::new();
        }
        outcome
    }
}

/// Whether a message fits into a frame of its lane. One that does not will never arrive, however
/// often it is repeated: that is somebody's bug, so it is said aloud.
pub(super) fn fits(me: NodeId, to: NodeId, lane: Lane, message: &PeerMessage) -> bool {
    let (bytes, max) = (codec::message_len(message), frame::body_bytes_max(lane));
    if bytes > max {
        tracing::error!(%me, %to, ?lane, bytes, max, "dropped a message that no frame has room for");
    }
    bytes <= max
}

/// Stops a member's connections. Dropping it does so too.
pub(crate) struct TcpHandle {
    address: SocketAddr,
    running: Mutex<Option<Running>>,
}

struct Running {
    stopping: watch::Sender<bool>,
    ended: mpsc::Receiver<()>,
    runtime: Arc<NetRuntime>,
}

impl TcpHandle {
    /// The address that is listened on.
    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and all connections, and waits until the receiver will not be called any more.
    /// The last one to stop in a process ends the network's threads. Takes milliseconds, and at most
    /// two seconds if a receiver or the name service hangs. Not to be called by a receiver.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { stopping, ended, runtime }) = running else { return };
        stopping.send_replace(true);
        // Nothing is ever sent: the last task to end hangs up.
        if ended.recv_timeout(STOP_WAIT_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(address = %self.address, "the network did not stop: a receiver hangs");
        }
        drop(runtime);
    }
}

impl Drop for TcpHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Whether an address leads to this machine by its looks. A name that does may still resolve to
/// something else, so what it resolved to is judged again.
fn says_loopback(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => is_loopback(address.ip()),
        Err(_) => address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"),
    }
}

fn check_address(what: &str, address: &str) -> Result<(), TransportError> {
    let right = address.parse::<SocketAddr>().is_ok()
        || address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok()
        });
    if right {
        return Ok(());
    }
    Err(TransportError::Address { what: what.to_owned(), address: address.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_needs_no_leave() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(says_loopback(address), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1", "localhost.evil:1"] {
            assert!(!says_loopback(address), "{address}");
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
