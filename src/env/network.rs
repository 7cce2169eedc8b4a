//! The trait that sends messages to the other members.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use crate::model::{Lane, NodeId, PeerMessage};

/// Lets an IPv6 socket that is not bound yet accept IPv4 connections as well.
pub(crate) fn accept_ipv4(socket: &impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_ipv6_v6only(socket, false)?)
}

/// Sends messages to peers. A call never blocks. If a message cannot be sent, it is dropped, and
/// the returned outcome reports this so that the caller can inform the consensus.
///
/// Incoming messages do not pass through this trait: the listener puts them into the node's inbox.
///
/// The node drops its `Network` when it stops for any reason. Dropping it closes the connections to
/// the peers.
pub trait Network: Send + 'static {
    /// Queues a message. Messages to one peer on one lane arrive in order or not at all.
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome;

    /// Returns the number of bytes queued for a peer on all lanes, without the bytes that its
    /// sockets have already accepted.
    fn queued_bytes(&self, _to: NodeId) -> usize {
        0
    }

    /// Sets the peers to keep connections to, and the addresses (`host:port`) to try for each, in
    /// order. Must be called whenever the cluster's membership changes: every open connection is
    /// then checked again. A member that is not listed here may still connect by itself.
    fn set_peers(&mut self, peers: &BTreeMap<NodeId, Vec<String>>);
}

/// The result of a send, as far as the sending side knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOutcome {
    /// Queued; the message may still be lost.
    Queued,
    /// There is no connection to that peer.
    Unreachable,
    /// The queue to that peer is full; the message was dropped.
    Full,
}
