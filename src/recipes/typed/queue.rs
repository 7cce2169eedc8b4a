//! [`TypedQueue`] and [`TypedTaker`]: a queue whose items are encoded and decoded.

use std::borrow::Borrow;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Error, Session, timeout_option};
use crate::model::{DecodeError, Op};

#[cfg(feature = "json")]
use super::codec::Json;
use super::codec::{Codec, decode, encode};
use crate::recipes::{
    Delivery, PutItem, PutMany, Queue, QueueError, QueueTaker, QueuedItem, TakeCall,
};

/// A handle to put values into a queue. Created by [`Queue::typed_with`],
/// [`Typed::queue`](super::keys::Typed::queue) and, with the crate feature `json`, `Queue::typed`.
/// Also has the methods of [`Queue`], for values as bytes.
///
/// ```
/// # use bowline::{Blocking, Config, Node};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Mail {
///     to: String,
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// let mails = node.client().queue("mails").typed::<Mail>();
/// mails.put(Mail { to: "ann".to_owned() }).priority(-1).block()?;
/// # node.client().queue("mails").put("not JSON").block()?;
///
/// let taker = mails.taker(&node.session().block()?);
/// while let Some(job) = taker.try_take().block()? {
///     match job.value {
///         Ok(mail) => {
///             println!("send to {}", mail.to);
///             job.delivery.ack().block()?;
///         }
///         Err(why) => job.delivery.dead_letter(why.to_string()).block()?,
///     }
/// }
/// assert_eq!(mails.dead_letters().len().block()?, 1);
/// # node.shutdown().block();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedQueue<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    queue: Queue,
    codec: C,
    value: PhantomData<fn() -> T>,
}

impl Queue {
    /// Returns this queue with items of type `T` as JSON, like `kv.typed::<T>("").queue(name)`.
    /// Requires the crate feature `json`.
    #[cfg(feature = "json")]
    pub fn typed<T>(&self) -> TypedQueue<T, Json>
    where
        Json: Codec<T>,
    {
        self.typed_with(Json)
    }

    /// Returns this queue with items that `codec` encodes.
    pub fn typed_with<T, C: Codec<T>>(&self, codec: C) -> TypedQueue<T, C> {
        TypedQueue::new(self.clone(), codec)
    }
}

impl<T, C: Codec<T>> TypedQueue<T, C> {
    pub(super) fn new(queue: Queue, codec: C) -> Self {
        Self { queue, codec, value: PhantomData }
    }

    /// Puts an item at the end of the queue; see [`Queue::put`]. If the value cannot be encoded, the
    /// call fails with [`Error::Encode`].
    pub fn put(&self, value: impl Borrow<T>) -> PutItem {
        PutItem::new(&self.queue, self.encode(value.borrow()))
    }

    /// Puts several items at the end of the queue in one transaction; see [`Queue::put_many`]. If a
    /// value cannot be encoded, the call fails with [`Error::Encode`] and puts no item.
    pub fn put_many(&self, values: impl IntoIterator<Item = impl Borrow<T>>) -> PutMany {
        let encoded = values.into_iter().map(|value| self.encode(value.borrow()));
        PutMany::new(&self.queue, encoded.collect())
    }

    /// Returns a handle that limits the length of the queue; see [`Queue::limit`].
    #[must_use]
    pub fn limit(&self, items: u64) -> Self {
        Self::new(self.queue.limit(items), self.codec.clone())
    }

    /// Returns all items in the order in which they will be taken, with decoded values; see
    /// [`Queue::items`]. An item that cannot be decoded is in the list too.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn items(&self) -> Result<Vec<TypedQueuedItem<T>>, Error> {
        let items = self.queue.items().await?.into_iter();
        Ok(items.map(|item| TypedQueuedItem::new(&self.codec, item)).collect())
    }

    /// Returns the dead-letter queue, with values of the same type; see [`Queue::dead_letters`]. To
    /// put a dead letter back into this queue, see [`Queue::requeue`].
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let session = node.session().block()?;
    /// let pages = node.client().queue("pages").typed::<u32>();
    /// for page in [7, 8] {
    ///     pages.put(page).block()?;
    ///     pages.taker(&session).take().block()?.delivery.dead_letter("no paper").block()?;
    /// }
    /// for letter in pages.dead_letters().items().block()? {
    ///     if letter.value == Ok(8) {
    ///         assert!(pages.requeue(&letter.id).block()?);
    ///     }
    /// }
    /// assert_eq!(pages.items().block()?[0].value, Ok(8));
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dead_letters(&self) -> Self {
        Self::new(self.queue.dead_letters(), self.codec.clone())
    }

    /// Returns the operation that puts an item, for use in your own transaction; see [`Queue::put_op`].
    /// The key is complete: if the client of the transaction has a
    /// [prefix](crate::Client::with_prefix), use [`TxnCall::then_complete`](crate::TxnCall::then_complete).
    ///
    /// # Errors
    /// Returns [`Error::Encode`] if the value cannot be encoded.
    pub fn put_op(&self, value: &T, priority: i16) -> Result<Op, Error> {
        Ok(self.queue.put_op(self.encode(value)?, priority))
    }

    /// Returns a handle to take items; see [`Session::queue`]. Create it once and clone it.
    pub fn taker(&self, session: &Session) -> TypedTaker<T, C> {
        let taker = session.queue(self.queue.name());
        TypedTaker { taker, codec: self.codec.clone(), value: PhantomData }
    }

    pub(super) fn codec(&self) -> &C {
        &self.codec
    }

    fn encode(&self, value: &T) -> Result<Bytes, Error> {
        encode(&self.codec, self.queue.name(), value)
    }
}

impl<T, C: Clone> Clone for TypedQueue<T, C> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), codec: self.codec.clone(), value: PhantomData }
    }
}

impl<T, C> Deref for TypedQueue<T, C> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.queue
    }
}

/// A handle to take values from a queue, like [`QueueTaker`]. Created by [`TypedQueue::taker`].
#[derive(Debug)]
pub struct TypedTaker<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    taker: QueueTaker,
    codec: C,
    value: PhantomData<fn() -> T>,
}

impl<T, C: Codec<T>> TypedTaker<T, C> {
    /// Returns a handle that limits delivery attempts; see [`QueueTaker::attempts_max`].
    #[must_use]
    pub fn attempts_max(&self, attempts: u64) -> Self {
        Self { taker: self.taker.attempts_max(attempts), ..self.clone() }
    }

    /// Waits for an item and takes it; see [`QueueTaker::take`].
    pub fn take(&self) -> TypedTakeCall<T, C> {
        let (call, codec) = (self.taker.take(), self.codec.clone());
        TypedTakeCall { call, codec, value: PhantomData }
    }

    /// Takes an available item, without waiting for later puts; see [`QueueTaker::try_take`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn try_take(&self) -> Result<Option<TypedDelivery<T>>, QueueError> {
        let delivery = self.taker.try_take().await?;
        Ok(delivery.map(|delivery| TypedDelivery::new(&self.codec, delivery)))
    }
}

impl<T, C: Clone> Clone for TypedTaker<T, C> {
    fn clone(&self) -> Self {
        Self { taker: self.taker.clone(), codec: self.codec.clone(), value: PhantomData }
    }
}

/// A call that waits for an item; see [`TypedTaker::take`].
#[derive(Debug)]
#[must_use = "nothing is taken until this is awaited"]
pub struct TypedTakeCall<T, #[cfg(feature = "json")] C = Json, #[cfg(not(feature = "json"))] C> {
    call: TakeCall,
    codec: C,
    value: PhantomData<fn() -> T>,
}

impl<T, C> TypedTakeCall<T, C> {
    /// Limits the wait; see [`TakeCall::deadline`].
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.call = self.call.deadline(timeout);
        self
    }

    timeout_option!();
}

impl<T: 'static, C: Codec<T>> IntoFuture for TypedTakeCall<T, C> {
    type Output = Result<TypedDelivery<T>, QueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { call, codec, .. } = self;
        Box::pin(async move { Ok(TypedDelivery::new(&codec, call.await?)) })
    }
}

/// A taken item: its value, and the [`Delivery`] with which it is acknowledged.
///
/// An item that cannot be decoded is delivered as well. Move it to the dead-letter queue with
/// [`Delivery::dead_letter`]. If it is only dropped, it is delivered again and again.
#[derive(Debug)]
#[must_use = "the item is released when this is dropped"]
#[non_exhaustive]
pub struct TypedDelivery<T> {
    /// The value, or an error with the key and the bytes of the item.
    pub value: Result<T, DecodeError>,
    /// The claim of the item.
    pub delivery: Delivery,
}

impl<T> TypedDelivery<T> {
    fn new(codec: &impl Codec<T>, delivery: Delivery) -> Self {
        Self { value: decode(codec, &delivery.key(), delivery.value()), delivery }
    }
}

/// An item of a typed queue, as returned by [`TypedQueue::items`]. Dereferences to the
/// [`QueuedItem`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TypedQueuedItem<T> {
    /// The value, or an error with the key and the bytes of the item.
    pub value: Result<T, DecodeError>,
    /// The item with its value as bytes: its id, its state, and why it is a dead letter.
    pub item: QueuedItem,
}

impl<T> TypedQueuedItem<T> {
    fn new(codec: &impl Codec<T>, item: QueuedItem) -> Self {
        Self { value: decode(codec, item.key(), &item.value), item }
    }
}

impl<T> Deref for TypedQueuedItem<T> {
    type Target = QueuedItem;

    fn deref(&self) -> &QueuedItem {
        &self.item
    }
}
