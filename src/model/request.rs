//! What a caller asks of the store: ranges, puts, deletes and transactions.
//!
//! Plain values: a request can be built, kept, compared and sent by any caller. The meaning is
//! etcd's, to the edge cases.

use bytes::Bytes;

use super::{KeyRange, LeaseId, Revision};

/// Read the keys of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Which keys.
    pub range: KeyRange,
    /// The revision to read at; `None` is the newest.
    pub revision: Option<Revision>,
    /// At most so many rows; `None` is all of them.
    pub limit: Option<u64>,
    /// The order of the rows; by key unless said otherwise.
    pub sort: Sort,
    /// Rows without their values.
    pub keys_only: bool,
    /// No rows, only how many there are.
    pub count_only: bool,
    /// Only rows whose revisions lie in these bounds. Applied after the read and before `limit`.
    pub bounds: RevisionBounds,
}

impl Range {
    /// Every row of `range`, at the newest revision, by key.
    pub fn new(range: impl Into<KeyRange>) -> Self {
        Self {
            range: range.into(),
            revision: None,
            limit: None,
            sort: Sort::default(),
            keys_only: false,
            count_only: false,
            bounds: RevisionBounds::default(),
        }
    }
}

/// Bounds, both inclusive, on the revisions of the rows of a [`Range`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RevisionBounds {
    /// The least `mod_revision`.
    pub mod_min: Option<Revision>,
    /// The greatest `mod_revision`.
    pub mod_max: Option<Revision>,
    /// The least `create_revision`.
    pub create_min: Option<Revision>,
    /// The greatest `create_revision`.
    pub create_max: Option<Revision>,
}

/// The order of the rows of a [`Range`]. Rows that are equal in the target stand in key order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sort {
    /// What to order by.
    pub target: SortTarget,
    /// In which direction.
    pub order: SortOrder,
}

/// What rows are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortTarget {
    /// The key.
    #[default]
    Key,
    /// The number of puts since the creation.
    Version,
    /// The revision of the creation.
    Create,
    /// The revision of the last put.
    Mod,
    /// The value, byte by byte.
    Value,
}

/// The direction of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortOrder {
    /// The smallest first.
    #[default]
    Ascend,
    /// The greatest first.
    Descend,
}

/// Write a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Put {
    /// The key: at least one byte.
    pub key: Bytes,
    /// The value to write.
    pub value: PutValue,
    /// The lease to bind the key to.
    pub lease: PutLease,
    /// Whether to answer with the row before the put.
    pub prev_kv: bool,
}

impl Put {
    /// Writes `value` to `key`, without a lease.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self {
            key: key.into(),
            value: PutValue::Set(value.into()),
            lease: PutLease::None,
            prev_kv: false,
        }
    }

    /// Binds the key to a lease, a session's for example: it is deleted when the lease ends.
    ///
    /// ```
    /// # use bowline::{Blocking, Compare, Config, Node, Put};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let session = node.session().block()?;
    /// let free = kv.txn().when(Compare::missing("seats/7"));
    /// let taken = free.then(Put::new("seats/7", "ann").lease(session.lease())).commit().block()?;
    /// assert!(taken.succeeded);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn lease(mut self, lease: LeaseId) -> Self {
        self.lease = PutLease::Attach(lease);
        self
    }
}

/// The value of a [`Put`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PutValue {
    /// This one.
    Set(Bytes),
    /// The one that the key has (etcd's `ignore_value`); the key must exist.
    Keep,
}

/// The lease of a [`Put`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutLease {
    /// None: a key that had one is detached from it.
    None,
    /// This one; it must exist.
    Attach(LeaseId),
    /// The one that the key has, if any (etcd's `ignore_lease`); the key must exist.
    Keep,
}

/// Delete the keys of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delete {
    /// Which keys.
    pub range: KeyRange,
    /// Whether to answer with the deleted rows.
    pub prev_kv: bool,
}

impl Delete {
    /// Deletes the keys of `range`.
    pub fn new(range: impl Into<KeyRange>) -> Self {
        Self { range: range.into(), prev_kv: false }
    }
}

/// If all compares hold, one list of operations, else the other, as one step.
///
/// All compares, those of nested transactions too, are judged on the state before the transaction.
/// Operations see the effects of those before them. All writes take one revision together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    /// All must hold; none at all holds.
    pub compares: Vec<Compare>,
    /// What to do if they hold.
    pub success: Vec<Op>,
    /// What to do if one does not.
    pub failure: Vec<Op>,
}

impl Txn {
    /// Whether it can change anything, in either branch.
    pub fn writes(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|op| match op {
            Op::Range(_) => false,
            Op::Put(_) | Op::Delete(_) => true,
            Op::Txn(nested) => nested.writes(),
        })
    }
}

/// One operation of a [`Txn`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read.
    Range(Range),
    /// Write.
    Put(Put),
    /// Delete.
    Delete(Delete),
    /// A transaction inside the transaction.
    Txn(Txn),
}

impl Op {
    /// Reads the row of one key.
    pub fn get(key: impl Into<Bytes>) -> Self {
        Op::Range(Range::new(KeyRange::key(key)))
    }

    /// Reads the rows of a range.
    pub fn range(range: impl Into<KeyRange>) -> Self {
        Op::Range(Range::new(range))
    }

    /// Writes `value` to `key`, without a lease; with one, give [`Put::new`] and [`Put::lease`] in its place.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Op::Put(Put::new(key, value))
    }

    /// Deletes the keys of a range.
    pub fn delete(range: impl Into<KeyRange>) -> Self {
        Op::Delete(Delete::new(range))
    }
}

impl From<Range> for Op {
    fn from(range: Range) -> Self {
        Op::Range(range)
    }
}

impl From<Put> for Op {
    fn from(put: Put) -> Self {
        Op::Put(put)
    }
}

impl From<Delete> for Op {
    fn from(delete: Delete) -> Self {
        Op::Delete(delete)
    }
}

impl From<Txn> for Op {
    fn from(txn: Txn) -> Self {
        Op::Txn(txn)
    }
}

/// One condition of a [`Txn`], on one key or on every key of a range.
///
/// A missing key compares as version 0, revisions 0 and no lease; its value compares as false,
/// whatever the operator. A range without keys is judged once, as a missing key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// Which keys; every one must satisfy the condition.
    pub range: KeyRange,
    /// Which field, and the value to compare it with.
    pub target: CompareTarget,
    /// How the key's field must relate to the value given.
    pub op: CompareOp,
}

/// What a [`Compare`] looks at, with the right-hand side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompareTarget {
    /// Puts since the creation; 0 for a missing key.
    Version(u64),
    /// The revision of the creation; 0 for a missing key.
    Create(Revision),
    /// The revision of the last put; 0 for a missing key.
    Mod(Revision),
    /// The value.
    Value(Bytes),
    /// The lease's id, 0 for none.
    Lease(u64),
}

/// The relation that a [`Compare`] asks for: the key's field on the left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompareOp {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `>`
    Greater,
    /// `<`
    Less,
}

impl Compare {
    /// On the number of puts since the creation; 0 for a missing key.
    pub fn version(keys: impl Into<KeyRange>) -> CompareBuilder<u64> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Version }
    }

    /// On the revision of the creation; 0 for a missing key, so `create_revision(k).eq(0)` says that
    /// `k` does not exist.
    pub fn create_revision(keys: impl Into<KeyRange>) -> CompareBuilder<Revision> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Create }
    }

    /// On the revision of the last put; 0 for a missing key.
    pub fn mod_revision(keys: impl Into<KeyRange>) -> CompareBuilder<Revision> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Mod }
    }

    /// On the value; false for a missing key, whatever the operator.
    pub fn value(keys: impl Into<KeyRange>) -> CompareBuilder<Bytes> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Value }
    }

    /// On the id of the lease; 0 for none.
    ///
    /// ```
    /// # use bowline::{Blocking, Compare, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let (kv, session) = (node.client(), node.session().block()?);
    /// kv.put("mine", "").lease(session.lease()).block()?;
    /// let mine = Compare::lease("mine").eq(session.lease());
    /// assert!(kv.txn().when(mine).then(Op::delete("mine")).commit().block()?.succeeded);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease(keys: impl Into<KeyRange>) -> CompareBuilder<u64> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Lease }
    }

    /// That the key exists.
    pub fn exists(key: impl Into<KeyRange>) -> Compare {
        Compare::version(key).gt(0u64)
    }

    /// That the key does not exist.
    pub fn missing(key: impl Into<KeyRange>) -> Compare {
        Compare::version(key).eq(0u64)
    }
}

/// A [`Compare`] that lacks its operator and right-hand side.
#[derive(Debug)]
#[must_use = "finish it with eq, ne, gt or lt"]
pub struct CompareBuilder<T> {
    range: KeyRange,
    target: fn(T) -> CompareTarget,
}

#[allow(clippy::should_implement_trait, reason = "a comparison to be made elsewhere")]
impl<T> CompareBuilder<T> {
    /// Equal to `value`.
    pub fn eq(self, value: impl Into<T>) -> Compare {
        self.with(CompareOp::Equal, value)
    }

    /// Not equal to `value`.
    pub fn ne(self, value: impl Into<T>) -> Compare {
        self.with(CompareOp::NotEqual, value)
    }

    /// Greater than `value`.
    pub fn gt(self, value: impl Into<T>) -> Compare {
        self.with(CompareOp::Greater, value)
    }

    /// Less than `value`.
    pub fn lt(self, value: impl Into<T>) -> Compare {
        self.with(CompareOp::Less, value)
    }

    fn with(self, op: CompareOp, value: impl Into<T>) -> Compare {
        Compare { range: self.range, target: (self.target)(value.into()), op }
    }
}

impl From<u64> for Revision {
    fn from(revision: u64) -> Self {
        Revision(revision)
    }
}
