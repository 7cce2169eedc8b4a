//! Watching keys.

use std::future::IntoFuture;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;

use crate::model::{KeyRange, Revision};
use crate::watch::{Filter, WatchBatch, WatchError, WatchRequest, Watcher};

use super::call::{Answer, Consistency};
use super::{Client, Error};

/// Begins to watch; see [`Client::watch`].
#[derive(Debug)]
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

    /// Every change from this revision on, past ones too. Without it: what happens from now on.
    pub fn from(mut self, revision: Revision) -> Self {
        self.request.from = Some(revision);
        self
    }

    /// With the row before each change.
    pub fn prev_kv(mut self) -> Self {
        self.request.prev_kv = true;
        self
    }

    /// Without some kinds of events.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.request.filter = filter;
        self
    }

    /// How long it may take until the watch begins: what happens from now on is known to a member that has a
    /// state of its cluster, and one that is new waits for it. From a revision on, nothing is waited for.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl WatchCall {
    /// Begins now: nothing has to be waited for.
    pub(crate) fn begin(self) -> Result<Watch, Error> {
        let Self { client, request, .. } = self;
        let range = crate::model::Range::new(request.range.clone());
        client.shared.settings.limits.check_range(&range)?;
        client.may_read(&request.range)?;
        let keys = request.range.clone();
        let watcher = client.shared.hub.watch(request);
        Ok(Watch { watcher, client, keys, denied: false })
    }
}

impl IntoFuture for WatchCall {
    type Output = Result<Watch, Error>;
    type IntoFuture = Answer<Watch>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            // What is new is so beside what there is: a member without a state does not know that yet.
            if self.request.from.is_none() {
                let deadline = self.client.shared.deadline(self.deadline);
                self.client.be_current(Consistency::Local, deadline).await?;
            }
            self.begin()
        })
    }
}

/// The changes of a range of keys, from this node's own replica: in order, each once, none left out,
/// those of one revision together. Slow consumers cost nobody else anything: they catch up from the
/// store's history, and if that has been compacted meanwhile they are told so, and the watch ends.
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
    /// Nothing comes any more.
    denied: bool,
}

impl Watch {
    /// The next changes; `None` after an error has ended the watch. Cancel-safe: dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// See [`WatchError`]; the watch ends with it.
    pub async fn next(&mut self) -> Option<Result<WatchBatch, WatchError>> {
        if self.denied {
            return None;
        }
        let batch = self.watcher.recv().await;
        self.strip(batch)
    }

    /// Asks for a batch without events, once everything up to the present revision was delivered: its
    /// `revision` says how far that is.
    pub fn request_progress(&mut self) {
        self.watcher.request_progress();
    }

    /// The revision at which the watch began: without [`WatchCall::from`], everything after it is
    /// delivered.
    pub fn created_at(&self) -> Revision {
        self.watcher.created_at()
    }

    /// Everything up to this revision has been delivered.
    pub(crate) fn delivered(&self) -> Revision {
        Revision(self.watcher.resume().get() - 1)
    }

    /// What [`Watch::next`] has at hand; `Pending` is nothing. Wakes nobody later.
    pub(crate) fn try_next(&mut self) -> Poll<Option<Result<WatchBatch, WatchError>>> {
        if self.denied {
            return Poll::Ready(None);
        }
        match self.watcher.try_recv() {
            Poll::Ready(batch) => Poll::Ready(self.strip(batch)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// What may be shown, as it is called in the client's scope.
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
