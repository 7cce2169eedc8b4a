//! The parts of a state: what a machine is taken apart into, and put together from, when it travels as
//! a snapshot or a backup.
//!
//! ```text
//!   StateHead   what is known beforehand
//!   Rows        the rows live at the compacted revision, in key order        (none before the first
//!   Rows                                                                      compaction)
//!   Changes     what each revision since and including that one has changed
//!   Changes
//!   Leases      every lease, by id; its keys are those whose newest row names it
//!   Lives       for each node that asked: its life and what it has closed
//!   Answers     the answers to what is open
//! ```
//!
//! Each kind comes in as many pieces as its maker likes, in this order. Together they are everything:
//! the machine made of them gives the same answers as the one that they were taken from, has the same
//! digest, and keeps both as further entries are applied.

use std::time::Duration;

use super::{
    Access, AckWindow, Alarms, ClusterVersion, Incarnation, KeyValue, LeaseId, LogIndex, Members,
    NodeId, Outcome, RequestId, Revision, SessionInfo, Term,
};

/// A state without its rows, leases and answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateHead {
    /// The replicated cluster version.
    pub version: ClusterVersion,
    /// The last log entry applied.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// The newest revision.
    pub revision: Revision,
    /// The oldest that can be read; `None` before the first compaction.
    pub compacted: Option<Revision>,
    /// The chain of everything ever written, as the digest carries it.
    pub past: u64,
    /// The number that the next lease without a chosen id gets, if it is free.
    pub next_lease: u64,
    /// Who belongs to the cluster.
    pub members: Members,
    /// Who may do what.
    pub access: Access,
    /// Which alarms were raised and have not been ended.
    pub alarms: Alarms,
    /// The digest of the whole state.
    pub digest: u64,
}

/// Some of the parts of a state, all of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotRecord {
    /// Rows live at the compacted revision, in key order.
    Rows(Vec<KeyValue>),
    /// Changes since and including the compacted revision, by revision, those of one revision in the
    /// order in which it made them. A revision may go on in the next piece.
    Changes(Vec<RowChange>),
    /// Leases, by id.
    Leases(Vec<LeaseRow>),
    /// Nodes that have asked, by id.
    Lives(Vec<LifeRow>),
    /// Answers, by node and number.
    DedupTable(Vec<(RequestId, Outcome)>),
}

/// What one revision did to one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowChange {
    /// It wrote this row; the revision is the row's `mod_revision`.
    Put(KeyValue),
    /// It deleted a key.
    Delete {
        /// Which revision.
        revision: Revision,
        /// Which key.
        key: bytes::Bytes,
    },
}

impl RowChange {
    /// Which revision.
    pub fn revision(&self) -> Revision {
        match self {
            RowChange::Put(kv) => kv.mod_revision,
            RowChange::Delete { revision, .. } => *revision,
        }
    }
}

/// A lease that has not ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseRow {
    /// Which.
    pub id: LeaseId,
    /// How long it lives without renewal.
    pub ttl: Duration,
    /// Whose session it is, if it is one.
    pub session: Option<(NodeId, Incarnation, SessionInfo)>,
}

/// What the table of answers knows of a node beside the answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LifeRow {
    /// Which node.
    pub node: NodeId,
    /// The newest life that it asked in.
    pub incarnation: Incarnation,
    /// Which requests of that life are closed.
    pub window: AckWindow,
}

/// How much of each kind a state has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PieceCounts {
    /// Rows live at the compacted revision.
    pub rows: u64,
    /// Changes.
    pub changes: u64,
    /// Leases.
    pub leases: u64,
    /// Nodes that have asked.
    pub lives: u64,
    /// Answers.
    pub answers: u64,
}

impl PieceCounts {
    /// Adds what is in `piece`.
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
