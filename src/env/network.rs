//! The trait through which a node sends messages to the other members.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use crate::model::{Lane, NodeId, PeerMessage};

/// Lets an IPv6 socket that is not bound yet accept IPv4 connections as well.
pub(crate) fn accept_ipv4(socket: &impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_ipv6_v6only(socket, false)?)
}

/// Sends messages to peers. A call never blocks. If a message cannot be sent, the message is
/// dropped, and the returned [`SendOutcome`] reports the reason to the caller.
///
/// Incoming messages do not pass through this trait: the listener puts them into the node's inbox.
///
/// The node drops its `Network` when it stops for any reason. Dropping the `Network` closes the
/// connections to the peers.
pub trait Network: Send + 'static {
    /// Queues a message. Messages to one peer on one lane arrive in order or not at all.
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome;

    /// Returns the number of bytes queued for a peer on all lanes, without the bytes that its
    /// sockets have already accepted.
    fn queued_bytes(&self, _to: NodeId) -> usize {
        0
    }

    /// Sets the peers to maintain connections to, and for each peer the addresses (`host:port`) to
    /// try, in order. Must be called whenever the cluster's membership changes, because the call
    /// also checks every open connection again. A member that is not in `peers` may still connect
    /// to this node.
    fn set_peers(&mut self, peers: &BTreeMap<NodeId, Vec<String>>);
}

/// The result of a send, as far as the sending side knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome {
    /// The message is queued, but may still be lost.
    Queued,
    /// The message was dropped, because there is no connection to the peer.
    Unreachable,
    /// The message was dropped, because the queue to the peer is full.
    Full,
}
