//! Requests to the store: ranges, puts, deletes and transactions.
//!
//! Requests are plain values that can be built, stored, compared and sent. The semantics are
//! etcd's, including the edge cases.

use bytes::Bytes;

use super::{IntoBytes, KeyRange, LeaseId, Revision};

/// A read of the keys of a range.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// The keys to read.
    pub range: KeyRange,
    /// The revision to read at, or `None` for the newest.
    pub revision: Option<Revision>,
    /// Maximum number of rows, or `None` for no limit.
    pub limit: Option<u64>,
    /// The order of the rows. Default: by key.
    pub sort: Sort,
    /// Whether to return rows without their values.
    pub keys_only: bool,
    /// Whether to return only the number of keys, and no rows.
    pub count_only: bool,
    /// Bounds on the revisions of the rows to return. The bounds are applied after the read and
    /// before `limit`.
    pub bounds: RevisionBounds,
}

impl Range {
    /// Reads every row of `range` at the newest revision, in key order.
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

/// Inclusive bounds on the revisions of the rows of a [`Range`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RevisionBounds {
    /// Minimum `mod_revision`.
    pub mod_min: Option<Revision>,
    /// Maximum `mod_revision`.
    pub mod_max: Option<Revision>,
    /// Minimum `create_revision`.
    pub create_min: Option<Revision>,
    /// Maximum `create_revision`.
    pub create_max: Option<Revision>,
}

/// The order of the rows of a [`Range`]. Rows with an equal target are in key order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sort {
    /// The field to sort by.
    pub target: SortTarget,
    /// The direction.
    pub order: SortOrder,
}

/// The field that rows are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SortTarget {
    /// The key.
    #[default]
    Key,
    /// Number of puts since the creation.
    Version,
    /// The revision of the creation.
    Create,
    /// The revision of the last put.
    Mod,
    /// The value, compared byte by byte.
    Value,
}

/// The direction of an order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SortOrder {
    /// Smallest first.
    #[default]
    Ascend,
    /// Greatest first.
    Descend,
}

/// A write of one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Put {
    /// The key: at least one byte.
    pub key: Bytes,
    /// The value to write.
    pub value: PutValue,
    /// The lease to attach the key to.
    pub lease: PutLease,
    /// Whether to return the previous row.
    pub prev_kv: bool,
}

impl Put {
    /// Creates a put of `value` to `key`, without a lease.
    pub fn new(key: impl IntoBytes, value: impl IntoBytes) -> Self {
        Self {
            key: key.into_bytes(),
            value: PutValue::Set(value.into_bytes()),
            lease: PutLease::None,
            prev_kv: false,
        }
    }

    /// Creates a put that keeps the current value of the key, which must exist.
    pub(crate) fn keeping_value(key: impl IntoBytes) -> Self {
        Self { value: PutValue::Keep, ..Self::new(key, "") }
    }

    /// Attaches the key to a lease, for example that of a session. The key is deleted when the
    /// lease ends.
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

    /// Keeps the current lease of the key, which must exist.
    pub(crate) fn keep_lease(mut self) -> Self {
        self.lease = PutLease::Keep;
        self
    }
}

/// The value of a [`Put`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PutValue {
    /// Sets this value.
    Set(Bytes),
    /// Keeps the current value (etcd's `ignore_value`). The key must exist.
    Keep,
}

/// The lease of a [`Put`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PutLease {
    /// Writes the key without a lease. If the key was attached to a lease, it is detached.
    None,
    /// Attaches the key to this lease, which must exist.
    Attach(LeaseId),
    /// Keeps the current lease, if any (etcd's `ignore_lease`). The key must exist.
    Keep,
}

/// A deletion of the keys of a range.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Delete {
    /// The keys to delete.
    pub range: KeyRange,
    /// Whether to return the deleted rows.
    pub prev_kv: bool,
}

impl Delete {
    /// Creates a deletion of the keys of `range`.
    pub fn new(range: impl Into<KeyRange>) -> Self {
        Self { range: range.into(), prev_kv: false }
    }
}

/// A transaction. If all compares hold, the operations in `success` are executed, otherwise those
/// in `failure`. The transaction is atomic.
///
/// All compares, including those of nested transactions, are evaluated on the state before the
/// transaction. Operations see the effects of earlier operations. All writes have the same
/// revision.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Txn {
    /// The conditions. The operations in `success` are executed if all conditions hold, or if the
    /// list is empty.
    pub compares: Vec<Compare>,
    /// The operations to execute if the conditions hold.
    pub success: Vec<Op>,
    /// The operations to execute if a condition does not hold.
    pub failure: Vec<Op>,
}

impl Txn {
    /// Creates a transaction that executes the operations if all conditions hold.
    pub(crate) fn if_all(compares: impl Into<Vec<Compare>>, ops: impl Into<Vec<Op>>) -> Self {
        Self { compares: compares.into(), success: ops.into(), failure: Vec::new() }
    }

    /// Returns whether the transaction can change anything, in either branch.
    pub fn writes(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|op| match op {
            Op::Range(_) => false,
            Op::Put(_) | Op::Delete(_) => true,
            Op::Txn(nested) => nested.writes(),
        })
    }
}

/// One operation of a [`Txn`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Reads a range.
    Range(Range),
    /// Writes a key.
    Put(Put),
    /// Deletes a range.
    Delete(Delete),
    /// Executes a nested transaction.
    Txn(Txn),
}

impl Op {
    /// Creates an operation that reads one key.
    pub fn get(key: impl IntoBytes) -> Self {
        Op::Range(Range::new(KeyRange::key(key)))
    }

    /// Creates an operation that reads a range.
    pub fn range(range: impl Into<KeyRange>) -> Self {
        Op::Range(Range::new(range))
    }

    /// Creates an operation that writes `value` to `key`, without a lease. To attach a lease, use
    /// [`Put::new`] and [`Put::lease`].
    pub fn put(key: impl IntoBytes, value: impl IntoBytes) -> Self {
        Op::Put(Put::new(key, value))
    }

    /// Creates a deletion of the keys of a range.
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
/// A missing key has version 0, revisions 0 and no lease. A comparison with the value of a missing
/// key is always false. A range without keys is evaluated once, as a missing key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Compare {
    /// The keys. Every key in the range must satisfy the condition.
    pub range: KeyRange,
    /// The field to compare, and the value to compare it with.
    pub target: CompareTarget,
    /// The operator. The key's field is the left-hand side.
    pub op: CompareOp,
}

/// The field that a [`Compare`] examines, with the right-hand side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CompareTarget {
    /// Number of puts since the creation; 0 for a missing key.
    Version(u64),
    /// The revision of the creation; 0 for a missing key.
    Create(Revision),
    /// The revision of the last put; 0 for a missing key.
    Mod(Revision),
    /// The value.
    Value(Bytes),
    /// The id of the lease; 0 for none.
    Lease(u64),
}

/// The operator of a [`Compare`]. The key's field is the left-hand side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
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
    /// Compares the number of puts since the creation, which is 0 for a missing key.
    pub fn version(keys: impl Into<KeyRange>) -> CompareBuilder<u64> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Version }
    }

    /// Compares the revision of the creation, which is 0 for a missing key.
    /// `create_revision(k).eq(0)` holds if `k` does not exist.
    pub fn create_revision(keys: impl Into<KeyRange>) -> CompareBuilder<Revision> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Create }
    }

    /// Compares the revision of the last put, which is 0 for a missing key.
    pub fn mod_revision(keys: impl Into<KeyRange>) -> CompareBuilder<Revision> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Mod }
    }

    /// Compares the value. For a missing key, the condition never holds.
    pub fn value(keys: impl Into<KeyRange>) -> CompareBuilder<Bytes> {
        CompareBuilder { range: keys.into(), target: CompareTarget::Value }
    }

    /// Compares the id of the lease, which is 0 if there is none.
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

    /// Creates the condition that the key exists.
    pub fn exists(key: impl Into<KeyRange>) -> Compare {
        Compare::version(key).gt(0u64)
    }

    /// Creates the condition that the key does not exist.
    pub fn missing(key: impl Into<KeyRange>) -> Compare {
        Compare::version(key).eq(0u64)
    }
}

/// A [`Compare`] without its operator and right-hand side.
#[derive(Debug)]
#[must_use = "finish it with eq, ne, gt or lt"]
pub struct CompareBuilder<T> {
    range: KeyRange,
    target: fn(T) -> CompareTarget,
}

#[allow(clippy::should_implement_trait, reason = "a comparison to be made elsewhere")]
impl<T> CompareBuilder<T> {
    /// Requires the field to be equal to `value`.
    pub fn eq(self, value: impl CompareWith<T>) -> Compare {
        self.with(CompareOp::Equal, value)
    }

    /// Requires the field to differ from `value`.
    pub fn ne(self, value: impl CompareWith<T>) -> Compare {
        self.with(CompareOp::NotEqual, value)
    }

    /// Requires the field to be greater than `value`.
    pub fn gt(self, value: impl CompareWith<T>) -> Compare {
        self.with(CompareOp::Greater, value)
    }

    /// Requires the field to be less than `value`.
    pub fn lt(self, value: impl CompareWith<T>) -> Compare {
        self.with(CompareOp::Less, value)
    }

    fn with(self, op: CompareOp, value: impl CompareWith<T>) -> Compare {
        Compare { range: self.range, target: (self.target)(value.into_operand()), op }
    }
}

/// A value with which the field of a [`CompareBuilder`] can be compared: text or bytes for
/// [`Compare::value`], and numbers for the other fields.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be compared with this field of a key",
    label = "expected a value for `{T}`"
)]
pub trait CompareWith<T> {
    /// Converts the value to the type of the field.
    #[doc(hidden)]
    fn into_operand(self) -> T;
}

impl<V: IntoBytes> CompareWith<Bytes> for V {
    fn into_operand(self) -> Bytes {
        self.into_bytes()
    }
}

impl<V: Into<u64>> CompareWith<u64> for V {
    fn into_operand(self) -> u64 {
        self.into()
    }
}

impl<V: Into<Revision>> CompareWith<Revision> for V {
    fn into_operand(self) -> Revision {
        self.into()
    }
}

impl From<u64> for Revision {
    fn from(revision: u64) -> Self {
        Revision(revision)
    }
}
