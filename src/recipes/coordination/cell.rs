//! A single value that is changed by compare-and-set.
//!
//! A cell is an ordinary key. The version of its value is the revision of the last put, so no two
//! values have the same version, even across deletions.

use bytes::Bytes;

use crate::api::{Client, Error};
use crate::model::{Compare, IntoBytes, KeyRange, KeyValue, Revision, readable};

use super::cas_branches::{CasBranch, try_branches};
use super::conditional::{CompareAndSet, Expected, put_over};
use super::wait_until::wait_until;
use crate::recipes::call::{Call, Until};

/// A shared value. Created by [`Client::cell`].
///
/// Every read is linearizable. Every change is one entry in the log and is applied at most once.
/// After a crash, a pause or a partition in the middle of a change the cell has either the old
/// value or the new one. If the value changes between a caller's read and its
/// [`Cell::compare_and_set`], the compare-and-set fails.
#[derive(Clone, Debug)]
pub struct Cell {
    client: Client,
    key: Bytes,
}

/// The value of a [`Cell`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CellValue {
    /// Key of the cell.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Version of the value, to be passed to [`Cell::compare_and_set`].
    pub version: Revision,
}

/// The decision of [`Cell::try_update`] about the value of a cell, with the result for its caller.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CellUpdate<V, R> {
    /// Writes the new value.
    Put(V, R),
    /// Keeps the old value: writes nothing.
    Keep(R),
}

impl From<&KeyValue> for CellValue {
    fn from(row: &KeyValue) -> Self {
        Self { key: row.key.clone(), value: row.value.clone(), version: row.mod_revision }
    }
}

impl CellValue {
    readable!(key, value, version);
}

impl Client {
    /// Returns the cell in the key `name`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// let hosts = node.client().cell("hosts");
    /// hosts.set("a").block()?;
    /// let old = hosts.get().block()?.unwrap();
    /// hosts.update(|old| [old.unwrap(), b",b"].concat()).block()?;
    /// assert!(!hosts.compare_and_set(old.version, "late").block()?.is_done());
    /// assert_eq!(hosts.get().block()?.unwrap().value, "a,b");
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn cell(&self, name: impl IntoBytes) -> Cell {
        Cell { client: self.clone(), key: name.into_bytes() }
    }
}

impl Cell {
    /// Returns the value, or `None` if the key does not exist. The read is linearizable.
    pub fn get(&self) -> Call<'static, Option<CellValue>> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            let row = client.get(key).deadline(until.left()).await?;
            Ok(row.as_ref().map(CellValue::from))
        })
    }

    /// Writes a value and returns its version. As with [`Client::put`], a key with a lease is
    /// detached from the lease and outlives it. To keep the lease, use [`Cell::update`].
    pub fn set(&self, value: impl IntoBytes) -> Call<'static, Revision> {
        let (Self { client, key }, value) = (self.clone(), value.into_bytes());
        Call::new(&self.client, move |until| async move {
            Ok(client.put(key, value).deadline(until.left()).await?.revision)
        })
    }

    /// Writes a value if the current value is as expected: the [`CellValue::version`] that was
    /// read, or [`Expected::Missing`]. A key with a lease keeps its lease.
    pub fn compare_and_set(
        &self,
        expected: impl Into<Expected>,
        value: impl IntoBytes,
    ) -> CompareAndSet {
        self.client.compare_and_set(self.key.clone(), expected, value)
    }

    /// Computes a new value from the old value (`None` if the key does not exist), and writes it.
    /// If the value was changed meanwhile, retries with the changed value. Returns the written
    /// value. A key with a lease keeps its lease. A missing key is created without a lease.
    ///
    /// `change` is called once per attempt and must have no side effects. The old value comes from
    /// the local replica. If another member has just changed the cell, `change` may first get an
    /// earlier value (or `None`). The result for an earlier value is never written. So `change`
    /// must accept every value that the cell ever had. To write only under a condition, use
    /// [`Cell::try_update`]. Each attempt costs one commit.
    ///
    /// Of several concurrent attempts, one always succeeds: the one that the leader receives first.
    /// So if many processes change one cell all the time, the process of the cluster leader wins
    /// most rounds, and a distant process may retry until its deadline. In this case, use a
    /// [`Mutex`](crate::Mutex), which is granted in the order of the requests. For a number, use a
    /// [`Counter`](crate::coordination::Counter), whose concurrent additions can all succeed.
    ///
    /// # Errors
    /// The [effect](Error::effect) of the error states whether a change was applied.
    pub fn update<'a, V: IntoBytes>(
        &self,
        mut change: impl FnMut(Option<&[u8]>) -> V + Send + 'a,
    ) -> Call<'a, CellValue> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            loop {
                // A stale replica costs one more attempt, but never gives a wrong result. After a
                // failed attempt the replica has applied the conflicting change.
                let row = client.get(key.clone()).local().await?;
                let value = change(row.as_ref().map(|row| &row.value[..])).into_bytes();
                let put = replace(&client, &key, row.as_ref(), value.clone(), &until).await?;
                if let Some(version) = put {
                    return Ok(CellValue { key, value, version });
                }
            }
        })
    }

    /// Calls `change` with the old value (`None` if the key does not exist), which decides whether a
    /// new value is written, and returns the result of `change`. If the value was changed meanwhile,
    /// calls `change` again with the changed value. A key with a lease keeps its lease. A missing key
    /// is created without a lease.
    ///
    /// `change` may be called several times and must have no side effects. As in [`Cell::update`],
    /// a call may get an earlier value, or `None`. Only the result of the last call is returned. That
    /// call got the current value: its new value was written, or a linearizable read confirmed the
    /// value that it kept.
    /// As in [`Cell::update`], a write costs one commit per attempt and is unfair under contention.
    /// Keeping the value costs one linearizable read, and no commit.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use bowline::coordination::CellUpdate;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let owner = node.client().cell("shard/7");
    /// let claim = |me: &'static str| {
    ///     owner.try_update(move |old| match old {
    ///         None => CellUpdate::Put(me, me.to_owned()),
    ///         Some(other) => CellUpdate::Keep(String::from_utf8_lossy(other).into_owned()),
    ///     })
    /// };
    /// assert_eq!(claim("ann").block()?, "ann");
    /// assert_eq!(claim("bob").block()?, "ann");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The [effect](Error::effect) of the error states whether a change was applied.
    pub fn try_update<'a, V: IntoBytes, R: Send + 'a>(
        &self,
        mut change: impl FnMut(Option<&[u8]>) -> CellUpdate<V, R> + Send + 'a,
    ) -> Call<'a, R> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            loop {
                let row = client.get(key.clone()).local().await?;
                let old = row.as_ref().map(|row| &row.value[..]);
                let (value, result) = match change(old) {
                    CellUpdate::Put(value, result) => (Some(value.into_bytes()), result),
                    CellUpdate::Keep(result) => (None, result),
                };
                let is_current = match value {
                    Some(value) => {
                        replace(&client, &key, row.as_ref(), value, &until).await?.is_some()
                    }
                    // The local replica may be stale, so the kept value may be outdated. This
                    // linearizable read also brings the replica up to date.
                    None => {
                        let now = client.get(key.clone()).deadline(until.left()).await?;
                        version_of(now.as_ref()) == version_of(row.as_ref())
                    }
                };
                if is_current {
                    return Ok(result);
                }
            }
        })
    }

    /// Waits until the version of the value differs from `from`, and returns the value.
    /// `Revision(0)` means that there is no value. Waits without limit unless a deadline is set.
    /// Intermediate values may be skipped.
    pub fn changed(&self, from: Revision) -> Call<'static, Option<CellValue>> {
        let Self { client, key } = self.clone();
        Call::without_deadline(&self.client, move |until| async move {
            wait_until(&client, KeyRange::key(key), &until, |rows| {
                let row = rows.first();
                let version = version_of(row);
                Ok::<_, Error>((version != from).then(|| row.map(CellValue::from)))
            })
            .await
        })
    }
}

/// Returns the version of a value, which is 0 if the key does not exist.
fn version_of(row: Option<&KeyValue>) -> Revision {
    row.map_or(Revision(0), |row| row.mod_revision)
}

/// Writes a value in place of `old`. Returns its version, or `None` if the key was changed meanwhile.
async fn replace(
    client: &Client,
    key: &Bytes,
    old: Option<&KeyValue>,
    value: Bytes,
    until: &Until,
) -> Result<Option<Revision>, Error> {
    let when = vec![Compare::mod_revision(key.clone()).eq(version_of(old))];
    let then = vec![put_over(old.is_some(), key.clone(), value)];
    let (taken, version) = try_branches(client, vec![CasBranch { when, then }], until).await?;
    Ok(taken.map(|_| version))
}
