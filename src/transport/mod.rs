//! The transport of messages between members: over TCP, or inside one process.
//!
//! A member passes each message to its [`Network`](crate::env::Network) without waiting until it is
//! sent. Incoming messages are passed to a [`Receiver`]. Any message may be lost, but no message is
//! damaged or duplicated. A *lane* is a separate connection for one kind of traffic: control
//! messages, bulk messages, or snapshots. Messages on one lane are not reordered. The transport
//! interprets no message except the hello.
//!
//! ```text
//!   driver thread                        'bowline-net' threads                 driver thread
//!   TcpNetwork::send ── Pipe ──────────► dialer ══ TCP ══► acceptor ─────────► Receiver::deliver
//!                       one per peer                       one connection per peer
//!                       and lane                           and lane
//! ```
//!
//! **Unidirectional connections.** A pair of members has four connections: one in each direction on
//! the control lane and on the bulk lane. On each connection, the dialer sends messages, and the
//! acceptor sends back nothing but keepalives. Therefore simultaneous dialing needs no tie-break,
//! and the order on a lane is the order on its connection. Bulk messages never delay a heartbeat,
//! because the two lanes have separate connections and buffers. The snapshot lane is connected on
//! demand and closed when it is unused.
//!
//! **A short send path.** `send` encodes the message. If the queue of the lane is empty, `send`
//! writes to the socket on the caller's own thread, so that no other thread has to wake up. Data
//! that the socket does not accept is queued, with a limit in bytes and messages, and the dialer's
//! task writes it in batches. If the queue is full, the new message is dropped. If the connection
//! breaks, the whole queue is dropped. The consensus retransmits what it needs.
//!
//! **Identity.** Each connection begins with a [`preface`](exchange), which negotiates the protocol
//! version, and a hello in each direction. [`handshake::check_hello`] compares the hellos before any byte
//! of a message is read. A rejected peer receives the reason as text, and both sides report the
//! reason. A hello alone proves no identity. With certificates ([`tls`], feature `tls`), both ends
//! prove which member they are before the preface. Without certificates, every process that reaches
//! the port can pose as a member. Therefore listening on or dialing a non-loopback address needs
//! `insecure_peers`, which asserts that the network keeps strangers out.
//!
//! **Membership.** Members are added, removed and moved while the transport runs.
//! [`set_peers`](crate::env::Network::set_peers) sets the members to dial and their addresses. An
//! [`Introducer`] supplies the known members for each handshake. When the dialed or the known
//! members change, every open connection is checked again. A removed member receives a special
//! frame, which stops it. The frame is sent once the other members no longer need the vote of the
//! removed member.
//!
//! **Joining.** A process that is not a member yet can join with one address and the cluster's
//! token: [`join()`].
//!
//! **The cost of strangers.** The number of connections without a completed handshake is limited,
//! and so are the duration of a handshake and its memory (a few kilobytes). When there are too many
//! pending handshakes, one connection is closed. The rules are in [`acceptor`]. Therefore a flood
//! of silent connections does not keep a member out. The length of a frame is checked before memory
//! is allocated for it, and its checksum before it is decoded ([`frame`]).
//!
//! **Half-open connections.** The dialer sends keepalives several times in each idle timeout, and
//! the acceptor echoes them. The acceptor also acknowledges other data at the same rate, because
//! the keepalive may be queued after megabytes. A side that receives nothing for the whole idle
//! timeout closes the connection, even if its own writes succeed. The idle timeout is derived from
//! the election timeout. Therefore no client session expires when a network drops all established
//! connections but accepts new ones.
//!
//! Long before the idle timeout, the dialer tries to replace a silent connection by a new one, and
//! starts another handshake if one hangs ([`dialer`]). Therefore a network that dropped packets and
//! works again is used within a fraction of the election timeout. When a later incarnation of a
//! peer connects, connections to its earlier incarnations are closed, even if they seem alive.

mod acceptor;
mod clusters;
mod context;
mod dialer;
mod evidence;
mod exchange;
mod frame;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) mod fuzz;
mod handshake;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod inspect;
mod join;
mod memory;
mod names;
mod peers;
mod pipe;
mod runtime;
#[cfg(any(test, fuzzing))]
mod script;
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
pub(crate) use evidence::{ConnectionEnd, ConnectionEvent, ProcessEvidence};
pub(crate) use join::{JoinError, JoinReply, join};
pub(crate) use memory::MemoryHub;
pub(crate) use tcp::{TcpBound, TcpHandle, TcpSettings};
#[cfg(feature = "tls")]
pub use tls::{MemberUri, PeerCertificates, PeerPem, PeerProof, PeerTls};

/// The receiver of incoming messages and events. The network's threads call the receiver
/// concurrently for different peers or lanes, and sequentially for one peer and lane. An
/// implementation must not block, and must not call back into the transport. An implementation
/// should only put the data into an inbox and return.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// Delivers a message from `from`. Messages on one lane are delivered in the order of sending,
    /// possibly with gaps.
    fn deliver(&self, from: NodeId, message: PeerMessage);

    /// Reports a connection with `peer`, after the hello was checked. Called once for each
    /// direction and lane, so usually several times in a row.
    fn connected(&self, peer: NodeId, hello: Hello);

    /// Reports that the last connection with `peer` has ended.
    fn disconnected(&self, peer: NodeId);

    /// Reports whether the process of `peer` has ended, as far as the connections show
    /// ([`ProcessEvidence`]). Called when this changes.
    fn process_ended(&self, peer: NodeId, ended: bool);

    /// Reports that this member or the other member has rejected a connection. `peer` is the member
    /// that this one has dialed, or the id that a dialer claims, which may be forged. At most one
    /// rejection per second is reported for each peer and side of a connection.
    fn refused(&self, peer: NodeId, why: Refused);

    /// Passes on a join request of a process that knows the cluster's token. The transport limits
    /// how many requests wait for a reply, and for how long. The same process may repeat a request
    /// that was already answered.
    fn join(&self, ask: JoinAsk, reply: JoinReply);
}

/// The reason for which a connection between two members was rejected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// The reason as text.
    pub(crate) why: String,
    /// A member, possibly this one, that no longer has the disk with which it founded the cluster.
    /// Set if this member has detected the loss.
    pub(crate) disk_lost: Option<NodeId>,
    /// A member, possibly this one, that was removed from the cluster and must not return under its
    /// id. If this member itself was removed, the other member has reported that.
    pub(crate) removed: Option<NodeId>,
    /// The address that the other member reports. Set if the id does not identify the other member.
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
    /// Returns the current hello for the peer `to`, which may be any id. The hello changes when the
    /// cluster is founded.
    fn hello(&self, to: NodeId) -> Hello;

    /// Returns the members that this member knows currently.
    fn known(&self) -> Known;

    /// Returns the name of a member, if this one knows it. A certificate must be for that name.
    fn name(&self, of: NodeId) -> Option<String>;
}

/// The members that a member knows.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// The cluster is not founded yet. These members and this member will found the cluster.
    Founders(BTreeSet<NodeId>),
    /// The members of a cluster.
    Members(Arc<Members>),
    /// The members of a cluster in which too few members may have learned of a removal. Members
    /// that have not learned of the removal may still need the vote of the removed member.
    /// Therefore the removed member is still accepted.
    Unsettled(Arc<Members>),
}

impl Known {
    /// Returns whether this is the id of a known member.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        match self {
            Known::Founders(founders) => founders.contains(&id),
            Known::Members(members) | Known::Unsettled(members) => members.get(id).is_some(),
        }
    }
}

/// The reason why a transport cannot start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// An address is not a loopback address, but unencrypted connections to other machines are not
    /// permitted.
    #[error(
        "{what} {address} is not a loopback address, and connections between members are neither encrypted \
         nor authenticated: configure certificates with Config::peer_tls (feature \"tls\"), or set Config::insecure_peers if \
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
    /// Listening on the port failed.
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
