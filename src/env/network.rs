//! The way out to the other members.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use crate::model::{Lane, NodeId, PeerMessage};

/// Lets a socket of IPv6 that is not bound yet accept connections over IPv4 as well.
pub(crate) fn accept_ipv4(socket: &impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_ipv6_v6only(socket, false)?)
}

/// Sends messages to peers. Never blocks, never fails loudly: a message that cannot go is lost, as
/// any message may be, and the caller is told so that it can tell the consensus.
///
/// What comes in does not pass through here: whoever listens puts it into the node's inbox.
///
/// It is dropped when the node has stopped, for whatever reason: the node has left its peers then.
pub trait Network: Send + 'static {
    /// Hands a message over. Messages to one peer on one lane arrive in order or not at all.
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome;

    /// How many bytes wait on their way to a peer, on all lanes, behind what its sockets have taken.
    fn queued_bytes(&self, _to: NodeId) -> usize {
        0
    }

    /// Says to whom connections are to be kept, and where each is looked for, in turn: `host:port`. To be called again whenever somebody belongs to the cluster or not any more:
    /// everyone who is connected is judged anew. Who is not named here may still connect by itself.
    fn set_peers(&mut self, peers: &BTreeMap<NodeId, Vec<String>>);
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
