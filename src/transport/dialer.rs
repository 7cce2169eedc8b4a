//! The sending side: maintains one connection to one peer on one lane.
//!
//! ```text
//!   dial ──► handshake ──► up: write the queue, send keepalives, read their echo ────────┐
//!    ▲           │                                                                       │
//!    └── pause ◄─┴───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A peer that is about to move is dialed at its old and its new address in turn. The host name is
//! resolved again for each connect (`names`). If a name has several addresses, each attempt starts
//! with the address after the one whose handshake failed last, because another program may listen
//! at that address.
//!
//! The pause between attempts grows to a maximum while connects or handshakes fail, or while
//! connections break soon. After a connection that lasted and was not rejected, the next attempt
//! follows without a pause, and the pause then starts small again. The first attempt shows whether
//! the peer's process has ended ([`evidence`](super::evidence)). The pause ends early if the peer
//! itself dials this member, because then the peer is reachable again, or if the peer moves to
//! another address. A connection to an address that the peer has left, or to an earlier incarnation
//! of the peer, is closed.
//!
//! **After a black hole.** A network may drop packets without closing anything. An attempt in
//! progress then stays silent for its whole handshake timeout, and an open connection for its idle
//! timeout. Therefore, while an attempt hangs or a connection is silent, a short new attempt is
//! made every `redial_every`. The first attempt that succeeds provides the connection.
//!
//! A connection on demand (for snapshots) is dialed when there is something to send, and closed
//! after it was unused for a while. See [`Pipe::wanted`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::context::{Context, Side};
use super::exchange::{self, Broken};
use super::frame::{self, FrameKind, FrameReader};
use super::names::Names;
use super::peers::{Peer, incarnation_of};
use super::pipe::{Dialing, Pipe, PipeBatch, is_transient};
use super::tcp::{TcpSettings, is_loopback};
use super::wire::Wire;
use crate::env::Entropy;
use crate::model::{Hello, Lane, NodeId};

/// Number of ticks without a byte from the peer after which a second connection is tried.
const SUSPICIOUS_TICKS: u32 = 2;

/// Maintains the connection until the peer is removed or the transport stops.
pub(super) async fn keep(context: Arc<Context>, peer: Arc<Peer>, lane: Lane) {
    let pipe = peer.pipe(lane);
    let mut target = peer.target();
    let mut pause = Pause::new(context.settings.pause_min, context.settings.pause_max);
    // `turn` is the index of the peer's address to dial next, and `first` that of the resolved
    // address to try first.
    let (mut turn, first) = (0_usize, AtomicUsize::new(0));
    loop {
        let address = match target.borrow_and_update().as_deref() {
            Some(places) => places[turn % places.len()].clone(),
            None => return,
        };
        let (context, peer) = (&*context, &*peer);
        let route = Route { context, peer, lane, address: &address, first: &first };
        tokio::select! {
            biased;
            () = left(&mut target, &address) => {
                pause.restart();
                turn = 0;
                first.store(0, Ordering::Relaxed);
                continue;
            }
            was_reached = route.run(&mut pause) => turn += usize::from(!was_reached),
        }
        tokio::select! {
            biased;
            _ = target.changed() => pause.restart(),
            () = tokio::time::sleep(pause.next(&*context.env.entropy)) => {}
            () = pipe.retry.notified() => {}
        }
    }
}

/// Waits until a peer's targets no longer include an address.
async fn left(target: &mut watch::Receiver<Option<Vec<String>>>, address: &String) {
    let is_left =
        |places: &Option<Vec<String>>| !places.iter().flatten().any(|place| place == address);
    target.wait_for(is_left).await.expect("the peer is there, and its target with it");
}

/// A connection whose handshake has succeeded, and the peer's hello.
type Established = (Wire, Hello);

/// One lane to one peer at one of its addresses.
struct Route<'a> {
    context: &'a Context,
    peer: &'a Peer,
    lane: Lane,
    address: &'a str,
    /// Index of the resolved address that the next attempt starts with.
    first: &'a AtomicUsize,
}

impl Route<'_> {
    /// Runs one connection, from the first attempt to its end. Returns whether the peer was
    /// reached.
    async fn run(&self, pause: &mut Pause) -> bool {
        let dialing = self.pipe().wanted().await;
        match self.reach().await {
            Ok(established) => {
                let began = self.context.env.clock.now();
                let end = self.hold(established, dialing).await;
                let (me, peer, lane) = (self.context.admission.me(), self.peer.id, self.lane);
                tracing::debug!(%me, %peer, ?lane, %end, "outgoing connection lost");
                let lasted = self.context.env.clock.now().since(began);
                self.context.has_closed(peer, lasted);
                match end {
                    Broken::Socket(_) if lasted >= self.context.settings.pause_max => {
                        pause.skip();
                    }
                    Broken::Socket(_) => {}
                    end => self.context.report(Side::Dialer, Some(peer), &end),
                }
                true
            }
            Err(broken) => {
                self.context.report_unreachable(self.peer, self.address, &broken);
                false
            }
        }
    }

    fn pipe(&self) -> &Pipe {
        self.peer.pipe(self.lane)
    }

    /// Dials until an attempt succeeds or fails. The first attempt may take the whole handshake
    /// timeout, because a slow network may need that long. But if the network drops the packets of
    /// this attempt, the attempt hangs for the whole timeout, although the peer may be reachable
    /// again. Therefore [`Self::probe`] makes further attempts in parallel.
    async fn reach(&self) -> Result<Established, Broken> {
        let settings = &self.context.settings;
        let first = self.connect(self.first.load(Ordering::Relaxed));
        let probe = async {
            tokio::select! {
                () = tokio::time::sleep(settings.redial_every) => {}
                () = peer_dialed(self.pipe(), settings) => {}
            }
            self.probe().await
        };
        tokio::select! {
            biased;
            tried = tokio::time::timeout(settings.handshake_timeout, first) => match tried {
                Ok(tried) => tried,
                Err(_) => Err(Broken::Socket(io::ErrorKind::TimedOut.into())),
            },
            established = probe => Ok(established),
        }
    }

    /// Makes one short attempt in each `redial_every` until one succeeds. The next attempt begins
    /// early if the peer itself dials.
    async fn probe(&self) -> Established {
        let settings = &self.context.settings;
        // If a name has several addresses, each attempt starts with another one.
        for number in 1.. {
            let first = self.first.load(Ordering::Relaxed).wrapping_add(number);
            let attempt = async {
                match self.connect(first).await {
                    Ok(established) => established,
                    Err(_) => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                tried = tokio::time::timeout(settings.redial_every, attempt) => {
                    if let Ok(established) = tried {
                        return established;
                    }
                }
                () = peer_dialed(self.pipe(), settings) => {}
            }
        }
        unreachable!("the numbers do not end")
    }

    /// Connects and performs the handshake once.
    async fn connect(&self, first: usize) -> Result<Established, Broken> {
        let context = self.context;
        let opened = open(self.address, &context.names, &context.settings, first).await;
        let (peer, addresses) = (self.peer.id, self.peer.addresses());
        context.presence.dialed(peer, self.address, &addresses, &opened);
        let (tcp, at) = opened?;
        // If the handshake fails because this address belongs to another program, the next attempt
        // starts with the next address.
        self.first.store(at + 1, Ordering::Relaxed);
        let again = async {
            let again = open(self.address, &context.names, &context.settings, at).await?;
            Ok(again.0)
        };
        let mut stream = context.security.dial(tcp, again).await?;
        let hello =
            exchange::dial(&mut stream, self.peer.id, self.lane, &context.admission).await?;
        self.first.store(at, Ordering::Relaxed);
        Ok((stream, hello))
    }

    /// Serves a connection until it breaks. While the peer is silent, a new connection may replace
    /// the current one.
    async fn hold(&self, mut established: Established, dialing: Dialing<'_>) -> Broken {
        let (context, peer) = (self.context, self.peer);
        let me = context.admission.me();
        // Messages that waited for the connection are sent once the pipe is up.
        let mut dialing = Some(dialing);
        let mut earlier = None;
        loop {
            let (stream, hello) = established;
            context.warn_if_bare(&stream, peer.id, self.lane);
            tracing::debug!(%me, peer = %peer.id, lane = ?self.lane, "connected to member");
            let life = incarnation_of(&hello);
            peer.met(life);
            // The new connection is counted before the earlier one ends, so that the peer does not
            // count as disconnected in between.
            let presence = context.presence.enter(peer.id, hello);
            drop(earlier.replace(presence));
            let stream = Arc::new(stream);
            let up = self.pipe().up(stream.clone());
            drop(dialing.take());
            let silent = watch::Sender::new(false);
            established = tokio::select! {
                biased;
                () = peer.reconnects_as_another(life) => {
                    return Broken::Socket(io::Error::other("the peer has connected in another incarnation"));
                }
                end = serve(context, self.pipe(), &stream, peer.id, &silent) => {
                    // Close the pipe before reporting the end to the receiver, so that no message
                    // is queued for this connection after that.
                    drop(up);
                    if let Some(presence) = earlier.take() {
                        presence.end(&end);
                    }
                    return end;
                }
                fresh = self.replace(&silent) => fresh,
            };
            tracing::debug!(%me, peer = %peer.id, lane = ?self.lane, "replaced silent connection");
        }
    }

    /// Makes a new connection while the current one is silent. The network may have lost packets of
    /// the current connection, and TCP retransmits them only after longer and longer pauses.
    async fn replace(&self, silent: &watch::Sender<bool>) -> Established {
        let mut silent = silent.subscribe();
        loop {
            let is_silent = silent.wait_for(|silent| *silent).await.is_ok();
            tokio::select! {
                biased;
                _ = silent.wait_for(|silent| !*silent) => {}
                established = self.probe(), if is_silent => return established,
            }
        }
    }
}

/// Waits until the peer itself dials this member. The peer is then reachable again, so an attempt
/// that hangs should be replaced. An attempt younger than the shortest pause does not count as
/// hanging.
async fn peer_dialed(pipe: &Pipe, settings: &TcpSettings) {
    tokio::time::sleep(settings.pause_min).await;
    pipe.retry.notified().await;
}

/// Connects to the first address of the name that answers, starting with the address at index
/// `first`. Returns the connection and the index.
pub(super) async fn open(
    address: &str,
    names: &Names,
    settings: &TcpSettings,
    first: usize,
) -> io::Result<(TcpStream, usize)> {
    let addresses = names.addresses(address, settings.handshake_timeout / 4).await?;
    let mut error = None;
    // An address that drops packets must not use up the time for the next addresses.
    let count = addresses.len();
    let share = settings.handshake_timeout / u32::try_from(count).unwrap_or(1).max(1);
    let limit = share.min(settings.connect_timeout);
    for at in (first..first + count).map(|at| at % count) {
        let address = addresses[at];
        if !settings.allows_other_machines() && !is_loopback(address.ip()) {
            error = Some(io::Error::other(
                "the name resolves to a non-loopback address, and insecure_peers is not set",
            ));
            continue;
        }
        match tokio::time::timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok((stream, at));
            }
            // The result is "connection refused" only if every address refuses the connection.
            Ok(Err(refused)) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                error.get_or_insert(refused);
            }
            Ok(Err(other)) => error = Some(other),
            Err(_) => error = Some(io::ErrorKind::TimedOut.into()),
        }
    }
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    Err(error.unwrap_or_else(nowhere))
}

/// Serves a connection until it breaks.
async fn serve(
    context: &Context,
    pipe: &Pipe,
    stream: &Wire,
    peer: NodeId,
    silent: &watch::Sender<bool>,
) -> Broken {
    let mut alive = Vec::new();
    frame::put_frame(&mut alive, FrameKind::Alive, |_| {});
    let mut tick = tokio::time::interval(context.settings.tick());
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut ticks, mut silent_ticks) = (0_u32, 0);
    let silent_ticks_max = context.settings.silent_ticks_max();
    let mut trust_recheck = context.security.trust_recheck();
    let mut echoes = FrameReader::new(frame::REFUSED_BODY_BYTES_MAX);
    // The bytes being written are `batch[at..]`.
    let (mut batch, mut at) = (Vec::new(), 0);
    loop {
        tokio::select! {
            ready = stream.writable(), if at < batch.len() || stream.is_pending() => {
                if let Err(error) = ready {
                    return error.into();
                }
                let written = if at < batch.len() {
                    stream.try_write(&batch[at..])
                } else {
                    stream.try_flush().map(|()| 0)
                };
                match written {
                    // A successful write does not prove that the peer is alive: the system buffers
                    // a lot without an acknowledgement.
                    Ok(written) => at += written,
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return error.into(),
                }
                if pipe.is_on_demand() {
                    // Bulk data is not urgent, so other tasks run first.
                    tokio::task::yield_now().await;
                }
            }
            () = trust_recheck.raised() => {
                if let Err(error) = trust_recheck.settle(stream) {
                    return error.into();
                }
            }
            () = pipe.work.notified(), if at == batch.len() => {}
            ready = stream.readable() => {
                if let Err(error) = ready {
                    return error.into();
                }
                match stream.try_read_buf(echoes.buffer()) {
                    Ok(0) => return Broken::Socket(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {
                        silent_ticks = 0;
                        silent.send_if_modified(std::mem::take);
                    }
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return error.into(),
                }
                loop {
                    match echoes.next() {
                        Ok(None) => break,
                        Ok(Some(echo)) if echo.kind == FrameKind::Alive => {}
                        Ok(Some(last)) if last.kind.refuses() => {
                            let why = exchange::rejection_of(&last, context.admission.me());
                            return Broken::Refused { peer, why };
                        }
                        Ok(Some(other)) => {
                            return Broken::Garbage(format!("unexpected frame {:?} from the acceptor", other.kind));
                        }
                        Err(error) => return error.into(),
                    }
                }
            }
            _ = tick.tick() => {
                if silent_ticks >= silent_ticks_max {
                    return Broken::Socket(io::ErrorKind::TimedOut.into());
                }
                if silent_ticks == SUSPICIOUS_TICKS {
                    silent.send_replace(true);
                }
                (ticks, silent_ticks) = (ticks.wrapping_add(1), silent_ticks + 1);
                echoes.rest();
                if ticks.is_multiple_of(silent_ticks_max) && pipe.close_if_unused() {
                    return Broken::Socket(io::Error::other("the connection was unused for a while"));
                }
                pipe.send_alive(&alive);
            }
        }
        if at == batch.len() {
            at = 0;
            if let PipeBatch::Down(kind) = pipe.next_batch(&mut batch) {
                return Broken::Socket(kind.into());
            }
        }
    }
}

/// The pause before dialing again. The pause doubles each time up to a maximum. The actual pause is
/// a random value from the upper half of the range, so that members do not dial at the same times.
struct Pause {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pause {
    fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    fn restart(&mut self) {
        self.next = self.min;
    }

    /// Makes the next pause zero, and the one after it the shortest.
    fn skip(&mut self) {
        self.next = Duration::ZERO;
    }

    fn next(&mut self, entropy: &dyn Entropy) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).clamp(self.min, self.max);
        let half = u64::try_from(pause.as_micros() / 2).unwrap_or(u64::MAX - 1);
        pause - Duration::from_micros(entropy.below(half + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::OsEntropy;

    #[test]
    fn redial_pause_doubles_up_to_its_maximum_and_resets() {
        let ms = Duration::from_millis;
        let mut pause = Pause::new(ms(20), ms(500));
        for whole in [20, 40, 80, 160, 320, 500, 500] {
            let next = pause.next(&OsEntropy);
            assert!(ms(whole) / 2 <= next && next <= ms(whole), "{next:?} of {whole} ms");
        }
        pause.restart();
        assert!(pause.next(&OsEntropy) <= ms(20));
        pause.skip();
        assert_eq!(pause.next(&OsEntropy), ms(0));
        assert!((ms(10)..=ms(20)).contains(&pause.next(&OsEntropy)));
    }
}
