//! The calls of a [`Client`] on keys: built, then awaited.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::model::{
    Command, Delete, DeleteReply, KeyRange, KeyValue, LeaseId, Put, PutLease, PutReply, PutValue,
    Range, RangeReply, Reply, Revision, RevisionBounds, SortOrder, SortTarget,
};

use super::{Client, Error};

/// What a call becomes when it is awaited.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// How fresh a read must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consistency {
    /// It sees everything that was acknowledged anywhere before it was made.
    Linearizable,
    /// It sees what this replica has.
    Local,
    /// It sees at least this revision.
    AtLeast(Revision),
}

/// Writes a key; see [`Client::put`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct PutCall {
    client: Client,
    put: Put,
    deadline: Option<Duration>,
}

impl PutCall {
    pub(crate) fn new(client: Client, key: Bytes, value: Bytes) -> Self {
        let put = Put::new(client.scope.key(key), value);
        Self { client, put, deadline: None }
    }

    /// Binds the key to a lease: it is deleted when the lease ends. Without this a key that had a lease
    /// is detached from it.
    pub fn lease(mut self, lease: LeaseId) -> Self {
        self.put.lease = PutLease::Attach(lease);
        self
    }

    /// Leaves the key with the lease that it has. The key must exist.
    pub fn keep_lease(mut self) -> Self {
        self.put.lease = PutLease::Keep;
        self
    }

    /// Leaves the key with the value that it has, whatever was given; for changing only its lease. The
    /// key must exist.
    pub fn keep_value(mut self) -> Self {
        self.put.value = PutValue::Keep;
        self
    }

    /// Answers with the row before the put, if there was one.
    pub fn prev_kv(mut self) -> Self {
        self.put.prev_kv = true;
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for PutCall {
    type Output = Result<PutReply, Error>;
    type IntoFuture = Answer<PutReply>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.client.propose(Command::Put(self.put), self.deadline).await? {
                Reply::Put(mut reply) => {
                    self.client.scope.strip_all(&mut reply.prev);
                    Ok(reply)
                }
                other => unreachable!("a put is answered by {other:?}"),
            }
        })
    }
}

/// Deletes keys; see [`Client::delete`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct DeleteCall {
    client: Client,
    delete: Delete,
    deadline: Option<Duration>,
}

impl DeleteCall {
    pub(crate) fn new(client: Client, keys: KeyRange) -> Self {
        let delete = Delete::new(client.scope.range(keys));
        Self { client, delete, deadline: None }
    }

    /// Answers with the deleted rows.
    pub fn prev_kv(mut self) -> Self {
        self.delete.prev_kv = true;
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for DeleteCall {
    type Output = Result<DeleteReply, Error>;
    type IntoFuture = Answer<DeleteReply>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.client.propose(Command::Delete(self.delete), self.deadline).await? {
                Reply::Delete(mut reply) => {
                    self.client.scope.strip_all(&mut reply.prev_kvs);
                    Ok(reply)
                }
                other => unreachable!("a delete is answered by {other:?}"),
            }
        })
    }
}

/// Reads one key; see [`Client::get`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct GetCall {
    client: Client,
    key: Bytes,
    revision: Option<Revision>,
    consistency: Consistency,
    deadline: Option<Duration>,
}

impl GetCall {
    pub(crate) fn new(client: Client, key: Bytes) -> Self {
        let key = client.scope.key(key);
        Self { client, key, revision: None, consistency: Consistency::Linearizable, deadline: None }
    }

    /// Reads the key as it was at a revision.
    pub fn revision(mut self, revision: Revision) -> Self {
        self.revision = Some(revision);
        self
    }

    /// Reads what this replica has, without asking anybody: it may be behind, but while a node runs it never
    /// goes back in time. A node that was started anew may for a moment be behind what it had acknowledged; cut
    /// off from the others, for as long as that lasts. Waits while the replica has no state of its cluster yet.
    pub fn local(mut self) -> Self {
        self.consistency = Consistency::Local;
        self
    }

    /// Reads this replica as soon as it has reached `revision`.
    pub fn at_least(mut self, revision: Revision) -> Self {
        self.consistency = Consistency::AtLeast(revision);
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for GetCall {
    type Output = Result<Option<KeyValue>, Error>;
    type IntoFuture = Answer<Option<KeyValue>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, key, revision, consistency, deadline: timeout } = self;
            let mut range = Range::new(KeyRange::key(key));
            range.revision = revision;
            client.shared.settings.limits.check_range(&range)?;
            client.may_read(&range.range)?;
            client.be_current(consistency, client.shared.deadline(timeout)).await?;
            client.shared.meters.ranges_total.one();
            let mut row = client.shared.reader.range(&range)?.kvs.pop();
            client.may_read(&range.range)?;
            client.scope.strip_all(&mut row);
            Ok(row)
        })
    }
}

/// Reads a range of keys; see [`Client::range`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct RangeCall {
    client: Client,
    range: Range,
    counted: bool,
    consistency: Consistency,
    deadline: Option<Duration>,
}

impl RangeCall {
    pub(crate) fn new(client: Client, keys: KeyRange) -> Self {
        let range = Range::new(client.scope.range(keys));
        let consistency = Consistency::Linearizable;
        Self { client, range, counted: true, consistency, deadline: None }
    }

    /// At most so many rows; the answer's `more` says whether there were more.
    pub fn limit(mut self, rows: u64) -> Self {
        self.range.limit = Some(rows);
        self
    }

    /// Reads the keys as they were at a revision.
    pub fn revision(mut self, revision: Revision) -> Self {
        self.range.revision = Some(revision);
        self
    }

    /// In which order; by key, ascending, unless said otherwise.
    pub fn sort(mut self, target: SortTarget, order: SortOrder) -> Self {
        self.range.sort.target = target;
        self.range.sort.order = order;
        self
    }

    /// Rows without their values.
    pub fn keys_only(mut self) -> Self {
        self.range.keys_only = true;
        self
    }

    /// No rows, only how many there are.
    pub fn count_only(mut self) -> Self {
        self.range.count_only = true;
        self
    }

    /// Does not look at what lies behind the limit, where rows come by key: the answer's `count` is that of the rows
    /// that were looked at. For whoever reads a large range page by page, which takes the square of its keys where each
    /// page counts all that are left.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// for key in ["a", "b", "c", "d"] {
    ///     kv.put(key, "").block()?;
    /// }
    /// let page = kv.range(KeyRange::all()).limit(2).skip_count().block()?;
    /// assert_eq!((page.kvs.len(), page.more, page.count), (2, true, 3));
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn skip_count(mut self) -> Self {
        self.counted = false;
        self
    }

    /// Only rows whose revisions lie within bounds.
    pub fn bounds(mut self, bounds: RevisionBounds) -> Self {
        self.range.bounds = bounds;
        self
    }

    /// Reads what this replica has, without asking anybody: it may be behind, but while a node runs it never
    /// goes back in time (see [`GetCall::local`]). The answer's `revision` says how new it is. Waits while the
    /// replica has no state of its cluster yet.
    pub fn local(mut self) -> Self {
        self.consistency = Consistency::Local;
        self
    }

    /// Reads this replica as soon as it has reached `revision`.
    pub fn at_least(mut self, revision: Revision) -> Self {
        self.consistency = Consistency::AtLeast(revision);
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for RangeCall {
    type Output = Result<RangeReply, Error>;
    type IntoFuture = Answer<RangeReply>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, range, counted, consistency, deadline: timeout } = self;
            client.shared.settings.limits.check_range(&range)?;
            client.may_read(&range.range)?;
            client.be_current(consistency, client.shared.deadline(timeout)).await?;
            let reply = client.shared.range(&range, counted)?;
            // By a table that is at least as new as the rows.
            client.may_read(&range.range)?;
            Ok(client.scope.strip_range(reply))
        })
    }
}
