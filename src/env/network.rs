//! The way out to the other members.

use crate::model::{Lane, NodeId, PeerMessage};

/// Sends messages to peers. Never blocks, never fails loudly: a message that cannot go is lost, as
/// any message may be, and the caller is told so that it can tell the consensus.
///
/// What comes in does not pass through here: whoever listens puts it into the node's inbox.
pub trait Network: Send + 'static {
    /// Hands a message over. Messages to one peer on one lane arrive in order or not at all.
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome;
}

/// What became of a message as far as the sender's side can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome {
    /// On its way; it may still be lost.
    Queued,
    /// There is no connection to that peer.
    Unreachable,
    /// The queue to that peer is full; the message was dropped.
    Full,
}
