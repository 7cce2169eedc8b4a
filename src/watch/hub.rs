//! The hub: where the driver publishes and watchers come and go.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use super::history::History;
use super::inbox::{Inbox, Published, Push};
use super::index::{Index, WatcherId};
use super::request::{WatchLimits, WatchRequest};
use super::visible::VisibleRevision;
use super::wake::waking;
use super::watcher::Watcher;
use crate::machine::Change;
use crate::model::{Event, Revision};
use crate::mutant::{self, Mutant};

/// The watches of one replica. One driver publishes; watchers are made, read and dropped on any
/// thread.
pub struct Hub {
    history: Box<dyn History>,
    limits: WatchLimits,
    /// The revision published last.
    visible: VisibleRevision,
    /// Why no more will be published. Written under the lock, read without.
    closed: OnceLock<Arc<str>>,
    state: Mutex<State>,
    /// How often a watcher had to leave the index because its inbox was full.
    overflows: AtomicU64,
    /// Watchers that have not been dropped.
    open: AtomicUsize,
}

struct State {
    index: Index,
    /// Of the next watcher.
    id: WatcherId,
}

impl Hub {
    /// A hub for a replica that has made visible what `history` shows now.
    pub fn new(history: impl History, limits: WatchLimits) -> Arc<Self> {
        assert!(limits.queue_revisions_max > 0, "a queue has room for at least one revision");
        Arc::new(Self {
            visible: VisibleRevision::new(history.revision()),
            history: Box::new(history),
            limits,
            closed: OnceLock::new(),
            overflows: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            state: Mutex::new(State { index: Index::default(), id: WatcherId(0) }),
        })
    }

    /// Starts a watch. What is wrong with it, a compacted start or a node that has stopped, is the
    /// first thing that it yields.
    pub fn watch(self: &Arc<Self>, request: WatchRequest) -> Watcher {
        let WatchRequest { range, from, prev_kv, filter } = request;
        // The caller may have read a revision that is not published yet: it is before the creation.
        let seen = self.history.revision();
        let mut state = self.lock();
        let visible = self.visible();
        let created_at = seen.max(visible);
        let start = from.unwrap_or(created_at.next());
        let id = state.id;
        state.id = WatcherId(id.0 + 1);
        let live = start > visible && self.closed.get().is_none();
        let inbox = if live {
            let inbox = Arc::new(Inbox::live(id, range, filter, start));
            state.index.insert(Arc::clone(&inbox));
            inbox
        } else {
            Arc::new(Inbox::behind(id, range, filter, start))
        };
        drop(state);
        self.open.fetch_add(1, Ordering::Relaxed);
        Watcher::new(Arc::clone(self), inbox, prev_kv, created_at, start)
    }

    /// Hands on what has become visible in the history: every change since the last call, in order,
    /// up to `visible`. Waits for no consumer. After [`close`](Self::close) it does nothing.
    ///
    /// For each event it costs O(log n) comparisons of keys among n watchers that keep up, and for
    /// each watcher that gets something one pointer in its queue and one wake-up.
    pub fn publish(&self, changes: &[Change], visible: Revision) {
        let mut state = self.lock();
        if self.closed.get().is_some() {
            return;
        }
        // Judged before anything is pushed, so that no publication stops halfway.
        let mut newest = self.visible();
        for Change { revision, .. } in changes {
            assert!(*revision == newest.next(), "revision {revision} published after {newest}");
            newest = *revision;
        }
        assert!(newest == visible, "{visible} became visible, and {newest} was published");
        let mut touched: Vec<&Arc<Inbox>> = Vec::new();
        let mut full: Vec<Arc<Inbox>> = Vec::new();
        for change in changes {
            if state.index.len() == 0 {
                continue;
            }
            let bytes = change.events.iter().map(event_bytes).sum();
            for (at, event) in (0u32..).zip(change.events.iter()) {
                let published =
                    Published { revision: change.revision, events: &change.events, at, bytes };
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

    /// Tells that the replica has taken over a later state: everything up to `visible` has happened,
    /// and the history shows it already, as far as it is not compacted. Watchers that wait for some of
    /// it read it there, or learn there that it is gone. Waits for no consumer.
    pub fn installed(&self, visible: Revision) {
        let mut state = self.lock();
        let before = self.visible();
        if self.closed.get().is_some() || visible == before {
            return;
        }
        assert!(visible > before, "a state at {visible} was installed after {before}");
        let mut missed: Vec<Arc<Inbox>> = Vec::new();
        for inbox in std::mem::take(&mut state.index).into_inboxes() {
            // Before the revision is visible: a live watcher would take it for delivered.
            if inbox.miss(before.next(), visible) && !mutant::is(Mutant::B31) {
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

    /// Ends all watches, because of `why`: each yields what is queued for it, then
    /// [`WatchError::Closed`](super::WatchError::Closed). The first call counts.
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

    /// How many watchers keep up, and so take part in publications.
    pub fn live(&self) -> usize {
        self.lock().index.len()
    }

    /// The number of watchers that have not been dropped.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The number of open watchers that take no part in publications.
    pub fn behind(&self) -> usize {
        let live = self.live();
        self.open().saturating_sub(live)
    }

    /// How often a watcher fell behind because its inbox was full: it goes on from the history.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    /// The revision published last.
    pub(super) fn visible(&self) -> Revision {
        self.visible.get()
    }

    /// The same, to be read under another lock.
    pub(super) fn visible_cell(&self) -> &VisibleRevision {
        &self.visible
    }

    pub(super) fn closed(&self) -> Option<&Arc<str>> {
        self.closed.get()
    }

    pub(super) fn history(&self) -> &dyn History {
        &*self.history
    }

    pub(super) fn limits(&self) -> &WatchLimits {
        &self.limits
    }

    /// Makes a watcher live that needs nothing before `next` any more, unless that has been
    /// published meanwhile. Says whether it is live now.
    pub(super) fn join(&self, inbox: &Arc<Inbox>, next: Revision) -> bool {
        let mut state = self.lock();
        if self.visible() >= next || self.closed.get().is_some() {
            return false;
        }
        inbox.rejoin(next);
        state.index.insert(Arc::clone(inbox));
        true
    }

    /// Forgets a watcher.
    pub(super) fn part(&self, inbox: &Inbox) {
        let mut state = self.lock();
        let live = inbox.is_live();
        let removed = state.index.remove(inbox.range(), inbox.id());
        // Called by a drop: a second panic would abort the host.
        assert!(
            removed.is_some() == live || std::thread::panicking(),
            "the index holds the live watchers and no others"
        );
        let waker = inbox.leave(self.visible().next());
        drop(state);
        self.open.fetch_sub(1, Ordering::Relaxed);
        drop(waker);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic of the driver, watchers must still be told that the node has stopped.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("visible", &self.visible()).finish_non_exhaustive()
    }
}

/// What an event holds in memory.
fn event_bytes(event: &Event) -> usize {
    let prev = event.prev.as_ref().map_or(0, |prev| prev.key.len() + prev.value.len());
    event.kv.key.len() + event.kv.value.len() + prev + size_of::<Event>()
}

/// Wakes consumers. To be called with no lock held.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waking(|| waker.wake());
    }
}
