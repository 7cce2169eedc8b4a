//! [`Client`]: access to the store through one node.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{
    Caller, Command, IntoBytes, KeyRange, LeaseId, Moment, Rejection, Reply, Revision, RevokeReply,
    SessionInfo,
};
use crate::node::{CallError, LeaseRequest, Shared};

use super::call::{Consistency, DeleteCall, GetCall, PutCall, RangeCall};
use super::lease::{GrantCall, LeaseInfoCall, SessionStatus};
use super::scope::Scope;
use super::{Error, TxnCall, WatchCall};

/// Reads, writes and watches the store through one node. A client is cheap to clone and can be used
/// from any thread, task and runtime.
///
/// Reads are linearizable by default: they see every write that was acknowledged anywhere before
/// the read began. The node asks the leader for the current commit position, waits until its own
/// replica has applied it, and answers from that replica.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scope: Scope,
    /// The user on whose behalf the client acts, or `None` for the program itself.
    pub(crate) caller: Option<Arc<Caller>>,
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, scope: Scope::default(), caller: None }
    }

    /// Returns a client for the keys below `prefix`. The prefix is added to every key in a request
    /// and removed from every key in a reply. Keys outside the prefix cannot be reached through
    /// this client.
    ///
    /// A transaction of the client adds the prefix to the keys of its operations and compares, also
    /// in nested transactions. [`TxnCall::when_complete`] adds compares with complete keys, and
    /// [`TxnCall::then_complete`] such operations.
    ///
    /// Operations and compares that an object returns have complete keys, which include the prefix:
    /// those of [`Queue::put_op`](crate::queue::Queue::put_op),
    /// [`Typed::put_op`](crate::typed::Typed::put_op),
    /// [`StoredFence::condition`](crate::lock::StoredFence::condition) and
    /// [`Hold::still_held`](crate::lock::Hold::still_held). Use such operations where no prefix is
    /// added: in transactions of a client without a prefix, in [`Hold::txn`](crate::lock::Hold::txn),
    /// and with the acknowledgement of an item
    /// ([`Delivery::ack_with`](crate::queue::Delivery::ack_with),
    /// [`WorkItem::then`](crate::queue::WorkItem::then)). [`TxnCall::then`] of a client with a
    /// prefix would add the prefix a second time.
    ///
    /// Sessions have no prefix. Objects that are made by a session (locks, elections, groups, takers
    /// of a queue) take full names that include the prefix, and
    /// [`Queue::name`](crate::queue::Queue::name) returns the full name of a queue. Transactions
    /// guarded by a lock or a leadership take full keys, unless they are made for this client:
    /// [`Hold::txn_for`](crate::lock::Hold::txn_for).
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// let app = node.client().with_prefix("app/");
    /// app.put("rate", "100").block()?;
    /// assert_eq!(app.get("rate").block()?.unwrap().key, "rate");
    /// assert_eq!(node.client().get("app/rate").block()?.unwrap().key, "app/rate");
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    #[doc(alias = "scoped", alias = "namespace")]
    #[must_use]
    pub fn with_prefix(&self, prefix: impl IntoBytes) -> Client {
        Client { scope: self.scope.inner(prefix.into_bytes()), ..self.clone() }
    }

    /// Writes `value` to `key`.
    pub fn put(&self, key: impl IntoBytes, value: impl IntoBytes) -> PutCall {
        PutCall::new(self.clone(), key.into_bytes(), value.into_bytes())
    }

    /// Reads one key.
    pub fn get(&self, key: impl IntoBytes) -> GetCall {
        GetCall::new(self.clone(), key.into_bytes())
    }

    /// Reads a range of keys. A string means one key: to read all keys that begin with it, call
    /// [`Client::get_prefix`] or pass [`KeyRange::prefix`]. To read a large range in pages, see
    /// [`KeyRange::after`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// kv.put("jobs/1", "a").block()?;
    /// kv.put("jobs/2", "b").block()?;
    /// assert_eq!(kv.range("jobs/").block()?.count, 0);
    /// assert_eq!(kv.range(KeyRange::prefix("jobs/")).block()?.count, 2);
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    #[doc(alias = "list", alias = "scan")]
    pub fn range(&self, keys: impl Into<KeyRange>) -> RangeCall {
        RangeCall::new(self.clone(), keys.into())
    }

    /// Reads all keys that begin with `prefix`. The empty prefix reads every key. Short for
    /// [`Client::range`] with [`KeyRange::prefix`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// kv.put("jobs/1", "a").block()?;
    /// kv.put("jobs/2", "b").block()?;
    /// assert_eq!(kv.get_prefix("jobs/").block()?.kvs.len(), 2);
    /// assert_eq!(kv.delete_prefix("jobs/").block()?.deleted, 2);
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn get_prefix(&self, prefix: impl IntoBytes) -> RangeCall {
        self.range(KeyRange::prefix(prefix))
    }

    /// Estimates how many keys a scan of `keys` visits, up to `max`. Call this before a scan to
    /// learn its cost. Reads the local replica. Deleted keys count until compaction has removed
    /// them. A range of one key counts as 0. The result is not the number of existing keys: for
    /// that, read the range with [`count_only`](RangeCall::count_only).
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// for key in ["a", "b", "c"] {
    ///     kv.put(key, "").block()?;
    /// }
    /// assert_eq!(kv.estimated_len(KeyRange::all(), 1_000), 3);
    /// assert_eq!(kv.estimated_len(KeyRange::all(), 2), 2);
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn estimated_len(&self, keys: impl Into<KeyRange>, max: usize) -> usize {
        self.shared.reader.visited_keys_of_range(&self.scope.range(keys.into()), max)
    }

    /// Deletes a range of keys. A string means one key: `kv.delete("k")` deletes the key `k`, and
    /// [`kv.delete_prefix("k/")`](Client::delete_prefix) deletes all keys that begin with `k/`.
    pub fn delete(&self, keys: impl Into<KeyRange>) -> DeleteCall {
        DeleteCall::new(self.clone(), keys.into())
    }

    /// Deletes all keys that begin with `prefix`. The empty prefix deletes every key. Short for
    /// [`Client::delete`] with [`KeyRange::prefix`].
    pub fn delete_prefix(&self, prefix: impl IntoBytes) -> DeleteCall {
        self.delete(KeyRange::prefix(prefix))
    }

    /// Starts building a transaction. Nothing is sent before [`TxnCall::commit`].
    pub fn txn(&self) -> TxnCall {
        TxnCall::new(self.clone())
    }

    /// Watches a range of keys. A string means one key: to watch all keys that begin with it, call
    /// [`Client::watch_prefix`] or pass [`KeyRange::prefix`].
    pub fn watch(&self, keys: impl Into<KeyRange>) -> WatchCall {
        WatchCall::new(self.clone(), keys.into())
    }

    /// Watches all keys that begin with `prefix`. The empty prefix watches every key. Short for
    /// [`Client::watch`] with [`KeyRange::prefix`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// let mut jobs = kv.watch_prefix("jobs/").block()?;
    /// kv.put("jobs/1", "a").block()?;
    /// assert_eq!(jobs.next().block().unwrap()?.events[0].kv.key, "jobs/1");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_prefix(&self, prefix: impl IntoBytes) -> WatchCall {
        self.watch(KeyRange::prefix(prefix))
    }

    /// Discards the history before `revision`. Reads and watches at `revision` and later stay
    /// possible. Earlier reads and watches fail with `Compacted`. Returns the revision of the store
    /// when the compaction was applied.
    ///
    /// As in etcd, a compaction that discards nothing is rejected. So a program that compacts
    /// periodically gets [`Rejection::Compacted`](crate::Rejection::Compacted) if nothing was written
    /// since the last time, and can ignore it:
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use bowline::{Error, Rejection};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// kv.put("k", "v").block()?;
    /// for _ in 0..2 {
    ///     match kv.compact(kv.revision()).block() {
    ///         Ok(_) | Err(Error::Rejected(Rejection::Compacted { .. })) => {}
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// }
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Rejection::Compacted`](crate::Rejection::Compacted) if the store is already compacted
    /// up to `revision` or a later one, and [`Rejection::Future`](crate::Rejection::Future) if the
    /// store has not reached `revision`. In both cases nothing was changed.
    pub async fn compact(&self, revision: Revision) -> Result<Revision, Error> {
        Ok(self.propose(Command::Compact(revision), None).await?.revision())
    }

    /// Grants a lease with the given TTL, which is not renewed automatically. If the TTL is not
    /// between 1 ms and [`Limits::LEASE_TTL_MAX`](crate::Limits::LEASE_TTL_MAX) (285 years), the
    /// call fails with [`Rejection::LeaseTtl`](crate::Rejection::LeaseTtl). For a lease that this
    /// node renews, open a [`Session`](crate::Session), whose minimum TTL is 100 ms.
    pub fn grant(&self, ttl: Duration) -> GrantCall {
        GrantCall::new(self.clone(), ttl)
    }

    /// Revokes a lease and deletes its keys, all in one revision. Returns that revision and the
    /// number of deleted keys.
    ///
    /// # Errors
    /// Returns [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound) if the lease does not
    /// exist.
    pub async fn revoke(&self, lease: LeaseId) -> Result<RevokeReply, Error> {
        match self.propose(Command::Revoke(lease), None).await? {
            Reply::Revoke(reply) => Ok(reply),
            other => unreachable!("unexpected reply to a revocation: {other:?}"),
        }
    }

    /// Renews a lease once and returns its TTL. Use this call to forward renewals of clients that
    /// keep their own leases alive. For a lease that this node renews, open a
    /// [`Session`](crate::Session).
    ///
    /// The leader restarts the TTL after the call was made, and only if a quorum confirmed its
    /// leadership in the last 100 ms or confirms it now. A caller may rely on the lease for one
    /// TTL, minus its clock drift, counted from the start of the call. While the expiry of the
    /// lease is being decided, the call waits.
    ///
    /// # Errors
    /// Returns [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound) if the lease does not
    /// exist or has expired. After [`Error::Deadline`] the lease may have been renewed.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let lease = kv.grant(Duration::from_secs(60)).block()?;
    /// let left = kv.renew(lease.id).block()?;
    /// assert_eq!(left, lease.ttl);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn renew(&self, lease: LeaseId) -> Result<Duration, Error> {
        let deadline = self.shared.deadline(None);
        Ok(self.shared.lease_call(lease, LeaseRequest::Renew, deadline).await?)
    }

    /// Returns the remaining TTL of a lease as counted by the leader, or `None` if the lease does
    /// not exist. The read is linearizable. The value is informational: a renewal or a change of
    /// the leader restarts the full TTL.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn lease_time_to_live(&self, lease: LeaseId) -> Result<Option<Duration>, Error> {
        let deadline = self.shared.deadline(None);
        match self.shared.lease_call(lease, LeaseRequest::Look, deadline).await {
            Ok(left) => Ok(Some(left)),
            Err(CallError::Rejected(Rejection::LeaseNotFound(_))) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the TTL and the session of a lease, or `None` if the lease does not exist. The read
    /// is linearizable.
    ///
    /// Call [`with_keys`](LeaseInfoCall::with_keys) to read also the keys that are bound to the
    /// lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let lease = kv.grant(Duration::from_secs(60)).block()?;
    /// kv.put("workers/1", "ready").lease(lease.id).block()?;
    /// let info = kv.lease_info(lease.id).with_keys().block()?.expect("it was just granted");
    /// assert_eq!((info.ttl, info.keys.len()), (Duration::from_secs(60), 1));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease_info(&self, lease: LeaseId) -> LeaseInfoCall {
        LeaseInfoCall::new(self.clone(), lease)
    }

    /// Returns the ids of all leases in ascending order. Reads the local replica, which may lag
    /// behind the leader.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.shared.reader.leases().into_iter().map(|(lease, _)| lease).collect()
    }

    /// Reports whether a lease exists. Reads the local replica, which may lag behind the leader.
    /// The cost does not depend on the number of leases.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let lease = kv.grant(Duration::from_secs(60)).block()?;
    /// assert!(kv.has_lease(lease.id));
    /// kv.revoke(lease.id).block()?;
    /// assert!(!kv.has_lease(lease.id));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_lease(&self, lease: LeaseId) -> bool {
        self.shared.reader.has_lease(lease)
    }

    /// Returns the sessions of all nodes, ordered by lease id. Reads the local replica, which may
    /// lag behind the leader.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let session = node.open_session().label("importer").block()?;
    /// let sessions = node.client().sessions();
    /// assert_eq!((sessions[0].lease, &*sessions[0].label), (session.lease(), "importer"));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sessions(&self) -> Vec<SessionStatus> {
        let sessions = self.shared.reader.sessions().into_iter();
        let status = |(lease, ttl, (node, _, SessionInfo { label, own }))| SessionStatus {
            lease,
            ttl,
            node,
            label,
            own,
        };
        sessions.map(status).collect()
    }

    /// Returns the revision of the local replica. Other nodes may be ahead.
    pub fn revision(&self) -> Revision {
        self.shared.reader.revision()
    }

    /// Waits until the local replica is fresh enough for a read with `consistency`.
    pub(crate) async fn wait_until_current(
        &self,
        consistency: Consistency,
        deadline: Moment,
    ) -> Result<(), Error> {
        if let Some(reason) = self.shared.stop_reason() {
            return Err(CallError::Stopped { reason, maybe_applied: false }.into());
        }
        match consistency {
            Consistency::Linearizable => self.shared.read_barrier(deadline).await?,
            Consistency::Local => self.shared.any_state(deadline).await?,
            Consistency::AtLeast(revision) => self.shared.at_least(revision, deadline).await?,
        }
        Ok(())
    }

    pub(crate) async fn propose(
        &self,
        command: Command,
        timeout: Option<Duration>,
    ) -> Result<Reply, Error> {
        Ok(self.shared.write(self.signed(command), self.shared.deadline(timeout)).await?)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("scope", &self.scope).finish_non_exhaustive()
    }
}
