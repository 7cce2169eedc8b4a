//! [`TypedCell`]: a cell whose value is decoded.

use std::borrow::Borrow;
use std::future::IntoFuture;
use std::marker::PhantomData;

use bytes::Bytes;

use crate::api::{Client, Error};
use crate::model::Revision;

use super::codec::{Codec, decode, encode};
use crate::recipes::call::Call;
use crate::recipes::{CasOutcome, Cell, CellValue, Expected};

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
pub struct TypedCell<T, C> {
    client: Client,
    key: Bytes,
    codec: C,
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
    pub(super) fn new(client: Client, key: Bytes, codec: C) -> Self {
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
        let (cell, value) = (self.cell(), encode(&self.codec, &self.key, value.borrow()));
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
    ) -> Call<'static, CasOutcome> {
        let (cell, value) = (self.cell(), encode(&self.codec, &self.key, value.borrow()));
        let expected = expected.into();
        Call::new(&self.client, move |until| async move {
            cell.compare_and_set(expected, value?).deadline(until.left()).await
        })
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
                let put = cell.compare_and_set(version, encode(&codec, &key, &value)?);
                if let CasOutcome::Done { revision } = put.deadline(until.left()).await? {
                    return Ok(TypedCellValue { value, version: revision });
                }
            }
        })
    }

    /// Waits until the version of the value differs from `from`, and returns the value; see
    /// [`Cell::changed`].
    pub fn changed(&self, from: Revision) -> Call<'static, Option<TypedCellValue<T>>> {
        let (cell, codec) = (self.cell(), self.codec.clone());
        Call::endless(&self.client, move |until| async move {
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

fn decode_cell<T>(
    codec: &impl Codec<T>,
    value: Option<CellValue>,
) -> Result<Option<TypedCellValue<T>>, Error> {
    let Some(CellValue { key, value, version }) = value else { return Ok(None) };
    Ok(Some(TypedCellValue { value: decode(codec, &key, &value)?, version }))
}
