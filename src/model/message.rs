//! What members say to each other.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    ClusterId, ClusterVersion, DiskId, Incarnation, LeaseId, LogIndex, MembershipError,
    MembershipRequest, NodeId, Proposal, SnapshotId,
};

/// Which connection a message travels on: bulk must never delay a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Small and urgent: votes, heartbeats, acknowledgements, reads, renewals.
    Control,
    /// Large: entries, proposals.
    Bulk,
    /// Very large and in no hurry: parts of snapshots.
    Snapshot,
}

/// Who is at the other end of a connection. The first frame in each direction; nothing else is
/// decoded before it has been judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The cluster that the sender belongs to, or wants to found.
    pub cluster: ClusterId,
    /// The sender.
    pub from: NodeId,
    /// Whom the sender believes to talk to.
    pub to: NodeId,
    /// The sender's data directory.
    pub disk: DiskId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Whether the sender has founded its cluster, or joined it.
    pub standing: FoundingState,
    /// The log entry that made the sender a member; 1 for the founders.
    pub since: LogIndex,
    /// Where the sender can be reached, `host:port`; empty if nowhere.
    pub address: String,
    /// The newest cluster version that the sender understands.
    pub supported_version: ClusterVersion,
}

/// How far a member is with founding its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundingState {
    /// Its disk is new and it has not met all founding members yet.
    Blank,
    /// It has met them, or has joined later: which disk each founder had.
    Founded(BTreeMap<NodeId, DiskId>),
}

/// A message from one member to another. Any of them may be lost, doubled, delayed or overtaken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerMessage {
    /// Who I am. Also the first frame of every connection.
    Hello(Hello),
    /// A message of the consensus; only `consensus` looks inside.
    Raft(Bytes),
    /// Requests to be proposed by the leader.
    Propose(Proposal),
    /// The leader did not propose these requests.
    ProposeRejected {
        /// The incarnation of the node that asked.
        incarnation: Incarnation,
        /// Which requests.
        seqs: Vec<u64>,
        /// Why.
        why: ProposeRejection,
    },
    /// Which log index must be applied before a linearizable read may be answered?
    ReadAsk {
        /// Named by the asking node, never used twice in one incarnation.
        round: u64,
        /// The asking node's incarnation.
        incarnation: Incarnation,
    },
    /// The answer, from a leader that a quorum has confirmed after the question came.
    ReadAnswer {
        /// As in the question.
        round: u64,
        /// As in the question.
        incarnation: Incarnation,
        /// The index, or `None`: I am not the leader.
        index: Option<LogIndex>,
    },
    /// Keep these leases alive.
    Renew {
        /// Named by the asking node, never used twice in one incarnation.
        round: u64,
        /// The asking node's incarnation.
        incarnation: Incarnation,
        /// Which.
        leases: Vec<LeaseId>,
    },
    /// The answer, from a leader that a quorum has confirmed after the renewal came. Leases in
    /// neither list were not judged: ask again.
    Renewed {
        /// As in the request.
        round: u64,
        /// As in the request.
        incarnation: Incarnation,
        /// These live for a full TTL from the moment the request was sent.
        renewed: Vec<LeaseId>,
        /// These do not exist at the leader.
        gone: Vec<LeaseId>,
    },
    /// Renew some leases, and say how long they and others live: for callers, of leases that nobody here keeps.
    LeaseAsk {
        /// Named by the asking node, never used twice in one incarnation.
        round: u64,
        /// The asking node's incarnation.
        incarnation: Incarnation,
        /// Which to renew.
        renew: Vec<LeaseId>,
        /// Which to look at.
        look: Vec<LeaseId>,
    },
    /// The answer, from a leader that a quorum has confirmed after the question came. Leases in
    /// neither list were not judged: ask again.
    LeaseAnswer {
        /// As in the question.
        round: u64,
        /// As in the question.
        incarnation: Incarnation,
        /// These live, and for how long.
        living: Vec<LeaseLife>,
        /// These do not exist at the leader.
        gone: Vec<LeaseId>,
    },
    /// My replica's digest after applying `index`.
    Digest {
        /// Where in the log.
        index: LogIndex,
        /// The digest of keys, leases, answers and configuration there.
        digest: u64,
    },
    /// Send me a part of this snapshot.
    SnapshotAsk {
        /// Which.
        id: SnapshotId,
        /// From which byte on.
        offset: u64,
    },
    /// A part of a snapshot: as many bytes as the sender likes, none only at the end.
    SnapshotPart {
        /// Of which.
        id: SnapshotId,
        /// Where in the file.
        offset: u64,
        /// The bytes there.
        data: Bytes,
    },
    /// I do not have this snapshot, or not any more.
    SnapshotGone {
        /// Which.
        id: SnapshotId,
    },
    /// I need a snapshot of the state, mine is lost: whatever you have from this entry on.
    SnapshotWanted {
        /// The least index that it must cover.
        least: LogIndex,
    },
    /// This is one.
    SnapshotHere {
        /// Which.
        id: SnapshotId,
    },
    /// Take this step, if you lead.
    MemberAsk {
        /// Named by the asking node, never used twice in one incarnation.
        round: u64,
        /// The asking node's incarnation.
        incarnation: Incarnation,
        /// Which step.
        membership_request: MembershipRequest,
    },
    /// What became of it.
    MemberAnswer {
        /// As in the request.
        round: u64,
        /// As in the request.
        incarnation: Incarnation,
        /// See there.
        answer: MemberAnswer,
    },
    /// Whether my disk has room for more than what shrinks the state.
    Space {
        /// Only the reserve is left.
        low: bool,
    },
}

/// How long a lease still lives if nobody renews it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseLife {
    /// Which.
    pub lease: LeaseId,
    /// For so long, in whole milliseconds.
    pub left: Duration,
}

/// What a leader says to a [`MembershipRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberAnswer {
    /// The step is taken, at this log index; whom it is about.
    Done {
        /// The member.
        id: NodeId,
        /// Where in the log.
        index: LogIndex,
    },
    /// I do not lead; `Some` names who does, as far as I know. Nothing has changed.
    NotLeader(Option<NodeId>),
    /// It is not taken. Nothing has changed.
    Refused(MembershipError),
}

impl PeerMessage {
    /// The lane for everything but raft messages, whose sender knows better.
    pub fn lane(&self) -> Lane {
        match self {
            PeerMessage::Propose(_) => Lane::Bulk,
            PeerMessage::SnapshotPart { .. } => Lane::Snapshot,
            _ => Lane::Control,
        }
    }
}

/// Why a leader did not propose a request. It was not applied by this attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProposeRejection {
    /// I do not lead; `Some` names who does, as far as I know.
    NotLeader(Option<NodeId>),
    /// Too much is waiting already.
    Busy,
    /// The state has reached its quota: only what makes it smaller is taken.
    QuotaExceeded,
    /// Too few members have room on their disks: only what makes the state smaller is taken.
    NoSpace,
    /// Replicas differ and no majority says which is right: writes are refused until an operator
    /// has looked.
    Diverged,
}
