//! Watches: [`WatchCall`] starts one, and [`Watch`] delivers its events.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::model::{KeyRange, Revision};
use crate::watch::{Filter, WatchBatch, WatchError, WatchRequest, Watcher};

use super::call::{Consistency, awaited, deadline_option};
use super::{Client, Error};

/// A call that starts a watch; see [`Client::watch`].
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is awaited"]
pub struct WatchCall {
    client: Client,
    request: WatchRequest,
    deadline: Option<Duration>,
}

impl WatchCall {
    pub(crate) fn new(client: Client, keys: KeyRange) -> Self {
        let request = WatchRequest::new(client.scope.range(keys));
        Self { client, request, deadline: None }
    }

    /// Starts the watch at `revision`, which may be in the past. By default a watch starts after
    /// the current revision.
    pub fn from(mut self, revision: Revision) -> Self {
        self.request.from = Some(revision);
        self
    }

    /// Starts the watch after `revision`, which may be in the past: the first change that it
    /// delivers has a greater revision. To read a range and then every later change of it, pass the
    /// revision of the read.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// # let kv = node.client();
    /// kv.put("config/rate", "100").block()?;
    /// let now = kv.get_prefix("config/").block()?;
    /// let mut changes = kv.watch_prefix("config/").after(now.revision).block()?;
    /// kv.put("config/rate", "200").block()?;
    /// assert_eq!(changes.next().block().unwrap()?.events[0].kv.value, "200");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn after(self, revision: Revision) -> Self {
        self.from(revision.next())
    }

    /// Adds to each event the row before the change.
    pub fn prev_kv(mut self) -> Self {
        self.request.prev_kv = true;
        self
    }

    /// Excludes some kinds of events.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.request.filter = filter;
        self
    }

    deadline_option! {
        /// Limits the wait for the start of the watch. A watch that starts after the current revision
        /// must wait if this member has not received the state of its cluster yet. A watch with
        /// [`WatchCall::from`] never waits.
    }
}

impl WatchCall {
    /// Starts the watch at once, without waiting for the state of the cluster.
    pub(crate) fn begin(self) -> Result<Watch, Error> {
        let Self { client, request, .. } = self;
        let range = crate::model::Range::new(request.range.clone());
        client.shared.settings.limits.check_range(&range)?;
        client.may_read(&request.range)?;
        let keys = request.range.clone();
        let watcher = client.shared.hub.watch(request);
        Ok(Watch { watcher, client, keys, denied: false })
    }

    async fn run(self) -> Result<Watch, Error> {
        // Events after the current revision are defined only once the replica has a state.
        if self.request.from.is_none() {
            let deadline = self.client.shared.deadline(self.deadline);
            self.client.wait_until_current(Consistency::Local, deadline).await?;
        }
        self.begin()
    }
}

awaited!(WatchCall -> Result<Watch, Error>);

/// A stream of changes to a range of keys, read from the local replica. A watch delivers every
/// change once, in order, and all changes of one revision together.
///
/// A slow consumer does not delay other watches. It catches up from the store's history. If the
/// missing part of the history has been compacted, the watch ends with an error.
///
/// ```
/// # use bowline::{Blocking, Config, KeyRange, Node};
/// # let dir = tempfile::tempdir().unwrap();
/// # let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
/// # let kv = node.client();
/// let put = kv.put("config/rate", "100").block()?;
/// let mut changes = kv.watch(KeyRange::prefix("config/")).from(put.revision).block()?;
/// let batch = changes.next().block().unwrap().unwrap();
/// assert_eq!(batch.events[0].kv.value, "100");
/// # node.shutdown().block();
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    watcher: Watcher,
    client: Client,
    keys: KeyRange,
    /// Whether the watch ended because the caller lost its permission.
    denied: bool,
}

impl Watch {
    /// Waits for the next batch of changes. Returns `None` after an error has ended the watch.
    /// Cancel-safe: dropping the future loses no changes.
    ///
    /// # Errors
    /// See [`WatchError`]. The watch ends with the error.
    pub async fn next(&mut self) -> Option<Result<WatchBatch, WatchError>> {
        if self.denied {
            return None;
        }
        let batch = self.watcher.recv().await;
        self.strip(batch)
    }

    /// Requests a batch without events, delivered after all changes up to the current revision. The
    /// `revision` of that batch states the progress of the watch.
    pub fn request_progress(&mut self) {
        self.watcher.request_progress();
    }

    /// Returns the revision at which the watch was created. Without [`WatchCall::from`], every
    /// later change is delivered.
    pub fn created_at(&self) -> Revision {
        self.watcher.created_at()
    }

    /// Returns the revision up to which all changes have been delivered.
    pub(crate) fn delivered(&self) -> Revision {
        Revision(self.watcher.resume().get() - 1)
    }

    /// Returns the next batch if one is available. If none is available, returns `Pending` without
    /// registering a waker.
    pub(crate) fn try_next(&mut self) -> Poll<Option<Result<WatchBatch, WatchError>>> {
        if self.denied {
            return Poll::Ready(None);
        }
        match self.watcher.try_recv() {
            Poll::Ready(batch) => Poll::Ready(self.strip(batch)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Checks that the caller may still read the keys, and removes the client's prefix from them.
    fn strip(
        &mut self,
        mut batch: Option<Result<WatchBatch, WatchError>>,
    ) -> Option<Result<WatchBatch, WatchError>> {
        if let Some(Ok(batch)) = &mut batch {
            if let Err(denied) = self.client.may_watch(&self.keys) {
                self.denied = true;
                return Some(Err(denied));
            }
            let scope = &self.client.scope;
            batch.events.iter_mut().for_each(|event| scope.strip_event(event));
        }
        batch
    }
}

impl Stream for Watch {
    type Item = Result<WatchBatch, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.denied {
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.watcher).poll_next(context) {
            Poll::Ready(batch) => Poll::Ready(this.strip(batch)),
            Poll::Pending => Poll::Pending,
        }
    }
}
