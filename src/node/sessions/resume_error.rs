//! The error of a session that cannot be resumed.

use std::time::Duration;

use crate::model::{LeaseId, NodeId};

/// The reasons for which the renewals of a lease cannot be resumed as requested. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeSessionError {
    /// The lease belongs to a node's own session. Such a lease ends with the incarnation of its
    /// node and cannot be resumed.
    #[error(
        "lease {lease} belongs to the own session of node {node}, and such a session cannot be resumed"
    )]
    OwnSessionLease {
        /// The lease.
        lease: LeaseId,
        /// The node that owns the session.
        node: NodeId,
    },
    /// The TTL of the lease is not longer than the lock delay, so the session would have no time in
    /// which it could rely on the lease.
    #[error("the lease TTL of {lease_ttl:?} is not longer than the lock delay of {delay:?}")]
    DelayTooLong {
        /// TTL of the lease, including the delay.
        lease_ttl: Duration,
        /// The requested delay.
        delay: Duration,
    },
    /// This node already keeps the lease alive for a session with another lock delay.
    #[error(
        "this node already renews the lease for a session with a lock delay of {kept:?}, not {delay:?}"
    )]
    OtherLockDelay {
        /// The lock delay of the existing session.
        kept: Duration,
        /// The requested delay.
        delay: Duration,
    },
}
