//! The queue of one watcher. Publishing a change adds the change to the queue, and the watcher's
//! consumer removes it.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::index::WatcherId;
use super::request::{Filter, WatchLimits};
use super::visible::{Raised, VisibleRevision};
use crate::model::{Event, KeyRange, Revision};

/// The queue between publications and a watcher.
pub(super) struct WatchInbox {
    id: WatcherId,
    range: KeyRange,
    filter: Filter,
    queue: Mutex<WatchQueue>,
}

struct WatchQueue {
    /// One entry for each revision, in the order of the revisions.
    entries: VecDeque<WatchEntry>,
    /// Sum of the entries' bytes.
    bytes: usize,
    position: WatchPosition,
    /// Whether the current publication has added an entry.
    touched: bool,
    waker: Option<Waker>,
}

/// The watcher's position relative to publications.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WatchPosition {
    /// The watcher is in the index, and receives everything that is published from this revision
    /// on.
    Live(Revision),
    /// The watcher is not in the index, or the current publication is about to remove it. Changes
    /// before this revision are in the queue or were already taken. From this revision on, the
    /// consumer reads the history.
    Behind(Revision),
}

/// One revision with changes in the watcher's range.
pub(super) struct WatchEntry {
    revision: Revision,
    /// All events of the revision, shared by all watchers.
    events: Arc<[Event]>,
    /// The events of this watcher are in the range from `first` to `last`. The range may also
    /// contain events that do not match the watcher.
    first: u32,
    last: u32,
    bytes: usize,
}

impl WatchEntry {
    /// Returns the range of events that contains all events of the watcher.
    pub(super) fn events(&self) -> &[Event] {
        &self.events[self.first as usize..=self.last as usize]
    }
}

/// One event of a revision that is being published.
#[derive(Clone, Copy)]
pub(super) struct WatchPublished<'a> {
    pub(super) revision: Revision,
    /// All events of the revision.
    pub(super) events: &'a Arc<[Event]>,
    /// Position of this event in `events`.
    pub(super) at: u32,
    /// Memory of all these events in bytes.
    pub(super) bytes: usize,
}

/// The result of pushing an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Push {
    /// The event was queued, as the first event of this publication. The caller must call
    /// [`WatchInbox::announce`] at the end of the publication.
    First,
    /// The event was queued, or the watcher's filter excludes it.
    Done,
    /// The queue is full. The caller must remove the watcher from the index.
    Full,
}

/// The contents that a consumer has taken from its inbox.
pub(super) struct WatchTaken {
    pub(super) entries: VecDeque<WatchEntry>,
    /// With these entries, the consumer has received all changes up to this revision.
    pub(super) through: Revision,
    /// Whether the consumer must continue from the history.
    pub(super) behind: bool,
}

impl WatchInbox {
    /// Creates the inbox of a watcher that waits for `start` and will be added to the index.
    pub(super) fn live(id: WatcherId, range: KeyRange, filter: Filter, start: Revision) -> Self {
        Self::new(id, range, filter, WatchPosition::Live(start))
    }

    /// Creates the inbox of a watcher that must read the history from `start` on.
    pub(super) fn behind(id: WatcherId, range: KeyRange, filter: Filter, start: Revision) -> Self {
        Self::new(id, range, filter, WatchPosition::Behind(start))
    }

    fn new(id: WatcherId, range: KeyRange, filter: Filter, position: WatchPosition) -> Self {
        let (entries, bytes, touched, waker) = (VecDeque::new(), 0, false, None);
        let queue = Mutex::new(WatchQueue { entries, bytes, position, touched, waker });
        Self { id, range, filter, queue }
    }

    pub(super) fn id(&self) -> WatcherId {
        self.id
    }

    pub(super) fn range(&self) -> &KeyRange {
        &self.range
    }

    /// Returns whether an event matches the range and the filter of this watcher.
    pub(super) fn wants(&self, event: &Event) -> bool {
        self.filter.passes(event.kind) && self.range.contains(&event.kv.key)
    }

    /// Adds an event whose key is in the range.
    pub(super) fn push(&self, published: WatchPublished<'_>, limits: &WatchLimits) -> Push {
        let WatchPublished { revision, events, at, bytes } = published;
        if !self.filter.passes(events[at as usize].kind) {
            return Push::Done;
        }
        let mut queue = self.lock();
        match queue.position {
            WatchPosition::Live(start) if start <= revision => {}
            WatchPosition::Live(_) | WatchPosition::Behind(_) => return Push::Done,
        }
        if let Some(last) = queue.entries.back_mut()
            && last.revision >= revision
        {
            assert!(last.revision == revision && last.last < at, "published out of order");
            last.last = at;
            return Push::Done;
        }
        let room = queue.entries.is_empty()
            || (queue.entries.len() < limits.queue_revisions_max
                && queue.bytes.saturating_add(bytes) <= limits.queue_bytes_max);
        if !room {
            mutant!(M11, return Push::Done);
            queue.position = WatchPosition::Behind(revision);
            return Push::Full;
        }
        let events = Arc::clone(events);
        queue.entries.push_back(WatchEntry { revision, events, first: at, last: at, bytes });
        queue.bytes += bytes;
        if mem::replace(&mut queue.touched, true) { Push::Done } else { Push::First }
    }

    /// Returns the waker of the consumer. Must be called after a publication has added entries and
    /// its revisions have become visible. The caller must hold no lock when it wakes the waker.
    pub(super) fn announce(&self, _: &Raised) -> Option<Waker> {
        let mut queue = self.lock();
        queue.touched = false;
        queue.waker.take()
    }

    /// Takes the visible entries. If there are no entries and no history to read, registers
    /// `waker`. Taking and registering happen under one lock, so that no publication is missed in
    /// between.
    pub(super) fn take(&self, visible: &VisibleRevision, waker: Option<&Waker>) -> WatchTaken {
        let waker = waker.cloned();
        let mut queue = self.lock();
        // Read the visible revision under the lock: all changes up to this revision have been
        // pushed to this inbox.
        let visible = visible.get();
        let entries = match queue.entries.iter().rposition(|entry| entry.revision <= visible) {
            None => VecDeque::new(),
            Some(last) if last + 1 == queue.entries.len() => mem::take(&mut queue.entries),
            // If a publication is in progress, only a part of the entries is visible.
            Some(last) => queue.entries.drain(..=last).collect(),
        };
        queue.bytes -= entries.iter().map(|entry| entry.bytes).sum::<usize>();
        let (through, behind) = match queue.position {
            WatchPosition::Live(_) => (visible, false),
            WatchPosition::Behind(missed) => {
                (visible.min(Revision(missed.0.saturating_sub(1))), queue.entries.is_empty())
            }
        };
        let idle = entries.is_empty() && !behind;
        let old =
            if idle && waker.is_some() { mem::replace(&mut queue.waker, waker) } else { None };
        drop(queue);
        // Drop the old waker last, because dropping a waker may drop a task and the watchers of
        // this task.
        drop(old);
        WatchTaken { entries, through, behind }
    }

    /// Reports that the changes from `from` through `through` are not published individually. A
    /// live watcher that needs some of these changes must read the history, so it stops being live.
    /// Returns whether the watcher has stopped being live.
    pub(super) fn miss(&self, from: Revision, through: Revision) -> bool {
        let mut queue = self.lock();
        match queue.position {
            WatchPosition::Live(start) if start <= through => {
                queue.position = WatchPosition::Behind(start.max(from));
                true
            }
            WatchPosition::Live(_) | WatchPosition::Behind(_) => false,
        }
    }

    /// Returns whether the watcher is in the index. Must be called under the hub's lock.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.lock().position, WatchPosition::Live(_))
    }

    /// Records that the consumer has read the history up to `start` and the watcher is added to the
    /// index.
    pub(super) fn rejoin(&self, start: Revision) {
        let mut queue = self.lock();
        assert!(queue.entries.is_empty(), "a watcher that reads history has taken its queue");
        assert!(matches!(queue.position, WatchPosition::Behind(_)), "a live watcher cannot rejoin");
        queue.position = WatchPosition::Live(start);
    }

    /// Marks the watcher as removed from the index. The watcher receives no further publications.
    pub(super) fn leave(&self, at: Revision) -> Option<Waker> {
        let mut queue = self.lock();
        if matches!(queue.position, WatchPosition::Live(_)) {
            queue.position = WatchPosition::Behind(at);
        }
        queue.waker.take()
    }

    fn lock(&self) -> MutexGuard<'_, WatchQueue> {
        // A poisoned lock is ignored: after a panic of the driver, watchers must still learn that
        // the node has stopped.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::{EventKind, KeyValue};

    fn change(revision: u64) -> Arc<[Event]> {
        let kv = KeyValue {
            key: Bytes::from_static(b"k"),
            value: Bytes::new(),
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            lease: None,
        };
        [Event { kind: EventKind::Put, kv, prev: None }].into()
    }

    #[test]
    fn queue_is_bounded_by_its_limits_or_one_revision() {
        // (maximum revisions, maximum bytes, bytes of each revision) -> number of revisions kept
        let cases =
            [(4, 1_000, 10, 4), (4, 25, 10, 2), (4, 10, 10, 1), (4, 5, 10, 1), (1, 99, 1, 1)];
        for (queue_revisions_max, queue_bytes_max, bytes, kept) in cases {
            let limits =
                WatchLimits { queue_revisions_max, queue_bytes_max, ..WatchLimits::default() };
            let inbox = WatchInbox::live(WatcherId(0), KeyRange::all(), Filter::All, Revision(2));
            for number in 2..12 {
                let events = &change(number);
                let published = WatchPublished { revision: Revision(number), events, at: 0, bytes };
                let expected = match number - 2 {
                    0 => Push::First,
                    n if n == kept => Push::Full,
                    _ => Push::Done,
                };
                assert_eq!(inbox.push(published, &limits), expected, "{number} of {limits:?}");
            }
            let taken = inbox.take(&VisibleRevision::new(Revision(11)), None);
            assert_eq!(taken.entries.len() as u64, kept);
            assert_eq!((taken.through, taken.behind), (Revision(kept + 1), true));
            assert_eq!(inbox.lock().bytes, 0);
        }
    }

    #[test]
    fn invisible_revisions_are_not_taken() {
        let limits = WatchLimits::default();
        let inbox = WatchInbox::live(WatcherId(0), KeyRange::all(), Filter::All, Revision(2));
        for number in 2..5 {
            let published = WatchPublished {
                revision: Revision(number),
                events: &change(number),
                at: 0,
                bytes: 1,
            };
            inbox.push(published, &limits);
        }
        let visible = VisibleRevision::new(Revision(1));
        for (seen, count) in [(1, 0), (3, 2), (3, 0), (9, 1)] {
            visible.raise(Revision(seen));
            let taken = inbox.take(&visible, None);
            assert_eq!((taken.entries.len(), taken.through), (count, Revision(seen)));
        }
    }

    #[test]
    fn a_waker_is_parked_exactly_if_there_is_nothing_to_do() {
        let limits = WatchLimits { queue_revisions_max: 1, ..WatchLimits::default() };
        let inbox = WatchInbox::live(WatcherId(0), KeyRange::all(), Filter::All, Revision(2));
        let push = |number| {
            let events = &change(number);
            inbox.push(
                WatchPublished { revision: Revision(number), events, at: 0, bytes: 1 },
                &limits,
            )
        };
        let look =
            |visible| inbox.take(&VisibleRevision::new(Revision(visible)), Some(Waker::noop()));
        let raised = VisibleRevision::new(Revision(1)).raise(Revision(2));
        // The queue is empty, or has no visible entry yet.
        assert!(look(1).entries.is_empty());
        assert!(inbox.announce(&raised).is_some());
        assert_eq!(push(2), Push::First);
        assert!(look(1).entries.is_empty());
        assert!(inbox.announce(&raised).is_some());
        // The queue now has a visible entry.
        assert_eq!(look(2).entries.len(), 1);
        assert!(inbox.announce(&raised).is_none());
        // The queue is full, so there is history to read.
        push(3);
        assert_eq!(push(4), Push::Full);
        assert!(!look(4).entries.is_empty() && look(4).behind);
        assert!(inbox.announce(&raised).is_none());
    }
}
