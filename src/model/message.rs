//! What members say to each other.

use bytes::Bytes;
use std::collections::BTreeMap;

use super::{ClusterId, DiskId, Incarnation, LeaseId, LogIndex, NodeId, Proposal};

/// Which connection a message travels on: bulk must never delay a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Small and urgent: votes, heartbeats, acknowledgements, reads, renewals.
    Control,
    /// Large: entries, proposals.
    Bulk,
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
    /// Whether the sender has founded its cluster.
    pub standing: Standing,
}

/// How far a member is with founding its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Its disk is new and it has not met all founding members yet.
    Blank,
    /// It has met them: which disk each had.
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
    ProposeRefused {
        /// The incarnation of the node that asked.
        incarnation: Incarnation,
        /// Which requests.
        seqs: Vec<u64>,
        /// Why.
        why: ProposeRefusal,
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
    /// My replica's digest after applying `index`.
    Digest {
        /// Where in the log.
        index: LogIndex,
        /// The digest of keys, leases, answers and configuration there.
        digest: u64,
    },
}

impl PeerMessage {
    /// The lane for everything but raft messages, whose sender knows better.
    pub fn lane(&self) -> Lane {
        match self {
            PeerMessage::Propose(_) => Lane::Bulk,
            _ => Lane::Control,
        }
    }
}

/// Why a leader did not propose a request. It was not applied by this attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProposeRefusal {
    /// I do not lead; `Some` names who does, as far as I know.
    NotLeader(Option<NodeId>),
    /// Too much is waiting already.
    Busy,
    /// Replicas differ and no majority says which is right: writes are refused until an operator
    /// has looked.
    Diverged,
}
