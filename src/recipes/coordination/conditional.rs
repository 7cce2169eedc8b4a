//! Conditional writes as single transactions: put if absent, compare and set, compare and delete.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Client, Effect, Error, Granted, TxnCall, deadline_option};
use crate::model::{
    Command, Compare, IntoBytes, KeyValue, LeaseId, Op, Put, PutLease, PutValue, Revision, TxnReply,
};
use crate::node::ReplyTo;

use super::cas_branches::branch_is_unknown;
use crate::recipes::call::{Call, Until};

/// The result of a conditional write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "the condition may not have held"]
pub enum CasOutcome {
    /// The condition held, and the change was applied.
    Done {
        /// Revision of the change.
        revision: Revision,
    },
    /// The condition did not hold. Nothing was changed.
    Lost {
        /// The current row in the local replica: the row that did not meet the condition, or a
        /// later one.
        row: Option<KeyValue>,
    },
}

impl CasOutcome {
    /// Reports whether the change was applied.
    pub fn is_done(&self) -> bool {
        matches!(self, CasOutcome::Done { .. })
    }

    /// Returns the revision of the change, or `None` if nothing was changed.
    pub fn revision(&self) -> Option<Revision> {
        match self {
            CasOutcome::Done { revision } => Some(*revision),
            CasOutcome::Lost { .. } => None,
        }
    }
}

/// Returns a put that keeps the lease of an existing key. A new key gets no lease.
pub(crate) fn put_over(is_there: bool, key: Bytes, value: impl IntoBytes) -> Op {
    let lease = if is_there { PutLease::Keep } else { PutLease::None };
    Op::Put(Put { key, value: PutValue::Set(value.into_bytes()), lease, prev_kv: false })
}

/// The state that a key must have for a conditional write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Expected {
    /// The key does not exist.
    Missing,
    /// The key was last written at this revision ([`KeyValue::mod_revision`]). After any later
    /// write the condition does not hold, even if the write kept the value. Revision 0 means that
    /// the key does not exist.
    Revision(Revision),
    /// The key was written this many times since its creation ([`KeyValue::version`]). Version 0
    /// means that the key does not exist. The version of a key that was deleted and created again
    /// restarts at 1, so prefer the revision.
    Version(u64),
    /// The key has this value, regardless of who wrote it.
    Value(Bytes),
}

impl Expected {
    /// Expects this value.
    pub fn value(value: impl IntoBytes) -> Self {
        Expected::Value(value.into_bytes())
    }

    fn compare(&self, key: Bytes) -> Compare {
        match self {
            Expected::Missing => Compare::missing(key),
            Expected::Revision(revision) => Compare::mod_revision(key).eq(*revision),
            Expected::Version(version) => Compare::version(key).eq(*version),
            Expected::Value(value) => Compare::value(key).eq(value.clone()),
        }
    }

    fn is_missing(&self) -> bool {
        match self {
            Expected::Missing => true,
            Expected::Revision(revision) => revision.get() == 0,
            Expected::Version(version) => *version == 0,
            Expected::Value(_) => false,
        }
    }
}

impl From<Revision> for Expected {
    fn from(revision: Revision) -> Self {
        Expected::Revision(revision)
    }
}

/// The revision of the row that was read, or `None` if there was no row.
impl From<Option<Revision>> for Expected {
    fn from(revision: Option<Revision>) -> Self {
        revision.map_or(Expected::Missing, Expected::Revision)
    }
}

impl Client {
    /// Writes `value` to `key` if the key does not exist. With [`PutIfAbsent::ttl`] the key
    /// expires.
    ///
    /// The call costs one commit, or two with a TTL. If the local replica already has the key, the
    /// call costs no commit and one round trip to the leader.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bowline::{Blocking, Config, Node, coordination::CasOutcome};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// let minute = Duration::from_secs(60);
    /// let first = kv.put_if_absent("seen/4711", "node a").ttl(minute).block()?;
    /// assert!(first.is_done());
    /// let second = kv.put_if_absent("seen/4711", "node b").ttl(minute).block()?;
    /// assert!(matches!(second, CasOutcome::Lost { row: Some(row) } if row.value == "node a"));
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn put_if_absent(&self, key: impl IntoBytes, value: impl IntoBytes) -> PutIfAbsent {
        PutIfAbsent::new(self, key.into_bytes(), Ok(value.into_bytes()))
    }

    /// Writes `value` to `key` if the key is in the expected state: `kv.compare_and_set("k",
    /// row.mod_revision, "v")`. A key with a lease keeps its lease, unless [`CompareAndSet::ttl`]
    /// sets a new TTL.
    ///
    /// If the outcome of a call is unknown, it is safe to repeat the call with the same revision of
    /// an existing row: at most one of the calls writes. If the repeated call returns
    /// [`CasOutcome::Lost`] with a row that only the first call can have written, the first call has
    /// succeeded.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, coordination::Expected};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// let seen = kv.put("k", "old").block()?.revision;
    /// assert!(kv.compare_and_set("k", seen, "new").block()?.is_done());
    /// assert!(!kv.compare_and_set("k", seen, "late").block()?.is_done());
    /// assert!(!kv.compare_and_delete("k", Expected::value("old")).block()?.is_done());
    /// assert!(kv.compare_and_delete("k", Expected::value("new")).block()?.is_done());
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn compare_and_set(
        &self,
        key: impl IntoBytes,
        expected: impl Into<Expected>,
        value: impl IntoBytes,
    ) -> CompareAndSet {
        CompareAndSet::new(self, key.into_bytes(), expected.into(), Ok(value.into_bytes()))
    }

    /// Deletes `key` if it is in the expected state. A caller that stores a unique value can pass
    /// that value here to delete only its own key. (Redis needs a script for this.) With
    /// [`Expected::Missing`] nothing is deleted.
    pub fn compare_and_delete(
        &self,
        key: impl IntoBytes,
        expected: impl Into<Expected>,
    ) -> Call<'static, CasOutcome> {
        let (client, key, expected) = (self.clone(), key.into_bytes(), expected.into());
        Call::new(self, move |until| async move {
            let txn = client.txn().when(expected.compare(key.clone()));
            swap(&client, txn.then(Op::delete(key.clone())), key, &until).await
        })
    }
}

/// Runs a transaction whose condition concerns one key.
async fn swap(
    client: &Client,
    txn: TxnCall,
    key: Bytes,
    until: &Until,
) -> Result<CasOutcome, Error> {
    let reply = txn.deadline(until.left()).commit().await.map_err(branch_is_unknown)?;
    swapped(client, &reply, key).await
}

/// Converts the reply of such a transaction.
async fn swapped(client: &Client, reply: &TxnReply, key: Bytes) -> Result<CasOutcome, Error> {
    if reply.succeeded {
        return Ok(CasOutcome::Done { revision: reply.revision });
    }
    Ok(CasOutcome::Lost { row: client.get(key).local().await? })
}

/// A call that writes a key if it is in the expected state; see [`Client::compare_and_set`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct CompareAndSet {
    client: Client,
    key: Bytes,
    expected: Expected,
    /// The encoded value, or the error with which the call fails.
    value: Result<Bytes, Error>,
    ttl: Option<Duration>,
    deadline: Option<Duration>,
}

impl CompareAndSet {
    pub(crate) fn new(
        client: &Client,
        key: Bytes,
        expected: Expected,
        value: Result<Bytes, Error>,
    ) -> Self {
        Self { client: client.clone(), key, expected, value, ttl: None, deadline: None }
    }

    /// Sets a TTL of at least 1 ms: the key is detached from its previous lease and expires after
    /// this time. To extend the life of its own key, a caller sets the current value again. (Redis
    /// needs a script for this.)
    ///
    /// The call costs two commits, because a lease is granted for the key. The lease is not
    /// renewed. If the write is not applied, the lease is revoked. If the outcome is unknown or the
    /// call is dropped, the lease expires. The previous lease of the key stays until it expires, so
    /// frequent extensions leave several leases at a time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bowline::{Blocking, Config, Node, coordination::Expected};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// let (minute, mine) = (Duration::from_secs(60), "worker-7 4f1c");
    /// assert!(kv.put_if_absent("jobs/nightly", mine).ttl(minute).block()?.is_done());
    /// let longer = kv.compare_and_set("jobs/nightly", Expected::value(mine), mine).ttl(10 * minute);
    /// assert!(longer.block()?.is_done());
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    deadline_option!();

    async fn run_undoable(self, until: &Until) -> Result<CasOutcome, Error> {
        let Self { client, key, expected, value, ttl, .. } = self;
        let value = value?;
        let granted = match ttl {
            Some(ttl) => Some(Granted::of(&client, ttl, until).await?),
            None => None,
        };
        // From here on the lease belongs to the key. The code below revokes the lease only if the
        // write was not applied, because a revocation would delete the key.
        let lease = granted.map(Granted::keep);
        let put = match lease {
            Some(lease) => Put::new(key.clone(), value).lease(lease).into(),
            None => put_over(!expected.is_missing(), key.clone(), value),
        };
        let txn = client.txn().when(expected.compare(key.clone())).then(put);
        let reply = txn.deadline(until.left()).commit().await.map_err(branch_is_unknown);
        let is_made = match &reply {
            Ok(reply) => reply.succeeded,
            Err(error) => error.effect() != Effect::NotApplied,
        };
        if let Some(lease) = lease.filter(|_| !is_made || mutant!(B63)) {
            client.shared.propose_until_applied(Command::Revoke(lease), ReplyTo::Discard);
        }
        swapped(&client, &reply?, key).await
    }
}

impl IntoFuture for CompareAndSet {
    type Output = Result<CasOutcome, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let (client, timeout) = (self.client.clone(), self.deadline);
        let call = Call::new(&client, move |until| async move { self.run_undoable(&until).await });
        match timeout {
            Some(timeout) => call.deadline(timeout).into_future(),
            None => call.into_future(),
        }
    }
}

/// Lifetime of a written key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// The key lives until it is deleted.
    Endless,
    /// The key lives until a lease of the caller ends.
    Lease(LeaseId),
    /// The key lives for this time.
    Ttl(Duration),
}

/// A call that writes a key if it does not exist; see [`Client::put_if_absent`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct PutIfAbsent {
    client: Client,
    key: Bytes,
    /// The encoded value, or the error with which the call fails.
    value: Result<Bytes, Error>,
    life: Life,
    deadline: Option<Duration>,
}

impl PutIfAbsent {
    pub(crate) fn new(client: &Client, key: Bytes, value: Result<Bytes, Error>) -> Self {
        Self { client: client.clone(), key, value, life: Life::Endless, deadline: None }
    }

    /// Sets a TTL, at least 1 ms. The call grants a lease for the key, which is not renewed. The
    /// lease is revoked if the key already exists, or if the call fails or is dropped. The
    /// revocation also deletes the key if this call wrote it, so no key of a failed call stays.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.life = Life::Ttl(ttl);
        self
    }

    /// Attaches the key to a lease, for example that of a session.
    pub fn lease(mut self, lease: LeaseId) -> Self {
        self.life = Life::Lease(lease);
        self
    }

    deadline_option!();
}

impl IntoFuture for PutIfAbsent {
    type Output = Result<CasOutcome, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, key, value, life, deadline: timeout } = self;
        let call = Call::new(&client.clone(), move |until| async move {
            put_if_absent(&client, key, value?, life, &until).await
        });
        match timeout {
            Some(timeout) => call.deadline(timeout).into_future(),
            None => call.into_future(),
        }
    }
}

async fn put_if_absent(
    client: &Client,
    key: Bytes,
    value: Bytes,
    life: Life,
    until: &Until,
) -> Result<CasOutcome, Error> {
    loop {
        if client.get(key.clone()).local().await?.is_some()
            && let Some(row) = client.get(key.clone()).deadline(until.left()).await?
        {
            return Ok(CasOutcome::Lost { row: Some(row) });
        }
        let granted = match life {
            Life::Ttl(ttl) => Some(Granted::of(client, ttl, until).await?),
            Life::Endless | Life::Lease(_) => None,
        };
        let lease = match (life, &granted) {
            (_, Some(granted)) => PutLease::Attach(granted.lease()),
            (Life::Lease(lease), None) => PutLease::Attach(lease),
            (Life::Endless | Life::Ttl(_), None) => PutLease::None,
        };
        let put =
            Put { key: key.clone(), value: PutValue::Set(value.clone()), lease, prev_kv: false };
        let txn = client.txn().when(Compare::missing(key.clone())).then(put);
        match swap(client, txn, key.clone(), until).await? {
            // The existing row was deleted meanwhile: try again.
            CasOutcome::Lost { row: None } => {}
            CasOutcome::Done { revision } => {
                if let Some(granted) = granted {
                    granted.keep();
                }
                return Ok(CasOutcome::Done { revision });
            }
            lost => return Ok(lost),
        }
    }
}
