//! What a node says about itself.

use crate::model::{LogIndex, NodeId, Revision, Term};

/// The part that a node plays in the consensus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Role {
    /// It has not met the other founding members yet.
    Founding,
    /// It follows a leader, or waits for one.
    Follower,
    /// It stands for election.
    Candidate,
    /// It leads.
    Leader,
    /// It has stopped.
    Stopped,
}

/// What a node says about itself; see [`Node::status`](crate::Node::status).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// The part it plays.
    pub role: Role,
    /// Its term.
    pub term: Term,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// The revision that its readers see.
    pub revision: Revision,
    /// The last log index that it knows to be committed.
    pub commit: LogIndex,
    /// The last log index that it has applied.
    pub applied: LogIndex,
    /// Requests made on it that have no answer yet.
    pub open_requests: usize,
    /// Sessions that it keeps alive.
    pub sessions: usize,
    /// The founding members that it has not met.
    pub unmet: Vec<NodeId>,
    /// Whether replicas differ without a majority, so that writes are refused.
    pub diverged: bool,
    /// The digest of the replica, with the index that it was taken at.
    pub digest: (LogIndex, u64),
}
