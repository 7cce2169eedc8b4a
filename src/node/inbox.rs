//! The one way into a node: everything that happens to it is put here, from any thread, and taken by
//! the driver, all at once, at the start of its turn.
//!
//! What comes from callers is bounded by admission (`Shared`), before it is put here. What comes from
//! peers is bounded here: any message of a peer may be lost, so what does not fit is dropped.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::metrics::Meters;
use crate::model::{
    Command, Hello, JoinAsk, MembershipRequest, Moment, NodeId, PeerMessage, Reply, Revision,
    SnapshotId,
};
use crate::transport::{JoinReply, Receiver, Refused};
use crate::wal;

use super::answer::{CallError, CallResult, ReplyTo};
use super::lease_calls::LeaseCall;
use super::parker::{Parker, Sleeper};
use super::reads::ReadWaiter;
use super::request_trace::RequestTrace;
use super::session::{Parting, SharedSession};
use super::sessions::{SessionOpening, SessionResuming};
use super::snapshot_worker::News;

/// A message that is not larger finds room where larger ones do not any more, in the last eighth:
/// heartbeats and votes get through whatever a peer pours in.
const SMALL_BYTES: usize = 1 << 10;

/// One thing that happened.
pub(crate) enum Input {
    /// A peer said something.
    Peer(NodeId, PeerMessage),
    /// A peer has proven who it is.
    Connected(NodeId, Hello),
    /// The last connection to a peer is gone.
    Disconnected(NodeId),
    /// A peer and this node do not accept each other.
    Refused(NodeId, Refused),
    /// The log has synced all groups up to a number, at this moment.
    Durable(wal::Durable, Moment),
    /// The disk has become full, as far as the log can tell, or has room again.
    Space(wal::Space),
    /// The front of the log was cut.
    LogCut,
    /// The log has failed; the node must stop.
    LogFailed(String),
    /// A caller wants a change.
    Write(Write),
    /// A caller wants to read what was committed before the call.
    Read(ReadWaiter<Moment>),
    /// A caller wants the replica to have reached a revision.
    AtLeast { revision: Revision, deadline: Moment, reply: ReplyTo<()> },
    /// A caller wants a lease of its own to be kept alive by this node.
    OpenSession(SessionOpening),
    /// The lease for it was granted, or not.
    SessionGranted(SessionOpening, CallResult<Reply>),
    /// A caller wants to go on with a lease that exists.
    ResumeSession(SessionResuming),
    /// A caller has a lease renewed, or wants to know how long it lives.
    Lease(LeaseCall),
    /// A session was closed or detached, or a claim on it dropped.
    PartSession(Arc<SharedSession>, Parting),
    /// Somebody who is no member wants to become one.
    Join(JoinAsk, JoinReply),
    /// The cluster has let somebody in, or not.
    LetIn(JoinReply, CallResult<NodeId>),
    /// Somebody wants a step of the members.
    Step {
        /// Which.
        membership_request: MembershipRequest,
        /// When to give up.
        deadline: Moment,
        /// Who wants to know whom it was about.
        reply: ReplyTo<NodeId>,
    },
    /// A copy of the state is wanted in a file.
    Backup {
        /// Where.
        path: PathBuf,
        /// Who wants to know its id.
        reply: ReplyTo<SnapshotId>,
    },
    /// What came of a job of the snapshot worker.
    Snapshot(News),
    /// Leadership should move to a peer, or to whoever is best.
    Transfer { to: Option<NodeId>, deadline: Moment, reply: ReplyTo<()> },
    /// A test wants a bit of a key's row in memory to flip; answered with whether there is one.
    #[cfg(any(test, feature = "sim"))]
    Rot {
        /// Which key.
        key: Vec<u8>,
        /// Who wants to know.
        reply: ReplyTo<bool>,
    },
    /// The node should stop, in good order.
    Stop,
    /// The node should stop as if it had crashed.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    Abort,
}

/// A command on its way from a caller.
pub(crate) struct Write {
    /// What to do.
    pub(crate) command: Command,
    /// When to give up; `None` never gives up.
    pub(crate) deadline: Option<Moment>,
    /// What admission counted for it, in bytes.
    pub(crate) bytes: usize,
    /// Who wants to know.
    pub(crate) reply: ReplyTo<Reply>,
    /// What it was and when it came.
    pub(crate) trace: RequestTrace,
}

/// See the module.
pub(crate) struct Inbox {
    state: Mutex<State>,
    parker: Parker,
    on_push: Box<dyn Fn() + Send + Sync>,
    peer_bytes_max: usize,
    meters: Arc<Meters>,
}

#[derive(Default)]
struct State {
    inputs: Vec<Input>,
    peer_bytes: usize,
    closed: bool,
    waits: bool,
}

impl Sleeper for State {
    fn is_idle(&self) -> bool {
        self.inputs.is_empty()
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }
}

impl Inbox {
    /// An empty inbox that holds at most `peer_bytes_max` bytes of peers' messages. `on_push` is
    /// called after each input, for whoever runs the driver without waiting in [`Inbox::wait`].
    pub(crate) fn new(
        peer_bytes_max: usize,
        meters: Arc<Meters>,
        on_push: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self { state: Mutex::default(), parker: Parker::default(), on_push, peer_bytes_max, meters }
    }

    /// Puts something in. Gives it back if the driver has stopped and will never look again.
    pub(crate) fn push(&self, input: Input) -> Result<(), Box<Input>> {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.closed {
                return Err(Box::new(input));
            }
            if let Input::Peer(_, message) = &input {
                let bytes = weight(message);
                let most = match bytes {
                    0..=SMALL_BYTES => self.peer_bytes_max,
                    _ => self.peer_bytes_max / 8 * 7,
                };
                if state.peer_bytes + bytes > most {
                    self.meters.inbox_dropped_total.one();
                    return Ok(());
                }
                state.peer_bytes += bytes;
                self.meters.inbox_bytes_peak.at_least(state.peer_bytes);
            }
            state.inputs.push(input);
            self.parker.unpark(&mut *state);
        }
        (self.on_push)();
        Ok(())
    }

    /// Takes everything, and leaves `room`, which is empty, for what comes next.
    pub(crate) fn take(&self, room: Vec<Input>) -> Vec<Input> {
        assert!(room.is_empty(), "room that is taken");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.peer_bytes = 0;
        std::mem::replace(&mut state.inputs, room)
    }

    /// Waits until there is something, but no longer than `at_most`.
    pub(crate) fn wait(&self, at_most: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inputs.is_empty() && !at_most.is_zero() {
            drop(self.parker.wait(state, Some(at_most)));
        }
    }

    /// Takes nothing more, and gives back what was left, whose callers must be told.
    pub(crate) fn close(&self) -> Vec<Input> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        std::mem::take(&mut state.inputs)
    }
}

impl Receiver for Inbox {
    fn deliver(&self, from: NodeId, message: PeerMessage) {
        drop(self.push(Input::Peer(from, message)));
    }

    fn connected(&self, peer: NodeId, hello: Hello) {
        drop(self.push(Input::Connected(peer, hello)));
    }

    fn disconnected(&self, peer: NodeId) {
        drop(self.push(Input::Disconnected(peer)));
    }

    fn refused(&self, peer: NodeId, why: Refused) {
        drop(self.push(Input::Refused(peer, why)));
    }

    fn join(&self, ask: JoinAsk, reply: JoinReply) {
        drop(self.push(Input::Join(ask, reply)));
    }
}

/// About how much memory a message holds.
fn weight(message: &PeerMessage) -> usize {
    const FIXED: usize = 128;
    FIXED
        + match message {
            PeerMessage::Raft(bytes) => bytes.len(),
            PeerMessage::Propose(proposal) => proposal
                .requests
                .iter()
                .map(|(_, command)| crate::codec::encoded_len_hint(command) + FIXED)
                .sum(),
            PeerMessage::ProposeRejected { seqs, .. } => seqs.len() * 8,
            PeerMessage::SnapshotPart { data, .. } => data.len(),
            PeerMessage::Renew { leases, .. } => leases.len() * 8,
            PeerMessage::Renewed { renewed, gone, .. } => (renewed.len() + gone.len()) * 8,
            PeerMessage::LeaseAsk { renew, look, .. } => (renew.len() + look.len()) * 8,
            PeerMessage::LeaseAnswer { living, gone, .. } => living.len() * 16 + gone.len() * 8,
            _ => 0,
        }
}

/// Tells every caller whose input will never be looked at that the node has stopped.
pub(crate) fn refuse_all(inputs: Vec<Input>, why: &super::StopReason) {
    let error = || CallError::Stopped { reason: why.clone(), maybe_applied: false };
    for input in inputs {
        match input {
            Input::Write(write) => write.reply.send(Err(error())),
            Input::Read(asking) => asking.reply.send(Err(error())),
            Input::AtLeast { reply, .. } | Input::Transfer { reply, .. } => {
                reply.send(Err(error()));
            }
            Input::Step { reply, .. } => reply.send(Err(error())),
            Input::Backup { reply, .. } => reply.send(Err(error())),
            #[cfg(any(test, feature = "sim"))]
            Input::Rot { reply, .. } => reply.send(Err(error())),
            Input::Lease(call) => call.reply.send(Err(error())),
            Input::OpenSession(opening) => opening.reply.send(Err(error())),
            Input::ResumeSession(resuming) => resuming.reply.send(Err(error())),
            // Its lease lives until it has run out.
            Input::SessionGranted(opening, Ok(_)) => {
                let reason = why.clone();
                opening.reply.send(Err(CallError::Stopped { reason, maybe_applied: true }));
            }
            Input::SessionGranted(opening, Err(why)) => opening.reply.send(Err(why)),
            Input::Peer(..)
            | Input::Connected(..)
            | Input::Disconnected(..)
            | Input::Refused(..)
            | Input::Durable(..)
            | Input::Space(_)
            // Dropped, the reply says that somebody else is to be asked.
            | Input::Join(..)
            | Input::LetIn(..)
            | Input::LogCut
            | Input::LogFailed(_)
            | Input::Snapshot(_)
            | Input::PartSession(..)
            | Input::Stop
            | Input::Abort => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn what_peers_pour_in_is_dropped_at_the_limit_and_small_messages_still_get_through() {
        let meters = Arc::new(Meters::default());
        let metrics = Metrics::new("", Arc::clone(&meters));
        let inbox = Inbox::new(64 << 10, meters, Box::new(|| {}));
        let peer = NodeId::new(2).unwrap();
        let say = |bytes: usize| inbox.deliver(peer, PeerMessage::Raft(vec![0; bytes].into()));
        (0..100).for_each(|_| say(4 << 10));
        let before = metrics.snapshot();
        let (peak, dropped) = (before.inbox_bytes_peak, before.inbox_dropped_total);
        assert!((48 << 10..=56 << 10).contains(&peak), "{peak} bytes");
        assert!(dropped >= 86, "{dropped} were dropped");
        (0..5).for_each(|_| say(100));
        assert_eq!(metrics.snapshot().inbox_dropped_total, dropped, "a heartbeat gets through");
        (0..1000).for_each(|_| say(100));
        let now = metrics.snapshot();
        assert!(now.inbox_bytes_peak <= 64 << 10 && now.inbox_dropped_total > dropped);
        assert!(inbox.push(Input::Stop).is_ok(), "what is the node's own is never dropped");
        let taken = inbox.take(Vec::new()).len();
        assert_eq!(taken as u64 + now.inbox_dropped_total, 100 + 5 + 1000 + 1);
        say(4 << 10);
        assert_eq!(inbox.take(Vec::new()).len(), 1, "there is room again");
    }
}
