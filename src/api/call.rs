//! The calls of a [`Client`] on keys. Each call is a builder that runs when it is awaited.

use std::time::Duration;

use bytes::Bytes;

use crate::model::{
    Command, Delete, DeleteReply, KeyRange, KeyValue, LeaseId, Put, PutLease, PutReply, PutValue,
    Range, RangeReply, Reply, Revision, RevisionBounds, SortOrder, SortTarget,
};
use crate::node::ReplyTo;

use super::{Client, Effect, Error, Granted, Until};

/// Declares the option `deadline` of a call, which has a field `deadline: Option<Duration>`.
macro_rules! deadline_option {
    () => {
        $crate::api::deadline_option! {
            /// Limits how long the call may take. Default:
            /// [`Config::call_deadline`](crate::Config::call_deadline).
        }
    };
    ($(#[$about:meta])+) => {
        $(#[$about])+
        pub fn deadline(mut self, timeout: ::std::time::Duration) -> Self {
            self.deadline = Some(timeout);
            self
        }

        $crate::api::timeout_option!();
    };
}

/// Declares the option `timeout` of a call that has an option `deadline`.
macro_rules! timeout_option {
    () => {
        /// Same as [`deadline`](Self::deadline).
        pub fn timeout(self, timeout: ::std::time::Duration) -> Self {
            self.deadline(timeout)
        }
    };
}

/// Declares options of a call that wraps another call in the field `$call`. The options are passed
/// on to that call.
macro_rules! forwarded_options {
    ($call:ident: $($(#[$about:meta])+ pub fn $option:ident($($name:ident: $type:ty),*);)+) => {$(
        $(#[$about])+
        pub fn $option(mut self $(, $name: $type)*) -> Self {
            self.$call = self.$call.$option($($name),*);
            self
        }
    )+};
}

/// Makes a call awaitable: `.await` runs its method `run`.
macro_rules! awaited {
    ($call:ident -> $output:ty) => {
        impl ::std::future::IntoFuture for $call {
            type Output = $output;
            type IntoFuture =
                ::std::pin::Pin<Box<dyn ::std::future::Future<Output = $output> + Send>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(self.run())
            }
        }
    };
}

pub(crate) use awaited;
pub(crate) use deadline_option;
pub(crate) use forwarded_options;
pub(crate) use timeout_option;

/// Freshness of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consistency {
    /// The read sees every write that was acknowledged anywhere before the read began.
    Linearizable,
    /// The read sees the current state of the local replica.
    Local,
    /// The read sees at least this revision.
    AtLeast(Revision),
}

/// A call that writes a key; see [`Client::put`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct PutCall {
    client: Client,
    put: Put,
    ttl: Option<Duration>,
    deadline: Option<Duration>,
    /// The error with which the call fails, if the value could not be encoded.
    failed: Option<Error>,
}

impl PutCall {
    pub(crate) fn new(client: Client, key: Bytes, value: Bytes) -> Self {
        let put = Put::new(client.scope.key(key), value);
        Self { client, put, ttl: None, deadline: None, failed: None }
    }

    /// Returns a call that fails with this error.
    pub(crate) fn failed(client: Client, error: Error) -> Self {
        let failed = Some(error);
        Self { failed, ..Self::new(client, Bytes::new(), Bytes::new()) }
    }

    /// Attaches the key to a lease. The key is deleted when the lease ends. A put without a lease
    /// detaches the key from its current lease, unless [`PutCall::keep_lease`] is set.
    pub fn lease(mut self, lease: LeaseId) -> Self {
        self.put.lease = PutLease::Attach(lease);
        self.ttl = None;
        self
    }

    /// Sets a TTL of at least 1 ms: the key is deleted this long after the put, unless it is written
    /// again.
    ///
    /// The call grants a lease for this key. So it costs two commits, and the replicated state
    /// contains the lease until the key expires. The leader counts the TTL. A change of the leader
    /// restarts the TTL, so the key may live longer, but never shorter. No node renews the lease.
    /// To extend the life of the key, put it again. For many keys of one owner, and for keys that
    /// live as long as this program, attach them to one session instead:
    /// [`lease(session.lease())`](PutCall::lease), which this node renews.
    ///
    /// If the TTL passes before the put is applied, the call fails with
    /// [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound).
    /// If the put is not applied, the lease is revoked. If its outcome is unknown, or this future is
    /// dropped during the put, the lease stays until it expires. The lease of an earlier put with a
    /// TTL also stays until it expires.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// kv.put("tokens/ann", "4f1c").ttl(Duration::from_secs(600)).block()?;
    /// let row = kv.get("tokens/ann").block()?.unwrap();
    /// assert!(kv.lease_time_to_live(row.lease.unwrap()).block()?.unwrap() > Duration::from_secs(500));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "expire", alias = "setex")]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Keeps the current lease of the key. The key must exist.
    pub fn keep_lease(mut self) -> Self {
        self.put.lease = PutLease::Keep;
        self.ttl = None;
        self
    }

    /// Keeps the current value of the key and ignores the given value. Use this option to change
    /// only the lease. The key must exist.
    pub fn keep_value(mut self) -> Self {
        self.put.value = PutValue::Keep;
        self
    }

    /// Returns the row before the put, if it existed.
    pub fn prev_kv(mut self) -> Self {
        self.put.prev_kv = true;
        self
    }

    deadline_option!();

    async fn run(self) -> Result<PutReply, Error> {
        let Self { client, mut put, ttl, deadline: timeout, failed } = self;
        if let Some(error) = failed {
            return Err(error);
        }
        let reply = match ttl {
            None => client.propose(Command::Put(put), timeout).await,
            Some(ttl) => {
                // Check the request first, so that no lease is granted for an invalid request.
                client.shared.settings.limits.check(&Command::Put(put.clone()))?;
                let deadline = client.shared.deadline(timeout);
                let until = Until::by(&client.shared, deadline);
                let lease = Granted::of(&client, ttl, &until).await?.keep();
                put.lease = PutLease::Attach(lease);
                let reply = client.propose(Command::Put(put), Some(until.left())).await;
                if let Err(error) = &reply
                    && error.effect() == Effect::NotApplied
                {
                    let revoke = Command::Revoke(lease);
                    client.shared.propose_until_applied(revoke, ReplyTo::Discard);
                }
                reply
            }
        };
        match reply? {
            Reply::Put(mut reply) => {
                client.scope.strip_all(&mut reply.prev);
                Ok(reply)
            }
            other => unreachable!("unexpected reply to a put: {other:?}"),
        }
    }
}

awaited!(PutCall -> Result<PutReply, Error>);

/// A call that deletes keys; see [`Client::delete`].
#[derive(Clone, Debug)]
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

    /// Returns the deleted rows.
    pub fn prev_kv(mut self) -> Self {
        self.delete.prev_kv = true;
        self
    }

    deadline_option!();

    async fn run(self) -> Result<DeleteReply, Error> {
        match self.client.propose(Command::Delete(self.delete), self.deadline).await? {
            Reply::Delete(mut reply) => {
                self.client.scope.strip_all(&mut reply.prev_kvs);
                Ok(reply)
            }
            other => unreachable!("unexpected reply to a delete: {other:?}"),
        }
    }
}

awaited!(DeleteCall -> Result<DeleteReply, Error>);

/// A call that reads one key; see [`Client::get`].
#[derive(Clone, Debug)]
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

    /// Reads the key at an earlier revision.
    pub fn revision(mut self, revision: Revision) -> Self {
        self.revision = Some(revision);
        self
    }

    /// Reads the local replica without contacting the leader. The result may be stale. While the
    /// node runs, a later local read never returns an older state. After a restart, the replica may
    /// lack writes that the node acknowledged before, until the replica has caught up with the
    /// cluster. If the replica has not received the state of its cluster yet, the call waits until
    /// it has.
    pub fn local(mut self) -> Self {
        self.consistency = Consistency::Local;
        self
    }

    /// Reads the local replica once it has reached `revision`, without contacting the leader.
    pub fn at_least(mut self, revision: Revision) -> Self {
        self.consistency = Consistency::AtLeast(revision);
        self
    }

    deadline_option!();

    async fn run(self) -> Result<Option<KeyValue>, Error> {
        let Self { client, key, revision, consistency, deadline: timeout } = self;
        let mut range = Range::new(KeyRange::key(key));
        range.revision = revision;
        client.shared.settings.limits.check_range(&range)?;
        client.may_read(&range.range)?;
        client.wait_until_current(consistency, client.shared.deadline(timeout)).await?;
        client.shared.meters.ranges_total.one();
        let mut row = client.shared.reader.range(&range)?.kvs.pop();
        client.may_read(&range.range)?;
        client.scope.strip_all(&mut row);
        Ok(row)
    }
}

awaited!(GetCall -> Result<Option<KeyValue>, Error>);

/// A call that reads a range of keys; see [`Client::range`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct RangeCall {
    client: Client,
    range: Range,
    /// Bytes at which the scan stops, or `None` to scan and count the whole range.
    page_bytes: Option<u64>,
    consistency: Consistency,
    deadline: Option<Duration>,
}

impl RangeCall {
    pub(crate) fn new(client: Client, keys: KeyRange) -> Self {
        let range = Range::new(client.scope.range(keys));
        let consistency = Consistency::Linearizable;
        Self { client, range, page_bytes: None, consistency, deadline: None }
    }

    /// Returns at most `rows` rows. The reply's `more` is set if the range has more rows.
    pub fn limit(mut self, rows: u64) -> Self {
        self.range.limit = Some(rows);
        self
    }

    /// Reads the keys at an earlier revision.
    pub fn revision(mut self, revision: Revision) -> Self {
        self.range.revision = Some(revision);
        self
    }

    /// Sorts the rows. Default: by key, ascending.
    pub fn sort(mut self, target: SortTarget, order: SortOrder) -> Self {
        self.range.sort.target = target;
        self.range.sort.order = order;
        self
    }

    /// Returns rows without their values.
    pub fn keys_only(mut self) -> Self {
        self.range.keys_only = true;
        self
    }

    /// Returns only the number of rows.
    pub fn count_only(mut self) -> Self {
        self.range.count_only = true;
        self
    }

    /// Stops scanning at the limit. This option has no effect if [`sort`](RangeCall::sort) selects
    /// another order than ascending keys. The reply's `count` then covers only the scanned rows.
    /// Use this option to read a large range in pages: without it, each page counts all remaining
    /// keys, which takes quadratic time in total.
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
        self.page_bytes.get_or_insert(u64::MAX);
        self
    }

    /// Limits the size of the reply: it contains only the rows that fit into `bytes`, but at least
    /// one row. The limit has no effect if [`sort`](RangeCall::sort) selects another order than
    /// ascending keys. A row counts with its key, its value unless
    /// [`keys_only`](RangeCall::keys_only) is set, and 64 bytes for its revisions and other
    /// numbers. The reply's `more` is set if the range has more rows. As with
    /// [`skip_count`](RangeCall::skip_count), the scan stops at the limit.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// for key in ["a", "b", "c"] {
    ///     kv.put(key, vec![0; 1000]).block()?;
    /// }
    /// let page = kv.range(KeyRange::all()).limit_bytes(2500).block()?;
    /// assert_eq!((page.kvs.len(), page.more), (2, true));
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn limit_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// Returns only rows whose revisions are within `bounds`.
    pub fn bounds(mut self, bounds: RevisionBounds) -> Self {
        self.range.bounds = bounds;
        self
    }

    /// Reads the local replica without contacting the leader. The result may be stale (see
    /// [`GetCall::local`]). The reply's `revision` is the revision of the replica. If the replica
    /// has not received the state of its cluster yet, the call waits until it has.
    pub fn local(mut self) -> Self {
        self.consistency = Consistency::Local;
        self
    }

    /// Reads the local replica once it has reached `revision`, without contacting the leader.
    pub fn at_least(mut self, revision: Revision) -> Self {
        self.consistency = Consistency::AtLeast(revision);
        self
    }

    deadline_option!();

    async fn run(self) -> Result<RangeReply, Error> {
        let Self { client, range, page_bytes, consistency, deadline: timeout } = self;
        client.shared.settings.limits.check_range(&range)?;
        client.may_read(&range.range)?;
        client.wait_until_current(consistency, client.shared.deadline(timeout)).await?;
        let reply = client.shared.range(&range, page_bytes)?;
        // Check the permission again: the access table is now at least as new as the rows.
        client.may_read(&range.range)?;
        Ok(client.scope.strip_range(reply))
    }
}

awaited!(RangeCall -> Result<RangeReply, Error>);
