//! The cell: one value that is changed by comparing and setting.
//!
//! It is an ordinary key. Its version is the revision of its last put: no two values of it, over
//! deletions too, have the same one.

use bytes::Bytes;

use crate::api::{Client, Error};
use crate::model::{Compare, KeyRange, KeyValue, Revision};

use super::call::Call;
use super::chain::{Way, try_ways};
use super::conditional::{CompareAndSet, Expected, put_over};
use super::look::look_until;

/// A value that many change; made by [`Client::cell`].
///
/// Every read is linearizable, every change one entry in the log, applied at most once whatever becomes
/// of leaders and messages. A node that is paused, cut off or crashed in the middle of a change leaves the
/// old value or the new one, and nothing to clean up. Who is paused between reading and
/// [`Cell::compare_and_set`] loses to whoever changed the value meanwhile.
#[derive(Clone, Debug)]
pub struct Cell {
    client: Client,
    key: Bytes,
}

/// The value of a [`Cell`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CellValue {
    /// The value.
    pub value: Bytes,
    /// Its version: what to give to [`Cell::compare_and_set`].
    pub version: Revision,
}

impl From<&KeyValue> for CellValue {
    fn from(row: &KeyValue) -> Self {
        Self { value: row.value.clone(), version: row.mod_revision }
    }
}

impl Client {
    /// The value of the key `name`, to be changed by comparing and setting.
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
    pub fn cell(&self, name: impl Into<Bytes>) -> Cell {
        Cell { client: self.clone(), key: name.into() }
    }
}

impl Cell {
    /// The value, if there is one. Linearizable.
    pub fn get(&self) -> Call<'static, Option<CellValue>> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            let row = client.get(key).deadline(until.left()).await?;
            Ok(row.as_ref().map(CellValue::from))
        })
    }

    /// Writes a value, whatever was there, and answers with its version. As with [`Client::put`], a key that had a
    /// lease has none then, and lives on when that ends: what only changes the value is [`Cell::update`].
    pub fn set(&self, value: impl Into<Bytes>) -> Call<'static, Revision> {
        let (Self { client, key }, value) = (self.clone(), value.into());
        Call::new(&self.client, move |until| async move {
            Ok(client.put(key, value).deadline(until.left()).await?.revision)
        })
    }

    /// Writes a value if the present one is as expected: [`CellValue::version`], as it was read, or
    /// [`Expected::Missing`]. A key that has a lease keeps it.
    pub fn compare_and_set(
        &self,
        expected: impl Into<Expected>,
        value: impl Into<Bytes>,
    ) -> CompareAndSet {
        self.client.compare_and_set(self.key.clone(), expected, value)
    }

    /// Makes a new value from the old one, `None` if there is none, and writes it unless the value has
    /// been changed meanwhile; then again. Answers with what was written. A key that has a lease keeps it.
    ///
    /// `change` is called once for each try, and must do nothing else. One of those who try at the same
    /// time always gets through, but not always the same one: where many change one cell all the time,
    /// a mutex is fairer. One commit for each try, and no other traffic.
    ///
    /// # Errors
    /// [`Error::Deadline`] and others, which say whether a change was applied.
    pub fn update<'a, V: Into<Bytes>>(
        &self,
        mut change: impl FnMut(Option<&[u8]>) -> V + Send + 'a,
    ) -> Call<'a, CellValue> {
        let Self { client, key } = self.clone();
        Call::new(&self.client, move |until| async move {
            loop {
                // A replica that is behind costs one try more, and no wrong result. After a try that was
                // lost it has caught up with what was in the way.
                let row = client.get(key.clone()).local().await?;
                let version = row.as_ref().map_or(Revision(0), |row| row.mod_revision);
                let value: Bytes = change(row.as_ref().map(|row| &row.value[..])).into();
                let when = vec![Compare::mod_revision(key.clone()).eq(version)];
                let then = vec![put_over(row.is_some(), key.clone(), value.clone())];
                let (taken, version) = try_ways(&client, vec![Way { when, then }], &until).await?;
                if taken.is_some() {
                    return Ok(CellValue { value, version });
                }
            }
        })
    }

    /// Waits until the value has another version than this, `Revision(0)` being no value, and answers with
    /// it. Waits without end unless it is given a deadline; values in between may be passed over.
    pub fn changed(&self, from: Revision) -> Call<'static, Option<CellValue>> {
        let Self { client, key } = self.clone();
        Call::endless(&self.client, move |until| async move {
            look_until(&client, KeyRange::key(key), &until, |rows| {
                let row = rows.first();
                let version = row.map_or(Revision(0), |row| row.mod_revision);
                Ok::<_, Error>((version != from).then(|| row.map(CellValue::from)))
            })
            .await
        })
    }
}
