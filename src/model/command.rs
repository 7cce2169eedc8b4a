//! The contents of the log: commands, each with the id of the request that proposed it.

use std::ops::Range as Span;
use std::time::Duration;

use super::{
    AccessChange, AlarmChange, Caller, ClusterVersion, Delete, Incarnation, LeaseId,
    MemberAttributes, NodeId, Put, Revision, Term, Txn,
};

/// A change of the replicated state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Writes a key.
    Put(Put),
    /// Deletes keys.
    Delete(Delete),
    /// A transaction. The ranges of a transaction are read when it is applied.
    Txn(Txn),
    /// Discards history before this revision.
    Compact(Revision),
    /// Grants a lease.
    Grant {
        /// The requested id, or `None` to let the state machine choose one that was never used.
        id: Option<LeaseId>,
        /// TTL of the lease: whole milliseconds, at least one.
        ttl: Duration,
        /// Set if the lease belongs to a session.
        session: Option<SessionInfo>,
    },
    /// Revokes a lease. Its keys are deleted in key order, in one revision.
    Revoke(LeaseId),
    /// The name and the addresses of the node that makes the request.
    Announce(MemberAttributes),
    /// Announces a new address of a member. See [`Member::moves_to`](super::Member::moves_to).
    Move {
        /// Id of the member.
        member: NodeId,
        /// The new address, `host:port`.
        address: String,
    },
    /// Raises the cluster version. Proposed only when every member supports the new version. From
    /// this entry on, the log may use the features of the version.
    Raise(ClusterVersion),
    /// Changes users or roles.
    Access(AccessChange),
    /// Raises or clears alarms.
    Alarm(AlarmChange),
    /// Executes the inner command if the caller has the rights for it. The inner command must not
    /// be an `As`.
    As(Caller, Box<Command>),
}

impl Command {
    /// Returns the command to execute, without its caller.
    pub fn inner(&self) -> &Command {
        match self {
            Command::As(_, command) => command,
            command => command,
        }
    }
}

/// The information about a session that other members see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// A human-readable label, such as the program and its host.
    pub label: String,
    /// Whether this is the node's own session. Granting such a session revokes the own sessions
    /// that earlier incarnations of the node have left behind.
    pub own: bool,
}

/// The unique id of a request: the node where the call was made, the incarnation of the node, and a
/// number within this incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId {
    /// The node where the call was made.
    pub node: NodeId,
    /// Incarnation of that node.
    pub incarnation: Incarnation,
    /// Number of the request within that incarnation, from 1.
    pub seq: u64,
}

/// The state of a node's earlier requests, which lets the dedup table discard rows. Every request
/// with a number below `frontier` and not in `open` is completed: it has a reply, or was given up
/// and will never be sent again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AckWindow {
    /// The first number that this window does not cover.
    pub frontier: u64,
    /// Numbers of open requests, all below `frontier`. The spans are sorted, disjoint, not adjacent
    /// and not empty.
    pub open: Vec<Span<u64>>,
}

/// A batch of requests of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The node where the calls were made.
    pub node: NodeId,
    /// Incarnation of that node.
    pub incarnation: Incarnation,
    /// The state of the node's earlier requests.
    pub window: AckWindow,
    /// The requests with their numbers. Each request is applied independently: if one request is
    /// rejected, the others are still applied.
    pub requests: Vec<(u64, Command)>,
}

/// One part of a log entry. An entry holds one or more items, which are applied in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// Requests of a node.
    Proposal(Proposal),
    /// Leases that have expired according to the leader of `term`. The item is ignored if its log
    /// entry has another term than `term`. Ids of leases that no longer exist are skipped.
    Expire {
        /// Term of the leader that measured the expiry.
        term: Term,
        /// The leases. Each lease is revoked as by [`Command::Revoke`].
        leases: Vec<LeaseId>,
    },
}
