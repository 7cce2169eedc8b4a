//! The status that a node reports about itself.

use crate::model::{ClusterVersion, LogIndex, MemberRole, NodeId, Revision, Term};

/// The role of a node in the consensus.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Role {
    /// The node has not met the other founding members yet.
    Founding,
    /// The node has lost the state before the beginning of its log, and fetches this state from
    /// another member.
    Restoring,
    /// The node follows a leader, or waits for one.
    Follower,
    /// The node is a candidate to lead the consensus.
    Candidate,
    /// The node is the leader of the consensus, which is not the leader of an
    /// [`Election`](crate::Election).
    Leader,
    /// The node has stopped.
    Stopped,
}

/// Status of a node; see [`Node::status`](crate::Node::status).
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeStatus {
    /// Id of the node.
    pub id: NodeId,
    /// Name of the node.
    pub name: String,
    /// Role of the node.
    pub role: Role,
    /// The cluster version that all members support, as of the entries that this node has applied.
    pub version: ClusterVersion,
    /// Current term.
    pub term: Term,
    /// The leader of the consensus, if the node knows one.
    pub leader: Option<NodeId>,
    /// The newest revision that is visible to readers of this node.
    pub revision: Revision,
    /// Index of the last entry that the node knows to be committed.
    pub commit: LogIndex,
    /// Index of the last applied entry.
    pub applied: LogIndex,
    /// Index of the last entry of the log.
    pub last: LogIndex,
    /// All members including this one, in the order of their ids, as of the entries that this node
    /// has applied. Empty before the cluster is founded.
    pub members: Vec<MemberStatus>,
    /// Number of writes of this node's callers that have no answer yet.
    pub open_requests: usize,
    /// Number of sessions that the node keeps alive.
    pub sessions: usize,
    /// The founding members that the node has not contacted yet. Empty once the cluster is founded.
    pub unreached: Vec<NodeId>,
    /// Whether the replicas differ and no majority of them agrees, so that writes are rejected.
    pub diverged: bool,
    /// The digest of the replica, and the index at which it was computed.
    pub digest: (LogIndex, u64),
}

impl NodeStatus {
    /// Returns the name of the leader of the consensus, for log lines.
    pub(crate) fn leader_name(&self) -> Option<String> {
        let name = |id: NodeId| match self.members.iter().find(|member| member.id == id) {
            Some(member) if !member.name.is_empty() => member.name.clone(),
            _ => format!("member {id}"),
        };
        self.leader.map(name)
    }
}

/// A member of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemberStatus {
    /// Id of the member.
    pub id: NodeId,
    /// Name of the member.
    pub name: String,
    /// Address at which peers reach the member, as `host:port`. The address is empty if the member
    /// has none.
    pub address: String,
    /// Addresses at which the member's program serves clients: see
    /// [`Config::endpoints`](crate::Config::endpoints).
    pub endpoints: Vec<String>,
    /// Role of the member: voter or learner.
    pub role: MemberRole,
    /// Replication progress. Known only if the node that reports it is the leader.
    pub progress: Option<Progress>,
}

/// The replication progress of a member, as the leader knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Progress {
    /// Index up to which the member's log is known to match the leader's log.
    pub matched: LogIndex,
    /// Number of entries of the leader's log that the member lacks.
    pub behind: u64,
    /// Whether the leader has received a message from the member within an election timeout.
    pub active: bool,
}
