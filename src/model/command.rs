//! What the log holds: commands, each under the id of the request that wants it.

use std::ops::Range as Span;
use std::time::Duration;

use super::{
    AccessChange, AlarmChange, Caller, ClusterVersion, Delete, Incarnation, LeaseId,
    MemberAttributes, NodeId, Put, Revision, Term, Txn,
};

/// A change of the replicated state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Write a key.
    Put(Put),
    /// Delete keys.
    Delete(Delete),
    /// A transaction. Ranges in it are read where it is applied.
    Txn(Txn),
    /// Forget what happened before this revision.
    Compact(Revision),
    /// Make a lease.
    Grant {
        /// The id asked for; `None` lets the state machine mint one that was never used.
        id: Option<LeaseId>,
        /// How long it lives without renewal. Whole milliseconds, at least one.
        ttl: Duration,
        /// Set if the lease is a session's.
        session: Option<SessionInfo>,
    },
    /// End a lease: its keys are deleted, in key order, in one revision.
    Revoke(LeaseId),
    /// What the node that makes the request is called, and where it is reached.
    Announce(MemberAttributes),
    /// A member is going to be reached elsewhere: see [`Member::moves_to`](super::Member::moves_to).
    Move {
        /// Which.
        member: NodeId,
        /// Where, `host:port`.
        address: String,
    },
    /// Every member understands this version: what it brings may be used from now on.
    Raise(ClusterVersion),
    /// Change who may do what.
    Access(AccessChange),
    /// Raise an alarm, or end some.
    Alarm(AlarmChange),
    /// Execute another command, which is none of these, if its caller may.
    As(Caller, Box<Command>),
}

impl Command {
    /// What is to be done, whoever asks for it.
    pub fn deed(&self) -> &Command {
        match self {
            Command::As(_, command) => command,
            command => command,
        }
    }
}

/// What others see of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// A name that people can read: the program, its host.
    pub label: String,
    /// Whether this is the node's own session. Granting it ends the own sessions that earlier
    /// incarnations of the node have left behind.
    pub own: bool,
}

/// Names one request for ever: who made it, in which life, and its number in that life, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId {
    /// The node where the call was made.
    pub node: NodeId,
    /// Its incarnation at the time.
    pub incarnation: Incarnation,
    /// The number of the request in that incarnation, from 1.
    pub seq: u64,
}

/// What the node that made a request says about its other ones, so that the table of answers can
/// forget: every request with a number below `frontier` is closed (answered, or given up and never
/// to be sent again), except those in `open`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AckWindow {
    /// Numbers at and above it have not been judged yet.
    pub frontier: u64,
    /// Sorted, disjoint, not adjacent, not empty, all below `frontier`.
    pub open: Vec<Span<u64>>,
}

/// Requests of one node, travelling together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The node where the calls were made.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// What it says about its earlier requests.
    pub window: AckWindow,
    /// Requests by number. Each is applied on its own: one's rejection does not touch the others.
    pub requests: Vec<(u64, Command)>,
}

/// One part of a log entry. An entry holds one or more, applied in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// Requests of a node.
    Proposal(Proposal),
    /// The leader of `term` has waited long enough for these leases. Void in an entry of another
    /// term. Ids without a lease are passed over.
    Expire {
        /// The term of the leader that counted.
        term: Term,
        /// Which leases, each ended like a [`Command::Revoke`].
        leases: Vec<LeaseId>,
    },
}
