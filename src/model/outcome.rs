//! What becomes of a command: an answer, or a rejection that is the same on every replica.

use bytes::Bytes;
use std::time::Duration;
use thiserror::Error;

use super::{
    Alarm, AlarmKind, AuthError, ClusterVersion, KeyValue, LeaseId, LogIndex, NodeId, Revision,
};

/// What became of one request when it was applied.
pub type Outcome = Result<Reply, Rejection>;

/// The answer to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To a put.
    Put(PutReply),
    /// To a delete.
    Delete(DeleteReply),
    /// To a transaction.
    Txn(TxnReply),
    /// To a compaction.
    Compacted {
        /// The store's revision, not the one compacted at.
        revision: Revision,
    },
    /// To a grant.
    Grant(GrantReply),
    /// To a revocation.
    Revoke(RevokeReply),
    /// To a command that changes no key: an announcement, a raised version.
    Noted {
        /// The store's revision.
        revision: Revision,
    },
    /// To a change of alarms.
    Alarms {
        /// The store's revision.
        revision: Revision,
        /// Those that were raised, or have ended.
        alarms: Vec<Alarm>,
    },
    /// The request was applied before and its answer was too large to keep: this is a second answer
    /// to it, with the revision of the first.
    AppliedBefore {
        /// The store's revision right after the request was applied.
        revision: Revision,
    },
}

impl Reply {
    /// The store's revision right after the command.
    pub fn revision(&self) -> Revision {
        match self {
            Reply::Put(reply) => reply.revision,
            Reply::Delete(reply) => reply.revision,
            Reply::Txn(reply) => reply.revision,
            Reply::Grant(reply) => reply.revision,
            Reply::Revoke(reply) => reply.revision,
            Reply::Compacted { revision }
            | Reply::Noted { revision }
            | Reply::Alarms { revision, .. }
            | Reply::AppliedBefore { revision } => *revision,
        }
    }
}

/// The rows of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeReply {
    /// The store's revision when the answer was made: not the revision that was asked for.
    pub revision: Revision,
    /// The rows.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut rows off.
    pub more: bool,
    /// How many keys the range had at the revision asked for, whatever limit and bounds say; after
    /// [`RangeCall::skip_count`](crate::kv::RangeCall::skip_count), of the rows that were looked at.
    pub count: u64,
}

/// What a put did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutReply {
    /// The revision that it took: the row's `mod_revision`.
    pub revision: Revision,
    /// The row before, if it was asked for and there was one.
    pub prev: Option<KeyValue>,
}

/// What a delete did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteReply {
    /// The store's revision after it. A delete that finds nothing takes none.
    pub revision: Revision,
    /// How many keys it deleted.
    pub deleted: u64,
    /// The deleted rows, in key order, if they were asked for.
    pub prev_kvs: Vec<KeyValue>,
}

/// What a transaction did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnReply {
    /// The store's revision after it. A transaction that changes nothing takes none.
    pub revision: Revision,
    /// Whether the compares held.
    pub succeeded: bool,
    /// The answers of the operations that were executed, in their order.
    pub results: Vec<TxnResult>,
}

impl TxnReply {
    /// How many ranges were read, also in the transactions within it.
    pub(crate) fn ranges(&self) -> u64 {
        let count = |result: &TxnResult| match result {
            TxnResult::Range(_) => 1,
            TxnResult::Put(_) | TxnResult::Delete(_) => 0,
            TxnResult::Txn(inner) => inner.ranges(),
        };
        self.results.iter().map(count).sum()
    }
}

/// The answer to one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnResult {
    /// To a range.
    Range(RangeReply),
    /// To a put.
    Put(PutReply),
    /// To a delete.
    Delete(DeleteReply),
    /// To a transaction.
    Txn(TxnReply),
}

/// A granted lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantReply {
    /// The store's revision: a grant takes none.
    pub revision: Revision,
    /// The lease.
    pub id: LeaseId,
    /// How long it lives without renewal.
    pub ttl: Duration,
}

/// What a revocation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevokeReply {
    /// The revision that deleted the lease's keys; for a lease without keys, the store's revision when the lease was
    /// revoked.
    pub revision: Revision,
    /// Number of keys that were deleted.
    pub deleted: u64,
}

/// Why the store did not do what was asked. Part of the replicated history: the same on every
/// replica. Nothing was applied.
///
/// The texts are etcd's where etcd has one.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Rejection {
    /// A key must have at least one byte.
    #[error("key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// A revision that has been compacted away.
    #[error("required revision {asked} has been compacted; the oldest left is {compacted}")]
    Compacted {
        /// The revision asked for.
        asked: Revision,
        /// The oldest that can be read.
        compacted: Revision,
    },
    /// A revision that does not exist yet.
    #[error("required revision {asked} is a future revision; the newest is {newest}")]
    Future {
        /// The revision asked for.
        asked: Revision,
        /// The newest there is.
        newest: Revision,
    },
    /// No such lease; it ended or never was.
    #[error("requested lease not found: {0}")]
    LeaseNotFound(LeaseId),
    /// A grant under an id that is taken.
    #[error("lease already exists: {0}")]
    LeaseExists(LeaseId),
    /// A lease longer than [`Limits::LEASE_TTL_MAX`](super::Limits::LEASE_TTL_MAX), or of no time.
    #[error("lease TTL of {asked:?} is not between 1 ms and {max:?}")]
    LeaseTtl {
        /// What was asked for.
        asked: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// A branch of a transaction writes one key twice.
    #[error("duplicate key given in txn request: {}", .0.escape_ascii())]
    DuplicateKey(Bytes),
    /// More operations in one level of a transaction than the limit.
    #[error("too many operations in txn request: {count}, at most {max}")]
    TooManyOps {
        /// How many there were.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// Transactions nested deeper than the limit.
    #[error("transactions nested deeper than {max}")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The ranges of a transaction pass over more keys than the [limit](super::Limits::txn_keys_max).
    #[error(
        "the ranges of the transaction pass over more than {max} keys: name fewer, or make several of it"
    )]
    TooManyKeys {
        /// The limit.
        max: usize,
    },
    /// A key longer than the limit.
    #[error("key of {bytes} bytes, at most {max}")]
    KeyTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A value longer than the limit.
    #[error("value of {bytes} bytes, at most {max}")]
    ValueTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A request larger than the limit, everything counted.
    #[error("request is too large: {bytes} bytes, at most {max}")]
    RequestTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The request is of a life of its node that has ended, or was given up by its node. It was not
    /// applied by this entry, and never will be.
    #[error("request is closed: its node gave it up or has restarted")]
    Closed,
    /// Users and roles forbid it, or stay as they are.
    #[error(transparent)]
    Access(#[from] AuthError),
    /// An alarm of this kind stands. It was raised by somebody, and stands until somebody
    /// [ends it](crate::Client::change_alarms).
    #[error("{}", .0.forbids())]
    Alarm(AlarmKind),
    /// More alarms than the limit.
    #[error("too many alarms: at most {max}; end some first")]
    TooManyAlarms {
        /// The limit.
        max: usize,
    },
    /// The node that asks is not a member of the cluster any more.
    #[error("node {0} is not a member of the cluster")]
    NotMember(NodeId),
    /// Two members cannot be in one place.
    #[error("member {0} is at this address, or is to be: choose another")]
    AddressTaken(NodeId),
}

/// The state machine or its input is broken: this node must stop. The host process lives.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Fault {
    /// A log entry that this version cannot read.
    #[error(
        "log entry {index}: {why}; this node needs a newer version of Bowline, or its log is damaged"
    )]
    Unreadable {
        /// Where.
        index: LogIndex,
        /// What was found.
        why: String,
    },
    /// A row in memory is not what was applied.
    #[error("the row of key {} (revision {revision}) has changed in memory: its checksum does not match", .key.escape_ascii())]
    Rotten {
        /// Which key.
        key: Bytes,
        /// Which version of it.
        revision: Revision,
    },
    /// What is in memory beside the rows is not what was applied.
    #[error(
        "the state has changed in memory: it amounts to {found:016x}, what was applied to {expected:016x}; \
         the log has what was applied, start again, on another machine if it happens again"
    )]
    Drifted {
        /// The digest of what was applied.
        expected: u64,
        /// The digest of what is there.
        found: u64,
    },
    /// The cluster has begun to use what only a newer build understands.
    #[error(
        "the cluster has been raised to version {version}, this program knows versions up to {known}: \
         upgrade me"
    )]
    Outgrown {
        /// What the cluster has been raised to.
        version: ClusterVersion,
        /// The newest that this build understands.
        known: ClusterVersion,
    },
    /// A state of a later index that has seen less: it was not made by the same log.
    #[error("a state at revision {found} was to take the place of one at {revision}")]
    Backwards {
        /// What came.
        found: Revision,
        /// What was there.
        revision: Revision,
    },
    /// An entry that does not follow the one applied last.
    #[error("entry {found} handed to a state machine that has applied {applied}")]
    OutOfOrder {
        /// What came.
        found: LogIndex,
        /// What had been applied.
        applied: LogIndex,
    },
}
