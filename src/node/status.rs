//! What a node says about itself.

use crate::model::{ClusterVersion, LogIndex, MemberRole, NodeId, Revision, Term};

/// The part that a node plays in the consensus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Role {
    /// It has not met the other founding members yet.
    Founding,
    /// The state that its log begins with was lost; it fetches it from another member.
    Restoring,
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
    /// What all members of the cluster understand, as of what it has applied.
    pub version: ClusterVersion,
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
    /// The last entry of its log.
    pub last: LogIndex,
    /// All members, itself too, in the order of their ids, as its replica has them. Empty before its
    /// cluster is founded.
    pub members: Vec<MemberStatus>,
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

/// A member, as another one sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemberStatus {
    /// Its id.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where it is reached, `host:port`; empty if nowhere.
    pub address: String,
    /// Where its host serves clients of its own: see [`Config::endpoints`](crate::Config::endpoints).
    pub endpoints: Vec<String>,
    /// Whether it votes.
    pub role: MemberRole,
    /// How far its log is, if the node that is asked leads.
    pub progress: Option<Progress>,
}

/// How far a member's log is, as the leader knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Up to here it has said that its log is the leader's.
    pub matched: LogIndex,
    /// How many entries of the leader's log it lacks.
    pub behind: u64,
    /// Whether it was heard of within an election timeout.
    pub active: bool,
}
