//! The join protocol: a process that is not a member dials any member and requests to join.
//!
//! ```text
//!   joiner                                     member
//!     preface (join)       ────────────────►
//!                          ◄────────────────   preface | challenge: a random number
//!     proof | identity     ────────────────►   checks the proof, asks its node, which asks the cluster
//!                          ◄────────────────   joined | not the leader: ask there | later | refused
//! ```
//!
//! **Purpose of the proof.** The proof shows that the joiner knows the token of this cluster.
//! Therefore a process with a wrong address or an old configuration cannot join a foreign cluster.
//! The token is not sent, and a proof is valid for one challenge only. But the hash is not
//! cryptographic: an eavesdropper on an unencrypted connection can compute a matching token.
//! Without certificates, the network must therefore keep strangers out; the setting
//! `insecure_peers` asserts that it does. With certificates, the connection is encrypted, both
//! sides have already proven their identity, and the joiner may only join under the name in its
//! certificate.
//!
//! **The cost of requests.** Until its proof is checked, the connection of a joiner counts as a
//! pending handshake, and the limits on pending handshakes apply. After that, separate limits
//! apply: to the number of waiting joiners, to the time for which they may wait, and to the join
//! requests per second that reach the node.

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

/// Maximum number of requests per second that reach the node.
const ASKS_PER_SECOND_MAX: usize = 16;
/// Interval at which a joiner checks whether its caller has given up.
const LOOK: Duration = Duration::from_millis(200);
/// Pause before the joiner tries all members again.
const PAUSE: Duration = Duration::from_millis(200);
/// Extra time that the joiner waits for a reply, in addition to the member's own time limit.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// Size of challenge and proof in bytes.
const NUMBER_BYTES: usize = 16;

/// The channel for the reply to a join request. If the channel is dropped without a reply, the
/// joiner is asked to retry later.
#[derive(Debug)]
pub(crate) struct JoinReply {
    sender: oneshot::Sender<JoinAnswer>,
}

impl JoinReply {
    /// Creates a reply channel and its receiver.
    pub(crate) fn new() -> (Self, oneshot::Receiver<JoinAnswer>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender }, receiver)
    }

    /// Sends the reply. The joiner may already have ended.
    pub(crate) fn send(self, answer: JoinAnswer) {
        let _ = self.sender.send(answer);
    }
}

/// The reason why a process has not become a member.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    /// The cluster rejected the request.
    #[error("{0}")]
    Refused(String),
    /// No reply arrived in time. The process may have been added nevertheless; a new request with
    /// the same disk then succeeds.
    #[error("no member accepted the join request before the deadline; last failure: {0}")]
    TooLate(String),
    /// The caller gave up. The process may have been added nevertheless.
    #[error("the caller cancelled the join request")]
    GivenUp,
    /// The network could not be started.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// Returns the reply to a challenge. The module page explains the purpose of this proof.
pub(super) fn proof(token: &str, challenge: [u8; NUMBER_BYTES]) -> [u8; NUMBER_BYTES] {
    // The hash is FNV-1a.
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = challenge.iter().chain(token.as_bytes()).chain(&challenge);
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    hash.to_le_bytes()
}

// ---- the member's side ---------------------------------------------------------------------

/// The joiners that wait for a reply.
#[derive(Default)]
pub(super) struct Joiners {
    state: Mutex<JoinersState>,
}

#[derive(Default)]
struct JoinersState {
    waiting: usize,
    /// Times of the most recent requests.
    asked: VecDeque<Moment>,
}

impl Joiners {
    /// Reserves a slot for a joiner, if one is free.
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

/// Reads a join request and checks its proof.
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
            return Err(Broken::Garbage(format!(
                "unexpected frame {kind:?} instead of a join request"
            )));
        }
    };
    let Some((proven, ask)) = body.split_first_chunk::<NUMBER_BYTES>() else {
        return Err(Broken::Garbage("truncated join request".to_owned()));
    };
    let rejection = if *proven != proof(&context.settings.token, challenge) {
        "the token does not match this cluster".to_owned()
    } else {
        let ask = codec::decode_join_ask(body.slice_ref(ask))
            .map_err(|error| Broken::Garbage(error.to_string()))?;
        match stream.proven_name() {
            Some(name) if name != ask.name => {
                format!(
                    "the joining process is named {:?}, but its certificate is for {name:?}",
                    ask.name
                )
            }
            _ => return Ok(ask),
        }
    };
    exchange::refuse(stream, &[], FrameKind::Refused, &rejection).await;
    Err(Broken::Untrusted(format!("join request rejected: {rejection}")))
}

/// Passes a request to the node, and the node's reply to the joiner.
pub(super) async fn answer(context: &Context, mut stream: Wire, ask: JoinAsk) {
    let later = |why: &str| JoinAnswer::Later(why.to_owned());
    let now = context.env.clock.now();
    let answer = match context.joiners.enter(now, context.settings.joiners_max) {
        None => later("too many join requests are waiting"),
        Some(_place) => {
            let (reply, answered) = JoinReply::new();
            context.receiver.join(ask, reply);
            match tokio::time::timeout(context.settings.join_timeout, answered).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => later("the contacted member has stopped"),
                Err(_) => later("the cluster has not decided before the deadline"),
            }
        }
    };
    let mut words = Vec::new();
    frame::put_frame(&mut words, FrameKind::JoinAnswer, |out| {
        codec::encode_join_answer(&answer, out);
    });
    exchange::send_last(&mut stream, &words).await;
    tracing::debug!(me = %context.admission.me(), side = ?Side::Acceptor, ?answer, "replied to join request");
}

// ---- the joiner's side ---------------------------------------------------------------------

/// Asks the members at `addresses`, and the leaders that they name, one after the other and
/// repeatedly. Ends when a member replies with a result, `limit` has passed, or `given_up` is set.
/// Blocks, so it must not be called on an async executor's thread.
///
/// # Errors
/// Returns a [`JoinError`].
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
        last: Mutex::new("no member was asked".to_owned()),
    };
    let asking = Arc::new(asking);
    let (sender, done) = mpsc::channel();
    let (task, addresses) = (asking.clone(), addresses.to_vec());
    let asks = runtime.handle().spawn(async move {
        let joined = tokio::time::timeout(limit, task.ask_each_member(addresses)).await;
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

/// A process that requests to join.
struct Asking {
    security: Security,
    settings: TcpSettings,
    names: Names,
    ask: JoinAsk,
    /// Text of the last failure.
    last: Mutex<String>,
}

impl Asking {
    /// Asks the members in turn until one replies with a result. Returns the new membership, or the
    /// reason for the rejection.
    async fn ask_each_member(&self, addresses: Vec<String>) -> Result<Joined, String> {
        let mut turn = 0;
        let mut named = None;
        loop {
            let from_list = named.is_none();
            let Some(address) = named.take().or_else(|| addresses.get(turn).cloned()) else {
                // All members have been asked, so pause and start again with the first one.
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
                    // Follow only one redirect in a row. Otherwise two members that name each other
                    // as leader would be asked endlessly without a pause.
                    let first =
                        |leader: String| model::addresses(&leader).next().map(str::to_owned);
                    named = leader.filter(|_| from_list).and_then(first);
                    "the member is not the leader".to_owned()
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
            Frame { kind, .. } => Err(Broken::Garbage(format!(
                "unexpected frame {kind:?} in reply to a join request"
            ))),
        }
    }

    /// Sends the request.
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
                return Err(Broken::Garbage(format!(
                    "unexpected frame {kind:?} instead of a challenge"
                )));
            }
        };
        let Ok(challenge) = <[u8; NUMBER_BYTES]>::try_from(&challenge[..]) else {
            return Err(Broken::Garbage("truncated challenge".to_owned()));
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
