//! The hub, through which the driver publishes changes to watchers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::history::WatchHistory;
use super::inbox::{Push, WatchInbox, WatchPublished};
use super::index::{WatcherId, WatcherIndex};
use super::request::{WatchLimits, WatchRequest};
use super::visible::VisibleRevision;
use super::wake::waking;
use super::watcher::Watcher;
use crate::machine::Change;
use crate::model::{Event, Revision};

/// The watches of one replica. A single driver publishes; watchers are created, read and dropped on
/// any thread.
pub struct Hub {
    history: Box<dyn WatchHistory>,
    limits: WatchLimits,
    /// The last published revision.
    visible: VisibleRevision,
    /// Set when the hub is closed: the reason why nothing more will be published. Written under the
    /// lock, read without the lock.
    closed: OnceLock<Arc<str>>,
    state: Mutex<HubState>,
    /// Number of times that a watcher left the index because its inbox was full.
    overflows: AtomicU64,
    /// Number of watchers that have not been dropped.
    open: AtomicUsize,
}

struct HubState {
    index: WatcherIndex,
    /// Id of the next watcher.
    id: WatcherId,
}

impl Hub {
    /// Creates a hub for a replica. Readers of the replica see the current revision of `history`.
    pub fn new(history: impl WatchHistory, limits: WatchLimits) -> Arc<Self> {
        assert!(limits.queue_revisions_max > 0, "a queue has room for at least one revision");
        Arc::new(Self {
            visible: VisibleRevision::new(history.revision()),
            history: Box::new(history),
            limits,
            closed: OnceLock::new(),
            overflows: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            state: Mutex::new(HubState { index: WatcherIndex::default(), id: WatcherId(0) }),
        })
    }

    /// Starts a watch. If the start revision is compacted or the node has stopped, the watch yields
    /// the error as its first item.
    pub fn watch(self: &Arc<Self>, request: WatchRequest) -> Watcher {
        let WatchRequest { range, from, prev_kv, filter } = request;
        // The caller may already have read a revision that is not published yet. The watch begins
        // after that revision.
        let seen = self.history.revision();
        let mut state = self.lock();
        let visible = self.visible();
        let created_at = seen.max(visible);
        let start = from.unwrap_or(created_at.next());
        let id = state.id;
        state.id = WatcherId(id.0 + 1);
        let live = start > visible && self.closed.get().is_none();
        let inbox = if live {
            let inbox = Arc::new(WatchInbox::live(id, range, filter, start));
            state.index.insert(Arc::clone(&inbox));
            inbox
        } else {
            Arc::new(WatchInbox::behind(id, range, filter, start))
        };
        drop(state);
        self.open.fetch_add(1, Ordering::Relaxed);
        Watcher::new(Arc::clone(self), inbox, prev_kv, created_at, start)
    }

    /// Publishes the changes that have become visible in the history: every change since the last
    /// call, in order, up to `visible`. Does not wait for any consumer. Does nothing after
    /// [`close`](Self::close).
    ///
    /// For each event the cost is O(log n) key comparisons among n live watchers. For each watcher
    /// that receives the event, the cost is one pointer in the watcher's queue and one wake-up.
    pub fn publish(&self, changes: &[Change], visible: Revision) {
        let mut state = self.lock();
        if self.closed.get().is_some() {
            return;
        }
        // Check all changes before pushing the first one, so that a panic never leaves a
        // half-published batch.
        let mut newest = self.visible();
        for revision in changes.iter().map(Change::revision) {
            assert!(revision == newest.next(), "revision {revision} published after {newest}");
            newest = revision;
        }
        assert!(newest == visible, "{visible} became visible, and {newest} was published");
        let mut touched: Vec<&Arc<WatchInbox>> = Vec::new();
        let mut full: Vec<Arc<WatchInbox>> = Vec::new();
        for change in changes {
            if state.index.len() == 0 {
                continue;
            }
            let (revision, events) = (change.revision(), change.events());
            let bytes = events.iter().map(event_bytes).sum();
            for (at, event) in (0u32..).zip(events.iter()) {
                let published = WatchPublished { revision, events, at, bytes };
                state.index.each(&event.kv.key, |inbox| {
                    match inbox.push(published, &self.limits) {
                        Push::First => touched.push(inbox),
                        Push::Done => {}
                        Push::Full => full.push(Arc::clone(inbox)),
                    }
                });
            }
        }
        let raised = self.visible.raise(visible);
        let announced = touched.into_iter().filter_map(|inbox| inbox.announce(&raised));
        let wakers: Vec<Waker> = announced.collect();
        self.overflows.fetch_add(full.len() as u64, Ordering::Relaxed);
        for inbox in full {
            let removed = state.index.remove(inbox.range(), inbox.id());
            assert!(removed.is_some(), "a watcher that was pushed to stands in the index");
        }
        drop(state);
        wake(wakers);
    }

    /// Reports that the replica has installed a later state, at revision `visible`. The changes up
    /// to this revision are not published one by one. Watchers that need some of these changes read
    /// them from the history, or receive `Compacted` if they are compacted. Does not wait for any
    /// consumer.
    pub fn installed(&self, visible: Revision) {
        let mut state = self.lock();
        let before = self.visible();
        if self.closed.get().is_some() || visible == before {
            return;
        }
        assert!(visible > before, "a state at {visible} was installed after {before}");
        let mut missed: Vec<Arc<WatchInbox>> = Vec::new();
        for inbox in std::mem::take(&mut state.index).into_inboxes() {
            // Remove these watchers from the index before the new revision becomes visible.
            // Otherwise a live watcher would report the revision as delivered without its changes.
            if inbox.miss(before.next(), visible) && !mutant!(B31) {
                missed.push(inbox);
            } else {
                state.index.insert(inbox);
            }
        }
        let raised = self.visible.raise(visible);
        let wakers = missed.iter().filter_map(|inbox| inbox.announce(&raised)).collect();
        drop(state);
        wake(wakers);
    }

    /// Ends all watches with the reason `why`. Each watch yields the changes in its queue and then
    /// [`WatchError::Closed`](super::WatchError::Closed). Only the first call has an effect.
    pub fn close(&self, why: &str) {
        let mut state = self.lock();
        if self.closed.set(why.into()).is_err() {
            return;
        }
        let index = std::mem::take(&mut state.index);
        let next = self.visible().next();
        let inboxes = index.into_inboxes();
        let wakers = inboxes.iter().filter_map(|inbox| inbox.leave(next)).collect();
        drop(state);
        wake(wakers);
    }

    /// Returns the number of live watchers, to which publications are pushed.
    pub fn live(&self) -> usize {
        self.lock().index.len()
    }

    /// Returns the number of watchers that have not been dropped.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of open watchers that are behind, to which nothing is pushed.
    pub fn behind(&self) -> usize {
        let live = self.live();
        self.open().saturating_sub(live)
    }

    /// Returns how often a watcher fell behind because its inbox was full, so that it continued
    /// from the history.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    /// Returns the last published revision.
    pub(super) fn visible(&self) -> Revision {
        self.visible.get()
    }

    /// Returns the visible revision as a shared cell, so that an inbox can read it under the
    /// inbox's own lock.
    pub(super) fn visible_cell(&self) -> &VisibleRevision {
        &self.visible
    }

    pub(super) fn closed(&self) -> Option<&Arc<str>> {
        self.closed.get()
    }

    pub(super) fn history(&self) -> &dyn WatchHistory {
        &*self.history
    }

    pub(super) fn limits(&self) -> &WatchLimits {
        &self.limits
    }

    /// Makes a watcher live that has received everything before `next`, unless the revision `next`
    /// has been published meanwhile. Returns whether the watcher is live now.
    pub(super) fn join(&self, inbox: &Arc<WatchInbox>, next: Revision) -> bool {
        let mut state = self.lock();
        if self.visible() >= next || self.closed.get().is_some() {
            return false;
        }
        inbox.rejoin(next);
        state.index.insert(Arc::clone(inbox));
        true
    }

    pub(super) fn part(&self, inbox: &WatchInbox) {
        let mut state = self.lock();
        let live = inbox.is_live();
        let removed = state.index.remove(inbox.range(), inbox.id());
        // This code may run while another panic unwinds. A second panic would then abort the host
        // process.
        assert!(
            removed.is_some() == live || std::thread::panicking(),
            "the index holds the live watchers and no others"
        );
        let waker = inbox.leave(self.visible().next());
        drop(state);
        self.open.fetch_sub(1, Ordering::Relaxed);
        drop(waker);
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        // After a panic of the driver, watchers must still learn that the node has stopped.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("visible", &self.visible()).finish_non_exhaustive()
    }
}

/// Returns the memory that an event takes.
fn event_bytes(event: &Event) -> usize {
    let prev = event.prev.as_ref().map_or(0, |prev| prev.key.len() + prev.value.len());
    event.kv.key.len() + event.kv.value.len() + prev + size_of::<Event>()
}

/// Wakes consumers. Must be called without any lock held.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waking(|| waker.wake());
    }
}
