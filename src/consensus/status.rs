//! How a member stands, as far as it knows itself.

#[cfg(test)]
use crate::model::Term;
use crate::model::{LogIndex, MemberRole, NodeId};

/// What part a member plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Asks whether it would be elected. Has promised nothing yet.
    PreCandidate,
    /// Wants to lead the current term.
    Candidate,
    /// Leads the current term, unless a later one has begun without its knowing.
    Leader,
}

impl From<raft::StateRole> for Role {
    fn from(role: raft::StateRole) -> Self {
        match role {
            raft::StateRole::Follower => Role::Follower,
            raft::StateRole::PreCandidate => Role::PreCandidate,
            raft::StateRole::Candidate => Role::Candidate,
            raft::StateRole::Leader => Role::Leader,
        }
    }
}

/// See the module. The node asks for the few parts that it needs; tests look at all of it.
#[cfg(test)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    /// This member.
    pub(crate) id: NodeId,
    /// Its part.
    pub(crate) role: Role,
    /// The term.
    pub(crate) term: Term,
    /// Who leads it, if known.
    pub(crate) leader: Option<NodeId>,
    /// The newest entry known to be committed.
    pub(crate) commit: LogIndex,
    /// The newest applied entry.
    pub(crate) applied: LogIndex,
    /// The newest entry.
    pub(crate) last: LogIndex,
    /// The newest entry known to be on this member's disk.
    pub(crate) persisted: LogIndex,
    /// It leads, and has applied an entry of its own term: nothing older can still come.
    pub(crate) ready_to_lead: bool,
    /// Whom leadership is being handed to.
    pub(crate) transferring: Option<NodeId>,
    /// As a leader: how far each other member is.
    pub(crate) peers: Vec<PeerStatus>,
}

/// How far a member is, as its leader knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PeerStatus {
    /// Which.
    pub(crate) id: NodeId,
    /// Its part. One that is being replaced votes until that is done.
    pub(crate) role: MemberRole,
    /// Up to here it has said that its log is the leader's.
    pub(crate) matched: LogIndex,
    /// It was heard of within an election timeout.
    pub(crate) active: bool,
    /// How it is served.
    pub(crate) state: PeerState,
}

/// How a leader serves a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerState {
    /// Where its log ends is not known, or it does not answer: one message a heartbeat.
    Probe,
    /// It gets entries as they come.
    Replicate,
    /// It is too far behind for the log, and fetches a snapshot.
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
