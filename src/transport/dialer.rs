//! The sending end: keeps one connection to one peer on one lane.
//!
//! ```text
//!   dial ──► handshake ──► up: write what is queued, say "alive", hear the echo ──┐
//!    ▲           │                                                                │
//!    └── pause ◄─┴────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One that is going to move is looked for where it is and where it will be, in turn. The name is resolved again at each
//! connect (`names`); of several addresses the one behind that is next at which a handshake has failed, for somebody else may listen
//! there. The pause grows to its maximum while connects or
//! handshakes fail or connections die young, and begins small again after one that lived and was not refused; it ends early when
//! the peer itself dials, for it has come back, and when the peer moves to another address. So does an attempt
//! that hangs. A connection to the address that it has left, or to an earlier life of the peer, is given up.
//!
//! A lane that is used now and then is dialed when something is to be sent, and closed when nothing
//! was for a while: see [`Pipe::wanted`].

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::context::{Context, Side};
use super::exchange::{self, Broken};
use super::frame::{self, FrameKind, FrameReader};
use super::names::Names;
use super::peers::{Peer, life_of};
use super::pipe::{Batch, Pipe, is_passing};
use super::tcp::{TcpSettings, is_loopback};
use super::wire::Wire;
use crate::env::Entropy;
use crate::model::{Hello, Lane, NodeId};

/// Keeps the connection until the peer is none any more or the transport stops.
pub(super) async fn keep(context: Arc<Context>, peer: Arc<Peer>, lane: Lane) {
    let pipe = peer.pipe(lane);
    let mut target = peer.target();
    let mut pause = Pause::new(context.settings.pause_min, context.settings.pause_max);
    // Which of its places is next, and which of the addresses that the name of one has.
    let (mut turn, mut first) = (0, 0);
    loop {
        let address = match target.borrow_and_update().as_deref() {
            Some(places) => places[turn % places.len()].clone(),
            None => return,
        };
        tokio::select! {
            biased;
            () = left(&mut target, &address) => {
                pause.restart();
                (turn, first) = (0, 0);
                continue;
            }
            was_there = once(&context, &peer, lane, &address, &mut first, &mut pause) => {
                turn += usize::from(!was_there);
            }
        }
        tokio::select! {
            biased;
            _ = target.changed() => pause.restart(),
            () = tokio::time::sleep(pause.next(&*context.env.entropy)) => {}
            () = pipe.retry.notified() => {}
        }
    }
}

/// Until a peer is not looked for at an address any more.
async fn left(target: &mut watch::Receiver<Option<Vec<String>>>, address: &String) {
    let is_left =
        |places: &Option<Vec<String>>| !places.iter().flatten().any(|place| place == address);
    target.wait_for(is_left).await.expect("the peer is there, and its target with it");
}

/// One connection, from the first try to its end. Whether the peer was there.
async fn once(
    context: &Context,
    peer: &Peer,
    lane: Lane,
    address: &str,
    first: &mut usize,
    pause: &mut Pause,
) -> bool {
    let (id, pipe) = (peer.id, peer.pipe(lane));
    let dialing = pipe.wanted().await;
    let limit = context.settings.handshake_timeout;
    let tried = loop {
        tokio::select! {
            biased;
            tried = tokio::time::timeout(limit, connect(context, id, lane, address, first)) => break tried,
            () = heard_meanwhile(pipe, &context.settings) => {}
        }
    };
    match tried {
        Ok(Ok((stream, hello))) => {
            tracing::debug!(me = %context.admission.me(), peer = %id, ?lane, "connected");
            let began = context.env.clock.now();
            let life = life_of(&hello);
            peer.met(life);
            let presence = context.presence.enter(id, hello);
            let stream = Arc::new(stream);
            let up = pipe.up(stream.clone());
            // What has waited for it is on its way.
            drop(dialing);
            let end = tokio::select! {
                biased;
                () = peer.born_again(life) => {
                    Broken::Socket(io::Error::other("it was met in another life"))
                }
                end = serve(context, pipe, &stream, id) => end,
            };
            drop((up, presence));
            tracing::debug!(me = %context.admission.me(), peer = %id, ?lane, "connection lost: {end}");
            let lasted = context.env.clock.now().since(began);
            match end {
                Broken::Socket(_) if lasted >= context.settings.pause_max => pause.restart(),
                Broken::Socket(_) => {}
                end => context.report(Side::Dialer, Some(id), &end),
            }
            true
        }
        Ok(Err(broken)) => {
            context.report_unreached(peer, address, &broken);
            false
        }
        Err(_) => {
            let silent = Broken::Socket(io::ErrorKind::TimedOut.into());
            context.report_unreached(peer, address, &silent);
            false
        }
    }
}

/// Until the peer itself dials, so that an attempt to reach it that hangs is best begun anew. One that is younger
/// than the shortest pause does not hang.
async fn heard_meanwhile(pipe: &Pipe, settings: &TcpSettings) {
    tokio::time::sleep(settings.pause_min).await;
    pipe.retry.notified().await;
}

async fn connect(
    context: &Context,
    peer: NodeId,
    lane: Lane,
    address: &str,
    first: &mut usize,
) -> Result<(Wire, Hello), Broken> {
    let (tcp, at) = open(address, &context.names, &context.settings, *first).await?;
    // Unless it turns out to be the peer: then it stays the first.
    *first = at + 1;
    let mut stream = context.security.dial(tcp).await?;
    let hello = exchange::dial(&mut stream, peer, lane, &context.admission).await?;
    *first = at;
    Ok((stream, hello))
}

/// Connects to the first address of the name that answers, beginning with a certain one. Says which it was.
pub(super) async fn open(
    address: &str,
    names: &Names,
    settings: &TcpSettings,
    first: usize,
) -> io::Result<(TcpStream, usize)> {
    let addresses = names.addresses(address, settings.handshake_timeout / 4).await?;
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    // An address that swallows packets must not use up the time of the next.
    let count = addresses.len();
    let share = settings.handshake_timeout / u32::try_from(count).unwrap_or(1).max(1);
    let limit = share.min(settings.connect_timeout);
    for at in (first..first + count).map(|at| at % count) {
        let address = addresses[at];
        if !settings.may_leave_loopback() && !is_loopback(address.ip()) {
            error = io::Error::other("the name leads off loopback and insecure_peers is not set");
            continue;
        }
        match tokio::time::timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                return Ok((stream, at));
            }
            Ok(Err(refused)) => error = refused,
            Err(_) => error = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(error)
}

/// Serves a connection until it breaks.
async fn serve(context: &Context, pipe: &Pipe, stream: &Wire, peer: NodeId) -> Broken {
    let mut alive = Vec::new();
    frame::put_frame(&mut alive, FrameKind::Alive, |_| {});
    let mut tick = tokio::time::interval(context.settings.tick());
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut ticks, mut silent_ticks) = (0_u32, 0);
    let silent_ticks_max = context.settings.silent_ticks_max();
    let mut doubt = context.security.doubt();
    let mut echoes = FrameReader::new(frame::REFUSED_BODY_BYTES_MAX);
    // What is being written: `batch[at..]`.
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
                    // No sign of life: the system takes a lot that nobody acknowledges.
                    Ok(written) => at += written,
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return error.into(),
                }
                if pipe.is_on_demand() {
                    // What is large and in no hurry lets everything else pass.
                    tokio::task::yield_now().await;
                }
            }
            () = doubt.raised() => {
                if let Err(error) = doubt.settle(stream) {
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
                    Ok(_) => silent_ticks = 0,
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return error.into(),
                }
                loop {
                    match echoes.next() {
                        Ok(None) => break,
                        Ok(Some(echo)) if echo.kind == FrameKind::Alive => {}
                        Ok(Some(last)) if last.kind.refuses() => {
                            let why = exchange::refusal_of(&last, context.admission.me());
                            return Broken::Refused { peer, why };
                        }
                        Ok(Some(other)) => {
                            return Broken::Garbage(format!("{:?} on the way back", other.kind));
                        }
                        Err(error) => return error.into(),
                    }
                }
            }
            _ = tick.tick() => {
                if silent_ticks >= silent_ticks_max {
                    return Broken::Socket(io::ErrorKind::TimedOut.into());
                }
                (ticks, silent_ticks) = (ticks.wrapping_add(1), silent_ticks + 1);
                echoes.rest();
                if ticks.is_multiple_of(silent_ticks_max) && pipe.rest_if_unused() {
                    return Broken::Socket(io::Error::other("nothing was sent for a while"));
                }
                pipe.send_alive(&alive);
            }
        }
        if at == batch.len() {
            at = 0;
            if pipe.next_batch(&mut batch) == Batch::Down {
                return Broken::Socket(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

/// How long to wait before dialing again: twice as long each time, up to a maximum, and drawn from the
/// upper half so that members do not dial in step.
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

    fn next(&mut self, entropy: &dyn Entropy) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        let half = u64::try_from(pause.as_micros() / 2).unwrap_or(u64::MAX - 1);
        pause - Duration::from_micros(entropy.below(half + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::OsEntropy;

    #[test]
    fn the_pause_doubles_up_to_its_maximum_and_starts_again() {
        let ms = Duration::from_millis;
        let mut pause = Pause::new(ms(20), ms(500));
        for whole in [20, 40, 80, 160, 320, 500, 500] {
            let next = pause.next(&OsEntropy);
            assert!(ms(whole) / 2 <= next && next <= ms(whole), "{next:?} of {whole} ms");
        }
        pause.restart();
        assert!(pause.next(&OsEntropy) <= ms(20));
    }
}
