//! A cached view of a key prefix that follows the replica: parsed values, snapshots at one
//! revision, and a call that waits for the next change.
//!
//! A node's replica is already in memory, and a local read takes less than a microsecond. A view
//! has three additional properties. Each value is parsed only once, when it changes. A [`View`] is
//! a whole prefix at one revision that can be kept and iterated while the store changes. Tasks can
//! wait for changes without polling.
//!
//! A view has no background task. A read processes the events that the watch has available, and a
//! waiting task is woken when the node applies a change:
//!
//! ```text
//!   apply ──▶ hub ──▶ watch ──▶ news ──▶ wakes all tasks in changed()
//!                       │
//!                       └──◀── drained by view(), get(), changed(), wait_for()
//! ```

use std::collections::{BTreeMap, btree_map};
use std::future::IntoFuture;
use std::ops::Bound;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::watch;

use crate::api::{Client, Error, Watch, deadline_option};
use crate::model::{EventKind, IntoBytes, KeyRange, KeyValue, Revision};
use crate::node::{CallError, StopReason};
use crate::watch::WatchError;

type Parse<T> = Box<dyn Fn(&KeyValue) -> T + Send + Sync>;

impl Client {
    /// Returns a view of the keys with this prefix, maintained by a watch from now on. Like
    /// [`Client::cached_prefix_with`], with unparsed rows.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// let config = kv.cached_prefix("config/").block()?;
    /// kv.put("config/rate", "100").block()?;
    /// assert_eq!(config.get("config/rate")?.unwrap().value, "100");
    ///
    /// let before = config.view()?; // stays as it is, however long it is kept
    /// kv.put("config/rate", "200").block()?;
    /// assert_eq!(before.get("config/rate").unwrap().value, "100");
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn cached_prefix(&self, prefix: impl IntoBytes) -> CachedCall<KeyValue> {
        self.cached_prefix_with(prefix, KeyValue::clone)
    }

    /// Returns a view of the keys with this prefix. Each row is parsed by `parse` when it changes.
    /// `parse` runs during the first read after the change, on the thread of the reader. `parse`
    /// must not use the view.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    /// # let kv = node.client();
    /// let rates = kv.cached_prefix_with("rate/", |row| {
    ///     std::str::from_utf8(&row.value).ok().and_then(|text| text.parse::<u32>().ok())
    /// });
    /// let mut rates = rates.block()?;
    /// kv.put("rate/eu", "100").block()?;
    /// let view = rates.changed().block()?;
    /// assert_eq!(*view.get("rate/eu").unwrap(), Some(100));
    /// # node.shutdown().block();
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn cached_prefix_with<T>(
        &self,
        prefix: impl IntoBytes,
        parse: impl Fn(&KeyValue) -> T + Send + Sync + 'static,
    ) -> CachedCall<T> {
        let (client, range) = (self.clone(), KeyRange::prefix(prefix));
        CachedCall { client, range, parse: Box::new(parse), deadline: None }
    }
}

/// A call that creates a view; see [`Client::cached_prefix`].
#[must_use = "a call does nothing until it is awaited"]
pub struct CachedCall<T> {
    client: Client,
    range: KeyRange,
    parse: Parse<T>,
    deadline: Option<Duration>,
}

impl<T> CachedCall<T> {
    deadline_option!();
}

impl<T> std::fmt::Debug for CachedCall<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedCall").field("range", &self.range).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> IntoFuture for CachedCall<T> {
    type Output = Result<Cached<T>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, range, parse, deadline: timeout } = self;
            let mut call = client.range(range.clone());
            if let Some(timeout) = timeout {
                call = call.deadline(timeout);
            }
            // The read is linearizable, so the view contains every write that was acknowledged
            // before this call.
            let rows = call.await?;
            let watch = watch_after(&client, &range, rows.revision)?;
            let mut kept = CachedRow::new(watch);
            kept.replace(rows.kvs, rows.revision, &parse);
            let seen = kept.changed_at;
            let news = Arc::new(CachedUpdate(watch::Sender::new(())));
            let inner = CachedInner { client, range, parse, news, kept: Mutex::new(kept) };
            Ok(Cached { inner: Arc::new(inner), seen, stream: CachedStream::default() })
        })
    }
}

fn watch_after(client: &Client, range: &KeyRange, seen: Revision) -> Result<Watch, Error> {
    client.watch(range.clone()).from(seen.next()).begin()
}

/// A view of a key prefix, maintained by a watch. Created by [`Client::cached_prefix`]. Cheap to
/// clone. Clones share one watch, but each tracks separately which changes it has seen.
///
/// The view shows the local replica, which may lag behind other members, like any local read.
/// [`View::revision`] returns the revision of a view. A later view never has a lower revision, and
/// a view never shows a part of a revision. If changes were compacted before the view has processed
/// them, or the replica was replaced by a snapshot, all rows are read again. In this case the view
/// skips intermediate states.
///
/// - While this node is paused or partitioned, the view is stale and cannot detect it. For
///   decisions that need the current state, read linearizably or use a transaction.
/// - When the node has stopped, calls fail with [`Error::Stopped`].
///
/// A view has no background task. A read processes the changes since the last read: it parses them on
/// the thread of the reader, and holds a lock while it does so. The first read after a change copies
/// the map of entries if an older [`View`] is still in use. So a change that no thread reads is not
/// parsed. A program that must react to changes runs a loop over [`Cached::changed`] in a task or
/// thread of its own.
///
/// Keys include the prefix of the view, but not the prefix of the client that created the view
/// ([`Client::with_prefix`]).
///
/// Also a [`Stream`] of new views: each item is what [`Cached::changed`] returns. After an error the
/// stream ends.
///
/// ```
/// # use bowline::{Blocking, Config, Node};
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
/// # let kv = node.client();
/// use futures_util::StreamExt;
///
/// let mut rates = kv.cached_prefix("rate/").block()?;
/// kv.put("rate/eu", "100").block()?;
/// let view = rates.next().block().unwrap()?;
/// assert_eq!(view.get("rate/eu").unwrap().value, "100");
/// # node.shutdown().block();
/// assert!(rates.next().block().unwrap().is_err(), "the node has stopped");
/// assert!(rates.next().block().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cached<T = KeyValue> {
    inner: Arc<CachedInner<T>>,
    /// Revision of the last change that this handle has seen.
    seen: Revision,
    stream: CachedStream,
}

/// The state of a view that is used as a stream.
#[derive(Default)]
struct CachedStream {
    /// Completes when the watch has events.
    news: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    has_failed: bool,
}

struct CachedInner<T> {
    client: Client,
    range: KeyRange,
    parse: Parse<T>,
    news: Arc<CachedUpdate>,
    kept: Mutex<CachedRow<T>>,
}

/// Notifies waiting tasks when the watch has events. The watch owns a reference to this value, but
/// not the other way around.
struct CachedUpdate(watch::Sender<()>);

impl Wake for CachedUpdate {
    fn wake(self: Arc<Self>) {
        self.0.send_replace(());
    }
}

struct CachedRow<T> {
    watch: Watch,
    view: View<T>,
    /// Revision of the last change in the range.
    changed_at: Revision,
}

impl<T> CachedRow<T> {
    fn new(watch: Watch) -> Self {
        let view = View { rows: Arc::default(), revision: Revision::default() };
        Self { watch, view, changed_at: Revision::default() }
    }

    /// Replaces all entries with those of `revision`.
    fn replace(&mut self, rows: Vec<KeyValue>, revision: Revision, parse: &Parse<T>) {
        assert!(revision >= self.view.revision, "a replica never goes back in time");
        let rows: Rows<T> =
            rows.iter().map(|row| (row.key.clone(), Arc::new(parse(row)))).collect();
        self.view = View { rows: Arc::new(rows), revision };
        self.changed_at = revision;
    }
}

type Rows<T> = BTreeMap<Bytes, Arc<T>>;

impl<T: Send + Sync + 'static> Cached<T> {
    /// Returns the whole view of the local replica at one revision.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub fn view(&self) -> Result<View<T>, Error> {
        Ok(self.inner.look(None)?.view.clone())
    }

    /// Returns one entry of the local replica by its key, or `None` if the key does not exist. The
    /// key includes the prefix of the view, but not the prefix of the client that created the view:
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// kv.put("app/config/rate", "100").block()?;
    /// let config = kv.with_prefix("app/").cached_prefix("config/").block()?;
    /// assert_eq!(config.get("config/rate")?.unwrap().value, "100");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The returned entry is immutable. To read several entries at one revision, use
    /// [`Cached::view`].
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Arc<T>>, Error> {
        Ok(self.inner.look(None)?.view.rows.get(key.as_ref()).cloned())
    }

    /// Returns the revision of the view. Later reads show this revision or a newer one.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub fn revision(&self) -> Result<Revision, Error> {
        Ok(self.inner.look(None)?.view.revision)
    }

    /// Waits for a change since the creation of this handle or its last call of this method, and
    /// returns the new view. Several changes may be reported as one. Cancel-safe.
    ///
    /// # Errors
    /// Returns [`Error::Stopped`] if the node has stopped.
    pub async fn changed(&mut self) -> Result<View<T>, Error> {
        loop {
            // Subscribe before the read, so that later changes wake this task.
            let mut news = self.inner.news.0.subscribe();
            if let Some(view) = self.unseen()? {
                return Ok(view);
            }
            // The sender lives as long as this handle.
            let _ = news.changed().await;
        }
    }

    /// Returns the view if it has a change that this handle has not seen yet. Otherwise, the next
    /// change wakes the waiting tasks.
    fn unseen(&mut self) -> Result<Option<View<T>>, Error> {
        let kept = self.inner.look(Some(&Waker::from(Arc::clone(&self.inner.news))))?;
        if kept.changed_at <= self.seen {
            return Ok(None);
        }
        self.seen = kept.changed_at;
        Ok(Some(kept.view.clone()))
    }

    /// Waits until the view has reached `revision`, and returns it. To see a put that was made on
    /// any node, pass its [`PutReply::revision`](crate::PutReply). Takes at most the default
    /// deadline of calls.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] if the revision was not reached in time, and [`Error::Stopped`]
    /// if the node has stopped.
    pub async fn wait_for(&self, revision: Revision) -> Result<View<T>, Error> {
        let view = self.view()?;
        if view.revision >= revision {
            return Ok(view);
        }
        let shared = &self.inner.client.shared;
        shared.reach(revision, shared.deadline(None)).await?;
        let view = self.view()?;
        assert!(view.revision >= revision, "watches are notified before callers");
        Ok(view)
    }
}

impl<T: Send + Sync + 'static> Stream for Cached<T> {
    type Item = Result<View<T>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.stream.has_failed {
            return Poll::Ready(None);
        }
        loop {
            // Subscribe before the read, so that later changes wake this task.
            let mut subscribed = this.inner.news.0.subscribe();
            match this.unseen() {
                Ok(Some(view)) => return Poll::Ready(Some(Ok(view))),
                Ok(None) => {}
                Err(error) => {
                    this.stream.has_failed = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
            let news = this.stream.news.insert(Box::pin(async move {
                // The sender lives as long as this handle.
                let _ = subscribed.changed().await;
            }));
            if news.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<T> CachedInner<T> {
    /// Locks the state. If `parse` panicked before, some events of the watch are lost, so all rows
    /// are read again.
    fn lock(&self) -> Result<MutexGuard<'_, CachedRow<T>>, Error> {
        self.kept.lock().or_else(|fallen| {
            self.kept.clear_poison();
            let mut kept = fallen.into_inner();
            self.again(&mut kept).map(|()| kept)
        })
    }

    /// Processes the available events of the watch. If there are no more, registers `waker` for the
    /// next ones.
    fn look(&self, waker: Option<&Waker>) -> Result<MutexGuard<'_, CachedRow<T>>, Error> {
        let mut kept = self.lock()?;
        loop {
            let next = match waker {
                Some(waker) => {
                    let mut context = Context::from_waker(waker);
                    Pin::new(&mut kept.watch).poll_next(&mut context)
                }
                None => kept.watch.try_next(),
            };
            match next {
                Poll::Pending => {
                    kept.view.revision = kept.view.revision.max(kept.watch.delivered());
                    return Ok(kept);
                }
                Poll::Ready(Some(Ok(batch))) => {
                    for event in batch.events {
                        kept.changed_at = event.revision();
                        let row = event.kv;
                        let parsed = match event.kind {
                            EventKind::Put => Some(Arc::new((self.parse)(&row))),
                            EventKind::Delete => None,
                        };
                        let rows = Arc::make_mut(&mut kept.view.rows);
                        match parsed {
                            Some(parsed) => drop(rows.insert(row.key, parsed)),
                            None if mutant!(B18) => {}
                            None => drop(rows.remove(&row.key)),
                        }
                    }
                    kept.view.revision = batch.revision;
                }
                Poll::Ready(Some(Err(WatchError::Compacted { .. }))) => self.again(&mut kept)?,
                Poll::Ready(Some(Err(_)) | None) => return Err(self.stopped()),
            }
        }
    }

    /// Reads all rows again, because intermediate changes were compacted.
    fn again(&self, kept: &mut CachedRow<T>) -> Result<(), Error> {
        let client = &self.client;
        if client.shared.stop_reason().is_some() {
            return Err(self.stopped());
        }
        let range = crate::model::Range::new(client.scope.range(self.range.clone()));
        let mut rows = client.shared.reader.range(&range)?;
        client.scope.strip_all(&mut rows.kvs);
        kept.watch = watch_after(client, &self.range, rows.revision)?;
        kept.replace(rows.kvs, rows.revision, &self.parse);
        Ok(())
    }

    fn stopped(&self) -> Error {
        let reason = self.client.shared.stop_reason().unwrap_or(StopReason::Shutdown);
        CallError::Stopped { reason, maybe_applied: false }.into()
    }
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        let stream = CachedStream { news: None, has_failed: self.stream.has_failed };
        Self { inner: Arc::clone(&self.inner), seen: self.seen, stream }
    }
}

impl<T> std::fmt::Debug for Cached<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CachedInner { range, .. } = &*self.inner;
        f.debug_struct("Cached").field("range", range).field("seen", &self.seen).finish()
    }
}

/// A prefix at one revision; see [`Cached::view`]. Immutable and cheap to clone.
pub struct View<T = KeyValue> {
    rows: Arc<Rows<T>>,
    revision: Revision,
}

impl<T> View<T> {
    /// Returns the revision of the view.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns one entry by its key, as in [`Cached::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&T> {
        self.rows.get(key.as_ref()).map(|value| &**value)
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Reports whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns all entries in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, &T)> + ExactSizeIterator {
        self.rows.iter().map(|(key, value)| (key, &**value))
    }

    /// Returns the entries whose keys, as in [`Cached::get`], begin with `prefix`, in key order.
    pub fn prefix<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = (&'a Bytes, &'a T)> {
        let from: btree_map::Range<'a, Bytes, Arc<T>> =
            self.rows.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(key, value)| (key, &**value))
    }
}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        Self { rows: Arc::clone(&self.rows), revision: self.revision }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for View<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("revision", &self.revision).field("rows", &self.rows).finish()
    }
}
