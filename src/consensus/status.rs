//! The status of a member's consensus, as the member knows it.

#[cfg(test)]
use crate::model::Term;
use crate::model::{LogIndex, MemberRole, NodeId};

/// The Raft role of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RaftRole {
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks whether it would win an election (pre-vote). Has not started a new term.
    PreCandidate,
    /// Requests votes for the current term.
    Candidate,
    /// Leads the current term. A later term with another leader may have begun without its
    /// knowledge.
    Leader,
}

impl From<raft::StateRole> for RaftRole {
    fn from(role: raft::StateRole) -> Self {
        match role {
            raft::StateRole::Follower => RaftRole::Follower,
            raft::StateRole::PreCandidate => RaftRole::PreCandidate,
            raft::StateRole::Candidate => RaftRole::Candidate,
            raft::StateRole::Leader => RaftRole::Leader,
        }
    }
}

/// The complete status, for tests. The node queries only the few parts that it needs.
#[cfg(test)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    /// Id of this member.
    pub(crate) id: NodeId,
    /// Role of this member.
    pub(crate) role: RaftRole,
    pub(crate) term: Term,
    /// Leader of the term, if known.
    pub(crate) leader: Option<NodeId>,
    /// Highest index known to be committed.
    pub(crate) commit: LogIndex,
    /// Highest applied index.
    pub(crate) applied: LogIndex,
    pub(crate) last: LogIndex,
    /// Highest index known to be on this member's disk.
    pub(crate) persisted: LogIndex,
    /// Whether this member is the leader and has applied an entry of its own term. Then all entries
    /// of earlier terms are applied too.
    pub(crate) ready_to_lead: bool,
    /// The member that the leadership is being transferred to.
    pub(crate) transferring: Option<NodeId>,
    /// As the leader: progress of each other member.
    pub(crate) peers: Vec<PeerStatus>,
}

/// The progress of a member, as its leader knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeerStatus {
    /// Id of the member.
    pub(crate) id: NodeId,
    /// Role of the member. A voter that is being replaced counts as a voter until the replacement
    /// completes.
    pub(crate) role: MemberRole,
    /// Highest index up to which its log is known to match the leader's.
    pub(crate) matched: LogIndex,
    /// Whether the leader has heard from the member within an election timeout.
    pub(crate) active: bool,
    /// The way in which the leader replicates to this member.
    pub(crate) state: PeerState,
}

/// The way in which a leader replicates to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerState {
    /// The end of the member's log is unknown, or the member does not reply. The leader sends one
    /// message per heartbeat.
    Probe,
    /// Entries are sent as they arrive.
    Replicate,
    /// The member needs entries which the leader's log no longer contains, so it fetches a
    /// snapshot.
    Snapshot,
}

impl From<raft::ProgressState> for PeerState {
    fn from(state: raft::ProgressState) -> Self {
        match state {
            raft::ProgressState::Probe => PeerState::Probe,
            raft::ProgressState::Replicate => PeerState::Replicate,
            raft::ProgressState::Snapshot => PeerState::Snapshot,
        }
    }
}
