//! How somebody who is no member yet becomes one: it dials any member and asks.
//!
//! ```text
//!   joiner                                     member
//!     preface (join)       ────────────────►
//!                          ◄────────────────   preface | challenge: a random number
//!     proof | who it is    ────────────────►   judges the proof, asks its node, which asks the cluster
//!                          ◄────────────────   joined | not the leader: ask there | later | refused
//! ```
//!
//! **What the proof is worth.** It shows that the joiner has been told the token of this cluster, so
//! that a process with a wrong address or an old configuration does not end up in a cluster that is not
//! its own. The token does not cross the wire, and a proof fits one challenge only. But the hash in it
//! is none for secrets: whoever can listen to an unencrypted connection can find a token that fits. There,
//! the network has to keep strangers out, which is what `insecure_peers` says. With certificates both
//! ends have proven who they are before, the joiner may only ask in the name of its certificate, and
//! nobody can listen.
//!
//! **What an asker can cost.** Until its proof is judged, it is one of the connections in their
//! handshake, with their limits. After that, a limited number may wait for an answer, for a limited
//! time, and only so many a second reach the node.

use std::collections::VecDeque;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::oneshot;

use super::TransportError;
use super::context::{Context, Side};
use super::dialer;
use super::exchange::{self, Broken, JOIN_LANE, Preface};
use super::frame::{self, Frame, FrameKind, JOIN_ANSWER_BODY_BYTES_MAX, JOIN_ASK_BODY_BYTES_MAX};
use super::names::Names;
use super::runtime::NetRuntime;
use super::security::Security;
use super::tcp::{TcpSettings, check_address};
use super::wire::Wire;
use crate::codec;
use crate::env::Env;
use crate::model;
use crate::model::{JoinAnswer, JoinAsk, Joined, Moment};

/// How many questions reach the node in a second.
const ASKS_PER_SECOND_MAX: usize = 16;
/// How often a joiner looks whether anybody still waits for it.
const LOOK: Duration = Duration::from_millis(200);
/// How long the joiner waits before it asks again.
const PAUSE: Duration = Duration::from_millis(200);
/// After the node's own time for an answer, the joiner gives the connection so much more.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// Challenge and proof are numbers of so many bytes.
const NUMBER_BYTES: usize = 16;

/// What is given back to somebody who wants to join. Dropped, it says: ask again later.
#[derive(Debug)]
pub(crate) struct JoinReply {
    sender: oneshot::Sender<JoinAnswer>,
}

impl JoinReply {
    /// A reply, and where it arrives.
    pub(crate) fn new() -> (Self, oneshot::Receiver<JoinAnswer>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender }, receiver)
    }

    /// Answers. Nobody may be there any more.
    pub(crate) fn send(self, answer: JoinAnswer) {
        let _ = self.sender.send(answer);
    }
}

/// Why somebody has not become a member.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    /// The cluster does not want it.
    #[error("{0}")]
    Refused(String),
    /// No answer came in time. It may have been added all the same: who asks again with the same disk is
    /// told so.
    #[error("no member has taken this one in in time: {0}")]
    TooLate(String),
    /// Nobody waits for it any more. It may have been added all the same.
    #[error("it was given up")]
    GivenUp,
    /// Nobody could be asked.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// The answer to a challenge: see the module for what it is worth.
pub(super) fn proof(token: &str, challenge: [u8; NUMBER_BYTES]) -> [u8; NUMBER_BYTES] {
    // FNV-1a.
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = challenge.iter().chain(token.as_bytes()).chain(&challenge);
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    hash.to_le_bytes()
}

// ---- the member's side ---------------------------------------------------------------------

/// Those that wait for an answer.
#[derive(Default)]
pub(super) struct Joiners {
    state: Mutex<JoinersState>,
}

#[derive(Default)]
struct JoinersState {
    waiting: usize,
    /// When the last ones were asked about.
    asked: VecDeque<Moment>,
}

impl Joiners {
    /// A place, if there is one.
    fn enter(&self, now: Moment, waiting_max: usize) -> Option<JoinersGuard<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.asked.front().is_some_and(|at| now.since(*at) >= Duration::from_secs(1)) {
            state.asked.pop_front();
        }
        if state.waiting >= waiting_max || state.asked.len() >= ASKS_PER_SECOND_MAX {
            return None;
        }
        state.waiting += 1;
        state.asked.push_back(now);
        Some(JoinersGuard { joiners: self })
    }
}

struct JoinersGuard<'a> {
    joiners: &'a Joiners,
}

impl Drop for JoinersGuard<'_> {
    fn drop(&mut self) {
        self.joiners.state.lock().unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }
}

/// Hears who wants to join, and whether it may ask.
pub(super) async fn hear(
    stream: &mut Wire,
    preface: &[u8],
    context: &Context,
) -> Result<JoinAsk, Broken> {
    let challenge = context.env.entropy.next_u128().to_le_bytes();
    let mut words = preface.to_vec();
    frame::put_frame(&mut words, FrameKind::Challenge, |out| out.extend_from_slice(&challenge));
    stream.write_all(&words).await?;
    let body = match exchange::read_frame(stream, JOIN_ASK_BODY_BYTES_MAX).await? {
        Frame { kind: FrameKind::JoinAsk, body } => body,
        Frame { kind, .. } => {
            return Err(Broken::Garbage(format!("{kind:?} where a question to join belongs")));
        }
    };
    let Some((proven, ask)) = body.split_first_chunk::<NUMBER_BYTES>() else {
        return Err(Broken::Garbage("half a question to join".to_owned()));
    };
    let refusal = if *proven != proof(&context.settings.token, challenge) {
        "the token is not this cluster's".to_owned()
    } else {
        let ask = codec::decode_join_ask(body.slice_ref(ask))
            .map_err(|error| Broken::Garbage(error.to_string()))?;
        match stream.proven_name() {
            Some(name) if name != ask.name => {
                format!("it is called {:?}, and its certificate is that of {name:?}", ask.name)
            }
            _ => return Ok(ask),
        }
    };
    exchange::refuse(stream, &[], FrameKind::Refused, &refusal).await;
    Err(Broken::Untrusted(format!("it wanted to join, but {refusal}")))
}

/// Asks the node, and passes on what it says.
pub(super) async fn answer(context: &Context, mut stream: Wire, ask: JoinAsk) {
    let later = |why: &str| JoinAnswer::Later(why.to_owned());
    let now = context.env.clock.now();
    let answer = match context.joiners.enter(now, context.settings.joiners_max) {
        None => later("too many want to join at this time"),
        Some(_place) => {
            let (reply, answered) = JoinReply::new();
            context.receiver.join(ask, reply);
            match tokio::time::timeout(context.settings.join_timeout, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => later("the member that was asked has stopped"),
                Err(_) => later("the cluster has not decided in time"),
            }
        }
    };
    let mut words = Vec::new();
    frame::put_frame(&mut words, FrameKind::JoinAnswer, |out| {
        codec::encode_join_answer(&answer, out);
    });
    exchange::say_last(&mut stream, &words).await;
    tracing::debug!(me = %context.admission.me(), side = ?Side::Acceptor, "told a joiner: {answer:?}");
}

// ---- the joiner's side ---------------------------------------------------------------------

/// Asks the members at `addresses`, and whomever they name, one after the other and again and again,
/// until one has an answer, `limit` is over, or it is `given_up`. Blocks; not for a thread that runs tasks.
///
/// # Errors
/// See [`JoinError`].
pub(crate) fn join(
    env: &Env,
    settings: &TcpSettings,
    addresses: &[String],
    ask: &JoinAsk,
    limit: Duration,
    given_up: &dyn Fn() -> bool,
) -> Result<Joined, JoinError> {
    for address in addresses {
        check_address("address of a member", address)?;
    }
    let security = settings.security(env, Some(&ask.name))?;
    let runtime = NetRuntime::shared().map_err(TransportError::Threads)?;
    let asking = Asking {
        security,
        settings: settings.clone(),
        names: Names::default(),
        ask: ask.clone(),
        last: Mutex::new("nobody was asked".to_owned()),
    };
    let asking = Arc::new(asking);
    let (sender, done) = mpsc::channel();
    let (task, addresses) = (asking.clone(), addresses.to_vec());
    let asks = runtime.handle().spawn(async move {
        let joined = tokio::time::timeout(limit, task.ask_around(addresses)).await;
        let _ = sender.send(joined);
    });
    let last = || asking.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    loop {
        return match done.recv_timeout(LOOK) {
            Ok(Ok(answer)) => answer.map_err(JoinError::Refused),
            Ok(Err(_)) => Err(JoinError::TooLate(last())),
            Err(RecvTimeoutError::Timeout) if !given_up() => continue,
            Err(RecvTimeoutError::Timeout) => {
                asks.abort();
                Err(JoinError::GivenUp)
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(JoinError::TooLate("the network's threads have ended".to_owned()))
            }
        };
    }
}

/// Somebody who wants to join.
struct Asking {
    security: Security,
    settings: TcpSettings,
    names: Names,
    ask: JoinAsk,
    /// What went wrong last, for people.
    last: Mutex<String>,
}

impl Asking {
    /// Until somebody has an answer: it is a member, or why it will not be one.
    async fn ask_around(&self, addresses: Vec<String>) -> Result<Joined, String> {
        let mut turn = 0;
        let mut named = None;
        loop {
            let from_list = named.is_none();
            let Some(address) = named.take().or_else(|| addresses.get(turn).cloned()) else {
                // All have been asked.
                turn = 0;
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            turn += usize::from(from_list);
            let why = match self.ask_at(&address).await {
                Ok(JoinAnswer::Joined(joined)) => return Ok(joined),
                Ok(JoinAnswer::Refused(why)) => return Err(why),
                Ok(JoinAnswer::Later(why)) => why,
                Ok(JoinAnswer::NotLeader(leader)) => {
                    // Once: two that name each other must not be asked for ever without a pause.
                    let first =
                        |leader: String| model::addresses(&leader).next().map(str::to_owned);
                    named = leader.filter(|_| from_list).and_then(first);
                    "it does not lead".to_owned()
                }
                Err(Broken::Refused { why, .. }) => return Err(why.why),
                Err(broken) => broken.to_string(),
            };
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = format!("{address}: {why}");
        }
    }

    async fn ask_at(&self, address: &str) -> Result<JoinAnswer, Broken> {
        let limit = self.settings.handshake_timeout;
        let late = |_| Broken::Socket(std::io::ErrorKind::TimedOut.into());
        let mut stream = tokio::time::timeout(limit, self.put(address)).await.map_err(late)??;
        let limit = self.settings.join_timeout + ANSWER_MARGIN;
        let answer = exchange::read_frame(&mut stream, JOIN_ANSWER_BODY_BYTES_MAX);
        match tokio::time::timeout(limit, answer).await.map_err(late)?? {
            Frame { kind: FrameKind::JoinAnswer, body } => {
                codec::decode_join_answer(body).map_err(|error| Broken::Garbage(error.to_string()))
            }
            Frame { kind: FrameKind::Refused, body } => {
                Ok(JoinAnswer::Refused(exchange::reason_of(&body)))
            }
            Frame { kind, .. } => {
                Err(Broken::Garbage(format!("{kind:?} in answer to a question to join")))
            }
        }
    }

    /// Puts the question.
    async fn put(&self, address: &str) -> Result<Wire, Broken> {
        let open = async || dialer::open(address, &self.names, &self.settings, 0).await;
        let (tcp, _) = open().await?;
        let again = async { Ok(open().await?.0) };
        let mut stream = self.security.dial(tcp, again).await?;
        stream.write_all(&Preface::new(JOIN_LANE).bytes()).await?;
        match Preface::read_answer(&mut stream).await {
            Ok(()) => {}
            Err(Ok(why)) => return Err(Broken::Garbage(why)),
            Err(Err(broken)) => return Err(broken),
        }
        let challenge = match exchange::read_frame(&mut stream, NUMBER_BYTES).await? {
            Frame { kind: FrameKind::Challenge, body } => body,
            Frame { kind, .. } => {
                return Err(Broken::Garbage(format!("{kind:?} where a challenge belongs")));
            }
        };
        let Ok(challenge) = <[u8; NUMBER_BYTES]>::try_from(&challenge[..]) else {
            return Err(Broken::Garbage("half a challenge".to_owned()));
        };
        let mut words = Vec::new();
        frame::put_frame(&mut words, FrameKind::JoinAsk, |out| {
            out.extend_from_slice(&proof(&self.settings.token, challenge));
            codec::encode_join_ask(&self.ask, out);
        });
        stream.write_all(&words).await?;
        Ok(stream)
    }
}
