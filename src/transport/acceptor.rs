//! The receiving end: the listener, and the connections that peers have dialed.
//!
//! A connection is nobody's until its handshake is over. Those in between are counted; one too many
//! ends one of the address that has most, if that has more than a member makes, or else of any: the
//! oldest of those that have not sent a preface (and with certificates, not proven anything before it),
//! because members need milliseconds for it and the silent stay; only if there are none, the oldest of
//! the others. So any number of silent connections costs a few tasks, and whoever makes them at one
//! address ends its own. After it, there is one connection for each peer and lane: a newer one ends the
//! older, and begins to read only when that has delivered its last message, so that the order holds.

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
use super::peers::{LANES, Life, life_of};
use super::pipe::is_passing;
use super::wire::Wire;
use crate::codec;
use crate::model::{Hello, Lane, Moment, NodeId, PeerMessage};

/// How long to wait after the operating system would not give a connection: it is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// In this time connections that take the place of living ones are counted.
const CONTEST_TIME: Duration = Duration::from_secs(60);
/// As often no member does that whose connections die by themselves.
const CONTESTS_MAX: u32 = 30;

/// Accepts connections until the transport stops.
pub(super) async fn listen(context: Arc<Context>, listener: TcpListener) {
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                failing = false;
                // Counted before the task runs, so that a flood is bounded while it comes in.
                let waiting = Waiting::begin(context.clone(), origin(from.ip()));
                let context = context.clone();
                tokio::spawn(async move {
                    context.until_stopped(welcome(&context, stream, waiting)).await;
                });
                // In a flood, those that have something to say are heard before the next comes in.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                if !failing {
                    let me = context.admission.me();
                    tracing::warn!(%me, "cannot accept connections, trying on: {error}");
                }
                failing = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whose connections are counted together: those of one address, or of one network of IPv6, in which anybody has
/// addresses without number.
fn origin(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// One connection from its first byte to its last.
async fn welcome(context: &Context, tcp: TcpStream, waiting: Waiting) {
    let handshake = async {
        tcp.set_nodelay(true)?;
        let mut stream = context.security.accept(tcp).await?;
        let preface = exchange::hear(&mut stream).await?;
        waiting.supported_version();
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
            let silent = Broken::Socket(io::ErrorKind::TimedOut.into());
            context.report(Side::Acceptor, None, &silent);
        }
    }
}

/// A connection of a member, after its handshake.
async fn serve(context: &Context, stream: Wire, hello: Hello, lane: Lane) {
    let peer = hello.from;
    let (seat, before) = context.incoming.seat(lane, &hello, context.env.clock.now());
    if seat.contests == CONTESTS_MAX {
        let (me, name) = (context.admission.me(), context.admission.name(peer));
        tracing::warn!(
            %me, %peer, name, ?lane,
            "a member has dialed {CONTESTS_MAX} times in a minute while its connection before was still there: if two \
             processes run with copies of one data directory, stop one of them, empty its directory, and let it join \
             as a new member"
        );
    }
    if let Some(before) = before {
        // Ends with an error when the older connection drops its end.
        let _ = before.await;
    }
    context.peers.heard_from(peer, life_of(&hello));
    context.warn_if_bare(&stream, peer, lane);
    let presence = context.presence.enter(peer, hello.clone());
    let end = tokio::select! {
        biased;
        () = seat.replaced.notified() => {
            Broken::Socket(io::Error::other("replaced by a newer connection"))
        }
        end = receive(context, stream, &hello, lane, &seat) => end,
    };
    drop(presence);
    context.incoming.leave(peer, lane, seat.number);
    tracing::debug!(me = %context.admission.me(), %peer, ?lane, "connection from it lost: {end}");
    if !matches!(end, Broken::Socket(_)) {
        context.report(Side::Acceptor, Some(peer), &end);
    }
}

/// Delivers what arrives until the connection breaks.
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
    let mut doubt = context.security.doubt();
    let mut tick = tokio::time::interval(context.settings.tick());
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut silent_ticks, silent_ticks_max) = (0, context.settings.silent_ticks_max());
    // Something has come since this end has last said that it lives.
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
                    Err(error) if is_passing(&error) => continue,
                    Err(error) => return error.into(),
                }
            }
            _ = tick.tick() => {
                if silent_ticks >= silent_ticks_max {
                    return Broken::Socket(io::ErrorKind::TimedOut.into());
                }
                silent_ticks += 1;
                // The dialer's own sign of life may stand behind much else that is on its way.
                if std::mem::take(&mut owes)
                    && let Err(broken) = say_alive(&stream, &alive)
                {
                    return broken;
                }
                frames.rest();
                continue;
            }
            () = seat.judge_again.notified() => {
                if let Err(refusal) = admit(context, hello, &stream) {
                    return exchange::turn_away(&mut stream, &[], hello.from, refusal.into()).await;
                }
                continue;
            }
            () = doubt.raised() => {
                if let Err(error) = doubt.settle(&stream) {
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
                    if let Err(broken) = say_alive(&stream, &alive) {
                        return broken;
                    }
                }
                Ok(Some(frame)) => {
                    if let Err(broken) = deliver(context, frame, hello, &stream) {
                        return match broken {
                            Broken::Refused { peer, why } => {
                                exchange::turn_away(&mut stream, &[], peer, why).await
                            }
                            other => other,
                        };
                    }
                }
                Err(error) => return error.into(),
            }
        }
        if lane == Lane::Snapshot {
            // There is always more of it: whoever else has something to do comes first.
            tokio::task::yield_now().await;
        }
    }
}

/// Answers a sign of life.
fn say_alive(stream: &Wire, alive: &[u8]) -> Result<(), Broken> {
    match stream.try_write(alive) {
        Ok(written) if written == alive.len() => Ok(()),
        Ok(_) => Err(Broken::Socket(io::Error::other("half a sign of life was written"))),
        // The dialer reads nothing. It will hear the next one, or hang up.
        Err(error) if is_passing(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the sender of `hello`, at the other end of `stream`, may talk to this member now.
fn admit(context: &Context, hello: &Hello, stream: &Wire) -> Result<(), HelloRejection> {
    let mine = context.admission.hello(hello.from);
    context.admission.admit(&mine, hello, stream.proven_name())
}

fn deliver(context: &Context, frame: Frame, hello: &Hello, stream: &Wire) -> Result<(), Broken> {
    let peer = hello.from;
    if frame.kind != FrameKind::Message {
        return Err(Broken::Garbage(format!("{:?} where a message belongs", frame.kind)));
    }
    let message = match codec::decode_message(frame.body) {
        Ok(message) => message,
        Err(error) => {
            let why = format!("member {peer} sent a message that cannot be read: {error}");
            return Err(Broken::Refused { peer, why: why.into() });
        }
    };
    if let PeerMessage::Hello(newer) = &message {
        if (newer.from, newer.disk, newer.incarnation) != (peer, hello.disk, hello.incarnation) {
            return Err(Broken::Garbage("a hello of somebody else".to_owned()));
        }
        admit(context, newer, stream)
            .map_err(|refusal| Broken::Refused { peer, why: refusal.into() })?;
    }
    context.receiver.deliver(peer, message);
    Ok(())
}

/// The connections that others have dialed.
#[derive(Default)]
pub(super) struct Incoming {
    state: Mutex<IncomingState>,
}

#[derive(Default)]
struct IncomingState {
    /// Counts connections; names each.
    last_number: u64,
    /// In their handshake, and no preface was heard of them yet; the oldest first.
    silent: BTreeMap<u64, Newcomer>,
    /// In their handshake, and they have begun it; the oldest first.
    speaking: BTreeMap<u64, Newcomer>,
    /// After it.
    seated: BTreeMap<(NodeId, Lane), Seated>,
}

/// One in its handshake.
struct Newcomer {
    origin: IpAddr,
    evicted: Arc<Notify>,
}

impl IncomingState {
    /// Ends a connection in its handshake: see the module for which.
    fn evict_one(&mut self) {
        let mut crowds: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for newcomer in self.silent.values().chain(self.speaking.values()) {
            *crowds.entry(newcomer.origin).or_default() += 1;
        }
        // A member makes at most two attempts at a time on each lane: that is no crowd.
        let few = 2 * LANES.len();
        let size = |origin: &IpAddr| crowds.get(origin).copied().unwrap_or_default().max(few);
        let most = crowds.keys().map(size).max();
        let oldest = |newcomers: &BTreeMap<u64, Newcomer>| {
            let mut all = newcomers.iter();
            let of_most = all.find(|(_, one)| Some(size(&one.origin)) == most);
            of_most.map(|(number, _)| *number)
        };
        let evicted = match oldest(&self.silent) {
            Some(number) => self.silent.remove(&number),
            None => oldest(&self.speaking).and_then(|number| self.speaking.remove(&number)),
        };
        evicted.expect("there are some").evicted.notify_one();
    }
}

struct Seated {
    number: u64,
    life: Life,
    /// Since when connections that take its place are counted, and how many there were.
    contests: (Moment, u32),
    replaced: Arc<Notify>,
    judge_again: Arc<Notify>,
    ended: oneshot::Receiver<()>,
}

/// A connection in its handshake.
struct Waiting {
    context: Arc<Context>,
    number: u64,
    evicted: Arc<Notify>,
}

impl Waiting {
    /// Counts a new connection, and ends another if there are too many.
    fn begin(context: Arc<Context>, origin: IpAddr) -> Self {
        let mut state = context.incoming.state();
        while state.silent.len() + state.speaking.len() >= context.settings.handshakes_max.max(1) {
            state.evict_one();
        }
        state.last_number += 1;
        let (number, evicted) = (state.last_number, Arc::new(Notify::new()));
        state.silent.insert(number, Newcomer { origin, evicted: evicted.clone() });
        drop(state);
        Self { context, number, evicted }
    }

    /// A preface was heard.
    fn supported_version(&self) {
        let mut state = self.context.incoming.state();
        if let Some(newcomer) = state.silent.remove(&self.number) {
            state.speaking.insert(self.number, newcomer);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.context.incoming.state();
        state.silent.remove(&self.number);
        state.speaking.remove(&self.number);
    }
}

/// A connection after its handshake.
struct Seat {
    number: u64,
    /// How many connections of this life have taken a living one's place of late, with this one.
    contests: u32,
    /// A newer connection has taken its place.
    replaced: Arc<Notify>,
    /// Who belongs to the cluster has changed.
    judge_again: Arc<Notify>,
    /// Dropped at the end: the next connection waits for it.
    _ended: oneshot::Sender<()>,
}

impl Incoming {
    fn state(&self) -> MutexGuard<'_, IncomingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection's place on its lane. Whoever had it is told to end; the receiver waits
    /// until it has.
    fn seat(
        &self,
        lane: Lane,
        hello: &Hello,
        now: Moment,
    ) -> (Seat, Option<oneshot::Receiver<()>>) {
        let mut state = self.state();
        let life = life_of(hello);
        // A connection of an earlier life on another lane is of a process that has gone.
        for (place, seated) in &state.seated {
            if *place == (hello.from, lane) || (place.0 == hello.from && seated.life != life) {
                seated.replaced.notify_one();
            }
        }
        state.last_number += 1;
        let number = state.last_number;
        let (replaced, judge_again) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        // Who belongs to the cluster may have changed since it was judged.
        judge_again.notify_one();
        let (sender, ended) = oneshot::channel();
        let before = state.seated.remove(&(hello.from, lane));
        let contests = match &before {
            Some(before) if before.life != life => (now, 0),
            Some(before) if now.since(before.contests.0) > CONTEST_TIME => (now, 1),
            Some(before) => (before.contests.0, before.contests.1.saturating_add(1)),
            None => (now, 0),
        };
        let seated = Seated {
            number,
            life,
            contests,
            replaced: replaced.clone(),
            judge_again: judge_again.clone(),
            ended,
        };
        state.seated.insert((hello.from, lane), seated);
        let seat = Seat { number, contests: contests.1, replaced, judge_again, _ended: sender };
        (seat, before.map(|before| before.ended))
    }

    /// Who belongs to the cluster has changed: has everyone who is connected judged again.
    pub(super) fn judge_again(&self) {
        for seated in self.state().seated.values() {
            seated.judge_again.notify_one();
        }
    }

    /// Frees the connection's place, if no newer one has taken it.
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
    use crate::model::{ClusterId, DiskId, FoundingState, Incarnation};
    use crate::model::{ClusterVersion, LogIndex};

    fn node(id: u64) -> NodeId {
        NodeId::new(id).expect("not 0")
    }

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
    fn connections_that_take_each_others_place_are_counted() {
        let (incoming, begin) = (Incoming::default(), Moment::since_boot(Duration::ZERO));
        let seat = |incarnation, seconds| {
            let now = begin + Duration::from_secs(seconds);
            incoming.seat(Lane::Control, &hello(incarnation), now).0
        };
        let counts: Vec<u32> = (0..4).map(|second| seat(1, second).contests).collect();
        assert_eq!(counts, [0, 1, 2, 3]);
        assert_eq!(seat(1, 60).contests, 4);
        assert_eq!(seat(1, 61).contests, 1, "another minute");
        // A later life, and one that comes when the one before has gone, take nobody's place.
        assert_eq!(seat(2, 61).contests, 0);
        let last = seat(2, 62);
        incoming.leave(node(2), Lane::Control, last.number);
        assert_eq!((last.contests, seat(2, 62).contests), (1, 0));
    }

    #[test]
    fn a_newer_connection_waits_until_the_older_has_ended() {
        let (incoming, now) = (Incoming::default(), Moment::since_boot(Duration::ZERO));
        let (first, before) = incoming.seat(Lane::Control, &hello(1), now);
        assert!(before.is_none());
        let (other_lane, before) = incoming.seat(Lane::Bulk, &hello(1), now);
        assert!(before.is_none());
        let (second, before) = incoming.seat(Lane::Control, &hello(1), now);
        let mut before = before.expect("the first");
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        // The first leaves its place to the second and not to nobody.
        incoming.leave(node(2), Lane::Control, first.number);
        drop(first);
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (_third, before) = incoming.seat(Lane::Control, &hello(2), now);
        assert!(before.is_some(), "the second has lost its place");
        drop((second, other_lane));
    }
}
