//! The pieces into which a machine's state is split for a snapshot or a backup, and from which it
//! is rebuilt.
//!
//! ```text
//!   StateHead   values that are known in advance
//!   Rows        the rows live at the compacted revision, in key order        (none before the first
//!   Rows                                                                      compaction)
//!   Changes     the changes of each revision since and including that one
//!   Changes
//!   Leases      every lease, by id; its keys are those whose newest row names it
//!   Lives       for each node that made requests: its incarnation and completed requests
//!   Answers     the replies to open requests
//! ```
//!
//! The sender chooses the number of pieces of each kind; the kinds come in this order. Together the
//! pieces contain the complete state. The rebuilt machine returns the same results and has the same
//! digest as the original machine. The two stay equal when the same further entries are applied to
//! both.

use std::time::Duration;

use super::{
    Access, AckWindow, Alarms, ClusterVersion, Incarnation, KeyValue, LeaseId, LogIndex, Members,
    NodeId, Outcome, RequestId, Revision, SessionInfo, Term,
};

/// The parts of a state other than its rows, leases and dedup table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateHead {
    /// The replicated cluster version.
    pub version: ClusterVersion,
    /// Index of the last applied entry.
    pub index: LogIndex,
    /// Term of that entry.
    pub term: Term,
    /// The newest revision.
    pub revision: Revision,
    /// The oldest revision that can be read, or `None` before the first compaction.
    pub compacted: Option<Revision>,
    /// The hash chain over everything ever written, which is part of the digest.
    pub past: u64,
    /// The next lease id to assign when a client requests no particular id. An id that is already
    /// in use is skipped.
    pub next_lease: u64,
    /// The members of the cluster.
    pub members: Members,
    /// Users and roles.
    pub access: Access,
    /// The active alarms.
    pub alarms: Alarms,
    /// Digest of the whole state.
    pub digest: u64,
}

/// A part of a state. All items of a part are of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotRecord {
    /// Rows live at the compacted revision, in key order.
    Rows(Vec<KeyValue>),
    /// The changes of the compacted revision and of all later revisions. The changes are ordered by
    /// revision, and within a revision by the operations of the request. The changes of one
    /// revision may be split between two pieces.
    Changes(Vec<RowChange>),
    /// Leases, ordered by id.
    Leases(Vec<LeaseRow>),
    /// The nodes that made requests, ordered by id.
    Lives(Vec<LifeRow>),
    /// Stored replies, ordered by node and request number.
    DedupTable(Vec<(RequestId, Outcome)>),
}

/// The change that one revision made to one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowChange {
    /// The revision wrote this row. The revision is the row's `mod_revision`.
    Put(KeyValue),
    /// The revision deleted a key.
    Delete {
        /// The revision.
        revision: Revision,
        /// The key.
        key: bytes::Bytes,
    },
}

impl RowChange {
    /// Returns the revision of this change.
    pub fn revision(&self) -> Revision {
        match self {
            RowChange::Put(kv) => kv.mod_revision,
            RowChange::Delete { revision, .. } => *revision,
        }
    }
}

/// An active lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseRow {
    /// Id of the lease.
    pub id: LeaseId,
    /// TTL of the lease.
    pub ttl: Duration,
    /// The session that the lease belongs to, if any.
    pub session: Option<(NodeId, Incarnation, SessionInfo)>,
}

/// The dedup table's state for one node, without the replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifeRow {
    /// Id of the node.
    pub node: NodeId,
    /// The newest incarnation in which the node made requests.
    pub incarnation: Incarnation,
    /// The completed requests of that incarnation.
    pub window: AckWindow,
}

/// The number of items of each kind in a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PieceCounts {
    /// Rows live at the compacted revision.
    pub rows: u64,
    /// Changes.
    pub changes: u64,
    /// Leases.
    pub leases: u64,
    /// Nodes that made requests.
    pub lives: u64,
    /// Replies.
    pub answers: u64,
}

impl PieceCounts {
    /// Adds the number of items in `record`.
    pub fn add(&mut self, record: &SnapshotRecord) {
        match record {
            SnapshotRecord::Rows(rows) => self.rows += rows.len() as u64,
            SnapshotRecord::Changes(changes) => self.changes += changes.len() as u64,
            SnapshotRecord::Leases(leases) => self.leases += leases.len() as u64,
            SnapshotRecord::Lives(lives) => self.lives += lives.len() as u64,
            SnapshotRecord::DedupTable(answers) => self.answers += answers.len() as u64,
        }
    }
}
