//! [`TypedCached`]: a cached view whose rows are decoded.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;

use crate::api::{Error, timeout_option};
use crate::model::{DecodeError, Revision};

use super::keys::TypedRow;
use crate::recipes::{Cached, CachedCall, View};

/// An entry of the view: a row, or why it cannot be decoded.
pub(super) type Decoded<T> = Result<Arc<TypedRow<T>>, Box<DecodeError>>;

/// A call that creates a view; see [`Typed::cached`](super::keys::Typed::cached).
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct TypedCachedCall<T> {
    call: CachedCall<Decoded<T>>,
}

impl<T> TypedCachedCall<T> {
    pub(super) fn new(call: CachedCall<Decoded<T>>) -> Self {
        Self { call }
    }

    /// Limits how long the call may take. Default:
    /// [`Config::call_deadline`](crate::Config::call_deadline).
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.call = self.call.deadline(timeout);
        self
    }

    timeout_option!();
}

impl<T: Send + Sync + 'static> IntoFuture for TypedCachedCall<T> {
    type Output = Result<TypedCached<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(TypedCached { cached: self.call.await? }) })
    }
}

/// A view of the keys of a [`Typed`](super::keys::Typed), maintained by a watch, like [`Cached`].
/// Created by [`Typed::cached`](super::keys::Typed::cached). Cheap to clone. Keys are without the
/// prefix.
///
/// A view has no background task: rows are decoded on the thread that reads the view, each once. A
/// program that must react to changes runs a loop over [`TypedCached::changed`], or uses the view as
/// a [`Stream`].
///
/// A row that cannot be decoded does not stop the view and is not logged. [`TypedCached::get`]
/// returns an error for its key only, and [`TypedView::undecodable`] lists all such rows. A program
/// that must keep the last good value of such a row follows the rows itself, with
/// [`Typed::range`](super::keys::Typed::range) and then a
/// [watch](super::keys::Typed::watch) [after](super::watch::TypedWatchCall::after) its revision.
///
/// ```
/// # use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// let rates = kv.typed::<u32>("rates/");
/// let mut cached = rates.cached().block()?;
/// rates.put("eu", 100).block()?;
/// kv.put("rates/us", "fast").block()?; // by another program
///
/// assert_eq!(cached.get("eu")?.map(|row| row.value), Some(100));
/// assert!(cached.get("us").is_err() && cached.get("asia")?.is_none());
/// let view = cached.changed().block()?; // in a loop, in a task of its own
/// for why in view.undecodable() {
///     println!("warning: {why}");
/// }
/// assert_eq!(view.undecodable().next().unwrap().full_key(), "rates/us");
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedCached<T> {
    cached: Cached<Decoded<T>>,
}

impl<T: Send + Sync + 'static> TypedCached<T> {
    /// Returns the whole view of the local replica at one revision.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub fn view(&self) -> Result<TypedView<T>, Error> {
        Ok(TypedView { view: self.cached.view()? })
    }

    /// Returns one row of the local replica, or `None` if the key does not exist.
    ///
    /// # Errors
    /// Returns [`Error::Decode`] with the row if its value cannot be decoded, and [`Error::Stopped`]
    /// if the node has stopped.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Arc<TypedRow<T>>>, Error> {
        match self.cached.get(key)?.as_deref() {
            None => Ok(None),
            Some(Ok(row)) => Ok(Some(Arc::clone(row))),
            Some(Err(why)) => Err(Error::Decode(why.clone())),
        }
    }

    /// Returns the revision of the view. Later reads show this revision or a newer one.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub fn revision(&self) -> Result<Revision, Error> {
        self.cached.revision()
    }

    /// Waits for a change that this handle has not seen yet, and returns the new view, like
    /// [`Cached::changed`]. A change to a row that cannot be decoded counts. Cancel-safe.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub async fn changed(&mut self) -> Result<TypedView<T>, Error> {
        Ok(TypedView { view: self.cached.changed().await? })
    }

    /// Waits until the view has reached `revision`, and returns it, like [`Cached::wait_for`].
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the revision was not reached in time, and [`Error::Stopped`]
    /// if the node has stopped.
    pub async fn wait_for(&self, revision: Revision) -> Result<TypedView<T>, Error> {
        Ok(TypedView { view: self.cached.wait_for(revision).await? })
    }
}

impl<T: Send + Sync + 'static> Stream for TypedCached<T> {
    type Item = Result<TypedView<T>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let view = Pin::new(&mut self.cached).poll_next(context);
        view.map(|view| view.map(|view| view.map(|view| TypedView { view })))
    }
}

impl<T> Clone for TypedCached<T> {
    fn clone(&self) -> Self {
        Self { cached: self.cached.clone() }
    }
}

/// The rows of a [`TypedCached`] at one revision; see [`TypedCached::view`]. Immutable and cheap to
/// clone.
#[derive(Debug)]
pub struct TypedView<T> {
    view: View<Decoded<T>>,
}

impl<T> TypedView<T> {
    /// Returns the revision of the view.
    pub fn revision(&self) -> Revision {
        self.view.revision()
    }

    /// Returns one row by its key without the prefix, or `None` if the key does not exist.
    ///
    /// # Errors
    /// Returns an error with the row if its value cannot be decoded.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<&TypedRow<T>>, DecodeError> {
        let row = self.view.get(key).map(shown).transpose();
        row.map_err(DecodeError::clone)
    }

    /// Returns the number of rows, including those that cannot be decoded.
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Reports whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Returns all rows in key order. A row that cannot be decoded is an error, so
    /// `view.iter().flatten()` has the decoded rows.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let rates = kv.typed::<u32>("rates/");
    /// rates.put("asia", 300).block()?;
    /// rates.put("eu", 100).block()?;
    /// kv.put("rates/us", "fast").block()?;
    /// let view = rates.cached().block()?.view()?;
    /// assert_eq!((view.len(), view.undecodable().count()), (3, 1));
    /// assert_eq!(view.iter().flatten().map(|row| row.value).sum::<u32>(), 400);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = Result<&TypedRow<T>, &DecodeError>> + ExactSizeIterator
    {
        self.view.iter().map(|(_, row)| shown(row))
    }

    /// Returns the rows whose keys begin with `prefix`, in key order. A row that cannot be decoded is
    /// an error.
    pub fn prefix<'a>(
        &'a self,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = Result<&'a TypedRow<T>, &'a DecodeError>> {
        self.view.prefix(prefix).map(|(_, row)| shown(row))
    }

    /// Returns the rows that cannot be decoded, in key order. Visits all rows of the view.
    pub fn undecodable(&self) -> impl Iterator<Item = &DecodeError> {
        self.iter().filter_map(Result::err)
    }

    /// Returns the keys in order, including those of rows that cannot be decoded.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Bytes> + ExactSizeIterator {
        self.view.iter().map(|(key, _)| key)
    }
}

impl<T> Clone for TypedView<T> {
    fn clone(&self) -> Self {
        Self { view: self.view.clone() }
    }
}

fn shown<T>(row: &Decoded<T>) -> Result<&TypedRow<T>, &DecodeError> {
    row.as_deref().map_err(|why| &**why)
}
