//! A view of a prefix that follows the replica: parsed values, snapshots at one revision, and a call
//! that waits for the next change.
//!
//! A node's replica is in memory already, and a local read of it takes less than a microsecond. What a
//! view adds is what such reads cannot give: each value is parsed once, when it changes; a
//! [`View`] is a whole prefix at one revision, to be kept and walked through while the store goes on;
//! and somebody waits for news without polling.
//!
//! Nothing runs in the background. Whoever looks takes what the watch has at hand, and whoever waits
//! is woken by the node's own apply:
//!
//! ```text
//!   apply ──▶ hub ──▶ watch ──▶ news ──▶ wakes all who wait in changed()
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

use crate::api::{Client, Error, Watch};
use crate::model::{EventKind, KeyRange, KeyValue, Revision};
use crate::mutant::{self, Mutant};
use crate::node::{CallError, StopReason};
use crate::watch::WatchError;

type Parse<T> = Box<dyn Fn(&KeyValue) -> T + Send + Sync>;

impl Client {
    /// A view of the keys with this prefix that is kept by a watch, from now on: [`Client::cached_prefix_with`]
    /// with the rows as they are.
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
    pub fn cached_prefix(&self, prefix: impl Into<Bytes>) -> CachedCall<KeyValue> {
        self.cached_prefix_with(prefix, KeyValue::clone)
    }

    /// A view of the keys with this prefix, with each row parsed by `parse` when it changes. `parse` runs
    /// on the thread of whoever looks, and must not look at the view itself.
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
        prefix: impl Into<Bytes>,
        parse: impl Fn(&KeyValue) -> T + Send + Sync + 'static,
    ) -> CachedCall<T> {
        let (client, range) = (self.clone(), KeyRange::prefix(prefix));
        CachedCall { client, range, parse: Box::new(parse), deadline: None }
    }
}

/// Makes a view; see [`Client::cached_prefix`].
#[must_use = "a call does nothing until it is awaited"]
pub struct CachedCall<T> {
    client: Client,
    range: KeyRange,
    parse: Parse<T>,
    deadline: Option<Duration>,
}

impl<T> CachedCall<T> {
    /// How long the call may take.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
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
            // What was acknowledged before this call is in the view.
            let rows = call.await?;
            let watch = watch_after(&client, &range, rows.revision)?;
            let mut kept = Kept::new(watch);
            kept.replace(rows.kvs, rows.revision, &parse);
            let seen = kept.changed_at;
            let news = Arc::new(News(watch::Sender::new(())));
            let inner = Inner { client, range, parse, news, kept: Mutex::new(kept) };
            Ok(Cached { inner: Arc::new(inner), seen })
        })
    }
}

fn watch_after(client: &Client, range: &KeyRange, seen: Revision) -> Result<Watch, Error> {
    client.watch(range.clone()).from(seen.next()).begin()
}

/// A view of a prefix, kept by a watch. Made by [`Client::cached_prefix`]. Cheap to clone; clones share one
/// watch, and each counts for itself what it has seen.
///
/// What it shows is what this node's replica has: it may lag behind others, as a local read may, and
/// says by [`View::revision`] how far it is. It never goes back, and never shows half a revision. When
/// it was not looked at for so long that the store has forgotten the changes in between (compaction),
/// or the replica was replaced by a later state, it reads everything again: nothing is missed but the
/// steps in between.
///
/// - In a pause, or cut off from the others, it shows an old state, and does not know: for a decision
///   that must not be made on the past, read linearizably, or use a transaction.
/// - When the node has stopped, it says so: [`Error::Stopped`].
///
/// A look takes the changes since the last one, a lock for that time, and nothing else. The first look
/// after a change copies the map of entries if an older [`View`] is still kept.
pub struct Cached<T = KeyValue> {
    inner: Arc<Inner<T>>,
    /// The change that this handle has seen last.
    seen: Revision,
}

struct Inner<T> {
    client: Client,
    range: KeyRange,
    parse: Parse<T>,
    news: Arc<News>,
    kept: Mutex<Kept<T>>,
}

/// Rung when the watch has something. The watch keeps it, and it does not keep the watch.
struct News(watch::Sender<()>);

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.0.send_replace(());
    }
}

struct Kept<T> {
    watch: Watch,
    view: View<T>,
    /// The last change in the range.
    changed_at: Revision,
}

impl<T> Kept<T> {
    fn new(watch: Watch) -> Self {
        let view = View { rows: Arc::default(), revision: Revision::default() };
        Self { watch, view, changed_at: Revision::default() }
    }

    /// Everything anew, as of `revision`.
    fn replace(&mut self, rows: Vec<KeyValue>, revision: Revision, parse: &Parse<T>) {
        assert!(revision >= self.view.revision, "a replica does not go back");
        let rows: Rows<T> =
            rows.iter().map(|row| (row.key.clone(), Arc::new(parse(row)))).collect();
        self.view = View { rows: Arc::new(rows), revision };
        self.changed_at = revision;
    }
}

type Rows<T> = BTreeMap<Bytes, Arc<T>>;

impl<T: Send + Sync + 'static> Cached<T> {
    /// All of it, as this node's replica has it now, at one revision.
    ///
    /// # Errors
    /// [`Error::Stopped`]: there is nobody to ask any more.
    pub fn view(&self) -> Result<View<T>, Error> {
        Ok(self.inner.look(None)?.view.clone())
    }

    /// One entry, as this node's replica has it now.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Arc<T>>, Error> {
        Ok(self.inner.look(None)?.view.rows.get(key.as_ref()).cloned())
    }

    /// How far it has come: everything up to this revision is in what the next look shows, or more.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn revision(&self) -> Result<Revision, Error> {
        Ok(self.inner.look(None)?.view.revision)
    }

    /// Waits until something has changed since this handle saw it last, by this call or from its
    /// making, and shows what came of it. Several changes may be one. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn changed(&mut self) -> Result<View<T>, Error> {
        loop {
            // Before the look: what comes after it rings.
            let mut news = self.inner.news.0.subscribe();
            {
                let kept = self.inner.look(Some(&Waker::from(Arc::clone(&self.inner.news))))?;
                if kept.changed_at > self.seen {
                    self.seen = kept.changed_at;
                    return Ok(kept.view.clone());
                }
            }
            // Its sender is kept by this handle.
            let _ = news.changed().await;
        }
    }

    /// Waits until it has come to `revision`, wherever in the store that was made, and shows what it is
    /// then: after [`PutReply::revision`](crate::PutReply), on any node, the view has the put. Takes
    /// no longer than the node's deadline for calls.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Stopped`].
    pub async fn wait_for(&self, revision: Revision) -> Result<View<T>, Error> {
        let view = self.view()?;
        if view.revision >= revision {
            return Ok(view);
        }
        let shared = &self.inner.client.shared;
        shared.reach(revision, shared.deadline(None)).await?;
        let view = self.view()?;
        assert!(view.revision >= revision, "watches are told before callers are answered");
        Ok(view)
    }
}

impl<T> Inner<T> {
    /// What is kept. If somebody fell in `parse`, some of what the watch had told is lost.
    fn lock(&self) -> Result<MutexGuard<'_, Kept<T>>, Error> {
        self.kept.lock().or_else(|fallen| {
            self.kept.clear_poison();
            let mut kept = fallen.into_inner();
            self.again(&mut kept).map(|()| kept)
        })
    }

    /// Takes what the watch has. If it has nothing more, news are to come by `waker`.
    fn look(&self, waker: Option<&Waker>) -> Result<MutexGuard<'_, Kept<T>>, Error> {
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
                            None if mutant::is(Mutant::B18) => {}
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

    /// The changes in between are forgotten: everything is read again.
    fn again(&self, kept: &mut Kept<T>) -> Result<(), Error> {
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
        Self { inner: Arc::clone(&self.inner), seen: self.seen }
    }
}

impl<T> std::fmt::Debug for Cached<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { range, .. } = &*self.inner;
        f.debug_struct("Cached").field("range", range).field("seen", &self.seen).finish()
    }
}

/// A prefix at one revision; see [`Cached::view`]. Cheap to clone, and never changes.
pub struct View<T = KeyValue> {
    rows: Arc<Rows<T>>,
    revision: Revision,
}

impl<T> View<T> {
    /// The revision that it shows.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// One entry, by its whole key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&T> {
        self.rows.get(key.as_ref()).map(|value| &**value)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, &T)> + ExactSizeIterator {
        self.rows.iter().map(|(key, value)| (key, &**value))
    }

    /// The entries whose keys begin with `prefix`, by key.
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
