//! The watcher: the stream through which a consumer receives the changes of its watch.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use super::history::Compacted;
use super::hub::Hub;
use super::inbox::{WatchEntry, WatchInbox};
use super::request::{WatchBatch, WatchError};
use crate::model::{Event, Revision};

/// A stream of the changes of a range: in order, without duplicates or gaps, and in complete
/// revisions.
///
/// A watcher works with any async runtime. The stream ends after an error. Dropping the watcher
/// ends the watch at once.
pub struct Watcher {
    hub: Arc<Hub>,
    inbox: Arc<WatchInbox>,
    prev_kv: bool,
    created_at: Revision,
    /// The first revision requested.
    start: Revision,
    /// Every event from the start up to this revision has been yielded.
    delivered: Revision,
    /// If set, the consumer has requested a progress batch, which is due when this revision has
    /// been delivered.
    progress: Option<Revision>,
    ended: bool,
}

/// The result of one search for an item to yield.
enum WatcherStep {
    /// An item to yield.
    Batch(WatchBatch),
    /// The last item to yield.
    Failed(WatchError),
    /// A part of the history was read, and contained nothing for this watch.
    Reading,
    /// There is nothing to yield.
    Idle,
}

impl Watcher {
    pub(super) fn new(
        hub: Arc<Hub>,
        inbox: Arc<WatchInbox>,
        prev_kv: bool,
        created_at: Revision,
        start: Revision,
    ) -> Self {
        let delivered = created_at.min(Revision(start.0.saturating_sub(1)));
        Self { hub, inbox, prev_kv, created_at, start, delivered, progress: None, ended: false }
    }

    /// Returns the revision of the replica when the watch was created. A watch without a start
    /// revision yields the changes after this revision.
    pub fn created_at(&self) -> Revision {
        self.created_at
    }

    /// Returns the revision from which another watch can continue this one: all changes before this
    /// revision have been yielded, and no later ones.
    pub fn resume(&self) -> Revision {
        let off = i64::from(mutant!(M14)) - i64::from(mutant!(M13));
        self.start.max(Revision(self.delivered.next().get().saturating_add_signed(off)))
    }

    /// Returns the next changes, or the reason why the watch ended. After the reason, further calls
    /// return `None`.
    ///
    /// Cancel safe: if the future is dropped, the next call yields the same items.
    ///
    /// # Errors
    /// Returns [`WatchError::Compacted`] if the watch needs changes that are compacted, or
    /// [`WatchError::Closed`] if the node has stopped.
    pub async fn recv(&mut self) -> Option<Result<WatchBatch, WatchError>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Returns the next item of [`recv`](Self::recv) if it is available without waiting, and
    /// `Pending` otherwise. Registers no waker.
    pub fn try_recv(&mut self) -> Poll<Option<Result<WatchBatch, WatchError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            match self.step(None) {
                WatcherStep::Batch(batch) => return Poll::Ready(Some(Ok(batch))),
                WatcherStep::Failed(error) => return Poll::Ready(Some(Err(error))),
                WatcherStep::Reading => {}
                WatcherStep::Idle => return Poll::Pending,
            }
        }
    }

    /// Polls [`recv`](Self::recv), for hand-written futures.
    pub fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<WatchBatch, WatchError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match self.step(Some(context.waker())) {
            WatcherStep::Batch(batch) => Poll::Ready(Some(Ok(batch))),
            WatcherStep::Failed(error) => Poll::Ready(Some(Err(error))),
            WatcherStep::Reading => {
                // The history may be long, so other tasks run before the next page.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            WatcherStep::Idle => Poll::Pending,
        }
    }

    /// Requests a progress notification: a batch without events that is yielded after all changes
    /// published so far, even if no further change happens. The revision of this batch is at least
    /// the last published revision. A second request before the notification replaces the first.
    pub fn request_progress(&mut self) {
        self.progress = Some(self.hub.visible());
    }

    /// Looks for an item to yield. If there is none, the next matching publication wakes `waker`.
    fn step(&mut self, waker: Option<&Waker>) -> WatcherStep {
        assert!(!self.ended, "a watch that has ended looks for nothing");
        if let Some(batch) = self.answer_progress() {
            return WatcherStep::Batch(batch);
        }
        let taken = self.inbox.take(self.hub.visible_cell(), waker);
        self.delivered = self.delivered.max(taken.through);
        if !taken.entries.is_empty() {
            let events = self.requested_events(taken.entries.iter().flat_map(WatchEntry::events));
            assert!(!events.is_empty(), "what is queued for a watcher is in its range");
            return WatcherStep::Batch(WatchBatch { events, revision: self.delivered });
        }
        if taken.behind {
            return self.read_history(waker);
        }
        match self.answer_progress() {
            Some(batch) => WatcherStep::Batch(batch),
            None => WatcherStep::Idle,
        }
    }

    /// Reads a page of history, and becomes live if that was the last one.
    fn read_history(&mut self, waker: Option<&Waker>) -> WatcherStep {
        let next = self.resume();
        if let Some(why) = self.hub.closed() {
            let why = Arc::clone(why);
            return self.failed(WatchError::Closed { resume: next, why });
        }
        let bytes_max = self.hub.limits().page_bytes_max;
        let page = match self.hub.history().events(self.inbox.range(), next, bytes_max) {
            Ok(page) => page,
            Err(Compacted(compacted)) => {
                return self.failed(WatchError::Compacted { asked: next, compacted });
            }
        };
        assert!(page.next > next, "the history shows what was published, {next} too");
        self.delivered = Revision(page.next.0 - 1);
        let joined = self.hub.join(&self.inbox, self.resume());
        let events =
            self.requested_events(page.changes.iter().flat_map(|change| &**change.events()));
        match (events.is_empty(), joined) {
            (false, _) => WatcherStep::Batch(WatchBatch { events, revision: self.delivered }),
            (true, false) => WatcherStep::Reading,
            (true, true) => self.step(waker),
        }
    }

    fn answer_progress(&mut self) -> Option<WatchBatch> {
        self.progress.take_if(|asked| *asked <= self.delivered)?;
        Some(WatchBatch { events: Vec::new(), revision: self.delivered })
    }

    fn failed(&mut self, error: WatchError) -> WatcherStep {
        self.ended = true;
        WatcherStep::Failed(error)
    }

    /// Copies the events that this watch requested, with or without previous rows.
    fn requested_events<'a>(&self, events: impl Iterator<Item = &'a Event>) -> Vec<Event> {
        let prev = |event: &Event| if self.prev_kv { event.prev.clone() } else { None };
        events
            .filter(|event| self.inbox.wants(event))
            .map(|event| Event { kind: event.kind, kv: event.kv.clone(), prev: prev(event) })
            .collect()
    }
}

impl Stream for Watcher {
    type Item = Result<WatchBatch, WatchError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_recv(context)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.hub.part(&self.inbox);
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("range", self.inbox.range())
            .field("resume", &self.resume())
            .finish_non_exhaustive()
    }
}
