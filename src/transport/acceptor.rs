//! The receiving side: the listener, and the connections that peers have dialed to this member.
//!
//! The number of connections that have not completed their handshake is limited. When the limit is
//! exceeded, one of these connections is closed. If one address has more pending connections than a
//! real member ever opens, a connection from the address with the most pending connections is
//! closed. Otherwise a connection from any address may be closed. Among the candidates, the oldest
//! silent connection is closed. A connection is silent until the caller has sent its preface or, if
//! certificates are used, has proven its identity. If no connection is silent, the oldest candidate
//! is closed. A member sends its preface within milliseconds, so its connection is unlikely to be
//! closed. Therefore a flood of silent connections costs only a few tasks, and a flood from one
//! address displaces only connections from that address.
//!
//! After the handshake there is one connection for each peer and lane (see the [module page](super)
//! on lanes). A newer connection replaces the older one. The newer connection is read only after
//! the older one has delivered its last message, so that the order of messages is preserved.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::MissedTickBehavior;

use super::context::{Context, Side};
use super::exchange::{self, Broken, Met};
use super::frame::{self, Frame, FrameKind, FrameReader};
use super::handshake::HelloRejection;
use super::join;
use super::peers::{LANES, Life, incarnation_of};
use super::pipe::is_transient;
use super::wire::Wire;
use crate::codec;
use crate::model::{Hello, Lane, Moment, NodeId, PeerMessage};

/// Pause after the operating system fails to accept a connection, because it has run out of a
/// resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Period in which replacements of open connections are counted.
const CONTEST_TIME: Duration = Duration::from_secs(60);
/// Maximum number of replacements in that period. A member with ordinary connection failures stays
/// below this limit. Two processes with the same identity exceed the limit.
const CONTESTS_MAX: u32 = 30;

/// Accepts connections until the transport stops.
pub(super) async fn listen(context: Arc<Context>, listener: TcpListener) {
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                failing = false;
                // The connection is counted before its task runs, so that the limit also applies to
                // connections that arrive in a flood.
                let waiting = AcceptorWaiting::begin(context.clone(), origin(from.ip()));
                let context = context.clone();
                tokio::spawn(async move {
                    context.until_stopped(welcome(&context, stream, waiting)).await;
                });
                // During a flood, connections with data are served before the next one is accepted.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                if !failing {
                    let me = context.admission.me();
                    tracing::warn!(%me, %error, "cannot accept connections; retrying");
                }
                failing = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns the group in which connections are counted together: a single IPv4 address, or an IPv6
/// network. One host may have a whole network of IPv6 addresses.
fn origin(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Serves one connection from its first byte to its last.
async fn welcome(context: &Context, tcp: TcpStream, waiting: AcceptorWaiting) {
    let handshake = async {
        tcp.set_nodelay(true)?;
        let mut stream = context.security.accept(tcp).await?;
        let preface = exchange::hear(&mut stream).await?;
        waiting.record_preface();
        let met = exchange::accept(&mut stream, preface, context).await?;
        Ok((stream, met))
    };
    let met = tokio::select! {
        met = tokio::time::timeout(context.settings.handshake_timeout, handshake) => met,
        () = waiting.evicted.notified() => return,
    };
    drop(waiting);
    match met {
        Ok(Ok((stream, Met::Member(hello, lane)))) => serve(context, stream, hello, lane).await,
        Ok(Ok((stream, Met::Joiner(ask)))) => join::answer(context, stream, ask).await,
        Ok(Err(broken)) => context.report(Side::Acceptor, None, &broken),
        Err(_) => {
            let timed_out = Broken::Socket(io::ErrorKind::TimedOut.into());
            context.report(Side::Acceptor, None, &timed_out);
        }
    }
}

/// Serves a connection of a member after its handshake.
async fn serve(context: &Context, stream: Wire, hello: Hello, lane: Lane) {
    let peer = hello.from;
    let (seat, before) = context.incoming.register(lane, &hello, context.env.clock.now());
    if seat.replacements == CONTESTS_MAX {
        let (me, name) = (context.admission.me(), context.admission.name(peer));
        tracing::warn!(
            %me, %peer, name, ?lane, replaced = CONTESTS_MAX,
            "member keeps replacing its own open connections; if two processes run with copies of one \
             data directory, stop one of them, empty its directory, and let it join as a new member"
        );
    }
    if let Some(before) = before {
        // Wait until the older connection has ended and drops its end of the channel. The result is
        // always an error.
        let _ = before.await;
    }
    context.peers.record_connection(peer, incarnation_of(&hello));
    context.warn_if_bare(&stream, peer, lane);
    let presence = context.presence.enter(peer, hello.clone());
    let began = context.env.clock.now();
    let end = tokio::select! {
        biased;
        () = seat.replaced.notified() => {
            Broken::Socket(io::Error::other("replaced by a newer connection"))
        }
        end = receive(context, stream, &hello, lane, &seat) => end,
    };
    presence.end(&end);
    context.has_closed(peer, context.env.clock.now().since(began));
    context.incoming.leave(peer, lane, seat.number);
    tracing::debug!(me = %context.admission.me(), %peer, ?lane, %end, "incoming connection lost");
    if !matches!(end, Broken::Socket(_)) {
        context.report(Side::Acceptor, Some(peer), &end);
    }
}

/// Delivers incoming messages until the connection breaks.
async fn receive(
    context: &Context,
    mut stream: Wire,
    hello: &Hello,
    lane: Lane,
    seat: &Seat,
) -> Broken {
    let mut alive = Vec::new();
    frame::put_frame(&mut alive, FrameKind::Alive, |_| {});
    let mut frames = FrameReader::new(frame::body_bytes_max(lane));
    let mut trust_recheck = context.security.trust_recheck();
    let mut tick = tokio::time::interval(context.settings.tick());
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent_ticks, silent_ticks_max) = (0, context.settings.silent_ticks_max());
    // True if data has arrived since this side last sent a keepalive.
    let mut owes = false;
    loop {
        tokio::select! {
            ready = stream.readable() => {
                if let Err(error) = ready {
                    return error.into();
                }
                match stream.try_read_buf(frames.buffer()) {
                    Ok(0) => return Broken::Socket(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => (silent_ticks, owes) = (0, true),
                    Err(error) if is_transient(&error) => continue,
                    Err(error) => return error.into(),
                }
            }
            _ = tick.tick() => {
                if silent_ticks >= silent_ticks_max {
                    return Broken::Socket(io::ErrorKind::TimedOut.into());
                }
                silent_ticks += 1;
                // Acknowledge any data, because the dialer's own keepalive may be queued after a
                // lot of other data.
                if std::mem::take(&mut owes)
                    && let Err(broken) = send_keepalive(&stream, &alive)
                {
                    return broken;
                }
                frames.rest();
                continue;
            }
            () = seat.recheck.notified() => {
                if let Err(rejection) = admit(context, hello, &stream) {
                    return exchange::reject_peer(&mut stream, &[], hello.from, rejection.into()).await;
                }
                continue;
            }
            () = trust_recheck.raised() => {
                if let Err(error) = trust_recheck.settle(&stream) {
                    return error.into();
                }
                continue;
            }
        }
        loop {
            match frames.next() {
                Ok(None) => break,
                Ok(Some(frame)) if frame.kind == FrameKind::Alive => {
                    owes = false;
                    if let Err(broken) = send_keepalive(&stream, &alive) {
                        return broken;
                    }
                }
                Ok(Some(frame)) => {
                    if let Err(broken) = deliver(context, frame, hello, &stream) {
                        return match broken {
                            Broken::Refused { peer, why } => {
                                exchange::reject_peer(&mut stream, &[], peer, why).await
                            }
                            other => other,
                        };
                    }
                }
                Err(error) => return error.into(),
            }
        }
        if lane == Lane::Snapshot {
            // New data may always be available, so let other tasks run before the next read.
            tokio::task::yield_now().await;
        }
    }
}

/// Replies to a keepalive.
fn send_keepalive(stream: &Wire, alive: &[u8]) -> Result<(), Broken> {
    match stream.try_write(alive) {
        Ok(written) if written == alive.len() => Ok(()),
        Ok(_) => Err(Broken::Socket(io::Error::other("a keepalive was only partly written"))),
        // The socket is full because the dialer does not read at the moment, so this keepalive is
        // skipped. The dialer will receive the next one, or close the connection.
        Err(error) if is_transient(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Checks whether the sender of `hello`, at the other end of `stream`, may talk to this member now.
fn admit(context: &Context, hello: &Hello, stream: &Wire) -> Result<(), HelloRejection> {
    let mine = context.admission.hello(hello.from);
    context.admission.admit(&mine, hello, stream.proven_name())
}

fn deliver(context: &Context, frame: Frame, hello: &Hello, stream: &Wire) -> Result<(), Broken> {
    let peer = hello.from;
    if frame.kind != FrameKind::Message {
        return Err(Broken::Garbage(format!(
            "unexpected frame {:?} instead of a message",
            frame.kind
        )));
    }
    let message = match codec::decode_message(frame.body) {
        Ok(message) => message,
        Err(error) => {
            let why = format!("cannot decode a message of member {peer}: {error}");
            return Err(Broken::Refused { peer, why: why.into() });
        }
    };
    if let PeerMessage::Hello(newer) = &message {
        if (newer.from, newer.disk, newer.incarnation) != (peer, hello.disk, hello.incarnation) {
            return Err(Broken::Garbage("a hello from another member".to_owned()));
        }
        admit(context, newer, stream)
            .map_err(|rejection| Broken::Refused { peer, why: rejection.into() })?;
    }
    context.receiver.deliver(peer, message);
    Ok(())
}

/// The connections that other processes have dialed.
#[derive(Default)]
pub(super) struct Incoming {
    state: Mutex<IncomingState>,
}

#[derive(Default)]
struct IncomingState {
    /// Number of the last connection. Each gets a unique number.
    last_number: u64,
    /// Connections in their handshake that have not sent a preface, oldest first.
    without_preface: BTreeMap<u64, AcceptorNewcomer>,
    /// Connections in their handshake that have sent a preface, oldest first.
    with_preface: BTreeMap<u64, AcceptorNewcomer>,
    /// Connections after their handshake.
    seated: BTreeMap<(NodeId, Lane), Seated>,
}

/// A connection in its handshake.
struct AcceptorNewcomer {
    origin: IpAddr,
    evicted: Arc<Notify>,
}

impl IncomingState {
    /// Closes one connection whose handshake is not complete. The module page states how the
    /// connection is chosen.
    fn evict_one(&mut self) {
        let mut crowds: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for newcomer in self.without_preface.values().chain(self.with_preface.values()) {
            *crowds.entry(newcomer.origin).or_default() += 1;
        }
        // A member makes at most two attempts at a time on each lane, so up to this number of
        // connections from one address is normal.
        let few = 2 * LANES.len();
        let size = |origin: &IpAddr| crowds.get(origin).copied().unwrap_or_default().max(few);
        let most = crowds.keys().map(size).max();
        let oldest = |newcomers: &BTreeMap<u64, AcceptorNewcomer>| {
            let mut all = newcomers.iter();
            let of_most = all.find(|(_, one)| Some(size(&one.origin)) == most);
            of_most.map(|(number, _)| *number)
        };
        let evicted = match oldest(&self.without_preface) {
            Some(number) => self.without_preface.remove(&number),
            None => oldest(&self.with_preface).and_then(|number| self.with_preface.remove(&number)),
        };
        evicted.expect("there are some").evicted.notify_one();
    }
}

struct Seated {
    number: u64,
    life: Life,
    /// Start of the current period, and the number of replacements in it.
    replacements: (Moment, u32),
    replaced: Arc<Notify>,
    recheck: Arc<Notify>,
    ended: oneshot::Receiver<()>,
}

/// A connection in its handshake.
struct AcceptorWaiting {
    context: Arc<Context>,
    number: u64,
    evicted: Arc<Notify>,
}

impl AcceptorWaiting {
    /// Counts a new connection. If there are too many connections, closes another connection.
    fn begin(context: Arc<Context>, origin: IpAddr) -> Self {
        let mut state = context.incoming.state();
        while state.without_preface.len() + state.with_preface.len()
            >= context.settings.handshakes_max.max(1)
        {
            state.evict_one();
        }
        state.last_number += 1;
        let (number, evicted) = (state.last_number, Arc::new(Notify::new()));
        state.without_preface.insert(number, AcceptorNewcomer { origin, evicted: evicted.clone() });
        drop(state);
        Self { context, number, evicted }
    }

    /// Records that the connection has sent a preface.
    fn record_preface(&self) {
        let mut state = self.context.incoming.state();
        if let Some(newcomer) = state.without_preface.remove(&self.number) {
            state.with_preface.insert(self.number, newcomer);
        }
    }
}

impl Drop for AcceptorWaiting {
    fn drop(&mut self) {
        let mut state = self.context.incoming.state();
        state.without_preface.remove(&self.number);
        state.with_preface.remove(&self.number);
    }
}

/// A connection after its handshake.
struct Seat {
    number: u64,
    /// Number of recent connections of this incarnation that replaced an open one, including this
    /// one.
    replacements: u32,
    /// Notified when a newer connection has replaced this connection.
    replaced: Arc<Notify>,
    /// Notified when the membership has changed.
    recheck: Arc<Notify>,
    /// Dropped at the end of the connection. The connection that replaces this one waits for the
    /// drop.
    _ended: oneshot::Sender<()>,
}

impl Incoming {
    fn state(&self) -> MutexGuard<'_, IncomingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the connection for its lane and asks the previous connection to end. The returned
    /// receiver resolves when the previous connection has ended.
    fn register(
        &self,
        lane: Lane,
        hello: &Hello,
        now: Moment,
    ) -> (Seat, Option<oneshot::Receiver<()>>) {
        let mut state = self.state();
        let life = incarnation_of(hello);
        // A connection of another incarnation, on any lane, belongs to a process that no longer
        // exists, so it is closed.
        for (place, seated) in &state.seated {
            if *place == (hello.from, lane) || (place.0 == hello.from && seated.life != life) {
                seated.replaced.notify_one();
            }
        }
        state.last_number += 1;
        let number = state.last_number;
        let (replaced, recheck) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        // Check the new connection once more, because the membership may have changed since its
        // hello was checked.
        recheck.notify_one();
        let (sender, ended) = oneshot::channel();
        let before = state.seated.remove(&(hello.from, lane));
        let replacements = match &before {
            Some(before) if before.life != life => (now, 0),
            Some(before) if now.since(before.replacements.0) > CONTEST_TIME => (now, 1),
            Some(before) => (before.replacements.0, before.replacements.1.saturating_add(1)),
            None => (now, 0),
        };
        let seated = Seated {
            number,
            life,
            replacements,
            replaced: replaced.clone(),
            recheck: recheck.clone(),
            ended,
        };
        state.seated.insert((hello.from, lane), seated);
        let seat = Seat { number, replacements: replacements.1, replaced, recheck, _ended: sender };
        (seat, before.map(|before| before.ended))
    }

    /// Makes every connection check its peer again, because the membership has changed.
    pub(super) fn recheck(&self) {
        for seated in self.state().seated.values() {
            seated.recheck.notify_one();
        }
    }

    /// Unregisters the connection, unless a newer one has replaced it.
    fn leave(&self, peer: NodeId, lane: Lane, number: u64) {
        let mut state = self.state();
        if state.seated.get(&(peer, lane)).is_some_and(|seated| seated.number == number) {
            state.seated.remove(&(peer, lane));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;
    use crate::model::{ClusterId, DiskId, FoundingState, Incarnation};
    use crate::model::{ClusterVersion, LogIndex};

    fn hello(incarnation: u64) -> Hello {
        Hello {
            cluster: ClusterId(7),
            from: node(2),
            to: node(1),
            disk: DiskId(2),
            incarnation: Incarnation(incarnation),
            standing: FoundingState::Blank,
            since: LogIndex(1),
            address: String::new(),
            supported_version: ClusterVersion::NEWEST,
        }
    }

    #[test]
    fn competing_connections_are_counted() {
        let (incoming, begin) = (Incoming::default(), Moment::since_boot(Duration::ZERO));
        let register = |incarnation, seconds| {
            let now = begin + Duration::from_secs(seconds);
            incoming.register(Lane::Control, &hello(incarnation), now).0
        };
        let counts: Vec<u32> = (0..4).map(|second| register(1, second).replacements).collect();
        assert_eq!(counts, [0, 1, 2, 3]);
        assert_eq!(register(1, 60).replacements, 4);
        assert_eq!(register(1, 61).replacements, 1, "another minute");
        // A connection of a later incarnation does not count as a replacement, and neither does a
        // connection after the previous one has ended.
        assert_eq!(register(2, 61).replacements, 0);
        let last = register(2, 62);
        incoming.leave(node(2), Lane::Control, last.number);
        assert_eq!((last.replacements, register(2, 62).replacements), (1, 0));
    }

    #[test]
    fn a_newer_connection_waits_until_the_older_has_ended() {
        let (incoming, now) = (Incoming::default(), Moment::since_boot(Duration::ZERO));
        let (first, before) = incoming.register(Lane::Control, &hello(1), now);
        assert!(before.is_none());
        let (other_lane, before) = incoming.register(Lane::Bulk, &hello(1), now);
        assert!(before.is_none());
        let (second, before) = incoming.register(Lane::Control, &hello(1), now);
        let mut before = before.expect("the first");
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        // When the first connection leaves, the second connection stays registered.
        incoming.leave(node(2), Lane::Control, first.number);
        drop(first);
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (_third, before) = incoming.register(Lane::Control, &hello(2), now);
        assert!(before.is_some(), "the second has lost its place");
        drop((second, other_lane));
    }
}
