//! [`TypedWatch`]: a watch whose rows are decoded.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;

use crate::api::{Error, Watch, WatchCall, forwarded_options, timeout_option};
use crate::model::{DecodeError, Event, EventKind, Revision, decode_key_text};
use crate::watch::{Filter, WatchBatch, WatchError};

#[cfg(feature = "json")]
use super::codec::Json;
use super::codec::{Codec, RowCodec};
use super::keys::TypedRow;

/// A call that starts a watch; see [`Typed::watch`](super::keys::Typed::watch).
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct TypedWatchCall<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    call: WatchCall,
    codec: RowCodec<C>,
    value: PhantomData<fn() -> T>,
}

impl<T, C> TypedWatchCall<T, C> {
    pub(super) fn new(call: WatchCall, codec: RowCodec<C>) -> Self {
        Self { call, codec, value: PhantomData }
    }

    forwarded_options! { call:
        /// Starts the watch at `revision`, like [`WatchCall::from`].
        pub fn from(revision: Revision);

        /// Starts the watch after `revision`, like [`WatchCall::after`].
        pub fn after(revision: Revision);

        /// Excludes some kinds of events, like [`WatchCall::filter`].
        pub fn filter(filter: Filter);

        /// Limits the wait for the start of the watch, like [`WatchCall::deadline`].
        pub fn deadline(timeout: Duration);
    }

    timeout_option!();
}

impl<T: 'static, C: Codec<T>> IntoFuture for TypedWatchCall<T, C> {
    type Output = Result<TypedWatch<T, C>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { call, codec, value } = self;
        Box::pin(async move { Ok(TypedWatch { watch: call.await?, codec, value }) })
    }
}

/// A stream of changes to a range of keys, like [`Watch`]. A row that cannot be decoded is an error
/// in its batch, and the stream continues. Also a [`Stream`].
#[derive(Debug)]
pub struct TypedWatch<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    watch: Watch,
    codec: RowCodec<C>,
    value: PhantomData<fn() -> T>,
}

/// The changes of one revision, or of several.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TypedBatch<T> {
    /// The changes, in the order of the log. A row that cannot be decoded is an error.
    pub events: Vec<Result<TypedEvent<T>, DecodeError>>,
    /// The revision up to which all changes have been delivered with this batch.
    pub revision: Revision,
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TypedEvent<T> {
    /// The key was created or overwritten.
    Put(TypedRow<T>),
    /// The key was deleted, by a request or by the end of its lease.
    Delete {
        /// The key, without the prefix.
        key: Bytes,
        /// The revision of the deletion.
        revision: Revision,
    },
}

impl<T> TypedEvent<T> {
    /// Returns the key, without the prefix.
    pub fn key(&self) -> &Bytes {
        match self {
            TypedEvent::Put(row) => &row.key,
            TypedEvent::Delete { key, .. } => key,
        }
    }

    /// Returns the key as text.
    ///
    /// # Errors
    /// If the key is not UTF-8 text, returns an error with the key. Its `value` is empty.
    pub fn key_text(&self) -> Result<&str, DecodeError> {
        decode_key_text(self.key(), &Bytes::new())
    }
}

impl<T, C: Codec<T>> TypedWatch<T, C> {
    /// Waits for the next batch of changes, like [`Watch::next`]. Cancel-safe.
    ///
    /// # Errors
    /// See [`WatchError`]. The watch ends with the error.
    pub async fn next(&mut self) -> Option<Result<TypedBatch<T>, WatchError>> {
        let batch = self.watch.next().await?;
        Some(batch.map(|batch| decode_batch(&self.codec, batch)))
    }

    /// Returns the revision at which the watch was created, like [`Watch::created_at`].
    pub fn created_at(&self) -> Revision {
        self.watch.created_at()
    }
}

impl<T, C: Codec<T> + Unpin> Stream for TypedWatch<T, C> {
    type Item = Result<TypedBatch<T>, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let batch = Pin::new(&mut this.watch).poll_next(context);
        batch.map(|batch| batch.map(|batch| batch.map(|batch| decode_batch(&this.codec, batch))))
    }
}

fn decode_batch<T, C: Codec<T>>(codec: &RowCodec<C>, batch: WatchBatch) -> TypedBatch<T> {
    let decode = |event: &Event| match event.kind {
        EventKind::Put => codec.decode_row(&event.kv).map(TypedEvent::Put),
        EventKind::Delete => {
            Ok(TypedEvent::Delete { key: event.kv.key.clone(), revision: event.revision() })
        }
    };
    TypedBatch { events: batch.events.iter().map(decode).collect(), revision: batch.revision }
}
