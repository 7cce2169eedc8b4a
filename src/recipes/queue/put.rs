//! The putting end of a queue, and what it holds.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Client, Effect, Error};
use crate::model::{
    Command, LeaseId, Op, Put, PutLease, Range, Rejection, Revision, Txn, TxnResult,
};
use crate::mutant::{self, Mutant};
use crate::node::ReplyTo;
use crate::recipes::call::Until;
use crate::recipes::conditional::Granted;

use super::index::{item_id, priority};
use super::{ItemId, Keys, Part, QueueError};

impl Client {
    /// The queue of this name, to put into: what is put is taken once, or, where a taker fails, again.
    /// To take, see [`Session::queue`](crate::Session::queue). Keys below `name/` are the queue's.
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
    pub fn queue(&self, name: impl Into<Bytes>) -> Queue {
        let keys = Keys { name: name.into() };
        let name = self.scope.key(keys.name.clone());
        Queue { client: self.clone(), keys, name, limit: None }
    }
}

/// The putting end of a queue. Made by [`Client::queue`]; cheap to clone.
///
/// A put is in the log once, however often this node has to send it: what returned is in the queue, and
/// no crash of a minority loses it. After an error whose effect is unknown it may be in the queue,
/// once. To repeat a put safely after that, or over a crash of the program, put the item in a
/// transaction of your own with a condition of your own: [`Queue::op`].
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    keys: Keys,
    /// With the scope of the client.
    name: Bytes,
    limit: Option<u64>,
}

impl Queue {
    /// The same queue, with a limit on its length: puts that would make it longer are refused with
    /// [`QueueError::Full`]. Delayed and taken items count. Judged by what this node's replica has
    /// before the put: those who put at the same time may exceed it by as many items as they put. A matter of
    /// this handle: other handles know nothing of it. Each put looks at all keys of the queue: for limits of
    /// some thousands.
    #[must_use]
    pub fn limit(&self, items: u64) -> Self {
        Self { limit: Some(items), ..self.clone() }
    }

    /// Its whole name, with the [scope](Client::with_prefix) of its client: the one by which
    /// [`Session::queue`](crate::Session::queue) takes from it.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Puts an item at the end.
    #[doc(alias = "push", alias = "send")]
    pub fn put(&self, value: impl Into<Bytes>) -> PutItem {
        PutItem { many: self.put_many([value.into()]) }
    }

    /// Puts several items at the end, in their order and with nothing between, all or none. At most
    /// [`Limits::txn_ops_max`](crate::Limits::txn_ops_max) (half of that with a delay).
    pub fn put_many(&self, values: impl IntoIterator<Item = impl Into<Bytes>>) -> PutMany {
        let values = values.into_iter().map(Into::into).collect();
        PutMany { queue: self.clone(), values, priority: 0, delay: Duration::ZERO, deadline: None }
    }

    /// The operation that puts an item, for a transaction of your own: with a condition that makes it
    /// safe to repeat, or with [`Delivery::ack_with`](super::Delivery::ack_with), so that an item moves from
    /// queue to queue without being lost or doubled. No limit is looked at. An operation is for one
    /// transaction: another one would put the same item.
    ///
    /// Its key is in the scope of this queue's client, and so it is for transactions of that client, which add the
    /// scope. `ack_with`, and transactions under a lock ([`Hold::txn`](crate::lock::Hold::txn)), know no
    /// [scope](Client::with_prefix): for them, ask the queue of the whole name for it,
    /// `node.client().queue(jobs.name().clone()).op(..)`.
    ///
    /// ```
    /// # use bowline::{Blocking, Compare, Config, Node, Op};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// let jobs = kv.queue("jobs");
    /// for _ in 0..2 {
    ///     let once = kv.txn().when(Compare::missing("orders/42/queued"));
    ///     let once = once.then(Op::put("orders/42/queued", "")).then(jobs.op("pack 42", 0));
    ///     once.commit().block()?;
    /// }
    /// assert_eq!(jobs.len().block()?, 1);
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn op(&self, value: impl Into<Bytes>, priority: i16) -> Op {
        let id = item_id(priority, self.client.shared.env.entropy.next_u64(), 0);
        Op::put(self.keys.key(Part::Item, &id), value)
    }

    /// How many items it holds, delayed and taken ones, too. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn len(&self) -> Result<u64, Error> {
        Ok(self.client.range(self.keys.part(Part::Item)).count_only().await?.count)
    }

    /// Whether it holds none. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len().await? == 0)
    }

    /// What it holds, in the order in which it is to be taken, at one revision. Linearizable. Reads all of
    /// it: for people, and for tests.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn items(&self) -> Result<Vec<QueuedItem>, Error> {
        let mut txn = self.client.txn();
        for part in [Part::Item, Part::Delay, Part::Claim] {
            txn = txn.then(Range::new(self.keys.part(part)));
        }
        let mut rows = txn.commit().await?.results.into_iter().map(|result| match result {
            TxnResult::Range(range) => range.kvs,
            other => unreachable!("a range is answered by {other:?}"),
        });
        let mut next = || rows.next().expect("three ranges were read");
        let (items, delays, claims) = (next(), next(), next());
        let ids = |rows: Vec<crate::model::KeyValue>| {
            let keyed =
                |row: crate::model::KeyValue| Some((self.keys.parse(&row.key)?.1, row.lease));
            rows.into_iter().filter_map(keyed).collect::<std::collections::BTreeMap<_, _>>()
        };
        let (delays, claims) = (ids(delays), ids(claims));
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
                    priority: priority(&id),
                    put_at: row.create_revision,
                    attempts: row.version - 1,
                    id: ItemId(id),
                    value: row.value,
                    state,
                })
            })
            .collect();
        items.sort_by(|a, b| (a.priority, a.put_at, &a.id).cmp(&(b.priority, b.put_at, &b.id)));
        Ok(items)
    }

    /// The queue of the items that were taken too often:
    /// [`QueueTaker::attempts_max`](super::QueueTaker::attempts_max). To take from it, give its
    /// [`name`](Queue::name) to [`Session::queue`](crate::Session::queue).
    pub fn dead(&self) -> Queue {
        self.client.queue(self.keys.dead().name)
    }

    pub(super) fn check(&self) -> Result<(), QueueError> {
        if self.keys.name.is_empty() { Err(QueueError::EmptyName) } else { Ok(()) }
    }

    /// Whether so many more may be put.
    async fn check_room(&self, more: usize) -> Result<(), QueueError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let count = self.client.range(self.keys.part(Part::Item)).count_only().local();
        if count.await?.count.saturating_add(more as u64) > limit {
            return Err(QueueError::Full { limit });
        }
        Ok(())
    }
}

/// An item of a queue, as [`Queue::items`] sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuedItem {
    /// Its name.
    pub id: ItemId,
    /// What was put.
    pub value: Bytes,
    /// The least number goes first.
    pub priority: i16,
    /// When it was put: its place among those of its priority.
    pub put_at: Revision,
    /// How often it was taken.
    pub attempts: u64,
    /// Whether it can be taken.
    pub state: ItemState,
}

/// Whether an item can be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ItemState {
    /// It can.
    Free,
    /// Not yet: its delay has not ended.
    Delayed,
    /// Somebody has it.
    Taken {
        /// The lease of the taker's session: [`Client::lease_info`] knows more.
        by: Option<LeaseId>,
    },
}

/// Puts an item; see [`Queue::put`]. Answers with its id.
#[derive(Debug)]
#[must_use = "nothing is put until this is awaited"]
pub struct PutItem {
    many: PutMany,
}

impl PutItem {
    /// The least number is taken first; 0 unless said otherwise.
    pub fn priority(mut self, priority: i16) -> Self {
        self.many = self.many.priority(priority);
        self
    }

    /// Not to be taken before this long has passed; see [`PutMany::delay`].
    pub fn delay(mut self, delay: Duration) -> Self {
        self.many = self.many.delay(delay);
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.many = self.many.deadline(timeout);
        self
    }
}

impl IntoFuture for PutItem {
    type Output = Result<ItemId, QueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut ids = self.many.await?;
            Ok(ids.pop().expect("one was put"))
        })
    }
}

/// Puts items; see [`Queue::put_many`]. Answers with their ids.
#[derive(Debug)]
#[must_use = "nothing is put until this is awaited"]
pub struct PutMany {
    queue: Queue,
    values: Vec<Bytes>,
    priority: i16,
    delay: Duration,
    deadline: Option<Duration>,
}

impl PutMany {
    /// The least number is taken first; 0 unless said otherwise.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Not to be taken before this long has passed, in whole milliseconds. The delay is a lease that
    /// nobody renews: the leader counts it, from before the put, in a monotonic duration, so no clocks are
    /// compared. It never ends early within the drift bound; a change of the leader begins it anew, so
    /// it may end later. The item then stands where it was put, before those that were put after it.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl IntoFuture for PutMany {
    type Output = Result<Vec<ItemId>, QueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { queue: Queue { client, keys, .. }, priority, .. } = &self;
            self.queue.check()?;
            if self.values.is_empty() {
                return Ok(Vec::new());
            }
            self.queue.check_room(self.values.len()).await?;
            let shared = Arc::clone(&client.shared);
            let deadline = shared.deadline(self.deadline);
            let unique = shared.env.entropy.next_u64();
            let ids: Vec<Bytes> =
                (0..self.values.len()).map(|n| item_id(*priority, unique, n)).collect();
            let ops = |lease: Option<PutLease>| {
                let mut ops = Vec::new();
                for (id, value) in ids.iter().zip(&self.values) {
                    ops.push(Op::put(keys.key(Part::Item, id), value.clone()));
                    ops.extend(lease.map(|lease| {
                        let mut delay = Put::new(keys.key(Part::Delay, id), Bytes::new());
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
            // Whole milliseconds, and never less than was asked for.
            let millis = self.delay.as_nanos().div_ceil(1_000_000);
            let delay = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
            let mut lease = None;
            if delay > Duration::ZERO && !mutant::is(Mutant::B12) {
                // What is refused for what it is needs no lease.
                let whole = Txn { success: ops(Some(PutLease::None)), ..Txn::default() };
                let whole = Command::Txn(client.scope.txn(whole));
                shared.settings.limits.check(&whole).map_err(Error::from)?;
                let until = Until::by(&shared, deadline);
                // Ended if this is dropped before the put is begun. From then on it ends by itself.
                lease = Some(Granted::of(client, delay, &until).await?.keep());
            }
            match put(lease).await {
                // The delay was shorter than the way to the log.
                Err(Error::Rejected(Rejection::LeaseNotFound(_))) => put(None).await?,
                Err(error) => {
                    // Where it may come true yet, it must not do so without its delay.
                    if let Some(lease) = lease.filter(|_| error.effect() == Effect::NotApplied) {
                        shared.insist(Command::Revoke(lease), ReplyTo::Nobody);
                    }
                    return Err(error.into());
                }
                Ok(reply) => reply,
            };
            Ok(ids.into_iter().map(ItemId).collect())
        })
    }
}
