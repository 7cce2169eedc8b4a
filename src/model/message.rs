//! The messages between members.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    ClusterId, ClusterVersion, DiskId, Incarnation, LeaseId, LogIndex, MembershipError,
    MembershipRequest, NodeId, Proposal, SnapshotId,
};

/// A class of messages with its own connection. Large messages are in a lane of their own, so that
/// they never delay a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Small and urgent messages: votes, heartbeats, acknowledgements, reads, renewals.
    Control,
    /// Large messages: entries, proposals.
    Bulk,
    /// Very large messages without urgency: parts of snapshots.
    Snapshot,
}

/// The identity of one end of a connection. The hello is the first frame in each direction. No
/// other frame is decoded before the hello was validated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The cluster that the sender belongs to, or is founding.
    pub cluster: ClusterId,
    /// Id of the sender.
    pub from: NodeId,
    /// Id of the member that the sender intends to talk to.
    pub to: NodeId,
    /// Id of the sender's data directory.
    pub disk: DiskId,
    /// Incarnation of the sender.
    pub incarnation: Incarnation,
    /// Whether the sender has founded or joined its cluster.
    pub standing: FoundingState,
    /// Index of the log entry that added the sender, or 1 for a founder.
    pub since: LogIndex,
    /// Address (`host:port`) at which the sender can be reached. Empty if the sender accepts no
    /// connections.
    pub address: String,
    /// The newest cluster version that the sender supports.
    pub supported_version: ClusterVersion,
}

/// The progress of a member with the founding of its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundingState {
    /// The member has a new disk, and has not connected to all founding members yet.
    Blank,
    /// The member has founded the cluster together with the other founding members, or has joined
    /// later. Contains the disk of each founder.
    Founded(BTreeMap<NodeId, DiskId>),
}

/// A message from one member to another. Any message may be lost, duplicated, delayed or reordered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerMessage {
    /// The identity of the sender. A hello is also the first frame of every connection.
    Hello(Hello),
    /// A message of the Raft consensus, encoded. Only the module `consensus` decodes such a
    /// message.
    Raft(Bytes),
    /// Requests that the leader should propose.
    Propose(Proposal),
    /// The leader did not propose these requests.
    ProposeRejected {
        /// Incarnation of the node that sent the requests.
        incarnation: Incarnation,
        /// Numbers of the requests.
        seqs: Vec<u64>,
        /// The reason.
        why: ProposeRejection,
    },
    /// Asks for the log index that must be applied before a linearizable read may be served.
    ReadAsk {
        /// Chosen by the requesting node; unique within its incarnation.
        round: u64,
        /// Incarnation of the requesting node.
        incarnation: Incarnation,
    },
    /// The reply of a leader whose leadership a quorum confirmed after the request arrived.
    ReadAnswer {
        /// Same as in the request.
        round: u64,
        /// Same as in the request.
        incarnation: Incarnation,
        /// The index, or `None` if the receiver is not the leader.
        index: Option<LogIndex>,
    },
    /// Renews leases.
    Renew {
        /// Chosen by the requesting node; unique within its incarnation.
        round: u64,
        /// Incarnation of the requesting node.
        incarnation: Incarnation,
        /// The leases to renew.
        leases: Vec<LeaseId>,
    },
    /// The reply of a leader whose leadership a quorum confirmed after the request arrived. Leases
    /// in neither list were not processed and must be requested again.
    Renewed {
        /// Same as in the request.
        round: u64,
        /// Same as in the request.
        incarnation: Incarnation,
        /// These leases were renewed: they exist for at least their full TTL, counted from the time
        /// when the request was sent.
        renewed: Vec<LeaseId>,
        /// These leases do not exist at the leader.
        gone: Vec<LeaseId>,
    },
    /// Renews some leases, and requests the remaining TTL of these leases and of other leases. Used
    /// for API calls about leases that do not belong to a local session.
    LeaseAsk {
        /// Chosen by the requesting node; unique within its incarnation.
        round: u64,
        /// Incarnation of the requesting node.
        incarnation: Incarnation,
        /// The leases to renew.
        renew: Vec<LeaseId>,
        /// The leases whose remaining TTL is requested without a renewal.
        look: Vec<LeaseId>,
    },
    /// The reply of a leader whose leadership a quorum confirmed after the request arrived. Leases
    /// in neither list were not processed and must be requested again.
    LeaseAnswer {
        /// Same as in the request.
        round: u64,
        /// Same as in the request.
        incarnation: Incarnation,
        /// The existing leases with their remaining TTL.
        living: Vec<LeaseLife>,
        /// These leases do not exist at the leader.
        gone: Vec<LeaseId>,
    },
    /// The digest of the sender's replica after applying `index`.
    Digest {
        /// The log index.
        index: LogIndex,
        /// Digest of the keys, leases, dedup table and configuration at that index.
        digest: u64,
    },
    /// Requests a part of a snapshot.
    SnapshotAsk {
        /// Id of the snapshot.
        id: SnapshotId,
        /// Offset of the first byte.
        offset: u64,
    },
    /// A part of a snapshot. The sender chooses the size of a part. A part is empty only at the end
    /// of the file.
    SnapshotPart {
        /// Id of the snapshot.
        id: SnapshotId,
        /// Offset in the file.
        offset: u64,
        /// The bytes at that offset.
        data: Bytes,
    },
    /// The sender does not have this snapshot, or no longer has it.
    SnapshotGone {
        /// Id of the snapshot.
        id: SnapshotId,
    },
    /// Requests any snapshot that covers at least the index `least`. Sent by a member that has lost
    /// its state.
    SnapshotWanted {
        /// The lowest index that the snapshot must cover.
        least: LogIndex,
    },
    /// Offers a snapshot.
    SnapshotHere {
        /// Id of the snapshot.
        id: SnapshotId,
    },
    /// Requests a membership change from the leader.
    MemberAsk {
        /// Chosen by the requesting node; unique within its incarnation.
        round: u64,
        /// Incarnation of the requesting node.
        incarnation: Incarnation,
        /// The requested change.
        membership_request: MembershipRequest,
    },
    /// The result of a requested membership change.
    MemberAnswer {
        /// Same as in the request.
        round: u64,
        /// Same as in the request.
        incarnation: Incarnation,
        /// The result.
        answer: MemberAnswer,
    },
    /// Reports whether the sender's disk has room for commands that let the state grow.
    Space {
        /// True if the disk is full and only the reserve file of the log is left.
        low: bool,
    },
}

/// The remaining TTL of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseLife {
    /// Id of the lease.
    pub lease: LeaseId,
    /// Remaining TTL in whole milliseconds.
    pub left: Duration,
}

/// A leader's reply to a [`MembershipRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberAnswer {
    /// The change was applied.
    Done {
        /// Id of the member that was changed.
        id: NodeId,
        /// Log index of the change.
        index: LogIndex,
    },
    /// The member that replied is not the leader. Contains the id of the leader, if known. Nothing
    /// has changed.
    NotLeader(Option<NodeId>),
    /// The change was rejected. Nothing has changed.
    Refused(MembershipError),
}

impl PeerMessage {
    /// Returns the lane of this message. A Raft message has no fixed lane: its sender chooses one.
    pub fn lane(&self) -> Lane {
        match self {
            PeerMessage::Propose(_) => Lane::Bulk,
            PeerMessage::SnapshotPart { .. } => Lane::Snapshot,
            _ => Lane::Control,
        }
    }
}

/// The reason why a leader did not propose a request. The request was not applied by this attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProposeRejection {
    /// The member that replied is not the leader. Contains the id of the leader, if known.
    NotLeader(Option<NodeId>),
    /// Too many proposals are in progress.
    Busy,
    /// The state has reached its size quota. Only commands that make the state smaller are
    /// accepted.
    QuotaExceeded,
    /// Too few members have free disk space. Only commands that make the state smaller are
    /// accepted.
    NoSpace,
    /// Replicas differ, and no majority agrees on one state. Writes are rejected until an operator
    /// has intervened.
    Diverged,
}
