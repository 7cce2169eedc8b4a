//! What will happen, in order: by true time, then by the order of queuing. The heap holds no more than when: what
//! happens is large, and stays where it is until it does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// When something happens, and before what else that happens then.
pub(super) type When = (Duration, u64);

/// See the module.
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

    /// When something will happen that is queued now, wherever that is kept.
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

    /// When the first thing happens.
    pub(super) fn next(&self) -> Option<When> {
        self.heap.peek().map(|Reverse((when, _))| *when)
    }

    /// The first thing.
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
            // The places of those that have come are taken again, and say nothing of the order.
            if came.len() == 2 {
                ["e", "f"].into_iter().for_each(|name| agenda.push(Duration::from_millis(2), name));
            }
        }
        assert_eq!(came, [(1, "a"), (1, "b"), (2, "c"), (2, "d"), (2, "e"), (2, "f")]);
        assert_eq!(agenda.pop(), None);
    }
}
