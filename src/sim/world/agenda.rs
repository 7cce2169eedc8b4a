//! The future events, ordered by true time and then by the order of scheduling. The heap contains only times and
//! slots; the events, which are large, stay in their slots.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The time of an event, and its rank among events at the same time.
pub(super) type When = (Duration, u64);

/// The queue of future events.
pub(super) struct Agenda<T> {
    heap: BinaryHeap<Reverse<(When, usize)>>,
    slots: Vec<Option<T>>,
    free: Vec<usize>,
    next: u64,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), next: 0 }
    }

    /// Returns the time and rank of an event scheduled now, wherever the event itself is kept.
    pub(super) fn when(&mut self, at: Duration) -> When {
        self.next += 1;
        (at, self.next)
    }

    pub(super) fn push(&mut self, at: Duration, what: T) {
        let when = self.when(at);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(what);
        self.heap.push(Reverse((when, slot)));
    }

    /// Returns the time of the first event.
    pub(super) fn next(&self) -> Option<When> {
        self.heap.peek().map(|Reverse((when, _))| *when)
    }

    /// Removes and returns the first event.
    pub(super) fn pop(&mut self) -> Option<T> {
        let Reverse((_, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.slots[slot].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_at_the_same_time_keep_their_order() {
        let mut agenda = Agenda::new();
        for (ms, name) in [(2, "c"), (1, "a"), (2, "d"), (1, "b")] {
            agenda.push(Duration::from_millis(ms), name);
        }
        let mut came = Vec::new();
        while let Some((at, _)) = agenda.next() {
            came.push((at.as_millis(), agenda.pop().unwrap()));
            // Slots of past events are reused and do not affect the order.
            if came.len() == 2 {
                ["e", "f"].into_iter().for_each(|name| agenda.push(Duration::from_millis(2), name));
            }
        }
        assert_eq!(came, [(1, "a"), (1, "b"), (2, "c"), (2, "d"), (2, "e"), (2, "f")]);
        assert_eq!(agenda.pop(), None);
    }
}
