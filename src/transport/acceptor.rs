//! The receiving end: the listener, and the connections that peers have dialed.
//!
//! A connection is nobody's until its handshake is over. Those in between are counted; one too many
//! ends the oldest of those that have not sent a preface (and with certificates, not proven
//! anything before it), because members need milliseconds for it and the silent stay; only if there are none, the
//! oldest of the others. So any number of silent connections costs a few tasks. After it, there is
//! one connection for each peer and lane: a newer one ends the older, and begins to read only when
//! that has delivered its last message, so that the order holds.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::time::MissedTickBehavior;

use super::context::{Context, Side};
use super::exchange::{self, Broken, Met, Preface};
use super::frame::{self, Frame, FrameKind, FrameReader};
use super::handshake::HelloRefusal;
use super::join;
use super::pipe::is_passing;
use super::tcp::ALIVE_PER_IDLE;
use super::wire::Wire;
use crate::codec;
use crate::model::{DiskId, Hello, Incarnation, Lane, NodeId, PeerMessage};

/// How long to wait after the operating system would not give a connection: it is out of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the transport stops.
pub(super) async fn listen(context: Arc<Context>, listener: TcpListener) {
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                // Counted before the task runs, so that a flood is bounded while it comes in.
                let waiting = Waiting::begin(context.clone());
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

/// One connection from its first byte to its last.
async fn welcome(context: &Context, tcp: TcpStream, waiting: Waiting) {
    let handshake = async {
        tcp.set_nodelay(true)?;
        let mut stream = context.security.accept(tcp).await?;
        let preface = Preface::read(&mut stream).await?;
        waiting.speaks();
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
    let (seat, before) = context.incoming.seat(lane, &hello);
    if let Some(before) = before {
        // Ends with an error when the older connection drops its end.
        let _ = before.await;
    }
    context.peers.heard_from(peer);
    let presence = context.presence.enter(peer, hello.clone());
    let end = tokio::select! {
        biased;
        () = seat.replaced.notified() => Broken::Garbage("replaced by a newer connection".to_owned()),
        end = receive(context, stream, &hello, lane, &seat) => end,
    };
    drop(presence);
    context.incoming.leave(peer, lane, seat.number);
    tracing::debug!(me = %context.admission.me(), %peer, ?lane, "connection from it lost: {end}");
    if matches!(end, Broken::Refused { .. } | Broken::Untrusted(_)) {
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
    let mut silent_ticks = 0;
    loop {
        tokio::select! {
            ready = stream.readable() => {
                if let Err(error) = ready {
                    return error.into();
                }
                match stream.try_read_buf(frames.buffer()) {
                    Ok(0) => return Broken::Socket(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => silent_ticks = 0,
                    Err(error) if is_passing(&error) => continue,
                    Err(error) => return error.into(),
                }
            }
            _ = tick.tick() => {
                if silent_ticks >= ALIVE_PER_IDLE {
                    return Broken::Socket(io::ErrorKind::TimedOut.into());
                }
                silent_ticks += 1;
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
                    match stream.try_write(&alive) {
                        Ok(written) if written == alive.len() => {}
                        Ok(_) => return Broken::Garbage("half an echo".to_owned()),
                        // The dialer reads nothing. It will hear the next one, or hang up.
                        Err(error) if is_passing(&error) => {}
                        Err(error) => return error.into(),
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

/// Whether the sender of `hello`, at the other end of `stream`, may talk to this member now.
fn admit(context: &Context, hello: &Hello, stream: &Wire) -> Result<(), HelloRefusal> {
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
    silent: BTreeMap<u64, Arc<Notify>>,
    /// In their handshake, and they have begun it; the oldest first.
    speaking: BTreeMap<u64, Arc<Notify>>,
    /// After it.
    seated: BTreeMap<(NodeId, Lane), Seated>,
}

struct Seated {
    number: u64,
    life: (DiskId, Incarnation),
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
    /// Counts a new connection, and ends the oldest handshake if there are too many.
    fn begin(context: Arc<Context>) -> Self {
        let mut state = context.incoming.state();
        while state.silent.len() + state.speaking.len() >= context.settings.handshakes_max.max(1) {
            let oldest = state.silent.pop_first().or_else(|| state.speaking.pop_first());
            oldest.expect("not both empty").1.notify_one();
        }
        state.last_number += 1;
        let (number, evicted) = (state.last_number, Arc::new(Notify::new()));
        state.silent.insert(number, evicted.clone());
        drop(state);
        Self { context, number, evicted }
    }

    /// A preface was heard.
    fn speaks(&self) {
        let mut state = self.context.incoming.state();
        if let Some(evicted) = state.silent.remove(&self.number) {
            state.speaking.insert(self.number, evicted);
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
    fn seat(&self, lane: Lane, hello: &Hello) -> (Seat, Option<oneshot::Receiver<()>>) {
        let mut state = self.state();
        let life = (hello.disk, hello.incarnation);
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
        let seated = Seated {
            number,
            life,
            replaced: replaced.clone(),
            judge_again: judge_again.clone(),
            ended,
        };
        let before = state.seated.insert((hello.from, lane), seated);
        let seat = Seat { number, replaced, judge_again, _ended: sender };
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
    use crate::model::{ClusterId, Standing};
    use crate::model::{ClusterVersion, LogIndex};

    #[test]
    fn a_newer_connection_waits_until_the_older_has_ended() {
        let node = |id| NodeId::new(id).expect("not 0");
        let hello = |incarnation| Hello {
            cluster: ClusterId(7),
            from: node(2),
            to: node(1),
            disk: DiskId(2),
            incarnation: Incarnation(incarnation),
            standing: Standing::Blank,
            since: LogIndex(1),
            address: String::new(),
            speaks: ClusterVersion::NEWEST,
        };
        let incoming = Incoming::default();
        let (first, before) = incoming.seat(Lane::Control, &hello(1));
        assert!(before.is_none());
        let (other_lane, before) = incoming.seat(Lane::Bulk, &hello(1));
        assert!(before.is_none());
        let (second, before) = incoming.seat(Lane::Control, &hello(1));
        let mut before = before.expect("the first");
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        // The first leaves its place to the second and not to nobody.
        incoming.leave(node(2), Lane::Control, first.number);
        drop(first);
        assert_eq!(before.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (_third, before) = incoming.seat(Lane::Control, &hello(2));
        assert!(before.is_some(), "the second has lost its place");
        drop((second, other_lane));
    }
}
