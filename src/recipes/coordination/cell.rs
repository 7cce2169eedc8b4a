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
use crate::recipes::call::Call;

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

impl From<&KeyValue> for CellValue {
    fn from(row: &KeyValue) -> Self {
        Self { key: row.key.clone(), value: row.value.clone(), version: row.mod_revision }
    }
}

impl CellValue {
    readable!(key, value);
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
    /// value. A key with a lease keeps its lease.
    ///
    /// `change` is called once per attempt and must have no side effects. Of several concurrent
    /// attempts, one always succeeds, so a slow caller may have to retry many times. If many
    /// callers change one cell all the time, a mutex is fairer. Each attempt costs one commit.
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
                let version = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
                let value = change(row.as_ref().map(|row| &row.value[..])).into_bytes();
                let when = vec![Compare::mod_revision(key.clone()).eq(version)];
                let then = vec![put_over(row.is_some(), key.clone(), value.clone())];
                let (taken, version) =
                    try_branches(&client, vec![CasBranch { when, then }], &until).await?;
                if taken.is_some() {
                    return Ok(CellValue { key, value, version });
                }
            }
        })
    }

    /// Waits until the version of the value differs from `from`, and returns the value.
    /// `Revision(0)` means that there is no value. Waits without limit unless a deadline is set.
    /// Intermediate values may be skipped.
    pub fn changed(&self, from: Revision) -> Call<'static, Option<CellValue>> {
        let Self { client, key } = self.clone();
        Call::endless(&self.client, move |until| async move {
            wait_until(&client, KeyRange::key(key), &until, |rows| {
                let row = rows.first();
                let version = row.map_or(Revision(0), |row| row.mod_revision);
                Ok::<_, Error>((version != from).then(|| row.map(CellValue::from)))
            })
            .await
        })
    }
}
