//! [`Typed`]: the keys below a prefix, with values of one type.

use std::borrow::Borrow;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{
    Client, DeleteCall, Error, GetCall, PutCall, RangeCall, forwarded_options, timeout_option,
};
use crate::model::{
    DecodeError, IntoBytes, KeyRange, KeyValue, LeaseId, Op, RangeReply, Revision, RevisionBounds,
    SortOrder, SortTarget, decode_key_text,
};

use super::cached::TypedCachedCall;
use super::cell::TypedCell;
#[cfg(feature = "json")]
use super::codec::Json;
use super::codec::{Codec, RowCodec};
use super::queue::TypedQueue;
use super::watch::TypedWatchCall;
use crate::recipes::{CompareAndSet, Expected, PutIfAbsent};

/// The keys below a prefix, with values of type `T` that `C` encodes. Created by
/// `Client::typed`, with the crate feature `json`, and [`Client::typed_with`]. Cheap to clone.
///
/// With the crate feature `json`, the codec may be left out in types: `Typed<Rate>` is
/// `Typed<Rate, Json>`.
#[derive(Debug)]
pub struct Typed<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    client: Client,
    codec: RowCodec<C>,
    value: PhantomData<fn() -> T>,
}

/// A row whose value is decoded. The other fields are those of [`KeyValue`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TypedRow<T> {
    /// The key, without the prefix.
    pub key: Bytes,
    /// The value.
    pub value: T,
    /// The revision that created the key, or re-created it after a deletion.
    pub create_revision: Revision,
    /// The revision of the last put.
    pub mod_revision: Revision,
    /// Number of puts since the creation, from 1.
    pub version: u64,
    /// The lease that the key is attached to.
    pub lease: Option<LeaseId>,
}

impl<T> TypedRow<T> {
    /// Returns the key as text.
    ///
    /// # Errors
    /// If the key is not UTF-8 text, returns an error with the key. Its `value` is empty.
    pub fn key_text(&self) -> Result<&str, DecodeError> {
        decode_key_text(&self.key, &Bytes::new()).map_err(|error| error.at(self.mod_revision))
    }
}

impl Client {
    /// Returns the keys that begin with `folder`, with values of type `T` as JSON. Keys in calls and
    /// replies are without `folder`, as with [`Client::with_prefix`]. The empty text means all keys
    /// of this client. Requires the crate feature `json`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize, PartialEq, Debug)]
    /// struct Rate {
    ///     per_second: u32,
    /// }
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let kv = node.client();
    /// let rates = kv.typed::<Rate>("rates/");
    /// rates.put("eu", Rate { per_second: 100 }).block()?;
    /// assert_eq!(rates.get("eu").block()?.unwrap().value.per_second, 100);
    /// assert_eq!(kv.get("rates/eu").block()?.unwrap().value, r#"{"per_second":100}"#);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "json")]
    pub fn typed<T>(&self, folder: impl IntoBytes) -> Typed<T, Json>
    where
        Json: Codec<T>,
    {
        self.typed_with(folder, Json)
    }

    /// Returns the keys that begin with `folder`, with values that `codec` encodes. Keys in calls and
    /// replies are without `folder`, as with [`Client::with_prefix`].
    pub fn typed_with<T, C: Codec<T>>(&self, folder: impl IntoBytes, codec: C) -> Typed<T, C> {
        let client = self.with_prefix(folder);
        Typed { codec: RowCodec::new(&client, codec), client, value: PhantomData }
    }
}

impl<T, C: Codec<T>> Typed<T, C> {
    /// Writes a value, by reference or owned. The options are those of [`Client::put`].
    ///
    /// If the value cannot be encoded, the call fails with [`Error::Encode`].
    pub fn put(&self, key: impl IntoBytes, value: impl Borrow<T>) -> PutCall {
        let key = key.into_bytes();
        match self.encode(&key, value.borrow()) {
            Ok(value) => self.client.put(key, value),
            Err(error) => PutCall::failed(self.client.clone(), error),
        }
    }

    /// Reads one key. If its value cannot be decoded, the call fails with [`Error::Decode`].
    pub fn get(&self, key: impl IntoBytes) -> TypedGetCall<T, C> {
        TypedGetCall { call: self.client.get(key), codec: self.codec.clone(), value: PhantomData }
    }

    /// Writes a value, by reference or owned, if the key does not exist, like
    /// [`Client::put_if_absent`]. If the value cannot be encoded, the call fails with
    /// [`Error::Encode`].
    pub fn put_if_absent(&self, key: impl IntoBytes, value: impl Borrow<T>) -> PutIfAbsent {
        let key = key.into_bytes();
        let value = self.encode(&key, value.borrow());
        PutIfAbsent::new(&self.client, key, value)
    }

    /// Writes a value, by reference or owned, if the key is in the expected state, like
    /// [`Client::compare_and_set`]. If the value cannot be encoded, the call fails with
    /// [`Error::Encode`]. [`Typed::decode`] decodes the row in [`CasOutcome::Lost`].
    ///
    /// Compare revisions rather than values: one value may have several encodings.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use bowline::coordination::CasOutcome;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let rates = node.client().typed::<u32>("rates/");
    /// let seen = rates.put("eu", 100).block()?.revision;
    /// assert!(rates.compare_and_set("eu", seen, 200).block()?.is_done());
    /// match rates.compare_and_set("eu", seen, 300).block()? {
    ///     CasOutcome::Lost { row: Some(row) } => assert_eq!(rates.decode(&row)?.value, 200),
    ///     other => panic!("{other:?}"),
    /// }
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`CasOutcome::Lost`]: crate::coordination::CasOutcome::Lost
    pub fn compare_and_set(
        &self,
        key: impl IntoBytes,
        expected: impl Into<Expected>,
        value: impl Borrow<T>,
    ) -> CompareAndSet {
        let key = key.into_bytes();
        let value = self.encode(&key, value.borrow());
        CompareAndSet::new(&self.client, key, expected.into(), value)
    }

    /// Reads a range of keys: `..` for all. Default: in key order. Each row that cannot be decoded is
    /// an error in the reply. To read only the keys or their number, call
    /// [`Client::range`] on [`Typed::client`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use bowline::{SortOrder, SortTarget};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let rates = node.client().typed::<u32>("rates/");
    /// for (site, rate) in [("eu", 100), ("us", 200), ("asia", 300)] {
    ///     rates.put(site, rate).block()?;
    /// }
    /// let newest = rates.range(..).sort(SortTarget::Mod, SortOrder::Descend).limit(1).block()?;
    /// assert_eq!((newest.more, newest.count), (true, 3));
    /// for row in newest {
    ///     assert_eq!(row?.key, "asia");
    /// }
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// To read a large range in pages at one revision:
    ///
    /// ```
    /// # use bowline::{Blocking, Config, KeyRange, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let rates = node.client().typed::<u32>("rates/");
    /// # for (site, rate) in [("eu", 100), ("us", 200), ("asia", 300)] {
    /// #     rates.put(site, rate).block()?;
    /// # }
    /// let mut page = rates.range(..).limit(2).skip_count().block()?;
    /// let (revision, mut sum) = (page.revision, 0);
    /// loop {
    ///     sum += page.iter().flatten().map(|row| row.value).sum::<u32>();
    ///     let Some(last) = page.last_key().filter(|_| page.more) else { break };
    ///     let rest = KeyRange::all().after(last);
    ///     page = rates.range(rest).limit(2).skip_count().revision(revision).block()?;
    /// }
    /// assert_eq!(sum, 600);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range(&self, keys: impl Into<KeyRange>) -> TypedRangeCall<T, C> {
        let call = self.client.range(keys);
        TypedRangeCall { call, codec: self.codec.clone(), value: PhantomData }
    }

    /// Deletes a range of keys, like [`Client::delete`].
    pub fn delete(&self, keys: impl Into<KeyRange>) -> DeleteCall {
        self.client.delete(keys)
    }

    /// Watches a range of keys: `..` for all.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// use bowline::typed::TypedEvent;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let rates = kv.typed::<u32>("rates/");
    /// let mut changes = rates.watch(..).block()?;
    /// rates.put("eu", 100).block()?;
    /// kv.put("rates/us", "fast").block()?; // by another program
    /// rates.delete("eu").block()?;
    ///
    /// let mut seen = Vec::new();
    /// while seen.len() < 3 {
    ///     for event in changes.next().block().unwrap()?.events {
    ///         seen.push(match event {
    ///             Ok(TypedEvent::Put(row)) => format!("{:?} is {}", row.key, row.value),
    ///             Ok(TypedEvent::Delete { key, .. }) => format!("{key:?} is deleted"),
    ///             Err(why) => format!("{:?} has {:?}", why.key, why.value),
    ///         });
    ///     }
    /// }
    /// assert_eq!(seen, [r#"b"eu" is 100"#, r#"b"us" has b"fast""#, r#"b"eu" is deleted"#]);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(&self, keys: impl Into<KeyRange>) -> TypedWatchCall<T, C> {
        TypedWatchCall::new(self.client.watch(keys), self.codec.clone())
    }

    /// Returns a cached view of all keys, like [`Client::cached_prefix`]. Each row is decoded once,
    /// by the first read of the view after the row has changed. A row that cannot be decoded does not
    /// stop the view and is not logged: see [`TypedCached`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let rates = kv.typed::<u32>("rates/");
    /// rates.put("eu", 100).block()?;
    /// kv.put("rates/us", "fast").block()?;
    /// let view = rates.cached().block()?.view()?;
    /// assert_eq!(view.get("eu")?.map(|row| row.value), Some(100));
    /// assert_eq!(view.get("us").unwrap_err().value, "fast");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`TypedCached`]: super::cached::TypedCached
    pub fn cached(&self) -> TypedCachedCall<T> {
        let codec = self.codec.clone();
        let decode = move |row: &KeyValue| match codec.decode_row(row) {
            Ok(row) => Ok(Arc::new(row)),
            Err(why) => Err(Box::new(why)),
        };
        TypedCachedCall::new(self.client.cached_prefix_with("", decode))
    }

    /// Returns the cell in the key `name`, like [`Client::cell`].
    pub fn cell(&self, name: impl IntoBytes) -> TypedCell<T, C> {
        TypedCell::new(self.client.clone(), name.into_bytes(), self.codec.clone())
    }

    /// Returns the queue with this name, like [`Client::queue`].
    pub fn queue(&self, name: impl IntoBytes) -> TypedQueue<T, C> {
        TypedQueue::new(self.client.queue(name), self.codec.codec.clone())
    }

    /// Returns the client for the same keys with values as bytes, for calls that have no typed form.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Encodes a value, for calls that have no typed form, such as transactions. `key` is only for
    /// the error, which names it with the prefix.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let rates = node.client().typed::<u32>("rates/");
    /// let put = Op::put("eu", rates.encode("eu", &100)?);
    /// assert!(rates.client().txn().then(put).commit().block()?.succeeded);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Encode`] if the value cannot be encoded.
    pub fn encode(&self, key: impl IntoBytes, value: &T) -> Result<Bytes, Error> {
        self.codec.encode(&key.into_bytes(), value)
    }

    /// Returns the operation that writes a value, by its complete key, for example to write the
    /// result of a job together with its acknowledgement:
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let (kv, jobs) = (node.client(), node.session().block()?.queue("jobs"));
    /// # jobs.put("width of 1.png").block()?;
    /// let widths = kv.typed::<u32>("widths/");
    /// let job = jobs.take().block()?;
    /// job.ack_with([widths.put_op("1.png", &640)?]).block()?; // both, or nothing
    /// assert_eq!(widths.get("1.png").block()?.unwrap().value, 640);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The key includes the prefix of this handle and that of its client: see
    /// [`Client::with_prefix`]. For a transaction of [`Typed::client`], or
    /// [`Hold::txn_for`](crate::lock::Hold::txn_for) with that client, use [`Typed::encode`] with
    /// `Op::put` and the key as in all other calls of this handle.
    ///
    /// # Errors
    /// Returns [`Error::Encode`] if the value cannot be encoded.
    pub fn put_op(&self, key: impl IntoBytes, value: &T) -> Result<Op, Error> {
        let key = key.into_bytes();
        let value = self.encode(&key, value)?;
        Ok(Op::put(self.client.scope.key(key), value))
    }

    /// Decodes a row that was read with [`Typed::client`].
    ///
    /// # Errors
    /// Returns an error with the row if its value cannot be decoded.
    pub fn decode(&self, row: &KeyValue) -> Result<TypedRow<T>, DecodeError> {
        self.codec.decode_row(row)
    }
}

impl<T, C: Clone> Clone for Typed<T, C> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), codec: self.codec.clone(), value: PhantomData }
    }
}

/// A call that reads one key; see [`Typed::get`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct TypedGetCall<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    call: GetCall,
    codec: RowCodec<C>,
    value: PhantomData<fn() -> T>,
}

impl<T, C> TypedGetCall<T, C> {
    forwarded_options! { call:
        /// Reads the key at an earlier revision, like [`GetCall::revision`].
        pub fn revision(revision: Revision);

        /// Reads the local replica without contacting the leader; see [`GetCall::local`].
        pub fn local();

        /// Reads the local replica once it has reached `revision`, without contacting the leader.
        pub fn at_least(revision: Revision);

        /// Limits how long the call may take. Default:
        /// [`Config::call_deadline`](crate::Config::call_deadline).
        pub fn deadline(timeout: Duration);
    }

    timeout_option!();
}

impl<T: 'static, C: Codec<T>> IntoFuture for TypedGetCall<T, C> {
    type Output = Result<Option<TypedRow<T>>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Some(row) = self.call.await? else { return Ok(None) };
            Ok(Some(self.codec.decode_row(&row)?))
        })
    }
}

/// A call that reads a range of keys; see [`Typed::range`].
#[derive(Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct TypedRangeCall<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    call: RangeCall,
    codec: RowCodec<C>,
    value: PhantomData<fn() -> T>,
}

impl<T, C> TypedRangeCall<T, C> {
    forwarded_options! { call:
        /// Returns at most `rows` rows. The reply's `more` is set if the range has more rows.
        pub fn limit(rows: u64);

        /// Reads the keys at an earlier revision.
        pub fn revision(revision: Revision);

        /// Sorts the rows. Default: by key, ascending. [`SortTarget::Value`] compares encoded values.
        pub fn sort(target: SortTarget, order: SortOrder);

        /// Stops scanning at the limit, like [`RangeCall::skip_count`]. The reply's `count` then covers
        /// only the scanned rows. Use this option to read a large range in pages.
        pub fn skip_count();

        /// Returns only as many rows as fit into `bytes`, but at least one, like
        /// [`RangeCall::limit_bytes`]. The size of a row is that of its encoded value.
        pub fn limit_bytes(bytes: u64);

        /// Returns only rows whose revisions are within `bounds`.
        pub fn bounds(bounds: RevisionBounds);

        /// Reads the local replica without contacting the leader; see [`RangeCall::local`].
        pub fn local();

        /// Reads the local replica once it has reached `revision`, without contacting the leader.
        pub fn at_least(revision: Revision);

        /// Limits how long the call may take. Default:
        /// [`Config::call_deadline`](crate::Config::call_deadline).
        pub fn deadline(timeout: Duration);
    }

    timeout_option!();
}

impl<T: 'static, C: Codec<T>> IntoFuture for TypedRangeCall<T, C> {
    type Output = Result<TypedRange<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { call, codec, .. } = self;
        Box::pin(async move {
            let RangeReply { revision, kvs, more, count } = call.await?;
            let rows = kvs.iter().map(|row| codec.decode_row(row)).collect();
            Ok(TypedRange { revision, rows, more, count })
        })
    }
}

/// The rows of a range; see [`Typed::range`]. This type dereferences to a slice of its rows, and
/// can be iterated over.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TypedRange<T> {
    /// The store's revision when the range was read. The revision that the request asked for may be
    /// an older one.
    pub revision: Revision,
    /// The rows. A row that cannot be decoded is an error.
    pub rows: Vec<Result<TypedRow<T>, DecodeError>>,
    /// Whether the range contains more rows than the limit allowed.
    pub more: bool,
    /// Number of keys in the range at the requested revision, regardless of limit and bounds. After
    /// [`TypedRangeCall::skip_count`], only the rows that were visited are counted.
    pub count: u64,
}

impl<T> TypedRange<T> {
    /// Returns the key of the last row, also if the row cannot be decoded. To read the next page,
    /// pass it to [`KeyRange::after`].
    pub fn last_key(&self) -> Option<&Bytes> {
        self.rows.last().map(|row| match row {
            Ok(row) => &row.key,
            Err(why) => &why.key,
        })
    }
}

impl<T> Deref for TypedRange<T> {
    type Target = [Result<TypedRow<T>, DecodeError>];

    fn deref(&self) -> &Self::Target {
        &self.rows
    }
}

impl<T> IntoIterator for TypedRange<T> {
    type Item = Result<TypedRow<T>, DecodeError>;
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a TypedRange<T> {
    type Item = &'a Result<TypedRow<T>, DecodeError>;
    type IntoIter = std::slice::Iter<'a, Result<TypedRow<T>, DecodeError>>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}
