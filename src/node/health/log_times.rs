//! The times at which entries were passed to this node's log and became durable. The log line about
//! a slow request reports the disk time between them.
//!
//! ```text
//!   the driver pushes a group ──▶ queued      it is synced ──▶ durable      its entries are applied ──▶ forgotten
//! ```
//!
//! Each group of entries has one record until its entries are applied. Memory is bounded, because
//! consensus limits the number of unapplied entries.

use std::collections::VecDeque;

use crate::model::{LogIndex, Moment};
use crate::wal;

/// The groups whose entries are not applied yet.
#[derive(Debug, Default)]
pub(crate) struct LogTimes {
    /// The groups are ordered by number and by index, and do not overlap.
    groups: VecDeque<WriteTime>,
}

/// A group of entries in the log.
#[derive(Debug)]
struct WriteTime {
    number: u64,
    first: LogIndex,
    last: LogIndex,
    queued: Moment,
    durable: Option<Moment>,
}

/// The times of one entry in this node's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InLog {
    /// Time at which the entry was passed to the log.
    pub(crate) queued: Moment,
    /// Time at which the log reported the entry as durable.
    pub(crate) durable: Moment,
}

impl LogTimes {
    /// Records that a group was passed to the log.
    pub(crate) fn queued(&mut self, group: &wal::Group, now: Moment) {
        let (Some(first), Some(last)) = (group.entries.first(), group.entries.last()) else {
            return;
        };
        self.queued_entries(group.number, first.index, last.index, now);
    }

    fn queued_entries(&mut self, number: u64, first: LogIndex, last: LogIndex, now: Moment) {
        // The entries of a new leader replace the entries that this leader does not have.
        while let Some(before) = self.groups.back_mut().filter(|before| before.last >= first) {
            if before.first < first {
                before.last = LogIndex(first.get() - 1);
                break;
            }
            self.groups.pop_back();
        }
        self.groups.push_back(WriteTime { number, first, last, queued: now, durable: None });
    }

    /// Records that all groups up to `number` were durable at `now`.
    pub(crate) fn durable(&mut self, number: u64, now: Moment) {
        let later = |group: &&mut WriteTime| group.number > number;
        let news = self.groups.iter_mut().rev().skip_while(later);
        for group in news.take_while(|group| group.durable.is_none()) {
            group.durable = Some(now);
        }
    }

    /// Returns the times of the entry at `index`, if it was logged in this incarnation and is not forgotten.
    pub(crate) fn of(&self, index: LogIndex) -> Option<InLog> {
        let at = self.groups.partition_point(|group| group.last < index);
        let group = self.groups.get(at).filter(|group| group.first <= index)?;
        Some(InLog { queued: group.queued, durable: group.durable? })
    }

    /// Forgets the entries up to `index`, which are applied.
    pub(crate) fn forget(&mut self, index: LogIndex) {
        while self.groups.front().is_some_and(|group| group.last <= index) {
            self.groups.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::at;

    /// Returns the times at which the entry was queued and durable, in milliseconds.
    fn of(times: &LogTimes, index: u64) -> Option<(u128, u128)> {
        let ms = |moment: Moment| moment.since(at(0)).as_millis();
        times.of(LogIndex(index)).map(|times| (ms(times.queued), ms(times.durable)))
    }

    #[test]
    fn each_entry_has_the_times_of_its_group_until_it_is_applied() {
        let mut times = LogTimes::default();
        times.queued_entries(1, LogIndex(5), LogIndex(7), at(10));
        times.queued_entries(2, LogIndex(8), LogIndex(8), at(20));
        times.queued_entries(4, LogIndex(9), LogIndex(9), at(30));
        assert_eq!(of(&times, 5), None, "not durable yet");
        times.durable(3, at(40));
        times.durable(4, at(50));
        let found: Vec<_> = (4..=10).map(|index| of(&times, index)).collect();
        let (first, second) = (Some((10, 40)), Some((20, 40)));
        assert_eq!(found, [None, first, first, first, second, Some((30, 50)), None]);
        times.forget(LogIndex(6));
        assert_eq!(of(&times, 7), first, "its group is not applied as a whole");
        times.forget(LogIndex(8));
        assert_eq!((of(&times, 8), of(&times, 9)), (None, Some((30, 50))));
    }

    #[test]
    fn replacing_entries_have_their_own_times() {
        let mut times = LogTimes::default();
        times.queued_entries(1, LogIndex(5), LogIndex(7), at(10));
        times.queued_entries(2, LogIndex(8), LogIndex(9), at(20));
        times.queued_entries(3, LogIndex(7), LogIndex(8), at(30));
        times.durable(3, at(40));
        let found: Vec<_> = (5..=9).map(|index| of(&times, index)).collect();
        let (old, new) = (Some((10, 40)), Some((30, 40)));
        assert_eq!(found, [old, old, new, new, None]);
    }
}
