//! The transport of messages between members: over TCP, or inside one process.
//!
//! A member passes a message to its [`Network`](crate::env::Network) and does not wait for it.
//! Incoming messages are passed to a [`Receiver`]. Any message may be lost, but none is damaged,
//! duplicated or, on its lane, reordered. The transport interprets no message except the hello.
//!
//! ```text
//!   driver thread                        'bowline-net' threads                 driver thread
//!   TcpNetwork::send ── Pipe ──────────► dialer ══ TCP ══► acceptor ─────────► Receiver::deliver
//!                       one per peer                       one connection per peer
//!                       and lane                           and lane
//! ```
//!
//! **Unidirectional connections.** A pair of members has four connections: on the control lane and
//! on the bulk lane one connection in each direction. The dialer sends messages and the acceptor
//! only receives them; only keepalives flow back. Therefore simultaneous dialing needs no
//! tie-break, and the order on a lane is the order on its connection. Bulk messages have a
//! connection of their own, so they fill their own buffers and never delay a heartbeat. Snapshots
//! have a third lane, whose connection is opened on demand and closed when it is unused.
//!
//! **A short send path.** `send` encodes the message. If nothing is queued, it writes to the socket
//! from the caller's own thread, so no other thread has to wake up. Data that the socket does not
//! accept is queued, with a limit in bytes and messages, and the dialer's task writes it in
//! batches. If the queue is full, the new message is dropped. If the connection breaks, the whole
//! queue is dropped. The consensus retransmits what it needs.
//!
//! **Identity.** Each connection begins with a [`preface`](exchange), which negotiates the protocol
//! version, and a hello in each direction. [`handshake::judge`] compares the hellos before any byte
//! of a message is read. A rejected peer receives the reason as text, and both sides report it. The
//! hello proves nothing. With certificates ([`tls`], feature `tls`), both ends prove which member
//! they are before the preface. Without certificates, every process that reaches the port can pose
//! as a member. Therefore listening on or dialing a non-loopback address needs `insecure_peers`,
//! which asserts that the network keeps strangers out.
//!
//! **Membership.** Members are added, removed and moved while the transport runs.
//! [`set_peers`](crate::env::Network::set_peers) sets the members to dial and their addresses. An
//! [`Introducer`] supplies the known members for each handshake. When either changes, every open
//! connection is checked again. A removed member receives a frame of a special kind, so that it
//! stops, once the other members no longer need its vote.
//!
//! **Joining.** A process that is not a member yet knows one address and the cluster's token:
//! [`join()`].
//!
//! **The cost of strangers.** The number of connections in their handshake is limited, as are their
//! duration and their memory of a few kilobytes. If there are too many, the oldest silent one is
//! closed, from the address with the most such connections if it has more than a member makes.
//! Therefore a flood of silent connections does not keep a member out. The length of a frame is
//! checked before memory is allocated for it, and its checksum before it is decoded ([`frame`]).
//!
//! **Half-open connections.** The dialer sends keepalives several times in each idle timeout, and
//! the acceptor echoes them. The acceptor also acknowledges other data at the same rate, because
//! the keepalive may be queued after megabytes. An end that receives nothing for the whole idle
//! timeout closes the connection; a successful write does not count. The idle timeout follows the
//! election timeout, so that a network that lost its connections but accepts new ones costs no
//! session.
//!
//! Long before that, a silent connection is replaced if a new one succeeds, and a handshake that
//! hangs is superseded by later ones ([`dialer`]). Therefore a network that dropped packets and
//! works again is used within a fraction of the election timeout. A connection to an earlier
//! incarnation of a peer is closed when a later one connects, even if it seems alive.

mod acceptor;
mod clusters;
mod context;
mod dialer;
mod exchange;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod handshake;
mod join;
mod memory;
mod names;
mod peers;
mod pipe;
mod runtime;
mod security;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

use crate::model::{Hello, JoinAsk, Members, NodeId, PeerMessage};

use handshake::HelloRejection;
#[cfg(any(test, feature = "sim"))]
pub(crate) use {
    frame::{framed, unframed},
    handshake::judge,
};

pub(crate) use join::{JoinError, JoinReply, join};
pub(crate) use memory::MemoryHub;
#[cfg(any(test, feature = "sim"))]
pub(crate) use peers::LANES;
pub(crate) use tcp::{TcpBound, TcpHandle, TcpSettings};
#[cfg(feature = "tls")]
pub use tls::{MemberUri, PeerProof, PeerTls};

/// The receiver of incoming messages and events. It is called on the network's threads:
/// concurrently for different peers or lanes, sequentially for one peer and lane. An implementation
/// must not block, and must not call back into the transport. It should put the data into an inbox
/// and return.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// Delivers a message from `from`. Messages on one lane are delivered in the order of sending,
    /// possibly with gaps.
    fn deliver(&self, from: NodeId, message: PeerMessage);

    /// Reports a connection with `peer`. This is called for each direction and lane, so several
    /// times in a row. The hello has been checked.
    fn connected(&self, peer: NodeId, hello: Hello);

    /// Reports that the last connection with `peer` has ended.
    fn disconnected(&self, peer: NodeId);

    /// Reports that a connection was rejected, by this member or by the other one. `peer` is the
    /// member that this one has dialed, or the id that the other end claims, which may be forged.
    /// At most one rejection per second is reported for each peer and end of a connection.
    fn refused(&self, peer: NodeId, why: Refused);

    /// Passes a join request of a process that knows the cluster's token. A limited number of them
    /// may wait for a reply, each for a limited time. A repeated request may already have been
    /// answered.
    fn join(&self, ask: JoinAsk, reply: JoinReply);
}

/// The reason why two members do not talk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// The reason as text.
    pub(crate) why: String,
    /// A member, possibly this one, that no longer has the disk with which it founded the cluster,
    /// according to this end.
    pub(crate) disk_lost: Option<NodeId>,
    /// A member, possibly this one, that was removed from the cluster and must not return under its
    /// id. If it is this one, the other end has reported it.
    pub(crate) removed: Option<NodeId>,
    /// The address that the other member reports, if its id does not identify it.
    pub(crate) at: Option<String>,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { why, disk_lost: None, removed: None, at: None }
    }
}

impl From<HelloRejection> for Refused {
    fn from(rejection: HelloRejection) -> Self {
        let disk_lost = match &rejection {
            HelloRejection::ReplacedDisk { member, .. } => Some(*member),
            _ => None,
        };
        let removed = match &rejection {
            HelloRejection::Removed { member, .. } => Some(*member),
            _ => None,
        };
        let at = match &rejection {
            HelloRejection::OtherCluster(other) => Some(other.address().to_owned()),
            _ => None,
        };
        Self { why: rejection.to_string(), disk_lost, removed, at }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// Supplies this member's hello and the members that it knows. Called on the network's threads.
pub(crate) trait Introducer: Send + Sync + 'static {
    /// Returns the current hello for a peer. It changes when the cluster is founded. `to` may be
    /// any id.
    fn hello(&self, to: NodeId) -> Hello;

    /// Returns the members that this one knows currently.
    fn known(&self) -> Known;

    /// Returns the name of a member, if this one knows it. A certificate must be for that name.
    fn name(&self, of: NodeId) -> Option<String>;
}

/// The members that a member knows.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// No cluster is founded yet. These members and this one are to found it.
    Founders(BTreeSet<NodeId>),
    /// The members of a cluster.
    Members(Arc<Members>),
    /// The members of a cluster in which too few members may know of a removal yet. The others may
    /// still need the removed member's vote, so it is treated as a member.
    Unsettled(Arc<Members>),
}

impl Known {
    /// Returns whether this id is one of them.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        match self {
            Known::Founders(founders) => founders.contains(&id),
            Known::Members(members) | Known::Unsettled(members) => members.get(id).is_some(),
        }
    }
}

/// The reason why a transport cannot start.
#[derive(Debug, Error)]
pub enum TransportError {
    /// An address is not a loopback address, but unencrypted connections to other machines are not
    /// permitted.
    #[error(
        "{what} {address} is not a loopback address, and connections between members are neither encrypted \
         nor authenticated: configure certificates with peer_tls (feature \"tls\"), or set insecure_peers if \
         only members can reach that network"
    )]
    Insecure {
        /// The purpose of the address.
        what: String,
        /// The address.
        address: String,
    },
    /// The address does not have the form `host:port`.
    #[error("invalid {what} {address:?}: must be host:port")]
    Address {
        /// The purpose of the address.
        what: String,
        /// The address.
        address: String,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The certificate files cannot be used.
    #[error("cannot use the certificates for connections between members: {0}")]
    Certificates(String),
    /// The operating system cannot create a thread.
    #[error("cannot start the network threads: {0}")]
    Threads(std::io::Error),
}
