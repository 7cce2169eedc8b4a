//! [`TypedCell`]: a cell whose value is decoded.

use std::borrow::Borrow;
use std::future::IntoFuture;
use std::marker::PhantomData;

use bytes::Bytes;

use crate::api::{Client, Error};
use crate::model::Revision;

#[cfg(feature = "json")]
use super::codec::Json;
use super::codec::{Codec, RowCodec};
use crate::recipes::call::Call;
use crate::recipes::{CasOutcome, Cell, CellUpdate, CellValue, CompareAndSet, Expected};

/// A shared value, like [`Cell`]. Created by [`Typed::cell`](super::keys::Typed::cell).
///
/// ```
/// # use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// let hosts = node.client().typed::<Vec<String>>("").cell("hosts");
/// hosts.set(vec!["a".to_owned()]).block()?;
/// hosts
///     .update(|old| {
///         let mut hosts = old.unwrap_or_default();
///         hosts.push("b".to_owned());
///         hosts
///     })
///     .block()?;
/// assert_eq!(hosts.get().block()?.unwrap().value, ["a", "b"]);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedCell<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    client: Client,
    key: Bytes,
    codec: RowCodec<C>,
    value: PhantomData<fn() -> T>,
}

/// The value of a [`TypedCell`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TypedCellValue<T> {
    /// The value.
    pub value: T,
    /// Version of the value, to be passed to [`TypedCell::compare_and_set`].
    pub version: Revision,
}

impl<T, C> TypedCell<T, C> {
    pub(super) fn new(client: Client, key: Bytes, codec: RowCodec<C>) -> Self {
        Self { client, key, codec, value: PhantomData }
    }
}

impl<T: Send + 'static, C: Codec<T>> TypedCell<T, C> {
    fn cell(&self) -> Cell {
        self.client.cell(&self.key)
    }

    /// Returns the value, or `None` if the key does not exist; see [`Cell::get`]. If the value
    /// cannot be decoded, the call fails with [`Error::Decode`].
    pub fn get(&self) -> Call<'static, Option<TypedCellValue<T>>> {
        let (cell, codec) = (self.cell(), self.codec.clone());
        Call::new(&self.client, move |until| async move {
            decode_cell(&codec, cell.get().deadline(until.left()).await?)
        })
    }

    /// Writes a value and returns its version; see [`Cell::set`]. If the value cannot be encoded,
    /// the call fails with [`Error::Encode`].
    pub fn set(&self, value: impl Borrow<T>) -> Call<'static, Revision> {
        let (cell, value) = (self.cell(), self.codec.encode(&self.key, value.borrow()));
        Call::new(&self.client, move |until| async move {
            cell.set(value?).deadline(until.left()).await
        })
    }

    /// Writes a value if the current value is as expected; see [`Cell::compare_and_set`]. If the
    /// value cannot be encoded, the call fails with [`Error::Encode`].
    pub fn compare_and_set(
        &self,
        expected: impl Into<Expected>,
        value: impl Borrow<T>,
    ) -> CompareAndSet {
        let value = self.codec.encode(&self.key, value.borrow());
        CompareAndSet::new(&self.client, self.key.clone(), expected.into(), value)
    }

    /// Computes a new value from the old value (`None` if the key does not exist), and writes it;
    /// see [`Cell::update`]. Fails with [`Error::Decode`] or [`Error::Encode`] if the old value
    /// cannot be decoded, or the new one cannot be encoded.
    pub fn update<'a>(
        &self,
        mut change: impl FnMut(Option<T>) -> T + Send + 'a,
    ) -> Call<'a, TypedCellValue<T>> {
        let (cell, codec, key) = (self.cell(), self.codec.clone(), self.key.clone());
        Call::new(&self.client, move |until| async move {
            loop {
                let old = decode_cell(&codec, cell.get().deadline(until.left()).await?)?;
                let version = old.as_ref().map_or(Revision(0), |old| old.version);
                let value = change(old.map(|old| old.value));
                let put = cell.compare_and_set(version, codec.encode(&key, &value)?);
                if let CasOutcome::Done { revision } = put.deadline(until.left()).await? {
                    return Ok(TypedCellValue { value, version: revision });
                }
            }
        })
    }

    /// Calls `change` with the old value (`None` if the key does not exist), which decides whether a
    /// new value is written, and returns the result of `change`; see [`Cell::try_update`]. Fails with
    /// [`Error::Decode`] or [`Error::Encode`] if the old value cannot be decoded, or the new one
    /// cannot be encoded.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use bowline::coordination::CellUpdate;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let tokens = node.client().typed::<u32>("").cell("tokens/ann");
    /// tokens.set(1).block()?;
    /// let take = || {
    ///     tokens.try_update(|left| match left.unwrap_or(0).checked_sub(1) {
    ///         Some(rest) => CellUpdate::Put(rest, true),
    ///         None => CellUpdate::Keep(false),
    ///     })
    /// };
    /// assert_eq!((take().block()?, take().block()?), (true, false));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_update<'a, R: Send + 'a>(
        &self,
        mut change: impl FnMut(Option<T>) -> CellUpdate<T, R> + Send + 'a,
    ) -> Call<'a, R> {
        let (cell, codec, key) = (self.cell(), self.codec.clone(), self.key.clone());
        Call::new(&self.client, move |until| async move {
            loop {
                let old = decode_cell(&codec, cell.get().deadline(until.left()).await?)?;
                let version = old.as_ref().map_or(Revision(0), |old| old.version);
                let (put, result) = match change(old.map(|old| old.value)) {
                    CellUpdate::Put(value, result) => (codec.encode(&key, &value)?, result),
                    // The read was linearizable, so the value was current during this call.
                    CellUpdate::Keep(result) => return Ok(result),
                };
                let put = cell.compare_and_set(version, put).deadline(until.left());
                if put.await?.is_done() {
                    return Ok(result);
                }
            }
        })
    }

    /// Waits until the version of the value differs from `from`, and returns the value; see
    /// [`Cell::changed`].
    pub fn changed(&self, from: Revision) -> Call<'static, Option<TypedCellValue<T>>> {
        let (cell, codec) = (self.cell(), self.codec.clone());
        Call::without_deadline(&self.client, move |until| async move {
            let changed = until.within(cell.changed(from).into_future()).await??;
            decode_cell(&codec, changed)
        })
    }
}

impl<T, C: Clone> Clone for TypedCell<T, C> {
    fn clone(&self) -> Self {
        let (client, key) = (self.client.clone(), self.key.clone());
        Self { client, key, codec: self.codec.clone(), value: PhantomData }
    }
}

fn decode_cell<T, C: Codec<T>>(
    codec: &RowCodec<C>,
    value: Option<CellValue>,
) -> Result<Option<TypedCellValue<T>>, Error> {
    let Some(CellValue { key, value, version }) = value else { return Ok(None) };
    Ok(Some(TypedCellValue { value: codec.decode(&key, &value, version)?, version }))
}
