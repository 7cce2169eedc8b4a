//! [`Queue`]: puts items into a queue, and inspects it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{
    Client, Effect, Error, Granted, awaited, deadline_option, forwarded_options, timeout_option,
};
use crate::model::{
    Command, IntoBytes, LeaseId, Op, Put, PutLease, Range, Rejection, Revision, Txn, TxnResult,
    readable,
};
use crate::node::ReplyTo;
use crate::recipes::call::Until;

use super::index::{item_id, priority};
use super::{DeadLetter, ItemId, KeyPart, QueueError, QueueKeys};

impl Client {
    /// Returns the queue with this name, to put items. Each item is delivered to one taker. If that
    /// taker fails, the item is delivered to another taker. To take items, see
    /// [`Session::queue`](crate::Session::queue). The queue uses the keys below `name/`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let jobs = node.client().queue("jobs");
    /// jobs.put("resize 1.png").block()?;
    /// jobs.put("page 1 is slow").priority(-10).block()?;
    /// jobs.put("tidy up").delay(Duration::from_secs(3600)).block()?;
    /// jobs.put_many(["resize 2.png", "resize 3.png"]).block()?;
    /// assert_eq!(jobs.len().block()?, 5);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn queue(&self, name: impl IntoBytes) -> Queue {
        let keys = QueueKeys { name: name.into_bytes() };
        let name = self.scope.key(keys.name.clone());
        Queue { client: self.clone(), keys, name, limit: None }
    }
}

/// A handle to put items into a queue. Created by [`Client::queue`]; cheap to clone.
///
/// A put is applied once, however often this node has to send it. Once the call has returned, the
/// item is in the queue and survives crashes of a minority of the members. After an error with
/// unknown effect, the item may be in the queue once. If a put must be safe to repeat after such an
/// error, or after a crash of the program, put the item in your own transaction with your own
/// condition: [`Queue::put_op`].
#[derive(Clone, Debug)]
pub struct Queue {
    pub(super) client: Client,
    pub(super) keys: QueueKeys,
    /// Name including the prefix of the client.
    name: Bytes,
    limit: Option<u64>,
}

impl Queue {
    /// Returns a handle that limits the length of the queue: puts that would exceed it fail with
    /// [`QueueError::Full`]. Delayed and taken items also count towards the limit.
    ///
    /// The limit is checked against the local replica before the put. Concurrent puts may exceed
    /// the limit by the number of items that they put. The limit applies only to this handle. Each
    /// put counts all keys of the queue, so use this option only for limits up to some thousands.
    #[must_use]
    pub fn limit(&self, items: u64) -> Self {
        Self { limit: Some(items), ..self.clone() }
    }

    /// Returns the full name, including the [prefix](Client::with_prefix) of its client. Pass it to
    /// [`Session::queue`](crate::Session::queue) to take from this queue.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Puts an item at the end of the queue.
    #[doc(alias = "push", alias = "send")]
    pub fn put(&self, value: impl IntoBytes) -> PutItem {
        PutItem { many: self.put_many([value]) }
    }

    /// Puts several items at the end of the queue in one transaction, in order and without other
    /// items in between. At most [`Limits::txn_ops_max`](crate::Limits::txn_ops_max) items, or half
    /// of that with a delay; more fail with [`QueueError::TooManyItems`].
    pub fn put_many(&self, values: impl IntoIterator<Item = impl IntoBytes>) -> PutMany {
        PutMany::new(self, Ok(values.into_iter().map(IntoBytes::into_bytes).collect()))
    }

    /// Returns the operation that puts an item, for use in your own transaction: with a condition
    /// that makes it safe to repeat, or with [`Delivery::ack_with`](super::Delivery::ack_with),
    /// which moves an item from queue to queue without losing or duplicating it. The limit of the
    /// queue is not checked. Use the operation in only one transaction, because it always puts the
    /// item with the same id. So a handler that is retried calls this method in every attempt.
    ///
    /// The key is complete: if the client of the transaction has a
    /// [prefix](Client::with_prefix), use [`TxnCall::then_complete`](crate::TxnCall::then_complete).
    ///
    /// ```
    /// # use bowline::{Blocking, Compare, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let jobs = kv.queue("jobs");
    /// for _ in 0..2 {
    ///     let once = kv.txn().when(Compare::missing("orders/42/queued"));
    ///     let once = once.then(Op::put("orders/42/queued", "")).then(jobs.put_op("pack 42", 0));
    ///     once.commit().block()?;
    /// }
    /// assert_eq!(jobs.len().block()?, 1);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_op(&self, value: impl IntoBytes, priority: i16) -> Op {
        let id = item_id(priority, self.client.shared.env.entropy.next_u64(), 0);
        Op::put(self.client.scope.key(self.keys.key(KeyPart::Item, &id)), value)
    }

    /// Returns the number of items, including delayed and taken items. The read is linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn len(&self) -> Result<u64, Error> {
        Ok(self.client.range(self.keys.part(KeyPart::Item)).count_only().await?.count)
    }

    /// Reports whether the queue has no items, with a linearizable read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// Returns all items in the order in which they will be taken, at one revision. The read is
    /// linearizable. This method reads the whole queue, so use it only for inspection and tests.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn items(&self) -> Result<Vec<QueuedItem>, Error> {
        let mut txn = self.client.txn();
        for part in [KeyPart::Item, KeyPart::Delay, KeyPart::Claim, KeyPart::Reason] {
            txn = txn.then(Range::new(self.keys.part(part)));
        }
        let mut rows = txn.commit().await?.results.into_iter().map(|result| match result {
            TxnResult::Range(range) => range.kvs,
            other => unreachable!("unexpected reply to a range: {other:?}"),
        });
        let mut next = || rows.next().expect("four ranges were read");
        let (items, delays, claims, reasons) = (next(), next(), next(), next());
        let ids = |rows: Vec<crate::model::KeyValue>| {
            let keyed =
                |row: crate::model::KeyValue| Some((self.keys.parse(&row.key)?.1, row.lease));
            rows.into_iter().filter_map(keyed).collect::<std::collections::BTreeMap<_, _>>()
        };
        let (delays, claims) = (ids(delays), ids(claims));
        let letter = |row: crate::model::KeyValue| {
            Some((self.keys.parse(&row.key)?.1, DeadLetter::parse(&row.value)?))
        };
        let mut letters: std::collections::BTreeMap<Bytes, DeadLetter> =
            reasons.into_iter().filter_map(letter).collect();
        let mut items: Vec<QueuedItem> = items
            .into_iter()
            .filter_map(|row| {
                let (_, id) = self.keys.parse(&row.key)?;
                let state = match claims.get(&id) {
                    Some(by) => ItemState::Taken { by: *by },
                    None if delays.contains_key(&id) => ItemState::Delayed,
                    None => ItemState::Free,
                };
                Some(QueuedItem {
                    key: row.key,
                    priority: priority(&id),
                    put_at: row.create_revision,
                    attempts: row.version - 1,
                    dead_letter: letters.remove(&id),
                    id: ItemId(id),
                    value: row.value,
                    state,
                })
            })
            .collect();
        items.sort_by(|a, b| (a.priority, a.put_at, &a.id).cmp(&(b.priority, b.put_at, &b.id)));
        Ok(items)
    }

    /// Returns the dead-letter queue, which contains the items that were taken too often
    /// ([`QueueTaker::attempts_max`](super::QueueTaker::attempts_max)), and those that a taker moved
    /// there ([`Delivery::dead_letter`](super::Delivery::dead_letter)).
    /// [`QueuedItem::dead_letter`] is the reason. To put a dead letter back into this queue, see
    /// [`Queue::requeue`]. To take from the dead-letter queue, pass its [`name`](Queue::name) to
    /// [`Session::queue`](crate::Session::queue).
    #[doc(alias = "dead")]
    pub fn dead_letters(&self) -> Queue {
        self.client.queue(self.keys.dead().name)
    }

    /// Returns the queue into which requeued dead letters are put, with the limit of this handle.
    pub(super) fn requeue_target(&self) -> Queue {
        match self.keys.parent() {
            Some(name) => Queue { limit: self.limit, ..self.client.queue(name) },
            None => self.clone(),
        }
    }

    pub(super) fn check(&self) -> Result<(), QueueError> {
        if self.keys.name.is_empty() { Err(QueueError::EmptyName) } else { Ok(()) }
    }

    /// Checks that one transaction can put all items. A delay is an operation of its own.
    fn check_count(&self, items: usize, is_delayed: bool) -> Result<(), QueueError> {
        let ops_max = self.client.shared.settings.limits.txn_ops_max;
        let max = ops_max / if is_delayed { 2 } else { 1 };
        match items > max {
            true => Err(QueueError::TooManyItems { items, max, is_delayed }),
            false => Ok(()),
        }
    }

    /// Checks that the limit allows `more` additional items.
    pub(super) async fn check_room(&self, more: usize) -> Result<(), QueueError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let count = self.client.range(self.keys.part(KeyPart::Item)).count_only().local();
        if count.await?.count.saturating_add(more as u64) > limit {
            return Err(QueueError::Full { limit });
        }
        Ok(())
    }
}

/// An item of a queue, as returned by [`Queue::items`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct QueuedItem {
    /// The key, for errors about the value. Older versions did not serialize it.
    #[cfg_attr(feature = "serde", serde(default, with = "crate::model::serialize"))]
    key: Bytes,
    /// Id of the item.
    pub id: ItemId,
    /// Value of the item.
    #[cfg_attr(feature = "serde", serde(with = "crate::model::serialize"))]
    pub value: Bytes,
    /// Priority. Lower numbers are taken first.
    pub priority: i16,
    /// Revision of the put, which decides the order among items of the same priority. For a dead
    /// letter: the revision of its move.
    pub put_at: Revision,
    /// How often the item was taken from the listed queue. For an item of a dead-letter
    /// queue, this counts deliveries to takers of the dead-letter queue, so it is usually 0. How
    /// often the item had been taken before it became a dead letter is in
    /// [`DeadLetter::attempts`].
    pub attempts: u64,
    /// For an item of a dead-letter queue: why it is there. `None` if an older version of Bowline
    /// moved it there.
    pub dead_letter: Option<DeadLetter>,
    /// Whether the item is available.
    pub state: ItemState,
}

impl QueuedItem {
    pub(in crate::recipes) fn key(&self) -> &Bytes {
        &self.key
    }

    readable!(key, value);
}

/// State of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum ItemState {
    /// Available.
    Free,
    /// Delayed: the delay of the item has not ended yet.
    Delayed,
    /// Taken by a taker and not acknowledged yet.
    Taken {
        /// Lease of the taker's session; see [`Client::lease_info`].
        by: Option<LeaseId>,
    },
}

/// A call that puts an item; see [`Queue::put`]. Returns its id.
#[derive(Clone, Debug)]
#[must_use = "nothing is put until this is awaited"]
pub struct PutItem {
    many: PutMany,
}

impl PutItem {
    pub(in crate::recipes) fn new(queue: &Queue, value: Result<Bytes, Error>) -> Self {
        Self { many: PutMany::new(queue, value.map(|value| vec![value])) }
    }

    forwarded_options! { many:
        /// Sets the priority. Lower numbers are taken first. Default 0.
        pub fn priority(priority: i16);

        /// Delays the item; see [`PutMany::delay`].
        pub fn delay(delay: Duration);

        /// Limits how long the call may take. Default:
        /// [`Config::call_deadline`](crate::Config::call_deadline).
        pub fn deadline(timeout: Duration);
    }

    timeout_option!();

    async fn run(self) -> Result<ItemId, QueueError> {
        let mut ids = self.many.await?;
        Ok(ids.pop().expect("one item was put"))
    }
}

awaited!(PutItem -> Result<ItemId, QueueError>);

/// A call that puts several items; see [`Queue::put_many`]. Returns their ids.
#[derive(Clone, Debug)]
#[must_use = "nothing is put until this is awaited"]
pub struct PutMany {
    queue: Queue,
    /// The encoded values, or the error with which the call fails.
    values: Result<Vec<Bytes>, Error>,
    priority: i16,
    delay: Duration,
    deadline: Option<Duration>,
}

impl PutMany {
    pub(in crate::recipes) fn new(queue: &Queue, values: Result<Vec<Bytes>, Error>) -> Self {
        Self { queue: queue.clone(), values, priority: 0, delay: Duration::ZERO, deadline: None }
    }

    /// Sets the priority. Lower numbers are taken first. Default 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Delays the items: they are not taken before this time has passed. The delay is rounded up to
    /// whole milliseconds.
    ///
    /// The delay is a lease that is not renewed. The leader counts the delay on its monotonic
    /// clock, starting before the put, so no clocks are compared. Within the drift bound a delay
    /// never ends early. A change of the leader restarts the delay, so it may end later. After the
    /// delay the item has the position of its put, ahead of items that were put later. A backlog of
    /// earlier items, or of items with a lower priority number, delays it further.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    deadline_option!();

    async fn run(self) -> Result<Vec<ItemId>, QueueError> {
        let Self { queue, values, priority, delay, deadline } = self;
        let (Queue { client, keys, .. }, values) = (&queue, values?);
        queue.check()?;
        if values.is_empty() {
            return Ok(Vec::new());
        }
        queue.check_count(values.len(), !delay.is_zero())?;
        queue.check_room(values.len()).await?;
        let shared = Arc::clone(&client.shared);
        let deadline = shared.deadline(deadline);
        let unique = shared.env.entropy.next_u64();
        let ids: Vec<Bytes> = (0..values.len()).map(|n| item_id(priority, unique, n)).collect();
        let ops = |lease: Option<PutLease>| {
            let mut ops = Vec::new();
            for (id, value) in ids.iter().zip(&values) {
                ops.push(Op::put(keys.key(KeyPart::Item, id), value.clone()));
                ops.extend(lease.map(|lease| {
                    let mut delay = Put::new(keys.key(KeyPart::Delay, id), Bytes::new());
                    delay.lease = lease;
                    Op::Put(delay)
                }));
            }
            ops
        };
        let put = |lease: Option<LeaseId>| {
            let ops = ops(lease.map(PutLease::Attach));
            let call = ops.into_iter().fold(client.txn(), crate::TxnCall::then);
            call.deadline(deadline.since(shared.now())).commit()
        };
        // Round up to whole milliseconds.
        let millis = delay.as_nanos().div_ceil(1_000_000);
        let delay = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        let mut lease = None;
        if delay > Duration::ZERO && !mutant!(B12) {
            // Check the request first, so that no lease is granted for an invalid request.
            let whole = Txn { success: ops(Some(PutLease::None)), ..Txn::default() };
            let whole = Command::Txn(client.scope.txn(whole));
            shared.settings.limits.check(&whole).map_err(Error::from)?;
            let until = Until::by(&shared, deadline);
            // If this future is dropped before the put, the lease is revoked. After the put,
            // the lease expires by itself.
            lease = Some(Granted::of(client, delay, &until).await?.keep());
        }
        match put(lease).await {
            // The lease expired before the put was applied, so the delay has ended.
            Err(Error::Rejected(Rejection::LeaseNotFound(_))) => put(None).await?,
            Err(error) => {
                // Revoke the lease only if the put was not applied. Otherwise the put could
                // still be applied, without its delay.
                if let Some(lease) = lease.filter(|_| error.effect() == Effect::NotApplied) {
                    shared.propose_until_applied(Command::Revoke(lease), ReplyTo::Discard);
                }
                return Err(error.into());
            }
            Ok(reply) => reply,
        };
        Ok(ids.into_iter().map(ItemId).collect())
    }
}

awaited!(PutMany -> Result<Vec<ItemId>, QueueError>);
