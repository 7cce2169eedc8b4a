//! The way to the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::model::{
    Caller, Command, KeyRange, LeaseId, Moment, Rejection, Reply, Revision, RevokeReply,
    SessionInfo,
};
use crate::node::{CallError, LeaseRequest, Shared};

use super::call::{Consistency, DeleteCall, GetCall, PutCall, RangeCall};
use super::lease::{GrantCall, LeaseInfoCall, SessionStatus};
use super::scope::Scope;
use super::{Error, TxnCall, WatchCall};

/// Reads, writes and watches the store through one node. Cheap to clone, and usable from any thread,
/// task and runtime.
///
/// Reads are linearizable unless they say otherwise: they see everything that was acknowledged
/// anywhere before they were made. They are answered from this node's own replica, after asking the
/// leader how far it must have come.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) scope: Scope,
    /// For whom it acts: the program itself, unless said otherwise.
    pub(crate) caller: Option<Arc<Caller>>,
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, scope: Scope::default(), caller: None }
    }

    /// A client for the keys that begin with `prefix`: it is put before every key that goes in and taken off
    /// every key that comes out. Nothing outside can be reached through it.
    ///
    /// Sessions have no scope: what is made by one (locks, elections, groups, the taking end of a queue), and
    /// transactions under what it holds, are given whole keys and names. A queue says its own:
    /// [`Queue::name`](crate::queue::Queue::name).
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
    pub fn with_prefix(&self, prefix: impl Into<Bytes>) -> Client {
        Client { scope: self.scope.inner(prefix.into()), ..self.clone() }
    }

    /// Writes `value` to `key`.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> PutCall {
        PutCall::new(self.clone(), key.into(), value.into())
    }

    /// Reads the row of one key.
    pub fn get(&self, key: impl Into<Bytes>) -> GetCall {
        GetCall::new(self.clone(), key.into())
    }

    /// Reads the rows of a range of keys. A string is one key: for all keys that begin with it, call
    /// [`Client::get_prefix`] or pass [`KeyRange::prefix`].
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

    /// Reads the rows of all keys that begin with `prefix`. The empty prefix reads every key. Short for
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
    pub fn get_prefix(&self, prefix: impl Into<Bytes>) -> RangeCall {
        self.range(KeyRange::prefix(prefix))
    }

    /// Over how many keys a look at all of a range passes here, counted up to `max`: what it costs, before it is done. Keys
    /// that were deleted and are not swept yet count; a single key counts for none. Local, and no answer to what there is:
    /// for that, ask for the range's count.
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
        self.shared.reader.passed_over_by(&self.scope.range(keys.into()), max)
    }

    /// Deletes the keys of a range. A string is one key: `kv.delete("k")` deletes one key,
    /// [`kv.delete_prefix("k/")`](Client::delete_prefix) all keys that begin with `k/`.
    pub fn delete(&self, keys: impl Into<KeyRange>) -> DeleteCall {
        DeleteCall::new(self.clone(), keys.into())
    }

    /// Deletes all keys that begin with `prefix`. The empty prefix deletes every key. Short for
    /// [`Client::delete`] with [`KeyRange::prefix`].
    pub fn delete_prefix(&self, prefix: impl Into<Bytes>) -> DeleteCall {
        self.delete(KeyRange::prefix(prefix))
    }

    /// Begins a transaction.
    pub fn txn(&self) -> TxnCall {
        TxnCall::new(self.clone())
    }

    /// Watches a range of keys. A string is one key: for all keys that begin with it, call
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
    pub fn watch_prefix(&self, prefix: impl Into<Bytes>) -> WatchCall {
        self.watch(KeyRange::prefix(prefix))
    }

    /// Forgets what was before `revision`: reads at `revision` and later stay possible, reads and
    /// watches from before it do not. Returns the store's revision when the compaction was applied.
    ///
    /// # Errors
    /// [`Rejection::Compacted`](crate::Rejection::Compacted) if that was done already,
    /// [`Rejection::Future`](crate::Rejection::Future) if there is no such revision yet.
    pub async fn compact(&self, revision: Revision) -> Result<Revision, Error> {
        Ok(self.propose(Command::Compact(revision), None).await?.revision())
    }

    /// Makes a lease that lives for `ttl`: a millisecond to
    /// [`Limits::LEASE_TTL_MAX`](crate::Limits::LEASE_TTL_MAX), 285 years, else
    /// [`Rejection::LeaseTtl`](crate::Rejection::LeaseTtl). Nobody renews it: for one that lives as long as this node
    /// does, open a [`Session`](crate::Session), which lives for 100 ms at least.
    pub fn grant(&self, ttl: Duration) -> GrantCall {
        GrantCall::new(self.clone(), ttl)
    }

    /// Revokes a lease and deletes its keys, all in one revision. Returns that revision and the number of keys.
    ///
    /// # Errors
    /// [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound).
    pub async fn revoke(&self, lease: LeaseId) -> Result<RevokeReply, Error> {
        match self.propose(Command::Revoke(lease), None).await? {
            Reply::Revoke(reply) => Ok(reply),
            other => unreachable!("a revocation is answered by {other:?}"),
        }
    }

    /// Renews a lease, once: it lives for another TTL, which is the answer. For leases of others, who keep them
    /// alive themselves and come through this node; for one that lives as long as this node does, open a
    /// [`Session`](crate::Session).
    ///
    /// The leader has counted the TTL anew after the call was made, and a quorum has confirmed since that it
    /// leads: whoever counts from before the call, and for a TTL less the drift of its clock, does not believe
    /// in the lease for too long. While the lease's end is being decided there is no answer.
    ///
    /// # Errors
    /// [`Rejection::LeaseNotFound`](crate::Rejection::LeaseNotFound) if there is no such lease any more. After
    /// [`Error::Deadline`] it may have been renewed.
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

    /// How long a lease still lives if nobody renews it, as the leader counts; `None` if there is no such lease
    /// (any more). Linearizable. For people: it may be renewed, and a change of the leader gives it a full TTL.
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

    /// Returns the TTL and the session of a lease, or `None` if the lease does not exist. Linearizable.
    ///
    /// Add [`with_keys`](LeaseInfoCall::with_keys) for the keys that are bound to the lease.
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

    /// All leases, as this replica knows them, by id. Local: perhaps not the newest.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.shared.reader.leases().into_iter().map(|(lease, _)| lease).collect()
    }

    /// Whether there is such a lease, as this replica knows. Local: perhaps not the newest. Costs the same however many
    /// leases there are.
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

    /// The sessions of all nodes, as this replica knows them, by lease. Local: perhaps not the newest.
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

    /// The revision that this node's replica has reached. Local: other nodes may be ahead.
    pub fn revision(&self) -> Revision {
        self.shared.reader.revision()
    }

    /// Waits until this replica may be read.
    pub(crate) async fn be_current(
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
