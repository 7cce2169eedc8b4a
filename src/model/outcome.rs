//! The outcome of a command: a reply or a rejection. A command has the same outcome on every
//! replica.

use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use super::{
    Alarm, AlarmKind, AuthError, ClusterVersion, KeyValue, LeaseId, LogIndex, NodeId, Revision,
};

/// The outcome of one request when it was applied.
pub type Outcome = Result<Reply, Rejection>;

/// The reply to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Reply to a put.
    Put(PutReply),
    /// Reply to a delete.
    Delete(DeleteReply),
    /// Reply to a transaction.
    Txn(TxnReply),
    /// Reply to a compaction.
    Compacted {
        /// The store's current revision, not the compacted one.
        revision: Revision,
    },
    /// Reply to a lease grant.
    Grant(GrantReply),
    /// Reply to a lease revocation.
    Revoke(RevokeReply),
    /// Reply to a command that changes no key, such as an announcement or a raised cluster version.
    Noted {
        /// The store's revision.
        revision: Revision,
    },
    /// Reply to a change of alarms.
    Alarms {
        /// The store's revision.
        revision: Revision,
        /// The alarms that were raised or cleared.
        alarms: Vec<Alarm>,
    },
    /// Reply to a duplicate of a request that was applied before and whose original reply was too
    /// large to keep. Contains the revision of the original reply.
    AppliedBefore {
        /// The store's revision right after the request was applied.
        revision: Revision,
    },
}

impl Reply {
    /// Returns the store's revision right after the command.
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

/// The rows of a range. Dereferences to the slice of its rows, and iterates over them.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RangeReply {
    /// The store's revision when the range was read. The revision that the request asked for may be
    /// an older one.
    pub revision: Revision,
    /// The rows. The name is etcd's.
    #[doc(alias = "rows")]
    pub kvs: Vec<KeyValue>,
    /// Whether the range contains more rows than the limit allowed.
    pub more: bool,
    /// Number of keys in the range at the requested revision, regardless of limit and bounds. After
    /// [`RangeCall::skip_count`](crate::kv::RangeCall::skip_count), only the rows that were visited are
    /// counted.
    pub count: u64,
}

impl Deref for RangeReply {
    type Target = [KeyValue];

    fn deref(&self) -> &[KeyValue] {
        &self.kvs
    }
}

impl IntoIterator for RangeReply {
    type Item = KeyValue;
    type IntoIter = std::vec::IntoIter<KeyValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.kvs.into_iter()
    }
}

impl<'a> IntoIterator for &'a RangeReply {
    type Item = &'a KeyValue;
    type IntoIter = std::slice::Iter<'a, KeyValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.kvs.iter()
    }
}

/// The reply to a put.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PutReply {
    /// The revision of the put, which is also the row's `mod_revision`.
    pub revision: Revision,
    /// The previous row, if it was requested and existed.
    pub prev: Option<KeyValue>,
}

/// The reply to a delete.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DeleteReply {
    /// The store's revision after the delete. A delete that finds no keys does not increase the
    /// revision.
    pub revision: Revision,
    /// Number of deleted keys.
    pub deleted: u64,
    /// The deleted rows in key order, if they were requested.
    pub prev_kvs: Vec<KeyValue>,
}

/// The reply to a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TxnReply {
    /// The store's revision after the transaction. A transaction that changes nothing does not
    /// increase the revision.
    pub revision: Revision,
    /// Whether all compares held.
    pub succeeded: bool,
    /// The results of the executed operations, in order.
    pub results: Vec<TxnResult>,
}

impl TxnReply {
    /// Returns the number of ranges that were read, including nested transactions.
    pub(crate) fn ranges(&self) -> u64 {
        let count = |result: &TxnResult| match result {
            TxnResult::Range(_) => 1,
            TxnResult::Put(_) | TxnResult::Delete(_) => 0,
            TxnResult::Txn(inner) => inner.ranges(),
        };
        self.results.iter().map(count).sum()
    }
}

/// The result of one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum TxnResult {
    /// Result of a range.
    Range(RangeReply),
    /// Result of a put.
    Put(PutReply),
    /// Result of a delete.
    Delete(DeleteReply),
    /// Result of a nested transaction.
    Txn(TxnReply),
}

/// ```
/// # use bowline::{Blocking, Config, KeyRange, Node, Op};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// kv.put("jobs/1", "a").block()?;
/// let read = kv.txn().then(Op::range(KeyRange::prefix("jobs/"))).then(Op::delete("jobs/1"));
/// let reply = read.commit().block()?;
/// assert_eq!(reply.results[0].rows()[0].value, "a");
/// assert_eq!(reply.results[1].as_delete().unwrap().deleted, 1);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl TxnResult {
    /// Returns the rows of a range. The list is empty for other operations.
    pub fn rows(&self) -> &[KeyValue] {
        self.as_range().map_or(&[], |range| &range.kvs)
    }

    /// Returns the result of a range, or `None` if the operation was not a range.
    pub fn as_range(&self) -> Option<&RangeReply> {
        if let TxnResult::Range(reply) = self { Some(reply) } else { None }
    }

    /// Returns the result of a put, or `None` if the operation was not a put.
    pub fn as_put(&self) -> Option<&PutReply> {
        if let TxnResult::Put(reply) = self { Some(reply) } else { None }
    }

    /// Returns the result of a delete, or `None` if the operation was not a delete.
    pub fn as_delete(&self) -> Option<&DeleteReply> {
        if let TxnResult::Delete(reply) = self { Some(reply) } else { None }
    }

    /// Returns the result of a nested transaction, or `None` if the operation was not one.
    pub fn as_txn(&self) -> Option<&TxnReply> {
        if let TxnResult::Txn(reply) = self { Some(reply) } else { None }
    }
}

/// The reply to a lease grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrantReply {
    /// The store's revision, which a grant does not increase.
    pub revision: Revision,
    /// Id of the lease.
    pub id: LeaseId,
    /// TTL of the lease.
    pub ttl: Duration,
}

/// The reply to a lease revocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevokeReply {
    /// The revision that deleted the lease's keys. If the lease has no keys, this is the store's
    /// revision when the lease was revoked.
    pub revision: Revision,
    /// Number of keys that were deleted.
    pub deleted: u64,
}

/// The reason why the store rejected a command. A rejected command has no effect. The rejection is
/// part of the replicated state and the same on every replica.
///
/// Where etcd has an equivalent error, the text is the same.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Rejection {
    /// A key must have at least one byte.
    #[error("key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` was used for a key that does not exist.
    #[error("key not found")]
    KeyNotFound,
    /// The revision has been compacted: it is below the oldest one that can be read. A compaction is
    /// also rejected if the store is already compacted up to the same revision.
    #[error("{}", compacted_text(*asked, *compacted))]
    Compacted {
        /// The requested revision.
        asked: Revision,
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// The revision does not exist yet.
    #[error("required revision {asked} is a future revision; the newest is {newest}")]
    Future {
        /// The requested revision.
        asked: Revision,
        /// The newest revision.
        newest: Revision,
    },
    /// The lease does not exist: it has ended, or was never granted.
    #[error("requested lease not found: {0}")]
    LeaseNotFound(LeaseId),
    /// A lease with the requested id exists already.
    #[error("lease already exists: {0}")]
    LeaseExists(LeaseId),
    /// The TTL of the lease is zero or longer than
    /// [`Limits::LEASE_TTL_MAX`](super::Limits::LEASE_TTL_MAX).
    #[error("lease TTL of {asked:?} is not between 1 ms and {max:?}")]
    LeaseTtl {
        /// The requested TTL.
        asked: Duration,
        /// Maximum TTL.
        max: Duration,
    },
    /// A branch of a transaction writes one key twice.
    #[error("duplicate key given in txn request: {}", .0.escape_ascii())]
    DuplicateKey(Bytes),
    /// One level of a transaction has more operations than the limit.
    #[error("too many operations in txn request: {count}, at most {max}")]
    TooManyOps {
        /// Number of operations.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// Transactions are nested deeper than the limit.
    #[error("transactions nested deeper than {max}")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The ranges of a transaction visit more keys than the [limit](super::Limits::txn_keys_max).
    #[error(
        "the ranges of the transaction visit more than {max} keys: use smaller ranges, or split the transaction"
    )]
    TooManyKeys {
        /// The limit.
        max: usize,
    },
    /// A key is longer than the limit.
    #[error("key of {bytes} bytes, at most {max}")]
    KeyTooLarge {
        /// Length of the key in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A value is longer than the limit.
    #[error("value of {bytes} bytes, at most {max}")]
    ValueTooLarge {
        /// Length of the value in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The total size of the request exceeds the limit.
    #[error("request is too large: {bytes} bytes, at most {max}")]
    RequestTooLarge {
        /// Size of the request in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The request belongs to an earlier incarnation of its node, or its node has given up the
    /// request. The log entry did not apply the request, and no later entry will.
    #[error("request is closed: its node gave it up or has restarted")]
    Closed,
    /// Access control denies the command, or rejects the change to users and roles.
    #[error(transparent)]
    Access(#[from] AuthError),
    /// An alarm of this kind is active and forbids the command. The alarm stays active until an
    /// operator [clears it](crate::Client::change_alarms).
    #[error("{}", .0.forbids())]
    Alarm(AlarmKind),
    /// The number of alarms would exceed the limit.
    #[error("too many alarms: at most {max}; clear some first")]
    TooManyAlarms {
        /// The limit.
        max: usize,
    },
    /// The requesting node is no longer a member of the cluster.
    #[error("node {0} is not a member of the cluster")]
    NotMember(NodeId),
    /// The address is the current or future address of another member.
    #[error("member {0} uses this address, or will use it: choose another address")]
    AddressTaken(NodeId),
}

/// Returns the text of [`Rejection::Compacted`]. If the revisions are equal, the request was a
/// compaction, because the oldest revision can still be read.
fn compacted_text(asked: Revision, compacted: Revision) -> String {
    if asked == compacted {
        return format!("the store is already compacted up to revision {compacted}");
    }
    format!("required revision {asked} has been compacted; the oldest left is {compacted}")
}

/// A fatal error of the state machine or its input. The node must stop, but the process that embeds
/// it keeps running.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Fault {
    /// This version cannot decode a log entry.
    #[error(
        "cannot apply log entry {index}: {why}; this node needs a newer release of Bowline, or its log is damaged"
    )]
    Unreadable {
        /// Index of the entry.
        index: LogIndex,
        /// The decoding error.
        why: String,
    },
    /// A row in memory differs from what was applied.
    #[error("the row of key {} (revision {revision}) has changed in memory: its checksum does not match", .key.escape_ascii())]
    Rotten {
        /// The key.
        key: Bytes,
        /// The revision of the row.
        revision: Revision,
    },
    /// The state in memory, other than the rows, differs from what was applied.
    #[error(
        "the state has changed in memory: its digest is {found:016x}, expected {expected:016x}; restart the \
         node, which rebuilds the state from its disk, and replace the machine if this happens again"
    )]
    Drifted {
        /// Digest of the state that was applied.
        expected: u64,
        /// Digest of the state in memory.
        found: u64,
    },
    /// The cluster version was raised above the newest one that this build supports.
    #[error(
        "cluster version {version} is newer than this build supports ({known}); upgrade this node"
    )]
    Outgrown {
        /// The new cluster version.
        version: ClusterVersion,
        /// The newest version that this build supports.
        known: ClusterVersion,
    },
    /// A snapshot cannot be installed: it has a later index but an older revision than the current
    /// state, so it does not come from the same log.
    #[error(
        "cannot install a state at revision {found}: the current state is at revision {revision}"
    )]
    Backwards {
        /// Revision of the new state.
        found: Revision,
        /// Revision of the current state.
        revision: Revision,
    },
    /// The entry does not follow the last applied entry.
    #[error("cannot apply entry {found}: the last applied entry is {applied}")]
    OutOfOrder {
        /// Index of the entry.
        found: LogIndex,
        /// Index of the last applied entry.
        applied: LogIndex,
    },
}
