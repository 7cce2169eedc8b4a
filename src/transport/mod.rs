//! Messages between members: over TCP, or inside one process.
//!
//! A member hands a message to its [`Network`](crate::env::Network) and forgets it; what arrives is
//! given to a [`Receiver`]. In between, any message may be lost, and none is damaged, doubled or, on
//! its lane, overtaken by a later one. Nothing here knows what a message means, except the hello.
//!
//! ```text
//!   driver thread                        'bowline-net' threads                 driver thread
//!   TcpNetwork::send ── Pipe ──────────► dialer ══ TCP ══► acceptor ─────────► Receiver::deliver
//!                       one per peer                       one connection per peer
//!                       and lane                           and lane
//! ```
//!
//! **One way each.** A pair of members has four connections: on the lanes for control and for bulk one
//! that the first has dialed and one that the second has. The dialer sends messages, the acceptor only receives them (what
//! flows back are signs of life), so no connection has to be elected when both dial at once, and a
//! lane's order is a connection's order. Bulk has connections of its own: it fills its own buffers and
//! never stands before a heartbeat. Snapshots have a third lane, whose connection is made when
//! something is sent on it and closed when nothing is.
//!
//! **The way out is short.** `send` encodes, and if nothing is queued before it, writes to the
//! socket from the caller's own thread: no other thread has to wake up. What the socket does not take
//! is queued, bounded in bytes and messages, and written by the dialer's task in batches. A full queue
//! drops the new message; a lost connection drops the whole queue. Consensus repeats what it needs.
//!
//! **Who is there.** The first thing on a connection is a [`preface`](exchange) that settles the
//! protocol's version, the second a hello in each direction. [`handshake::judge`] compares them; who is
//! refused is told why, in words, and both sides report it. Not one byte of a message is looked at
//! before. The hello names and compares; it proves nothing. With certificates ([`tls`], feature `tls`),
//! which come between connect and preface, both ends prove which member they are before the first byte
//! of it. Without, whoever reaches the port can claim to be a member, so listening on, or dialing,
//! anything but loopback needs `insecure_peers`, which says that the network keeps strangers away.
//!
//! **Who belongs.** Members come, go and move while the transport runs:
//! [`set_peers`](crate::env::Network::set_peers) says whom to dial and where, an [`Introducer`] says at
//! each handshake whom this member knows. When either changes, everyone who is connected is judged again;
//! one that was removed is told that it was, in a frame of its own kind, so that it stops, as soon as the others can do
//! without it.
//!
//! **Who comes.** Somebody who is no member yet knows one address and the cluster's token: [`join()`].
//!
//! **What a stranger can cost.** A limited number of connections may be in their handshake at a time,
//! for a limited time, each for a few kilobytes; when there are too many, the oldest silent one goes of the address that
//! has most, if those are more than a member makes, or else of any, so that a flood of silent ones does not keep a member
//! out. A frame's length is checked before a byte is allocated for it, its checksum before it is decoded ([`frame`]).
//!
//! **Half-open connections.** The dialer says that it lives a few times in each idle timeout and the
//! acceptor echoes it; and it answers as often for whatever else has come, since the dialer's word may stand
//! behind megabytes. Whoever hears nothing for the whole of it closes: what the system takes to be sent
//! is no sign of life. The timeout follows the election timeout, so that a network that has forgotten its
//! connections and takes new ones costs no session. Long before that, a silent connection is replaced if a new one
//! succeeds, and a handshake that hangs is overtaken by later ones ([`dialer`]). So a network that swallowed bytes and is
//! sound again is used within a fraction of the election timeout. A connection to an earlier life of a peer, however
//! alive it seems, is given up when a later one is met.

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

/// What becomes of what arrives. Called from the network's threads, several at a time, but one at a
/// time for each peer and lane. Must not block: put it into an inbox and return. Must not call back
/// into the transport.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// A message from `from`. On each lane in the order in which they were sent, with gaps where some
    /// were lost.
    fn deliver(&self, from: NodeId, message: PeerMessage);

    /// A connection with `peer` has come up, in either direction and on either lane, so this is called
    /// several times in a row. Its hello has been judged and was found right.
    fn connected(&self, peer: NodeId, hello: Hello);

    /// The last connection with `peer` is gone.
    fn disconnected(&self, peer: NodeId);

    /// A connection was refused, by this member or by the other, and why. `peer` is whom this member
    /// has dialed, or who the other one claims to be: possibly no member at all. At most one a second
    /// is reported for each peer and end of a connection.
    fn refused(&self, peer: NodeId, why: Refused);

    /// Somebody who knows the cluster's token wants to become a member. Some may wait for their answers
    /// at a time, each for a limited time; who asks again may have been answered before.
    fn join(&self, ask: JoinAsk, reply: JoinReply);
}

/// Why two members do not talk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// In words.
    pub(crate) why: String,
    /// Set if this end has found that a member, possibly itself, has not the disk any more with which
    /// it founded the cluster.
    pub(crate) disk_lost: Option<NodeId>,
    /// Set if a member, possibly this one, was removed from the cluster and must not come back under
    /// its id. If it is this one, the other end has said so.
    pub(crate) removed: Option<NodeId>,
    /// Where the other member says that it is reached, if its id does not tell which one it is.
    pub(crate) at: Option<String>,
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self { why, disk_lost: None, removed: None, at: None }
    }
}

impl From<HelloRejection> for Refused {
    fn from(refusal: HelloRejection) -> Self {
        let disk_lost = match &refusal {
            HelloRejection::ReplacedDisk { member, .. } => Some(*member),
            _ => None,
        };
        let removed = match &refusal {
            HelloRejection::Removed { member, .. } => Some(*member),
            _ => None,
        };
        let at = match &refusal {
            HelloRejection::OtherCluster(other) => Some(other.address().to_owned()),
            _ => None,
        };
        Self { why: refusal.to_string(), disk_lost, removed, at }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// Says who this member is and whom it knows. Called from the network's threads.
pub(crate) trait Introducer: Send + Sync + 'static {
    /// The hello for a peer, as of now. It changes when the cluster is founded. Asked with any id.
    fn hello(&self, to: NodeId) -> Hello;

    /// Whom this member knows, as of now.
    fn known(&self) -> Known;

    /// What a member is called, as far as this one knows: a certificate must be for that name.
    fn name(&self, of: NodeId) -> Option<String>;
}

/// Whom a member knows.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// No cluster is founded yet: these, and this member itself, are to found one.
    Founders(BTreeSet<NodeId>),
    /// The members of a cluster.
    Members(Arc<Members>),
    /// The same, of whom not enough may know yet who was removed: the others may need its vote still, as if it were
    /// one of them.
    Unsettled(Arc<Members>),
}

impl Known {
    /// Whether this is one of them.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        match self {
            Known::Founders(founders) => founders.contains(&id),
            Known::Members(members) | Known::Unsettled(members) => members.get(id).is_some(),
        }
    }
}

/// Why a transport cannot start.
#[derive(Debug, Error)]
pub enum TransportError {
    /// An address outside this machine, and no leave to use it.
    #[error(
        "{what} {address} is not on loopback, and connections between members are neither encrypted \
         nor authenticated: give this member certificates with peer_tls (feature \"tls\"), or set \
         insecure_peers if nobody else can reach that network"
    )]
    Insecure {
        /// Whose address.
        what: String,
        /// The address.
        address: String,
    },
    /// Not of the form `host:port`.
    #[error("{what} {address:?} is not of the form host:port")]
    Address {
        /// Whose address.
        what: String,
        /// The address.
        address: String,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        error: std::io::Error,
    },
    /// The files with certificates cannot be used.
    #[error("the certificates for connections between members cannot be used: {0}")]
    Certificates(String),
    /// The operating system gives no thread.
    #[error("cannot start the network's threads: {0}")]
    Threads(std::io::Error),
}
