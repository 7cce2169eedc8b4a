//! The queue of all inputs for the driver. Any thread may push an input. The driver takes all
//! inputs at once at the start of each turn.
//!
//! `Shared` limits the inputs of callers before they are pushed. The inbox limits the messages of
//! peers: messages that do not fit are dropped, which is allowed because any message of a peer may
//! be lost.

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

use crate::node::leader_queries::lease_calls::PendingLeaseCall;
use crate::node::leader_queries::reads::ReadWaiter;
use crate::node::requests::answer::{CallError, CallResult, ReplyTo, StopReason};
use crate::node::requests::request_trace::RequestTrace;
use crate::node::sessions::session::{SessionClose, SharedSession};
use crate::node::sessions::{SessionOpening, SessionResuming};
use crate::node::snapshots::news::News;
use crate::node::threads::parker::{Parker, Sleeper};

/// The last eighth of the peer budget is reserved for messages up to this size. So heartbeats and
/// votes arrive even if large messages fill the queue.
const SMALL_BYTES: usize = 1 << 10;

/// One event for the driver.
pub(crate) enum Input {
    /// A message of a peer.
    Peer(NodeId, PeerMessage),
    /// A peer has proven its identity.
    Connected(NodeId, Hello),
    /// The last connection to a peer was closed.
    Disconnected(NodeId),
    /// Whether the process of this peer has ended, as far as the connections show.
    ProcessEnded(NodeId, bool),
    /// This node and a peer do not accept each other.
    Refused(NodeId, Refused),
    /// The log has synced all groups up to a number, at the given time.
    Durable(wal::Durable, Moment),
    /// The log reports that the disk has become full, or has space again.
    Space(wal::Space),
    /// The front of the log was truncated.
    LogCut,
    /// The log has failed, and the node must stop.
    LogFailed(String),
    /// A caller proposes a command.
    Write(Write),
    /// A caller requests a linearizable read.
    Read(ReadWaiter<Moment>),
    /// A caller waits until the replica has reached a revision.
    AtLeast { revision: Revision, deadline: Moment, reply: ReplyTo<()> },
    /// A caller opens a session: a lease that this node keeps alive.
    OpenSession(SessionOpening),
    /// The lease of a new session was granted, or the grant has failed.
    SessionGranted(SessionOpening, CallResult<Reply>),
    /// A caller resumes a session whose lease exists.
    ResumeSession(SessionResuming),
    /// A caller renews a lease, or asks for its remaining TTL.
    Lease(PendingLeaseCall),
    /// A session was closed or detached, or a claim on it was dropped.
    CloseSession(Arc<SharedSession>, SessionClose),
    /// A node that is not a member asks to join.
    Join(JoinAsk, JoinReply),
    /// The result of adding the node that asked to join.
    LetIn(JoinReply, CallResult<NodeId>),
    /// A caller requests a membership change.
    Step {
        membership_request: MembershipRequest,
        deadline: Moment,
        /// Receives the id of the affected member.
        reply: ReplyTo<NodeId>,
    },
    /// A caller wants a backup in a file.
    Backup {
        path: PathBuf,
        /// Receives the id of the backup.
        reply: ReplyTo<SnapshotId>,
    },
    /// The result of a job of the snapshot worker.
    Snapshot(News),
    /// A caller requests a transfer of leadership to a peer or, if `to` is `None`, to the most
    /// up-to-date voter.
    Transfer { to: Option<NodeId>, deadline: Moment, reply: ReplyTo<()> },
    /// A test flips a bit of a key's row in memory.
    #[cfg(any(test, feature = "sim"))]
    Rot {
        key: Vec<u8>,
        /// Receives whether the row exists.
        reply: ReplyTo<bool>,
    },
    /// The node should stop in an orderly way.
    Stop,
    /// The node should stop as if it had crashed.
    #[cfg_attr(not(any(test, feature = "testing")), allow(dead_code, reason = "for `testing`"))]
    Abort,
}

/// A command on its way from a caller to the driver.
pub(crate) struct Write {
    pub(crate) command: Command,
    /// Time of the caller's deadline. `None` waits without a limit.
    pub(crate) deadline: Option<Moment>,
    /// Number of bytes that this write uses of the limit of open writes.
    pub(crate) bytes: usize,
    pub(crate) reply: ReplyTo<Reply>,
    /// The kind of the request, and the times of its stages.
    pub(crate) trace: RequestTrace,
}

/// The queue of inputs for the driver.
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    parker: Parker,
    on_push: Box<dyn Fn() + Send + Sync>,
    peer_bytes_max: usize,
    meters: Arc<Meters>,
}

#[derive(Default)]
struct InboxState {
    inputs: Vec<Input>,
    peer_bytes: usize,
    closed: bool,
    waits: bool,
}

impl Sleeper for InboxState {
    fn is_idle(&self) -> bool {
        self.inputs.is_empty()
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }
}

impl Inbox {
    /// Returns an empty inbox that holds at most `peer_bytes_max` bytes of peer messages. `on_push` is called after
    /// each input, for a harness that runs the driver without blocking in [`Inbox::wait`].
    pub(crate) fn new(
        peer_bytes_max: usize,
        meters: Arc<Meters>,
        on_push: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self { state: Mutex::default(), parker: Parker::default(), on_push, peer_bytes_max, meters }
    }

    /// Adds an input. Returns the input to the caller if the driver has stopped.
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

    /// Takes all inputs. The empty vector `room` becomes the buffer for the next inputs.
    pub(crate) fn take(&self, room: Vec<Input>) -> Vec<Input> {
        assert!(room.is_empty(), "room that is taken");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.peer_bytes = 0;
        std::mem::replace(&mut state.inputs, room)
    }

    /// Returns how often an input has woken the driver.
    pub(crate) fn wakeups(&self) -> u64 {
        self.parker.wakeups()
    }

    /// Waits for an input, but at most for `at_most`.
    pub(crate) fn wait(&self, at_most: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.inputs.is_empty() && !at_most.is_zero() {
            drop(self.parker.wait(state, Some(at_most)));
        }
    }

    /// Closes the inbox, and returns the remaining inputs, whose callers must be notified.
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

    fn process_ended(&self, peer: NodeId, ended: bool) {
        drop(self.push(Input::ProcessEnded(peer, ended)));
    }

    fn refused(&self, peer: NodeId, why: Refused) {
        drop(self.push(Input::Refused(peer, why)));
    }

    fn join(&self, ask: JoinAsk, reply: JoinReply) {
        drop(self.push(Input::Join(ask, reply)));
    }
}

/// Estimates the memory that a message occupies, in bytes.
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

/// Reports to the callers of unprocessed inputs that the node has stopped.
pub(crate) fn refuse_all(inputs: Vec<Input>, why: &StopReason) {
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
            // The lease was granted and exists until it expires.
            Input::SessionGranted(opening, Ok(_)) => {
                let reason = why.clone();
                opening.reply.send(Err(CallError::Stopped { reason, maybe_applied: true }));
            }
            Input::SessionGranted(opening, Err(why)) => opening.reply.send(Err(why)),
            Input::Peer(..)
            | Input::Connected(..)
            | Input::Disconnected(..)
            | Input::ProcessEnded(..)
            | Input::Refused(..)
            | Input::Durable(..)
            | Input::Space(_)
            // If the reply is dropped, the joining node asks another member.
            | Input::Join(..)
            | Input::LetIn(..)
            | Input::LogCut
            | Input::LogFailed(_)
            | Input::Snapshot(_)
            | Input::CloseSession(..)
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
    fn peer_messages_beyond_the_limit_are_dropped_large_ones_first() {
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
