//! What waits for one watcher: written by publications, emptied by the watcher's consumer.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::index::WatcherId;
use super::request::{Filter, WatchLimits};
use super::visible::{Raised, VisibleRevision};
use crate::model::{Event, KeyRange, Revision};
use crate::mutant::{self, Mutant};

/// The meeting place of a watcher and the publications that concern it.
pub(super) struct Inbox {
    id: WatcherId,
    range: KeyRange,
    filter: Filter,
    queue: Mutex<Queue>,
}

struct Queue {
    /// In the order of their revisions, each revision once.
    entries: VecDeque<Entry>,
    /// The sum of the entries' bytes.
    bytes: usize,
    position: Position,
    /// Whether the publication that runs has put something in.
    touched: bool,
    waker: Option<Waker>,
}

/// Where the watcher stands, as far as publications are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    /// In the index. Gets what is published from this revision on.
    Live(Revision),
    /// Not in the index (or, while a publication runs, about to be taken out). Everything below
    /// this revision is in the queue or has been taken; from it on, the consumer reads the history.
    Behind(Revision),
}

/// One revision in which something happened to the range.
pub(super) struct Entry {
    revision: Revision,
    /// All that the revision did, shared by all watchers.
    events: Arc<[Event]>,
    /// The events of this watcher lie here, perhaps with others between them.
    first: u32,
    last: u32,
    bytes: usize,
}

impl Entry {
    /// The events among which those of the watcher are.
    pub(super) fn events(&self) -> &[Event] {
        &self.events[self.first as usize..=self.last as usize]
    }
}

/// One event of a revision that is being published.
#[derive(Clone, Copy)]
pub(super) struct Published<'a> {
    pub(super) revision: Revision,
    /// All events of the revision.
    pub(super) events: &'a Arc<[Event]>,
    /// Which of them this is.
    pub(super) at: u32,
    /// What all of them hold.
    pub(super) bytes: usize,
}

/// What became of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Push {
    /// Queued; the first of this publication: call [`Inbox::announce`] at its end.
    First,
    /// Queued, or not for this watcher.
    Done,
    /// There is no room: take the watcher out of the index.
    Full,
}

/// What a consumer found in its inbox.
pub(super) struct Taken {
    pub(super) entries: VecDeque<Entry>,
    /// With these entries, everything up to here has been taken.
    pub(super) through: Revision,
    /// Whether the consumer has to continue from the history.
    pub(super) behind: bool,
}

impl Inbox {
    /// The inbox of a watcher that waits for `start` and is to be put into the index.
    pub(super) fn live(id: WatcherId, range: KeyRange, filter: Filter, start: Revision) -> Self {
        Self::new(id, range, filter, Position::Live(start))
    }

    /// The inbox of a watcher that has to read the history from `start` on.
    pub(super) fn behind(id: WatcherId, range: KeyRange, filter: Filter, start: Revision) -> Self {
        Self::new(id, range, filter, Position::Behind(start))
    }

    fn new(id: WatcherId, range: KeyRange, filter: Filter, position: Position) -> Self {
        let (entries, bytes, touched, waker) = (VecDeque::new(), 0, false, None);
        let queue = Mutex::new(Queue { entries, bytes, position, touched, waker });
        Self { id, range, filter, queue }
    }

    pub(super) fn id(&self) -> WatcherId {
        self.id
    }

    pub(super) fn range(&self) -> &KeyRange {
        &self.range
    }

    /// Whether an event is one of this watcher's, if its revision is.
    pub(super) fn wants(&self, event: &Event) -> bool {
        self.filter.passes(event.kind) && self.range.contains(&event.kv.key)
    }

    /// Puts an event in whose key is in the range.
    pub(super) fn push(&self, published: Published<'_>, limits: &WatchLimits) -> Push {
        let Published { revision, events, at, bytes } = published;
        if !self.filter.passes(events[at as usize].kind) {
            return Push::Done;
        }
        let mut queue = self.lock();
        match queue.position {
            Position::Live(start) if start <= revision => {}
            Position::Live(_) | Position::Behind(_) => return Push::Done,
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
        if !room && mutant::is(Mutant::M11) {
            return Push::Done;
        }
        if !room {
            queue.position = Position::Behind(revision);
            return Push::Full;
        }
        let events = Arc::clone(events);
        queue.entries.push_back(Entry { revision, events, first: at, last: at, bytes });
        queue.bytes += bytes;
        if mem::replace(&mut queue.touched, true) { Push::Done } else { Push::First }
    }

    /// Ends the publication that has put something in, after its revisions have become visible. The
    /// waker is to be woken with no lock held.
    pub(super) fn announce(&self, _: &Raised) -> Option<Waker> {
        let mut queue = self.lock();
        queue.touched = false;
        queue.waker.take()
    }

    /// Takes what is visible. If there is nothing, and nothing to read either, `waker` is parked
    /// under the same lock, so that no publication falls between.
    pub(super) fn take(&self, visible: &VisibleRevision, waker: Option<&Waker>) -> Taken {
        let waker = waker.cloned();
        let mut queue = self.lock();
        // Read under the lock: what was published up to here has been pushed.
        let visible = visible.get();
        let entries = match queue.entries.iter().rposition(|entry| entry.revision <= visible) {
            None => VecDeque::new(),
            Some(last) if last + 1 == queue.entries.len() => mem::take(&mut queue.entries),
            // A publication is under way.
            Some(last) => queue.entries.drain(..=last).collect(),
        };
        queue.bytes -= entries.iter().map(|entry| entry.bytes).sum::<usize>();
        let (through, behind) = match queue.position {
            Position::Live(_) => (visible, false),
            Position::Behind(missed) => {
                (visible.min(Revision(missed.0.saturating_sub(1))), queue.entries.is_empty())
            }
        };
        let idle = entries.is_empty() && !behind;
        let old =
            if idle && waker.is_some() { mem::replace(&mut queue.waker, waker) } else { None };
        drop(queue);
        // Not before: dropping a waker may drop a task, and with it watchers.
        drop(old);
        Taken { entries, through, behind }
    }

    /// What happened from `from` through `through` is not told one by one: a live watcher that waits
    /// for some of it has to read it, and is no live one any more. True if it is.
    pub(super) fn miss(&self, from: Revision, through: Revision) -> bool {
        let mut queue = self.lock();
        match queue.position {
            Position::Live(start) if start <= through => {
                queue.position = Position::Behind(start.max(from));
                true
            }
            Position::Live(_) | Position::Behind(_) => false,
        }
    }

    /// Whether the watcher stands in the index; to be asked under the hub's lock.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.lock().position, Position::Live(_))
    }

    /// The consumer has read the history up to `start`, and the watcher is put into the index.
    pub(super) fn rejoin(&self, start: Revision) {
        let mut queue = self.lock();
        assert!(queue.entries.is_empty(), "a watcher that reads history has taken its queue");
        assert!(matches!(queue.position, Position::Behind(_)), "a live watcher cannot rejoin");
        queue.position = Position::Live(start);
    }

    /// Takes the watcher out of circulation: it gets nothing any more, and is not in the index.
    pub(super) fn leave(&self, at: Revision) -> Option<Waker> {
        let mut queue = self.lock();
        if matches!(queue.position, Position::Live(_)) {
            queue.position = Position::Behind(at);
        }
        queue.waker.take()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // See the hub's lock.
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
    fn a_queue_holds_no_more_than_its_limits_or_one_revision() {
        // (revisions at most, bytes at most, bytes of each revision) -> how many are kept
        let cases =
            [(4, 1_000, 10, 4), (4, 25, 10, 2), (4, 10, 10, 1), (4, 5, 10, 1), (1, 99, 1, 1)];
        for (queue_revisions_max, queue_bytes_max, bytes, kept) in cases {
            let limits =
                WatchLimits { queue_revisions_max, queue_bytes_max, ..WatchLimits::default() };
            let inbox = Inbox::live(WatcherId(0), KeyRange::all(), Filter::All, Revision(2));
            for number in 2..12 {
                let events = &change(number);
                let published = Published { revision: Revision(number), events, at: 0, bytes };
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
    fn what_is_not_visible_yet_is_not_taken() {
        let limits = WatchLimits::default();
        let inbox = Inbox::live(WatcherId(0), KeyRange::all(), Filter::All, Revision(2));
        for number in 2..5 {
            let published =
                Published { revision: Revision(number), events: &change(number), at: 0, bytes: 1 };
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
        let inbox = Inbox::live(WatcherId(0), KeyRange::all(), Filter::All, Revision(2));
        let push = |number| {
            let events = &change(number);
            inbox.push(Published { revision: Revision(number), events, at: 0, bytes: 1 }, &limits)
        };
        let look =
            |visible| inbox.take(&VisibleRevision::new(Revision(visible)), Some(Waker::noop()));
        let raised = VisibleRevision::new(Revision(1)).raise(Revision(2));
        // Nothing is there, or nothing that may be taken yet.
        assert!(look(1).entries.is_empty());
        assert!(inbox.announce(&raised).is_some());
        assert_eq!(push(2), Push::First);
        assert!(look(1).entries.is_empty());
        assert!(inbox.announce(&raised).is_some());
        // Something is there.
        assert_eq!(look(2).entries.len(), 1);
        assert!(inbox.announce(&raised).is_none());
        // There is history to read.
        push(3);
        assert_eq!(push(4), Push::Full);
        assert!(!look(4).entries.is_empty() && look(4).behind);
        assert!(inbox.announce(&raised).is_none());
    }
}
